"""The exact mean of a function over records, differentiable, in blocks: what a run without a budget works on.

Derivatives of a mean are taken of the whole, so that a linear model's gradient is a matrix product and no record has a
gradient of its own. Nothing is clipped and nothing is noised.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Tree = Any

_ELEMENTS = 2**22  # of a block of records; a derivative recomputes block by block instead of keeping them all
_CHUNK = 128  # records are summed in chunks, and chunks after that: rounding grows with their number, not with n


def mean_over_records(function: Callable[..., Any], records: Tree, present: jax.Array) -> Callable[..., jax.Array]:
    """(*arguments) -> the sum of function(*arguments, record) over all present records, divided by their number n.

    n counts absent records too, as releases do.
    """
    number = present.shape[0]
    # A value that is not finite would survive a mask: zero times it is not zero.
    clean = jax.tree.map(lambda leaf: jnp.where(_along(present, leaf), leaf, jnp.zeros_like(leaf)), records)
    size = max(1, sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(records)))
    block = min(number, max(1, _ELEMENTS // size))

    def of_block(arguments: Any, first: jax.Array) -> jax.Array:
        # The last block is moved back to end with the records; what the block before has counted is masked.
        begin = jnp.minimum(first, number - block)
        part, taken = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, begin, block), (clean, present))
        taken = taken & (begin + jnp.arange(block) >= first)
        values = jax.vmap(lambda record: function(*arguments, record))(part)
        return _summed(jnp.where(taken, values, 0))

    def mean(*arguments: Any) -> jax.Array:
        if block == number:
            return of_block(arguments, jnp.zeros((), jnp.int32)) / number
        summed = jax.checkpoint(of_block)
        shape = jax.eval_shape(of_block, arguments, jnp.zeros((), jnp.int32))
        total, _ = jax.lax.scan(
            lambda carry, first: (carry + summed(arguments, first), None),
            jnp.zeros(shape.shape, shape.dtype),
            jnp.arange(0, number, block, dtype=jnp.int32),
        )
        return total / number

    return mean


def _summed(values: jax.Array) -> jax.Array:
    rest = -values.shape[0] % _CHUNK
    padded = jnp.concatenate([values, jnp.zeros(rest, values.dtype)])
    return jnp.sum(jnp.sum(padded.reshape(-1, _CHUNK), axis=1))


def _along(present: jax.Array, leaf: jax.Array) -> jax.Array:
    return present.reshape(-1, *(1,) * (leaf.ndim - 1))
