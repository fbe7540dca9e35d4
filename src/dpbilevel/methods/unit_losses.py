"""The problem of units, from the problem of rows: a unit contributes the sum over its rows, clipped as a whole.

    f_u(x, y) = 1/m * sum over the rows j of unit u of f_j(x, y),    m a public mean of rows per unit

and g_u likewise. Methods write gradients, derivatives along directions, indicators and clips for the loss of a record.
With the loss of a unit in its place, all of them are the unit's: a gradient is summed over rows before its part of a
joint contribution is clipped, and an indicator such as "within the clip" is one per unit. No method knows of units.

The mean over U units of f_u is R/(U m) times the mean over all R rows. With m = R/U it is the mean over rows, in which
a unit with many rows counts more than one with few. R is private, so that m is declared. A wrong m multiplies the loss
of the data by a constant relative to data-free terms such as penalties; tuned penalties make up for it.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.linear_loss import LinearLoss
from dpbilevel.privacy.bundles import Bundle
from dpbilevel.privacy.record_shapes import RecordShapes
from dpbilevel.problem import BilevelProblem, Loss

Tree = Any


@dataclass(frozen=True, eq=False)
class UnitLoss:
    """The loss of a unit: (x, y, bundle) -> the sum of a loss over the rows that are present, divided by m."""

    loss: Loss
    mean_rows: float

    def __call__(self, x: Tree, y: Tree, unit: Bundle) -> jax.Array:
        """The loss as a function of x and y."""
        losses = jax.vmap(lambda row: self.loss(x, y, row))(unit.rows)
        return jnp.sum(jnp.where(unit.present, losses, 0)) / self.mean_rows


@functools.lru_cache(maxsize=64)
def problem_of_units(problem: BilevelProblem, mean_rows: float) -> BilevelProblem:
    """The same problem for records that are bundles of rows.

    Certified constants hold for rows. The loss of a unit has others, which depend on its number of rows: it has none.
    """
    return replace(
        problem,
        lower_loss=UnitLoss(problem.lower_loss, mean_rows),
        upper_loss=None if problem.upper_loss is None else UnitLoss(problem.upper_loss, mean_rows),
        constants=None,
    )


def problem_for_records(problem: BilevelProblem, sizes: RecordShapes) -> BilevelProblem:
    """The problem whose records have these shapes: of units, or as it is."""
    if not has_bundles(sizes):
        return problem
    assert sizes.mean_rows is not None, "units have a public mean of rows"
    return problem_of_units(problem, sizes.mean_rows)


def has_bundles(sizes: RecordShapes) -> bool:
    """Whether records are bundles; a unit of one row is that row."""
    return (sizes.rows_per_unit or 1) > 1


@functools.lru_cache(maxsize=64)
def _of_units(loss: Loss, mean_rows: float) -> UnitLoss:
    return UnitLoss(loss, mean_rows)


def loss_for_records(loss: Loss, sizes: RecordShapes) -> Loss:
    """A loss of rows as a loss of the records, for functions that are no part of the problem."""
    return _of_units(loss, float(sizes.mean_rows or 1.0)) if has_bundles(sizes) else loss


def rows_of_units(problem: BilevelProblem, sizes: RecordShapes) -> tuple[int, float]:
    """k and m, by which the losses of a problem divide the sum over rows; one and one if records are rows."""
    if not isinstance(problem.lower_loss, UnitLoss):
        return 1, 1.0
    return int(sizes.record("lower").present.shape[-1]), problem.lower_loss.mean_rows


def loss_of_row(loss: Loss) -> Loss:
    """The loss of a row, of a loss of rows or of units."""
    return loss.loss if isinstance(loss, UnitLoss) else loss


def linear_loss(loss: Loss | None) -> LinearLoss | None:
    """The linear loss of a row, of a loss of rows or of units; None if it is not known to be linear."""
    of_row = None if loss is None else loss_of_row(loss)
    return of_row if isinstance(of_row, LinearLoss) else None


def clip_of_units(rows_per_unit: int, mean_rows: float) -> float:
    """c: the sum over the rows of a unit, divided by m, is clipped to c times what one row may have; one for rows.

    sqrt(k/m) leaves a unit of sqrt(k m) equal rows as it is, and one of k unrelated rows.

    >>> clip_of_units(8, 2.0), clip_of_units(1, 1.0)
    (2.0, 1.0)
    """
    return math.sqrt(rows_per_unit / mean_rows)


def mean_over_rows(of_row: Callable[[Tree], Tree], unit: Bundle) -> Tree:
    """The mean over the rows of a unit that are present; zero if none is."""
    rows = jnp.maximum(jnp.sum(unit.present), 1)
    return jax.tree.map(lambda leaf: leaf / rows, sum_over_rows(of_row, unit))


def sum_over_rows(of_row: Callable[[Tree], Tree], unit: Bundle) -> Tree:
    """The sum over the rows of a unit that are present."""

    def summed(leaf: jax.Array) -> jax.Array:
        there = unit.present.reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.sum(jnp.where(there, leaf, 0), axis=0)

    return jax.tree.map(summed, jax.vmap(of_row)(unit.rows))
