"""The clipped sum: the only way in which records enter a computation.

Each record's contribution is clipped *jointly*, over all leaves of its pytree. The guarantee accounts for rounding: a
plain float32 sum of 10^7 records exceeds its sensitivity by 7%. Here contributions are summed in chunks of 128 and the
chunks' sums in float64, and `ROUNDING` bounds the remaining error. It also accounts for compilers: contributions are
`computed_once`, so that the vectors whose norms are measured are the vectors that are summed.

This is not taken from a library because no library bounds its rounding; it is tested against ``jax_privacy.clipping``.
"""

import jax
import jax.numpy as jnp

from dpbilevel.privacy.memory import CHUNK
from dpbilevel.privacy.one_read import OneRead, one_read_total
from dpbilevel.privacy.products import Products, products_total
from dpbilevel.privacy.shards import source_of
from dpbilevel.privacy.sums import Sum, Tree, Vector, compensated

# A clipped sum changes by at most (1 + ROUNDING) times what it would in real arithmetic. Adding 128 float32 vectors of
# norm C errs by at most 127 * 2^-24 * 128 C < 2^-10 C in any order. Neighbours differ in one chunk. All others have the
# same sums, bit for bit, because the same program adds the same numbers. Both sums may err: 2^-9 C. From there on sums
# are in float64. A block of n records errs by at most n^2/128 * 2^-53 C, where n is at most 2^20, or 2^24 in the single
# block of a device: by 2^-12 C, and again only one block differs. Blocks of a device are added with compensation, as
# are the sums of devices. Either errs by at most 2^-52 times the norms that it adds, together 2^-51 N C for N records:
# 2^-11 C up to 2^40 records, on any number of devices. On both sides, float64 adds less than 2^-9 C.
ROUNDING = 2.0**-7

# Entries beyond this are treated like infinities. XLA divides by multiplying with a reciprocal, and that of a float32
# above 2^126 is flushed to zero: the norm would be underestimated. Clips stay far from both limits for the same reason.
_OVERFLOW = 2.0**100
SMALLEST_CLIP, LARGEST_CLIP = 2.0**-60, 2.0**60


def clipped_sum(vector: Vector, records: Tree, present: jax.Array, clip: float) -> jax.Array:
    """Sum of the clipped contributions of all present records, raveled, in float64.

    Args:
        vector: maps one record to its contribution, a pytree of real arrays.
        records: pytree of arrays with a common leading axis, or a `Source`.
        present: boolean mask of the records to include.
        clip: largest norm of one record's contribution; infinite for no clipping.

    A record whose contribution has a non-finite entry (or one beyond 2^100) contributes zero. Memory is bounded:
    records are processed in blocks whose size depends on public sizes only.
    """

    total = compensated_sum(clip)
    return total.value(source_of(records).fold(vector, total, present))


def compensated_sum(clip: float) -> Sum:
    """The sum of clipped contributions in float64: chunks in their own precision, blocks with compensation."""

    def block_total(vectors: jax.Array | Products | OneRead, taken: jax.Array) -> jax.Array:
        if isinstance(vectors, OneRead):
            return one_read_total(vectors, taken, clip)
        if isinstance(vectors, Products):
            return products_total(vectors, taken, clip, min(taken.shape[0], CHUNK))
        block, dimension = vectors.shape
        chunk = min(block, CHUNK)
        chunks = clipped(vectors, taken, clip).reshape(block // chunk, chunk, dimension)
        return jnp.sum(jnp.sum(chunks, axis=1).astype(jnp.float64), axis=0)

    return compensated(block_total, lambda dimension: jnp.zeros(dimension, jnp.float64))


def clipped(vectors: jax.Array, present: jax.Array, clip: float) -> jax.Array:
    """Scale each row to norm at most ``clip``; rows that are absent, not finite or beyond 2^100 become zero.

    Rows are divided by their largest entry first, so that squares neither overflow nor underflow, and the norm is
    rounded up by its error bound: no row of the result exceeds ``clip`` by more than a few units in the last place.

    The rows must be `computed_once`, because a bound on one copy of a row implies nothing about another. Values derived
    from them here may be computed several times. The test of entries and the largest entry involve no rounding, so all
    copies agree. Quotients, norms and scales have errors of a few units in the last place. The sum of squares has a
    larger error, in any order and with or without fused multiply-adds; the norm is raised by its bound. So every copy
    of the norm is at least the true norm minus a few units. Whichever copy decides, for a row or for one of its
    entries: rows that it leaves unchanged are short enough, rows that it scales become short enough, and where copies
    disagree the norm equals the clip or the row becomes zero. All of these errors are below 2^-18 of the clip, and
    `ROUNDING` leaves a margin of more than 2^-8.
    """
    # Entry by entry, because XLA's vectorised maximum may ignore NaN.
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
