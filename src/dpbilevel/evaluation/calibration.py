"""The calibration curve: numbers of records and positives by predicted probability."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.evaluation.intervals import Interval, solve_quadratic, within, z_score
from dpbilevel.evaluation.means import NORM, Floats, Tree


@dataclass(frozen=True)
class Calibration:
    """Records, predicted probabilities and positives in equal-width bins of the predicted probability.

    A record adds three numbers to its bin: 1, the distance of its probability from the middle of the bin, and 1/2 or
    -1/2 for positive or not. Sums of probabilities and numbers of positives follow from these. Their joint norm is at
    most sqrt(5/4 + w^2/4), with w the width of a bin; it would be sqrt(3) without centring.

    Args:
        bins: number of bins.
        place: index of the positive class among the model's classes.
        positive_class: the name of the positive class.
    """

    bins: int
    place: int
    positive_class: str

    name: ClassVar[str] = "calibration"
    largest: ClassVar[float] = math.inf  # several numbers without a common range

    @property
    def shape(self) -> dict[str, tuple[int, ...]]:
        """The shapes of an answer."""
        return dict.fromkeys(("records", "offset", "excess"), (self.bins,))

    @property
    def meaning(self) -> str:
        """The number of bins, and the class whose probability is binned."""
        return f"{self.bins} bins of the probability of {self.positive_class}, with numbers of records and positives"

    @property
    def unit(self) -> float:
        """The largest joint norm of the three numbers, divided by 1/2."""
        return math.sqrt(1.25 + 0.25 / self.bins**2) / NORM

    @property
    def middles(self) -> Floats:
        """The middle of each bin."""
        return np.asarray((np.arange(self.bins) + 0.5) / self.bins)

    def contribution(self, record: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The three numbers at the position of the record's bin."""
        mine = jax.nn.one_hot(record["bin"], self.bins, dtype=record["offset"].dtype) / self.unit
        excess = jnp.where(record["positive"], 0.5, -0.5)
        return {"records": mine, "offset": record["offset"] * mine, "excess": excess * mine}

    def value(self, answer: Tree, number: int) -> dict[str, Floats]:
        """Edges of the bins (public), and per bin the records, the sum of their probabilities, and the positives."""
        sums = {name: np.asarray(part, dtype=np.float64) * self.unit * number for name, part in answer.items()}
        edges = np.linspace(0, 1, self.bins + 1)
        # All three are computed from the raw noisy numbers before they are clamped to their ranges.
        probability = sums["offset"] + self.middles * sums["records"]
        positives = sums["excess"] + sums["records"] / 2
        records = np.clip(sums["records"], 0, number)
        return {
            "edges": edges,
            "records": records,
            "probability": np.clip(probability, edges[:-1] * records, edges[1:] * records),
            "positives": np.clip(positives, 0, records),
        }

    def standard_error(self, answer: Tree, noise: float, number: int) -> dict[str, Floats]:
        """Standard errors per bin, before the three numbers are clamped to their ranges."""
        one = np.full(self.bins, noise * self.unit * number)
        return {"records": one, "probability": one * np.hypot(1, self.middles), "positives": one * math.hypot(1, 0.5)}

    def detail(self, answer: Tree, noise: float, number: int) -> dict[str, Any]:
        """Records and positives minus half the records, before they are clamped, and the noise of each number."""
        size = self.unit * number
        released = {name: np.asarray(answer[name], dtype=np.float64) * size for name in ("records", "excess")}
        return {**released, "noise": noise * size}

    def placed(
        self, probability: npt.NDArray[np.floating], positive: npt.NDArray[np.bool_]
    ) -> dict[str, npt.NDArray[Any]]:
        """The stored form of predictions."""
        certain = usable_probability(probability, positive)
        place = np.minimum((certain * self.bins).astype(np.int32), self.bins - 1)
        return {"bin": place, "offset": certain - self.middles[place], "positive": positive}


def bin_names(edges: npt.ArrayLike) -> tuple[str, ...]:
    """The name of each bin.

    >>> bin_names([0, 0.5, 1])
    ('0 to 0.5', '0.5 to 1')
    """
    ends = np.asarray(edges, dtype=np.float64)
    return tuple(f"{low:.6g} to {high:.6g}" for low, high in itertools.pairwise(ends))


def calibration_interval(released: Mapping[str, Any], place: int, level: float) -> Interval:
    """A confidence interval for the share of positives in a bin of the population, which covers noise and sampling.

    With t = share - 1/2 it holds every t for which excess - t records is within z of its standard deviations, with a
    variance of sigma^2 (1 + t^2) for noise and records (1/4 - t^2) for the sample.
    """
    if not released or not released["records"][place] > 0:  # files of earlier versions have no such numbers
        return 0.0, 1.0
    records, excess = float(released["records"][place]), float(released["excess"][place])
    square = z_score(level) ** 2
    noisy, sampled = square * float(released["noise"]) ** 2, square * records
    low, high = solve_quadratic(records**2 - noisy + sampled, -2 * excess * records, excess**2 - noisy - sampled / 4)
    return within((low + 0.5, high + 0.5), 0.0, 1.0)


def usable_probability(probability: npt.NDArray[np.floating], positive: npt.NDArray[np.bool_]) -> Floats:
    """Predicted probabilities between 0 and 1; one that is not finite counts as the worst one."""
    return np.where(np.isfinite(probability), np.clip(probability, 0, 1), ~positive)
