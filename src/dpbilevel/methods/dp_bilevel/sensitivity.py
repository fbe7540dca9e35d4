"""Three unconditional bounds on the contribution of one record to the hypergradient.

A lower record contributes penalty * (grad_x g_i(x, z) - grad_x g_i(x, y)), an upper record grad_x f_i(x, z). The paper
bounds these (Lemma "Li improved Lip") at the exact minimisers y and z. The algorithm evaluates them at private
approximations, where that bound holds only with high probability. A privacy guarantee must always hold:

* a number C: each contribution is clipped to norm C. This is the default and needs no constants.
* "certified": the exact z is within L0f/(penalty mu_g) of y, so the private z is projected onto that ball around the
  private y, which is free. Contributions are then bounded by L1g L0f/mu_g and L0f, independently of the penalty.
* "released": contributions are bounded by penalty L1g ||z - y|| and L0f, and ||z - y|| is public, because y and z are
  released. Each step clips to this bound and scales its noise with it. The ratio of sensitivity to noise, the only
  number that the accountant uses, is as declared.

All three clip contributions to the bound: a wrong constant costs accuracy, never privacy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpbilevel.constants import Constants
from dpbilevel.constraints import into_ball
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.structure import function
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.contributions import Levels, hypergradients

Tree = Any
ClipNorm = float | Literal["certified", "released"]
WAYS = ("certified", "released")

_SMALLEST_SCALE = 2.0**-20  # relative to the certified bound: the rounding error of a difference of equal points


@dataclass(frozen=True, eq=False)
class Bounded:
    """Contributions to the hypergradient with their clip norms.

    Attributes:
        levels: contribution of a record of each level, and its clip norm.
        near: (y, z) -> z, moved to where the bound holds.
        scale: (y, z) -> the public number that divides contributions and multiplies the noisy answer.
        reason: the reason for the clip norm.
    """

    levels: Levels
    near: Callable[[Tree, Tree], Tree]
    scale: Callable[[Tree, Tree], Any]
    reason: str


def bounded_hypergradients(
    context: PublicContext, penalty_weight: float, clip: ClipNorm, upper_clip: float | None
) -> Bounded:
    """Contributions to the hypergradient at points (x, y, z), with one of the three bounds."""
    if not isinstance(clip, str):
        levels = hypergradients(context, penalty_weight, clip, upper_clip or clip)
        return Bounded(levels, _unmoved, _one, "bounds the norm of one record's contribution")
    constants = _constants(context, clip)
    record_smoothness, record_lipschitz = constants.record_lower_smoothness, constants.record_upper_lipschitz
    radius = constants.upper_lipschitz / (penalty_weight * constants.strong_convexity)
    bounds = {"lower": penalty_weight * record_smoothness * radius, "upper": record_lipschitz}
    levels = hypergradients(context, penalty_weight, bounds["lower"], bounds["upper"])
    for level, (_, bound) in levels.items():
        if bound == 0:
            constant = "record_lower_smoothness or upper_lipschitz" if level == "lower" else "record_upper_lipschitz"
            raise InvalidArgument(
                f"constants: imply that records do not affect the gradient in x of the {level} level, but they do; "
                f"increase {constant}"
            )
    if clip == "certified":
        reason = f"certified radius: z within {radius:.4g} = L0f/(penalty mu_g) of y"
        # A radius beyond float32 is no bound.
        return Bounded(levels, function(_moved, min(radius, float(np.finfo(np.float32).max))), _one, reason)
    parts = {"lower": penalty_weight * record_smoothness, "upper": bounds["upper"]}
    present = {level: float(parts[level]) for level in levels}
    smallest = _SMALLEST_SCALE * sum(bounds[level] for level in levels)
    # A record of both levels contributes the sum; otherwise the noise must cover the larger contribution.
    scale = function(_added if context.sizes.both is not None else _larger, present, smallest)
    clipped = {
        # The clip norms of a role are added, and their sum must be one.
        level: (function(_divided, vector, scale), 1.0 / (len(levels) if context.sizes.both is not None else 1))
        for level, (vector, _) in levels.items()
    }
    reason = "released distance: in units of max(L0f, penalty L1g ||z - y||), which is public in each step"
    return Bounded(clipped, _unmoved, scale, reason)


def _unmoved(y: Tree, z: Tree) -> Tree:
    return z


def _moved(radius: Any, y: Tree, z: Tree) -> Tree:
    return into_ball(z, y, radius)


def _one(y: Tree, z: Tree) -> float:
    return 1.0


def _added(parts: dict[str, Any], smallest: Any, y: Tree, z: Tree) -> jax.Array:
    return jnp.maximum(sum(_sizes(parts, y, z)), smallest)


def _larger(parts: dict[str, Any], smallest: Any, y: Tree, z: Tree) -> jax.Array:
    return jnp.maximum(jnp.max(jnp.stack(_sizes(parts, y, z))), smallest)


def _sizes(parts: dict[str, Any], y: Tree, z: Tree) -> list[jax.Array]:
    """Bounds on one record's parts: that of the lower level grows with the distance of y and z."""
    distance = optax.tree.norm(optax.tree.sub(z, y))
    return [part * distance if level == "lower" else jnp.asarray(part) for level, part in parts.items()]


def _divided(
    vector: Callable[[Tree, Tree], Tree], scale: Callable[[Tree, Tree], Any], point: Tree, record: Tree
) -> Tree:
    _, y, z = point
    unit = scale(y, z)
    return jax.tree.map(lambda leaf: (leaf / unit).astype(leaf.dtype), vector(point, record))


def _constants(context: PublicContext, way: str) -> Constants:
    constants = context.problem.constants
    if constants is None:
        raise InvalidArgument(
            f"clip_norm={way!r}: needs BilevelProblem(constants=dpb.Constants(...)), from which the bound is "
            "computed; without constants give a number (try 1.0)"
        )
    return constants
