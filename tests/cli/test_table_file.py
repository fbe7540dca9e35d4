"""Files of rows: headers without values, blocks of text, and no cell in any message."""

import gzip

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from support.cli_data import NUMBER, SECRET, people, write_people

import dpbilevel as dpb
from dpbilevel.cli import table_file
from dpbilevel.cli.cells import listed_words, numbers, words
from dpbilevel.cli.layout import Layout
from dpbilevel.cli.table_file import open_table
from dpbilevel.execution.progress import set_display
from dpbilevel.foundation import parquet as reading


def read(path, columns, **options):
    blocks = list(open_table(path, **options).blocks(columns))
    return {name: pyarrow.concat_arrays([block[name] for block in blocks]) for name in columns}


def test_a_csv_has_names_and_nothing_else(tmp_path):
    data, _ = write_people(tmp_path)
    table = open_table(data)
    assert table.names == tuple(people(1))
    assert (table.kinds, table.rows) == (None, None)


def test_a_header_is_read_without_the_rows(tmp_path):
    path = tmp_path / "header.csv"
    path.write_bytes(b"a,b\n\xff\xfe not text at all\n")
    assert open_table(path).names == ("a", "b")


def test_csv_and_parquet_hold_the_same_cells(tmp_path):
    data, _ = write_people(tmp_path)
    table = {name: list(values) for name, values in people(400).items()}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "people.parquet")
    columns = ["age", "town", "id"]
    text, typed = read(data, columns), read(tmp_path / "people.parquet", columns)
    np.testing.assert_array_equal(numbers("age", text["age"]), numbers("age", typed["age"]))
    np.testing.assert_array_equal(numbers("id", text["id"]), numbers("id", typed["id"]))
    assert words(text["town"]).tolist() == words(typed["town"]).tolist()
    opened = open_table(tmp_path / "people.parquet")
    assert opened.rows == 400
    assert dict(zip(opened.names, opened.kinds, strict=True))["town"] == "text"


def test_a_compressed_csv_is_the_csv(tmp_path, monkeypatch):
    data, _ = write_people(tmp_path)
    packed = tmp_path / "people.csv.gz"
    packed.write_bytes(gzip.compress(data.read_bytes()))
    monkeypatch.setattr(table_file, "_BLOCK", 1000)
    assert open_table(packed).names == open_table(data).names
    assert open_table(packed).count_rows() == open_table(data).count_rows() == 400
    text, same = read(data, ["age", "town"]), read(packed, ["age", "town"])
    assert text["age"].equals(same["age"])
    assert text["town"].equals(same["town"])
    tabs = tmp_path / "people.TSV.GZ"
    tabs.write_bytes(gzip.compress(data.read_bytes().replace(b",", b"\t")))
    assert read(tabs, ["age"])["age"].equals(text["age"])


def test_a_folder_of_parquet_files_is_one_table_in_order_of_names(tmp_path):
    table = pyarrow.table({name: list(values) for name, values in people(400).items()})
    for name, start in {"part-1.parquet": 100, "part-0.parquet": 0, "part-2.pq": 300}.items():
        stop = {0: 100, 100: 300, 300: 400}[start]
        pyarrow.parquet.write_table(table.slice(start, stop - start), tmp_path / name)
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "_metadata.parquet").write_text("")
    opened = open_table(tmp_path)
    assert (opened.rows, opened.count_rows()) == (400, 400)
    np.testing.assert_array_equal(numbers("age", read(tmp_path, ["age"])["age"]), people(400)["age"])
    pyarrow.parquet.write_table(table.drop_columns(["town"]), tmp_path / "part-3.parquet")
    with pytest.raises(dpb.InvalidArgument, match="different columns"):
        open_table(tmp_path)


def test_rows_come_in_blocks(tmp_path, monkeypatch):
    data, _ = write_people(tmp_path)
    monkeypatch.setattr(table_file, "_BLOCK", 1000)
    blocks = list(open_table(data).blocks(["age"]))
    assert len(blocks) > 5
    whole = np.concatenate([numbers("age", block["age"]) for block in blocks])
    np.testing.assert_array_equal(whole, people(400)["age"])


@pytest.mark.parametrize(
    ("text", "names", "cells"),
    [
        ("a;b\n1;x\n", ("a", "b"), ["x"]),
        ("a; b \n1; x \n", ("a", "b"), ["x"]),
        ('a;b\n1;"x\ny"\n', ("a", "b"), ["x\ny"]),
        ("\ufeffa;b\n1;x\n", ("a", "b"), ["x"]),
        ("a;b\r\n1;x\r\n", ("a", "b"), ["x"]),
        ("a;b\n1;\n", ("a", "b"), [""]),
        ("a;b\n1;NA\n", ("a", "b"), ["NA"]),
        ("a;b", ("a", "b"), None),
        ("a;b\n", ("a", "b"), None),
    ],
    ids=[
        "plain",
        "blanks",
        "line in a cell",
        "byte order mark",
        "dos",
        "empty",
        "not available",
        "no rows",
        "a line and no rows",
    ],
)
def test_separated_text(tmp_path, text, names, cells):
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8", newline="")
    table = open_table(path, Layout(delimiter=";"))
    assert table.names == names
    blocks = list(table.blocks(["b"]))
    assert [word for block in blocks for word in words(block["b"]).tolist()] == (cells or [])


