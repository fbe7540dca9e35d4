"""A lower level that stops being strongly convex on the edge of the domain, found from declared structure alone.

The usual slip: a regulariser (x/2)||y||^2 with x allowed to reach zero. Whether the lower level is curved there must
not be asked of the data. It is asked of a record of zeros, which curves no linear model: where the level is curved
inside the domain and flat at its edge, the curvature came from x alone and is lost on the way.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.constraints import Box, NonNegative, project
from dpbilevel.errors import InvalidProblem
from dpbilevel.foundation.precision import user_float
from dpbilevel.methods.context import PublicContext

Tree = Any

_FAR = 1e3  # beyond the edge of any box in practice; further edges are not looked at
_DIRECTIONS = 4


def check_curvature(context: PublicContext) -> None:
    """Raise where the edge of a box of hyperparameters takes the lower level's curvature away."""
    sets = jax.tree.leaves(context.problem.domain, is_leaf=lambda leaf: isinstance(leaf, Box | NonNegative))
    if not any(isinstance(leaf, Box | NonNegative) for leaf in sets):
        return
    x_shape, y_shape = context.point
    y, record = _filled(y_shape, 0.0), _filled(context.sizes.record("lower"), 0.0)
    edge = project(context.problem.domain, _filled(x_shape, -_FAR))
    inside = project(context.problem.domain, _filled(x_shape, 1.0))
    if _curvature(context, inside, y, record) > 0 and _curvature(context, edge, y, record) <= 0:
        raise InvalidProblem(
            f"domain={context.problem.domain!r}: reaches an x at which the lower level is not strongly convex in y; "
            "keep the weight of its regulariser away from zero (try Box(0.01, 10.0), or log-coordinates in a Box), or "
            "add (w/2)||y||^2 with a fixed w to lower_term"
        )


def _curvature(context: PublicContext, x: Tree, y: Tree, record: Tree) -> float:
    """The smallest second derivative of g0 + g_i in y that a few directions see."""
    term, loss = context.problem.term("lower"), context.problem.lower_loss

    def gradient(at: Tree) -> Tree:
        return jax.grad(lambda y: term(x, y) + loss(x, y, record))(at)

    curvatures = []
    for index in range(1, _DIRECTIONS + 1):
        # Fixed directions of no particular kind: only privacy/noise.py may draw.
        direction = jax.tree.map(lambda leaf: jnp.cos(index * (1.0 + jnp.arange(leaf.size))).reshape(leaf.shape), y)  # noqa: B023
        direction = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), direction, y)
        _, changed = jax.jvp(gradient, (y,), (direction,))
        pairs = zip(jax.tree.leaves(direction), jax.tree.leaves(changed), strict=True)
        curvatures.append(sum(float(jnp.vdot(a, b)) for a, b in pairs))
    return float(np.min(curvatures))


def _filled(shapes: Tree, value: float) -> Tree:
    def fill(leaf: Any) -> jax.Array:
        dtype = user_float() if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype
        return jnp.full(leaf.shape, value, dtype)

    return jax.tree.map(fill, shapes)
