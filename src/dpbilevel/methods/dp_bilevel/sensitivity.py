"""Three ways to bound one record's part of the hypergradient, none of which rests on luck.

The part of a lower record is penalty * (grad_x g_i(x, z) - grad_x g_i(x, y)), that of an upper one grad_x f_i(x, z).
The paper bounds them (Lemma "Li improved Lip") at the exact minimisers y and z; the algorithm evaluates them at private
approximations, where that bound holds with high probability only. A guarantee must hold always:

* a number C: each record's part is clipped to C. Needs no constants, and is the default.
* "certified": the exact z lies within L0f/(penalty mu_g) of y, so the private z is moved into that ball around the
  private y, which costs nothing. The parts are then bounded by L1g L0f/mu_g and L0f, whatever the penalty.
* "released": penalty L1g ||z - y|| and L0f bound the parts, and ||z - y|| is public once y and z are released. Each
  step is clipped to this bound and its noise is scaled with it; sensitivity over noise, which is all that the
  accountant looks at, stays as it was declared.

Records are clipped to the bound in all three: a wrong constant costs accuracy, never privacy.
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

_SMALLEST_SCALE = 2.0**-20  # of the certified bound: what rounding leaves of a difference of equal points


@dataclass(frozen=True, eq=False)
class Bounded:
    """Parts of the hypergradient with their clips.

    Attributes:
        levels: what a record of each level contributes, and its clip.
        near: (y, z) -> z, moved to where the bound holds.
        scale: (y, z) -> the public number by which parts were divided, and by which the answer is multiplied.
        reason: why the clip is what it is.
    """

    levels: Levels
    near: Callable[[Tree, Tree], Tree]
    scale: Callable[[Tree, Tree], Any]
    reason: str


def bounded_hypergradients(
    context: PublicContext, penalty_weight: float, clip: ClipNorm, upper_clip: float | None
) -> Bounded:
    """The parts of the hypergradient at points (x, y, z), bounded in one of the three ways."""
    if not isinstance(clip, str):
        levels = hypergradients(context, penalty_weight, clip, upper_clip or clip)
        return Bounded(levels, _unmoved, _one, "bounds one record's whole vector")
    constants = _constants(context, clip)
    record_smoothness, record_lipschitz = constants.record_lower_smoothness, constants.record_upper_lipschitz
    radius = constants.upper_lipschitz / (penalty_weight * constants.strong_convexity)
    bounds = {"lower": penalty_weight * record_smoothness * radius, "upper": record_lipschitz}
    levels = hypergradients(context, penalty_weight, bounds["lower"], bounds["upper"])
    for level, (_, bound) in levels.items():
        if bound == 0:
            raise InvalidArgument(
                f"constants: say that no record moves the x-gradient of the {level} level, which reads records; raise "
                f"{'record_lower_smoothness or upper_lipschitz' if level == 'lower' else 'record_upper_lipschitz'}"
            )
    if clip == "certified":
        reason = f"certified radius: z within {radius:.4g} = L0f/(penalty mu_g) of y"
        # A radius beyond float32 is no bound.
        return Bounded(levels, function(_moved, min(radius, float(np.finfo(np.float32).max))), _one, reason)
    parts = {"lower": penalty_weight * record_smoothness, "upper": bounds["upper"]}
    present = {level: float(parts[level]) for level in levels}
    smallest = _SMALLEST_SCALE * sum(bounds[level] for level in levels)
    # A record of both levels adds up both parts; otherwise one noise covers the larger one.
    scale = function(_added if context.sizes.both is not None else _larger, present, smallest)
    clipped = {
        # The clips of a role are added up, and together they must be one.
        level: (function(_divided, vector, scale), 1.0 / (len(levels) if context.sizes.both is not None else 1))
        for level, (vector, _) in levels.items()
    }
    reason = "released distance: in units of max(L0f, penalty L1g ||z - y||), which is public at each step"
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
            f"clip_norm={way!r}: needs BilevelProblem(constants=dpb.Constants(...)), the certified bounds that it is "
            "computed from; without them give a number (try 1.0)"
        )
    return constants
