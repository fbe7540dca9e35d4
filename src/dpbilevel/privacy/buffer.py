"""Values that are computed once, however often they are used.

Compilers copy an expression into every kernel that uses it, and two copies need not agree: one multiplies and adds with
one rounding, the other with two, and where large terms cancel nothing bounds the difference. A vector that is measured
in one kernel and added up in another would then be two vectors, and the measure of one bounds nothing of the other.

What a loop has left behind is different. No compiler carries an expression out of a loop that runs more than once, so
that everything after the loop reads the one buffer which the loop has filled. Hence rows are computed in two steps of a
scan. A branch on a value, or a loop that ends by one, would do as well, but nothing here may branch on values; XLA
drops ``optimization_barrier`` before it forms kernels for CPUs, and a scan of one step as well.
tests/guarantees/test_buffers.py reads what the compiler has made of it.
"""

import math
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

Rows = Callable[[jax.Array, int], Iterable[jax.Array]]


def computed_once(rows: Rows, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """One array of rows that every later use reads as it is.

    Args:
        rows: ``rows(first, number)`` gives that many rows from ``first`` on, as arrays of columns side by side.
        shape: number of rows, number of columns.
        dtype: of the array.
    """
    number = shape[0]
    half = -(-number // 2)

    def step(buffer: jax.Array, first: jax.Array) -> tuple[jax.Array, None]:
        column = 0
        for part in rows(first, half):
            # Part by part, for a concatenation would be one more pass over memory.
            flat = part.reshape(half, math.prod(part.shape[1:])).astype(dtype)
            buffer = jax.lax.dynamic_update_slice(buffer, flat, (first, column))
            column += flat.shape[1]
        return buffer, None

    # The second half ends with the rows: an odd number has one of them computed twice, and the later one stands.
    return jax.lax.scan(step, jnp.zeros(shape, dtype), jnp.array([0, number - half]))[0]
