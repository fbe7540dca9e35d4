"""Held-out rows and a model's predictions for them, obtained so that no error or warning reveals a row's content.

Everything here happens before a charge and releases nothing. Refusals that depend on a cell (a missing target, rows on
which the model raises) lie outside (epsilon, delta), as for `Records`; their messages do not depend on the cell.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from dpbilevel.errors import InvalidArgument, InvalidRecords

Array = npt.NDArray[Any]

_PAIR = "records: must be a pair (X, y) of held-out rows and targets, with one target per row"


def checked_pair(records: Any) -> tuple[Any, Array]:
    """The rows unchanged, and as many targets, as numbers or strings."""
    if not isinstance(records, tuple | list) or len(records) != 2:
        raise InvalidRecords(f"{_PAIR}, not {type(records).__name__}")
    rows, given = records
    number, targets = _length(rows), labels(given)
    if targets is None:
        raise InvalidRecords(
            "records: y must be all numbers or all strings, one per row, with none missing or infinite; clean it (drop "
            "rows by a public rule)"
        )
    if number is None or number != len(targets):
        raise InvalidRecords(f"{_PAIR}; their lengths differ, or X has none")
    if number == 0:
        raise InvalidRecords(f"{_PAIR}; they are empty")
    return rows, targets


def classes_of(model: Any) -> Array | None:
    """The classes of a classifier, which are public like the model; None for a regressor or a plain function."""
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
    """One prediction per row, as returned by the model."""
    predict = model.predict if callable(getattr(model, "predict", None)) else model
    output = _called(predict, rows)
    # The message omits a wrong shape: it could be the number of rows with some property.
    if output.shape != (number,):
        raise InvalidArgument("model: must predict one number or label per row; its output has another shape")
    output = output.astype(object) if output.dtype.kind == "T" else output
    if output.dtype.kind not in "biufUO":
        raise InvalidArgument("model: must predict numbers or strings; its output has another type")
    return output


def probabilities(model: Any, rows: Any, number: int, classes: Array) -> npt.NDArray[np.floating]:
    """The probability of each class for each row."""
    output = _called(model.predict_proba, rows)
    if output.shape != (number, len(classes)):
        raise InvalidArgument("model: predict_proba must return one probability for each row and each of classes_")
    return real_numbers(output)


def rows_at(rows: Any, places: npt.NDArray[np.intp]) -> Any:
    """The rows at some places, in the form in which they were given."""
    table = rows.tocsr() if scipy.sparse.issparse(rows) else getattr(rows, "iloc", rows)
    if isinstance(table, tuple | list):
        return [table[place] for place in places]
    taken = _quietly(lambda: table[places])
    if taken is None:
        raise InvalidRecords("records: X must be an array, a data frame or a list to be scored by units; convert it")
    return taken


def real_numbers(output: Array) -> npt.NDArray[np.floating]:
    """Predictions as floating-point numbers, which need not be finite."""
    if output.dtype.kind == "f":
        return output
    numbers = _quietly(lambda: output.astype(np.float64)) if output.dtype.kind in "biuO" else None
    if numbers is None:
        raise InvalidArgument("model: must predict real numbers for this metric; its output has another type")
    return np.asarray(numbers)


def positions(targets: Array, classes: Array) -> npt.NDArray[np.intp]:
    """The index of each target among the classes; -1 for a target that is unknown to the model.

    >>> positions(np.array(["b", "z", "a"]), np.array(["a", "b"])).tolist()
    [1, -1, 0]
    """
    order = np.argsort(classes)
    nearest = order[np.minimum(np.searchsorted(classes, targets, sorter=order), len(classes) - 1)]
    return np.where(classes[nearest] == targets, nearest, -1)


def right(predicted: Array, targets: Array) -> npt.NDArray[np.bool_]:
    """Boolean mask of the predictions that equal their targets; missing predictions and NaN are wrong."""
    if predicted.dtype.kind != "O":
        check_same_kind(targets, predicted)
        return np.asarray(predicted == targets)
    # Cell by cell, because pandas' missing value makes a comparison of arrays fail.
    pairs = zip(predicted.tolist(), targets.tolist(), strict=True)
    return np.array([isinstance(cell, str | int | float | np.generic) and cell == target for cell, target in pairs])


def check_same_kind(targets: Array, predicted: Array) -> None:
    """Raise if one holds strings and the other does not: no prediction could be correct."""
    if (targets.dtype.kind == "U") != (predicted.dtype.kind == "U"):
        kind = "strings" if targets.dtype.kind == "U" else "numbers"
        raise InvalidRecords(f"records: y holds {kind} and the model's labels are not; encode y as for training")


def labels(values: Any) -> Array | None:
    """A one-dimensional array of finite numbers or of strings; None for anything else, or if values are missing."""
    if isinstance(values, np.ma.MaskedArray):
        return None
    # NumPy would convert the numbers in a mixed list to strings.
    array = _quietly(lambda: np.asarray(values, dtype=object if isinstance(values, tuple | list) else None))
    if array is None or array.ndim != 1:
        return None
    if array.dtype.kind in "OT":  # objects: strings of data frames, or numbers with missing values
        cells = array.tolist()
        array = _quietly(lambda: np.asarray(cells))
        if array is None or (array.dtype.kind == "U" and not all(isinstance(cell, str) for cell in cells)):
            return None
        if not cells:
            return np.zeros(0)
    if array.ndim != 1 or array.dtype.kind not in "biufU":
        return None
    return None if array.dtype.kind == "f" and not np.isfinite(array).all() else array


def _called(method: Callable[[Any], Any], rows: Any) -> Array:
    output = _quietly(lambda: np.asarray(method(rows)))
    if output is None:
        raise InvalidArgument(
            "model: raised an error on the rows of records; its type and message are withheld, because both may reveal "
            "rows (try the model on public rows of the same form)"
        )
    return np.asarray(output)


def _quietly(function: Callable[[], Any]) -> Any:
    """The result of a function; None if it raises. Errors and warnings of other libraries may quote cells."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return function()
    except (Exception, SystemExit):
        # The caller raises, not this handler: an error raised while handling another would have it as context.
        return None


def _length(rows: Any) -> int | None:
    shape = getattr(rows, "shape", None)  # sparse matrices have no len
    length = _quietly(lambda: shape[0] if shape is not None else len(rows))
    return None if length is None else int(length)
