"""What one record adds to a pass: several vectors in one release, each with a clip that finds its own scale.

A record's vectors v_j are clipped to C_j and joined, (sqrt(s_j)/C_j v_j)_j, with shares s_j of mu^2 that sum to one:
one Gaussian on the whole is, vector by vector, the noise of separate releases that share mu^2 as given, in one pass.

With them go counts: whether a vector's norm is above a quantile of all norms (Andrew et al. 2021 follow one this way).
Clips are multiples of the *median*, which is heard from both sides.

Following medians down is dangerous where what a clip cuts off does not cancel. Take two classes, one of them rare: as
the model learns the others, their gradients vanish, and a clip that follows them makes all gradients equally small, so
that the model unlearns the rare class. Weights that leave out half of the records do the same to the curvature, and
steps become too long. So clips can be *held*: they fall no lower than where less noise is of no use, unless nearly
all norms are lower still, by an upper quantile that is followed too.

Passes differ in what they send, at the same cost. The first ones *search*: nothing but counts, at the whole of mu^2,
which halve sixteen decades of norms until clips have their scale. Most of them *work*. The last ones *judge*: they send
nothing but the change of each record's loss since the start.

Privacy rests on none of this: whatever is in the vector, the release clips the whole to norm one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Tree = Any
Clips = dict[str, dict[str, jax.Array]]  # of each vector: logarithms of quantiles of its norm, and how they move

SEARCHING, WORKING, JUDGING = range(3)  # what a pass is for
JUDGED = "change of the loss"  # the vector of passes that judge
_QUANTILES = ("median", "upper")  # of norms, that clips are built on
ABOVE = "above the quantiles"
_COUNTS = 0.05  # of mu^2, for the counts of a pass that works
_RANGE = math.log(1e8)  # clips are searched up to this far from where they begin, in logarithms
_NARROWING = 0.6  # of the search, from pass to pass: more than a half, so that a turn that noise made can be undone
_DOUBT = 2.0  # standard deviations of noise that do not count as signal
_ENOUGH = 0.01  # noise over a run, against the largest mean, that is small enough: 1e-4 of what is gained
_PACES = (0.25, 4.0)  # slowest and fastest that a quantile moves in one pass, in logarithms
_QUICKENING = 0.4  # of the pace's logarithm, in a pass in which all records are on one side, as in the pass before
_COUNTED = 0.05  # of the passes: within so many, a share of records must be countable
_BALANCE = 0.01  # noise over a run, against the clip, at which the clip is one median
_MOST_MEDIANS = 3.0
_TINY = 1e-30


@dataclass(frozen=True, eq=False)
class Pass:
    """The vectors of one level's records.

    Args:
        vectors: (point, record) -> flat vectors by name.
        dimensions: of each vector; one of them may be `JUDGED`.
        noise: standard deviation of the release, on a whole of norm one; zero until it is known.
        steps: uses of the release in the run.
        held: vectors whose clips fall no lower than where their noise is small enough.
    """

    vectors: Callable[[Tree, Tree], dict[str, jax.Array]]
    dimensions: Mapping[str, int]
    noise: float
    steps: int
    held: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the vectors."""
        return tuple(self.dimensions)

    def _quantiles(self, name: str) -> tuple[str, ...]:
        return _QUANTILES if name in self.held else _QUANTILES[:1]

    @property
    def _counts(self) -> int:
        return len(self.names) + len(self.held)

    @property
    def share(self) -> float:
        """Of mu^2, for each vector in a pass that works: equal ones, and the rest for the counts."""
        return (1 - _COUNTS) / sum(name != JUDGED for name in self.names)

    def _phase(self, point: Tree) -> jax.Array:
        # A level that has nothing to judge goes on working.
        return point["phase"] if JUDGED in self.names else jnp.minimum(point["phase"], WORKING)

    def _root_share(self, name: str, phase: Any) -> jax.Array:
        """The root of a vector's share in a pass."""
        if name == JUDGED:
            return jnp.where(phase == JUDGING, 1.0, 0.0)
        return jnp.where(phase == WORKING, math.sqrt(self.share), 0.0)

    def _count_share(self, phase: Any) -> jax.Array:
        """The root of the counts' share, over their norm: each is -1/2 or 1/2."""
        root = jnp.where(phase == SEARCHING, 1.0, jnp.where(phase == WORKING, math.sqrt(_COUNTS), 0.0))
        return root / (math.sqrt(self._counts) / 2)

    def upper(self, name: str) -> float:
        """The share of records above the upper quantile of a vector's norms.

        Least are noise and cut together, nu C + E max(0, |v| - C), where as many records are above C as nu says (Huang,
        Liang and Yi 2021 clip there); or as many as can be counted.
        """
        counted = self.noise / (math.sqrt(_COUNTS) / (math.sqrt(self._counts) / 2))
        return min(max(self._whole_run(name), counted / math.sqrt(_COUNTED * self.steps), _TINY), 0.5)

    def multiple(self, name: str) -> float:
        """The clip, in medians: few where noise is large. What a clip cuts off falls about with its square, so that
        noise and cut together are least where the clip is about the inverse root of the noise."""
        return min(max(math.sqrt(_BALANCE / max(self._whole_run(name), _TINY)), 1.0), _MOST_MEDIANS)

    def _whole_run(self, name: str) -> float:
        """Noise of a mean vector over the run, against its clip."""
        noise = self.noise / math.sqrt(1 if name == JUDGED else self.share)
        return noise * math.sqrt(self.dimensions[name] / self.steps)

    def vector(self, point: Tree, record: Tree) -> dict[str, Any]:
        """What one record adds, at points {"at", "clips", "phase"}; of norm at most one."""
        phase = self._phase(point)
        raw = self.vectors(point["at"], record)
        joint: dict[str, Any] = {}
        above: list[jax.Array] = []
        for name in self.names:
            size = jnp.sqrt(jnp.sum(raw[name] ** 2))
            factor = self._root_share(name, phase) / jnp.maximum(size, self._clip(name, point))
            joint[name] = (factor * raw[name]).astype(raw[name].dtype)
            above += [jnp.where(size > jnp.exp(point["clips"][name][key]), 0.5, -0.5) for key in self._quantiles(name)]
        return joint | {ABOVE: (self._count_share(phase) * jnp.stack(above)).astype(jnp.float32)}

    def heard(self, answer: Tree, point: Tree) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """The mean vectors of an answer, and the shares of records above the quantiles of each."""
        phase = self._phase(point)
        vectors = {name: (self._unit(name, point) * answer[name]).astype(answer[name].dtype) for name in self.names}
        counts = answer[ABOVE] / jnp.maximum(self._count_share(phase), _TINY) + 0.5
        ends = np.cumsum([len(self._quantiles(name)) for name in self.names])
        return vectors, dict(zip(self.names, jnp.split(counts, ends[:-1]), strict=True))

    def noise_of(self, name: str, point: Tree) -> jax.Array:
        """Standard deviation of the noise on each coordinate of a mean vector."""
        return self._unit(name, point) * self.noise

    def _unit(self, name: str, point: Tree) -> jax.Array:
        """What one unit of the answer stands for; zero in passes that do not send the vector."""
        root = self._root_share(name, self._phase(point))
        return jnp.where(root > 0, self._clip(name, point) / jnp.where(root > 0, root, 1.0), 0.0)

    def _clip(self, name: str, point: Tree) -> jax.Array:
        clip = point["clips"][name]
        multiple = self.multiple(name) * jnp.exp(clip["median"])
        if name not in self.held:
            return multiple
        enough = _ENOUGH * clip["largest"] / max(self._whole_run(name), _TINY)
        return jnp.maximum(multiple, jnp.minimum(enough, jnp.exp(clip["upper"])))

    def empty(self, zeros: Mapping[str, jax.Array]) -> dict[str, Any]:
        """An answer of zeros, given those of its vectors."""
        return {**zeros, ABOVE: jnp.zeros(self._counts, jnp.float32)}

    def start(self, clip_norm: float) -> Clips:
        """Clips before the first pass."""
        start, pace = math.log(clip_norm), _RANGE * (1 - _NARROWING)
        clips = {}
        for name in self.names:
            followed = self._quantiles(name)
            clips[name] = {key: jnp.full((), start, jnp.float32) for key in followed}
            clips[name] |= {"pace": jnp.full(len(followed), pace, jnp.float32), "last": jnp.zeros(len(followed))}
            clips[name] |= {"largest": jnp.zeros(())} if name in self.held else {}
        return clips

    def followed(
        self, clips: Clips, counts: Mapping[str, jax.Array], vectors: Mapping[str, jax.Array], point: Tree
    ) -> Clips:
        """Clips after a pass: halved while searching, then with steps that quicken while all counts agree."""
        phase = self._phase(point)
        noise = self.noise / jnp.maximum(self._count_share(phase), _TINY)
        new = {}
        for name in self.names:
            targets = jnp.asarray([0.5, self.upper(name)])[: len(self._quantiles(name))]
            new[name] = _followed(name, clips[name], counts[name], noise, phase, targets)
            if name in self.held:
                new[name]["largest"] = self._largest_mean(name, clips[name]["largest"], vectors[name], point)
        return new

    def _largest_mean(self, name: str, before: jax.Array, vector: jax.Array, point: Tree) -> jax.Array:
        """The norm of the largest mean so far, as far as noise does not explain it."""
        dimension = self.dimensions[name]
        noise = dimension * self.noise_of(name, point) ** 2 * (1 + _DOUBT * math.sqrt(2 / dimension))
        return jnp.maximum(before, jnp.sqrt(jnp.maximum(jnp.sum(vector**2) - noise, 0))).astype(jnp.float32)


