"""Targets of estimators: labels as indices of declared classes, values scaled by a declared range, name indices."""

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
from dpbilevel.estimators.codes import Codes
from dpbilevel.estimators.prepared import Rows
from dpbilevel.evaluation.heldout import labels, positions

Array = npt.NDArray[Any]

TARGET_BOUND = 3.0  # of scaled targets: makes residuals comparable to gradients of a logistic loss

# scikit-learn's wording.
_COLUMN = "A column-vector {0} was passed when a 1d array was expected. Please change the shape of {0} to (n_samples,)"


@dataclass(frozen=True)
class TargetScale:
    """Maps a declared range of targets to [-3, 3], and back."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The target that is mapped to zero."""
        return self.low / 2 + self.high / 2

    @property
    def unit(self) -> float:
        """The difference of targets that is mapped to one."""
        return (self.high / 2 - self.low / 2) / TARGET_BOUND

    def scaled(self, y: Array) -> npt.NDArray[np.float32]:
        """Scaled targets; those outside the range are clamped to it."""
        _check_numbers("y", y)
        with np.errstate(over="ignore"):  # a NumPy warning would reveal an outlier
            scaled = (y.astype(np.float64) - self.middle) / self.unit
        return np.clip(scaled, -TARGET_BOUND, TARGET_BOUND).astype(np.float32)

    def unscaled(self, coefficients: Array, intercepts: Array) -> tuple[Array, Array]:
        """Convert a model of scaled targets to the original units."""
        return self.unit * coefficients, self.unit * intercepts + self.middle


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of rows as class indices. Two classes have one output, the second class."""

    classes: Array
    values: Any
    caveats: tuple[str, ...] = ()

    @classmethod
    def of(cls, y: Any, rows: Rows, classes: Any) -> "Labels":
        """The labels of rows; for a plan only their shape, with declared classes."""
        if rows.scaling is None:
            return cls(declared_names("classes", classes), rows.column(np.int32))
        if isinstance(y, Codes):
            known, codes, caveat = class_codes(np.array(y.values), classes)
            return cls(*_with_caveats(known, codes[y.indices], caveat))
        return cls(*_with_caveats(*class_codes(column("y", y, rows.shape[0]), classes)))

    @property
    def known(self) -> Array:
        """What is known of all of them: the classes."""
        return self.classes

    @property
    def model(self) -> dict[str, Any]:
        """The arguments of an application that select the loss."""
        number = len(self.classes)
        return {"loss": "logistic"} if number == 2 else {"loss": "softmax", "classes": number}

    def same(self, y: Array) -> npt.NDArray[np.int32]:
        """Encode further labels with the same classes."""
        return class_codes(y, self.classes)[1]

    def attributes(self, coefficients: Array, intercepts: Array) -> dict[str, Any]:
        """Attributes of the fitted model."""
        return {"classes_": self.classes, "coef_": coefficients, "intercept_": intercepts}


@dataclass(frozen=True, eq=False)
class Numbers:
    """Targets of rows as scaled numbers. The scale of a plan is arbitrary: shapes do not depend on it."""

    scale: TargetScale
    values: Any
    caveats: tuple[str, ...] = ()

    @classmethod
    def of(cls, y: Any, rows: Rows, target_range: Any) -> "Numbers":
        """The targets of rows; for a plan only their shape."""
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
        """The arguments of an application that select the loss."""
        return {"loss": "squared", "target_bound": TARGET_BOUND}

    def same(self, y: Array) -> npt.NDArray[np.float32]:
        """Scale further targets with the same range."""
        return self.scale.scaled(y)

    def attributes(self, coefficients: Array, intercepts: Array) -> dict[str, Any]:
        """Attributes of the fitted model: one row of coefficients, in units of the target."""
        coefficients, intercepts = self.scale.unscaled(coefficients, intercepts)
        return {"coef_": coefficients[0], "intercept_": float(intercepts[0])}


@dataclass(frozen=True, eq=False)
class Names:
    """Sources or tasks of rows as indices of sorted names."""

    names: Array
    values: Any
    caveats: tuple[str, ...] = ()

    @classmethod
    def of(cls, what: str, given: Any, rows: Rows, names: Any) -> "Names":
        """The sources or tasks of rows, one in total if none are given; for a plan only their shape."""
        if rows.scaling is None:
            return cls(declared_names(f"{what}_names", names), rows.column(np.int32))
        if given is None:
            return cls(np.array(["all"]), np.zeros(rows.shape[0], np.int32))
        if isinstance(given, Codes):
            known, codes, caveat = name_codes(what, np.array(given.values), names, strict=True)
            return cls(*_with_caveats(known, codes[given.indices], caveat))
        return cls(*_with_caveats(*name_codes(what, column(f"{what}s", given, rows.shape[0]), names, strict=True)))


def _with_caveats(known: Any, values: Any, caveat: str | None) -> tuple[Any, Any, tuple[str, ...]]:
    return known, values, () if caveat is None else (caveat,)


def column(name: str, values: Any, rows: int) -> Array:
    """Read one label or number per row; missing ones raise."""
    if values is None:
        raise InvalidRecords(f"{name}: this estimator requires {name} to be passed, but the target {name} is None")
    if not isinstance(values, list | tuple):
        values = _array(values)
        if values.ndim == 2 and values.shape[1] == 1:
            warnings.warn(_COLUMN.format(name), DataConversionWarning, stacklevel=3)
            values = values[:, 0]
        if values.ndim != 1:
            raise InvalidRecords(f"{name} should be a 1d array, one entry per row; it has {values.ndim} dimensions")
    read = labels(values)
    if read is None:
        raise InvalidRecords(f"{name}: contains NaN, inf or other unusable entries; must be all numbers or all strings")
    if len(read) != rows:
        raise InvalidRecords(f"{name}: must have one entry per row; it has another length")  # private with units
    return read


def _array(values: Any) -> Array:
    """Convert to an array (masked arrays are refused later); a scalar if that fails, as errors may quote values."""
    try:
        return np.asanyarray(values)
    except Exception:
        return np.array(None)


def numbers(name: str, values: Any, rows: int) -> Array:
    """Read one number per row; missing ones raise."""
    read = column(name, values, rows)
    _check_numbers(name, read)
    return read


def check_kind(y: Array, classes: Array) -> None:
    """Raise if labels are strings and classes are numbers, or vice versa: no label could match."""
    if (y.dtype.kind == "U") != (classes.dtype.kind == "U"):
        given, listed = ("strings", "numbers") if y.dtype.kind == "U" else ("numbers", "strings")
        raise InvalidRecords(f"y: has {given} but classes are {listed}; must be of the same kind")


def class_codes(y: Array, classes: Any) -> tuple[Array, npt.NDArray[np.int32], str | None]:
    """Classes, the class index of each label, and a caveat if classes were not declared.

    Declared classes keep their order, which determines the class that the coefficients of a binary model refer to: the
    second. Classes from a set or from the data are sorted.
    """
    caveat = None
    if classes is None:
        _check_discrete(y)
        known = np.unique(y)
        caveat = "classes were not declared and are read from the data, which the guarantee does not cover (classes=)"
    else:
        known = declared_classes(classes)
    if len(known) < 2:
        raise InvalidArgument("classes: must be two or more; with one class there is nothing to learn")
    check_kind(y, known)
    codes = positions(y, known)
    if (codes < 0).any():
        raise InvalidRecords("y: has a label that classes= does not list; list every class that can occur")
    return known, codes.astype(np.int32), caveat


def name_codes(
    what: str, values: Array, names: Any, *, strict: bool
) -> tuple[Array, npt.NDArray[np.int32], str | None]:
    """Sorted names of sources or tasks, the index of each entry, and a caveat if names were not declared.

    An unlisted entry gets the index of "other" if that is declared. Otherwise it is refused if ``strict``, or gets the
    index -1.
    """
    caveat = None
    if names is None:
        known = np.unique(values)
        caveat = f"names of {what}s were not declared and are read from the data, which the guarantee does not cover"
        caveat += f" ({what}_names=)"
    else:
        known = _names(f"{what}_names", names)
    if (values.dtype.kind == "U") != (known.dtype.kind == "U"):
        # Not as known.dtype, which would truncate: "12" is not the source "1".
        values = values.astype(str) if known.dtype.kind == "U" else np.full(len(values), np.nan)
    codes = positions(values, known)
    other = np.flatnonzero(known == OTHER) if known.dtype.kind == "U" else np.zeros(0, int)
    if len(other):
        codes = np.where(codes < 0, other[0], codes)
    elif strict and (codes < 0).any():
        raise InvalidRecords(
            f"{what}s: has a name that {what}_names= does not list; list all of them, or list {OTHER!r}, which "
            "stands for every unlisted name"
        )
    return known, codes.astype(np.int32), caveat


def target_scale(y: Array, target_range: Any) -> tuple[TargetScale, str | None]:
    """The scale for the declared range of targets, and a caveat if it was not declared."""
    _check_numbers("y", y)
    caveat = None
    if target_range is None:
        low, high = float(y.min()), float(y.max())
        low, high = (low, high) if _is_range(low, high) else (low - max(1, abs(low)) / 2, high + max(1, abs(high)) / 2)
        caveat = "target_range was not declared and is read from the data, which the guarantee does not cover"
        caveat += " (target_range=)"
    else:
        low, high = _checked_range(target_range)
    return TargetScale(low, high), caveat


def _check_numbers(name: str, y: Array) -> None:
    if y.dtype.kind not in "biuf":
        raise InvalidRecords(f"{name}: must be numbers; classifiers accept strings")


def _check_discrete(y: Array) -> None:
    # Not scikit-learn's check, which warns if there are many classes relative to the number of rows.
    if y.dtype.kind == "f" and (y != np.floor(y)).any():
        raise InvalidRecords("y: Unknown label type: continuous; must be integers or strings, or declare classes=")


def _is_range(low: float, high: float) -> bool:
    """Whether two numbers are finite and define a scale above zero."""
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
    """Declared labels in their order; those of a set, which has no order, sorted."""
    known = _names("classes", given)
    return known if isinstance(given, set | frozenset) else np.asarray(labels(given))


def declared_names(name: str, given: Any) -> Array:
    """Declared names or labels, sorted; a plan has no data to read them from."""
    if given is None:
        raise InvalidArgument(f"{name}: must be declared to plan without data; list all of them")
    return _names(name, given)


def _names(name: str, given: Any) -> Array:
    read = labels(list(given) if isinstance(given, tuple | set | frozenset) else given)
    if read is None or len(read) == 0 or len(np.unique(read)) < len(read):
        raise InvalidArgument(f"{name}={given!r}: must list numbers or strings without duplicates")
    return np.unique(read)
