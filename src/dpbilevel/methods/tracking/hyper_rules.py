"""The two rules by which hyperparameters move, with steps of distance over gradients: what noise explains is not done.

*By gain* (`move_by_gain`): vectors in a `Ball` or another set in which coordinates mean nothing by themselves, and
arrays of up to three coordinates in a `Box`, with `NonNegative` or without a set, each with its own length of step. The
next hypergradient G, whose noise is new, measures along the last step s a gain of -G s. Gains add up, and so does their
noise: in variance that of single passes (measured by second differences of successive hypergradients), in standard
deviation that of y and d, which lasts from pass to pass. As long as noise explains the sum, x stays where it is, while
steps that are not made go on being measured.

*By path* (`move_by_path`): many coordinates that have something in common. A path takes all steps, the noise of each
adds up along it (that of y and d for as long as it lasts), and x is the path with what noise explains of its distance
from the start shrunk away (James and Stein). Coordinates of an array that show nothing of their own follow their common
mean. On a `Simplex` the path is in logarithms: weights rise and fall. They are *equal* where noise and chance explain
the path as a whole, and shrunk to their mean where these explain a part of how they differ.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpbilevel.methods.tracking.hyper_groups import Group
from dpbilevel.methods.tracking.lower_steps import most_of_noise

State = dict[str, Any]

_WEIGHTS = 1.0  # the first distance of weights: they have a unit of their own, a factor of e
_FARTHEST = 3.0  # distance of weights that is taken for a measure of how far to go: a twentieth is nearly nothing
_FOLLOWING = 0.3  # of the way to the path's shrunk point, in one step: jumps of weights look like noise
GROWTH = 0.3  # of the distance so far, in one step
_LEAST_WEIGHT = 1e-9  # of a simplex, so that weights can return
_DIFFERENT = 1 + math.sqrt(2)  # square of a difference over its variance, up to which it is noise: a deviation beyond
_PLAIN = 0.25  # noise over a square, from which on downwards nothing is shrunk
_TINY = 1e-30


class Estimate(NamedTuple):
    """What is known of a group's hypergradient: the last one, the mean of ten, and the variances of noise."""

    gradient: jax.Array
    mean: jax.Array
    noise: jax.Array  # of single passes, in the last one
    mean_noise: jax.Array  # of single passes, in the mean
    persistent_noise: jax.Array  # of y and d
    rate: jax.Array  # by which y and d come nearer to their solutions in a pass, and forget their noise


# ----------------------------------------------------------------------------------------------------------- by gain


def start_gain(group: Group, x: jax.Array) -> State:
    """Before the first step."""
    zeros = jnp.zeros(group.size, x.dtype)
    return {"reach": jnp.zeros((), x.dtype)} | dict.fromkeys(("total", "step", "gain", "variance", "astray"), zeros)


def move_by_gain(
    group: Group,
    rule: State,
    x: jax.Array,
    first: jax.Array,
    estimate: Estimate,
    length: jax.Array,
    distance: jax.Array,
) -> tuple[State, jax.Array]:
    """One step of separate coordinates, or along a vector."""
    separate = group.kind == "separate"
    # The last step, made or not, in the light of a hypergradient whose noise it knows nothing of.
    gain = rule["gain"] - estimate.gradient * rule["step"]
    variance = rule["variance"] + estimate.noise * rule["step"] ** 2
    drift = jnp.abs(rule["astray"])
    size, square, signal = _largest, estimate.mean**2, estimate.mean**2 - estimate.mean_noise
    if separate:
        evidence = _evidence(gain, variance + drift**2)
    else:
        # Steps point along noise that lasts: in the gain of a vector it adds up over coordinates too.
        size, square, signal = _norm, jnp.sum(square), jnp.sum(signal)
        evidence = _evidence(jnp.sum(gain), jnp.sum(variance) + jnp.sum(drift) ** 2)
    distance = jnp.where(rule["reach"] == 0, distance, rule["reach"])
    along = estimate.mean / jnp.maximum(jnp.sqrt(rule["total"] + square), _TINY)
    total = rule["total"] + evidence * jnp.maximum(signal, 0)  # of steps that are made, without noise
    most = jnp.minimum(GROWTH, estimate.rate)  # as fast as y can follow
    growth = jnp.minimum(1.0, most / jnp.maximum(jnp.abs(along) if separate else size(along), _TINY))
    pace = length * jnp.maximum(distance, size(x - first)) * growth
    step = group.project(x - pace * along) - x  # what leads out of the set is no step
    drift = rule["astray"] + jnp.sqrt(estimate.persistent_noise) * step
    new = {"reach": distance, "total": total, "step": step, "gain": gain, "variance": variance, "astray": drift}
    return new, x + evidence * step


