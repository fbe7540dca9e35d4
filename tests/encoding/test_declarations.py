"""Declarations are checked against names and types; what is not declared is discovered, and says so."""

import numpy as np
import pytest

from dpbilevel.encoding.columns import read_table
from dpbilevel.encoding.declarations import Declarations, complete, declared
from dpbilevel.errors import InvalidArgument, InvalidRecords

TABLE = read_table({"age": np.array([31.0, 57.0]), "sex": np.array(["F", "M"])})


def test_declarations_become_floats_and_tuples():
    found = declared(TABLE, {"age": [0, np.int64(120)]}, {"sex": np.array(["F", "M"])})
    assert found == Declarations({"age": (0.0, 120.0)}, {"sex": ("F", "M")})
    assert {type(value) for value in found.categories["sex"]} == {str}
    assert declared(TABLE, None, None) == Declarations({}, {})


WRONG = [
    ([("age", 1)], None, "ranges: must be a dictionary"),
    (None, ["sex"], "categories: must be a dictionary"),
    ({"weight": (0, 1)}, None, "ranges: column 'weight' is not in the data; refer to columns by name"),
    ({0: (0, 1)}, None, "ranges: column 0 is not in the data"),
    (None, {"gender": ["F"]}, "categories: column 'gender' is not in the data"),
    ({"age": (0, 1)}, {"age": [1]}, "column 'age' is in both"),
    ({"age": 3}, None, r"column 'age' has 3; must be two finite numbers \(low, high\)"),
    ({"age": (1, 1)}, None, "low < high"),
    ({"age": (2, 1)}, None, "low < high"),
    ({"age": (0, np.inf)}, None, "finite"),
    ({"age": (np.nan, 1)}, None, "finite"),
    ({"age": (0, 10**400)}, None, "finite"),
    ({"age": (False, True)}, None, "two finite numbers"),
    ({"age": ("0", "1")}, None, "two finite numbers"),
    ({"age": (0, 1, 2)}, None, "two finite numbers"),
    (None, {"sex": "FM"}, "must be a list of the values"),
    (None, {"sex": 2}, "must be a list of the values"),
    (None, {"sex": []}, "at least one value"),
    (None, {"sex": ["F", "F"]}, "without duplicates"),
    (None, {"sex": ["F", None]}, "or missing"),
    (None, {"sex": ["F", np.nan]}, "or missing"),
    (None, {"sex": [["F"], ["M"]]}, "unsupported type"),
    (None, {"age": ["31", "other"]}, "values of another type than the column's numbers; declare numbers"),
    (None, {"sex": [0, 1, "other"]}, "values of another type than the column's strings; declare strings"),
]


@pytest.mark.parametrize(("ranges", "categories", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_wrong_declarations_are_refused(ranges, categories, message):
    with pytest.raises(InvalidArgument, match=message):
        declared(TABLE, ranges, categories)


def test_columns_of_arrays_go_by_position():
    table = read_table(np.zeros((3, 2)))
    assert declared(table, {1: (0, 1)}, None).ranges == {1: (0.0, 1.0)}
    with pytest.raises(InvalidArgument, match="by position, starting at 0"):
        declared(table, {"age": (0, 1)}, None)


def test_no_cell_is_read_to_check_declarations():
    def never(rows):
        raise AssertionError("a cell was read")

    table = read_table({"age": [31.0], "sex": ["F"]})
    declared(type(table)(table.names, table.shape, table.kinds, never), {"age": (0, 1)}, {"sex": ["F"]})


def discovered(columns, ranges=None, categories=None, refuse=True):
    table = read_table(columns)
    return complete(table, declared(table, ranges, categories), refuse=refuse)


def test_nothing_is_discovered_where_everything_is_declared():
    found = discovered({"age": [31.0], "sex": ["F"]}, {"age": (0, 120)}, {"sex": ["F", "M"]})
    assert found == Declarations({"age": (0.0, 120.0)}, {"sex": ("F", "M")}, ())


def test_what_is_not_declared_is_discovered_with_a_caveat_for_each_column():
    columns = {"age": [31, 57], "sex": ["M", "F"], "member": [True, False], "mixed": [1, "a"], "odd": [2.5, None]}
    found = discovered(columns, refuse=False)
    assert found.ranges == {"age": (31.0, 57.0), "odd": (2.5, 2.5)}
    assert found.categories == {"sex": ("F", "M"), "member": (False, True), "mixed": (1, "a")}
    assert len(found.caveats) == 5
    for label in ("age", "sex", "member", "mixed", "odd"):
        assert sum(repr(label) in caveat for caveat in found.caveats) == 1
    assert "31" not in " ".join(found.caveats)
    assert found.caveats[0] == (
        "column 'age' was not declared: its range comes from the data, which the stated guarantee does not cover "
        "(declare ranges=...)"
    )


def test_many_columns_share_a_caveat():
    found = discovered(np.arange(40.0).reshape(2, 20))
    assert len(found.ranges) == 20
    (caveat,) = found.caveats
    assert caveat.startswith("columns 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 10 more were not declared: their range")


def test_categorical_types_are_no_declarations():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    for column in (
        pandas.Series(["b", "a"], dtype=pandas.CategoricalDtype(["a", "b", "c"])),
        polars.Series(["b", "a"], dtype=polars.Enum(["a", "b", "c"])),
    ):
        found = discovered({"grade": column})
        assert found.categories == {"grade": ("a", "b")}
        assert len(found.caveats) == 1
    codes = discovered({"code": pandas.Series([2, 1], dtype="category")})
    assert codes.categories == {"code": (1, 2)}


@pytest.mark.parametrize("ranges", [None, {"age": (0, 120)}], ids=["not declared", "declared"])
@pytest.mark.parametrize("bad", [None, np.nan, np.inf])
def test_missing_numbers_are_refused_before_anything_is_discovered(ranges, bad):
    with pytest.raises(InvalidRecords, match="column 'age': must hold finite numbers"):
        discovered({"age": [31.0, bad], "sex": [{"a": 1}, {"b": 2}]}, ranges)


def test_missing_numbers_leave_ranges_alone_where_they_are_allowed():
    found = discovered({"age": [31.0, None, np.inf, 57.0], "empty": [np.nan] * 4}, refuse=False)
    assert found.ranges == {"age": (31.0, 57.0), "empty": (0.0, 0.0)}


def test_cells_that_are_no_categories_are_refused_without_a_word_of_them():
    with pytest.raises(InvalidRecords, match="column 'tags': has cells that are not numbers") as caught:
        discovered({"tags": np.array([{"secret"}, {"word"}], dtype=object)})
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_discovered_categories_do_not_tell_the_order_of_records():
    assert discovered({"sex": ["M", "F"]}).categories == discovered({"sex": ["F", "M"]}).categories
    mixed = discovered({"mixed": ["a", 2, 1]}).categories
    assert mixed == discovered({"mixed": [1, "a", 2]}).categories
