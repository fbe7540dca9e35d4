"""How hyperparameters move: post-processing of released hypergradients, by the set that they live in.

A path follows the mean of the last ten hypergradients, with lengths of distance over gradients (DoG, Ivgi, Hinder and
Carmon 2023): the largest distance from the start so far, over the root of all squared gradients. They need no unit. The
first distance is a twentieth of what would move the model by its own size.

x itself is the path with its noise taken out: the noise of each step is measured (second differences of successive
hypergradients have all its sources in them, those of y and d too), adds up along the path, and what of the change since
the start it explains is shrunk away (James and Stein). Where there is nothing to learn x stays where it started; where
there is, the path goes on until x is where hypergradients vanish.

* in a `Box`, with `NonNegative` and without a set, each coordinate has its own length of step, and coordinates of one
  array that show nothing of their own follow their common mean;
* on a `Simplex` the path is in logarithms: weights rise and fall, and stay *equal* where their slopes do not differ by
  more than noise and chance;
* in a `Ball`, and in any other set, coordinates mean nothing by themselves: steps follow the vector.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpbilevel.constraints import Box, Everything, NonNegative, Simplex

Tree = Any
State = Any

_MEMORY = 0.9  # of mean, size and noise of hypergradients: ten passes
_FIRST = 0.05  # of the natural length
_WEIGHTS = 1.0  # the first distance of weights: they have a unit of their own, a factor of e
_FARTHEST = 3.0  # distance of weights that is taken for a measure of how far to go: a twentieth is nearly nothing
_FOLLOWING = 0.3  # of the way to the path's shrunk point, in one step: jumps of weights look like noise
_GROWTH = 0.3  # of the distance so far, in one step
_LEAST_WEIGHT = 1e-9  # of a simplex, so that weights can return
_MARGIN = 2.0  # standard deviations beyond what noise shows on average that are still noise
_PLAIN = 0.25  # noise over a square, from which on downwards nothing is shrunk
_BY_GROUP = ("path", "reach", "total", "variance", "steepest")
_TINY = 1e-30


@dataclass(frozen=True)
class Group:
    """Coordinates of x that share a distance.

    Args:
        place: in the flat x.
        kind: "weights" of a simplex, "separate" coordinates, or a "round" set.
        total: of the weights.
    """

    place: slice
    kind: str
    total: float = 1.0
    project: Any = None

    @property
    def size(self) -> int:
        """How many coordinates."""
        return self.place.stop - self.place.start


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

        found.append(Group(slice(first, first + flat.size), kind, getattr(convex_set, "total", 1.0), project))
        first += flat.size

    def of_set(convex_set: Any, part: Tree) -> None:
        if isinstance(convex_set, Box | NonNegative | Everything):
            for leaf in jax.tree.leaves(part):
                add(convex_set, leaf, "separate")
        else:
            add(convex_set, part, "weights" if isinstance(convex_set, Simplex) else "round")

    jax.tree.map(of_set, domain, x)
    return tuple(found)


def start(found: tuple[Group, ...], x: jax.Array) -> State:
    """Before the first hypergradient."""
    zero, nothing = jnp.zeros_like(x), jnp.zeros((), x.dtype)
    return {
        "mean": zero,
        "square": zero,
        "noise": zero,
        "last": zero,
        "before": zero,
        "number": nothing,
        "first": x,
        "path": [_logarithms(group, x[group.place]) for group in found],
        "reach": [nothing for _ in found],
        "total": [jnp.zeros(group.size if group.kind == "separate" else (), x.dtype) for group in found],
        "variance": [zero[group.place] for group in found],
        "steepest": [nothing for _ in found],
    }


def _logarithms(group: Group, x: jax.Array) -> jax.Array:
    return jnp.log(jnp.maximum(x / group.total, _LEAST_WEIGHT)) if group.kind == "weights" else x


def move(
    found: tuple[Group, ...],
    state: State,
    x: jax.Array,
    gradient: jax.Array,
    *,
    natural: list[jax.Array],
    length: jax.Array,
    chance: float,
    listening: Any,
) -> tuple[State, jax.Array]:
    """One step, before the projection.

    Args:
        natural: for each group, the distance that would move the model by its own size.
        length: of the step, against that of DoG: evidence, schedule; zero before x may move.
        chance: variance by which a mean over records strays, on each coordinate of a simplex.
        listening: whether this pass has a hypergradient at all.
    """
    number = state["number"] + listening
    mean = _MEMORY * state["mean"] + (1 - _MEMORY) * gradient
    square = _MEMORY * state["square"] + (1 - _MEMORY) * gradient**2
    # Second differences of independent noise have six times its variance, and none of a trend.
    change = (gradient - 2 * state["last"] + state["before"]) ** 2 / 6
    noise = jnp.where(number > 2, _MEMORY * state["noise"] + (1 - _MEMORY) * change, state["noise"])
    new = {"mean": mean, "square": square, "noise": noise, "last": gradient, "before": state["last"]}
    kept = {name: jnp.where(listening, value, state[name]).astype(x.dtype) for name, value in new.items()}
    started, differed = (jnp.maximum(1 - _MEMORY**passes, _TINY) for passes in (number, number - 2))
    mean = kept["mean"] / started
    noise = jnp.where(number > 2, kept["noise"] / differed, kept["square"] / started)
    moving = listening & (length > 0)
    parts, new = [], {name: [] for name in _BY_GROUP}
    for index, group in enumerate(found):
        at, (path, reach, total, variance, steepest) = group.place, (state[name][index] for name in _BY_GROUP)
        slope, first, unit = mean[at], state["first"][at], natural[index]
        if group.kind == "weights":
            share = x[at] / group.total
            slope = slope - jnp.sum(share * slope)
            first, unit = _logarithms(group, first), jnp.asarray(_WEIGHTS / _FIRST)
        square = (
            slope**2 if group.kind == "separate" else jnp.mean(slope**2) * (group.size if group.kind == "round" else 1)
        )
        total = jnp.where(moving, total + square, total)
        reach = jnp.where(moving & (reach == 0), _FIRST * unit, reach)
        by = slope / jnp.maximum(jnp.sqrt(total), _TINY)
        longest = jnp.sqrt(jnp.sum(by**2)) if group.kind == "round" else jnp.max(jnp.abs(by))
        far = path - first
        far = jnp.sqrt(jnp.sum(far**2)) if group.kind == "round" else jnp.max(jnp.abs(far))
        far = jnp.minimum(far, _FARTHEST) if group.kind == "weights" else far
        pace = length * jnp.maximum(reach, far) * jnp.minimum(1.0, _GROWTH / jnp.maximum(longest, _TINY))
        pace = jnp.where(moving, pace, 0.0) / jnp.maximum(jnp.sqrt(total), _TINY)
        before, by = path, pace * slope
        path = path - by
        if group.kind == "weights":
            path = jnp.maximum(path - jnp.max(path), math.log(_LEAST_WEIGHT))
            path = path - jnp.mean(path) + jnp.mean(first)
            free = jnp.ones(())
        else:
            path = group.project(path)
            free = jnp.clip(
                jnp.abs(path - before) / jnp.maximum(jnp.abs(by), _TINY), 0.0, 1.0
            )  # at an edge noise stops
        variance = variance + (free * pace) ** 2 * noise[at]
        # Slopes that the luck of records explains where they are steepest do not part weights.
        settled = (1 - _MEMORY) / (1 + _MEMORY) * jnp.mean(noise[at])
        steepest = jnp.where(moving, jnp.maximum(steepest, jnp.mean(slope**2) - settled), steepest)
        luck = chance / group.size / jnp.maximum(steepest, _TINY) if group.kind == "weights" else 0.0
        strayed = variance + luck * jnp.mean((path - first) ** 2)
        moved = first + _shrunk(group, path - first, strayed)
        if group.kind == "weights":
            here = _logarithms(group, x[at])
            moved = here + _FOLLOWING * (moved - here)
        parts.append((group.total * jax.nn.softmax(moved) if group.kind == "weights" else moved).astype(x.dtype))
        for name, value in zip(_BY_GROUP, (path, reach, total, variance, steepest), strict=True):
            new[name].append(value.astype(x.dtype))
    return state | kept | new | {"number": number.astype(x.dtype)}, jnp.where(moving, jnp.concatenate(parts), x)


def _shrunk(group: Group, change: jax.Array, variance: jax.Array) -> jax.Array:
    """What of a change noise does not explain.

    In separate coordinates each is shrunk to their common mean, by what their differences leave unexplained
    (DerSimonian and Laird 1986), and the mean to zero; elsewhere the change is shrunk to zero as a whole.
    """
    if group.kind != "separate" or group.size == 1:
        return change * _beyond_noise(jnp.mean(change**2), jnp.mean(variance), group.size)
    noise = jnp.maximum(variance, _TINY + 1e-12 * jnp.mean(change**2))
    weight = jnp.min(noise) / noise
    total = jnp.sum(weight)
    mean = jnp.sum(weight * change) / total
    differences = jnp.sum(weight * (change - mean) ** 2) - jnp.min(noise) * _most(group.size - 1) * (group.size - 1)
    spread = jnp.maximum(0.0, differences) / (total - jnp.sum(weight**2) / total)
    weight = 1 / (spread + noise)
    weight = weight / jnp.sum(weight)
    common = jnp.sum(weight * change)
    kept = common * _beyond_noise(common**2, jnp.sum(weight**2 * noise), 1)
    return kept + _firm(spread / (spread + noise)) * (change - common)


def _most(number: int) -> float:
    """How large the mean square of some noises is at most, against their variance: two standard deviations more."""
    return 1 + _MARGIN * math.sqrt(2 / number)


def _beyond_noise(square: jax.Array, noise: jax.Array, number: int) -> jax.Array:
    """James and Stein's factor for a mean square of some coordinates."""
    return _firm(1 - _most(number) * noise / jnp.maximum(square, _TINY))


def _firm(factor: jax.Array) -> jax.Array:
    """A factor of shrinkage that leaves alone what is plain (firm shrinkage, Gao and Bruce 1997): edges are reached."""
    return jnp.clip(factor / (1 - _PLAIN), 0.0, 1.0)
