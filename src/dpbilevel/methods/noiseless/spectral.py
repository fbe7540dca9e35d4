"""Projected steps along exact gradients, in any convex set and at any scale; only for runs with an infinite epsilon.

A step follows a direction, is projected onto the domain, and has a length from a non-monotone line search:

* coordinates with separate constraints (none, a box, non-negativity) use quasi-Newton directions, and coordinates at a
  bound stay there (two-metric projection, Bertsekas 1982). Each coordinate has its own scale.
* other sets use spectral projected gradients (Birgin, Martínez and Raydan 2000): the step goes to the projection of
  x - alpha * gradient, with the inverse curvature alpha from the last two gradients (Barzilai and Borwein).

The method is invariant to the scale of x and of the loss. Only the first step needs a guess of its length, which the
line search corrects. The search compares values of the loss and stops on convergence. Both depend on records.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from dpbilevel.constraints import Box, Domain, NonNegative, Unconstrained, project
from dpbilevel.methods.noiseless import quasi_newton

Tree = Any
Evaluate = Callable[[Tree, Tree], tuple[jax.Array, Tree, Tree]]  # (x, memory) -> value, gradient, memory

_RECENT = 10  # a step must improve on the largest of this many recent values
_SLACK = 0.01  # a step may end above the best value by this fraction of the total decrease
_GROWTH = 10.0  # largest factor of alpha from one step to the next
_SUFFICIENT = 1e-4  # required fraction of the decrease that the gradient predicts (Armijo)
_SHORTENINGS = 40  # most backtracks of one step; each shortens it at least by half
_FIRST = 0.1  # length of the first step relative to the norm of x (or to one), before a curvature is known
_TOLERANCE = 1e-6  # predicted decrease of a step, relative to the total decrease, at which the search stops
_PATIENCE = 3  # consecutive steps below the tolerance before it stops


_SEPARABLE = (Unconstrained, Box, NonNegative)  # sets that constrain each coordinate separately, or not at all


class Search(NamedTuple):
    """The state of a search.

    Attributes:
        x: the current point.
        value: the loss at x.
        gradient: its gradient at x.
        memory: what `Evaluate` passes from one evaluation to the next, such as a warm start.
        steps: alpha of each set.
        pairs: the last steps and the changes of the gradient along them, as flat vectors.
        recent: the last values.
        first: the value at the start.
        best: the point with the smallest value so far, that value, and the memory there.
        idle: number of consecutive steps below the tolerance.
        stuck: whether the last line search failed.
    """

    x: Tree
    value: jax.Array
    gradient: Tree
    memory: Tree
    steps: tuple[jax.Array, ...]
    pairs: quasi_newton.Pairs
    recent: jax.Array
    first: jax.Array
    best: tuple[Tree, jax.Array, Tree]
    idle: jax.Array
    stuck: jax.Array

    @property
    def done(self) -> jax.Array:
        """Whether the point is stationary up to rounding."""
        return (self.idle >= _PATIENCE) | self.stuck


def begin(domain: Domain, x: Tree, memory: Tree) -> Search:
    """The state before the first step, which stays at x and evaluates the loss and its gradient there."""
    real = jnp.result_type(*jax.tree.leaves(x))
    unknown = jnp.full((), jnp.inf, real)
    return Search(
        x=x,
        value=unknown,
        gradient=optax.tree.zeros_like(x),
        memory=memory,
        steps=(jnp.ones((), real),) * len(_Sets(domain).sets),
        pairs=quasi_newton.none(sum(leaf.size for leaf in jax.tree.leaves(x)), real),
        recent=jnp.full(_RECENT, unknown),
        first=unknown,
        best=(x, unknown, memory),
        idle=jnp.zeros((), jnp.int32),
        stuck=jnp.zeros((), bool),
    )


def step(evaluate: Evaluate, domain: Domain, search: Search) -> Search:
    """One step: a feasible direction, a line search, and an update of the curvature from both gradients."""
    sets = _Sets(domain)
    direction = sets.direction(search)
    predicted = -optax.tree.vdot(search.gradient, direction)
    rounding = jnp.finfo(search.value.dtype).eps
    unknown = jnp.isinf(search.value)
    gain = jnp.where(unknown, jnp.inf, search.first - search.best[1])
    ceiling = jnp.minimum(jnp.max(search.recent), search.best[1] + _SLACK * gain)
    ceiling = ceiling + 2 * rounding * jnp.abs(search.value)

    def is_too_long(carry: Any) -> jax.Array:
        _, (x, value, *_), tries = carry
        descent = optax.tree.vdot(search.gradient, optax.tree.sub(search.x, x))
        fine = (value <= ceiling - _SUFFICIENT * descent) & (descent >= 0)
        return (tries == 0) | (~fine & (tries < _SHORTENINGS))

    def shorten(carry: Any) -> Any:
        length, (_, value, *_), tries = carry
        # The minimum of the parabola through the value, its slope and the new value, clipped to [0.1, 0.5].
        minimum = length * predicted / (2 * (value - search.value + length * predicted))
        shorter = length * jnp.clip(jnp.where(jnp.isfinite(minimum), minimum, 0.1), 0.1, 0.5)
        length = jnp.where(tries == 0, length, shorter)
        x = jax.tree.map(lambda leaf, by: leaf + length.astype(leaf.dtype) * by, search.x, direction)
        x = jax.tree.map(lambda new, old: jnp.where(unknown, old, new), project(domain, x), search.x)
        return length, (x, *evaluate(x, search.memory)), tries + 1

    tried = (search.x, search.value, search.gradient, search.memory)
    start = (jnp.ones_like(search.value), tried, jnp.zeros((), jnp.int32))
    _, (x, value, gradient, memory), tries = jax.lax.while_loop(is_too_long, shorten, start)
    stuck = (tries >= _SHORTENINGS) | ~jnp.isfinite(value)
    turned = jnp.where(unknown, 0, _flat(gradient) - _flat(search.gradient))
    inputs = (*map(sets.parts, (x, search.x, gradient, search.gradient)), search.steps)
    first = jnp.where(unknown, value, search.first)
    best = jax.tree.map(lambda new, old: jnp.where(value < search.best[1], new, old), (x, value, memory), search.best)
    small = predicted <= _TOLERANCE * (first - best[1]) + 0.01 * rounding * jnp.abs(value)
    after = Search(
        x=x,
        value=value,
        gradient=gradient,
        memory=memory,
        steps=tuple(_next_step(*parts) for parts in zip(*inputs, strict=True)),
        pairs=quasi_newton.remember(search.pairs, _flat(x) - _flat(search.x), turned),
        recent=jnp.where(unknown, value, jnp.roll(search.recent, 1).at[0].set(value)),
        first=first,
        best=best,
        idle=jnp.where(small & ~unknown, search.idle + 1, 0),
        stuck=stuck,
    )
    return jax.tree.map(lambda new, old: jnp.where(stuck, old, new), after, search._replace(stuck=stuck))


def minimise(evaluate: Evaluate, domain: Domain, x: Tree, memory: Tree, steps: int) -> Search:
    """Search until converged, for at most ``steps`` steps."""

    def unfinished(carry: tuple[jax.Array, Search]) -> jax.Array:
        taken, search = carry
        return (taken < steps) & ~search.done

    def advance(carry: tuple[jax.Array, Search]) -> tuple[jax.Array, Search]:
        return carry[0] + 1, step(evaluate, domain, carry[1])

    start = (jnp.zeros((), jnp.int32), begin(domain, x, memory))
    return jax.lax.while_loop(unfinished, advance, start)[1]


class _Sets:
    """A domain as a list of sets, and a point as the list of its parts in them."""

    def __init__(self, domain: Domain) -> None:
        self.sets: list[Any]
        self.structure: Any
        self.sets, self.structure = jax.tree.flatten(domain)

    def parts(self, point: Tree) -> list[Tree]:
        return self.structure.flatten_up_to(point)

    def direction(self, search: Search) -> Tree:
        """Spectral projected gradients for each set, and quasi-Newton directions for free coordinates."""
        inputs = list(zip(self.sets, self.parts(search.x), self.parts(search.gradient), search.steps, strict=True))
        spectral = [_spectral(*each) for each in inputs]
        free = [
            jax.tree.map(lambda by, one=convex_set: (by != 0) & isinstance(one, _SEPARABLE), way)
            for (convex_set, *_), way in zip(inputs, spectral, strict=True)
        ]
        along, mask = _flat(self.structure.unflatten(spectral)), _flat(self.structure.unflatten(free)) > 0
        newton = quasi_newton.direction(search.pairs, _flat(search.gradient), mask)
        usable = (jnp.vdot(newton, _flat(search.gradient)) < 0) & jnp.all(jnp.isfinite(newton))
        whole = jnp.where(mask & usable, newton, along)
        return ravel_pytree(search.x)[1](whole.astype(along.dtype))


def _spectral(convex_set: Any, point: Tree, gradient: Tree, alpha: jax.Array) -> Tree:
    """From a point to the projection of point - alpha * gradient. A coordinate at a bound does not move outwards."""
    target = jax.tree.map(lambda leaf, by: leaf - alpha.astype(leaf.dtype) * by, point, gradient)
    return optax.tree.sub(convex_set.project(target), point)


def _flat(tree: Tree) -> jax.Array:
    return ravel_pytree(tree)[0]


def _first(part: Tree, gradient: Tree) -> jax.Array:
    size = optax.tree.norm(part)
    return _FIRST * jnp.where(size > 0, size, 1) / jnp.maximum(optax.tree.norm(gradient), jnp.finfo(size.dtype).tiny)


def _next_step(new: Tree, old: Tree, new_gradient: Tree, old_gradient: Tree, before: jax.Array) -> jax.Array:
    """The inverse curvature along the last step: the longer estimate, or the shorter where the two disagree."""
    moved, turned = optax.tree.sub(new, old), optax.tree.sub(new_gradient, old_gradient)
    square, product = optax.tree.vdot(moved, moved), optax.tree.vdot(moved, turned)
    long = square / product
    short = product / optax.tree.vdot(turned, turned)
    alpha = jnp.where(short < 0.5 * long, short, long)
    # Where the loss is not convex along the step, the next step is longer; where x did not move, it is a first step.
    curved = (product > 0) & jnp.isfinite(alpha)
    alpha = jnp.where(curved, jnp.minimum(alpha, _GROWTH * before), _GROWTH * before)
    return jnp.where(square > 0, alpha, _first(new, new_gradient)).astype(before.dtype)