def _followed(
    name: str, clip: dict[str, jax.Array], count: jax.Array, noise: jax.Array, phase: Any, target: jax.Array
) -> dict[str, jax.Array]:
    searching = (phase == SEARCHING) & (name != JUDGED)  # nothing has changed yet whose scale could be found
    slowest, fastest = _PACES
    calm = jnp.minimum(1.0, target / jnp.maximum(noise, _TINY))  # a count that is noise should not move a quantile
    lean = jnp.clip((count - target) / target, -1.0, 1.0)
    agreement = lean * clip["last"]
    quicker = jnp.exp(calm * _QUICKENING * jnp.where(agreement < 0, 2.0, 1.0) * agreement)
    pace = jnp.clip(clip["pace"] * quicker, slowest, fastest)
    side = jnp.where(count > target, 1.0, -1.0)
    by = jnp.where(searching, side * clip["pace"], pace * calm * lean)
    new = {key: clip[key] + by[index] for index, key in enumerate(_QUANTILES[: target.size])} | {
        "pace": jnp.where(searching, _NARROWING * clip["pace"], pace),
        "last": jnp.where(searching, 0.0, lean),
    }
    still = (phase == JUDGING) | ((phase == SEARCHING) & (name == JUDGED))
    return {key: jnp.where(still, clip[key], value).astype(jnp.float32) for key, value in new.items()}
