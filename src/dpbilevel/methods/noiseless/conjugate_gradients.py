"""Preconditioned conjugate gradients for a symmetric positive definite matrix, given as products with vectors.

A product reads all records, everything else is free. So a solve that begins at zero makes no product for its first
residual, and a guess is first scaled such that it is at least as good as zero.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Product = Callable[[jax.Array], jax.Array]


def solve(
    along: Product, right: jax.Array, scales: jax.Array, tolerance: Any, limit: int, guess: jax.Array | None = None
) -> jax.Array:
    """The solution of along(v) = right, to a relative residual of ``tolerance`` in the norm of the preconditioner.

    This norm is near that of the error, |v - solution| in the norm of the matrix, which does not depend on units.

    Args:
        along: v -> the product of the matrix and v.
        right: the right-hand side.
        scales: the diagonal of the preconditioner, an approximate inverse up to a factor.
        tolerance: largest relative residual, sqrt(r . scales r) over its value for ``right``.
        limit: largest number of iterations.
        guess: an approximate solution, of any length.

    Where a direction has no positive curvature, the solve ends; what it has by then is a direction of descent.
    """
    start, residual = jnp.zeros_like(right), right
    if guess is not None:
        # The multiple of the guess with the smallest error in the norm of the matrix. It is zero at worst.
        product = along(guess)
        curvature = jnp.vdot(guess, product)
        length = jnp.where(curvature > 0, jnp.vdot(guess, right) / jnp.where(curvature > 0, curvature, 1), 0)
        length = jnp.where(jnp.isfinite(length), length, 0)
        start = jnp.where(length == 0, 0, length * guess)
        residual = jnp.where(length == 0, right, right - length * product)
    enough = tolerance**2 * jnp.vdot(right, scales * right)

    def unfinished(carry: Any) -> jax.Array:
        _, _, _, square, taken, curved = carry
        return (square > enough) & (taken < limit) & curved

    def step(carry: Any) -> Any:
        solution, residual, direction, square, taken, _ = carry
        product = along(direction)
        curvature = jnp.vdot(direction, product)
        curved = curvature > 0
        length = square / jnp.where(curved, curvature, 1)
        # Without curvature only the first direction is of use, of whatever length.
        length = jnp.where(curved, length, jnp.where(taken == 0, 1, 0)).astype(right.dtype)
        solution, residual = solution + length * direction, residual - length * product
        preconditioned = scales * residual
        new = jnp.vdot(residual, preconditioned)
        return solution, residual, preconditioned + new / square * direction, new, taken + 1, curved

    first = scales * residual
    carry = (start, residual, first, jnp.vdot(residual, first), jnp.zeros((), jnp.int32), jnp.ones((), bool))
    return jax.lax.while_loop(unfinished, step, carry)[0]
