"""The rows whose second moments are released: of all records that train the model, with their weights."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.foundation.structure import function
from dpbilevel.linear_loss import LinearLoss
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.training_gradients import fraction, levels_of
from dpbilevel.privacy.release import Contribution
from dpbilevel.problem import BilevelProblem

Tree = Any


def moment_rows(context: PublicContext, row_norm: float) -> dict[str, Contribution]:
    """Rows by role, at points (x, y); the weight of a role is part of its rows."""
    rows = {}
    for level in levels_of(context):
        weight = math.sqrt(fraction(context, level))
        role = context.sizes.role_of(level) or level
        row = function(_weighted_row, _row(context.problem, level), weight)
        rows[role] = Contribution(row, weight * row_norm, context.sizes.count(role))
    return rows


def _weighted_row(row: Any, weight: Any, point: Tree, record: Tree) -> jax.Array:
    own = row(*point, record)
    return (weight * own).astype(own.dtype)


@functools.lru_cache(maxsize=64)
def _row(problem: BilevelProblem, level: str) -> Any:
    """(x, y, record) -> the row, times the root of its weight relative to a lower record of full weight."""
    loss = problem.loss(level)
    assert isinstance(loss, LinearLoss)
    if level == "upper":
        return loss.weighted_row

    def lower(x: Tree, y: Tree, record: Tree) -> jax.Array:
        row = loss.weighted_row(x, y, record)
        return (row / jnp.sqrt(problem.lower_scale(x))).astype(row.dtype)

    return lower
