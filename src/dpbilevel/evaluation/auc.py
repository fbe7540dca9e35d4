"""The area under the ROC curve, from a released histogram of scores by class.

The AUC is the probability that a positive record has a higher score than a negative one. It divides by the numbers of
positives and negatives, which are private. So what is released is a histogram of scores by class, with public bins:
2 B counts with equal noise, whose sensitivity does not depend on the numbers of either class. All the rest is computed
from it.

**Interval.** The order of two records in the same bin is unknown. Counting such pairs as wrong gives a lower AUC, as
right a higher one, and the AUC lies between. The interval goes from the lower end of an interval for the lower AUC to
the upper end of one for the upper AUC, so that it covers the bins. Each AUC t solves sum_ij p_i n_j (K_ij - t) = 0,
with K_ij = 1 if i > j, 0 if i < j, and 0 or 1 on the diagonal. The variance of the left-hand side is that of noise and,
as for the test of Mann and Whitney, of the sample: sum_i (sum_j n_j (K_ij - t))^2 (sigma^2 + p_i), and the same for n.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
import numpy.typing as npt

from dpbilevel.evaluation.calibration import usable_probability
from dpbilevel.evaluation.cells import UNIT, bin_of, count_noise, counts, one_cell
from dpbilevel.evaluation.intervals import Interval, solve_quadratic, within, z_score
from dpbilevel.evaluation.means import Floats, Tree

_MOST = 200  # bins: the AUC is then known to 0.25% where scores overlap most
_FEWEST = 10


@dataclass(frozen=True)
class Auc:
    """The AUC of the probability of one class.

    Args:
        edges: public edges of the bins of the predicted probability, from 0 to 1.
        place: index of the positive class among the model's classes.
        positive_class: the name of the positive class.
    """

    edges: tuple[float, ...]
    place: int
    positive_class: str

    name: ClassVar[str] = "auc"
    largest: ClassVar[float] = 1.0
    unit: ClassVar[float] = UNIT

    @property
    def bins(self) -> int:
        """The number of bins."""
        return len(self.edges) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an answer."""
        return (2 * self.bins,)

    @property
    def meaning(self) -> str:
        """The class that the scores are for."""
        return (
            f"probability that a record of {self.positive_class} has a higher score than another, "
            f"from {self.bins} bins of scores"
        )

    def contribution(self, record: jax.Array) -> jax.Array:
        """One cell for each class and bin."""
        return one_cell(record, 2 * self.bins)

    def placed(
        self, probability: npt.NDArray[np.floating], positive: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.integer[Any]]:
        """The cell of each record: bins of positives, then bins of negatives."""
        place = bin_of(usable_probability(probability, positive), np.asarray(self.edges))
        return np.where(positive, place, place + np.int32(self.bins))

    def detail(self, answer: Tree, noise: float, number: int) -> dict[str, Any]:
        """The histogram: records of both classes by bin, and the noise of every count."""
        found = counts(answer, number)
        return {
            "edges": np.asarray(self.edges),
            "positives": found[: self.bins],
            "negatives": found[self.bins :],
            "noise": count_noise(noise, number),
        }

    def value(self, answer: Tree, number: int) -> float:
        """The AUC, with pairs in the same bin counted as half; 1/2 if noise leaves no records of a class."""
        return auc_value(self.detail(answer, 0.0, number))

    def standard_error(self, answer: Tree, noise: float, number: int) -> float:
        """The standard deviation of the noise, from the derivative of the AUC at the released counts."""
        released = self.detail(answer, noise, number)
        pairs = _Pairs(released, 0.5)
        if not pairs.total > 0:
            return 1.0
        at = auc_value(released)
        slopes = np.concatenate([pairs.above - at * pairs.negatives, pairs.below - at * pairs.positives])
        return min(1.0, float(released["noise"] * np.linalg.norm(slopes) / pairs.total))


class _Pairs:
    """Pairs of a positive and a negative record; those in the same bin count ``tie``."""

    def __init__(self, released: Mapping[str, Any], tie: float) -> None:
        p, n = released["positives"], released["negatives"]
        self.positives, self.negatives = float(p.sum()), float(n.sum())
        self.above = np.cumsum(n) - n + tie * n  # negatives below each bin of positives
        self.below = self.positives - np.cumsum(p) + tie * p  # positives above each bin of negatives
        self.right = float(p @ self.above)
        self.total = self.positives * self.negatives if min(self.positives, self.negatives) > 0 else 0.0


def auc_value(released: Mapping[str, Any]) -> float:
    """The AUC of a released histogram."""
    pairs = _Pairs(released, 0.5)
    return float(np.clip(pairs.right / pairs.total, 0, 1)) if pairs.total > 0 else 0.5


def auc_interval(released: Mapping[str, Any], level: float) -> Interval:
    """A confidence interval for the AUC of the population, which covers noise, sampling and bins."""
    low, _ = _interval(released, 0.0, level)
    _, high = _interval(released, 1.0, level)
    return low, high


def _interval(released: Mapping[str, Any], tie: float, level: float) -> Interval:
    pairs, square = _Pairs(released, tie), z_score(level) ** 2
    if not pairs.total > 0:
        return 0.0, 1.0
    noise = float(released["noise"]) ** 2
    leading, linear, constant = pairs.total**2, -2 * pairs.right * pairs.total, pairs.right**2
    for others, own, rest in (
        (pairs.above, released["positives"], pairs.negatives),
        (pairs.below, released["negatives"], pairs.positives),
    ):
        spread = square * (noise + np.maximum(own, 0))  # of every count: noise, and a Poisson count
        leading -= rest**2 * spread.sum()
        linear += 2 * rest * float(others @ spread)
        constant -= float(others**2 @ spread)
    return within(solve_quadratic(leading, linear, constant), 0.0, 1.0)


def default_edges(noise: float) -> tuple[float, ...]:
    """Public edges for counts whose noise is this fraction of all records.

    Bins have equal width on the scale arcsin(sqrt(p)), on which proportions have equal variance, so that scores of rare
    classes do not share one bin. With B bins, classes that overlap fully and a quarter of positives, noise adds about
    2.4 noise sqrt(B) to the half-width of an interval, and the bins 1/(2 B); their sum is smallest at this B. For rarer
    classes, fewer bins are better.

    >>> edges = default_edges(0.0025)
    >>> len(edges) - 1, [round(edge, 4) for edge in edges[:3]], edges[-1]
    (30, [0.0, 0.0027, 0.0109], 1.0)
    """
    best = (2.4 * noise) ** (-2 / 3) if noise > 0 else math.inf
    bins = int(np.clip(best, _FEWEST, _MOST))
    edges: Floats = np.sin(np.linspace(0, math.pi / 2, bins + 1)) ** 2
    return (0.0, *edges[1:-1].tolist(), 1.0)
