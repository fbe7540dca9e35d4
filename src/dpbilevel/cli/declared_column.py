"""The declaration of one column in a schema, and the checks of what a user wrote."""

import datetime
import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpbilevel.encoding.axes import SCALES
from dpbilevel.encoding.dates import PARTS, moment
from dpbilevel.encoding.feature_maps import default_knots
from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy.units import check_bounds

# What a column is declared by, and what may be added to it.
_FORMS = ("range", "categories", "classes", "columns", "ignore", "unit")
_KINDS = {"ordinal": "range", "date": "range", "text": "columns", "id": None}
_ADDED = {
    "scale": ("range",),
    "knots": ("range", "date"),
    "parts": ("date",),
    "missing": ("range", "ordinal", "date", "text", "categories"),
    "rows_per_unit": ("unit",),
    "mean_rows": ("unit",),
}
_KEYS = (*_FORMS, "kind", *_ADDED, "group")
_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Column:
    """The declaration of a column.

    Args:
        kind: "range", "ordinal", "date", "text", "categories", "classes", "id", "unit" or "ignore".
        values: (low, high), (first, last), the number of columns, the possible texts of cells, or of a unit its bound
            on rows and their mean, None where they are not declared.
        group: the name of its group, if any.
        scale, knots, parts, missing: as in `BoundedEncoder`.
    """

    kind: str
    values: tuple[Any, ...] = ()
    group: str | None = None
    scale: str = "linear"
    knots: Any = None
    parts: tuple[str, ...] = ()
    missing: bool = False

    @property
    def is_feature(self) -> bool:
        """Whether a model may read it."""
        return self.kind not in ("ignore", "id", "unit")

    def resolved(self, rows: int) -> "Column":
        """The same with the number of knots that follows from the public number of rows."""
        return replace(self, knots=default_knots(rows)) if self.knots == "auto" else self

    def to_json(self) -> dict[str, Any]:
        """As the table of a TOML file; `declared_column` reads it."""
        if self.kind == "unit":
            bounds = zip(("rows_per_unit", "mean_rows"), self.values, strict=True)
            return {"unit": True} | {name: bound for name, bound in bounds if bound is not None}
        form = {"ignore": "ignore", "id": "kind", **_KINDS}.get(self.kind) or self.kind
        table: dict[str, Any] = {"kind": self.kind} if self.kind in _KINDS else {}
        if self.kind != "id":
            table[form] = True if form == "ignore" else self.values[0] if form == "columns" else list(self.values)
        table |= {} if self.scale == "linear" else {"scale": self.scale}
        if self.kind in _ADDED["knots"]:
            listed = list(self.knots) if isinstance(self.knots, tuple) else self.knots
            table["knots"] = "none" if listed is None else listed
        table |= {"parts": list(self.parts)} if self.parts else {}
        table |= {"missing": True} if self.missing else {}
        return table | ({} if self.group is None else {"group": self.group})


def declared_column(where: str, name: str, given: Any, knots: Any) -> Column:
    """Check the declaration of a column; ``knots`` are those of a number that declares none.

    >>> declared_column("schema.toml", "pay", {"range": [0, 9000], "scale": "log", "knots": 8}, None)
    Column(kind='range', values=(0.0, 9000.0), group=None, scale='log', knots=8, parts=(), missing=False)
    """
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"{where}: column {name!r} must be a table, [columns.NAME]")
    at = f"{where}: column {name!r}"
    unknown = sorted(set(given) - set(_KEYS))
    if unknown:
        raise InvalidArgument(f"{at} has {unknown[0]!r}; must be one of {', '.join(_KEYS)}")
    kind = _kind(at, given)
    if kind in ("ignore", "id"):
        return Column(kind)
    added = [key for key in _ADDED if key in given and kind not in _ADDED[key]]
    if added:
        raise InvalidArgument(f"{at} has {added[0]}, which is for {' and '.join(_ADDED[added[0]])} only; leave it out")
    if kind == "unit":
        return Column(kind, _bounds(at, given))
    group = given.get("group")
    if group is not None and (not isinstance(group, str) or not group):
        raise InvalidArgument(f"{at} has group = {group!r}; must be a name in quotes")
    values = _values(at, kind, given)
    return Column(
        kind,
        values,
        group,
        scale=_one_of(at, "scale", given.get("scale", "linear"), SCALES),
        knots=_knots(at, kind, values, given.get("knots", knots)) if kind in _ADDED["knots"] else None,
        parts=_parts(at, given.get("parts", [])),
        missing=_one_of(at, "missing", given.get("missing", False), (True, False)),
    )


