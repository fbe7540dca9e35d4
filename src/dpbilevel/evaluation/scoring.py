"""The choice of metrics, and every record's prediction in the form that they need.

Every metric is computed from the mean of contributions of norm at most 1/2, in the metric's own units and around a
public centre where this halves the sensitivity. A release answers with the noisy mean; the rest is post-processing. k
metrics together are one contribution of norm at most sqrt(k)/2, so that each gets the same share of the budget's mu^2.

All metrics have the same interface: ``contribution`` of one record, ``value`` and ``standard_error`` of an answer,
``detail``, released numbers from which an interval is computed, ``meaning`` in words, the ``largest`` value, the
``shape`` of an answer, and ``unit``, which converts noise on the answer to noise relative to the range of what is
released.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.evaluation import auc, error_quantiles
from dpbilevel.evaluation.auc import Auc
from dpbilevel.evaluation.calibration import Calibration
from dpbilevel.evaluation.cells import UNIT
from dpbilevel.evaluation.error_quantiles import ErrorQuantiles
from dpbilevel.evaluation.groups import GroupAccuracy
from dpbilevel.evaluation.heldout import (
    Array,
    check_same_kind,
    labels,
    positions,
    predictions,
    probabilities,
    real_numbers,
    right,
)
from dpbilevel.evaluation.means import (
    NORM,
    Accuracy,
    Brier,
    Loss,
    Tree,
    brier_scores,
    default_loss_bound,
    log_losses,
    squared_errors,
)
from dpbilevel.evaluation.of_units import WithRows
from dpbilevel.evaluation.r_squared import RSquared
from dpbilevel.foundation.arguments import count, one_of, positive
from dpbilevel.privacy.budget import Budget

Metric = Accuracy | Loss | Brier | Auc | Calibration | GroupAccuracy | RSquared | ErrorQuantiles
ANY_MODEL = (Accuracy.name, Loss.name, GroupAccuracy.name)
CLASSIFIERS = (Brier.name, Auc.name, Calibration.name)
REGRESSORS = (RSquared.name, ErrorQuantiles.name)
METRICS: tuple[str, ...] = (*ANY_MODEL, *CLASSIFIERS, *REGRESSORS)


@dataclass(frozen=True)
class Declared:
    """Public arguments of `evaluate` that metrics depend on, as given."""

    loss_bound: Any = None
    positive_class: Any = None
    bins: Any = 10
    edges: Any = None
    target_range: Any = None
    group_names: Any = None


def chosen_metrics(
    metric: Any, model: Any, classes: Array | None, budget: Budget, number: int, declared: Declared
) -> tuple[Metric, ...]:
    """The requested metrics with their public parameters; raises if the model does not support one of them."""
    names = tuple(metric) if isinstance(metric, tuple | list) else (metric,)
    for name in names:
        one_of("metric", name, METRICS, "it selects the score; a tuple of metrics is released jointly")
    if not names or len(set(names)) < len(names):
        raise InvalidArgument(f"metric={metric!r}: must name at least one metric, without duplicates")
    _check_model(names, model, classes)
    made: dict[str, Callable[[], Metric]] = {
        Accuracy.name: lambda: Accuracy(),
        Loss.name: lambda: _loss(classes, budget.is_private, declared),
        Brier.name: lambda: Brier(1.0 if classes is not None and len(classes) == 2 else 2.0),
        Auc.name: lambda: _auc(classes, declared, _count_noise(budget, number, len(names))),
        Calibration.name: lambda: _calibration(classes, declared),
        GroupAccuracy.name: lambda: GroupAccuracy(tuple(str(name) for name in group_names(declared).tolist())),
        RSquared.name: lambda: _r_squared(budget.is_private, declared),
        ErrorQuantiles.name: lambda: _error_quantiles(declared),
    }
    return tuple(made[name]() for name in names)


def scored(
    metrics: tuple[Metric | WithRows, ...],
    model: Any,
    rows: Any,
    targets: Array,
    classes: Array | None,
    group: npt.NDArray[np.intp] | None,
) -> dict[str, Tree]:
    """The stored form of each row's prediction, by metric. It is private: pass it to `Records` immediately."""
    if classes is not None:
        check_same_kind(targets, classes)
    made = _Predictions(model, rows, targets, classes)

    def stored(metric: Metric | WithRows) -> Tree:
        if isinstance(metric, WithRows):
            return np.ones(len(targets), np.bool_)
        if isinstance(metric, Accuracy):
            return made.right
        if isinstance(metric, GroupAccuracy):
            assert group is not None, "chosen metrics need groups"
            return metric.placed(group, made.right)
        if isinstance(metric, Auc | Calibration):
            return metric.placed(made.probability[:, metric.place], made.known == metric.place)
        if isinstance(metric, Brier):
            return metric.usable(brier_scores(made.probability, made.known))
        if isinstance(metric, ErrorQuantiles):
            return metric.placed(made.errors)
        if isinstance(metric, RSquared):
            return metric.placed(made.errors, targets)
        return metric.usable(made.errors if classes is None else log_losses(made.probability, made.known))

    return {metric.name: stored(metric) for metric in metrics}


