"""Candidate hyperparameters of a search: a public list or a public distribution."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.constraints import Domain, contains
from dpbilevel.errors import InvalidArgument

Tree = Any


def check_list(candidates: Any) -> tuple[Tree, ...]:
    """Candidates as a tuple; raises if they are not a list."""
    if not isinstance(candidates, Sequence) or isinstance(candidates, str) or len(candidates) == 0:
        raise InvalidArgument(
            "candidates: must be a list of hyperparameters, each with the structure of x0 (as in [0.01, 0.1, 1.0])"
        )
    return tuple(candidates)


def typed(candidate: Tree, x: Tree) -> Tree:
    """A candidate converted to the dtypes of ``x`` (arrays or shapes); raises if its structure or shapes differ."""
    if str(jax.tree.structure(candidate)) != str(jax.tree.structure(x)):
        raise InvalidArgument("candidates: must have the structure of x0, the starting hyperparameters")

    def convert(given: Any, expected: Any) -> jax.Array:
        value = np.asarray(given)
        if value.dtype.kind not in "iu" and not jnp.issubdtype(value.dtype, jnp.floating):
            raise InvalidArgument("candidates: must be real numbers, like the starting hyperparameters")
        if value.shape != expected.shape or not np.isfinite(value.astype(np.float64)).all():
            raise InvalidArgument(
                f"candidates: must be finite and have the shapes of x0; found {value.shape}, x0 has {expected.shape}"
            )
        return jnp.asarray(value, dtype=expected.dtype)

    return jax.tree.map(convert, candidate, x)


def fitted(candidate: Tree, x: Tree, domain: Domain) -> Tree:
    """A candidate converted to the dtypes of ``x``; raises if it does not lie in the domain."""
    point = typed(candidate, x)
    if not contains(domain, point):
        raise InvalidArgument(f"candidates: must lie in domain={domain!r}, like the starting hyperparameters")
    return point
