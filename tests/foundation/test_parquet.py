"""Parquet files in batches: all rows, or those of a range, for which nothing else is read."""

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from dpbilevel.foundation.parquet import batches, rows_within


@pytest.fixture(params=[[100], [30, 1, 0, 69]], ids=["file", "folder"])
def path(request, tmp_path):
    first = 0
    for place, rows in enumerate(request.param):
        table = pyarrow.table({"a": np.arange(first, first + rows), "b": np.zeros(rows)})
        parquet.write_table(table, tmp_path / f"{place}.parquet", row_group_size=7)
        first += rows
    return tmp_path if len(request.param) > 1 else tmp_path / "0.parquet"


def rows_of(read):
    return [row for batch in read for row in batch.column("a").to_pylist()]


@pytest.mark.parametrize("within", [None, *(slice(a, b) for a, b in [(0, 100), (0, 1), (29, 32), (31, 95), (99, 100)])])
def test_rows_of_a_range_are_read_in_order(path, within):
    assert rows_of(batches(path, ["a"], within)) == list(range(100))[within or slice(None)]


@pytest.mark.parametrize("within", [slice(0, 0), slice(40, 40), slice(100, 100)])
def test_an_empty_range_has_no_rows(path, within):
    assert rows_of(batches(path, ["a"], within)) == []


def test_other_groups_of_rows_are_not_read(path, monkeypatch):
    read, true = [], parquet.ParquetFile.iter_batches

    def counted(file, *, row_groups, **options):
        read.extend(file.metadata.row_group(group).num_rows for group in row_groups)
        return true(file, row_groups=row_groups, **options)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counted)
    rows_of(batches(path, ["a"], slice(40, 50)))
    assert sum(read) <= 10 + 2 * 7


def test_batches_after_a_range_are_not_asked_for():
    def given():
        yield from (pyarrow.record_batch({"a": [1, 2]}), pyarrow.record_batch({"a": [3, 4]}))
        raise AssertionError("read too far")

    assert rows_of(rows_within(given(), 1, 4)) == [2, 3, 4]
