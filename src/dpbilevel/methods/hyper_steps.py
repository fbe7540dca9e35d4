"""How hyperparameters move: post-processing of released hypergradients, by the set that they live in.

Privacy noise is known, and so is how far an average over records strays by chance. A step that normalises its gradient
would blow both up to full size wherever there is nothing to learn. The rules below therefore act on what rises above
them:

* weights on a simplex (`CappedWeights`): evidence against each weight is added up over the run, and a weight falls
  exponentially in the part of it that exceeds what noise and chance explain. Weights never rise: those against which
  there is no evidence stay *equal*, where gradient steps would let them drift apart.
* everything else (`CommonSteps`): each coordinate votes for a direction, its mean gradient over the gradient's size,
  follows it as far as it stands out of noise, and for the rest follows the mean vote of its array. The penalties of
  many columns then find their common scale as surely as a single penalty does. Steps are of one size, in logarithms
  for non-negative numbers, and the share of a gradient that is privacy noise does not vote.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpbilevel.constraints import ConvexSet, NonNegative, Simplex

Tree = Any
State = Any

_MARGIN = 1.0  # standard deviations beyond the largest of K that noise and chance would show
_SHARPNESS = 3.0  # how fast a weight falls in the evidence against it, in standard deviations at the end of the run
_SETTLING = 0.1  # of the steps, before hyperparameters move at full length
_LARGEST_STEP = 0.3  # of a weight's logarithm, falling linearly to zero, where noise is too small to set the pace
_STEP = 0.15  # of other coordinates, falling linearly to zero: 200 steps can move one by fifteen
_FAINT = 0.5  # a vote up to this size is not followed by its own coordinate: twice what noise alone shows
_TURN, _RECOVERY = 0.3, 1.02  # of a step's length, where its direction turns and where it does not
_MEMORY = 0.9  # of running sizes and means
_SMALLEST = 1e-6  # of a non-negative number: zero could never be left in logarithms


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Public numbers that a rule needs.

    Args:
        steps: T.
        noise: standard deviation of the noise on each coordinate of the gradient, 0 where it is free.
        clip: largest norm of one record's part of the gradient.
        records: how many records are averaged.
    """

    steps: int
    noise: float
    clip: float
    records: int


@dataclass(frozen=True)
class CappedWeights:
    """Dual averaging on a simplex with a threshold and a cap (see above)."""

    total: float
    around: Surroundings

    def start(self, x: Tree) -> State:
        flat, _ = ravel_pytree(x)
        zero = jnp.zeros_like(flat)
        evidence = {"evidence": zero, "noise": zero, "chance": zero}
        return evidence | {"size": jnp.zeros((), flat.dtype), "first": flat, "mean": zero, "damping": zero + 1}

    def move(self, state: State, x: Tree, gradient: Tree, step: jax.Array) -> tuple[State, Tree]:
        flat, unravel = ravel_pytree(x)
        slope = self.total * ravel_pytree(gradient)[0]
        around, share, time = self.around, flat / self.total, step + 1.0
        excess = slope - jnp.sum(share * slope)
        size = _running(state["size"], excess)
        # Of the largest change of a logarithm in one step, and of noise that the whole run would add up.
        noise = self.total * around.noise
        pace = _LARGEST_STEP * schedule(step, around.steps)
        now = _size(size, time)
        # Noise turns gradients all the time: only turns of what is signal for the most part count.
        signal = jnp.maximum(0, 1 - 2 * (noise / now) ** 2)
        mean = _MEMORY * state["mean"] + (1 - _MEMORY) * excess
        damping = _damped(state["damping"], state["mean"], mean, signal)
        beyond = jnp.sqrt(jnp.maximum(now**2 - noise**2, 0)) + 1e-12  # the size of what is not noise
        unit = jnp.maximum(noise * math.sqrt(around.steps) / _SHARPNESS, beyond / pace) / damping
        # An average over the records of one weight (about n/K of them) strays by chance, the same way in every step.
        chance = self.total * around.clip / (2 * math.sqrt(flat.size * around.records))
        noise_square, strayed = state["noise"] + (noise / unit) ** 2, state["chance"] + chance / unit
        threshold = math.sqrt(2 * math.log(max(flat.size, 2))) + _MARGIN
        explained = threshold * jnp.sqrt(noise_square + strayed**2)
        # Evidence *for* a weight is kept within the threshold: it is at its cap already, and must be able to fall.
        evidence = jnp.maximum(state["evidence"] + excess / unit, -explained)
        fallen = state["first"] * jnp.exp(-jnp.maximum(evidence - explained, 0))
        kept = {"evidence": evidence, "noise": noise_square, "chance": strayed}
        kept |= {"size": size, "mean": mean, "damping": damping}
        return state | kept, unravel((self.total * fallen / jnp.sum(fallen)).astype(flat.dtype))


