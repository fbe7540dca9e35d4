"""Targets of estimators: labels as numbers of declared classes, values in a declared range, names as numbers."""

import contextlib
import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import DataConversionWarning

from dpbilevel.encoding.declarations import OTHER
from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.estimators.prepared import Rows
from dpbilevel.evaluation.heldout import labels, positions

Array = npt.NDArray[Any]

TARGET_BOUND = 3.0  # of scaled targets: residuals are then about as large as slopes of a logistic loss

# In scikit-learn's words.
_COLUMN = "A column-vector {0} was passed when a 1d array was expected. Please change the shape of {0} to (n_samples,)"


@dataclass(frozen=True)
class TargetScale:
    """Declared targets as numbers between -3 and 3, and back."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """What zero stands for."""
        return self.low / 2 + self.high / 2

    @property
    def unit(self) -> float:
        """What one stands for, beyond the middle."""
        return (self.high / 2 - self.low / 2) / TARGET_BOUND

    def scaled(self, y: Array) -> npt.NDArray[np.float32]:
        """Targets within the range, as scaled numbers; others as its nearest end."""
        _check_numbers("y", y)
        with np.errstate(over="ignore"):  # a warning of NumPy's would tell that a target is far out
            scaled = (y.astype(np.float64) - self.middle) / self.unit
        return np.clip(scaled, -TARGET_BOUND, TARGET_BOUND).astype(np.float32)

    def unscaled(self, coefficients: Array, intercepts: Array) -> tuple[Array, Array]:
        """A model of scaled targets as one of targets in their own units."""
        return self.unit * coefficients, self.unit * intercepts + self.middle


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of rows as numbers of classes. Two classes have one output, the second class."""

    classes: Array
    values: Any
    caveats: tuple[str, ...] = ()

    @classmethod
    def of(cls, y: Any, rows: Rows, classes: Any) -> "Labels":
        """The labels of rows; of a plan their shape, with declared classes."""
        if rows.scaling is None:
            return cls(declared_names("classes", classes), rows.column(np.int32))
        return cls(*_with_caveats(*class_codes(column("y", y, rows.shape[0]), classes)))

    @property
    def known(self) -> Array:
        """What is known of all of them: the classes."""
        return self.classes

    @property
    def model(self) -> dict[str, Any]:
        """The loss that they have, as applications take it."""
        number = len(self.classes)
        return {"loss": "logistic"} if number == 2 else {"loss": "softmax", "classes": number}

    def same(self, y: Array) -> npt.NDArray[np.int32]:
        """More labels of the same classes."""
        return class_codes(y, self.classes)[1]

    def attributes(self, coefficients: Array, intercepts: Array) -> dict[str, Any]:
        """What a fit is left with."""
        return {"classes_": self.classes, "coef_": coefficients, "intercept_": intercepts}


@dataclass(frozen=True, eq=False)
class Numbers:
    """Targets of rows as scaled numbers. A plan has no scale: shapes do not depend on it."""

    scale: TargetScale
    values: Any
    caveats: tuple[str, ...] = ()

    @classmethod
    def of(cls, y: Any, rows: Rows, target_range: Any) -> "Numbers":
        """The targets of rows; of a plan their shape."""
        if rows.scaling is None:
            return cls(TargetScale(-TARGET_BOUND, TARGET_BOUND), rows.column(np.float32))
        given = column("y", y, rows.shape[0])
        scale, caveat = target_scale(given, target_range)
        return cls(*_with_caveats(scale, scale.scaled(given), caveat))

    @property
    def known(self) -> TargetScale:
        """What is known of all of them: their range."""
        return self.scale

    @property
    def model(self) -> dict[str, Any]:
        """The loss that they have, as applications take it."""
        return {"loss": "squared", "target_bound": TARGET_BOUND}

    def same(self, y: Array) -> npt.NDArray[np.float32]:
        """More targets of the same range."""
        return self.scale.scaled(y)

    def attributes(self, coefficients: Array, intercepts: Array) -> dict[str, Any]:
        """What a fit is left with: one row of coefficients, in units of the target."""
        coefficients, intercepts = self.scale.unscaled(coefficients, intercepts)
        return {"coef_": coefficients[0], "intercept_": float(intercepts[0])}


@dataclass(frozen=True, eq=False)
class Names:
    """Places that rows come from (sources, tasks) as numbers of their sorted names."""

    names: Array
    values: Any
    caveats: tuple[str, ...] = ()

    @classmethod
    def of(cls, what: str, given: Any, rows: Rows, names: Any) -> "Names":
        """The places of rows, one for all where none are given; of a plan their shape, with declared names."""
        if rows.scaling is None:
            return cls(declared_names(f"{what}_names", names), rows.column(np.int32))
        if given is None:
            return cls(np.array(["all"]), np.zeros(rows.shape[0], np.int32))
        return cls(*_with_caveats(*name_codes(what, column(f"{what}s", given, rows.shape[0]), names, strict=True)))


def _with_caveats(known: Any, values: Any, caveat: str | None) -> tuple[Any, Any, tuple[str, ...]]:
    return known, values, () if caveat is None else (caveat,)


def column(name: str, values: Any, rows: int) -> Array:
    """One label or number for each row, none of them missing."""
    if values is None:
        raise InvalidRecords(f"{name}: this estimator requires {name} to be passed, but the target {name} is None")
    if not isinstance(values, list | tuple):
        values = _array(values)
        if values.ndim == 2 and values.shape[1] == 1:
            warnings.warn(_COLUMN.format(name), DataConversionWarning, stacklevel=3)
            values = values[:, 0]
        if values.ndim != 1:
            raise InvalidRecords(f"{name} should be a 1d array, one entry a row; it has {values.ndim} dimensions")
    read = labels(values)
    if read is None:
        raise InvalidRecords(
            f"{name}: contains NaN, inf or other entries that cannot be used; must be numbers alone or strings alone"
        )
    if len(read) != rows:
        raise InvalidRecords(f"{name}: has {len(read)} entries for {rows} rows; must have one for each row")
    return read


