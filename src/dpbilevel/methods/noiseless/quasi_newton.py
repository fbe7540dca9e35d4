"""Directions of the limited-memory BFGS method, on the coordinates of a mask alone.

Written by hand because optax's has no mask: bound coordinates must have no part in the curvature that free ones see.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

_PAIRS = 10


class Pairs(NamedTuple):
    """The last moves, newest first, and by how much they changed the gradient."""

    moved: jax.Array
    turned: jax.Array


def none(size: int, dtype: jnp.dtype) -> Pairs:
    """No moves yet."""
    return Pairs(jnp.zeros((_PAIRS, size), dtype), jnp.zeros((_PAIRS, size), dtype))


def remember(pairs: Pairs, moved: jax.Array, turned: jax.Array) -> Pairs:
    """The pairs with one more, which pushes the oldest out."""
    return Pairs(*(jnp.roll(old, 1, axis=0).at[0].set(new) for old, new in zip(pairs, (moved, turned), strict=True)))


def direction(pairs: Pairs, gradient: jax.Array, mask: jax.Array) -> jax.Array:
    """-(inverse Hessian) gradient by the two-loop recursion (Nocedal 1980), zero outside of the mask.

    Moves along which the loss was not convex are left out. Before the first move the direction is not finite.
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
    """What the recursion starts from: of each coordinate by itself, so that flat ones go as far as steep ones.

    Its absolute value: where a loss bends the other way, that says how far a step may go too.
    """
    squares, products = jnp.sum(moved**2, axis=0), jnp.sum(jnp.abs(moved * turned), axis=0)
    usual = jnp.sum(squares) / jnp.sum(products)
    return jnp.where((squares > 0) & (products > 0), squares / jnp.where(products > 0, products, 1), usual)