@dataclass(frozen=True)
class CommonSteps:
    """Coordinates of one array move together, until one shows evidence of its own (see above)."""

    logarithmic: bool
    around: Surroundings

    def start(self, x: Tree) -> State:
        def leaf(part: jax.Array) -> State:
            zero = jnp.zeros_like(part)
            nothing = jnp.zeros((), part.dtype)
            return {"size": zero, "mean": zero, "vote": nothing, "damping": zero + 1, "common damping": nothing + 1}

        return [leaf(part) for part in jax.tree.leaves(x)]

    def move(self, state: State, x: Tree, gradient: Tree, step: jax.Array) -> tuple[State, Tree]:
        leaves, structure = jax.tree.flatten(x)
        pairs = zip(state, leaves, jax.tree.leaves(gradient), strict=True)
        states, moved = zip(*(self._move(kept, leaf, slope, step) for kept, leaf, slope in pairs), strict=True)
        return list(states), jax.tree.unflatten(structure, moved)

    def _move(self, state: State, leaf: jax.Array, slope: jax.Array, step: jax.Array) -> tuple[State, jax.Array]:
        if self.logarithmic:
            leaf = jnp.maximum(leaf, _SMALLEST)
            slope = leaf * slope
        started = 1 - _MEMORY ** (step + 1.0)
        size = _MEMORY * state["size"] + (1 - _MEMORY) * slope**2
        mean = _MEMORY * state["mean"] + (1 - _MEMORY) * slope
        square = size / started + 1e-24
        signal = jnp.maximum(0, 1 - self.around.noise**2 / square)
        vote = signal * mean / started / jnp.sqrt(square)  # between -1 and 1, whatever the gradient's size
        common = jnp.mean(vote)
        damping = _damped(state["damping"], state["mean"], mean)
        common_damping = _damped(state["common damping"], state["vote"], common)
        faint = (_FAINT / jnp.maximum(jnp.abs(vote), _FAINT)) ** 2
        own = (1 - faint) / (1 - _FAINT**2)  # as in Stein's shrinkage: nothing of a faint vote, all of a unanimous one
        by = -_STEP * schedule(step, self.around.steps) * (own * damping * vote + (1 - own) * common_damping * common)
        kept = {"size": size, "mean": mean, "vote": common, "damping": damping, "common damping": common_damping}
        return kept, (leaf * jnp.exp(by) if self.logarithmic else leaf + by).astype(leaf.dtype)


Rule = CappedWeights | CommonSteps


def rule_for(convex_set: ConvexSet, around: Surroundings) -> Rule:
    """The rule for hyperparameters in a set."""
    if isinstance(convex_set, Simplex):
        return CappedWeights(convex_set.total, around)
    return CommonSteps(isinstance(convex_set, NonNegative), around)


def unit_of(convex_set: ConvexSet, x: Tree) -> float:
    """The natural size of a coordinate: 1/K on a simplex of K weights, where a record's slope is K times its loss."""
    if isinstance(convex_set, Simplex):
        return convex_set.total / sum(leaf.size for leaf in jax.tree.leaves(x))
    return 1.0


def schedule(step: jax.Array, steps: int) -> jax.Array:
    """Rises while model and difference settle, in the first tenth of the run, then falls linearly to zero."""
    return jnp.minimum((step + 1) / (_SETTLING * steps), 1.0) * (1 - step / steps)


def _damped(damping: jax.Array, before: jax.Array, now: jax.Array, signal: Any = 1.0) -> jax.Array:
    """Steps of one size swing around a solution, the more so as gradients lag behind: each turn shortens them."""
    turned = before * now < 0
    return jnp.where(turned, damping * _TURN**signal, jnp.minimum(damping * _RECOVERY, 1.0))


def _running(size: jax.Array, gradient: jax.Array) -> jax.Array:
    return _MEMORY * size + (1 - _MEMORY) * jnp.mean(gradient**2)


def _size(running: jax.Array, time: jax.Array) -> jax.Array:
    return jnp.sqrt(running / (1 - _MEMORY**time)) + 1e-12
