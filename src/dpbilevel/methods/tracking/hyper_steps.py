"""Steps of the hyperparameters: post-processing of released hypergradients, with a rule for each set of the domain.

Steps follow a running average of about ten hypergradients. The learning rate is distance over gradients (DoG; Ivgi,
Hinder and Carmon 2023): the largest distance from the start so far, divided by the root of the sum of squared
gradients. It is invariant to the scale of x and of the loss. The first distance is a twentieth of the natural length,
which changes the model by its own norm. Steps that noise alone can explain are not made (`hyper_rules`).
"""

from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.methods.tracking.hyper_groups import Group
from dpbilevel.methods.tracking.hyper_rules import Estimate, move_by_gain, move_by_path, start_gain, start_path

State = Any

_DECAY = 0.9  # decay of the running averages of hypergradients and their noise: ten steps
_FIRST = 0.05  # first distance relative to the natural length
_SLOWEST = 0.01  # smallest convergence rate: noise in y and d persists for at most a hundred steps
_TINY = 1e-30


def start(groups: tuple[Group, ...], x: jax.Array) -> State:
    """The state before the first hypergradient."""
    zeros, zero = jnp.zeros_like(x), jnp.zeros((), x.dtype)
    return {
        "mean": zeros,
        "noise": zeros,
        "persistent": zeros,
        "last": zeros,
        "before": zeros,
        "number": zero,
        "first": x,
        "groups": [start_path(group, x) if group.follows_path else start_gain(group, x) for group in groups],
    }


def move(
    groups: tuple[Group, ...],
    state: State,
    x: jax.Array,
    gradient: jax.Array,
    *,
    natural: list[jax.Array],
    length: jax.Array,
    persistent_noise: jax.Array,
    rate: jax.Array,
    sampling_variance: float,
    steps: Any,
    has_hypergradient: Any,
) -> tuple[State, jax.Array]:
    """One step; the new point lies in the domain.

    Args:
        groups: the groups of x.
        state: the state after the step before.
        x: the current point.
        gradient: the hypergradient at x.
        natural: natural length of each group, the distance that changes the model by its own norm.
        length: factor on the learning rate of DoG, from evidence and schedule; zero before x may move.
        persistent_noise: variance of the hypergradient due to noise in y and d, which hardly changes between steps.
        rate: convergence rate of y.
        sampling_variance: sampling variance of a mean over records, on each coordinate of a simplex.
        steps: number of steps of the run.
        has_hypergradient: whether this step has a new hypergradient.
    """
    number = state["number"] + has_hypergradient
    # Second differences of independent noise have six times its variance, and cancel a linear trend.
    change = (gradient - 2 * state["last"] + state["before"]) ** 2 / 6
    new = {
        "mean": _DECAY * state["mean"] + (1 - _DECAY) * gradient,
        "noise": jnp.where(number > 2, _DECAY * state["noise"] + (1 - _DECAY) * change, state["noise"]),
        "persistent": _DECAY * state["persistent"] + (1 - _DECAY) * persistent_noise,
        "last": gradient,
        "before": state["last"],
        "number": number,
    }
    averages = _select(has_hypergradient, new, {name: state[name] for name in new})
    # Corrections of the bias of the first running averages, as in Adam.
    of_mean, of_noise = (jnp.maximum(1 - _DECAY**passes, _TINY) for passes in (number, number - 2))
    noise = jnp.where(number > 2, averages["noise"] / of_noise, gradient**2)
    rate = jnp.maximum(rate, _SLOWEST)
    reduction = (1 - _DECAY) / (1 + _DECAY)  # of the variance, by a running average
    moving = has_hypergradient & (length > 0)
    parts, rules = [], []
    for group, rule, unit in zip(groups, state["groups"], natural, strict=True):
        at = group.place
        mean, first = averages["mean"][at] / of_mean, state["first"][at]
        persistent = averages["persistent"][at] / of_mean
        estimate = Estimate(gradient[at], mean, noise[at], reduction * noise[at], persistent, rate)
        distance = _FIRST * jnp.minimum(unit, group.width)
        if group.follows_path:
            of_run = sampling_variance, steps
            new, part = move_by_path(group, rule, x[at], first, estimate, length, distance, unit, *of_run)
        else:
            new, part = move_by_gain(group, rule, x[at], first, estimate, length, distance)
        rules.append(_select(moving, new, rule))
        parts.append(part.astype(x.dtype))
    return state | averages | {"groups": rules}, jnp.where(moving, jnp.concatenate(parts), x)


def _select(condition: Any, yes: State, no: State) -> State:
    return jax.tree.map(lambda new, old: jnp.where(condition, new, old).astype(old.dtype), yes, no)
