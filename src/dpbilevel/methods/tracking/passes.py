"""The per-record contribution to one step: several vectors in one release, each with an adaptive clip.

A record's vectors v_j are clipped to C_j and concatenated, (sqrt(s_j)/C_j v_j)_j, with shares s_j of mu^2 that sum to
one. One Gaussian on the concatenation gives each vector the same noise as separate releases with these shares of mu^2.

The contribution also holds a count per vector: whether its norm exceeds the estimated *median* norm. The clip is a
multiple of this median (Andrew et al. 2021 track a quantile of norms in the same way). A median can be tracked in both
directions, whereas a high quantile cannot follow norms that decrease.

Decreasing a clip is harmful where the clipping bias does not cancel. Take a common and a rare class. As the model
learns the common class, its gradients vanish. A clip that follows them makes all gradients equally small, and the model
unlearns the rare class. The clip of the model's gradients therefore has a *floor*, below which less noise is no gain.

Steps release different vectors at the same cost. The first steps *search*: they release only the counts, with all of
mu^2, and bisect sixteen decades of norms to find the scale of each clip. Most steps *track*. The last steps *validate*
the point that will be returned, by the change of each record's loss since the start: a few steps find the *scale* of
these changes, again with all of mu^2 for one count, and the others release their mean. Its clip is not tracked: where
upper records are few, a clip that follows noisy counts through the run may end far above the changes, and the noise of
their mean with it.

Privacy does not depend on any of this: the release clips the whole contribution to norm one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.foundation.structure import passing
from dpbilevel.privacy.outer import norm

Tree = Any
Clips = dict[str, dict[str, jax.Array]]  # for each vector: the logarithm of its median norm, and its update state

SEARCH, TRACK, SCALE, VALIDATE = range(4)  # the phase of a step
LOSS_CHANGE = "change of the loss"  # the vector that validation steps release
ABOVE = "above the median"
_COUNTS = 0.05  # share of mu^2 for the counts in a tracking step
_RANGE = math.log(1e8)  # the clip search covers this range on either side of the initial clip, in logarithms
_NARROWING = 0.6  # search interval ratio per step: above one half, so that a wrong turn due to noise can be undone
_DOUBT = 2.0  # standard deviations of noise that do not count as signal
_ENOUGH = 0.003  # acceptable noise over a run relative to the largest mean gradient: 1e-5 of the gain
_PACES = (0.25, 4.0)  # smallest and largest change of a log median in one step
_QUICKENING = 0.4  # increase of the log pace in a step whose records are all on the same side, as in the step before
_BALANCE = 0.01  # noise over a run relative to the clip at which the clip equals one median
_MOST_MEDIANS = 3.0
_TINY = 1e-30


@passing("noise_std", "multiples", "floor_noise", structure=("contributions", "dimensions", "floored"))
@dataclass(frozen=True, eq=False)
class Pass:
    """The vectors that the records of one level contribute.

    Args:
        contributions: (point, record) -> flat vectors by name, some of them outer products, or tuples of their parts.
        dimensions: dimension of each vector; one of them may be `LOSS_CHANGE`.
        noise_std: noise standard deviation of the release, for contributions of norm one; zero until calibrated.
        steps: uses of the release in the run.
        floored: the vector whose clip has a floor, at which its noise is small enough; None for none.
    """

    contributions: Callable[[Tree, Tree], dict[str, Any]]
    dimensions: Mapping[str, int]
    noise_std: float
    steps: int
    floored: str | None = None
    multiples: Mapping[str, float] = field(init=False)  # of the medians
    floor_noise: float = field(init=False)  # noise of the floored vector over the run, relative to its median

    def __post_init__(self) -> None:
        # Computed here, because compiled code is passed the results.
        object.__setattr__(self, "multiples", {name: self.multiple(name) for name in self.names})
        floor_noise = 0.0 if self.floored is None else self._run_noise(self.floored) * self.multiple(self.floored)
        object.__setattr__(self, "floor_noise", max(floor_noise, _TINY))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the vectors."""
        return tuple(self.dimensions)

    @property
    def share(self) -> float:
        """Share of mu^2 of each vector in a tracking step: equal for all vectors, with the rest for the counts."""
        return (1 - _COUNTS) / sum(name != LOSS_CHANGE for name in self.names)

    def _phase(self, point: Tree) -> jax.Array:
        # A level without a loss to validate keeps tracking.
        return point["phase"] if LOSS_CHANGE in self.names else jnp.minimum(point["phase"], TRACK)

    def _root_share(self, name: str, phase: Any) -> jax.Array:
        """The square root of a vector's share of mu^2 in a step."""
        if name == LOSS_CHANGE:
            return jnp.where(phase == VALIDATE, 1.0, 0.0)
        return jnp.where(phase == TRACK, math.sqrt(self.share), 0.0)

    def _count_roots(self, phase: Any) -> jax.Array:
        """For each count: the square root of the counts' share, divided by the norm of counts of -1/2 or 1/2."""
        root = jnp.where(phase == SEARCH, 1.0, jnp.where(phase == TRACK, math.sqrt(_COUNTS), 0.0))
        together = root / (math.sqrt(sum(name != LOSS_CHANGE for name in self.names)) / 2)
        alone = jnp.where(phase == SCALE, 2.0, 0.0)
        return jnp.stack([alone if name == LOSS_CHANGE else together for name in self.names])

    def multiple(self, name: str) -> float:
        """The ratio of the clip to the median norm, which is smaller where noise is larger.

        The clipping bias decreases roughly with the square of the clip. Bias and noise together are smallest where the
        clip is proportional to the inverse square root of the noise.
        """
        return min(max(math.sqrt(_BALANCE / max(self._run_noise(name), _TINY)), 1.0), _MOST_MEDIANS)

    def _run_noise(self, name: str) -> float:
        """Noise of a mean vector, averaged over the run, relative to its clip."""
        noise = self.noise_std / math.sqrt(1 if name == LOSS_CHANGE else self.share)
        return noise * math.sqrt(self.dimensions[name] / self.steps)

    def contribution(self, point: Tree, record: Tree) -> dict[str, Any]:
        """The contribution of one record at a point {"at", "medians", "phase"}, of norm at most one."""
        medians, phase = point["medians"], self._phase(point)
        raw = self.contributions(point["at"], record)
        joint: dict[str, Any] = {}
        above = []
        for name in self.names:
            size, median = norm(raw[name]), jnp.exp(medians[name])
            factor = self._root_share(name, phase) / jnp.maximum(size, self._clip(name, point))
            joint[name] = jax.tree.map(lambda part, factor=factor: (factor * part).astype(part.dtype), raw[name])
            above.append(jnp.where(size > median, 0.5, -0.5))
        counts = [root * count for root, count in zip(self._count_roots(phase), above, strict=True)]
        return joint | {ABOVE: jnp.stack(counts).astype(jnp.float32)}

    def released_means(self, released: Tree, point: Tree) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """The mean vectors of a released value, and the fraction of records above each median minus one half."""
        phase = self._phase(point)
        means = {name: (self._unit(name, point) * released[name]).astype(released[name].dtype) for name in self.names}
        counts = released[ABOVE] / jnp.maximum(self._count_roots(phase), _TINY)
        return means, dict(zip(self.names, counts, strict=True))

    def noise_of(self, name: str, point: Tree) -> jax.Array:
        """Standard deviation of the noise on each coordinate of a mean vector."""
        return self._unit(name, point) * self.noise_std

    def _unit(self, name: str, point: Tree) -> jax.Array:
        """The value of one unit of the released vector; zero in steps that do not release it."""
        root = self._root_share(name, self._phase(point))
        return jnp.where(root > 0, self._clip(name, point) / jnp.where(root > 0, root, 1.0), 0.0)

    def _clip(self, name: str, point: Tree) -> jax.Array:
        return self.multiples[name] * jnp.exp(point["medians"][name])

    def empty(self, zeros: Mapping[str, jax.Array]) -> dict[str, Any]:
        """A released value of zeros, given zero vectors."""
        return {**zeros, ABOVE: jnp.zeros(len(self.names), jnp.float32)}

    def start(self, clip_norm: float) -> Clips:
        """Clips before the first step."""
        start, pace = math.log(clip_norm), _RANGE * (1 - _NARROWING)
        clips = {}
        for name in self.names:
            values = {"median": start, "pace": pace, "last": 0.0} | ({"largest": 0.0} if name == self.floored else {})
            clips[name] = {key: jnp.asarray(value, jnp.float32) for key, value in values.items()}
        return clips

    def expect(self, norm: jax.Array, spread: float) -> dict[str, jax.Array]:
        """The clip before a search around an expected norm, up to a factor of e^spread on either side."""
        values = {"median": jnp.log(jnp.maximum(norm, _TINY)), "pace": spread * (1 - _NARROWING), "last": 0.0}
        return {key: jnp.asarray(value, jnp.float32) for key, value in values.items()}

    def update_clips(
        self, clips: Clips, counts: Mapping[str, jax.Array], means: Mapping[str, jax.Array], point: Tree
    ) -> Clips:
        """Clips after a step: by bisection in the search, then by increments that grow while the counts agree."""
        phase = self._phase(point)
        noise = dict(zip(self.names, self.noise_std / jnp.maximum(self._count_roots(phase), _TINY), strict=True))
        new = {name: _update_clip(name, clips[name], counts[name], noise[name], phase) for name in self.names}
        if self.floored is not None:
            new[self.floored] |= self._floor_clip(clips[self.floored], new[self.floored], means[self.floored], point)
        return new

    def _floor_clip(
        self, before: dict[str, jax.Array], after: dict[str, jax.Array], mean: jax.Array, point: Tree
    ) -> dict[str, jax.Array]:
        """The clip with its floor: where its noise over the run is small relative to the largest mean so far."""
        name, dimension = str(self.floored), self.dimensions[str(self.floored)]
        noise = dimension * self.noise_of(name, point) ** 2 * (1 + _DOUBT * math.sqrt(2 / dimension))
        largest = jnp.maximum(before["largest"], jnp.sqrt(jnp.maximum(jnp.sum(mean**2) - noise, 0)))
        enough = _ENOUGH * largest / self.floor_noise
        lowest = jnp.minimum(jnp.log(jnp.maximum(enough, _TINY)), before["median"])
        median = jnp.where(self._phase(point) == TRACK, jnp.maximum(after["median"], lowest), after["median"])
        return {"median": median.astype(jnp.float32), "largest": largest.astype(jnp.float32)}


def _update_clip(
    name: str, clip: dict[str, jax.Array], count: jax.Array, noise: jax.Array, phase: Any
) -> dict[str, jax.Array]:
    searching = phase == (SCALE if name == LOSS_CHANGE else SEARCH)
    slowest, fastest = _PACES
    damping = jnp.minimum(1.0, 0.5 / jnp.maximum(noise, _TINY))  # a count that is mostly noise hardly moves the clip
    balance = 2 * jnp.clip(count, -0.5, 0.5)
    agreement = balance * clip["last"]
    acceleration = jnp.exp(damping * _QUICKENING * jnp.where(agreement < 0, 2.0, 1.0) * agreement)
    pace = jnp.clip(clip["pace"] * acceleration, slowest, fastest)
    side = jnp.where(count > 0, 1.0, -1.0)
    new = {
        "median": clip["median"] + jnp.where(searching, side * clip["pace"], pace * damping * balance),
        "pace": jnp.where(searching, _NARROWING * clip["pace"], pace),
        "last": jnp.where(searching, 0.0, balance),
    }
    changing = searching | ((phase == TRACK) & (name != LOSS_CHANGE))
    return {key: jnp.where(changing, value, clip[key]).astype(jnp.float32) for key, value in new.items()}
