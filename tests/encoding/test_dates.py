"""Dates: what is one, and what is none, without a word about cells."""

import datetime

import numpy as np
import pytest

from dpbilevel.encoding.dates import moment, moments, part_of
from dpbilevel.errors import InvalidRecords


@pytest.mark.parametrize(
    "cell",
    [
        *("31.1.2026", "2026-02-30", "2026-13-01", "2026", "2026-01", "today", "now", "20260131", "2026-01-31T18"),
        *("2026-01-31T18:30Z", "2026-01-31 18:30+02:00", "2026-01-31 25:00", "Zanzibar", "٢٠٢٦-01-31"),
        *(20260131, 1.5, True, ["2026-01-31"], b"2026-01-31"),
        datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC),
        datetime.time(18, 30),
    ],
)
def test_what_is_no_date(cell):
    cells = np.empty(2, object)
    cells[:] = ["2026-01-31", cell]
    with pytest.raises(InvalidRecords, match="column 'when': must hold dates") as caught:
        moments(cells, "when")
    assert str(cell) not in str(caught.value).replace("2026-01-31 or 2026-01-31 18:30", "") or cell in (
        "2026",
        "2026-01",
    )
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_dates_of_all_kinds():
    noon = np.datetime64("2026-01-31T12:00:00")
    for cell in ("2026-01-31 12:00", "2026-01-31T12:00:00.25", datetime.datetime(2026, 1, 31, 12, 0, 0, 9), noon):
        assert moment(cell) == noon
    for cell in (None, np.nan, "", "NA", np.datetime64("NaT")):
        assert np.isnat(moment(cell))
    nanoseconds = np.array(["2026-01-31T12:00:00.123456789"], "datetime64[ns]")
    assert moments(nanoseconds, "when").tolist() == [datetime.datetime(2026, 1, 31, 12)]


def test_parts_are_those_of_the_calendar():
    days = [datetime.datetime(1899, 12, 31, 23) + datetime.timedelta(hours=12_347 * step) for step in range(200)]
    cells = np.array(days, "datetime64[s]")
    for part, expected in {
        "year": [day.year for day in days],
        "month": [day.month for day in days],
        "weekday": [day.weekday() for day in days],
        "hour": [day.hour for day in days],
    }.items():
        assert part_of(part, cells).tolist() == expected
