"""Declarations of columns: templates that hold no value, and errors that say what to write instead."""

import json
import tomllib

import pyarrow
import pyarrow.parquet
import pytest
from support.cli_data import SCHEMA, people, write_people

import dpbilevel as dpb
from dpbilevel.cli.rows import column_names, fitted_encoder, group_names
from dpbilevel.cli.schema import check_columns, parse, read_schema, template
from dpbilevel.cli.table_file import open_table


def test_a_schema_and_back(tmp_path):
    _, path = write_people(tmp_path)
    schema = read_schema(path)
    assert schema.columns["age"].values == (0.0, 100.0)
    assert schema.columns["town"].group == "place"
    assert parse(schema.to_json(), "run") == schema
    assert list(schema.features("paid", "clinic").columns) == ["age", "town", "cost"]


def test_values_are_the_text_of_the_file():
    content = {
        "format": "dpbilevel.schema/1",
        "columns": {"month": {"categories": [1, 2]}, "old": {"classes": [True, False]}},
    }
    schema = parse(content, "here")
    assert schema.columns["month"].values == ("1", "2")
    assert schema.columns["old"].values == ("true", "false")


def test_a_template_has_no_value_of_the_file(tmp_path):
    data, _ = write_people(tmp_path)
    empty = tmp_path / "empty.csv"
    empty.write_text(data.read_text().splitlines()[0] + "\n")
    made = [template(open_table(path), target="paid", source="clinic") for path in (data, empty)]
    assert made[0].replace("people.csv", "empty.csv") == made[1]
    assert set(tomllib.loads(made[0])["columns"]) == set(people(1))


def test_a_template_of_parquet_tells_types_apart(tmp_path):
    table = {name: list(values) for name, values in people(3).items()}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "people.parquet")
    made = template(open_table(tmp_path / "people.parquet"))
    assert "[columns.age]\n# range = [,]  (the file has numbers)" in made
    assert "[columns.town]\n# categories = []  (the file has text)" in made


def test_odd_names_are_quoted(tmp_path):
    path = tmp_path / "odd.csv"
    path.write_text('"age, in years","say ""hi""",größe\n')
    names = tomllib.loads(template(open_table(path)))["columns"]
    assert list(names) == ["age, in years", 'say "hi"', "größe"]


def test_a_template_that_nobody_filled_in_says_which_column(tmp_path):
    data, path = write_people(tmp_path)
    path.write_text(template(open_table(data)))
    with pytest.raises(dpb.InvalidArgument, match="column 'age': nothing is declared"):
        read_schema(path)


MAPS = """\
format = "dpbilevel.schema/2"
crosses = [["age", "town"]]

[columns.age]
range = [0, 100]
knots = [0, 20, 100]
missing = true

[columns.pay]
range = [0, 99999]
scale = "log"

[columns.height]
range = [100, 250]
knots = "none"
group = "body"

[columns.grade]
kind = "ordinal"
range = [1, 5]

[columns.when]
kind = "date"
range = [2025-01-01, "2026-12-31"]
parts = ["month", "hour"]
knots = ["2025-01-01", 2026-01-01, "2026-12-31"]

[columns.note]
kind = "text"
columns = 16

[columns.number]
kind = "id"

[columns.town]
categories = ["Oslo", "Rome"]

[columns.paid]
classes = ["no", "yes"]
"""


def test_a_schema_of_feature_maps_and_back():
    schema = parse(tomllib.loads(MAPS), "here")
    assert schema.columns["age"].knots == (0.0, 20.0, 100.0)
    assert schema.columns["pay"].knots == "auto"
    assert schema.columns["height"].knots is None
    assert schema.columns["when"].values == ("2025-01-01", "2026-12-31")
    assert "number" not in schema.features("paid").columns
    for whole in (schema, schema.resolved(1000)):
        assert parse(json.loads(json.dumps(whole.to_json())), "run") == whole
    assert schema.resolved(1000).columns["pay"].knots == 7
    encoder = fitted_encoder(schema.features("paid").resolved(1000), "refuse")
    assert len(encoder.group_of_column_) == (3 + 1) + 7 + 1 + 5 + (3 + 12 + 24) + 16 + 2 + 4 * 2
    names = column_names(encoder)
    assert names[0] == "age = 0"
    assert {"height", "grade = 5", "when = month 12", "age = missing x town = Rome"} <= {*names}
    assert group_names(encoder)[-1] == "age x town"


