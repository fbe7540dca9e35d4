"""A test that distinguishes two data sets by the released values of runs; chosen on some runs, applied to others.

Each run is a row of all its released numbers. Tests are linear: a projection of the row and a threshold. The candidates
are single numbers, and Fisher's linear discriminant of the most informative ones, which is the likelihood ratio if all
values are Gaussian. Among all projections, thresholds and sides, the test that would prove the largest epsilon is
chosen. A poor choice makes the bound weaker, but never wrong, because the bound is computed on other runs.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from dpbilevel.audit.bounds import epsilon_lower_bound

Array = npt.NDArray[np.floating[Any]]

_FEW, _MOST = 5, 100  # numbers in a discriminant; more would overfit
_SINGLE = 30  # numbers that are tried individually
_THRESHOLDS = 60  # for each projection and side


@dataclass(frozen=True, eq=False)
class Rule:
    """An event that indicates one of the data sets: a projection above a threshold.

    Attributes:
        weights: weights of the projection.
        threshold: threshold of the projection.
        swapped: whether the event indicates the second data set.
    """

    weights: Array
    threshold: float
    swapped: bool

    def counts(self, one: Array, other: Array) -> tuple[int, int]:
        """The number of runs with the event: on the data set that it indicates, and on the other."""
        happened = [int(np.sum(view @ self.weights > self.threshold)) for view in (one, other)]
        return (happened[1], happened[0]) if self.swapped else (happened[0], happened[1])


def rows(released: tuple[Any, Any, Any]) -> Array:
    """One row per run: all numbers of x, y and the history."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(released)]
    numbers = np.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)
    return np.nan_to_num(numbers, nan=0.0, posinf=1e30, neginf=-1e30)


def choose_rule(one: Array, other: Array, delta: float, confidence: float) -> Rule:
    """The rule that would prove the largest epsilon on these runs; ties are broken by TPR - FPR.

    If the bound is zero for all rules, this is the one with the largest TPR - FPR.
    """
    shift = one.mean(0) - other.mean(0)
    spread = np.sqrt((one.var(0) + other.var(0)) / 2)
    size = np.maximum(spread, np.abs(shift))
    scale = 1 / np.where(size > 0, size, 1.0)
    informative = np.argsort(
        -np.abs(shift) / np.where(spread > 0, spread, np.where(shift != 0, 1e-12, 1.0)), kind="stable"
    )
    projections = [np.eye(1, len(shift), column)[0] * np.sign(shift[column]) for column in informative[:_SINGLE]]
    for number in (_FEW, _MOST):
        used = informative[:number]
        weights = np.zeros(len(shift))
        weights[used] = scale[used] * discriminant(one[:, used] * scale[used], other[:, used] * scale[used])
        projections.append(weights)
    best, rule = (-1.0, -1.0), Rule(projections[0], 0.0, False)
    for weights in projections:
        scores = one @ weights, other @ weights
        for swapped in (False, True):
            # Swapped, the event is a projection *below* a threshold, and indicates the other data set.
            sign = -1 if swapped else 1
            mine, others = (sign * scores[swapped], sign * scores[not swapped])
            threshold, proved = _threshold(mine, others, delta, confidence)
            if proved > best:
                best, rule = proved, Rule(sign * weights, threshold, swapped)
    return rule


def discriminant(one: Array, other: Array) -> Array:
    """Fisher's linear discriminant; without noise, the difference of the means."""
    shift = one.mean(0) - other.mean(0)
    spread = np.atleast_2d(np.cov(one.T) + np.cov(other.T)) / 2
    ridge = 1e-9 * (np.trace(spread) + shift @ shift) + np.finfo(float).tiny
    return np.linalg.solve(spread + ridge * np.eye(len(shift)), shift)


def _threshold(scores: Array, others: Array, delta: float, confidence: float) -> tuple[float, tuple[float, float]]:
    """The best threshold, with its bound on epsilon, assuming one more false positive than counted, and its TPR - FPR.

    Without the additional false positive, the best threshold would be the maximum over these runs, which other runs
    exceed.
    """
    runs = len(scores)
    ranks = np.unique(np.geomspace(1, runs, _THRESHOLDS).astype(int))
    candidates = np.sort(others)[runs - ranks]
    true = runs - np.searchsorted(np.sort(scores), candidates, "right")
    false = runs - np.searchsorted(np.sort(others), candidates, "right")
    proved = epsilon_lower_bound(true, np.minimum(false + 1, runs), runs, delta, confidence)
    advantage = (true - false) / runs
    best = int(np.lexsort((advantage, proved))[-1])
    return float(candidates[best]), (float(proved[best]), float(advantage[best]))
