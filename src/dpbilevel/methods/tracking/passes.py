"""What one record adds to a pass: several vectors in one release, each with a clip that finds its own scale.

A record's vectors v_j are clipped to C_j and joined, (sqrt(s_j)/C_j v_j)_j, with shares s_j of mu^2 that sum to one:
one Gaussian on the whole is, vector by vector, the noise of separate releases that share mu^2 as given, in one pass.

With them goes a count for each vector: whether its norm is above the *median* that the clip is built on (Andrew et al.
2021 follow a quantile of norms this way). A median is visible from both sides, where a high quantile cannot follow
norms that fall. The clip is a multiple of it.

Following norms down is dangerous where what a clip cuts off does not cancel. Take two classes, one of them rare: as the
model learns the others, their gradients vanish, and a clip that follows them makes all gradients equally small, so that
the model unlearns the rare class. So the clip of a model's gradients has a *floor* where less noise would be of no use.

Passes differ in what they send, at the same cost. The first ones *search*: nothing but counts, at the whole of mu^2,
which halve sixteen decades of norms until clips have their scale. Most of them *track*. The last ones *validate*: they
send nothing but the change of each record's loss since the start.

Privacy rests on none of this: whatever is in the vector, the release clips the whole to norm one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

Tree = Any
Clips = dict[str, dict[str, jax.Array]]  # of each vector: the logarithm of its median norm, and how that moves

SEARCH, TRACK, VALIDATE = range(3)  # what a pass is for
LOSS_CHANGE = "change of the loss"  # the vector of passes that validate
ABOVE = "above the median"
_COUNTS = 0.05  # of mu^2, for the counts of a pass that tracks
_RANGE = math.log(1e8)  # clips are searched up to this far from where they begin, in logarithms
_NARROWING = 0.6  # of the search, from pass to pass: more than a half, so that a turn that noise made can be undone
_DOUBT = 2.0  # standard deviations of noise that do not count as signal
_ENOUGH = 0.003  # noise over a run, against the largest mean gradient, that is small enough: 1e-5 of what is gained
_PACES = (0.25, 4.0)  # slowest and fastest that a median moves in one pass, in logarithms
_QUICKENING = 0.4  # of the pace's logarithm, in a pass in which all records are on one side, as in the pass before
_BALANCE = 0.01  # noise over a run, against the clip, at which the clip is one median
_MOST_MEDIANS = 3.0
_TINY = 1e-30


@dataclass(frozen=True, eq=False)
class Pass:
    """The vectors of one level's records.

    Args:
        contributions: (point, record) -> flat vectors by name.
        dimensions: of each vector; one of them may be `LOSS_CHANGE`.
        noise_std: of the release, on a whole of norm one; zero until it is known.
        steps: uses of the release in the run.
        floored: the vector whose clip falls no lower than where its noise is small enough; None for none.
    """

    contributions: Callable[[Tree, Tree], dict[str, jax.Array]]
    dimensions: Mapping[str, int]
    noise_std: float
    steps: int
    floored: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the vectors."""
        return tuple(self.dimensions)

    @property
    def share(self) -> float:
        """Of mu^2, for each vector in a pass that tracks: equal ones, and the rest for the counts."""
        return (1 - _COUNTS) / sum(name != LOSS_CHANGE for name in self.names)

    def _phase(self, point: Tree) -> jax.Array:
        # A level that has nothing to validate goes on tracking.
        return point["phase"] if LOSS_CHANGE in self.names else jnp.minimum(point["phase"], TRACK)

    def _root_share(self, name: str, phase: Any) -> jax.Array:
        """The root of a vector's share in a pass."""
        if name == LOSS_CHANGE:
            return jnp.where(phase == VALIDATE, 1.0, 0.0)
        return jnp.where(phase == TRACK, math.sqrt(self.share), 0.0)

    def _count_share(self, phase: Any) -> jax.Array:
        """The root of the counts' share, over their norm: each is -1/2 or 1/2."""
        root = jnp.where(phase == SEARCH, 1.0, jnp.where(phase == TRACK, math.sqrt(_COUNTS), 0.0))
        return root / (math.sqrt(len(self.names)) / 2)

    def multiple(self, name: str) -> float:
        """The clip, in medians: few where noise is large. What a clip cuts off falls about with its square, so that
        noise and cut together are least where the clip is about the inverse root of the noise."""
        return min(max(math.sqrt(_BALANCE / max(self._whole_run(name), _TINY)), 1.0), _MOST_MEDIANS)

    def _whole_run(self, name: str) -> float:
        """Noise of a mean vector over the run, against its clip."""
        noise = self.noise_std / math.sqrt(1 if name == LOSS_CHANGE else self.share)
        return noise * math.sqrt(self.dimensions[name] / self.steps)

    def contribution(self, point: Tree, record: Tree) -> dict[str, Any]:
        """What one record adds, at points {"at", "medians", "phase"}; of norm at most one."""
        medians, phase = point["medians"], self._phase(point)
        raw = self.contributions(point["at"], record)
        joint: dict[str, Any] = {}
        above = []
        for name in self.names:
            size, median = jnp.sqrt(jnp.sum(raw[name] ** 2)), jnp.exp(medians[name])
            factor = self._root_share(name, phase) / jnp.maximum(size, self._clip(name, point))
            joint[name] = (factor * raw[name]).astype(raw[name].dtype)
            above.append(jnp.where(size > median, 0.5, -0.5))
        return joint | {ABOVE: (self._count_share(phase) * jnp.stack(above)).astype(jnp.float32)}

    def released_means(self, answer: Tree, point: Tree) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """The mean vectors of an answer, and the share of records above each median, less one half."""
        phase = self._phase(point)
        means = {name: (self._unit(name, point) * answer[name]).astype(answer[name].dtype) for name in self.names}
        counts = answer[ABOVE] / jnp.maximum(self._count_share(phase), _TINY)
        return means, dict(zip(self.names, counts, strict=True))

    def noise_of(self, name: str, point: Tree) -> jax.Array:
        """Standard deviation of the noise on each coordinate of a mean vector."""
        return self._unit(name, point) * self.noise_std

    def _unit(self, name: str, point: Tree) -> jax.Array:
        """What one unit of the answer stands for; zero in passes that do not send the vector."""
        root = self._root_share(name, self._phase(point))
        return jnp.where(root > 0, self._clip(name, point) / jnp.where(root > 0, root, 1.0), 0.0)

    def _clip(self, name: str, point: Tree) -> jax.Array:
        return self.multiple(name) * jnp.exp(point["medians"][name])

    def empty(self, zeros: Mapping[str, jax.Array]) -> dict[str, Any]:
        """An answer of zeros, given those of its vectors."""
        return {**zeros, ABOVE: jnp.zeros(len(self.names), jnp.float32)}

    def start(self, clip_norm: float) -> Clips:
        """Clips before the first pass."""
        start, pace = math.log(clip_norm), _RANGE * (1 - _NARROWING)
        clips = {}
        for name in self.names:
            numbers = {"median": start, "pace": pace, "last": 0.0} | ({"largest": 0.0} if name == self.floored else {})
            clips[name] = {key: jnp.asarray(value, jnp.float32) for key, value in numbers.items()}
        return clips

    def update_clips(
        self, clips: Clips, counts: Mapping[str, jax.Array], means: Mapping[str, jax.Array], point: Tree
    ) -> Clips:
        """Clips after a pass: halved while searching, then with steps that quicken while all counts agree."""
        phase = self._phase(point)
        noise = self.noise_std / jnp.maximum(self._count_share(phase), _TINY)
        new = {name: _follow(name, clips[name], counts[name], noise, phase) for name in self.names}
        if self.floored is not None:
            new[self.floored] |= self._floor_clip(clips[self.floored], new[self.floored], means[self.floored], point)
        return new

    def _floor_clip(
        self, before: dict[str, jax.Array], after: dict[str, jax.Array], mean: jax.Array, point: Tree
    ) -> dict[str, jax.Array]:
        """A clip that falls no lower than where its noise over the run is small against the largest mean so far."""
        name, dimension = str(self.floored), self.dimensions[str(self.floored)]
        noise = dimension * self.noise_of(name, point) ** 2 * (1 + _DOUBT * math.sqrt(2 / dimension))
        largest = jnp.maximum(before["largest"], jnp.sqrt(jnp.maximum(jnp.sum(mean**2) - noise, 0)))
        enough = _ENOUGH * largest / max(self._whole_run(name) * self.multiple(name), _TINY)
        lowest = jnp.minimum(jnp.log(jnp.maximum(enough, _TINY)), before["median"])
        median = jnp.where(self._phase(point) == TRACK, jnp.maximum(after["median"], lowest), after["median"])
        return {"median": median.astype(jnp.float32), "largest": largest.astype(jnp.float32)}


