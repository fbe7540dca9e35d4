"""Dates: cells as moments, and the parts of a date that repeat.

Moments have no time zone: they are what the clock on the wall showed. Errors contain no cell.
"""

import datetime
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.encoding.columns import MISSING, is_missing
from dpbilevel.errors import InvalidRecords

Array = npt.NDArray[Any]

DAY = np.timedelta64(1, "D")
PARTS = ("year", "month", "weekday", "hour")
CYCLES = ("month", "weekday", "hour")  # parts whose last value is a neighbour of the first
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# ISO 8601 as people write it, with a blank or a T; NumPy would also accept "2026", "today" and "now".
_WRITTEN = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?)?", re.ASCII)


def moment(value: Any) -> np.datetime64 | None:
    """A date as a moment, to the second: NaT if it is missing, None if it is no date.

    >>> moment("2026-01-31"), moment(datetime.datetime(2026, 1, 31, 18, 30))
    (np.datetime64('2026-01-31T00:00:00'), np.datetime64('2026-01-31T18:30:00'))
    >>> moment("31.1.2026") is None, moment("2026-02-30") is None, moment("")
    (True, True, np.datetime64('NaT','s'))
    """
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[s]")
    if is_missing(value) or (isinstance(value, str) and value.strip().lower() in MISSING):
        return np.datetime64("NaT", "s")
    if isinstance(value, str):
        if not _WRITTEN.fullmatch(value.strip()):
            return None
        try:
            return np.datetime64(value.strip()[:19], "s")
        except ValueError:
            return None
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return np.datetime64(value.replace(microsecond=0), "s")
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return np.datetime64(value, "s")
    return None


def moments(values: Array, label: Any) -> npt.NDArray[np.datetime64]:
    """All cells of a column as moments; anything that is neither a date nor missing raises."""
    if values.dtype.kind == "M":
        return values.astype("datetime64[s]")
    cells = values.tolist()
    try:
        known = {cell: moment(cell) for cell in dict.fromkeys(cells)}  # days repeat
        found = [known[cell] for cell in cells]
    except TypeError:  # a cell that cannot be hashed is no date
        found = [None]
    if None in found:
        raise InvalidRecords(
            f"column {label!r}: must hold dates like 2026-01-31 or 2026-01-31 18:30, without a time zone; it contains "
            "other cells (convert them, or do not declare the column as a date)"
        )
    return np.array(found, "datetime64[s]")


def part_of(part: str, dates: npt.NDArray[np.datetime64]) -> npt.NDArray[np.int64]:
    """The year, month (1 to 12), weekday (Monday is 0) or hour of dates; arbitrary for a missing one.

    >>> [part_of(part, np.array(["2026-01-31T18:30"], "datetime64[s]")).item() for part in PARTS]
    [2026, 1, 5, 18]
    """
    if part == "year":
        return dates.astype("datetime64[Y]").astype(np.int64) + 1970
    if part == "month":
        return dates.astype("datetime64[M]").astype(np.int64) % 12 + 1
    if part == "weekday":
        return (dates.astype("datetime64[D]").astype(np.int64) + 3) % 7  # 1970-01-01 was a Thursday
    return dates.astype("datetime64[h]").astype(np.int64) % 24
