"""Diagnostics of a private run of `Tracking` from its released history: gain, convergence, and evidence."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.constraints import project
from dpbilevel.foundation.precision import isolated_jax_config
from dpbilevel.methods.tracking.tracking import Tracking

Tree = Any
Numbers = npt.NDArray[np.float64]

_DEVIATIONS = 2.0  # standard deviations of noise above which a change is significant: a false positive in 1 of 44 runs
_AT_REST = 0.1  # hypergradient relative to the largest one at convergence: on a quadratic, 99% of the gain is made
_UNSETTLED = 1.0  # above it, the model and the difference are farther from their solutions than from their start
_QUARTERS = 4  # parts of the steps in which x moves: long enough to average out noise, short relative to the run
_BATCHES = 4  # batches of a quarter, whose means give its standard error despite autocorrelation (batch means)
_ROUNDING = 1e-5  # relative to the norm of the start: bound on the rounding error of an average in float32


class Diagnostics:
    """Diagnostics of a run, by post-processing of released values.

    Args:
        method: the method of the run.
        domain: the domain of x.
        start: the initial x.
        history: the released history.
    """

    def __init__(self, method: Tracking, domain: Tree, start: Tree, history: Mapping[str, Tree]) -> None:
        self.steps, self.domain, self.start, self.history = method.steps, domain, start, history
        self.measured = method.phase > 0  # shorter runs have no validation steps
        self.change, self.noise = (float(history[name][-1]) for name in ("loss change", "loss change noise"))
        # The last step before validation sets x to its average, and the validation steps keep it there.
        moving = np.arange(3 * method.phase, method.validation_start - 1)
        self.quarters = np.array_split(moving, _QUARTERS)
        self.finite = all(np.isfinite(leaf).all() for name in ("x", "hypergradient") for leaf in leaves(history[name]))
        self.left = distance(start, jax.tree.map(lambda leaf: leaf[-1], history["x"])) > 0

    @property
    def fell(self) -> bool:
        """Whether the loss decreased by more than noise explains."""
        return self.measured and self.change < -_DEVIATIONS * self.noise

    @property
    def evidence(self) -> float:
        """Fraction of the model and the difference that is signal, in the best quarter.

        The best and not the last one, because the difference may vanish at a solution.
        """
        return max(float(np.median(self.history["evidence"][quarter])) for quarter in self.quarters)

    @property
    def settled(self) -> bool:
        """Whether the model and the difference had converged in the last quarter."""
        return float(np.median(self.history["unsettled"][self.quarters[-1]])) <= _UNSETTLED

    @cached_property
    def gradient_left(self) -> float:
        """The hypergradient of the last quarter relative to that of the largest quarter; 0 where noise explains it.

        It is the maximum over the arrays of x, which may have different units. Components that point out of the domain
        are left out.
        """
        if not self.finite:
            return 1.0
        gradients = [self._gradients(quarter) for quarter in self.quarters]
        largest = np.max([[norm for norm, _ in parts] for parts in gradients], axis=0)
        last = zip(gradients[-1], largest, strict=True)
        return max(signal / norm if norm > 0 else 0.0 for (_, signal), norm in last)

    @property
    def at_rest(self) -> bool:
        """Whether x had converged: the hypergradient vanished up to noise."""
        return self.gradient_left <= _AT_REST

    def _gradients(self, quarter: npt.NDArray[np.intp]) -> list[tuple[float, float]]:
        """For each array of x: the norm of its mean hypergradient, and the feasible part of it beyond noise."""
        gradients = [leaf[quarter].reshape(len(quarter), -1) for leaf in leaves(self.history["hypergradient"])]
        points = [leaf[quarter[-1]] for leaf in leaves(self.history["x"])]
        lengths = []
        for first, point in zip(leaves(self.start), points, strict=True):
            lengths.append(_norm(point - first) or _norm(point) or 1.0)
        means = [gradient.mean(axis=0) for gradient in gradients]
        units = [length / (_norm(mean) or 1.0) for length, mean in zip(lengths, means, strict=True)]
        # The feasible part of a step that is as long as the distance so far.
        ahead = [
            point - unit * mean.reshape(point.shape) for point, unit, mean in zip(points, units, means, strict=True)
        ]
        with isolated_jax_config():
            tree = jax.tree.unflatten(jax.tree.structure(self.start), ahead)
            tree = jax.tree.map(lambda leaf, first: jnp.asarray(leaf, first.dtype), tree, self.start)
            allowed = leaves(project(self.domain, tree))
        norms = []
        for gradient, mean, point, unit, target in zip(gradients, means, points, units, allowed, strict=True):
            size = min(_norm(mean), _norm(target - point) / unit)
            batches = np.array([part.mean(axis=0) for part in np.array_split(gradient, min(_BATCHES, len(gradient)))])
            noise = float(batches.var(axis=0, ddof=1).sum()) / len(batches)
            share = max(0.0, 1 - noise * (1 + _DEVIATIONS * math.sqrt(2 / mean.size)) / (_norm(mean) ** 2 or 1.0))
            norms.append((_norm(mean), size * math.sqrt(share)))
        return norms


def distance(start: Tree, x: Tree) -> float:
    """Distance of x from its start: the maximum over its arrays, or 0 where rounding explains all of them."""
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