def _follow(
    name: str, clip: dict[str, jax.Array], count: jax.Array, noise: jax.Array, phase: Any
) -> dict[str, jax.Array]:
    searching = (phase == SEARCH) & (name != LOSS_CHANGE)  # nothing has changed yet whose scale could be found
    slowest, fastest = _PACES
    damping = jnp.minimum(1.0, 0.5 / jnp.maximum(noise, _TINY))  # a count that is noise should not move the clip
    lean = 2 * jnp.clip(count, -0.5, 0.5)
    agreement = lean * clip["last"]
    quicker = jnp.exp(damping * _QUICKENING * jnp.where(agreement < 0, 2.0, 1.0) * agreement)
    pace = jnp.clip(clip["pace"] * quicker, slowest, fastest)
    side = jnp.where(count > 0, 1.0, -1.0)
    new = {
        "median": clip["median"] + jnp.where(searching, side * clip["pace"], pace * damping * lean),
        "pace": jnp.where(searching, _NARROWING * clip["pace"], pace),
        "last": jnp.where(searching, 0.0, lean),
    }
    still = (phase == VALIDATE) | ((phase == SEARCH) & (name == LOSS_CHANGE))
    return {key: jnp.where(still, clip[key], value).astype(jnp.float32) for key, value in new.items()}
