"""Scores of units: the contribution of a unit is the mean of the contributions of its rows.

Every metric is the mean of contributions phi of norm at most 1/2, or a function of such means: of fractions of losses,
of cells of a histogram, of moments. A unit with rows 1 to r, at most k of them, contributes

    phi_u = 1/r * (phi_1 + ... + phi_r),    so that    |phi_u| <= max_j |phi_j| <= 1/2.

All rows of a unit may be anything, and so may r: phi_u stays in the same ball, and replacing it moves a sum by no more
than replacing the contribution of a row does. So every sensitivity and all noise are those of as many rows, the joint
norm of several metrics included, and the clip changes nothing. The divisor is the number of units, which is public. A
sum over rows would be up to k times as long, and its divisor, the number of rows, is private.

**What is estimated** is the score of a row that is drawn from a unit that is drawn: every unit counts once, however
many rows it has. The count of a cell is the number of units, each with the fraction of its rows that is there. So a
group, a class or a bin is as large as the units in it. Of a unit with more than k rows, k are drawn by a hash, which
leaves the mean over units what it is on average.

**Intervals** hold as they are, with n units that are drawn independently, as their rows need not be. A mean over rows
of numbers in [0, b] lies in [0, b]. And for a unit with fractions w_c in cells c, which add up to one at most, the
square of any sum_c a_c w_c is at most sum_c a_c^2 w_c (Jensen): counts vary no more than those of as many rows.

**The model** is called on k rows of every unit, where absent rows repeat one of the same unit. A call on the rows
themselves would show it their number, which is private: a compiled model, which may be kept in a file, has the shape.
"""

from typing import Any

import jax
import numpy as np

from dpbilevel.errors import InvalidArgument
from dpbilevel.evaluation.heldout import rows_at
from dpbilevel.privacy.units import Selection, check_bounds, read_ids

Tree = Any

MEANING = "; a unit counts once, by the mean over its rows"


def selected(units: Any, rows_per_unit: Any, rows: int) -> Selection | None:
    """Which rows units hold; None if records are rows. Raises for ids that do not fit."""
    if units is None and rows_per_unit is None:
        return None
    most, _ = check_bounds(rows_per_unit, None)
    if units is None:
        raise InvalidArgument("units: must be given with rows_per_unit, one id for each row")
    return Selection.of(read_ids(units, rows), most)


def in_places(selection: Selection | None, rows: Any, *columns: Any) -> tuple[Any, ...]:
    """Rows, and columns that are not None, in the places of units: k for every unit, whatever it has."""
    if selection is None:
        return rows, *columns
    places = selection.places.rows.reshape(-1)
    return rows_at(rows, places), *(None if column is None else column[places] for column in columns)


def of_records(selection: Selection | None, scored: Tree) -> tuple[Tree, dict[str, Any]]:
    """What was stored for rows in the places of units, and the arguments of `Records` that bundle it."""
    if selection is None:
        return scored, {}
    number, most = len(selection), selection.rows_per_unit
    present = selection.places.present.reshape(-1)
    units = {"unit": np.repeat(np.arange(number), most)[present], "rows_per_unit": most}
    return jax.tree.map(lambda leaf: leaf[present], scored), units


def caveats_without_units(model: Any, units: Any) -> tuple[str, ...]:
    """The caveat of scores that protect rows, of a model whose training protected units; in a pipeline, of its last."""
    steps = getattr(model, "steps", None)
    fitted = steps[-1][1] if isinstance(steps, list) and steps else model
    if units is not None or getattr(getattr(fitted, "privacy_", None), "rows_per_unit", None) is None:
        return ()
    return (
        "the training of the model protected units (all rows of one id), and these scores protect single rows; pass "
        "units=... and rows_per_unit=... to protect units",
    )
