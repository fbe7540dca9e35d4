"""The clipped sum: the only way in which records enter a computation.

Each record's vector is clipped *whole*, over all leaves of its pytree jointly. Rounding is part of the guarantee: a
plain float32 sum of 10^7 records breaks the sensitivity by 7%. Here vectors are summed in chunks of 128 and the chunks'
sums in float64, and `ROUNDING` covers what rounding is left. So are compilers: vectors are `computed_once`, and what is
measured is what is summed.

Written by hand because no library bounds its rounding; tested against ``jax_privacy.clipping``.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.privacy.buffer import computed_once

Tree = Any

# A clipped sum moves by at most (1 + ROUNDING) times what it would in real arithmetic. Adding 128 float32 vectors of
# norm C errs by at most 127 * 2^-24 * 128 C < 2^-10 C in any order; only the changed record's chunk differs between
# neighbours, and both sums may err: 2^-9 C. Float64, with compensation between blocks, adds less than
# 2^-9 C up to 10^9 records.
ROUNDING = 2.0**-7

# Entries beyond this are treated like infinities. XLA divides by multiplying with a reciprocal, and that of a float32
# above 2^126 is flushed to zero: the vector would look short. Clips are kept far from both ends for the same reason.
_OVERFLOW = 2.0**100
SMALLEST_CLIP, LARGEST_CLIP = 2.0**-60, 2.0**60

_CHUNK = 128
# Elements of per-record vectors at any time. 4 MiB are about a processor's cache; accelerators wait for each block, and
# 256 MiB keep them busy. A block never has more records than _BLOCK, for which the bound on float64 sums was made.
_ELEMENTS, _ELEMENTS_ON_ACCELERATORS = 2**20, 2**26
_BLOCK = 2**20


def clipped_sum(vector: Callable[[Tree], Tree], records: Tree, present: jax.Array, clip: float) -> jax.Array:
    """Sum of the clipped vectors of all present records, raveled, in float64.

    Args:
        vector: maps one record to a pytree of real arrays.
        records: pytree of arrays with a common leading axis.
        present: boolean, which records take part.
        clip: largest norm of one record's vector; infinite for no clipping.

    A record whose vector has a non-finite entry (or one beyond 2^100) contributes zero. Memory is bounded:
    records are taken in blocks whose size depends on public sizes only.
    """

    def add_block(carry: tuple[jax.Array, jax.Array], vectors: jax.Array, taken: jax.Array) -> Any:
        block, dimension = vectors.shape
        chunk = min(block, _CHUNK)
        chunks = clipped(vectors, taken, clip).reshape(block // chunk, chunk, dimension)
        total, excess = carry  # Kahan's compensated sum: its error does not grow with the number of blocks
        addend = jnp.sum(jnp.sum(chunks, axis=1).astype(jnp.float64), axis=0) - excess
        larger = total + addend
        return larger, (larger - total) - addend

    zero = jnp.zeros(_dimension(vector, records), jnp.float64)
    return over_blocks(vector, records, present, add_block, (zero, zero))[0]


def over_blocks(
    vector: Callable[[Tree], Tree],
    records: Tree,
    present: jax.Array,
    add_block: Callable[[Any, jax.Array, jax.Array], Any],
    start: Any,
) -> Any:
    """Fold ``add_block(carry, vectors, which count)`` over blocks of records; blocks are whole chunks of records.

    The vectors of a block are computed once: what ``add_block`` measures of them is what it adds up.
    """
    number, dimension = present.shape[0], _dimension(vector, records)
    largest = max(1, dimension, sum(leaf.size for leaf in jax.tree.leaves(_one(records))))
    elements = _ELEMENTS if jax.default_backend() == "cpu" else _ELEMENTS_ON_ACCELERATORS
    # Two records at least: `computed_once` takes two steps, and would compute a single one twice.
    at_once = min(number, _BLOCK, max(2, elements // largest))
    chunk = min(at_once, _CHUNK)
    block = at_once // chunk * chunk
    # Half precision sums too coarsely.
    dtype = jnp.result_type(jnp.float32, *(leaf.dtype for leaf in jax.tree.leaves(_described(vector, records))))

    def step(carry: Any, index: jax.Array) -> tuple[Any, None]:
        # The last block is moved back to end with the records; what the block before has counted is masked.
        first = index * block
        begin = jnp.minimum(first, number - block)
        taken = jax.lax.dynamic_slice_in_dim(present, begin, block)
        taken = taken & (begin + jnp.arange(block) >= first)

        def rows(offset: jax.Array, size: int) -> list[jax.Array]:
            part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, begin + offset, size), records)
            return jax.tree.leaves(jax.vmap(vector)(part))

        return add_block(carry, computed_once(rows, (block, dimension), dtype), taken), None

    return jax.lax.scan(step, start, jnp.arange(-(-number // block)))[0]


def clipped(vectors: jax.Array, present: jax.Array, clip: float) -> jax.Array:
    """Scale each row to norm at most ``clip``; rows that are absent, not finite or beyond 2^100 become zero.

    Rows are divided by their largest entry first, so that squares neither overflow nor vanish, and the norm is rounded
    up by its error bound: no row of the result is longer than ``clip`` by more than a few units in the last place.

    The rows must be `computed_once`, for a bound on one copy of a row says nothing of another. What is derived from
    them here may be computed several times. The test of entries and the largest entry round nothing: all copies agree.
    Quotients, norms and scales round by a few units in the last place, but for the sum of squares, whose error in any
    order, with fused multiply-adds or without, is what the norm is raised by. So every copy of the norm is at least the
    true one less a few units, and whichever copy decides, for a row or an entry of it: what it leaves alone is short
    enough, what it scales gets short enough, and where copies disagree the row is at its clip, or becomes zero. All of
    that is below 2^-18 of the clip, and `ROUNDING` has more than 2^-8 to spare.
    """
    # Entry by entry, because XLA's vectorised maximum overlooks NaN.
    usable = present & jnp.all(jnp.abs(vectors) <= _OVERFLOW, axis=1)
    vectors = jnp.where(usable[:, None], vectors, 0)
    largest = jnp.max(jnp.abs(vectors), axis=1, initial=0.0)
    largest = jnp.where(largest > jnp.finfo(vectors.dtype).tiny, largest, 1)
    directions = vectors / largest[:, None]
    dimension = vectors.shape[1]
    accumulate = jnp.float64 if dimension > 2**16 else vectors.dtype
    lengths = jnp.sqrt(jnp.sum(directions**2, axis=1, dtype=accumulate))
    lengths = (lengths * (1 + dimension * float(jnp.finfo(accumulate).eps))).astype(vectors.dtype)
    too_long = largest * lengths > clip
    scales = jnp.where(too_long, clip / lengths, 0).astype(vectors.dtype)
    return jnp.where(too_long[:, None], directions * scales[:, None], vectors)


def _one(records: Tree) -> Tree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), records)


def _described(vector: Callable[[Tree], Tree], records: Tree) -> Tree:
    return jax.eval_shape(vector, _one(records))


def _dimension(vector: Callable[[Tree], Tree], records: Tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(_described(vector, records)))
