"""Which hyperparameters move together: the sets of the domain, on flat vectors."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpbilevel.constraints import Ball, Box, NonNegative, Simplex, Unconstrained

Tree = Any

_MANY = 4  # coordinates, that their mean says something of each (Efron and Morris 1973)


@dataclass(frozen=True)
class Group:
    """Coordinates of x that share a distance.

    Args:
        place: in the flat x.
        kind: "weights" of a simplex, "separate" coordinates, or a "round" set.
        project: onto the set, of the flat coordinates.
        total: of the weights.
        width: of the set, where it is bounded.
    """

    place: slice
    kind: str
    project: Callable[[jax.Array], jax.Array]
    total: float = 1.0
    width: float = math.inf

    @property
    def size(self) -> int:
        """How many coordinates."""
        return self.place.stop - self.place.start

    @property
    def follows_path(self) -> bool:
        """Whether the coordinates say something of each other."""
        return self.kind == "weights" or (self.kind == "separate" and self.size >= _MANY)


def groups(domain: Tree, x: Tree) -> tuple[Group, ...]:
    """The groups of x, by the sets of its domain; arrays of separate coordinates are groups of their own."""
    found: list[Group] = []
    first = 0

    def add(convex_set: Any, part: Tree, kind: str) -> None:
        nonlocal first
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), part)
        flat, unravel = ravel_pytree(zeros)

        def project(point: jax.Array) -> jax.Array:
            return ravel_pytree(convex_set.project(unravel(point)))[0].astype(point.dtype)

        total = getattr(convex_set, "total", 1.0)
        found.append(Group(slice(first, first + flat.size), kind, project, total, _width(convex_set)))
        first += flat.size

    def of_set(convex_set: Any, part: Tree) -> None:
        if isinstance(convex_set, Box | NonNegative | Unconstrained):
            for leaf in jax.tree.leaves(part):
                add(convex_set, leaf, "separate")
        else:
            add(convex_set, part, "weights" if isinstance(convex_set, Simplex) else "round")

    jax.tree.map(of_set, domain, x)
    return tuple(found)


def _width(convex_set: Any) -> float:
    """Nothing in a bounded set needs a longer first distance than the set allows."""
    if isinstance(convex_set, Box):
        widths = np.asarray(convex_set.upper, float) - np.asarray(convex_set.lower, float)
        return float(widths.max())
    return 2 * convex_set.radius if isinstance(convex_set, Ball) else math.inf
