"""A CSV without a header: its first line is a record, and no command tells a cell of it."""

import functools

import pytest
from support.cli_data import SCHEMA

import dpbilevel as dpb
from dpbilevel.cli import job, table_file
from dpbilevel.cli.layout import Layout, is_name, layout
from dpbilevel.cli.schema import Schema
from dpbilevel.cli.table_file import TableFile, open_table

RECORDS = {
    "numbers": "987654,Zanzibar,1,east,yes,3",
    "negative": "Zanzibar,-987654,x,east,yes,w",
    "decimal comma": 'Zanzibar,"987,654",x,east,yes,w',
    "a date": "Zanzibar,2026-01-31,x,east,yes,w",
    "a date in words": 'Zanzibar,"January 31, 2026",x,east,yes,w',
    "a time": "Zanzibar,12:30:59 PM,x,east,yes,w",
    "not a number": "Zanzibar,NaN,x,east,yes,w",
    "a power": "Zanzibar,987e654,x,east,yes,w",
    "an empty cell": "Zanzibar,,x,east,yes,w",
    "a cell twice": "Zanzibar,Zanzibar,x,east,yes,w",
}
WORDS = "Zanzibar,Quito,Lima,Harare,Perhaps,Cheap"  # a line that may as well be a header
ASKED = ("--target", "paid", "--schema", "schema.toml")
LINES = {
    "tune": ["tune", "people.csv", *ASKED],
    "dry run": ["tune", "people.csv", *ASKED, "--dry-run", "--rows", "50"],
    "reweight": ["reweight", "people.csv", *ASKED, "--source", "clinic"],
    "validation": ["reweight", "good.csv", *ASKED, "--source", "clinic", "--validation", "people.csv"],
    "a target": ["schema", "people.csv", "--target", "paid"],
    "a source": ["schema", "people.csv", "--source", "clinic"],
}
NAMES = "age,town,id,clinic,paid,cost"


def reported(folder, command, record, line):
    """Cells of the record that a command printed, and its exit code."""
    (folder / "people.csv").write_text(f"{record}\n" * 3)
    (folder / "good.csv").write_text(f"{NAMES}\n1,Oslo,1,east,yes,1\n")
    (folder / "schema.toml").write_text(SCHEMA)
    code, out, errors = command(*line)
    cells = {cell.strip('" ') for cell in record.split(",")} - {"", "1", "3", "x", "w", "east", "yes"}
    return code, [cell for cell in cells if cell in out + errors]


@pytest.fixture
def tell(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    return functools.partial(reported, tmp_path, command)


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_no_command_tells_a_cell_of_the_first_line(tell, line):
    for record in (*RECORDS.values(), WORDS):
        assert tell(record, line) == (2, []), record


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_line_that_cannot_be_a_header_is_no_template(tell, record):
    assert tell(record, ["schema", "people.csv"]) == (2, [])


def quoting_undeclared(schema: Schema, where: str, table: TableFile, needed: object) -> None:
    """A mutation of `check_columns`, as it was once."""
    for name in table.names:
        if name not in schema.columns:
            raise dpb.InvalidArgument(f"{where}: column {name!r} is not declared")


def quoting_header(path: object, names: tuple[str, ...]) -> None:
    """A mutation of `check_header`."""
    for name in names:
        if not is_name(name):
            raise dpb.InvalidArgument(f"{path}: {name!r} is no name")


@pytest.mark.parametrize("mutant", ["undeclared", "header", "anything goes"])
def test_mutants_that_quote_the_first_line_are_noticed(tell, monkeypatch, mutant):
    if mutant == "undeclared":
        monkeypatch.setattr(job, "check_columns", quoting_undeclared)
        assert tell(WORDS, LINES["tune"])[1]
    elif mutant == "header":
        monkeypatch.setattr(table_file, "check_header", quoting_header)
        assert tell(RECORDS["numbers"], LINES["tune"])[1]
    else:
        monkeypatch.setattr(table_file, "check_header", lambda *_: None)
        assert tell(RECORDS["numbers"], ["schema", "people.csv"])[1]


def test_names_of_columns_are_no_values():
    for name in ("age", "2nd visit", "x1", "größe", "Na", "NA", "5_year_survival", "e", "HbA1c (%)", "年齢", "no. 3"):
        assert is_name(name), name
    for value in ("", "34", "-1", "+1", ".5", "1.5", "1,5", "1.234,5", "1e5", "nan", "-inf", "NULL", "True", "12%"):
        assert not is_name(value), value
    for value in ("2026-01-31T12:00:00Z", "31.12.26", "1/2/2026", "31 Jan 2026", "31-Dec-26", "12:30", "?", "#N/A"):
        assert not is_name(value), value


def test_a_template_says_where_its_names_come_from(tell, tmp_path, command):
    tell(WORDS, LINES["tune"])
    code, out, _ = command("schema", "people.csv")
    assert code == 0
    assert "[columns.Zanzibar]" in out  # it cannot be detected; the template says what to do
    assert "If that is a record, delete this file and pass --columns" in out
    code, out, _ = command("schema", "people.csv", "--columns", NAMES)
    assert code == 0
    assert "[columns.town]" in out
    assert "Zanzibar" not in out


def test_columns_name_the_cells_of_a_file_without_a_header(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("\ufeff31,Oslo\n57,Rome\n", encoding="utf-8")
    (block,) = open_table(path, layout(None, ".", "age,town")).blocks(["town", "age"])
    assert {name: cells.to_pylist() for name, cells in block.items()} == {"town": ["Oslo", "Rome"], "age": ["31", "57"]}
    with pytest.raises(dpb.InvalidArgument, match=r"names 3 columns, and .* has 2 when split at ','"):
        open_table(path, Layout(columns=("a", "b", "c")))
    path.write_text("")
    with pytest.raises(dpb.InvalidArgument, match="is empty"):
        open_table(path, Layout(columns=("a", "b")))
    (tmp_path / "people.parquet").write_bytes(b"")
    with pytest.raises(dpb.InvalidArgument, match="is for CSV files without a header"):
        open_table(tmp_path / "people.parquet", Layout(columns=("a", "b")))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("ab", ".", None), "--delimiter 'ab': must be one character"),
        (("", ".", None), "must be one character"),
        (('"', ".", None), "must be one character"),
        (("é", ".", None), "must be one character"),
        ((None, ";", None), "--decimal ';': must be '.' or ','"),
        ((None, ".", ""), "--columns: must name every column"),
        ((None, ".", "a,,b"), "--columns: must name every column"),
        ((None, ".", "a,b,a"), "--columns: must name every column"),
        ((None, ".", 'a,"b'), "--columns: must name every column"),
    ],
)
def test_what_is_wrong_with_a_layout_is_said(options, expected):
    with pytest.raises(dpb.InvalidArgument, match=expected):
        layout(*options)


def test_layouts_as_people_type_them():
    assert layout(r"\t", ",", 'age, "town, or city"') == Layout("\t", ",", ("age", "town, or city"))
