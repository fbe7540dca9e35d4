"""The second moments of units: the matrix of a unit is the sum of the products of its rows, clipped as a whole.

A unit with rows a_1, ..., a_k contributes M = A'A = sum of a_j a_j', with the rows of A as its rows. M is scaled to a
Frobenius norm of at most C = R^2. Every M is positive semidefinite, since v'Mv is a sum of squares, and so is a scaled
one. The inner product of two such matrices is not negative:

    <A'A, B'B> = trace(A'A B'B) = |A B'|^2 >= 0,   hence   |A'A - B'B|^2 <= C^2 + C^2

So the sensitivities of `second_moments` hold as they are: sqrt(2) C if all rows of a unit are replaced, and C if they
are set to zero. Rows clipped one by one would not do: k equal rows of norm R have a sum of norm k R^2. For k = 1, M is
a a', and its clip is that of the row.

*Norm.* |A'A| = |AA'|, a matrix of k by k entries, is measured in float64 from the buffer of rows that is summed.
Squares and fourth powers of float32 neither overflow nor underflow there. Its entry i, j errs by at most (d + 1) 2^-53
|a_i| |a_j|, and the norm of these bounds is (d + 1) 2^-53 trace(M) <= (d + 1) 2^-53 sqrt(k) |M|, because M has rank k
at most. The norm is raised by this and by k^2 2^-53, the error of a sum of k^2 squares.

*Rounding.* Scales and scaled rows are rounded to float32. Each changes M by at most 2^-23 trace(M) <= 2^-23 sqrt(k) C,
and two copies of a row differ by no more: below 2^-14 C for k up to `MOST_ROWS`, 2^14. A chunk of at most 128 rows is
multiplied in float32. It errs by at most 129 * 2^-24 times the sum of its squared norms of rows. Chunks hold whole
units or rows of one unit. With u units of k rows, u k <= 128, the sum of squares is at most u sqrt(k) C <= 128 C. All
chunks of one longer unit have a sum of at most sqrt(k) C <= 128 C together. So either errs by less than 1.01 * 2^-10 C,
as for rows, and only the chunks of the changed unit differ between neighbours.
"""

import math

import jax
import jax.numpy as jnp

from dpbilevel.privacy.memory import CHUNK
from dpbilevel.privacy.products import PRECISION

MOST_ROWS = 2**14  # rows of a unit for which the bounds on rounding hold
_OVERFLOW = 2.0**100  # entries beyond it count as infinite, as in `clipping`
_UNDERFLOW = 2.0**-100  # scales below it become zero: float32 holds smaller ones with fewer digits


def clipped_bundles(bundles: jax.Array, present: jax.Array, clip: float) -> jax.Array:
    """Rows of units, (units, k, d), scaled so that the sum of products of a unit has Frobenius norm at most clip^2.

    A unit that is absent, or has an entry that is not finite or beyond 2^100, becomes zero as a whole. Rows must be
    `computed_once`.
    """
    _, most, columns = bundles.shape
    usable = present & jnp.all(jnp.abs(bundles) <= _OVERFLOW, axis=(1, 2))
    clean = jnp.where(usable[:, None, None], bundles, 0)
    wide = clean.astype(jnp.float64)
    products = jax.lax.dot_general(wide, wide, (((2,), (2,)), ((0,), (0,))), precision=PRECISION)
    raised = 1 + ((columns + 1) * math.sqrt(most) + most**2 + 8) * 2.0**-52
    norms = jnp.sqrt(jnp.sum(products**2, axis=(1, 2))) * raised
    # M is quadratic in rows: its scale is the square of theirs.
    scales = jnp.where(norms > clip**2, jnp.sqrt(clip**2 / jnp.maximum(norms, clip**2)), 1)
    scales = jnp.where(scales >= _UNDERFLOW, scales, 0)
    return clean * scales.astype(clean.dtype)[:, None, None]


def sum_of_bundles(bundles: jax.Array) -> jax.Array:
    """The sum of A'A over units, raveled, in float64; chunks of rows are multiplied in their own precision."""
    chunks = _chunks(bundles)
    products = jax.lax.dot_general(
        chunks, chunks, (((1,), (1,)), ((0,), (0,))), precision=PRECISION, preferred_element_type=chunks.dtype
    )
    return jnp.sum(products.astype(jnp.float64), axis=0).ravel()


def _chunks(bundles: jax.Array) -> jax.Array:
    """Rows in chunks of at most 128, with rows of zeros: whole units, or rows of one unit that has more."""
    units, most, columns = bundles.shape
    if most > CHUNK:
        padded = jnp.pad(bundles, ((0, 0), (0, -most % CHUNK), (0, 0)))
        return padded.reshape(-1, CHUNK, columns)
    together = CHUNK // most
    return jnp.pad(bundles, ((0, -units % together), (0, 0), (0, 0))).reshape(-1, together * most, columns)
