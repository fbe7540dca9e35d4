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

**Units without rows.** If a public list declares all ids, a unit without rows contributes zero to everything, and
counts in no mean: scores are those of the units that have rows. How many these are is private. So one number more is
released with the others, 1/2 for a unit with rows, and all of them are divided by the released fraction of such units.
Let f be the true fraction, m the mean of a contribution over units with rows, |m| <= 1/2, and let N and N' be the
noise, of deviation s each. What is released is f m + N and f/2 + N', and the quotient errs by

    (f m + N)/(f + 2 N') - m = (N - 2 m N')/(f + 2 N'),

where the denominator is what was released: noise of a deviation of at most sqrt(2) s over the released fraction. Scores
and intervals are computed with that noise, and with the released number of units as the size of the sample.
Contributions of one score share N'. A ratio of counts does not depend on it. In a quantile of errors and in a variance
its part is below that of the independent noise of their several contributions.

**The model** is called on k rows of every unit, where absent rows repeat one of the same unit. A call on the rows
themselves would show it their number, which is private: a compiled model, which may be kept in a file, has the shape.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.errors import InvalidArgument
from dpbilevel.evaluation.cells import UNIT, count_noise
from dpbilevel.evaluation.heldout import rows_at
from dpbilevel.evaluation.means import NORM
from dpbilevel.privacy.units import Selection, check_bounds, listed_ids, read_ids

Tree = Any

MEANING = "; a unit counts once, by the mean over its rows"


@dataclass(frozen=True)
class WithRows:
    """How many units of a declared list have rows: released with scores, and no score itself."""

    name: ClassVar[str] = "units with rows"
    unit: ClassVar[float] = UNIT
    shape: ClassVar[tuple[int, ...]] = ()

    def contribution(self, record: jax.Array) -> jax.Array:
        """1/2 for every row, and so for the mean over the rows of a unit."""
        return jnp.where(record, NORM, 0.0)

    def detail(self, answer: Tree, noise: float, number: int) -> dict[str, Any]:
        """The released number of units with rows, of so many, and the standard deviation of its noise."""
        found = round(float(np.clip(np.asarray(answer) * UNIT, 0, 1)) * number)
        return {"number": max(1, found), "noise": count_noise(noise, number)}


def among_those_with_rows(answer: Mapping[str, Tree], noise: float, number: int) -> tuple[dict[str, Tree], float, int]:
    """An answer as if it were that of the units with rows alone, its noise, and how many these are."""
    having = int(WithRows().detail(answer[WithRows.name], noise, number)["number"])
    share = having / number
    scores = {name: part for name, part in answer.items() if name != WithRows.name}
    return jax.tree.map(lambda leaf: np.asarray(leaf) / share, scores), math.sqrt(2) * noise / share, having


def selected(units: Any, rows_per_unit: Any, rows: int, unit_ids: Any = None) -> Selection | None:
    """Which rows units hold; None if records are rows. Raises for ids that do not fit."""
    if units is None and rows_per_unit is None:
        if unit_ids is not None:
            raise InvalidArgument("unit_ids: must be left out without units and rows_per_unit; it lists ids of units")
        return None
    most, _ = check_bounds(rows_per_unit, None)
    if units is None:
        raise InvalidArgument("units: must be given with rows_per_unit, one id for each row")
    ids = read_ids(units, rows)
    return Selection.of(ids, most, listed_ids(unit_ids, ids))


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
    units = {"unit": np.repeat(np.arange(number), most)[present], "rows_per_unit": most, "unit_ids": np.arange(number)}
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
