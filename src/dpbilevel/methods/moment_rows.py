"""The rows whose second moments are released: of all records that train the model, with their weights.

The loss of a unit is the sum of losses of its rows divided by m, so that its Hessian is at most kappa/m times the sum
of their products. A unit has all of its rows, each divided by the root of m, and zeros in place of absent ones.

*Clip.* The matrix of a unit with r of at most k rows has a norm of up to r R^2/m. It is clipped to c R^2, which
multiplies it by c m/k at least. So the Hessian is at most k/(c m) times kappa M, and steps that are preconditioned by
kappa M are stable as long as k/(c m) < 2 (1 + momentum), whatever the rows are. c is sqrt(k/m), which leaves a unit of
sqrt(k m) equal rows as it is, and the least stable one where that is more.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.foundation.structure import function
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.training_gradients import fraction, levels_of
from dpbilevel.methods.unit_losses import UnitLoss, clip_of_units, linear_loss
from dpbilevel.privacy.bundles import Bundle
from dpbilevel.privacy.release import Contribution
from dpbilevel.problem import BilevelProblem

Tree = Any


def moments_clip(rows_per_unit: int, mean_rows: float, momentum: float) -> float:
    """c, the clip of a record's second moments in units of R^2; one for rows."""
    return max(clip_of_units(rows_per_unit, mean_rows), rows_per_unit / mean_rows / (2 * (1 + momentum)))


def moment_rows(context: PublicContext, norm: float) -> dict[str, Contribution]:
    """Rows by role, at points (x, y); the weight of a role is part of its rows. ``norm``: root of a record's clip."""
    rows = {}
    for level in levels_of(context):
        weight = math.sqrt(fraction(context, level))
        role = context.sizes.role_of(level) or level
        row = function(_weighted_row, _row(context.problem, level), weight)
        rows[role] = Contribution(row, weight * norm, context.sizes.count(role))
    return rows


def _weighted_row(row: Any, weight: Any, point: Tree, record: Tree) -> jax.Array:
    own = row(*point, record)
    return (weight * own).astype(own.dtype)


@functools.lru_cache(maxsize=64)
def _row(problem: BilevelProblem, level: str) -> Any:
    """(x, y, record) -> the row, times the root of its weight relative to a lower record of full weight.

    Of a unit: all of its rows.
    """
    loss = problem.loss(level)
    linear = linear_loss(loss)
    assert linear is not None

    def row(x: Tree, y: Tree, record: Tree) -> jax.Array:
        own = linear.weighted_row(x, y, record)
        return own if level == "upper" else (own / jnp.sqrt(problem.lower_scale(x))).astype(own.dtype)

    if not isinstance(loss, UnitLoss):
        return row
    share = 1 / math.sqrt(loss.mean_rows)

    def rows(x: Tree, y: Tree, unit: Bundle) -> jax.Array:
        own = jax.vmap(lambda record: row(x, y, record))(unit.rows)
        return jnp.where(unit.present[:, None], share * own, 0).astype(own.dtype)

    return rows
