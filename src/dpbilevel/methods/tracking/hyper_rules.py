"""The two step rules of hyperparameters. Both use distance over gradients, and move only by what exceeds the noise.

*By gain* (`move_by_gain`). For vectors in a `Ball` or another set whose coordinates depend on each other, and for
arrays of up to three coordinates in a `Box`, `NonNegative` or `Unconstrained`, each coordinate with its own learning
rate. The next hypergradient G has independent noise, and estimates the gain of the last step s as -G s. Gains are
summed. Their noise is summed too: the noise of single steps (estimated from second differences of hypergradients) adds
in variance; the noise of y and d persists, and adds in standard deviation. While noise can explain the sum, x does not
move, and the rule still measures the gain of the steps that it would have made.

*By path* (`move_by_path`). For many coordinates that inform each other. A path makes every step and accumulates the
noise of each (the noise of y and d for as long as it persists). x is the path after shrinkage of its distance from the
start (James and Stein), according to that noise. Coordinates of an array without significant differences follow their
common mean. On a `Simplex` the path consists of log weights. The weights are *equal* where noise and sampling error
explain the whole path, and shrunk towards their mean where these explain a part of their differences. What noise alone
will have added to the sum of squared gradients by the end of the run is in it from the start: otherwise the first steps
were the longest, before y and d are known, and their noise would hide what later hypergradients agree on.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpbilevel.methods.tracking.hyper_groups import Group
from dpbilevel.methods.tracking.lower_steps import most_of_noise

State = dict[str, Any]

_WEIGHTS = 1.0  # first distance of log weights: a factor of e
_FARTHEST = 3.0  # largest distance of log weights that sets the learning rate: a weight of 1/20 is nearly zero
_FOLLOWING = 0.3  # fraction of the way to the shrunk path, per step: jumps of the weights would look like noise
GROWTH = 0.3  # largest step relative to the distance so far
_LEAST_WEIGHT = 1e-9  # smallest weight of a simplex, from which it can still increase
_DIFFERENT = 1 + math.sqrt(2)  # squared difference over its variance that noise explains: one deviation above its mean
_PLAIN = 0.25  # ratio of noise to a square below which nothing is shrunk
_TINY = 1e-30


class Estimate(NamedTuple):
    """The hypergradient of a group: the last one, the running average, and the variances of their noise."""

    gradient: jax.Array
    mean: jax.Array
    noise: jax.Array  # variance of the independent noise in the last hypergradient
    mean_noise: jax.Array  # variance of the independent noise in the running average
    persistent_noise: jax.Array  # variance due to noise in y and d
    rate: jax.Array  # convergence rate of y and d, at which their noise decays too


# ----------------------------------------------------------------------------------------------------------- by gain


def start_gain(group: Group, x: jax.Array) -> State:
    """The state before the first step."""
    zeros = jnp.zeros(group.size, x.dtype)
    return {"reach": jnp.zeros((), x.dtype)} | dict.fromkeys(("total", "step", "gain", "variance", "drift"), zeros)


def move_by_gain(
    group: Group,
    rule: State,
    x: jax.Array,
    first: jax.Array,
    estimate: Estimate,
    length: jax.Array,
    distance: jax.Array,
) -> tuple[State, jax.Array]:
    """One step of separate coordinates, or of a vector."""
    separate = group.kind == "separate"
    # The gain of the last step, made or not. The noise of the new hypergradient is independent of that step.
    gain = rule["gain"] - estimate.gradient * rule["step"]
    variance = rule["variance"] + estimate.noise * rule["step"] ** 2
    drift = jnp.abs(rule["drift"])
    size, square, signal = _largest, estimate.mean**2, estimate.mean**2 - estimate.mean_noise
    if separate:
        evidence = _evidence(gain, variance + drift**2)
    else:
        # Steps correlate with persistent noise, which therefore adds up over the coordinates of a vector too.
        size, square, signal = _norm, jnp.sum(square), jnp.sum(signal)
        evidence = _evidence(jnp.sum(gain), jnp.sum(variance) + jnp.sum(drift) ** 2)
    distance = jnp.where(rule["reach"] == 0, distance, rule["reach"])
    along = estimate.mean / jnp.maximum(jnp.sqrt(rule["total"] + square), _TINY)
    total = rule["total"] + evidence * jnp.maximum(signal, 0)  # squared gradients of steps that are made, less noise
    largest = jnp.minimum(GROWTH, estimate.rate)  # no faster than y can follow
    growth = jnp.minimum(1.0, largest / jnp.maximum(jnp.abs(along) if separate else size(along), _TINY))
    pace = length * jnp.maximum(distance, size(x - first)) * growth
    step = group.project(x - pace * along) - x  # without the part that the projection removes
    drift = rule["drift"] + jnp.sqrt(estimate.persistent_noise) * step
    new = {"reach": distance, "total": total, "step": step, "gain": gain, "variance": variance, "drift": drift}
    return new, x + evidence * step


def _evidence(gain: jax.Array, variance: jax.Array) -> jax.Array:
    """Shrinkage factor of a gain: 0 up to about two standard deviations of its noise, 1 from about four."""
    return jnp.where(gain > 0, _beyond_noise(gain**2, variance, 1), 0.0)


def _largest(values: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(values))


def _norm(values: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(values**2))


# ----------------------------------------------------------------------------------------------------------- by path


def start_path(group: Group, x: jax.Array) -> State:
    """The state before the first step."""
    zero, path = jnp.zeros((), x.dtype), x[group.place]
    zeros = jnp.zeros_like(path)
    if group.kind == "weights":
        return {"path": _log_weights(group, path), "total": zero, "variance": zeros, "steepest": zero}
    return {"path": path, "total": zeros, "variance": zeros, "reach": zero}


def _log_weights(group: Group, x: jax.Array) -> jax.Array:
    return jnp.log(jnp.maximum(x / group.total, _LEAST_WEIGHT))


def move_by_path(
    group: Group,
    rule: State,
    x: jax.Array,
    first: jax.Array,
    estimate: Estimate,
    length: jax.Array,
    distance: jax.Array,
    natural: jax.Array,
    sampling_variance: float,
    steps: Any,
) -> tuple[State, jax.Array]:
    """One step of the path, and x after shrinkage of the path by noise and sampling error."""
    weights, mean = group.kind == "weights", estimate.mean
    if weights:
        first, mean = _log_weights(group, first), mean - jnp.sum(x / group.total * mean)
    total = rule["total"] + (jnp.mean(mean**2) if weights else mean**2)
    of_noise = steps * jnp.mean(estimate.mean_noise) if weights else 0.0
    scale = jnp.maximum(jnp.sqrt(total + of_noise), _TINY)
    far = _largest(rule["path"] - first)
    if weights:
        far = jnp.clip(far, _WEIGHTS, _FARTHEST)
    else:
        distance = jnp.where(rule["reach"] == 0, distance, rule["reach"])
        far = jnp.maximum(far, distance)
    # Steps are limited so that y can follow: to a fraction of the distance so far, and of the natural length.
    limit = GROWTH * jnp.minimum(far, jnp.inf if weights else natural)
    pace = length * jnp.minimum(far, limit / jnp.maximum(_largest(mean / scale), _TINY)) / scale
    pace = jnp.where(total > 0, pace, 0.0)  # no step, and no noise of a step, before the first gradient
    path = rule["path"] - pace * mean
    new = {"total": total}
    if weights:
        path = jnp.maximum(path - jnp.max(path), math.log(_LEAST_WEIGHT))
        path = path - jnp.mean(path) + jnp.mean(first)
        new["variance"] = rule["variance"] + pace**2 * estimate.noise
        # Where sampling error explains even the largest gradients, the weights stay equal.
        new["steepest"] = jnp.maximum(rule["steepest"], jnp.mean(mean**2) - jnp.mean(estimate.mean_noise))
        change = jnp.mean((path - first) ** 2)
        error = new["variance"] + sampling_variance / group.size / jnp.maximum(new["steepest"], _TINY) * change
        # Shrink the path as a whole, then each weight towards the weighted mean.
        offset = path - first - jnp.sum(x / group.total * (path - first))
        own = jnp.maximum(1 - _DIFFERENT * error / jnp.maximum(offset**2, _TINY), 0.0)
        current, shrunk = _log_weights(group, x), _beyond_noise(change, jnp.mean(error), group.size) * own * offset
        target = group.total * jax.nn.softmax(current + _FOLLOWING * (first + shrunk - current))
    else:
        path = group.project(path)
        moved = jnp.abs(path - rule["path"]) / jnp.maximum(jnp.abs(pace * mean), _TINY)
        free = jnp.clip(moved, 0.0, 1.0)  # on the boundary, the projection removes the noise too
        noise = estimate.noise + estimate.persistent_noise / estimate.rate  # persists for about 1/rate steps
        new |= {"variance": rule["variance"] + (free * pace) ** 2 * noise, "reach": distance}
        target = first + _shrink(path - first, new["variance"])
    return new | {"path": path}, target


def _shrink(change: jax.Array, variance: jax.Array) -> jax.Array:
    """Shrinkage of the changes of many coordinates with known noise variances.

    Each change is shrunk towards the common mean, with the variance between coordinates estimated as by DerSimonian and
    Laird (1986). The common mean is shrunk towards zero.
    """
    number = change.size
    noise = jnp.maximum(variance, _TINY + 1e-12 * jnp.mean(change**2))
    weight = jnp.min(noise) / noise
    total = jnp.sum(weight)
    mean = jnp.sum(weight * change) / total
    differences = jnp.sum(weight * (change - mean) ** 2) - jnp.min(noise) * most_of_noise(number - 1) * (number - 1)
    spread = jnp.maximum(0.0, differences) / (total - jnp.sum(weight**2) / total)
    weight = 1 / (spread + noise)
    weight = weight / jnp.sum(weight)
    common = jnp.sum(weight * change)
    centre = common * _beyond_noise(common**2, jnp.sum(weight**2 * noise), 1)
    return centre + _firm(spread / (spread + noise)) * (change - common)


def _beyond_noise(square: jax.Array, noise: jax.Array, number: int) -> jax.Array:
    """James-Stein shrinkage factor for the mean square of ``number`` coordinates."""
    return _firm(1 - most_of_noise(number) * noise / jnp.maximum(square, _TINY))


def _firm(factor: jax.Array) -> jax.Array:
    """Firm shrinkage (Gao and Bruce 1997): no shrinkage of clear signals, so that x can reach the boundary."""
    return jnp.clip(factor / (1 - _PLAIN), 0.0, 1.0)
