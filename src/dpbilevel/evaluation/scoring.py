"""Metrics as bounded per-record contributions.

Every metric is the mean of contributions of norm at most 1/2, in the metric's own units and around a public centre,
which halves the sensitivity. A release answers with the noisy mean; the rest is post-processing. k metrics together are
one contribution of norm at most sqrt(k)/2, so that each gets the same share of the budget's mu^2.

All metrics have the same interface: ``contribution`` of one record, ``value`` and ``standard_error`` of an answer,
``meaning`` in words, the ``largest`` value (the smallest is zero), and ``unit``, which converts noise on the answer to
noise relative to that value.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.evaluation.heldout import (
    Array,
    check_same_kind,
    positions,
    predictions,
    probabilities,
    real_numbers,
    right,
)
from dpbilevel.foundation.arguments import count, one_of, positive

Tree = Any
Floats = npt.NDArray[np.float64]

NORM = 0.5  # the largest norm of one record's contribution, of every metric
_LARGEST = 2.0**99  # a clipped sum treats entries beyond 2^100 as infinite


@dataclass(frozen=True)
class Accuracy:
    """The fraction of correct predictions; a record counts 0 or 1, centred at 1/2."""

    name: ClassVar[str] = "accuracy"
    meaning: ClassVar[str] = "fraction of correct predictions"
    largest: ClassVar[float] = 1.0
    unit: ClassVar[float] = 1.0

    def contribution(self, record: jax.Array) -> jax.Array:
        """+1/2 for a correct prediction, -1/2 for a wrong one."""
        return jnp.where(record, NORM, -NORM)

    def value(self, answer: Tree, number: int) -> float:
        """The fraction, between 0 and 1."""
        return float(np.clip(answer + 0.5, 0, 1))

    def standard_error(self, noise: float, number: int) -> float:
        """The noise on the answer, whose unit is one."""
        return noise


@dataclass(frozen=True)
class Loss:
    """The mean loss; each record's loss is clipped to [0, bound], in units of the bound and centred at half of it.

    Args:
        kind: "log-loss" or "squared error".
        bound: public; without privacy nothing is clipped, and it only replaces non-finite losses.
        clipped: whether losses are clipped.
    """

    kind: str
    bound: float
    clipped: bool

    name: ClassVar[str] = "loss"
    unit: ClassVar[float] = 1.0

    @property
    def meaning(self) -> str:
        """The kind of loss, and the bound to which it is clipped."""
        return f"mean {self.kind}" + (f", each record's clipped to [0, {self.bound:g}]" if self.clipped else "")

    @property
    def largest(self) -> float:
        """The bound, or infinity if nothing is clipped."""
        return self.bound if self.clipped else math.inf

    def contribution(self, record: jax.Array) -> jax.Array:
        """The loss as a fraction of the bound, minus one half."""
        share = record / self.bound
        return (jnp.clip(share, 0, 1) if self.clipped else share) - 0.5

    def value(self, answer: Tree, number: int) -> float:
        """The mean loss, between 0 and the bound."""
        return float(np.clip((answer + 0.5) * self.bound, 0, self.largest))

    def standard_error(self, noise: float, number: int) -> float:
        """The noise on the answer, times the bound."""
        return noise * self.bound

    def usable(self, losses: Floats) -> Floats:
        """Replace non-finite losses by the bound."""
        return np.where(losses < _LARGEST * self.bound, losses, self.bound)


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

    def standard_error(self, noise: float, number: int) -> dict[str, Floats]:
        """Standard errors per bin, before the three numbers are clamped to their ranges."""
        one = np.full(self.bins, noise * self.unit * number)
        return {"records": one, "probability": one * np.hypot(1, self.middles), "positives": one * math.hypot(1, 0.5)}

    def placed(
        self, probability: npt.NDArray[np.floating], positive: npt.NDArray[np.bool_]
    ) -> dict[str, npt.NDArray[Any]]:
        """The stored form of predictions; a NaN probability counts as the worst one."""
        certain = np.where(np.isfinite(probability), np.clip(probability, 0, 1), ~positive)
        place = np.minimum((certain * self.bins).astype(np.int32), self.bins - 1)
        return {"bin": place, "offset": certain - self.middles[place], "positive": positive}


Metric = Accuracy | Loss | Calibration
METRICS: tuple[str, ...] = (Accuracy.name, Loss.name, Calibration.name)


def chosen_metrics(
    metric: Any, model: Any, classes: Array | None, private: bool, loss_bound: Any, positive_class: Any, bins: Any
) -> tuple[Metric, ...]:
    """The requested metrics with their public parameters; raises if the model does not support one of them."""
    names = tuple(metric) if isinstance(metric, tuple | list) else (metric,)
    for name in names:
        one_of("metric", name, METRICS, "it selects the score; a tuple of metrics is released jointly")
    if not names or len(set(names)) < len(names):
        raise InvalidArgument(f"metric={metric!r}: must name at least one metric, without duplicates")
    is_classifier = classes is not None
    if "calibration" in names and not is_classifier:
        raise InvalidArgument('metric: "calibration" needs a classifier with predict_proba and classes_')
    if is_classifier and set(names) - {"accuracy"} and not callable(getattr(model, "predict_proba", None)):
        raise InvalidArgument(
            'metric: "loss" of a classifier and "calibration" need predict_proba, which the model lacks; try "accuracy"'
        )
    chosen: dict[str, Metric] = {"accuracy": Accuracy()}
    if "loss" in names:
        chosen["loss"] = _loss(classes, private, loss_bound)
    if "calibration" in names and classes is not None:
        number = count("bins", bins, "it is the number of bins of the predicted probability (try 10)")
        place = _place(positive_class, classes)
        chosen["calibration"] = Calibration(number, place, repr(classes[place].item()))
    return tuple(chosen[name] for name in names)


def scored(
    metrics: tuple[Metric, ...], model: Any, rows: Any, targets: Array, classes: Array | None
) -> dict[str, Tree]:
    """The stored form of each row's prediction, by metric. It is private: pass it to `Records` immediately."""
    number = len(targets)
    if classes is not None:
        check_same_kind(targets, classes)
    likely: npt.NDArray[np.floating] = np.zeros((number, 0))
    known: npt.NDArray[np.intp] = np.zeros(number, np.intp)
    if classes is not None and any(not isinstance(metric, Accuracy) for metric in metrics):
        likely, known = probabilities(model, rows, number, classes), positions(targets, classes)

    def stored(metric: Metric) -> Tree:
        if isinstance(metric, Accuracy):
            return right(predictions(model, rows, number), targets)
        if isinstance(metric, Calibration):
            return metric.placed(likely[:, metric.place], known == metric.place)
        if classes is not None:
            return metric.usable(log_losses(likely, known))
        if targets.dtype.kind == "U":
            raise InvalidRecords("records: y holds strings; a squared error needs numbers (or give a classifier)")
        return metric.usable(squared_errors(real_numbers(predictions(model, rows, number)), targets))

    return {metric.name: stored(metric) for metric in metrics}


