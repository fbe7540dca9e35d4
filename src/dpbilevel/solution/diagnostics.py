"""What the released history of a private run of `Tracking` tells: a gain, an x at rest, and on how much evidence."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.constraints import project
from dpbilevel.methods.tracking.tracking import Tracking
from dpbilevel.records import isolated_jax_config

Tree = Any
Numbers = npt.NDArray[np.float64]

_DEVIATIONS = 2.0  # of noise, beyond which something is there: noise alone gets so far in one run of 44
_AT_REST = 0.1  # of the largest hypergradient: on a quadratic, less than a hundredth of the gain is left
_UNSETTLED = 1.0  # above it, the model and the difference are further from their solutions than they have come
_QUARTERS = 4  # of the steps in which x moves: long enough to average noise, short against the run
_BATCHES = 4  # of a quarter: their means scatter as the quarter's does, whatever lasts from one step to the next
_ROUNDING = 1e-5  # of the start's norm: an average of float32 numbers that are all the same differs from them by less


class Diagnostics:
    """A run in numbers; all of it is post-processing.

    Args:
        method: of the run.
        domain: of x.
        start: where x started.
        history: as released.
    """

    def __init__(self, method: Tracking, domain: Tree, start: Tree, history: Mapping[str, Tree]) -> None:
        self.steps, self.domain, self.start, self.history = method.steps, domain, start, history
        self.measured = method.phase > 0  # shorter runs have no passes that judge
        self.change, self.noise = (float(history[name][-1]) for name in ("loss change", "loss change noise"))
        # The last working step leaves the average of x behind, which the passes that judge keep.
        working = np.arange(3 * method.phase, method.steps - method.phase - 1)
        self.quarters = np.array_split(working, _QUARTERS)
        self.finite = all(np.isfinite(leaf).all() for name in ("x", "hypergradient") for leaf in leaves(history[name]))
        self.left = distance(start, jax.tree.map(lambda leaf: leaf[-1], history["x"])) > 0

    @property
    def fell(self) -> bool:
        """Whether the loss fell by more than noise explains."""
        return self.measured and self.change < -_DEVIATIONS * self.noise

    @property
    def evidence(self) -> float:
        """How much of model and difference was signal, in the best quarter: at a solution the latter vanishes."""
        return max(float(np.median(self.history["evidence"][quarter])) for quarter in self.quarters)

    @property
    def settled(self) -> bool:
        """Whether the model and the difference had settled, in the last quarter."""
        return float(np.median(self.history["unsettled"][self.quarters[-1]])) <= _UNSETTLED

    @cached_property
    def gradient_left(self) -> float:
        """The last quarter's hypergradient against the largest of a quarter; 0 where noise explains it.

        The largest over the arrays of x, which have units of their own. What leads out of the domain does not count.
        """
        if not self.finite:
            return 1.0
        found = [self._gradients(quarter) for quarter in self.quarters]
        largest = np.max([[size for size, _ in parts] for parts in found], axis=0)
        return max(beyond / most if most > 0 else 0.0 for (_, beyond), most in zip(found[-1], largest, strict=True))

    @property
    def at_rest(self) -> bool:
        """Whether x was where its hypergradient vanishes, as far as noise shows."""
        return self.gradient_left <= _AT_REST

    def _gradients(self, quarter: npt.NDArray[np.intp]) -> list[tuple[float, float]]:
        """For each array of x: the size of its mean hypergradient, and what of it is not noise and in bounds."""
        gradients = [leaf[quarter].reshape(len(quarter), -1) for leaf in leaves(self.history["hypergradient"])]
        points = [leaf[quarter[-1]] for leaf in leaves(self.history["x"])]
        lengths = []
        for first, point in zip(leaves(self.start), points, strict=True):
            lengths.append(_norm(point - first) or _norm(point) or 1.0)
        means = [gradient.mean(axis=0) for gradient in gradients]
        units = [length / (_norm(mean) or 1.0) for length, mean in zip(lengths, means, strict=True)]
        # A step as long as the way so far: which part of it the domain allows.
        ahead = [
            point - unit * mean.reshape(point.shape) for point, unit, mean in zip(points, units, means, strict=True)
        ]
        with isolated_jax_config():
            tree = jax.tree.unflatten(jax.tree.structure(self.start), ahead)
            tree = jax.tree.map(lambda leaf, first: jnp.asarray(leaf, first.dtype), tree, self.start)
            allowed = leaves(project(self.domain, tree))
        found = []
        for gradient, mean, point, unit, there in zip(gradients, means, points, units, allowed, strict=True):
            size = min(_norm(mean), _norm(there - point) / unit)
            batches = np.array([part.mean(axis=0) for part in np.array_split(gradient, min(_BATCHES, len(gradient)))])
            noise = float(batches.var(axis=0, ddof=1).sum()) / len(batches)
            share = max(0.0, 1 - noise * (1 + _DEVIATIONS * math.sqrt(2 / mean.size)) / (_norm(mean) ** 2 or 1.0))
            found.append((_norm(mean), size * math.sqrt(share)))
        return found


def distance(start: Tree, x: Tree) -> float:
    """How far x is from its start: the largest distance of an array of it, and 0 where rounding explains them all."""
    far = [0.0]
    for first, last in zip(leaves(start), leaves(x), strict=True):
        moved = _norm(last - first)
        far.append(moved if moved > _ROUNDING * _norm(first) else 0.0)
    return max(far)


def leaves(tree: Tree) -> list[Numbers]:
    """The arrays of a pytree, in float64."""
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]


def _norm(values: Numbers) -> float:
    return float(np.linalg.norm(values))
