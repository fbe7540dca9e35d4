"""The second moments of rows: a release that builds the outer products of rows by itself.

    answer = sum over roles r, 1/n_r * sum over records i of r, a_i a_i'  +  N,    |a_i| <= R_r

N is a symmetric matrix of Gaussian noise: independent on and above the diagonal, with standard deviation ``noise_std``
on the diagonal and noise_std/sqrt(2) beside it. These are the coordinates in which the Frobenius norm of a symmetric
matrix is Euclidean: entries of the diagonal, and sqrt(2) times the entries above it.

**Sensitivity.** A record contributes M = a a', whose Frobenius norm is |a|^2 <= R^2. If it is replaced by b, then

    |a a' - b b'|^2 = |a|^4 + |b|^4 - 2 (a . b)^2 <= 2 R^4

since the inner product of a a' and b b' is (a . b)^2 >= 0. So a mean over n records changes by at most sqrt(2) R^2/n,
not by 2 R^2/n, and by R^2/n if a record is set to zero. The bound needs matrices with non-negative inner products. No
declaration is trusted with that: the release multiplies the row by itself, and clipping scales the product by a
positive number, which is the product of a shorter row. A record may also be a unit with several rows, whose products
are added and clipped as a whole; `unit_moments` has the same bounds for it.

**Rounding.** Rows are computed once and clipped, so that a factor of a product exceeds R by less than 2^-18 R, and two
copies of it differ by less. A chunk of 128 rows is multiplied in float32 as in `products`, where both factors have norm
at most R: its error is below 1.01 * 2^-10 R^2, on either side of the comparison. Numbers below 2^-126 may be set to
zero, which moves the product of a chunk with d columns by at most 2^-119 d: less than 2^-15 R^2 for R from 2^-40 and d
up to 2^24. With sums in float64 from there on, this is less than what `ROUNDING`, 2^-7, adds to either sensitivity.
With exact noise, the integers of a record differ from its matrix by at most sqrt(d)/2 units, 2^-9 R^2 for d up to 2^24
(see `grid`), and inner products may be slightly negative. By the triangle inequality two records differ by at most
sqrt(2) R^2 + 2 * 2^-9 R^2, and one that is set to zero by (1 + 2^-9) R^2; `ROUNDING` adds more to both.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.structure import passing
from dpbilevel.privacy.bundles import unit_shape
from dpbilevel.privacy.clipping import ROUNDING, clipped
from dpbilevel.privacy.grid import Grid, integers
from dpbilevel.privacy.memory import CHUNK
from dpbilevel.privacy.outer import dense
from dpbilevel.privacy.products import PRECISION
from dpbilevel.privacy.release import Contribution, Release, at_point
from dpbilevel.privacy.shards import arrays_of, source_of
from dpbilevel.privacy.sums import Sum, compensated, exact
from dpbilevel.privacy.unit_moments import MOST_ROWS, clipped_bundles, sum_of_bundles

Tree = Any

_SMALLEST = 2.0**-40  # clip


@passing("contributions", "noise_std", "grid", structure=("name", "sampling", "adjacency"))
@dataclass(frozen=True, eq=False, kw_only=True)
class SecondMoments(Release):
    """A release of the mean of a a' over records, used ``uses`` times; its answer is a symmetric matrix.

    Args:
        contributions: role to `Contribution`. Its function maps (point, record) to a row a, one vector; its clip is R,
            the largest norm of the row. Longer rows are shortened. For a unit it returns a matrix with a line for each
            of its rows; R^2 is then the largest Frobenius norm of the sum of their products.

    The other arguments are those of `Release`.

    >>> release = SecondMoments(
    ...     name="second moments",
    ...     contributions={"lower": Contribution(lambda point, record: record, 2.0, 1000)},
    ...     noise_std=0.01,
    ...     uses=1,
    ... )
    >>> release.sensitivity("lower") == math.sqrt(2) * 2.0**2 * (1 + 2**-7) / 1000
    True
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sampling.is_full_batch:
            raise InvalidArgument(f"sampling={self.sampling!r}: must be dpb.FullBatch() for second moments")
        for part in self.contributions.values():
            if part.clip < _SMALLEST:
                raise InvalidArgument(
                    f"clip={part.clip!r}: must be at least 2^-40 for second moments, because float32 cannot hold "
                    "products of smaller numbers; scale the rows"
                )

    def sensitivity(self, role: str) -> float:
        """The largest change of the answer if one record of ``role`` changes, in Frobenius norm (rounding included)."""
        if role not in self.contributions:
            raise InvalidArgument(f"role={role!r}: must be one of {sorted(self.contributions)}, which contribute")
        contribution = self.contributions[role]
        factor = math.sqrt(2) if self.adjacency == "replace-one" else 1.0
        return factor * contribution.clip**2 * (1 + ROUNDING) / contribution.count

    def discretized(self, dimension: int) -> "SecondMoments":
        """The same release on integers with exact noise; ``dimension`` is the number of entries of its matrix."""
        columns = math.isqrt(dimension)
        bounds = {role: (part.clip**2, part.count) for role, part in self.contributions.items()}
        return replace(self, grid=Grid.of(self.name, columns * (columns + 1) // 2, bounds))

    def _part(self, role: str, arrays: Tree, present: jax.Array, point: Tree, precise: bool) -> jax.Array:
        part = self.contributions[role]
        summed = self._folded(arrays, present, part, point, precise, functools.partial(_sum_of_products, part.clip))
        return coordinates(summed) / part.count

    def _exact_part(
        self, grid: Grid, role: str, arrays: Tree, present: jax.Array, point: Tree, precise: bool
    ) -> jax.Array:
        part = self.contributions[role]
        return self._folded(arrays, present, part, point, precise, functools.partial(_sum_of_integers, grid, part))

    @staticmethod
    def _folded(
        arrays: Tree,
        present: jax.Array,
        part: Contribution,
        point: Tree,
        precise: bool,
        total: Callable[[int], Sum],
    ) -> jax.Array:
        row = at_point(part.per_record, point, precise)
        shape = jax.eval_shape(lambda record: dense(row(record)), unit_shape(arrays_of(arrays))).shape
        own = total(shape[0] if len(shape) == 2 else 0)
        return own.value(source_of(arrays).fold(lambda record: dense(row(record)), own, present))

    def _example(self, records: Mapping[str, tuple[Tree, jax.Array]], point: Tree) -> tuple[Any, Any]:
        example, restored = super()._example(records, point)
        shape = jnp.shape(restored(example))
        if len(shape) not in (1, 2) or shape[:-1] > (MOST_ROWS,):
            raise InvalidArgument(
                f"release {self.name!r}: a record must have one row, a vector, or a matrix of at most {MOST_ROWS} rows"
            )
        return jnp.zeros(shape[-1] * (shape[-1] + 1) // 2, example.dtype), matrix


def _sum_of_products(clip: float, most: int) -> Sum:
    """The sum of products of rows, clipped by record, raveled, in float64; records have ``most`` rows, or 0 for one."""

    def block_total(rows: jax.Array, taken: jax.Array) -> jax.Array:
        block, numbers = rows.shape
        if most:
            return sum_of_bundles(clipped_bundles(rows.reshape(block, most, numbers // most), taken, clip))
        chunks = clipped(rows, taken, clip).reshape(-1, min(block, CHUNK), numbers)
        products = jax.lax.dot_general(
            chunks, chunks, (((1,), (1,)), ((0,), (0,))), precision=PRECISION, preferred_element_type=rows.dtype
        )
        return jnp.sum(products.astype(jnp.float64), axis=0).ravel()

    return compensated(block_total, lambda numbers: jnp.zeros((numbers // max(most, 1)) ** 2, jnp.float64))


def _sum_of_integers(grid: Grid, part: Contribution, most: int) -> Sum:
    """The sum of the coordinates of products of rows in units of the grid, in int64; ``most`` as above."""
    spacing, longest = part.count * grid.unit, grid.longest(part.clip**2, part.count)

    def block_total(rows: jax.Array, taken: jax.Array) -> jax.Array:
        def add(total: jax.Array, row_and_taken: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            row, mine = row_and_taken
            product = jnp.matmul(row.T, row, precision=PRECISION) if most else jnp.outer(row, row)
            entries = coordinates(product.ravel())[None]
            return total + integers(entries, mine[None], part.clip**2, spacing, longest)[0], None

        # One record after the other: the integers of a block would take columns times the memory of its rows.
        wide = rows.astype(jnp.float64)
        if most:
            shortened = clipped_bundles(wide.reshape(rows.shape[0], most, -1), taken, part.clip)
        else:
            shortened = clipped(wide, taken, part.clip)
        return jax.lax.scan(add, jnp.zeros(grid.dimension, jnp.int64), (shortened, taken))[0]

    return exact(block_total, lambda numbers: jnp.zeros(grid.dimension, jnp.int64))


def coordinates(product: jax.Array) -> jax.Array:
    """A raveled matrix, made symmetric, in coordinates in which its Frobenius norm is Euclidean."""
    columns = math.isqrt(product.size)
    square = product.reshape(columns, columns)
    above = np.triu_indices(columns, 1)
    # Sums of products are symmetric up to rounding; the projection to symmetric matrices increases no distance.
    return jnp.concatenate([jnp.diagonal(square), (square + square.T)[above] / math.sqrt(2)])


def matrix(entries: jax.Array) -> jax.Array:
    """The symmetric matrix with these coordinates."""
    columns = (math.isqrt(8 * entries.size + 1) - 1) // 2
    above = np.triu_indices(columns, 1)
    upper = jnp.zeros((columns, columns), entries.dtype).at[above].set(entries[columns:] / math.sqrt(2))
    return upper + upper.T + jnp.diag(entries[:columns])
