"""How hyperparameters move: post-processing of released hypergradients, by the set that they live in.

Privacy noise is known, and so is how far an average over records strays by chance. A step that normalises its gradient
would blow both up to full size wherever there is nothing to learn. The rules below therefore act on what rises above
them:

* weights on a simplex (`CappedWeights`): evidence against each weight is added up over the run, and a weight falls
  exponentially in the part of it that exceeds what noise and chance explain. Weights never rise: those against which
  there is no evidence stay *equal*, where gradient steps would let them drift apart.
* everything else (`NormalisedSteps`): steps of one size, each shrunk by the share of its gradient that is not noise; in
  logarithms for non-negative numbers.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from dpbilevel.constraints import ConvexSet, NonNegative, Simplex

Tree = Any
State = Any

_THRESHOLD = 2.0  # standard deviations of noise and chance that are taken for nothing
_SHARPNESS = 3.0  # how fast a weight falls in the evidence against it, in standard deviations at the end of the run
_LARGEST_LOGARITHM_STEP = 0.15  # of one weight in one step, where noise is too small to set the pace
_STEP = 0.1  # of other coordinates, falling linearly to zero: the whole run can move one by steps/20
_MEMORY = 0.9  # of the running size of gradients
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
        return {"evidence": jnp.zeros_like(flat), "size": jnp.zeros((), flat.dtype), "first": flat}

    def move(self, state: State, x: Tree, gradient: Tree, step: jax.Array) -> tuple[State, Tree]:
        flat, unravel = ravel_pytree(x)
        slope = self.total * ravel_pytree(gradient)[0]
        around, share, time = self.around, flat / self.total, step + 1.0
        noise = self.total * around.noise
        # An average over the records of one weight (about n/K of them) strays by chance, the same way in every step.
        chance = self.total * around.clip / (2 * math.sqrt(flat.size * around.records))
        explained = _THRESHOLD * jnp.sqrt(time * noise**2 + (time * chance) ** 2)
        excess = slope - jnp.sum(share * slope)
        state = state | {"size": _running(state["size"], excess)}
        # Evidence *for* a weight is kept within the threshold: it is at its cap already, and must be able to fall.
        evidence = jnp.maximum(state["evidence"] + excess, -explained)
        pace = jnp.maximum(
            noise * math.sqrt(around.steps) / _SHARPNESS, _size(state["size"], time) / _LARGEST_LOGARITHM_STEP
        )
        fallen = state["first"] * jnp.exp(-jnp.maximum(evidence - explained, 0) / pace)
        weights = self.total * fallen / jnp.sum(fallen)
        return state | {"evidence": evidence}, unravel(weights.astype(flat.dtype))


@dataclass(frozen=True)
class NormalisedSteps:
    """Steps of one size in the direction of the gradient, shrunk by what is noise (see above)."""

    logarithmic: bool
    around: Surroundings

    def start(self, x: Tree) -> State:
        return {"size": jnp.zeros((), ravel_pytree(x)[0].dtype), "momentum": optax.tree.zeros_like(x)}

    def move(self, state: State, x: Tree, gradient: Tree, step: jax.Array) -> tuple[State, Tree]:
        time = step + 1.0
        if self.logarithmic:
            x = jax.tree.map(lambda leaf: jnp.maximum(leaf, _SMALLEST), x)
            gradient = jax.tree.map(jnp.multiply, x, gradient)
        size = _running(state["size"], ravel_pytree(gradient)[0])
        momentum = jax.tree.map(lambda m, g: _MEMORY * m + (1 - _MEMORY) * g, state["momentum"], gradient)
        now = _size(size, time)
        signal = jnp.maximum(0, 1 - (self.around.noise / now) ** 2)
        length = _STEP * (1 - step / self.around.steps) * signal / (now * (1 - _MEMORY**time))
        moved = jax.tree.map(lambda leaf, m: _shifted(leaf, -length * m, self.logarithmic), x, momentum)
        return {"size": size, "momentum": momentum}, moved


Rule = CappedWeights | NormalisedSteps


def rule_for(convex_set: ConvexSet, around: Surroundings) -> Rule:
    """The rule for hyperparameters in a set."""
    if isinstance(convex_set, Simplex):
        return CappedWeights(convex_set.total, around)
    return NormalisedSteps(isinstance(convex_set, NonNegative), around)


def unit_of(convex_set: ConvexSet, x: Tree) -> float:
    """The natural size of a coordinate: 1/K on a simplex of K weights, where a record's slope is K times its loss."""
    if isinstance(convex_set, Simplex):
        return convex_set.total / sum(leaf.size for leaf in jax.tree.leaves(x))
    return 1.0


def _running(size: jax.Array, gradient: jax.Array) -> jax.Array:
    return _MEMORY * size + (1 - _MEMORY) * jnp.mean(gradient**2)


def _size(running: jax.Array, time: jax.Array) -> jax.Array:
    return jnp.sqrt(running / (1 - _MEMORY**time)) + 1e-12


def _shifted(leaf: jax.Array, by: jax.Array, logarithmic: bool) -> jax.Array:
    return (leaf * jnp.exp(by) if logarithmic else leaf + by).astype(leaf.dtype)
