"""How hyperparameters move: post-processing of released hypergradients, by the set that they live in.

Privacy noise is known, and so is how far an average over records strays by chance. A step that normalises its gradient
would blow both up to full size wherever there is nothing to learn. The rules below therefore act on what rises above
them:

* weights on a simplex (`CappedWeights`): evidence against each weight is added up over the run, and a weight falls
  exponentially in the part of it that exceeds what noise and chance explain. Weights never rise: those against which
  there is no evidence stay *equal*, where gradient steps would let them drift apart.
* vectors in a ball (`RoundSteps`), such as a feature map: coordinates mean nothing by themselves there, so steps follow
  the mean gradient.
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

from dpbilevel.constraints import Ball, ConvexSet, NonNegative, Simplex

Tree = Any
State = Any

_MARGIN = 1.0  # standard deviations beyond the largest of K that noise and chance would show
_SHARPNESS = 3.0  # how fast a weight falls in the evidence against it, in standard deviations at the end of the run
_SETTLING = 0.1  # of the steps, before hyperparameters move at full length
_STEP = 0.15  # of other coordinates, falling linearly to zero: 200 steps can move one by fifteen
_ROUND_STEP = 0.1  # of a ball's radius, falling linearly to zero, where gradients agree
_TURN = 0.3  # of a step's length, where its direction turns

# Pairs: without noise, and where noise rules the model's gradients.
_LARGEST_STEP = (0.05, 0.2)  # of a weight's logarithm, falling linearly to zero: faster ones leave the model behind
_FAINT = (0.0, 0.6)  # a vote up to this size is not followed by its own coordinate
_RECOVERY = (1.02, 1.1)  # of a step's length, while its direction stays: turns by noise are soon forgotten
_MEMORY = (0.9, 0.95)  # of running sizes and means
_UNSETTLED = 0.1  # noise on the model's gradient, against what one record may add, from which on noise rules

_SMALLEST = 1e-6  # of a non-negative number: zero could never be left in logarithms


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Public numbers that a rule needs.

    Args:
        steps: T.
        noise: standard deviation of the noise on each coordinate of the gradient, 0 where it is free.
        clip: largest norm of one record's part of the gradient.
        records: how many records are averaged.
        unsettled: norm of the noise on gradients of the model, against what one record may add: it reaches the
            hypergradient through the model and the difference, even where the hypergradient itself is free.
    """

    steps: int
    noise: float
    clip: float
    records: int
    unsettled: float

    def between(self, pair: tuple[float, float]) -> float:
        """A setting between its values without noise and where noise rules."""
        without, ruled = pair
        return without + (ruled - without) / math.hypot(1, _UNSETTLED / max(self.unsettled, 1e-12))


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
        memory = around.between(_MEMORY)
        size = memory * state["size"] + (1 - memory) * jnp.mean(excess**2)
        # Of the largest change of a logarithm in one step, and of noise that the whole run would add up.
        noise = self.total * around.noise
        pace = around.between(_LARGEST_STEP) * schedule(step, around.steps)
        now = jnp.sqrt(size / (1 - memory**time)) + 1e-12
        # Noise turns gradients all the time: only turns of what is signal for the most part count.
        signal = jnp.maximum(0, 1 - 2 * (noise / now) ** 2)
        mean = memory * state["mean"] + (1 - memory) * excess
        damping = _damped(state["damping"], state["mean"], mean, around.between(_RECOVERY), signal)
        steepest = jnp.max(jnp.abs(mean)) / (1 - memory**time) + 1e-12
        unit = jnp.maximum(noise * math.sqrt(around.steps) / _SHARPNESS, steepest / pace) / damping
        # An average over the records of one weight (about n/K of them) strays by chance, the same way in every step;
        # what lies between -C and C has a standard deviation of at most C (Popoviciu).
        chance = self.total * around.clip / math.sqrt(flat.size * around.records)
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
        memory, recovery = self.around.between(_MEMORY), self.around.between(_RECOVERY)
        started = 1 - memory ** (step + 1.0)
        size = memory * state["size"] + (1 - memory) * slope**2
        mean = memory * state["mean"] + (1 - memory) * slope
        square = size / started + 1e-24
        signal = jnp.maximum(0, 1 - self.around.noise**2 / square)
        vote = signal * mean / started / jnp.sqrt(square)  # between -1 and 1, whatever the gradient's size
        common = jnp.mean(vote)
        damping = _damped(state["damping"], state["mean"], mean, recovery)
        common_damping = _damped(state["common damping"], state["vote"], common, recovery)
        least = self.around.between(_FAINT)
        faint = (least / jnp.maximum(jnp.abs(vote), least + 1e-12)) ** 2
        own = (1 - faint) / (1 - least**2)  # as in Stein's shrinkage: nothing of a faint vote, all of a unanimous one
        by = -_STEP * schedule(step, self.around.steps) * (own * damping * vote + (1 - own) * common_damping * common)
        kept = {"size": size, "mean": mean, "vote": common, "damping": damping, "common damping": common_damping}
        return kept, (leaf * jnp.exp(by) if self.logarithmic else leaf + by).astype(leaf.dtype)