class _Predictions:
    """What a model says of all rows, each kind of prediction computed once and only if a metric needs it."""

    def __init__(self, model: Any, rows: Any, targets: Array, classes: Array | None) -> None:
        self._model, self._rows, self._targets = model, rows, targets
        self._classes = np.zeros(0) if classes is None else classes

    @functools.cached_property
    def _predicted(self) -> Array:
        return predictions(self._model, self._rows, len(self._targets))

    @functools.cached_property
    def right(self) -> npt.NDArray[np.bool_]:
        """Which predictions are correct."""
        return right(self._predicted, self._targets)

    @functools.cached_property
    def probability(self) -> npt.NDArray[np.floating]:
        """The probability of each class."""
        return probabilities(self._model, self._rows, len(self._targets), self._classes)

    @functools.cached_property
    def known(self) -> npt.NDArray[np.intp]:
        """The index of each label among the classes, or -1."""
        return positions(self._targets, self._classes)

    @functools.cached_property
    def errors(self) -> npt.NDArray[np.float64]:
        """Squared errors."""
        if self._targets.dtype.kind == "U":
            raise InvalidRecords("records: y holds strings; an error needs numbers (or give a classifier)")
        return squared_errors(real_numbers(self._predicted), self._targets)


def group_names(declared: Declared) -> Array:
    """The declared names of groups."""
    names = None if declared.group_names is None else labels(declared.group_names)
    if names is None or len(names) == 0 or len(set(names.tolist())) < len(names):
        raise InvalidArgument(
            "group_names: must list the names of all groups, all numbers or all strings, without duplicates; they are "
            "declared, because names read from the rows would reveal rows"
        )
    return names


def group_positions(groups: Any, number: int, declared: Declared) -> npt.NDArray[np.intp]:
    """The index of each row's group among the declared names; -1 for a group that is not declared."""
    names = group_names(declared)
    found = labels(groups)
    if found is None or len(found) != number:
        raise InvalidRecords(
            "groups: must be all numbers or all strings, one per row, with none missing; replace missing ones by a name"
        )
    if (found.dtype.kind == "U") != (names.dtype.kind == "U"):
        raise InvalidRecords("groups: and group_names must both hold strings, or both hold numbers")
    return positions(found, names)


def _check_model(names: tuple[str, ...], model: Any, classes: Array | None) -> None:
    for name in names:
        if classes is None and name in CLASSIFIERS:
            raise InvalidArgument(f'metric: "{name}" needs a classifier with predict_proba and classes_')
        if classes is not None and name in REGRESSORS:
            raise InvalidArgument(f'metric: "{name}" is for models that predict numbers; try "accuracy" or "auc"')
    probable = set(names) & {Loss.name, *CLASSIFIERS}
    if classes is not None and probable and not callable(getattr(model, "predict_proba", None)):
        raise InvalidArgument(
            f'metric: "{sorted(probable)[0]}" of a classifier and "calibration" need predict_proba, which the model '
            'lacks; try "accuracy"'
        )


