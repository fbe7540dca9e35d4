"""Per-record contributions to the releases of a penalty method: by level, then merged by role.

A record's contribution is clipped as a whole. For a record that feeds both levels, it is the sum of both parts.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

from dpbilevel.errors import InvalidProblem
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.derivatives import gradient_in_y
from dpbilevel.privacy.release import Contribution

Tree = Any
Vector = Callable[[Tree, Tree], Tree]
Levels = dict[str, tuple[Vector, float]]  # level ("upper", "lower") -> per-record contribution and its clip


def lower_gradients(context: PublicContext, clip: float) -> Levels:
    """Gradients of g_i in y, at points (x, y)."""
    gradient = gradient_in_y(context.problem.lower_loss)
    return {"lower": (lambda point, record: gradient(*point, record), clip)}


def penalised_gradients(context: PublicContext, penalty_weight: float, clip: float, upper_clip: float) -> Levels:
    """Gradients of f_i/penalty and g_i in y, at points (x, y): an upper record has a weight of 1/penalty."""
    levels = lower_gradients(context, clip)
    if context.problem.upper_loss is not None:
        gradient = gradient_in_y(context.problem.upper_loss)
        levels["upper"] = (
            lambda point, record: optax.tree.scale(1 / penalty_weight, gradient(*point, record)),
            upper_clip / penalty_weight,
        )
    return levels


def hypergradients(context: PublicContext, penalty_weight: float, clip: float, upper_clip: float) -> Levels:
    """Parts of the hypergradient at points (x, y, z), for the levels whose x-gradient depends on records."""
    levels: Levels = {}
    if "lower" in context.inspection.hypergradient_reads:
        lower_gradient = jax.grad(context.problem.lower_loss)

        def difference(point: Tree, record: Tree) -> Tree:
            x, y, z = point
            return optax.tree.scale(
                penalty_weight, optax.tree.sub(lower_gradient(x, z, record), lower_gradient(x, y, record))
            )

        levels["lower"] = (difference, clip)
    if context.problem.upper_loss is not None and "upper" in context.inspection.hypergradient_reads:
        upper_gradient = jax.grad(context.problem.upper_loss)
        levels["upper"] = (lambda point, record: upper_gradient(point[0], point[2], record), upper_clip)
    return levels


def by_role(levels: Levels, context: PublicContext) -> dict[str, Contribution]:
    """Contributions by role. Without privacy nothing is clipped."""
    merged: dict[str, Levels] = {}
    for level, part in levels.items():
        role = context.sizes.role_of(level)
        if role is None:
            raise InvalidProblem(f"{level}_loss: has no records; pass Records({level}=...), or leave the loss out")
        merged.setdefault(role, {})[level] = part
    return {
        role: Contribution(
            _sum([vector for vector, _ in parts.values()]),
            sum(clip for _, clip in parts.values()) if context.budget.is_private else math.inf,
            context.sizes.count(role),
        )
        for role, parts in merged.items()
    }


def shares_by_role(
    weights: Mapping[str, float], contributions: Mapping[str, Mapping[str, Contribution]]
) -> dict[str, dict[str, float]]:
    """release -> role -> share of mu^2; the shares of a role sum to one over the releases that read its records."""
    totals: dict[str, float] = {}
    for release, parts in contributions.items():
        for role in parts:
            totals[role] = totals.get(role, 0.0) + weights[release]
    return {
        release: {role: weights[release] / totals[role] for role in parts} for release, parts in contributions.items()
    }


def _sum(vectors: list[Vector]) -> Vector:
    def vector(point: Tree, record: Tree) -> Tree:
        total = vectors[0](point, record)
        for other in vectors[1:]:
            total = optax.tree.add(total, other(point, record))
        return total

    return vector