@dataclass(frozen=True)
class RoundSteps:
    """Steps along the mean gradient, whatever the coordinates are: a ball knows no directions of its own."""

    radius: float
    around: Surroundings

    def start(self, x: Tree) -> State:
        flat, _ = ravel_pytree(x)
        return {"mean": jnp.zeros_like(flat), "size": jnp.zeros((), flat.dtype)}

    def move(self, state: State, x: Tree, gradient: Tree, step: jax.Array) -> tuple[State, Tree]:
        flat, unravel = ravel_pytree(x)
        slope, _ = ravel_pytree(gradient)
        memory = self.around.between(_MEMORY)
        started = 1 - memory ** (step + 1.0)
        mean = memory * state["mean"] + (1 - memory) * slope
        size = memory * state["size"] + (1 - memory) * jnp.sum(slope**2)
        # Gradients that agree make a full step, those that cancel each other a short one.
        direction = mean / started / (jnp.sqrt(size / started) + 1e-12)
        by = _ROUND_STEP * self.radius * schedule(step, self.around.steps) * direction
        return {"mean": mean, "size": size}, unravel((flat - by).astype(flat.dtype))


Rule = CappedWeights | CommonSteps | RoundSteps


def rule_for(convex_set: ConvexSet, around: Surroundings) -> Rule:
    """The rule for hyperparameters in a set."""
    if isinstance(convex_set, Simplex):
        return CappedWeights(convex_set.total, around)
    if isinstance(convex_set, Ball):
        return RoundSteps(convex_set.radius, around)
    return CommonSteps(isinstance(convex_set, NonNegative), around)


def unit_of(convex_set: ConvexSet, x: Tree) -> float:
    """The natural size of a coordinate: 1/K on a simplex of K weights, where a record's slope is K times its loss.

    On a ball it is three: a record's slope in a feature map is the product of a residual, a row and a head, and well
    below what its loss differs by.
    """
    if isinstance(convex_set, Ball):
        return 3.0
    if isinstance(convex_set, Simplex):
        return convex_set.total / sum(leaf.size for leaf in jax.tree.leaves(x))
    return 1.0


def schedule(step: jax.Array, steps: int) -> jax.Array:
    """Rises while model and difference settle, in the first tenth of the run, then falls linearly to zero."""
    return jnp.minimum((step + 1) / (_SETTLING * steps), 1.0) * (1 - step / steps)


def _damped(
    damping: jax.Array, before: jax.Array, now: jax.Array, recovery: float, signal: jax.Array | float = 1.0
) -> jax.Array:
    """Steps of one size swing around a solution, the more so as gradients lag behind: each turn shortens them."""
    turned = before * now < 0
    return jnp.where(turned, damping * _TURN**signal, jnp.minimum(damping * recovery, 1.0))
