"""Detects a lower level that is not strongly convex at the boundary of the domain, without reading records.

A common mistake is a regulariser (x/2)||y||^2 with a domain that allows x = 0. The check must not depend on the data.
It uses a record of zeros instead, which adds no curvature to a linear model: if the lower level has curvature inside
the domain and none at the boundary, the curvature came from x alone.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.constraints import Box, NonNegative, project
from dpbilevel.errors import InvalidProblem
from dpbilevel.foundation.precision import user_float
from dpbilevel.methods.context import PublicContext
from dpbilevel.privacy.bundles import Bundle

Tree = Any

_FAR = 1e3  # beyond the boundary of any box in practice; a boundary further away is not checked
_DIRECTIONS = 4


def check_curvature(context: PublicContext) -> None:
    """Raise if the lower level loses its curvature at the boundary of a box of hyperparameters."""
    sets = jax.tree.leaves(context.problem.domain, is_leaf=lambda leaf: isinstance(leaf, Box | NonNegative))
    if not any(isinstance(leaf, Box | NonNegative) for leaf in sets):
        return
    x_shape, y_shape = context.point
    y, record = _filled(y_shape, 0.0), _filled(context.sizes.record("lower"), 0.0)
    if isinstance(record, Bundle):  # a unit of rows of zeros, all of them present
        record = record._replace(present=jnp.ones_like(record.present))
    edge = project(context.problem.domain, _filled(x_shape, -_FAR))
    inside = project(context.problem.domain, _filled(x_shape, 1.0))
    if _curvature(context, inside, y, record) > 0 and _curvature(context, edge, y, record) <= 0:
        raise InvalidProblem(
            f"domain={context.problem.domain!r}: contains an x at which the lower level is not strongly convex in y; "
            "keep the weight of its regulariser away from zero (try Box(0.01, 10.0), or log-coordinates in a Box), or "
            "add (w/2)||y||^2 with a fixed w to lower_term"
        )


def _curvature(context: PublicContext, x: Tree, y: Tree, record: Tree) -> float:
    """The smallest second derivative of g0 + g_i in y along a few directions."""
    term, loss = context.problem.term("lower"), context.problem.lower_loss

    def gradient(at: Tree) -> Tree:
        return jax.grad(lambda y: term(x, y) + loss(x, y, record))(at)

    curvatures = []
    for index in range(1, _DIRECTIONS + 1):
        # Fixed, arbitrary directions: only privacy/noise.py may draw random numbers.
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
