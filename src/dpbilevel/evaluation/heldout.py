"""Held-out rows and what a model says of them, asked so that no error and no warning tells what is in a row.

Everything here happens before a charge and releases nothing. What is refused because of a cell (a missing target, rows
on which the model raises) lies outside (epsilon, delta), as for `Records`; the messages are the same whatever the cell.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument, InvalidRecords

Array = npt.NDArray[Any]

_PAIR = "records: must be a pair (X, y) of held-out rows and targets, with one target for each row"


def checked_pair(records: Any) -> tuple[Any, Array]:
    """Rows as they are and targets as numbers or strings, equally many."""
    if not isinstance(records, tuple | list) or len(records) != 2:
        raise InvalidRecords(f"{_PAIR}, not {type(records).__name__}")
    rows, given = records
    number, targets = _length(rows), labels(given)
    if targets is None:
        raise InvalidRecords(
            "records: y must be numbers alone or strings alone, one for each row, with none missing or infinite; clean "
            "it (drop rows by a public rule)"
        )
    if number is None or number != len(targets):
        raise InvalidRecords(f"{_PAIR}; their lengths differ, or X has none")
    if number == 0:
        raise InvalidRecords(f"{_PAIR}; they are empty")
    return rows, targets


def classes_of(model: Any) -> Array | None:
    """The labels of a classifier, which are public like the model; None for a regressor or a plain function."""
    if isinstance(model, type) or not (callable(model) or callable(getattr(model, "predict", None))):
        raise InvalidArgument(
            f"model: must be a fitted model with predict, or a function from rows to predictions, not "
            f"{model.__name__ if isinstance(model, type) else type(model).__name__}"
        )
    given = getattr(model, "classes_", None)
    if given is None:
        if callable(getattr(model, "predict_proba", None)):
            raise InvalidArgument("model: has predict_proba but no classes_; fit it first")
        return None
    classes = labels(given)
    if classes is None or len(classes) == 0:
        raise InvalidArgument("model: its classes_ must be one array of numbers or of strings (one output)")
    return classes


def predictions(model: Any, rows: Any, number: int) -> Array:
    """One prediction for each row, as the model gives them."""
    predict = model.predict if callable(getattr(model, "predict", None)) else model
    answer = _asked(predict, rows)
    # A shape that does not fit is not told: it could be the number of rows to which something applies.
    if answer.shape != (number,):
        raise InvalidArgument("model: must predict one number or label for each row; its answer has another shape")
    answer = answer.astype(object) if answer.dtype.kind == "T" else answer
    if answer.dtype.kind not in "biufUO":
        raise InvalidArgument("model: must predict numbers or strings; its answer has another type")
    return answer


def probabilities(model: Any, rows: Any, number: int, classes: Array) -> npt.NDArray[np.floating]:
    """The probability of each class for each row."""
    answer = _asked(model.predict_proba, rows)
    if answer.shape != (number, len(classes)):
        raise InvalidArgument("model: predict_proba must give one probability for each row and each of classes_")
    return real_numbers(answer)


def real_numbers(answer: Array) -> npt.NDArray[np.floating]:
    """Predictions as floating-point numbers, whatever they are; not all have to be finite."""
    if answer.dtype.kind == "f":
        return answer
    numbers = _quietly(lambda: answer.astype(np.float64)) if answer.dtype.kind in "biuO" else None
    if numbers is None:
        raise InvalidArgument("model: must predict real numbers for this metric; its answer has another type")
    return np.asarray(numbers)


def positions(targets: Array, classes: Array) -> npt.NDArray[np.intp]:
    """Where each target stands among the classes, -1 for one that the model does not know.

    >>> positions(np.array(["b", "z", "a"]), np.array(["a", "b"])).tolist()
    [1, -1, 0]
    """
    order = np.argsort(classes)
    found = order[np.minimum(np.searchsorted(classes, targets, sorter=order), len(classes) - 1)]
    return np.where(classes[found] == targets, found, -1)


def right(predicted: Array, targets: Array) -> npt.NDArray[np.bool_]:
    """Which predictions equal their targets; a prediction that is missing or not a number is wrong."""
    if predicted.dtype.kind != "O":
        check_same_kind(targets, predicted)
        return np.asarray(predicted == targets)
    # Cell by cell, for pandas' missing value makes a comparison of whole arrays fail.
    pairs = zip(predicted.tolist(), targets.tolist(), strict=True)
    return np.array([isinstance(cell, str | int | float | np.generic) and cell == target for cell, target in pairs])


def check_same_kind(targets: Array, predicted: Array) -> None:
    """Raise where one holds strings and the other does not: no prediction could be right."""
    if (targets.dtype.kind == "U") != (predicted.dtype.kind == "U"):
        kind = "strings" if targets.dtype.kind == "U" else "numbers"
        raise InvalidRecords(f"records: y holds {kind} and the model's labels are not; encode y as for training")


def labels(values: Any) -> Array | None:
    """One axis of finite numbers or of strings; None where they are anything else, or some are missing."""
    if isinstance(values, np.ma.MaskedArray):
        return None
    # NumPy would make strings of the numbers in a list of both.
    array = _quietly(lambda: np.asarray(values, dtype=object if isinstance(values, tuple | list) else None))
    if array is None or array.ndim != 1:
        return None
    if array.dtype.kind in "OT":  # objects: strings as data frames have them, or numbers with gaps
        cells = array.tolist()
        array = _quietly(lambda: np.asarray(cells))
        if array is None or (array.dtype.kind == "U" and not all(isinstance(cell, str) for cell in cells)):
            return None
        if not cells:
            return np.zeros(0)
    if array.ndim != 1 or array.dtype.kind not in "biufU":
        return None
    return None if array.dtype.kind == "f" and not np.isfinite(array).all() else array


def _asked(method: Callable[[Any], Any], rows: Any) -> Array:
    answer = _quietly(lambda: np.asarray(method(rows)))
    if answer is None:
        raise InvalidArgument(
            "model: raised an error on the rows of records; its kind and message are withheld, for both may tell of "
            "rows (try the model on public rows of the same form)"
        )
    return np.asarray(answer)


def _quietly(function: Callable[[], Any]) -> Any:
    """What a function returns; None where it raises. Errors and warnings of elsewhere may quote cells."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return function()
    except (Exception, SystemExit):
        # The caller raises after this and not here: an error raised while another is handled carries that one along.
        return None


def _length(rows: Any) -> int | None:
    shape = getattr(rows, "shape", None)  # sparse matrices have no len
    length = _quietly(lambda: shape[0] if shape is not None else len(rows))
    return None if length is None else int(length)
