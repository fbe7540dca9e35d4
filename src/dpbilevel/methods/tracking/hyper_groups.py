"""Groups of hyperparameters that share a step rule, one or more per set of the domain, on flat vectors."""

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

_MANY = 4  # coordinates from which on shrinking each towards their mean helps (Efron and Morris 1973)


@dataclass(frozen=True)
class Group:
    """Coordinates of x whose steps share one distance.

    Args:
        place: the coordinates, as a slice of the flat x.
        kind: "weights" of a simplex, "separate" coordinates, or a "round" set, whose coordinates depend on each other.
        project: the projection of the flat coordinates onto the set.
        total: sum of the weights.
        width: width of the set; infinite where it is unbounded.
    """

    place: slice
    kind: str
    project: Callable[[jax.Array], jax.Array]
    total: float = 1.0
    width: float = math.inf

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.place.stop - self.place.start

    @property
    def follows_path(self) -> bool:
        """Whether `move_by_path` applies: the coordinates inform each other."""
        return self.kind == "weights" or (self.kind == "separate" and self.size >= _MANY)


def groups(domain: Tree, x: Tree) -> tuple[Group, ...]:
    """The groups of x: one per set of its domain, or one per array where a set bounds each coordinate separately."""
    collected: list[Group] = []
    first = 0

    def add(convex_set: Any, part: Tree, kind: str) -> None:
        nonlocal first
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), part)
        flat, unravel = ravel_pytree(zeros)

        def project(point: jax.Array) -> jax.Array:
            return ravel_pytree(convex_set.project(unravel(point)))[0].astype(point.dtype)

        total = getattr(convex_set, "total", 1.0)
        collected.append(Group(slice(first, first + flat.size), kind, project, total, _width(convex_set)))
        first += flat.size

    def add_set(convex_set: Any, part: Tree) -> None:
        if isinstance(convex_set, Box | NonNegative | Unconstrained):
            for leaf in jax.tree.leaves(part):
                add(convex_set, leaf, "separate")
        else:
            add(convex_set, part, "weights" if isinstance(convex_set, Simplex) else "round")

    jax.tree.map(add_set, domain, x)
    return tuple(collected)


def _width(convex_set: Any) -> float:
    """The width of a set, which bounds the first distance; infinite where it is unknown."""
    if isinstance(convex_set, Box):
        widths = np.asarray(convex_set.upper, float) - np.asarray(convex_set.lower, float)
        return float(widths.max())
    return 2 * convex_set.radius if isinstance(convex_set, Ball) else math.inf
