"""The clipped sum of outer products: each record's numbers are clipped by their norm, and a matrix product sums them.

A record contributes (a (x) c, b): its row a times a few coefficients c, and a few other numbers b. Its norm is
sqrt(|c|^2 |a|^2 + |b|^2), measured from the row and from the buffer of numbers that the sum reads. Clipping scales c
and b. Whatever a loss declares about itself, what is measured is what is summed.

**Rounding.** Norms are computed in float64, in which squares of float32 neither overflow nor underflow, and norms of
rows are rounded up by their error bound. A scale and the scaled numbers are rounded to float32, each by at most 2^-24,
so that a record's share of the sum exceeds its clip C by less than 2^-22 C. A chunk of 128 rows is summed by one
product in float32, without any shorter format (`Precision.HIGHEST`). In any order, with or without fused multiply-adds,
entry j of coefficient l errs by at most 129 * 2^-24 * sum_i |c_il| |a_ij|. The norm of these bounds over j and l is at
most 129 * 2^-24 * sum_i |c_i| |a_i|, and sums of b err by less. So a chunk errs by at most 129 * 2^-24 * 128 C < 1.01 *
2^-10 C (Minkowski). Only the changed record's chunk differs between neighbours, and both sums may err. From there on
sums are in float64, as in `clipping`: altogether less than 1.01 * 2^-9 C + 2^-9 C + 2^-21 C, and `ROUNDING` is 2^-7.

**Metric.** Where contributions are B times an outer product, norms of rows are those of B a, at least 1/16 of |a|, and
B is applied to the sum in float64. A record's share of the sum before that has a norm of at most 16 C. Chunks of 32
rows err by at most 33 * 2^-24 * 32 * 16 C < 1.04 * 2^-10 C, as above, and B makes an error longer by 2^-8 of it at
most. Float64 errs sixteen times as much as in `clipping`: a single block has at most 2^21 records for that (`memory`),
in which n/32 chunks err by n^2/32 * 2^-53 * 16 C <= 2^-12 C, and all blocks together by 2^-11 C up to 2^36 records.

**Zeros.** 0 times NaN is NaN, and one such row would spoil the whole sum. Rows that are not finite are replaced by
zeros before the product: when records are stored (`memory`), or here where they were not. Numbers of records that are
absent, not finite or too long become zeros. So do those of a record more than 2^100 times as long as the clip, whose
scale float32 holds with fewer digits.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.privacy.outer import Layout

# Numbers beyond this, and products of coefficients and rows, count as infinite, as in `clipping`.
OVERFLOW = 2.0**100
# Scaled numbers below this become zero: those that float32 holds with fewer digits could be rounded up by any factor.
UNDERFLOW = 2.0**-100
_LONGEST = 2.0**200  # in float64; an infinite clip is one of this length
_ROWS_AT_ONCE = 2**10
_FEW = 16  # lines that are combined one by one
_CHUNK_IN_METRIC = 32  # records whose products are summed in their own precision, if rows may be longer than they count
PRECISION = jax.lax.Precision.HIGHEST  # shorter formats, such as TF32, break the bound on rounding


class Products(NamedTuple):
    """Contributions of a block of records.

    Args:
        numbers: coefficients, then other numbers, one line each, with an entry for each record; stored once.
        rows: the rows that coefficients multiply, all of them finite: the records' own, or stored once.
        norms: at least the norms of the rows, in the metric of the layout if it has one, in float64.
        factors: how many lines multiply the rows: all coefficients, and perhaps a line of zeros after them.
        layout: which number is what.
    """

    numbers: jax.Array
    rows: jax.Array
    norms: jax.Array
    factors: int
    layout: Layout


def row_norms(rows: Any, out: Any = None) -> Any:
    """Norms of rows in float64, rounded up; NaN or infinite for rows that are not finite.

    NumPy measures its arrays, and may write into ``out``.
    """
    number = rows.shape[0]
    if isinstance(rows, np.ndarray):
        norms = np.empty(number, np.float64) if out is None else out
        for first in range(0, number, _ROWS_AT_ONCE):
            norms[first : first + _ROWS_AT_ONCE] = _measured(rows[first : first + _ROWS_AT_ONCE])
        return norms
    with jax.enable_x64(True):  # callers trace losses in the user's precision
        if number <= _ROWS_AT_ONCE:
            return _measured(rows)
        # In blocks, so that no compiler holds all squares at a time; the last block is shifted back to the last row.
        begins = jnp.minimum(jnp.arange(0, number, _ROWS_AT_ONCE), number - _ROWS_AT_ONCE)

        def step(norms: jax.Array, begin: jax.Array) -> tuple[jax.Array, None]:
            part = _measured(jax.lax.dynamic_slice_in_dim(rows, begin, _ROWS_AT_ONCE))
            return jax.lax.dynamic_update_slice(norms, part, (begin,)), None

        return jax.lax.scan(step, jnp.zeros(number, jnp.float64), begins)[0]


def _measured(rows: Any) -> Any:
    columns = rows.shape[1]
    # Processors may read denormal entries as zeros here and as they are in a product.
    denormal = math.sqrt(columns) * float(jnp.finfo(rows.dtype).tiny)
    squares = (rows.astype(jnp.float64) ** 2).sum(axis=1)
    return squares**0.5 * (1 + (columns + 4) * 2.0**-52) + denormal


def finite_rows(rows: jax.Array, computed: bool = False) -> tuple[jax.Array, jax.Array]:
    """Rows with zeros in place of those that are not finite, and the norms of all, which show which these are.

    Computed rows are limited entry by entry, as numbers are: they are not known to be those that records hold.
    """
    norms = row_norms(rows)
    finite = jnp.all(jnp.abs(rows) <= OVERFLOW, axis=1) if computed else jnp.isfinite(norms)
    return _zeroed(rows, finite), jnp.where(finite, norms, jnp.inf)


def _zeroed(rows: jax.Array, finite: jax.Array) -> jax.Array:
    return jnp.where(finite[:, None], rows, 0)


def products_total(block: Products, taken: jax.Array, clip: float, chunk: int) -> jax.Array:
    """Sum of the clipped contributions of a block, raveled, in float64; chunks are summed in the numbers' dtype."""
    count, rows = block.factors, block.rows
    numbers = _clipped_numbers(block, _usable(block, taken), clip)
    if block.layout.metric is not None:
        chunk = _CHUNK_IN_METRIC
        rest = -numbers.shape[1] % chunk  # zero, but for blocks of few records
        numbers, rows = jnp.pad(numbers, ((0, 0), (0, rest))), jnp.pad(rows, ((0, rest), (0, 0)))
    chunks = numbers.reshape(numbers.shape[0], -1, chunk)
    products = jax.lax.dot_general(
        jnp.moveaxis(chunks[:count], 1, 0),
        rows.astype(numbers.dtype).reshape(-1, chunk, rows.shape[1]),
        (((2,), (1,)), ((0,), (0,))),
        precision=PRECISION,
        preferred_element_type=numbers.dtype,
    )
    others = jnp.sum(chunks[count:], axis=2)
    return block.layout.assemble(_added(products), jnp.sum(others.astype(jnp.float64), axis=1))