def _evidence(gain: jax.Array, variance: jax.Array) -> jax.Array:
    """How much of a gain noise does not explain: nothing up to two standard deviations, all of it from four on."""
    return jnp.where(gain > 0, _beyond_noise(gain**2, variance, 1), 0.0)


def _largest(values: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(values))


def _norm(values: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(values**2))


# ----------------------------------------------------------------------------------------------------------- by path


def start_path(group: Group, x: jax.Array) -> State:
    """Before the first step."""
    nothing, path = jnp.zeros((), x.dtype), x[group.place]
    zeros = jnp.zeros_like(path)
    if group.kind == "weights":
        return {"path": _logarithms(group, path), "total": nothing, "variance": zeros, "steepest": nothing}
    return {"path": path, "total": zeros, "variance": zeros, "reach": nothing}


def _logarithms(group: Group, x: jax.Array) -> jax.Array:
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
) -> tuple[State, jax.Array]:
    """One step of a path, and x at what neither noise nor chance explains of it."""
    weights, mean = group.kind == "weights", estimate.mean
    if weights:
        first, mean = _logarithms(group, first), mean - jnp.sum(x / group.total * mean)
    total = rule["total"] + (jnp.mean(mean**2) if weights else mean**2)
    scale = jnp.maximum(jnp.sqrt(total), _TINY)
    far = _largest(rule["path"] - first)
    if weights:
        far = jnp.clip(far, _WEIGHTS, _FARTHEST)
    else:
        distance = jnp.where(rule["reach"] == 0, distance, rule["reach"])
        far = jnp.maximum(far, distance)
    # No step is longer than what y can follow: a part of the distance so far, and of what moves y by its own size.
    most = GROWTH * jnp.minimum(far, jnp.inf if weights else natural)
    pace = length * jnp.minimum(far, most / jnp.maximum(_largest(mean / scale), _TINY)) / scale
    pace = jnp.where(total > 0, pace, 0.0)  # before the first slope there is no step, and no noise of it
    path = rule["path"] - pace * mean
    new = {"total": total}
    if weights:
        path = jnp.maximum(path - jnp.max(path), math.log(_LEAST_WEIGHT))
        path = path - jnp.mean(path) + jnp.mean(first)
        new["variance"] = rule["variance"] + pace**2 * estimate.noise
        # Slopes that the luck of records explains where they are steepest do not part weights.
        new["steepest"] = jnp.maximum(rule["steepest"], jnp.mean(mean**2) - jnp.mean(estimate.mean_noise))
        change = jnp.mean((path - first) ** 2)
        strayed = new["variance"] + sampling_variance / group.size / jnp.maximum(new["steepest"], _TINY) * change
        # As a whole, and then each against the mean of what counts: those that differ little from it are nearly equal.
        apart = path - first - jnp.sum(x / group.total * (path - first))
        own = jnp.maximum(1 - _DIFFERENT * strayed / jnp.maximum(apart**2, _TINY), 0.0)
        here, shrunk = _logarithms(group, x), _beyond_noise(change, jnp.mean(strayed), group.size) * own * apart
        to = group.total * jax.nn.softmax(here + _FOLLOWING * (first + shrunk - here))
    else:
        path = group.project(path)
        moved = jnp.abs(path - rule["path"]) / jnp.maximum(jnp.abs(pace * mean), _TINY)
        free = jnp.clip(moved, 0.0, 1.0)  # at an edge noise stops
        noise = (
            estimate.noise + estimate.persistent_noise / estimate.rate
        )  # what y and d have of it lasts until they forget it
        new |= {"variance": rule["variance"] + (free * pace) ** 2 * noise, "reach": distance}
        to = first + _shrunk(path - first, new["variance"])
    return new | {"path": path}, to


def _shrunk(change: jax.Array, variance: jax.Array) -> jax.Array:
    """What of the changes of many coordinates noise does not explain.

    Each is shrunk to their common mean, by what their differences leave unexplained (DerSimonian and Laird 1986), and
    the mean to zero.
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
    kept = common * _beyond_noise(common**2, jnp.sum(weight**2 * noise), 1)
    return kept + _firm(spread / (spread + noise)) * (change - common)


def _beyond_noise(square: jax.Array, noise: jax.Array, number: int) -> jax.Array:
    """James and Stein's factor for a mean square of some coordinates."""
    return _firm(1 - most_of_noise(number) * noise / jnp.maximum(square, _TINY))


def _firm(factor: jax.Array) -> jax.Array:
    """A factor of shrinkage that leaves alone what is plain (firm shrinkage, Gao and Bruce 1997): edges are reached."""
    return jnp.clip(factor / (1 - _PLAIN), 0.0, 1.0)
