"""A test that tells two data sets apart by what runs on them released, chosen on some runs and judged on others.

A run is a row of all numbers that it released. Rules are linear: a projection of the row and a threshold. Projections
that are tried are every single number and Fisher's linear discriminant of the most telling ones, which is the
likelihood ratio as long as everything is Gaussian. Of all projections, thresholds and sides the rule is taken that
would prove the largest epsilon. A poor choice makes an audit weak and never wrong, because other runs judge it.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from dpbilevel.audit.bounds import epsilon_lower_bound

Array = npt.NDArray[np.floating[Any]]

_FEW, _MOST = 5, 100  # numbers in a discriminant; more would follow chance
_SINGLE = 30  # numbers that are tried alone
_THRESHOLDS = 60  # for each projection and side


@dataclass(frozen=True, eq=False)
class Rule:
    """The event that speaks for one of the data sets: a projection beyond a threshold.

    Attributes:
        weights: of the projection.
        threshold: which it has to exceed.
        swapped: whether the event speaks for the second data set.
    """

    weights: Array
    threshold: float
    swapped: bool

    def counts(self, one: Array, other: Array) -> tuple[int, int]:
        """In how many runs on the data set that it speaks for, and on the other, the event happened."""
        happened = [int(np.sum(view @ self.weights > self.threshold)) for view in (one, other)]
        return (happened[1], happened[0]) if self.swapped else (happened[0], happened[1])


def rows(released: tuple[Any, Any, Any]) -> Array:
    """One row a run: all numbers of x, y and the history."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(released)]
    numbers = np.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)
    return np.nan_to_num(numbers, nan=0.0, posinf=1e30, neginf=-1e30)


def chosen(one: Array, other: Array, delta: float, confidence: float) -> Rule:
    """The rule that would prove the largest epsilon on these runs, were they the ones that judge.

    Where none would prove anything, the one that happens most on one data set against the other.
    """
    shift = one.mean(0) - other.mean(0)
    spread = np.sqrt((one.var(0) + other.var(0)) / 2)
    size = np.maximum(spread, np.abs(shift))
    scale = 1 / np.where(size > 0, size, 1.0)
    telling = np.argsort(-np.abs(shift) / np.where(spread > 0, spread, np.where(shift != 0, 1e-12, 1.0)), kind="stable")
    projections = [np.eye(1, len(shift), column)[0] * np.sign(shift[column]) for column in telling[:_SINGLE]]
    for number in (_FEW, _MOST):
        used = telling[:number]
        weights = np.zeros(len(shift))
        weights[used] = scale[used] * discriminant(one[:, used] * scale[used], other[:, used] * scale[used])
        projections.append(weights)
    best, rule = (-1.0, -1.0), Rule(projections[0], 0.0, False)
    for weights in projections:
        scores = one @ weights, other @ weights
        for swapped in (False, True):
            # Swapped, the event is that the projection lies *below* a threshold, and speaks for the other data set.
            sign = -1 if swapped else 1
            mine, others = (sign * scores[swapped], sign * scores[not swapped])
            threshold, proved = _threshold(mine, others, delta, confidence)
            if proved > best:
                best, rule = proved, Rule(sign * weights, threshold, swapped)
    return rule


def discriminant(one: Array, other: Array) -> Array:
    """Fisher's linear discriminant; where nothing is noisy, the difference itself."""
    shift = one.mean(0) - other.mean(0)
    spread = np.atleast_2d(np.cov(one.T) + np.cov(other.T)) / 2
    ridge = 1e-9 * (np.trace(spread) + shift @ shift) + np.finfo(float).tiny
    return np.linalg.solve(spread + ridge * np.eye(len(shift)), shift)


def _threshold(scores: Array, others: Array, delta: float, confidence: float) -> tuple[float, tuple[float, float]]:
    """The threshold that proves most, and what it does: the epsilon, if one false positive more is seen, and TPR - FPR.

    Without that fear the threshold would be the largest of the others' scores, which the runs that judge exceed.
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
