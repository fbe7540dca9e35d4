"""The exact mean of a function over records, differentiable and computed in blocks, for runs without noise.

The mean is differentiated as a whole: the gradient of a linear model is one matrix product, without per-record
gradients. There is neither clipping nor noise.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Tree = Any

_ELEMENTS = 2**22  # numbers in a block of records; derivatives recompute each block instead of storing all of them
_CHUNK = 128  # records are summed in chunks, then the chunks: the rounding error grows with n/_CHUNK, not with n


def mean_over_records(function: Callable[..., Any], records: Tree, present: jax.Array) -> Callable[..., jax.Array]:
    """(*arguments) -> the sum of function(*arguments, record) over all present records, divided by their number n.

    As in releases, n includes absent records.
    """
    number = present.shape[0]
    # Absent records may hold non-finite values, and zero times such a value is not zero.
    records = jax.tree.map(lambda leaf: leaf[:number], records)
    clean = jax.tree.map(lambda leaf: jnp.where(_broadcast(present, leaf), leaf, jnp.zeros_like(leaf)), records)
    size = max(1, sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(records)))
    block = min(number, max(1, _ELEMENTS // size))

    def block_sum(arguments: Any, first: jax.Array) -> jax.Array:
        # The last block is shifted back to end with the records; records of the block before are masked.
        begin = jnp.minimum(first, number - block)
        part, taken = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, begin, block), (clean, present))
        taken = taken & (begin + jnp.arange(block) >= first)
        values = jax.vmap(lambda record: function(*arguments, record))(part)
        return _sum(jnp.where(taken, values, 0))

    def mean(*arguments: Any) -> jax.Array:
        if block == number:
            return block_sum(arguments, jnp.zeros((), jnp.int32)) / number
        summed = jax.checkpoint(block_sum)
        shape = jax.eval_shape(block_sum, arguments, jnp.zeros((), jnp.int32))
        total, _ = jax.lax.scan(
            lambda carry, first: (carry + summed(arguments, first), None),
            jnp.zeros(shape.shape, shape.dtype),
            jnp.arange(0, number, block, dtype=jnp.int32),
        )
        return total / number

    return mean


def _sum(values: jax.Array) -> jax.Array:
    rest = -values.shape[0] % _CHUNK
    padded = jnp.concatenate([values, jnp.zeros(rest, values.dtype)])
    return jnp.sum(jnp.sum(padded.reshape(-1, _CHUNK), axis=1))


def _broadcast(present: jax.Array, leaf: jax.Array) -> jax.Array:
    return present.reshape(-1, *(1,) * (leaf.ndim - 1))
