"""Limited-memory BFGS directions, restricted to the coordinates of a mask.

optax's implementation has no mask. Coordinates at a bound must not affect the curvature estimate of free coordinates.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

_PAIRS = 10


class Pairs(NamedTuple):
    """The last steps, newest first, and the changes of the gradient along them."""

    moved: jax.Array
    turned: jax.Array


def none(size: int, dtype: jnp.dtype) -> Pairs:
    """The pairs before the first step."""
    return Pairs(jnp.zeros((_PAIRS, size), dtype), jnp.zeros((_PAIRS, size), dtype))


def remember(pairs: Pairs, moved: jax.Array, turned: jax.Array) -> Pairs:
    """The pairs with one added and the oldest dropped."""
    return Pairs(*(jnp.roll(old, 1, axis=0).at[0].set(new) for old, new in zip(pairs, (moved, turned), strict=True)))


def direction(pairs: Pairs, gradient: jax.Array, mask: jax.Array) -> jax.Array:
    """-(inverse Hessian) gradient by the two-loop recursion (Nocedal 1980), zero outside the mask.

    Steps along which the loss was not convex are left out. Before the first step the direction is not finite.
    """
    moved, turned = (jnp.where(mask, rows, 0) for rows in pairs)
    products = jnp.sum(moved * turned, axis=1)
    sizes = jnp.linalg.norm(moved, axis=1) * jnp.linalg.norm(turned, axis=1)
    convex = products > jnp.finfo(gradient.dtype).eps * sizes
    inverse = jnp.where(convex, 1 / jnp.where(convex, products, 1), 0)
    rest, weights = jnp.where(mask, gradient, 0), []
    for i in range(_PAIRS):
        weights.append(inverse[i] * jnp.vdot(moved[i], rest))
        rest = rest - weights[i] * turned[i]
    rest = rest * _inverse_curvature(moved, turned)
    for i in reversed(range(_PAIRS)):
        rest = rest + moved[i] * (weights[i] - inverse[i] * jnp.vdot(turned[i], rest))
    return -rest


def _inverse_curvature(moved: jax.Array, turned: jax.Array) -> jax.Array:
    """The diagonal initial inverse Hessian: one value per coordinate, so that each has its own scale.

    Curvatures are taken in absolute value, because a negative one indicates a step length too.
    """
    squares, products = jnp.sum(moved**2, axis=0), jnp.sum(jnp.abs(moved * turned), axis=0)
    average = jnp.sum(squares) / jnp.sum(products)
    return jnp.where((squares > 0) & (products > 0), squares / jnp.where(products > 0, products, 1), average)