def test_numbers_are_what_people_write():
    cells = pyarrow.array(["1", "-2.5", "+3e2", ".5", "", "NA", "n/a", "nan", "Null", "-inf", None])
    expected = [1.0, -2.5, 300.0, 0.5] + [np.nan] * 7
    np.testing.assert_array_equal(numbers("age", cells), expected)
    commas = pyarrow.array(["1", "-2,5", "+3e2", ",5", "", None])
    np.testing.assert_array_equal(numbers("age", commas, ","), [*expected[:4], np.nan, np.nan])
    np.testing.assert_array_equal(numbers("age", pyarrow.array([True, None, False])), [1.0, np.nan, 0.0])


@pytest.mark.parametrize("cell", ["1,5", "0x10", "2026-01-31", "1.234,5", "many", "?", "1 000", "12%", "٣"])
def test_text_is_no_missing_number(cell):
    with pytest.raises(dpb.InvalidRecords, match="column 'age': the schema declares a range") as raised:
        numbers("age", pyarrow.array(["1", cell, ""]))
    assert cell not in str(raised.value).replace("--decimal , for 2,5", "")
    with pytest.raises(dpb.InvalidRecords):
        numbers("age", pyarrow.array(["1", "1.5"]), ",")


def test_numbers_that_are_listed_as_words():
    assert words(pyarrow.array([1.0, 2.5, None])).tolist() == ["1", "2.5", ""]
    assert listed_words(pyarrow.array([1.0, 2.0]), ["1", "2"], other=False).tolist() == ["1", "2"]


def test_words_that_are_not_listed():
    cells = pyarrow.array(["a", "b", "c", None])
    assert listed_words(cells, ["a", "b"], other=True) is None
    assert listed_words(cells, ["a", "b", "other"], other=False) is None
    assert listed_words(cells, ["a", "b", "other"], other=True).tolist() == ["a", "b", "other", "other"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("table.csv", None, "does not exist"),
        ("table.xlsx", b"", "CSV or Parquet"),
        ("table.csv", b"", "is empty"),
        ("table.csv", b"a;b\n1;2\n", "pass --delimiter ';'"),
        ("table.csv", b"a,a\n1,2\n", "cannot be a header"),
        ("table.csv", b"a,,b\n1,2,3\n", "cannot be a header"),
        ("table.csv", b"a,b\n1,Zanzibar,987654.25\n", "as many cells"),
        ("table.csv", b"a,b\n1\n2,Zanzibar\n", "as many cells"),
        ("table.csv", b"a,b\n1,\xff\xfeZanzibar\n", "UTF-8"),
        ("table.csv", b"a,\xff\xfe\n1,2\n", "UTF-8"),
        ("table.parquet", b"987654.25 is not a table", "must be complete"),
        ("table.csv.gz", b"a,b\n1,Zanzibar\n", "must be complete"),
        ("table.csv.gz", gzip.compress(b"a,b\n1,Zanzibar\n" * 99)[:-9], "must be complete|check the file"),
        ("table.xlsx.gz", b"", "CSV or Parquet"),
    ],
)
def test_what_cannot_be_read_is_reported_without_a_cell(tmp_path, name, content, expected):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(dpb.InvalidArgument, match=expected) as raised:
        list(open_table(path).blocks(["a", "b"]))
    assert SECRET not in str(raised.value)
    assert str(NUMBER) not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(dpb.InvalidArgument, match="is a folder"):
        open_table(tmp_path / "folder.csv")


@pytest.mark.parametrize("values", [["true", "false"], ["False", "True"], ["FALSE", "TRUE", "other"]])
def test_truth_values_match_however_they_are_spelt(values):
    truth = {value.lower(): value for value in values}
    for cells in ([True, False], ["true", "false"], ["True", "False"], ["TRUE", "FALSE"]):
        expected = [truth["true"], truth["false"]]
        assert listed_words(pyarrow.array(cells), values, other=False).tolist() == expected
        assert words(pyarrow.array(cells), values).tolist() == expected
    apart = pyarrow.array(["true", "True"])  # where both are listed, they are two values
    assert listed_words(apart, ["true", "True"], other=False).tolist() == ["true", "True"]


def test_reading_tells_how_far_it_has_come(tmp_path, monkeypatch, capfd):
    # Of a CSV, Arrow reads ahead as it likes.
    table = {name: list(values) for name, values in people(400).items()}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "people.parquet")
    monkeypatch.setattr(reading, "_ROWS", 100)
    monkeypatch.setattr("dpbilevel.execution.progress._INTERVAL", 0.0)
    with set_display("lines"):
        list(open_table(tmp_path / "people.parquet").blocks(["age"]))
    lines = [line.partition(",")[0] for line in capfd.readouterr().err.splitlines()]
    assert lines == [f"Reading people.parquet: {part} of 100 percent" for part in (25, 50, 75)]