def _array(values: Any) -> Array:
    """An array, masked where it was (which is refused later); of no axis where it is none and might quote itself."""
    try:
        return np.asanyarray(values)
    except Exception:
        return np.array(None)


def numbers(name: str, values: Any, rows: int) -> Array:
    """One number for each row, none of them missing."""
    read = column(name, values, rows)
    _check_numbers(name, read)
    return read


def check_kind(y: Array, classes: Array) -> None:
    """Raise where labels are strings and classes are not, or the other way round: no label could be a class."""
    if (y.dtype.kind == "U") != (classes.dtype.kind == "U"):
        given, listed = ("strings", "numbers") if y.dtype.kind == "U" else ("numbers", "strings")
        raise InvalidRecords(f"y: holds {given} and classes are {listed}; must be of the same kind")


def class_codes(y: Array, classes: Any) -> tuple[Array, npt.NDArray[np.int32], str | None]:
    """Classes, the number of each label among them, and a caveat where classes were not declared.

    Declared classes keep their order, so that who declares them says whose coefficients a model of two has: those of
    the last. Classes of a set or of the data are sorted.
    """
    caveat = None
    if classes is None:
        _check_discrete(y)
        known = np.unique(y)
        caveat = "classes were not declared and are those of the data, which the guarantee does not cover (classes=)"
    else:
        known = declared_classes(classes)
    if len(known) < 2:
        raise InvalidArgument("classes: there must be two or more classes; with one class there is nothing to learn")
    check_kind(y, known)
    codes = positions(y, known)
    if (codes < 0).any():
        raise InvalidRecords("y: has a label that classes= does not list; list every class that labels may have")
    return known, codes.astype(np.int32), caveat


def name_codes(
    what: str, values: Array, names: Any, *, strict: bool
) -> tuple[Array, npt.NDArray[np.int32], str | None]:
    """Sorted names of sources or tasks, the number of each entry, and a caveat where names were not declared.

    An entry that is not among the names has the number of "other", where that is declared. Otherwise it is refused
    where ``strict``, or has the number -1.
    """
    caveat = None
    if names is None:
        known = np.unique(values)
        caveat = f"names of {what}s were not declared and are those of the data, which the guarantee does not cover"
        caveat += f" ({what}_names=)"
    else:
        known = _names(f"{what}_names", names)
    if (values.dtype.kind == "U") != (known.dtype.kind == "U"):
        # Not as known.dtype, which would cut numbers off: "12" is not the source "1".
        values = values.astype(str) if known.dtype.kind == "U" else np.full(len(values), np.nan)
    codes = positions(values, known)
    other = np.flatnonzero(known == OTHER) if known.dtype.kind == "U" else np.zeros(0, int)
    if len(other):
        codes = np.where(codes < 0, other[0], codes)
    elif strict and (codes < 0).any():
        raise InvalidRecords(
            f"{what}s: has a name that {what}_names= does not list; list all of them, or list {OTHER!r}, which takes "
            "every name that is not listed"
        )
    return known, codes.astype(np.int32), caveat


def target_scale(y: Array, target_range: Any) -> tuple[TargetScale, str | None]:
    """The scale of targets by their declared range, and a caveat where it was not declared."""
    _check_numbers("y", y)
    caveat = None
    if target_range is None:
        low, high = float(y.min()), float(y.max())
        low, high = (low, high) if _is_range(low, high) else (low - max(1, abs(low)) / 2, high + max(1, abs(high)) / 2)
        caveat = "target_range was not declared and is that of the data, which the guarantee does not cover"
        caveat += " (target_range=)"
    else:
        low, high = _checked_range(target_range)
    return TargetScale(low, high), caveat


def _check_numbers(name: str, y: Array) -> None:
    if y.dtype.kind not in "biuf":
        raise InvalidRecords(f"{name}: must be numbers; strings are for classifiers")


def _check_discrete(y: Array) -> None:
    # Not scikit-learn's own check, which warns where classes are many against the rows.
    if y.dtype.kind == "f" and (y != np.floor(y)).any():
        raise InvalidRecords("y: Unknown label type: continuous; must be whole numbers or strings, or declare classes=")


def _is_range(low: float, high: float) -> bool:
    """Whether two numbers are finite and far enough apart to be scaled by."""
    return math.isfinite(low) and math.isfinite(high) and TargetScale(low, high).unit > 0


def _checked_range(target_range: Any) -> tuple[float, float]:
    low = high = math.nan
    if isinstance(target_range, tuple | list | np.ndarray) and len(target_range) == 2:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            low, high = map(float, target_range)
    if not _is_range(low, high):
        raise InvalidArgument(f"target_range={target_range!r}: must be two finite numbers (low, high) with low < high")
    return low, high


def declared_classes(given: Any) -> Array:
    """Declared labels in their order; of a set, which has none, sorted."""
    known = _names("classes", given)
    return known if isinstance(given, set | frozenset) else np.asarray(labels(given))


def declared_names(name: str, given: Any) -> Array:
    """Declared names or labels, sorted; planning without data cannot discover them."""
    if given is None:
        raise InvalidArgument(f"{name}: must be declared to plan without data; list all of them")
    return _names(name, given)


def _names(name: str, given: Any) -> Array:
    read = labels(list(given) if isinstance(given, tuple | set | frozenset) else given)
    if read is None or len(read) == 0 or len(np.unique(read)) < len(read):
        raise InvalidArgument(f"{name}={given!r}: must list numbers or strings, each once")
    return np.unique(read)
