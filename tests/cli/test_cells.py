"""Dates in a file: what is one, and no cell in any message."""

import datetime
from decimal import Decimal

import pyarrow
import pytest

import dpbilevel as dpb
from dpbilevel.cli.cells import dates, unit_ids


def test_dates_of_text_and_of_types_are_the_same():
    days = [datetime.datetime(2026, 1, 31, 18, 30), None, datetime.datetime(2020, 2, 29)]
    texts = pyarrow.array(["2026-01-31T18:30:00.25", "n/a", "2020-02-29"])
    typed = pyarrow.array(days, pyarrow.timestamp("us"))
    assert dates("when", texts).tolist() == days
    assert dates("when", typed.cast(pyarrow.string())).tolist() == days  # as blocks of a Parquet file have them
    assert dates("when", pyarrow.array([None, ""])).tolist() == [None, None]


@pytest.mark.parametrize(
    "cell", ["31.1.2026", "2026-02-30", "2026-01-31 24:30", "20260131", "soon", "2026-01-31T18:30Z"]
)
def test_what_is_no_date_is_refused(cell):
    with pytest.raises(dpb.InvalidRecords, match="column 'when': the schema declares a date") as raised:
        dates("when", pyarrow.array(["2026-01-31", cell, None]))
    assert cell not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


@pytest.mark.parametrize("cells", [["17", None], ["17", "na"], ["17", "N/A"], [17, None], [17.0, None]])
def test_a_missing_id_is_refused(cells):
    with pytest.raises(dpb.InvalidRecords, match="column 'person': holds ids, none of them missing") as raised:
        unit_ids("column 'person'", pyarrow.array(cells))
    assert "17" not in str(raised.value)


def test_ids_are_text():
    for cells in (pyarrow.array([17, 4]), pyarrow.array(["17", "4"]), pyarrow.array(["17", "4"]).dictionary_encode()):
        assert unit_ids("column 'person'", cells).tolist() == ["17", "4"]


@pytest.mark.parametrize("cells", [[17.0, 4.0], [True, False], [Decimal("17.00")], ["a", "17.0"], ["17."], ["-17,00"]])
def test_ids_that_are_written_in_two_ways_are_refused(cells):
    """17 in one file and 17.0 in another are one person in two roles."""
    with pytest.raises(
        dpb.InvalidRecords, match="column 'person': holds ids, which must be integers or text"
    ) as raised:
        unit_ids("column 'person'", pyarrow.array(cells))
    assert "-17" not in str(raised.value)
    assert unit_ids("column 'person'", pyarrow.array(["17.5", "1.0.0", "a.0"])).tolist() == ["17.5", "1.0.0", "a.0"]
