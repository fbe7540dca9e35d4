"""Spectral projected gradients (Birgin, Martínez and Raydan 2000): exact gradients, any convex set, any scale.

A step goes to the projection of x - alpha * gradient, as far as a non-monotone line search allows. alpha is the inverse
of the curvature that the last two gradients show (Barzilai and Borwein), one for each set of the domain: no step size
is in units of x or of the loss, so that rescaling either rescales the path. Only the first step needs a guess, which
the line search shortens and the second step forgets.

It compares values of the loss and stops when it is done. Both depend on records: for runs without a budget only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpbilevel.constraints import Domain

Tree = Any
Evaluate = Callable[[Tree, Tree], tuple[jax.Array, Tree, Tree]]  # (x, memory) -> value, gradient, memory

_RECENT = 10  # values among which the largest must be improved on
_SUFFICIENT = 1e-4  # of the decrease that the gradient promises (Armijo)
_SHORTENINGS = 40  # of one step; each is at least by half
_FIRST = 0.1  # of the size of x, or of one: the length of the first step, before any curvature is known
_TOLERANCE = 1e-6  # of all that was gained: what a step must promise for the search to go on
_PATIENCE = 3  # steps in a row that promise less


class Search(NamedTuple):
    """The state of a search.

    Attributes:
        x: the point.
        value: of the loss there.
        gradient: likewise.
        memory: what `Evaluate` keeps from one evaluation to the next, such as a solution to start from.
        steps: alpha, by set.
        recent: the last values.
        gain: by how much the loss has fallen, from gradients, which rounding spares more than differences of values.
        idle: how many steps in a row promised next to nothing.
        stuck: whether no point along the last direction was good enough.
    """

    x: Tree
    value: jax.Array
    gradient: Tree
    memory: Tree
    steps: tuple[jax.Array, ...]
    recent: jax.Array
    gain: jax.Array
    idle: jax.Array
    stuck: jax.Array

    @property
    def done(self) -> jax.Array:
        """Whether the point is stationary, as far as rounding lets one see."""
        return (self.idle >= _PATIENCE) | self.stuck


def begin(domain: Domain, x: Tree, memory: Tree) -> Search:
    """The state before the first step, which stays at x and finds out value and gradient there."""
    real = jnp.result_type(*jax.tree.leaves(x))
    unknown = jnp.full((), jnp.inf, real)
    return Search(
        x=x,
        value=unknown,
        gradient=optax.tree.zeros_like(x),
        memory=memory,
        steps=(jnp.ones((), real),) * len(_Sets(domain).sets),
        recent=jnp.full(_RECENT, unknown),
        gain=jnp.zeros((), real),
        idle=jnp.zeros((), jnp.int32),
        stuck=jnp.zeros((), bool),
    )


def step(evaluate: Evaluate, domain: Domain, search: Search) -> Search:
    """One step: a direction within the domain, a line search, and the curvature that both gradients show."""
    sets = _Sets(domain)
    direction = sets.direction(search.x, search.gradient, search.steps)
    promise = -optax.tree.vdot(search.gradient, direction)
    rounding = jnp.finfo(search.value.dtype).eps
    ceiling = jnp.max(search.recent) + 2 * rounding * jnp.abs(search.value)

    def is_too_long(carry: Any) -> jax.Array:
        length, (_, value, *_), tries = carry
        fine = value <= ceiling - _SUFFICIENT * length * promise
        return (tries == 0) | (~fine & (tries < _SHORTENINGS))

    def shorten(carry: Any) -> Any:
        length, (_, value, *_), tries = carry
        # The bottom of the parabola through the value, its slope and the new value; at most a half, at least a tenth.
        bottom = length * promise / (2 * (value - search.value + length * promise))
        shorter = length * jnp.clip(jnp.where(jnp.isfinite(bottom), bottom, 0.1), 0.1, 0.5)
        length = jnp.where(tries == 0, length, shorter)
        x = jax.tree.map(lambda leaf, by: leaf + length.astype(leaf.dtype) * by, search.x, direction)
        return length, (x, *evaluate(x, search.memory)), tries + 1

    tried = (search.x, search.value, search.gradient, search.memory)
    start = (jnp.ones_like(search.value), tried, jnp.zeros((), jnp.int32))
    _, (x, value, gradient, memory), tries = jax.lax.while_loop(is_too_long, shorten, start)
    stuck = (tries >= _SHORTENINGS) | ~jnp.isfinite(value)
    moved = optax.tree.sub(x, search.x)
    gain = search.gain - 0.5 * optax.tree.vdot(optax.tree.add(gradient, search.gradient), moved)
    inputs = (*map(sets.parts, (x, search.x, gradient, search.gradient)), search.steps)
    small = promise <= _TOLERANCE * jnp.maximum(gain, 0) + 0.01 * rounding * jnp.abs(value)
    first = jnp.isinf(search.value)
    after = Search(
        x=x,
        value=value,
        gradient=gradient,
        memory=memory,
        steps=tuple(_curvature_step(*parts) for parts in zip(*inputs, strict=True)),
        recent=jnp.where(first, value, jnp.roll(search.recent, 1).at[0].set(value)),
        gain=gain,
        idle=jnp.where(small & ~first, search.idle + 1, 0),
        stuck=stuck,
    )
    return jax.tree.map(lambda new, old: jnp.where(stuck, old, new), after, search._replace(stuck=stuck))


def minimise(evaluate: Evaluate, domain: Domain, x: Tree, memory: Tree, steps: int) -> Search:
    """Search until done, for at most so many steps."""

    def goes_on(carry: tuple[jax.Array, Search]) -> jax.Array:
        taken, search = carry
        return (taken < steps) & ~search.done

    def further(carry: tuple[jax.Array, Search]) -> tuple[jax.Array, Search]:
        return carry[0] + 1, step(evaluate, domain, carry[1])

    start = (jnp.zeros((), jnp.int32), begin(domain, x, memory))
    return jax.lax.while_loop(goes_on, further, start)[1]


class _Sets:
    """A domain as a list of sets, and points as lists of the parts that lie in them."""

    def __init__(self, domain: Domain) -> None:
        self.sets: list[Any]
        self.structure: Any
        self.sets, self.structure = jax.tree.flatten(domain)

    def parts(self, point: Tree) -> list[Tree]:
        return self.structure.flatten_up_to(point)

    def direction(self, x: Tree, gradient: Tree, steps: tuple[jax.Array, ...]) -> Tree:
        """From x to the projection of x - alpha * gradient, set by set."""

        def part(convex_set: Any, point: Tree, slope: Tree, alpha: jax.Array) -> Tree:
            target = jax.tree.map(lambda leaf, by: leaf - alpha.astype(leaf.dtype) * by, point, slope)
            return optax.tree.sub(convex_set.project(target), point)

        inputs = zip(self.sets, self.parts(x), self.parts(gradient), steps, strict=True)
        return self.structure.unflatten([part(*each) for each in inputs])


def _first(part: Tree, slope: Tree) -> jax.Array:
    size = optax.tree.norm(part)
    return _FIRST * jnp.where(size > 0, size, 1) / jnp.maximum(optax.tree.norm(slope), jnp.finfo(size.dtype).tiny)


def _curvature_step(new: Tree, old: Tree, new_slope: Tree, old_slope: Tree, before: jax.Array) -> jax.Array:
    """The inverse curvature along the last move: the longer estimate, or the shorter where the two disagree."""
    moved, turned = optax.tree.sub(new, old), optax.tree.sub(new_slope, old_slope)
    square, product = optax.tree.vdot(moved, moved), optax.tree.vdot(moved, turned)
    long = square / product
    short = product / optax.tree.vdot(turned, turned)
    alpha = jnp.where(short < 0.5 * long, short, long)
    # Along a direction in which the loss is not convex, the next step is longer; where nothing moved, a first one.
    alpha = jnp.where((product > 0) & jnp.isfinite(alpha), alpha, 10 * before)
    return jnp.where(square > 0, alpha, _first(new, new_slope)).astype(before.dtype)
