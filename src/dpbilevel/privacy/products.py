"""The clipped sum of outer products: each record's numbers are clipped by their norm, and a matrix product sums them.

A record contributes (a (x) c, b): its row a times a few coefficients c, and a few other numbers b. Its norm is
sqrt(|c|^2 |a|^2 + |b|^2), measured from the row and from the buffer of numbers that the sum reads. Clipping scales c
and b. Whatever a loss declares about itself, what is measured is what is summed.

**Rounding.** Norms are computed in float64, in which squares of float32 neither overflow nor underflow, and norms of
rows are rounded up by their error bound. Scaled numbers are rounded to float32 once, so that a record's share of the
sum exceeds its clip C by less than 2^-22 C. A chunk of 128 rows is summed by one product in float32, without any
shorter format (`Precision.HIGHEST`). In any order, with or without fused multiply-adds, entry j of coefficient l errs
by at most 129 * 2^-24 * sum_i |c_il| |a_ij|. The norm of these bounds over j and l is at most 129 * 2^-24 * sum_i |c_i|
|a_i|, and sums of b err by less. So a chunk errs by at most 129 * 2^-24 * 128 C < 1.01 * 2^-10 C (Minkowski). Only the
changed record's chunk differs between neighbours, and both sums may err. From there on sums are in float64, as in
`clipping`: altogether less than 1.01 * 2^-9 C + 2^-9 C + 2^-21 C, and `ROUNDING` is 2^-7.

**Zeros.** 0 times NaN is NaN, and one such row would spoil the whole sum. Rows that are absent, not finite or too long
are replaced by zeros before the product, and so are their numbers.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpbilevel.privacy.outer import Layout

# Numbers beyond this, and products of coefficients and rows, count as infinite, as in `clipping`.
_OVERFLOW = 2.0**100
# Scaled numbers below this become zero: those that float32 holds with fewer digits could be rounded up by any factor.
_UNDERFLOW = 2.0**-100
_ROWS_AT_ONCE = 2**10
_PRECISION = jax.lax.Precision.HIGHEST  # shorter formats, such as TF32, break the bound on rounding


class Products(NamedTuple):
    """Contributions of a block of records.

    Args:
        numbers: coefficients, then other numbers, one line per record; computed once.
        rows: the rows that coefficients multiply: the records' own, or computed once.
        norms: at least the norms of the rows, in float64.
        layout: which number is what.
    """

    numbers: jax.Array
    rows: jax.Array
    norms: jax.Array
    layout: Layout


def row_norms(rows: jax.Array) -> jax.Array:
    """Norms of rows in float64, rounded up; NaN or infinite for rows that are not finite."""
    with jax.enable_x64(True):  # callers trace losses in the user's precision
        return _row_norms(rows)


def _row_norms(rows: jax.Array) -> jax.Array:
    number, columns = rows.shape

    def measured(part: jax.Array) -> jax.Array:
        squares = jnp.sum(part.astype(jnp.float64) ** 2, axis=1)
        return jnp.sqrt(squares) * (1 + (columns + 4) * 2.0**-52)

    if number <= _ROWS_AT_ONCE:
        return measured(rows)
    # In blocks, so that no compiler holds all squares at a time; the last block is shifted back to the last row.
    begins = jnp.minimum(jnp.arange(0, number, _ROWS_AT_ONCE), number - _ROWS_AT_ONCE)

    def step(norms: jax.Array, begin: jax.Array) -> tuple[jax.Array, None]:
        part = measured(jax.lax.dynamic_slice_in_dim(rows, begin, _ROWS_AT_ONCE))
        return jax.lax.dynamic_update_slice(norms, part, (begin,)), None

    return jax.lax.scan(step, jnp.zeros(number, jnp.float64), begins)[0]


def products_total(block: Products, taken: jax.Array, clip: float, chunk: int) -> jax.Array:
    """Sum of the clipped contributions of a block, raveled, in float64; chunks are summed in the numbers' dtype."""
    layout, count = block.layout, block.layout.coefficients
    usable = _usable(block, taken)
    numbers = _clipped_numbers(block, usable, clip)
    rows = _zeroed(block.rows, usable).astype(numbers.dtype)
    chunks, chunked_rows = (part.reshape(-1, chunk, part.shape[1]) for part in (numbers, rows))
    products = jax.lax.dot_general(
        chunks[:, :, :count],
        chunked_rows,
        (((1,), (1,)), ((0,), (0,))),
        precision=_PRECISION,
        preferred_element_type=numbers.dtype,
    )
    others = jnp.sum(chunks[:, :, count:], axis=1)
    return layout.assemble(*(jnp.sum(part.astype(jnp.float64), axis=0) for part in (products, others)))


def _usable(block: Products, taken: jax.Array) -> jax.Array:
    """Which records are summed; comparisons are false for NaN, too."""
    numbers, count = block.numbers, block.layout.coefficients
    finite = jnp.all(jnp.abs(numbers) <= _OVERFLOW, axis=1)
    # An infinite row is not usable with any coefficient, not even with zero.
    largest = jnp.max(jnp.abs(numbers[:, :count]).astype(jnp.float64), axis=1, initial=_UNDERFLOW)
    return taken & finite & (block.norms <= _OVERFLOW / largest)


def _zeroed(rows: jax.Array, usable: jax.Array) -> jax.Array:
    return jnp.where(usable[:, None], rows, 0)


def _clipped_numbers(block: Products, usable: jax.Array, clip: float) -> jax.Array:
    """Numbers that are scaled so that the contribution has norm at most ``clip``; zeros where it is not usable.

    Scales may be computed several times, in copies that differ by a few units of float64. Whichever copy decides, the
    norm of the result exceeds the clip by no more than that, as in `clipping.clipped`.
    """
    numbers = jnp.where(usable[:, None], block.numbers, 0)
    norms = jnp.where(usable, block.norms, 0)
    squares = jnp.square(numbers.astype(jnp.float64))
    coefficients = block.layout.coefficients
    inside = jnp.sum(squares[:, :coefficients], axis=1) * norms**2 + jnp.sum(squares[:, coefficients:], axis=1)
    lengths = jnp.sqrt(inside) * (1 + (numbers.shape[1] + 8) * 2.0**-52)
    too_long = lengths > clip
    scales = jnp.where(too_long, clip / jnp.where(too_long, lengths, 1), 1)
    scaled = (numbers.astype(jnp.float64) * scales[:, None]).astype(numbers.dtype)
    return jnp.where(jnp.abs(scaled) >= _UNDERFLOW, scaled, 0)