def log_losses(probability: npt.NDArray[np.floating], known: npt.NDArray[np.intp]) -> Floats:
    """Negative log-probability of each record's label; a label that is unknown to the model has probability zero.

    A probability of zero counts as the machine epsilon of its dtype, as in scikit-learn.
    """
    mine = np.where(known >= 0, np.take_along_axis(probability, np.maximum(known, 0)[:, None], axis=1)[:, 0], 0)
    return -np.log(np.clip(mine, np.finfo(probability.dtype).eps, 1), dtype=np.float64)


def squared_errors(predicted: npt.NDArray[np.floating], targets: npt.NDArray[Any]) -> Floats:
    """The squared error of each record; overflows are infinite."""
    with np.errstate(all="ignore"):
        return np.square(predicted.astype(np.float64) - targets)


def default_loss_bound(classes: int) -> float:
    """The default bound of the log-loss: twice that of a uniform guess, and at least 4 (2% for the correct label).

    >>> default_loss_bound(2), round(default_loss_bound(100), 2)
    (4.0, 9.21)
    """
    return max(4.0, 2 * math.log(classes))


def _loss(classes: Array | None, private: bool, loss_bound: Any) -> Loss:
    if loss_bound is None and classes is None:
        raise InvalidArgument(
            "loss_bound=None: required for squared errors; a default would have to be estimated from the data (try the "
            "square of an error beyond which all errors are equally bad)"
        )
    bound = default_loss_bound(len(classes)) if loss_bound is None and classes is not None else loss_bound
    bound = positive("loss_bound", bound, "it is public, and each record's loss is clipped to it (try 4.0)")
    return Loss("squared error" if classes is None else "log-loss", bound, private)


def _place(positive_class: Any, classes: Array) -> int:
    known = classes.tolist()
    if positive_class is None and len(known) == 2:
        return 1
    if positive_class is None:
        raise InvalidArgument(
            f"positive_class=None: required for a model of {len(known)} classes; its probability is binned (try one of "
            "classes_)"
        )
    # Compared as plain values: NumPy would broadcast an array over the classes.
    if not isinstance(positive_class, str | int | float | np.generic) or positive_class not in known:
        raise InvalidArgument(f"positive_class={positive_class!r}: must be one of the model's classes_")
    return known.index(positive_class)
