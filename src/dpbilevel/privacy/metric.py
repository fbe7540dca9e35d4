"""The metric in which gradients of a linear model are measured: directions that all rows share count for less.

A gradient is a coefficient times a row, so that noise grows with the norm of rows. Much of this norm is in a few
directions in which most rows agree: their mean, frequent categories. These directions need little of the budget, since
every record says the same about them. With M the released second moments of rows, rows are therefore measured as

    B a,   B = (delta (M+ + delta)^-1)^(1/2) <= I,

and B-images of gradients are clipped, summed and noised. What is released is divided by B. Noise in a direction with
eigenvalue m is then larger by (1 + m/delta)^(1/2), where the signal is larger by m/delta; in all others it is smaller
by the norm of rows in the metric over that of rows, often a half.

*Why this B.* Let a model have one size in all directions, b_i the factors of B, h_i = kappa m_i. Noise on a gradient
has a variance in proportion to sum_j b_j^2 m_j, the mean square norm of rows, and coordinate i is known with this
variance over b_i^2 h_i^2. The loss that noise adds is smallest where b_i^2 m_i is the same for all i whose curvature
exceeds the noise. The others cannot be told from noise on M, and keep b_i = 1: delta is the edge of the spectrum that
noise alone has. Few directions are far above it.

*Privacy* does not rest on M: a metric is released values, and part of the point at which a release is evaluated. What
is clipped is B a (x) c, whatever B is. Matrix products sum a (x) c, and B is applied to the sum (`products`), which is
the same in real arithmetic. Rounding is bounded because B is no larger than one, and because no row counts as shorter
than 1/16 of its norm.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Tree = Any

_DIRECTIONS = 8  # in which B is not one; with 32 nothing was gained
SHORTEST = 1 / 16  # norm of a row in the metric, over its norm
_ROUNDING = 2.0**-21  # of p' Q p, times the columns of a row and its squared norm (`Metric.norms`)
_SKEW = 2.0**-12  # of directions that should be orthonormal; far above the rounding of a decomposition
_HIGHEST = jax.lax.Precision.HIGHEST


class Metric(NamedTuple):
    """B = I - U diag(1 - b) U'.

    Args:
        directions: U, orthonormal columns.
        factors: b, one number in (0, 1] for each.
    """

    directions: jax.Array
    factors: jax.Array

    @classmethod
    def of(cls, sizes: jax.Array, directions: jax.Array, noise: Any) -> "Metric":
        """From eigenvalues (ascending) and eigenvectors of released second moments, with this noise on entries."""
        number = min(_DIRECTIONS, sizes.shape[0])
        edge = math.sqrt(2 * sizes.shape[0]) * noise
        factors = jnp.sqrt(edge / (edge + jnp.maximum(sizes[-number:], 0)))
        return cls(directions[:, -number:], factors.astype(directions.dtype))

    @classmethod
    def identity(cls, columns: int, dtype: Any) -> "Metric":
        """Of rows as they are, with the shapes of any other."""
        number = min(_DIRECTIONS, columns)
        return cls(jnp.zeros((columns, number), dtype), jnp.ones(number, dtype))

    def sound(self) -> "Metric":
        """This metric in float64 if its directions are orthonormal and its factors in (0, 1]; otherwise the identity.

        A bound on rounding needs that: with it B is at most 1 + 2^-8.
        """
        directions, factors = self.directions.astype(jnp.float64), self.factors.astype(jnp.float64)
        products = jnp.matmul(directions.T, directions, precision=_HIGHEST)
        skewed = jnp.max(jnp.abs(products - jnp.eye(len(factors))))
        holds = (skewed <= _SKEW) & jnp.all((factors > 0) & (factors <= 1))  # comparisons are false for NaN
        return Metric(jnp.where(holds, directions, 0), jnp.where(holds, factors, 1))

    def mean_square(self, sizes: jax.Array) -> jax.Array:
        """The trace of B M B, the mean square norm of rows in the metric."""
        return jnp.sum(sizes) - jnp.sum((1 - self.factors**2) * sizes[-self.factors.size :])

    def by_direction(self, number: int) -> jax.Array:
        """b for all so many eigenvectors, of which these are the last."""
        return jnp.concatenate([jnp.ones(number - self.factors.size, self.factors.dtype), self.factors])

    def times(self, columns: jax.Array) -> jax.Array:
        """B times a matrix."""
        return self._times(columns, 1 - self.factors)

    def inverse_times(self, columns: jax.Array) -> jax.Array:
        """B^-1 times a matrix."""
        return self._times(columns, 1 - 1 / self.factors)

    def _times(self, columns: jax.Array, less: jax.Array) -> jax.Array:
        along = jnp.matmul(self.directions.T, columns, precision=_HIGHEST)
        return (columns - jnp.matmul(self.directions, less[:, None] * along, precision=_HIGHEST)).astype(columns.dtype)

    def norms(self, rows: jax.Array, norms: jax.Array) -> jax.Array:
        """Norms of rows in the metric, in float64, rounded up; at least 1/16 of their norms, which are given.

        |B a|^2 = |a|^2 - p' Q p with p = U' a and Q = 2 G - G U' U G, G = diag(1 - b). Entries of p, sums of d products
        of float32 in any order, err by at most d 2^-24 |a|. With |Q| <= 1 and eight directions, p' Q p errs by less
        than 2 sqrt(8) d 2^-24 |a|^2 < d 2^-21 |a|^2, which is added.
        """
        sound = self.sound()
        along = jnp.matmul(rows, sound.directions.astype(rows.dtype), precision=_HIGHEST).astype(jnp.float64)
        less = 1 - sound.factors
        products = jnp.matmul(sound.directions.T, sound.directions, precision=_HIGHEST)
        quadratic = 2 * jnp.diag(less) - less[:, None] * products * less
        taken = jnp.sum(along * jnp.matmul(along, quadratic, precision=_HIGHEST), axis=1)
        # A sum that overflows says nothing about its row; the comparison is false for NaN.
        taken = jnp.where(jnp.abs(taken) < jnp.inf, taken, -jnp.inf)
        squares = norms**2 * (1 + rows.shape[1] * _ROUNDING) - taken
        return jnp.sqrt(jnp.maximum(squares, (SHORTEST * norms) ** 2)) * (1 + 2.0**-40)
