"""Values that are computed exactly once, however often they are used.

Compilers may copy an expression into every kernel that uses it, and two copies need not agree: one may use a fused
multiply-add and the other round twice, and under cancellation nothing bounds the difference. A vector whose norm is
measured in one kernel and that is summed in another would then be two different vectors, and the norm of one would not
bound the other.

The output of a loop is safe. No compiler moves an expression out of a loop that runs more than once, so everything
after the loop reads the one buffer that the loop has filled. Values are therefore computed, or copied, in two steps of
a scan. A branch on a value, or a loop with a data-dependent end, would also work, but nothing here may branch on
values. XLA drops ``optimization_barrier``, and also a scan of one step, before it forms kernels for CPUs.
tests/guarantees/test_buffers.py inspects the compiled programs.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

Rows = Callable[[jax.Array, int], Iterable[jax.Array]]


def computed_once(rows: Rows, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Compute rows into one buffer that every later use reads.

    Args:
        rows: ``rows(first, number)`` returns ``number`` rows starting at ``first``, as arrays of adjacent columns.
        shape: number of rows, number of columns.
        dtype: the dtype of the array.
    """
    number = shape[0]
    half = -(-number // 2)

    def step(buffer: jax.Array, first: jax.Array) -> tuple[jax.Array, None]:
        column = 0
        for part in rows(first, half):
            # Part by part, because a concatenation would copy the memory once more.
            flat = part.reshape(half, math.prod(part.shape[1:])).astype(dtype)
            buffer = jax.lax.dynamic_update_slice(buffer, flat, (first, column))
            column += flat.shape[1]
        return buffer, None

    # The second half ends at the last row: with an odd number, one row is computed twice, and the later value stays.
    return jax.lax.scan(step, jnp.zeros(shape, dtype), jnp.array([0, number - half]))[0]


def stored_once(lines: Sequence[jax.Array]) -> jax.Array:
    """Copy lines of equal length into one buffer that every later use reads; nothing is computed a second time.

    Unlike `computed_once` it does not divide the computation, so that operands of matrix products are not copied.
    """
    length = lines[0].shape[1]
    half = -(-length // 2)

    def step(buffer: jax.Array, first: jax.Array) -> tuple[jax.Array, None]:
        line = 0
        for part in lines:
            copied = jax.lax.dynamic_slice_in_dim(part, first, half, axis=1)
            buffer = jax.lax.dynamic_update_slice(buffer, copied, (line, first))
            line += part.shape[0]
        return buffer, None

    start = jnp.zeros((sum(part.shape[0] for part in lines), length), lines[0].dtype)
    return jax.lax.scan(step, start, jnp.array([0, length - half]))[0]