def _count_noise(budget: Budget, number: int, metrics: int) -> float:
    """The noise of a count as a fraction of all records, for default bins; what is charged is computed elsewhere."""
    if not budget.is_private:
        return 0.0
    moved = NORM * math.sqrt(metrics) * (2 if budget.adjacency == "replace-one" else 1)
    return UNIT * moved / (number * budget.mu)


def _loss(classes: Array | None, private: bool, declared: Declared) -> Loss:
    given = declared.loss_bound
    if given is None and classes is None:
        return Loss("squared error", _error_bound(declared), private)
    bound = default_loss_bound(len(classes)) if given is None and classes is not None else given
    return Loss("squared error" if classes is None else "log-loss", _checked_bound(bound), private)


def _checked_bound(bound: Any) -> float:
    return positive("loss_bound", bound, "it is public, and each record's loss is clipped to it (try 4.0)")


def _error_bound(declared: Declared) -> float:
    """The bound of squared errors: the square of the declared range of targets, unless another is given."""
    if declared.loss_bound is not None:
        return _checked_bound(declared.loss_bound)
    if declared.target_range is None:
        raise InvalidArgument(
            "loss_bound=None: required for squared errors; a default would have to be estimated from the data (try the "
            "square of an error beyond which all errors are equally bad, or declare target_range)"
        )
    low, high = _target_range(declared)
    return (high - low) ** 2


def _target_range(declared: Declared) -> tuple[float, float]:
    given = declared.target_range
    rule = "target_range: must be a pair (low, high) of finite numbers with low < high; it is declared, not computed"
    if not isinstance(given, tuple | list | np.ndarray) or len(given) != 2:
        raise InvalidArgument(rule)
    numbers = [labels([bound]) for bound in given]
    if any(bound is None or bound.dtype.kind not in "iuf" for bound in numbers):
        raise InvalidArgument(rule)
    low, high = (float(bound[0]) for bound in numbers if bound is not None)
    if not (low < high and math.isfinite((high - low) ** 2)):
        raise InvalidArgument(rule)
    return low, high


def _edges(declared: Declared, last: float | None) -> tuple[float, ...] | None:
    """Declared edges of bins, from 0 and up to ``last`` if there is one."""
    if declared.edges is None:
        return None
    found = labels(declared.edges)
    if found is None or found.dtype.kind not in "iuf" or len(found) < 3:
        raise InvalidArgument("edges: must be at least three increasing numbers, the edges of public bins")
    edges = found.astype(np.float64)
    if not (np.diff(edges) > 0).all() or edges[0] != 0 or (last is not None and edges[-1] != last):
        end = "" if last is None else f" and end at {last:g}"
        raise InvalidArgument(f"edges: must increase, start at 0{end}; they are the edges of public bins")
    return tuple(edges.tolist())


def _auc(classes: Array | None, declared: Declared, noise: float) -> Auc:
    assert classes is not None, "checked"
    place = _place(declared.positive_class, classes)
    edges = _edges(declared, 1.0) or auc.default_edges(noise)
    return Auc(edges, place, repr(classes[place].item()))


def _calibration(classes: Array | None, declared: Declared) -> Calibration:
    assert classes is not None, "checked"
    number = count("bins", declared.bins, "it is the number of bins of the predicted probability (try 10)")
    place = _place(declared.positive_class, classes)
    return Calibration(number, place, repr(classes[place].item()))


def _r_squared(private: bool, declared: Declared) -> RSquared:
    _check_range(declared, RSquared.name)
    return RSquared(*_target_range(declared), _error_bound(declared), private)


def _error_quantiles(declared: Declared) -> ErrorQuantiles:
    edges = _edges(declared, None)
    if edges is None:
        _check_range(declared, ErrorQuantiles.name)
        edges = error_quantiles.default_edges(*_target_range(declared))
    return ErrorQuantiles(edges)


def _check_range(declared: Declared, name: str) -> None:
    if declared.target_range is None:
        raise InvalidArgument(
            f'target_range=None: required for "{name}"; it is declared, because a range read from the targets would '
            "reveal them (try the range for which the model was trained)"
        )


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
