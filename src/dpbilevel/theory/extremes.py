"""Gradients and curvatures of a bilevel problem at one point and one record, as measured by `falsify`.

Every value is a witness: whatever the directions, it is at most (for the least curvature: at least) the quantity that a
constant bounds, up to rounding. Power iterations only make it nearly as large.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

Tree = Any
Product = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

DIRECTIONS = 6  # of L1f, L1g, L1g per record, L2g by differences, L2g by derivatives, mu_g
_ITERATIONS = 12  # of the power method; a later call continues from the returned directions
_DENSE = 64  # up to this dimension of y the full Hessian is cheaper than iterations
_ROUNDING = 16  # units in the last place of a difference that rounding may explain
# Weights of f0, f_i, g0 and g_i. Everything is written for a weighted sum of the four and mapped over weights, so that
# only one derivative is compiled instead of one for each function.
_UPPER, _UPPER_RECORD, _LOWER, _LOWER_RECORD = (1, 1, 0, 0), (0, 1, 0, 0), (0, 0, 1, 1), (0, 0, 0, 1)


@runtime_checkable
class Levels(Protocol):
    """The part of a `BilevelProblem` that is needed here; theory must not import it."""

    domain: Any
    lower_domain: Any

    def term(self, level: str) -> Callable[[Tree, Tree], Any]: ...
    def loss(self, level: str) -> Callable[[Tree, Tree, Tree], Any] | None: ...


def measured(problem: Levels, at: dict[str, Tree]) -> tuple[dict[str, jax.Array], jax.Array]:
    """Every quantity at one candidate, by the name of its constant, and the directions found by power iterations.

    Larger is worse: the least curvature is returned with its sign reversed.

    Args:
        problem: provides losses and terms.
        at: "x" and "y"; "other_x" and "other_y", for differences; "upper" and "lower", one record each; "directions",
            one row for each of DIRECTIONS.
    """
    point, unravel = ravel_pytree((at["x"], at["y"]))
    other, _ = ravel_pytree((at["other_x"], at["other_y"]))
    y_from = sum(leaf.size for leaf in jax.tree.leaves(at["x"]))

    def weighted(z: jax.Array, weights: jax.Array) -> jax.Array:
        x, y = unravel(z)
        values = []
        for level in ("upper", "lower"):
            loss = problem.loss(level)
            values += [problem.term(level)(x, y), 0.0 if loss is None else loss(x, y, at[level])]
        return weights @ jnp.stack([jnp.asarray(value, z.dtype) for value in values])

    def product(z: jax.Array, weights: jax.Array, direction: jax.Array) -> jax.Array:
        return jax.jvp(lambda z: jax.grad(weighted)(z, weights), (z,), (direction,))[1]

    kinds = jnp.array([_UPPER, _LOWER, _LOWER_RECORD, _UPPER_RECORD], point.dtype)
    gradients = jax.vmap(jax.vmap(jax.grad(weighted), (None, 0)), (0, None))
    here, there = gradients(jnp.stack([point, other]), kinds)
    directions, products, cubic = _power_iterations(product, point, other, at["directions"][:-1])
    least, least_direction = _least_curvature(product, point, y_from, at["directions"][-1])
    distance = _distance(point, other)
    pairs = [_steepness(here[index], there[index], distance) for index in range(3)]
    upper, lower, lower_record = (
        jnp.maximum(jnp.linalg.norm(products[index]), pairs[index]) for index in range(len(pairs))
    )
    values = {
        "upper_lipschitz": jnp.linalg.norm(here[0]),
        "record_upper_lipschitz": jnp.linalg.norm(here[3]),
        "upper_smoothness": upper,
        "lower_lipschitz": jnp.linalg.norm(here[2, y_from:]),
        "lower_smoothness": lower,
        "record_lower_smoothness": lower_record,
        "lower_hessian_lipschitz": jnp.maximum(jnp.linalg.norm(cubic), _steepness(products[3], products[4], distance)),
        "strong_convexity": -least,
    }
    return values, jnp.concatenate([directions, least_direction[None]])


def _power_iterations(
    product: Product, point: jax.Array, other: jax.Array, directions: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Directions along which Hessians, their difference between two points and the third derivative of g are large.

    Returns improved directions and, along those of the last step, the products of three Hessians, of the Hessian of g
    at either point, and the third derivative of g.
    """
    weights = jnp.array([_UPPER, _LOWER, _LOWER_RECORD, _LOWER, _LOWER], point.dtype)
    points = jnp.stack([point, point, point, point, other])

    def improved(_: int, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        vectors = state[0]
        products = jax.vmap(product)(points, weights, vectors[jnp.array([0, 1, 2, 3, 3])])
        cubic = jax.jvp(lambda z: product(z, weights[1], vectors[4]), (point,), (vectors[4],))[1]
        # The old direction is added, with the appropriate sign: cubic power iterations could oscillate without it.
        sign = jnp.where(cubic @ vectors[4] < 0, -1, 1).astype(cubic.dtype)
        better = jnp.stack([*products[:3], products[3] - products[4], _unit(cubic) + sign * vectors[4]])
        return jax.vmap(_unit)(better), products, cubic

    start = jax.vmap(_unit)(directions)
    improved_directions, products, cubic = jax.lax.fori_loop(
        0, _ITERATIONS, improved, (start, jnp.zeros_like(points), jnp.zeros_like(point))
    )
    return improved_directions, products, cubic


def _least_curvature(
    product: Product, point: jax.Array, y_from: int, direction: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The least eigenvalue of the Hessian of g in y (or a Rayleigh quotient near it), with an allowance for rounding.

    Also returns its direction, whose part in x is zero.
    """
    weights = jnp.array(_LOWER, point.dtype)
    allowed = _ROUNDING * jnp.finfo(point.dtype).eps

    def in_y(vector: jax.Array) -> jax.Array:
        return product(point, weights, vector).at[:y_from].set(0)

    if point.size - y_from <= _DENSE:
        rows = jax.vmap(in_y)(jnp.eye(point.size, dtype=point.dtype)[y_from:])
        values, vectors = jnp.linalg.eigh(rows[:, y_from:])
        padded = jnp.zeros_like(point).at[y_from:].set(vectors[:, 0])
        return values[0] + allowed * jnp.max(jnp.abs(values)), padded

    def step(_: int, state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        top, shift, least = state
        top_product, least_product = jax.vmap(in_y)(jnp.stack([top, least]))
        # The shift grows towards the largest eigenvalue; from then on the least eigenvalue dominates.
        shift = jnp.maximum(shift, jnp.linalg.norm(top_product) * 1.1)
        return _unit(top_product), shift, _unit(shift * least - least_product)

    start = _unit(direction.at[:y_from].set(0))
    _, shift, least = jax.lax.fori_loop(0, 4 * _ITERATIONS, step, (start, jnp.zeros((), point.dtype), start))
    return least @ in_y(least) + allowed * shift, least


def _unit(vector: jax.Array) -> jax.Array:
    norm = jnp.linalg.norm(vector)
    # For a zero vector (a Hessian of zeros) any direction is equally good: a constant one continues the iteration.
    return jnp.where(norm > 0, vector / jnp.where(norm > 0, norm, 1), jnp.full_like(vector, vector.size**-0.5))


def _distance(point: jax.Array, other: jax.Array) -> jax.Array:
    """The distance; infinite for points so close that rounding inside a loss would be mistaken for steepness."""
    distance, size = jnp.linalg.norm(point - other), jnp.linalg.norm(point) + jnp.linalg.norm(other)
    return jnp.where(distance > 4 * jnp.sqrt(jnp.finfo(point.dtype).eps) * size, distance, jnp.inf)


def _steepness(here: jax.Array, there: jax.Array, distance: jax.Array) -> jax.Array:
    """The change of a vector divided by the change of the point, with an allowance for rounding."""
    sizes = jnp.linalg.norm(here) + jnp.linalg.norm(there)
    return (jnp.linalg.norm(here - there) - _ROUNDING * jnp.finfo(here.dtype).eps * sizes) / distance
