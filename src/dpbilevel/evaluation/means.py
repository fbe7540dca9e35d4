"""Scores that are means of bounded numbers: accuracy, the clipped loss, and the Brier score."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.evaluation.intervals import Interval, solve_quadratic, z_score

Tree = Any
Floats = npt.NDArray[np.float64]

NORM = 0.5  # the largest norm of one record's contribution, of every metric
_LARGEST = 2.0**99  # a clipped sum treats entries beyond 2^100 as infinite


class Mean:
    """The mean of numbers between zero and ``bound``, in units of the bound and centred at half of it.

    Attributes:
        bound: public; without privacy nothing is clipped, and it only replaces non-finite numbers.
        clipped: whether numbers are clipped to [0, bound].
    """

    bound: float
    clipped: bool

    unit: ClassVar[float] = 1.0
    shape: ClassVar[tuple[int, ...]] = ()  # of an answer

    @property
    def largest(self) -> float:
        """The bound, or infinity if nothing is clipped."""
        return self.bound if self.clipped else math.inf

    def contribution(self, record: jax.Array) -> jax.Array:
        """The number as a fraction of the bound, minus one half."""
        share = record / self.bound
        return (jnp.clip(share, 0, 1) if self.clipped else share) - 0.5

    def value(self, answer: Tree, number: int) -> float:
        """The mean, between 0 and the bound."""
        return float(np.clip((answer + 0.5) * self.bound, 0, self.largest))

    def standard_error(self, answer: Tree, noise: float, number: int) -> float:
        """The noise on the answer, times the bound."""
        return noise * self.bound

    def detail(self, answer: Tree, noise: float, number: int) -> dict[str, Any]:
        """Nothing else is released."""
        return {}

    def usable(self, numbers: Floats) -> Floats:
        """Replace non-finite numbers by the bound."""
        return usable(numbers, self.bound)


@dataclass(frozen=True)
class Accuracy:
    """The fraction of correct predictions; a record counts 0 or 1, centred at 1/2."""

    name: ClassVar[str] = "accuracy"
    meaning: ClassVar[str] = "fraction of correct predictions"
    largest: ClassVar[float] = 1.0
    unit: ClassVar[float] = 1.0
    shape: ClassVar[tuple[int, ...]] = ()

    def contribution(self, record: jax.Array) -> jax.Array:
        """+1/2 for a correct prediction, -1/2 for a wrong one."""
        return jnp.where(record, NORM, -NORM)

    def value(self, answer: Tree, number: int) -> float:
        """The fraction, between 0 and 1."""
        return float(np.clip(answer + 0.5, 0, 1))

    def standard_error(self, answer: Tree, noise: float, number: int) -> float:
        """The noise on the answer, whose unit is one."""
        return noise

    def detail(self, answer: Tree, noise: float, number: int) -> dict[str, Any]:
        """Nothing else is released."""
        return {}


@dataclass(frozen=True)
class Loss(Mean):
    """The mean loss; each record's loss is clipped to [0, bound].

    Clipping a log-loss to b is the same as raising the predicted probability of the label to at least exp(-b).

    Args:
        kind: "log-loss" or "squared error".
        bound, clipped: as in `Mean`.
    """

    kind: str
    bound: float
    clipped: bool

    name: ClassVar[str] = "loss"

    @property
    def meaning(self) -> str:
        """The kind of loss, and the bound to which it is clipped."""
        return f"mean {self.kind}" + (f", each record's clipped to [0, {self.bound:g}]" if self.clipped else "")


@dataclass(frozen=True)
class Brier(Mean):
    """The Brier score: the mean squared distance of predicted probabilities from the label.

    It is (p - 1)^2 or p^2 for two classes, at most 1, and the sum over classes for more, at most 2. scikit-learn has
    the same scale.

    Args:
        bound: 1 for two classes, 2 for more.
        clipped: as in `Mean`; probabilities between 0 and 1 are within the bound.
    """

    bound: float
    clipped: bool = True

    name: ClassVar[str] = "brier"

    @property
    def meaning(self) -> str:
        """The scale of the score."""
        return f"Brier score: mean squared error of predicted probabilities, at most {self.bound:g}"


def log_losses(probability: npt.NDArray[np.floating], known: npt.NDArray[np.intp]) -> Floats:
    """Negative log-probability of each record's label; a label that is unknown to the model has probability zero.

    A probability of zero counts as the machine epsilon of its dtype, as in scikit-learn.
    """
    mine = np.where(known >= 0, np.take_along_axis(probability, np.maximum(known, 0)[:, None], axis=1)[:, 0], 0)
    return -np.log(np.clip(mine, np.finfo(probability.dtype).eps, 1), dtype=np.float64)


def brier_scores(probability: npt.NDArray[np.floating], known: npt.NDArray[np.intp]) -> Floats:
    """The Brier score of each record; a label that is unknown to the model has probability zero.

    >>> brier_scores(np.array([[0.25, 0.75]]), np.array([1])).tolist()
    [0.0625]
    """
    classes = probability.shape[1]
    certain = np.clip(np.asarray(probability, np.float64), 0, 1)
    distances = np.square(certain - (np.arange(classes) == known[:, None]))
    # Two distances of two classes are equal, as long as probabilities add up to one.
    return np.asarray(distances.sum(axis=1) / (2 if classes == 2 else 1))


def squared_errors(predicted: npt.NDArray[np.floating], targets: npt.NDArray[Any]) -> Floats:
    """The squared error of each record; overflows are infinite."""
    with np.errstate(all="ignore"):
        return np.square(predicted.astype(np.float64) - targets)


def usable(numbers: Floats, bound: float) -> Floats:
    """Replace numbers that are not finite, or too large for a clipped sum, by their bound."""
    return np.where(numbers < _LARGEST * bound, numbers, bound)


def default_loss_bound(classes: int) -> float:
    """The default bound of the log-loss: twice that of a uniform guess, and at least 4 (2% for the correct label).

    >>> default_loss_bound(2), round(default_loss_bound(100), 2)
    (4.0, 9.21)
    """
    return max(4.0, 2 * math.log(classes))


def mean_interval(score: float, noise: float, largest: float, number: int, level: float) -> Interval:
    """All means m of the population within z sqrt(noise^2 + m (largest - m)/n) of the score.

    A mean m of values between zero and b has a sampling variance of at most m (b - m)/n, whatever their distribution.
    """
    square = z_score(level) ** 2
    low, high = solve_quadratic(
        1 + square / number,
        -2 * score - square * largest / number,
        score**2 - square * noise**2,
    )
    return max(0.0, low), min(largest, high)
