"""Declared ranges and categories of columns, and their discovery from the data where none are declared.

A declaration is a public fact: it follows from a law, a form or an instrument. A discovered range is a function of
records that is not charged to any budget, so each such column gets a caveat.
"""

import decimal
import math
import numbers
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.encoding.columns import Table, is_missing, numbers_of
from dpbilevel.encoding.dates import moment
from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.foundation.arguments import count

Range = tuple[float, float]
OTHER = "other"  # the category of all values that are not listed

_LARGEST_RANGE = 256  # of integers with one column each
_MOST_WORDS = 65_536  # columns of hashed words
_CAVEATS_APART = 10  # above this number, columns share one caveat


@dataclass(frozen=True)
class Declarations:
    """What is known of every column, by label, and caveats for undeclared columns.

    Args:
        ranges, categories: (low, high) of numbers, and listed values.
        caveats: sentences about undeclared columns.
        ordinals, dates, texts: (low, high) of integers, (first, last) of dates, numbers of columns for words.
    """

    ranges: Mapping[Any, Range]
    categories: Mapping[Any, tuple[Any, ...]]
    caveats: tuple[str, ...] = ()
    ordinals: Mapping[Any, tuple[int, int]] = field(default_factory=dict)
    dates: Mapping[Any, tuple[np.datetime64, np.datetime64]] = field(default_factory=dict)
    texts: Mapping[Any, int] = field(default_factory=dict)

    @property
    def labels(self) -> set[Any]:
        """All declared columns."""
        return {*self.ranges, *self.categories, *self.ordinals, *self.dates, *self.texts}


def declared(
    table: Table, ranges: Any, categories: Any, ordinals: Any = None, dates: Any = None, texts: Any = None
) -> Declarations:
    """Check declarations against the names and types of the columns. No cell is read.

    >>> from dpbilevel.encoding.columns import read_table
    >>> table = read_table({"age": [31, 57], "sex": ["F", "M"]})
    >>> declared(table, {"age": (0, 100)}, {"sex": ["F", "M", "other"]}).categories
    {'sex': ('F', 'M', 'other')}
    """
    kinds = dict(zip(table.labels, table.kinds, strict=True))
    arguments = {"ranges": ranges, "categories": categories, "ordinals": ordinals, "dates": dates, "texts": texts}
    home: dict[Any, str] = {}
    for name, given in arguments.items():
        if given is not None and not isinstance(given, Mapping):
            raise InvalidArgument(f"{name}: must be a dictionary from column to declaration, or None")
        check_labels(name, given or (), table)
        for label in given or ():
            if label in home:
                raise InvalidArgument(f"{home[label]}, {name}: column {label!r} is in both; must be in one of them")
            home[label] = name
    return Declarations(
        {label: _checked_range(label, given) for label, given in (ranges or {}).items()},
        {label: _checked_categories(label, given, kinds[label]) for label, given in (categories or {}).items()},
        ordinals={label: _checked_ordinal(label, given) for label, given in (ordinals or {}).items()},
        dates={label: _checked_dates(label, given) for label, given in (dates or {}).items()},
        texts={label: _checked_width(label, given) for label, given in (texts or {}).items()},
    )


def check_labels(name: str, labels: Iterable[Any], table: Table) -> None:
    """Raise if an argument names a column that the table does not have."""
    known = set(table.labels)
    for label in labels:
        if not isinstance(label, Hashable) or label not in known:
            called = "by position, starting at 0" if table.names is None else "by name"
            raise InvalidArgument(f"{name}: column {label!r} is not in the data; refer to columns {called}")


def complete(table: Table, given: Declarations, *, refuse: bool, missing: Collection[Any] = ()) -> Declarations:
    """Discover undeclared ranges and categories.

    With ``refuse``, missing numbers raise before cells are used, except in columns that indicate ``missing`` cells.
    """
    labels = table.labels
    known = given.labels
    undeclared = [at for at, label in enumerate(labels) if label not in known]
    counted = _hold_numbers(table, undeclared)
    listed: dict[int, set[Any]] = {at: set() for at in undeclared if at not in counted}
    low, high = np.full(len(counted), np.inf), np.full(len(counted), -np.inf)
    declared_numbers = [at for at, label in enumerate(labels) if label in given.ranges or label in given.ordinals]
    numeric = sorted([*declared_numbers, *counted])
    allowed = np.array([labels[at] in missing for at in numeric], bool)
    new = np.flatnonzero(np.isin(numeric, list(counted)))
    for _, columns in table.chunks():
        if numeric:
            cells = numbers_of(columns, numeric, labels)
            finite = np.isfinite(cells)
            if refuse:
                check_finite(finite | allowed, [labels[at] for at in numeric])
            if counted:
                low = np.minimum(low, np.where(finite, cells, np.inf)[:, new].min(axis=0))
                high = np.maximum(high, np.where(finite, cells, -np.inf)[:, new].max(axis=0))
        for at, values in listed.items():
            values |= _values_of(labels[at], columns[at].tolist())

    bounds = zip(counted, low.tolist(), high.tolist(), strict=True)
    # A column without any number has no range and is encoded as zeros.
    ranges = {labels[at]: (least, most) if least <= most else (0.0, 0.0) for at, least, most in bounds}
    categories = {labels[at]: _in_order(values) for at, values in listed.items()}
    caveats = (
        *_caveats("range", "ranges", list(ranges)),
        *_caveats("list of categories", "categories", list(categories)),
    )
    return replace(
        given, ranges={**given.ranges, **ranges}, categories={**given.categories, **categories}, caveats=caveats
    )


