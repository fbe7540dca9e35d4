"""Closed convex sets with a projection: the domains of x and, optionally, of y.

A domain is one set for the whole pytree, or a pytree of sets that is a prefix of it::

    domain = {"weights": Simplex(), "penalties": Box(-8.0, 2.0)}

All projections but that of the ball are optax's. This module adds names, checks and a membership test.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import positive

Tree = Any

_LARGEST = float(np.finfo(np.float32).max)


@runtime_checkable
class ConvexSet(Protocol):
    """A closed convex set: anything with a Euclidean projection."""

    def project(self, tree: Tree) -> Tree:
        """Return the nearest point of the set."""


@dataclass(frozen=True)
class Unconstrained:
    """The whole space: no constraint."""

    def project(self, tree: Tree) -> Tree:
        return tree


@dataclass(frozen=True)
class NonNegative:
    """Every coordinate at least zero."""

    def project(self, tree: Tree) -> Tree:
        return optax.projections.projection_non_negative(tree)


@dataclass(frozen=True, eq=False)
class Box:
    """Every coordinate between ``lower`` and ``upper`` (scalars, or arrays shaped like the point)."""

    lower: Any
    upper: Any

    def __post_init__(self) -> None:
        try:
            lower, upper = np.asarray(self.lower), np.asarray(self.upper)
        except (RuntimeError, TypeError, ValueError):  # ragged lists, or objects that are not arrays
            lower = upper = np.array("no numbers")
        if any(bound.dtype.kind not in "iuf" or np.isnan(bound).any() for bound in (lower, upper)):
            raise InvalidArgument("Box: lower and upper must be real numbers or arrays of them, none of them NaN")
        try:
            ordered = bool(np.all(lower <= upper))
        except ValueError as error:
            raise InvalidArgument("Box: lower and upper must have shapes that fit each other") from error
        if not ordered:
            raise InvalidArgument("Box: lower must not exceed upper in any coordinate; swap the two bounds")

    def project(self, tree: Tree) -> Tree:
        def clip(leaf: Any) -> jax.Array:
            point = jnp.asarray(leaf)
            # Bounds are cast to the point's dtype: optax's box would promote the point to the dtype of its bounds.
            lower, upper = (np.array(bound).astype(point.dtype) for bound in (self.lower, self.upper))
            return jnp.clip(point, lower, upper)

        return jax.tree.map(clip, tree)


@dataclass(frozen=True)
class Ball:
    """Euclidean norm (over all leaves jointly) at most ``radius``."""

    radius: float

    def __post_init__(self) -> None:
        positive("radius", self.radius, "it is the radius of the ball (try 1.0)")

    def project(self, tree: Tree) -> Tree:
        return _scale_to(tree, self.radius)


@dataclass(frozen=True)
class Simplex:
    """Non-negative coordinates (over all leaves jointly) that sum to ``total``."""

    total: float = 1.0

    def __post_init__(self) -> None:
        positive("total", self.total, "it is what the coordinates sum to (try 1.0)")

    def project(self, tree: Tree) -> Tree:
        return optax.projections.projection_simplex(tree, self.total)


Domain = Any  # a ConvexSet, or a pytree of them that is a prefix of the point's tree


def project(domain: Domain, point: Tree) -> Tree:
    """Project ``point`` onto ``domain``, one set at a time.

    >>> import jax.numpy as jnp
    >>> project({"w": NonNegative(), "b": Unconstrained()}, {"w": jnp.array([-1.0, 2.0]), "b": jnp.array(-3.0)})
    {'b': Array(-3., dtype=float32), 'w': Array([0., 2.], dtype=float32)}
    """
    projected = jax.tree.map(lambda convex_set, part: convex_set.project(part), domain, point)

    def like(new: Any, old: Any) -> jax.Array:
        if jnp.shape(new) != jnp.shape(old):
            raise ValueError(
                f"a projection turned shape {jnp.shape(old)} into {jnp.shape(new)}; fit the bounds to the point"
            )
        return jnp.asarray(new, jnp.asarray(old).dtype)

    return jax.tree.map(like, projected, point)


def into_ball(point: Tree, centre: Tree, radius: Any) -> Tree:
    """The nearest point in the ball around ``centre``.

    It lies between the point and the centre, so that it stays in any convex set that contains both.
    """
    offset = _scale_to(optax.tree.sub(point, centre), radius)
    return jax.tree.map(lambda leaf, c, o: (c + o).astype(leaf.dtype), point, centre, offset)


def _scale_to(tree: Tree, radius: Any) -> Tree:
    """The tree, scaled to a norm of at most ``radius``."""
    # optax's projection squares the radius. The square of a large radius, such as a certified bound, overflows in
    # float32 and would turn every point into zero or NaN.
    if not isinstance(radius, jax.Array):
        radius = min(float(radius), _LARGEST)
    return optax.tree.scale(radius / jnp.maximum(optax.tree.norm(tree), radius), tree)


def contains(domain: Domain, point: Tree, tolerance: float = 1e-4) -> bool:
    """Whether ``point`` lies in ``domain`` up to a tolerance relative to its size (float32 rounding)."""
    projected = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(project(domain, point))]
    original = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(point)]
    distance = math.hypot(*(np.linalg.norm(new - old) for new, old in zip(projected, original, strict=True)))
    return distance <= tolerance * (1 + math.hypot(*(np.linalg.norm(leaf) for leaf in original)))


def check_domain(name: str, domain: Domain) -> None:
    """Raise unless ``domain`` is a convex set or a pytree of convex sets."""
    try:
        leaves = jax.tree.leaves(domain, is_leaf=lambda leaf: isinstance(leaf, ConvexSet))
    except ValueError:  # a dictionary whose keys cannot be sorted
        leaves = []
    if not leaves or not all(isinstance(leaf, ConvexSet) and not isinstance(leaf, type) for leaf in leaves):
        raise InvalidArgument(
            f"{name}={domain!r}: must be Unconstrained(), NonNegative(), Box(lower, upper), Ball(radius), Simplex(), "
            "or a pytree of them with the structure of the point"
        )
