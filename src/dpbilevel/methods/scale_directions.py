"""How a trained model moves when the scale of a group of its coefficients changes, and what is known about it.

Rows usually have a mean, so that a factor on coefficients alone would also shift all scores, against which an intercept
stands: with scores around 10 and an intercept of -9, a model with a factor of 0.9 predicts 0 instead of 1. Columns that
x does not penalise, such as an intercept, therefore follow. With M the second moments of rows, u these columns and b
those of a group, the model moves along

    d_b = (y_b, -M_uu^-1 M_ub y_b),

whose scores are those of the group without what columns of u explain. Their second moments are those of the residuals,
C_b = M_bb - M_bu M_uu^-1 M_ub. Everything here is public or released.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.methods.standard_errors import without_noise


def members(groups: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Which columns a group has, a line for each group; columns of no group (-1) are not penalised."""
    return np.equal.outer(np.arange(max(groups) + 1), groups).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Moments:
    """Second moments of rows as a group of coefficients sees them.

    Args:
        groups: lines of `members`.
        whole: second moments without the part that noise adds.
        explained: M_uu^-1 M_ub, with zeros for columns that are penalised.
        residual: C_b of all groups, with zeros between them.
        directions: eigenvectors of the released matrix.
    """

    groups: npt.NDArray[np.float32]
    whole: jax.Array
    explained: jax.Array
    residual: jax.Array
    directions: jax.Array

    @classmethod
    def of(cls, released: tuple[jax.Array, jax.Array], noise: Any, groups: tuple[int, ...]) -> "Moments":
        """From eigenvalues and eigenvectors of the released matrix, with this noise on its entries."""
        (sizes, directions), lines = released, members(groups)
        whole = (directions * without_noise(sizes, noise)) @ directions.T
        penalised = lines.sum(axis=0)
        free = 1 - penalised
        if not free.any():
            return cls(lines, whole, jnp.zeros_like(whole), whole * (lines.T @ lines), directions)
        # Noise on M_uu is a ridge, so that a column of u that is almost zero explains nothing.
        own = whole * np.outer(free, free) + jnp.diag(noise * free + penalised)
        explained = jnp.linalg.solve(own, whole * np.outer(free, penalised))
        residual = whole * np.outer(penalised, penalised) - (whole * np.outer(penalised, free)) @ explained
        return cls(lines, whole, explained, (residual + residual.T) / 2 * (lines.T @ lines), directions)

    def along(self, y: jax.Array) -> jax.Array:
        """d_b of a model, one for each group."""
        flat = y.reshape(y.shape[0], -1)
        parts = jnp.asarray(self.groups)[:, :, None] * flat
        return (parts - jnp.einsum("uj,bjk->buk", self.explained, parts)).reshape(len(self.groups), *y.shape)

    def products(self, along: jax.Array) -> jax.Array:
        """Mean products of the scores of any two directions."""
        flat = along.reshape(along.shape[0], along.shape[1], -1)
        return jnp.einsum("bik,ij,cjk->bc", flat, self.whole, flat)

    def of_model(self, y: jax.Array) -> jax.Array:
        """The mean square of a group's scores, without what other columns explain."""
        flat = y.reshape(y.shape[0], -1)
        return jnp.asarray(self.groups) @ jnp.maximum(jnp.sum(flat * (self.residual @ flat), axis=1), 0)

    def by_direction(self, values: jax.Array) -> jax.Array:
        """The mean square of a group's scores for a model with these variances: the trace of C_b V values V'."""
        weights = jnp.asarray(self.groups) @ (self.directions * (self.residual @ self.directions))
        return jnp.maximum(weights, 0) @ values


def moved(y: jax.Array, along: jax.Array, factors: jax.Array) -> jax.Array:
    """The model with a factor for each group."""
    return (y + jnp.tensordot(factors - 1, along, axes=1)).astype(y.dtype)
