"""The exact mean of a function over records, differentiable, for runs without noise: no clipping, no noise.

The mean is differentiated as a whole: the gradient of a linear model is one matrix product, without per-record
gradients. Where the model is a `LinearLoss` on rows that records hold, scores of all records are one product with the
rows where they are. Derivatives of any order are such products, too. All other functions are computed in blocks.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.linear_loss import LinearLoss
from dpbilevel.privacy.bundles import unit_shape, units_from

Tree = Any

_ELEMENTS = 2**22  # numbers in a block of records; derivatives recompute each block instead of storing all of them
_CHUNK = 128  # records are summed in chunks, then the chunks: the rounding error grows with n/_CHUNK, not with n
_SHARE = 8  # scores of all records are held at a time if they have so many times fewer numbers than records have


def mean_over_records(
    function: Callable[..., Any], records: Tree, present: jax.Array, stored: bool = False
) -> Callable[..., jax.Array]:
    """(*arguments) -> the sum of function(*arguments, record) over all present records, divided by their number n.

    As in releases, n includes absent records.

    Args:
        function: the function, of arguments and a record.
        records: pytree of arrays with a common leading axis, which may be longer than the number of records; or units
            that are `Packed`, of which those that are absent have no rows.
        present: which records are summed.
        stored: whether absent records are known to be zeros, as those of `Memory.stored` are. Otherwise they are
            replaced by zeros, in a copy: they may hold non-finite values, and zero times such a value is not zero.
    """
    number = present.shape[0]
    if not stored:
        records = jax.tree.map(lambda leaf: leaf[:number], records)
        records = jax.tree.map(lambda leaf: jnp.where(_broadcast(present, leaf), leaf, jnp.zeros_like(leaf)), records)
    size = max(1, sum(leaf.size for leaf in jax.tree.leaves(unit_shape(records))))
    blocks = _mean_in_blocks(function, records, present, min(number, max(1, _ELEMENTS // size)))
    if not isinstance(function, LinearLoss) or (leaf := _leaf_of_rows(function, records)) is None:
        return blocks
    products = _mean_by_products(function, records, present, leaf)

    def mean(x: Tree, y: Tree) -> jax.Array:
        outputs = y.size // y.shape[0]
        return (products if outputs * number <= max(_ELEMENTS, size * number // _SHARE) else blocks)(x, y)

    return mean


def _mean_in_blocks(
    function: Callable[..., Any], records: Tree, present: jax.Array, block: int
) -> Callable[..., jax.Array]:
    number = present.shape[0]

    def block_sum(arguments: Any, first: jax.Array) -> jax.Array:
        # The last block is shifted back to end with the records; records of the block before are masked.
        begin = jnp.minimum(first, number - block)
        part, taken = units_from(records, begin, block), jax.lax.dynamic_slice_in_dim(present, begin, block)
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


def _leaf_of_rows(function: LinearLoss, records: Tree) -> int | None:
    """Which leaf of the records is the matrix of rows; None if rows are computed, or cannot be split into chunks."""
    found: list[int | None] = []

    def traced(record: Tree) -> jax.Array:
        row = function.row_of(record)
        found.append(next((index for index, leaf in enumerate(jax.tree.leaves(record)) if leaf is row), None))
        return row

    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), records)
    jax.eval_shape(traced, one)
    length = jax.tree.leaves(records)[0].shape[0]
    return found[0] if length < _CHUNK or length % _CHUNK == 0 else None


def _mean_by_products(
    function: LinearLoss, records: Tree, present: jax.Array, leaf: int
) -> Callable[[Tree, Tree], jax.Array]:
    number, rows = present.shape[0], jax.tree.leaves(records)[leaf]
    length, columns = rows.shape
    chunks = max(1, length // _CHUNK)
    taken = jnp.concatenate([present, jnp.zeros(length - number, bool)])

    def mean(x: Tree, y: jax.Array) -> jax.Array:
        # Each chunk of rows has a copy of y, so that the derivative, a sum over chunks, sums a chunk at a time. Copies
        # have the layout of y: with that of its transpose, jaxlib 0.10.2 compiled a loss that read zeros as its scores.
        copies = jnp.broadcast_to(y.reshape(columns, -1), (chunks, columns, y.size // columns))
        scores = jnp.matmul(rows.reshape(chunks, -1, columns), copies, precision=jax.lax.Precision.HIGHEST)
        scores = scores.reshape(length, *y.shape[1:])
        values = jax.vmap(lambda score, record: function.loss(x, score, record))(scores, records)
        return _sum(jnp.where(taken, values, 0)) / number

    return mean


def _sum(values: jax.Array) -> jax.Array:
    rest = -values.shape[0] % _CHUNK
    padded = jnp.concatenate([values, jnp.zeros(rest, values.dtype)])
    return jnp.sum(jnp.sum(padded.reshape(-1, _CHUNK), axis=1))


def _broadcast(present: jax.Array, leaf: jax.Array) -> jax.Array:
    return present.reshape(-1, *(1,) * (leaf.ndim - 1))