def _usable(block: Products, taken: jax.Array) -> jax.Array:
    """Which records are summed; comparisons are false for NaN, too."""
    sizes, count = jnp.abs(block.numbers), block.factors
    finite = _along_lines(jnp.logical_and, sizes <= OVERFLOW)
    # An infinite row is not usable with any coefficient, not even with zero.
    largest = jnp.maximum(_along_lines(jnp.maximum, sizes[:count]), UNDERFLOW)
    return taken & finite & (block.norms * largest.astype(jnp.float64) < OVERFLOW)


def _clipped_numbers(block: Products, usable: jax.Array, clip: float) -> jax.Array:
    """Numbers that are scaled so that the contribution has norm at most ``clip``; zeros where it is not usable.

    Scales may be computed several times, in copies that differ by a few units of float64. Whichever copy decides, the
    norm of the result exceeds the clip by no more than that, as in `clipping.clipped`.
    """
    outer, others = (_added(part, jnp.square) for part in jnp.split(block.numbers, [block.factors]))
    found = scales(outer, others, block.norms, usable, longest(clip), block.numbers.shape[0])
    return scaled_numbers(block.numbers, found.astype(block.numbers.dtype))


def longest(clip: float) -> jax.Array:
    """The clip in float64; an infinite one is that of the longest vector."""
    return jnp.minimum(jnp.asarray(clip, jnp.float64), _LONGEST)


def scales(
    outer: jax.Array, others: jax.Array, norms: jax.Array, usable: jax.Array, longest: jax.Array, numbers: int
) -> jax.Array:
    """Factors in float64, from sums of squares of coefficients and of other numbers, of which there are so many."""
    lengths = jnp.sqrt(outer * norms**2 + others) * (1 + (numbers + 8) * 2.0**-52)
    # Division comes last, because compilers compute it once: clip/clip for a short record, zero for an unusable one.
    return longest / jnp.where(usable, jnp.maximum(lengths, longest), jnp.inf)


def scaled_numbers(numbers: jax.Array, scales: jax.Array) -> jax.Array:
    """Numbers times their scales; zero instead of what their format holds with fewer digits."""
    scaled = jnp.where(scales >= UNDERFLOW, numbers * scales, 0)
    return jnp.where(jnp.abs(scaled) >= UNDERFLOW, scaled, 0)


def _along_lines(operation: Any, lines: jax.Array) -> jax.Array:
    """Combine lines entry by entry: a few of them one by one, which compilers vectorise."""
    if 0 < lines.shape[0] <= _FEW:
        return functools.reduce(operation, lines)
    return operation.reduce(lines, axis=0)


def _added(parts: jax.Array, of: Callable[[jax.Array], jax.Array] = lambda part: part) -> jax.Array:
    """The sum along the first axis, in float64, of the parts or of a function of them."""
    if parts.shape[0] <= _FEW or jax.default_backend() != "cpu":
        return _along_lines(jnp.add, of(parts.astype(jnp.float64)))
    # One after another: compilers for processors take longer for such a sum than for the products that it adds.
    zero = jnp.zeros(parts.shape[1:], jnp.float64)
    return jax.lax.scan(lambda total, part: (total + of(part.astype(jnp.float64)), None), zero, parts)[0]