def _hold_numbers(table: Table, columns: list[int]) -> dict[int, None]:
    """The numeric columns, in order: determined by type, or by cells where the type is unspecific."""
    unclear = {at for at in columns if table.kinds[at] == "objects"}
    for _, chunk in table.chunks() if unclear else ():
        unclear -= {at for at in unclear if not all(map(_is_number_or_missing, chunk[at].tolist()))}
    return dict.fromkeys(at for at in columns if at in unclear or table.kinds[at] == "numbers")


def check_finite(finite: npt.NDArray[np.bool_], labels: Sequence[Any]) -> None:
    """Raise for a column with a missing or infinite cell."""
    if not finite.all():
        label = labels[int(finite.all(axis=0).argmin())]
        raise InvalidRecords(
            f"column {label!r}: must hold finite numbers and no missing values (NaN, infinity); clean it, name it in "
            'missing=[...] for a column that indicates them, or pass invalid="zero" to encode such cells as zeros (the '
            "middle of the range of a plain column)"
        )


def _checked_range(label: Any, given: Any) -> Range:
    problem = InvalidArgument(
        f"ranges: column {label!r} has {given!r}; must be two finite numbers (low, high) with low < high"
    )
    if not isinstance(given, tuple | list | np.ndarray) or len(given) != 2:
        raise problem
    if any(isinstance(bound, bool) or not isinstance(bound, numbers.Real) for bound in given):
        raise problem
    try:
        low, high = map(float, given)
    except OverflowError:
        raise problem from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise problem
    return low, high


def _checked_ordinal(label: Any, given: Any) -> tuple[int, int]:
    problem = InvalidArgument(
        f"ordinals: column {label!r} has {given!r}; must be two integers (low, high) with low < high, at most "
        f"{_LARGEST_RANGE} in all, because each has a column (declare a wider range in ranges=, with knots)"
    )
    if not isinstance(given, tuple | list | np.ndarray) or len(given) != 2:
        raise problem
    if any(isinstance(bound, bool) or not isinstance(bound, numbers.Integral) for bound in given):
        raise problem
    low, high = map(int, given)
    if not 0 < high - low < _LARGEST_RANGE or max(abs(low), abs(high)) > 2**53:
        raise problem
    return low, high


def _checked_dates(label: Any, given: Any) -> tuple[np.datetime64, np.datetime64]:
    pair = given if isinstance(given, tuple | list | np.ndarray) and len(given) == 2 else (None, None)
    first, last = map(moment, pair)
    if first is None or last is None or not first < last:  # False for NaT
        raise InvalidArgument(
            f"dates: column {label!r} has {given!r}; must be two dates (first, last) like 2026-01-31, first < last"
        )
    return first, last


def _checked_width(label: Any, given: Any) -> int:
    columns = count(f"texts: column {label!r}", given, "it is the number of columns for hashed words (try 64)")
    if columns > _MOST_WORDS:
        raise InvalidArgument(f"texts: column {label!r} has {columns}; must be at most {_MOST_WORDS} (try 64)")
    return columns


def _checked_categories(label: Any, given: Any, kind: str) -> tuple[Any, ...]:
    where = f"categories: column {label!r}"
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidArgument(f"{where} has {given!r}; must be a list of the values that the column can have")
    listed = tuple(value.item() if isinstance(value, np.generic) else value for value in given)
    try:
        unique = len(set(listed)) == len(listed)
    except TypeError:
        raise InvalidArgument(
            f"{where} lists a value of an unsupported type; must be strings, numbers or booleans"
        ) from None
    if not listed or not unique or any(map(is_missing, listed)):
        raise InvalidArgument(
            f"{where} must list at least one value, without duplicates or missing values (a missing cell counts as "
            "unlisted)"
        )
    strings = [isinstance(value, str) for value in listed if value != OTHER]
    # Such a list would silently match no cell at all.
    if strings and ((kind in ("numbers", "booleans") and all(strings)) or (kind == "strings" and not any(strings))):
        raise InvalidArgument(f"{where} lists values of another type than the column's {kind}; declare {kind}")
    return listed


def _is_number_or_missing(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return False
    return isinstance(value, numbers.Real | decimal.Decimal) or is_missing(value)


def _values_of(label: Any, cells: list[Any]) -> set[Any]:
    try:
        return {value.item() if isinstance(value, np.generic) else value for value in cells if not is_missing(value)}
    except TypeError:
        raise InvalidRecords(
            f"column {label!r}: has cells that are not numbers, strings or booleans; convert them to separate columns"
        ) from None


def _in_order(values: set[Any]) -> tuple[Any, ...]:
    # Sorted, because the order of first appearance would reveal the order of records.
    try:
        return tuple(sorted(values))
    except TypeError:
        return tuple(sorted(values, key=lambda value: (type(value).__name__, str(value))))


def _caveats(noun: str, argument: str, labels: list[Any]) -> tuple[str, ...]:
    if len(labels) > _CAVEATS_APART:
        shown = ", ".join(map(repr, labels[:_CAVEATS_APART]))
        subjects = [f"columns {shown} and {len(labels) - _CAVEATS_APART} more were not declared: their"]
    else:
        subjects = [f"column {label!r} was not declared: its" for label in labels]
    rest = f"comes from the data, which the stated guarantee does not cover (declare {argument}=...)"
    return tuple(f"{subject} {noun} {rest}" for subject in subjects)
