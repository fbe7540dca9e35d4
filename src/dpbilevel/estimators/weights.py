"""Weights of rows: given by the caller and bounded by a declared number, and weights of classes by declared numbers.

Weights are divided by the largest, so that a row of largest weight counts as a row without weights, and every clip norm
and every noise stays as planned. They are part of a record: a neighbouring record may have another weight. Releases
clip weighted gradients like all others, so that the guarantee does not rest on any weight.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.estimators.prepared import Rows
from dpbilevel.estimators.targets import Labels, Numbers, numbers
from dpbilevel.foundation.arguments import positive
from dpbilevel.linear_loss import LinearLoss
from dpbilevel.problem import BilevelProblem


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of all rows, relative to the largest; none if all rows count the same.

    Args:
        columns: a column of numbers from zero to one, as a further column of records, or no column.
        caveats: limits of the guarantee because the largest weight was not declared.
        known: what was declared: the largest weight, and the weight of each class.
    """

    columns: tuple[Any, ...] = ()
    caveats: tuple[str, ...] = ()
    known: Any = None

    @classmethod
    def of(cls, given: Any, largest: float | None, by_class: Any, rows: Rows, targets: Labels | Numbers) -> "Weights":
        """The weights of rows; for a plan only their shape."""
        if largest is not None:
            largest = positive("largest_weight", largest, "it bounds the weight of every row (try 1.0)")
        factors = None if by_class is None else class_factors(by_class, targets)
        if rows.scaling is None:
            weighted = largest is not None or factors is not None
            return cls((rows.column(np.float32),)) if weighted else cls()
        if given is None and factors is None:
            return cls()
        caveats: tuple[str, ...] = ()
        values = np.ones(rows.shape[0])
        if given is not None:
            values = numbers("sample_weight", given, rows.shape[0]).astype(np.float64)
            if (values < 0).any():
                raise InvalidRecords("sample_weight: must have no negative weight; leave a row out by a weight of zero")
            if largest is None:
                largest = float(values.max(initial=0.0)) or 1.0
                caveats = (
                    "largest_weight was not declared and is that of the data, which the guarantee does not cover "
                    "(declare largest_weight=)",
                )
            with np.errstate(over="ignore"):  # a NumPy warning would reveal an outlier
                values = np.minimum(values / largest, 1.0)
        if factors is not None:
            values = values * factors[targets.values]
        return cls((values.astype(np.float32),), caveats, [largest, None if factors is None else factors.tolist()])

    def problem(self, problem: BilevelProblem) -> BilevelProblem:
        """The problem whose losses are multiplied by the weights of records."""
        return _weighted(problem) if self.columns else problem


def class_factors(given: Any, targets: Labels | Numbers) -> Any:
    """The declared weight of each class, relative to the largest.

    >>> labels = Labels(np.array(["no", "yes"]), None)
    >>> class_factors({"yes": 4.0, "no": 1.0}, labels).tolist()
    [0.25, 1.0]
    """
    if isinstance(given, str) and given == "balanced":
        raise InvalidArgument(
            "class_weight='balanced': reads the counts of classes, which are private and not paid for; declare "
            "numbers, such as {'no': 1, 'yes': 5}, from what is publicly known"
        )
    classes = targets.classes.tolist() if isinstance(targets, Labels) else []
    if not isinstance(given, Mapping) or set(given) != set(classes):
        raise InvalidArgument("class_weight: must be a dictionary from every class to its weight, or None")
    weights = np.array([positive("class_weight", given[name], "it is the weight of a class") for name in classes])
    return weights / weights.max()


@functools.lru_cache(maxsize=64)  # one object for each problem, so that what is compiled is shared
def _weighted(problem: BilevelProblem) -> BilevelProblem:
    return replace(
        problem, upper_loss=_weighted_loss(problem.upper_loss), lower_loss=_weighted_loss(problem.lower_loss)
    )


@functools.lru_cache(maxsize=64)
def _weighted_loss(loss: Any) -> LinearLoss:
    return replace(loss, loss=lambda x, score, record: record[-1] * loss.loss(x, score, record))
