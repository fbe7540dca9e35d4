"""How hyperparameters move: post-processing of released hypergradients, by the set that they live in.

Steps follow the mean of the last ten hypergradients, with lengths of distance over gradients (DoG, Ivgi, Hinder and
Carmon 2023): the largest distance from the start so far, over the root of all squared gradients. They need no unit. The
first distance is a twentieth of what would move the model by its own size. What noise explains is not done
(`hyper_rules`).
"""

from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.methods.tracking.hyper_groups import Group
from dpbilevel.methods.tracking.hyper_rules import Estimate, move_by_gain, move_by_path, start_gain, start_path

State = Any

_DECAY = 0.9  # of mean and noise of hypergradients: ten passes
_FIRST = 0.05  # of the natural length
_SLOWEST = 0.01  # rate: noise of y and d lasts no longer than a hundred passes
_TINY = 1e-30


def start(found: tuple[Group, ...], x: jax.Array) -> State:
    """Before the first hypergradient."""
    zero, nothing = jnp.zeros_like(x), jnp.zeros((), x.dtype)
    return {
        "mean": zero,
        "noise": zero,
        "lasting": zero,
        "last": zero,
        "before": zero,
        "number": nothing,
        "first": x,
        "groups": [start_path(group, x) if group.follows_path else start_gain(group, x) for group in found],
    }


def move(
    found: tuple[Group, ...],
    state: State,
    x: jax.Array,
    gradient: jax.Array,
    *,
    natural: list[jax.Array],
    length: jax.Array,
    persistent_noise: jax.Array,
    rate: jax.Array,
    sampling_variance: float,
    has_hypergradient: Any,
) -> tuple[State, jax.Array]:
    """One step, inside the domain.

    Args:
        natural: for each group, the distance that would move the model by its own size.
        length: of the step, against that of DoG: evidence, schedule; zero before x may move.
        persistent_noise: variance of the noise that the hypergradient has from y and d, nearly the same in every pass.
        rate: by which y comes nearer to its solution in a step.
        sampling_variance: variance by which a mean over records strays, on each coordinate of a simplex.
        has_hypergradient: whether this pass has a hypergradient at all.
    """
    number = state["number"] + has_hypergradient
    # Second differences of independent noise have six times its variance, and none of a trend.
    change = (gradient - 2 * state["last"] + state["before"]) ** 2 / 6
    new = {
        "mean": _DECAY * state["mean"] + (1 - _DECAY) * gradient,
        "noise": jnp.where(number > 2, _DECAY * state["noise"] + (1 - _DECAY) * change, state["noise"]),
        "lasting": _DECAY * state["lasting"] + (1 - _DECAY) * persistent_noise,
        "last": gradient,
        "before": state["last"],
        "number": number,
    }
    kept = _chosen(has_hypergradient, new, {name: state[name] for name in new})
    started, differed = (jnp.maximum(1 - _DECAY**passes, _TINY) for passes in (number, number - 2))
    noise = jnp.where(number > 2, kept["noise"] / differed, gradient**2)
    rate = jnp.maximum(rate, _SLOWEST)
    averaged = (1 - _DECAY) / (1 + _DECAY)
    moving = has_hypergradient & (length > 0)
    parts, rules = [], []
    for group, rule, unit in zip(found, state["groups"], natural, strict=True):
        at = group.place
        mean, first = kept["mean"][at] / started, state["first"][at]
        estimate = Estimate(gradient[at], mean, noise[at], averaged * noise[at], kept["lasting"][at] / started, rate)
        distance = _FIRST * jnp.minimum(unit, group.width)
        if group.follows_path:
            new, part = move_by_path(group, rule, x[at], first, estimate, length, distance, unit, sampling_variance)
        else:
            new, part = move_by_gain(group, rule, x[at], first, estimate, length, distance)
        rules.append(_chosen(moving, new, rule))
        parts.append(part.astype(x.dtype))
    return state | kept | {"groups": rules}, jnp.where(moving, jnp.concatenate(parts), x)


def _chosen(condition: Any, yes: State, no: State) -> State:
    return jax.tree.map(lambda new, old: jnp.where(condition, new, old).astype(old.dtype), yes, no)