def _kind(at: str, given: Mapping[str, Any]) -> str:
    forms = [key for key in _FORMS if given.get(key, False) is not False]
    kind = given.get("kind")
    if kind is None:
        if len(forms) != 1 or forms == ["columns"]:
            problem = "nothing is declared" if not forms else f"has {' and '.join(forms)}"
            raise InvalidArgument(
                f"{at}: {problem}; must have one of range, categories, classes, kind, unit = true or ignore = true"
            )
        return forms[0]
    needed = _KINDS[_one_of(at, "kind", kind, tuple(_KINDS))]
    if forms != ([] if needed is None else [needed]):
        rule = "nothing else" if needed is None else f"{needed} = {'64' if needed == 'columns' else '[..., ...]'}"
        raise InvalidArgument(f'{at} has kind = "{kind}"; it needs {rule} beside it')
    return str(kind)


def _values(at: str, kind: str, given: Mapping[str, Any]) -> tuple[Any, ...]:
    if kind == "range":
        return _range(at, given["range"])
    if kind == "ordinal":
        bounds = given["range"]
        if not isinstance(bounds, list) or len(bounds) != 2 or not all(type(bound) is int for bound in bounds):
            raise InvalidArgument(f"{at} has range = {bounds!r}; must be two integers, the smaller first (try [1, 5])")
        return tuple(bounds)
    if kind == "date":
        return _dates(at, "range", given["range"], 2)
    if kind == "text":
        return (given["columns"],)
    return _listed(at, kind, given[kind])


def _bounds(at: str, given: Mapping[str, Any]) -> tuple[int | None, float | None]:
    """The bound on rows of a unit, and their mean; both may be options instead."""
    _one_of(at, "unit", given["unit"], (True,))
    most, mean = given.get("rows_per_unit"), given.get("mean_rows")
    if most is None and mean is None:
        return None, None
    try:
        check_bounds(most, mean)
    except InvalidArgument as error:
        raise InvalidArgument(f"{at}: {error}") from None
    return most, mean


def _one_of(at: str, key: str, value: Any, choices: tuple[Any, ...]) -> Any:
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        shown = ", ".join(str(choice).lower() for choice in choices)
        raise InvalidArgument(f"{at} has {key} = {value!r}; must be one of {shown}")
    return value


def _range(at: str, given: Any) -> tuple[float, float]:
    if not _are_numbers(given) or len(given) != 2 or given[0] >= given[1]:
        raise InvalidArgument(f"{at} has range = {given!r}; must be two numbers, the smaller first (try [0, 100])")
    return float(given[0]), float(given[1])


def _are_numbers(given: Any) -> bool:
    numeric = isinstance(given, list) and all(isinstance(n, int | float) and not isinstance(n, bool) for n in given)
    return numeric and all(-_LARGEST <= number <= _LARGEST for number in given)  # False for NaN


def _dates(at: str, key: str, given: Any, number: int | None = None) -> tuple[str, ...]:
    """Dates of TOML, or as text, in order."""
    listed = given if isinstance(given, list) else []
    texts = [value.isoformat() if isinstance(value, datetime.date) else value for value in listed]
    moments = [moment(text) for text in texts]
    known = [found for found in moments if found is not None and found == found]  # NaT is not equal to itself
    ordered = all(one < other for one, other in itertools.pairwise(known))
    if not texts or len(known) < len(texts) or not ordered or (number is not None and len(texts) != number):
        raise InvalidArgument(
            f"{at}: {key} must list {'two ' if number else ''}dates like 2026-01-31, without a time zone, in order"
        )
    return tuple(texts)


def _knots(at: str, kind: str, values: tuple[Any, ...], given: Any) -> Any:
    if given is None or given == "none":
        return None
    if given == "auto" or (type(given) is int and given >= 2):
        return given
    if kind == "date" and isinstance(given, list):
        return _dates(at, "knots", given)
    inside = _are_numbers(given) and all(values[0] <= knot <= values[1] for knot in given)
    if not inside or len(given) < 2 or any(one >= other for one, other in itertools.pairwise(given)):
        raise InvalidArgument(
            f'{at} has knots = {given!r:.60}; must be a number from 2, "auto", "none" for a plain column, or a list of '
            "knots that increase, within the range"
        )
    return tuple(float(knot) for knot in given)


def _parts(at: str, given: Any) -> tuple[str, ...]:
    if (
        not isinstance(given, list)
        or len(set(map(str, given))) < len(given)
        or any(part not in PARTS for part in given)
    ):
        raise InvalidArgument(f"{at} has parts = {given!r:.60}; must list some of {', '.join(PARTS)}, each once")
    return tuple(given)


def _listed(at: str, kind: str, given: Any) -> tuple[str, ...]:
    """Values as text, as in the file: 1 as "1", true as "true"."""
    listed = given if isinstance(given, list) else []
    usable = bool(listed) and all(isinstance(value, str | int | float) for value in listed)
    texts = tuple(str(value).lower() if isinstance(value, bool) else str(value).strip() for value in listed)
    if not usable or len(set(texts)) < len(texts) or (kind == "classes" and len(texts) < 2):
        least = "two or more labels" if kind == "classes" else "one or more values"
        raise InvalidArgument(f'{at}: {kind} must list {least}, without duplicates (try ["no", "yes"])')
    return texts