def test_numbers_of_the_first_format_are_plain_columns():
    second = {"format": "dpbilevel.schema/2", "columns": {"age": {"range": [0, 1]}}}
    first = {**second, "format": "dpbilevel.schema/1"}
    assert [parse(content, "here").columns["age"].knots for content in (first, second)] == [None, "auto"]
    assert not parse(first, "here").needs_rows


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('scale = "log"', 'scale = "decibel"', "column 'pay' has scale = 'decibel'; must be one of linear, log, sqrt"),
        ("knots = [0, 20, 100]", "knots = [0, 20, 10]", "knots that increase, within the range"),
        ("knots = [0, 20, 100]", "knots = [0, 20, 101]", "knots that increase, within the range"),
        ("knots = [0, 20, 100]", "knots = 1", "must be a number from 2"),
        ("knots = [0, 20, 100]", 'knots = "many"', "must be a number from 2"),
        ("knots = [0, 20, 100]", "parts = ['month']", "parts, which is for date only"),
        ("missing = true", 'missing = "yes"', "missing = 'yes'; must be one of true, false"),
        ("range = [1, 5]", "range = [1, 5.5]", "two integers"),
        ("range = [1, 5]", "range = [1, 500]", "at most 256"),
        ("range = [1, 5]", 'range = [1, 5]\nscale = "log"', "scale, which is for range only"),
        ('kind = "ordinal"', 'kind = "ordinary"', "kind = 'ordinary'; must be one of ordinal, date, text, id"),
        ('"2026-12-31"]\nparts', '"2026-02-30"]\nparts', "two dates like 2026-01-31"),
        ('"2026-12-31"]\nparts', '"2024-12-31"]\nparts', "in order"),
        ('parts = ["month", "hour"]', 'parts = ["minute"]', "some of year, month, weekday, hour"),
        ("columns = 16", "columns = 0", "whole number"),
        ("columns = 16", "", "it needs columns = 64"),
        ('kind = "id"', 'kind = "id"\nrange = [0, 1]', "needs nothing else"),
        ('[["age", "town"]]', '[["age", "street"]]', "pairs of declared columns"),
        ('[["age", "town"]]', '[["age", "number"]]', "'number', which is no feature"),
        ('[["age", "town"]]', '[["age", "paid"]]', "'paid', which is no feature"),
        ('[["age", "town"]]', '[["age", "age"]]', "two different columns"),
        ('[["age", "town"]]', '[["age", "when"]]', "is a date"),
        ('[["age", "town"]]', '"age"', "pairs of declared columns"),
    ],
)
def test_what_is_wrong_with_feature_maps_is_said_before_a_file_is_opened(old, new, expected):
    assert old in MAPS
    with pytest.raises(dpb.InvalidArgument, match=expected):
        fitted_encoder(parse(tomllib.loads(MAPS.replace(old, new)), "here").features("paid").resolved(9), "refuse")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("dpbilevel.schema/1", "dpbilevel.schema/9", "format = "),
        ("range = [0, 100]", "range = [100, 0]", "the smaller first"),
        ("range = [0, 100]", "range = [0]", "two numbers"),
        ("range = [0, 100]", "range = [0, inf]", "two numbers"),
        ("range = [0, 100]", "range = [,]", "is not TOML"),
        ("range = [0, 100]", "rnage = [0, 100]", "has 'rnage'"),
        ("range = [0, 100]", 'range = [0, 1]\ncategories = ["a"]', "range and categories"),
        ('classes = ["no", "yes"]', 'classes = ["yes"]', "two or more labels"),
        ('classes = ["no", "yes"]', 'classes = ["yes", "yes"]', "without duplicates"),
        ('classes = ["no", "yes"]', 'classes = "yes"', "without duplicates"),
        ('"Rome", "other"]\ngroup = "place"', '"Rome"]\ngroup = 3', "a name in quotes"),
        ("[columns.age]", "[column.age]", "must contain only format"),
    ],
)
def test_what_is_wrong_with_a_schema_is_said(tmp_path, old, new, expected):
    path = tmp_path / "schema.toml"
    assert old in SCHEMA
    path.write_text(SCHEMA.replace(old, new))
    with pytest.raises(dpb.InvalidArgument, match=expected):
        read_schema(path)


def test_a_missing_schema_says_how_to_make_one(tmp_path):
    with pytest.raises(dpb.InvalidArgument, match="dpbilevel schema DATA"):
        read_schema(tmp_path / "none.toml")


def test_columns_of_file_and_schema_must_agree(tmp_path):
    data, path = write_people(tmp_path)
    table = open_table(data)
    path.write_text(SCHEMA.replace("[columns.id]", "[columns.number]"))
    with pytest.raises(dpb.InvalidArgument, match=r"column 3 of the 6 columns of .* is not declared; add \[columns"):
        check_columns(read_schema(path), str(path), table, ["age"])
    path.write_text(SCHEMA)
    with pytest.raises(dpb.InvalidArgument, match="has no column 'height'"):
        check_columns(read_schema(path), str(path), table, ["height"])
