"""Feature maps: checks of scales, knots, parts of dates and indicators, and the blocks that they define.

All of them are declared, so that the blocks depend on no cell; the default number of knots depends on the number of
rows, which is public.
"""

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpbilevel.encoding.axes import SCALES, Axis, Hats, intervals
from dpbilevel.encoding.blocks import Block, Date, Listed, Number, Plain, Text, WithMissing
from dpbilevel.encoding.columns import Table
from dpbilevel.encoding.dates import DAY, PARTS, moment, part_of
from dpbilevel.encoding.declarations import Declarations, check_labels
from dpbilevel.errors import InvalidArgument

_MOST_KNOTS = 1000
_MOST_YEARS = 256
_PART_RANGES = {"month": (1, 12), "weekday": (0, 6), "hour": (0, 23)}


def scales_of(given: Any, known: Declarations) -> dict[Any, str]:
    """The declared scales of numbers."""
    for label, scale in _mapping("scales", given).items():
        if label not in known.ranges:
            raise InvalidArgument(f"scales: column {label!r} has no range; declare it in ranges=, or leave it out")
        if not isinstance(scale, str) or scale not in SCALES:
            raise InvalidArgument(f"scales: column {label!r} has {scale!r}; must be one of {', '.join(SCALES)}")
    return dict(given or {})


def knots_of(given: Any, known: Declarations, rows: int) -> dict[Any, Any]:
    """The knots of numbers and dates: a number of them, or a list; plain columns are left out."""
    curved = {**known.ranges, **known.dates}
    if given is not None and not isinstance(given, Mapping):
        given = dict.fromkeys(curved, given)
    chosen: dict[Any, Any] = {}
    for label, knots in _mapping("knots", given).items():
        if label not in curved:
            raise InvalidArgument(
                f"knots: column {label!r} has no range; declare it in ranges= or dates=, or leave it out"
            )
        if knots is None:
            continue
        if isinstance(knots, str) and knots == "auto":
            chosen[label] = default_knots(rows)
        elif isinstance(knots, int | np.integer) and not isinstance(knots, bool) and 2 <= knots <= _MOST_KNOTS:
            chosen[label] = int(knots)
        elif isinstance(knots, list | tuple | np.ndarray) and 2 <= len(knots) <= _MOST_KNOTS:
            chosen[label] = list(knots)
        else:
            raise InvalidArgument(
                f"knots: column {label!r} has {knots!r:.60}; must be a number from 2 to {_MOST_KNOTS}, a list of that "
                'length, "auto", or None for a plain column'
            )
    return chosen


def counts_rows(given: Any) -> bool:
    """Whether the number of knots of a column follows from the number of rows."""
    listed = given.values() if isinstance(given, Mapping) else [given]
    return any(isinstance(knots, str) for knots in listed)  # "auto"; other strings are refused


def default_knots(rows: int) -> int:
    """The number of knots of ``knots="auto"``, from the public number of rows, or from that of units times their mean.

    >>> default_knots(32_561)
    13
    """
    return intervals(rows) + 1


def parts_of(given: Any, known: Declarations) -> dict[Any, tuple[str, ...]]:
    """The declared parts of dates."""
    chosen = {}
    for label, parts in _mapping("parts", given).items():
        if label not in known.dates:
            raise InvalidArgument(f"parts: column {label!r} is no date; declare it in dates=, or leave it out")
        listed = tuple(parts) if isinstance(parts, list | tuple) else ()
        if not listed or len({*map(str, listed)}) < len(listed) or any(part not in PARTS for part in listed):
            raise InvalidArgument(
                f"parts: column {label!r} has {parts!r:.60}; must be a list of some of {', '.join(PARTS)}, each once"
            )
        chosen[label] = listed
    return chosen


def missing_of(given: Any, table: Table) -> frozenset[Any]:
    """The columns with an indicator of missing cells."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, list | tuple | set | frozenset):
        raise InvalidArgument("missing: must be a list of columns, whose missing cells get an indicator (try [])")
    check_labels("missing", given, table)
    return frozenset(given)


def blocks(
    table: Table,
    known: Declarations,
    *,
    scales: Mapping[Any, str],
    knots: Mapping[Any, Any],
    parts: Mapping[Any, tuple[str, ...]],
    missing: frozenset[Any],
) -> list[Block]:
    """The block of every column, in order."""
    made: list[Block] = []
    for label in table.labels:
        block: Block
        if label in known.ranges:
            block = _number(label, Axis(*known.ranges[label], scales.get(label, "linear")), knots.get(label))
        elif label in known.ordinals:
            block = _integers(*known.ordinals[label])
        elif label in known.dates:
            block = _date(label, known.dates[label], knots.get(label), parts.get(label, ()))
        elif label in known.texts:
            block = Text(known.texts[label])
        else:
            block = Listed(tuple(known.categories[label]))
            if label in missing and "missing" in block.names:
                raise InvalidArgument(
                    f"missing: column {label!r} lists the category 'missing'; rename it, its indicator has this name"
                )
        made.append(WithMissing(block) if label in missing else block)
    return made


def _mapping(name: str, given: Any) -> Mapping[Any, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidArgument(f"{name}: must be a dictionary from column to declaration, or None")
    return given or {}


def _number(label: Any, axis: Axis, knots: Any) -> Plain | Number:
    if knots is None or axis.low == axis.high:  # a range that was discovered in a column of equal cells
        return Plain(axis)
    if isinstance(knots, int):
        hats = Hats.even(axis, knots)
    else:
        if not all(isinstance(knot, numbers.Real) and not isinstance(knot, bool) for knot in knots):
            raise _out_of_order(label)
        hats = Hats(axis, np.array([float(knot) for knot in knots]))
        inside = (hats.knots >= axis.low) & (hats.knots <= axis.high)  # False for NaN
        if not inside.all():
            raise _out_of_order(label)
    if not (np.diff(axis.places(hats.knots)) > 0).all():
        raise _out_of_order(label)
    return Number(hats)


def _out_of_order(label: Any) -> InvalidArgument:
    return InvalidArgument(f"knots: those of column {label!r} must increase, and lie within its declared range")


def _integers(low: int, high: int) -> Number:
    """One column for each integer: hats at all of them."""
    return Number(Hats(Axis(float(low), float(high)), np.arange(low, high + 1, dtype=np.float64)))


def _date(label: Any, bounds: tuple[np.datetime64, np.datetime64], knots: Any, parts: Sequence[str]) -> Date:
    first, last = bounds
    if isinstance(knots, list):
        moments = [moment(knot) for knot in knots]
        if None in moments:
            raise InvalidArgument(f"knots: those of column {label!r} must be dates like 2026-01-31")
        knots = ((np.array(moments, "datetime64[s]") - first) / DAY).tolist()  # NaN for a missing date
    ranges = {**_PART_RANGES, "year": tuple(part_of("year", np.array(bounds)).tolist())}
    if "year" in parts and not 0 < ranges["year"][1] - ranges["year"][0] < _MOST_YEARS:
        raise InvalidArgument(
            f"parts: the dates of column {label!r} must span more than one year, and at most {_MOST_YEARS}, for a "
            "column each; leave out 'year', or use knots"
        )
    days = _number(label, Axis(0.0, float((last - first) / DAY)), knots)
    return Date(first, days, tuple((part, _integers(*ranges[part])) for part in parts))
