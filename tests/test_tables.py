"""Plain tables for terminals and for Markdown."""

import pytest

from dpbilevel.foundation.tables import markdown_table, text_table


def test_columns_are_padded_to_their_widest_cell_and_lines_end_without_spaces():
    table = text_table(["role", "uses", "mu"], [["lower", "12", "0.5"], ["both", "123456", ""]])
    assert table.split("\n") == [
        "role   uses    mu",
        "lower  12      0.5",
        "both   123456",
    ]


def test_a_table_without_rows_is_its_header():
    assert text_table(["role", "uses"], []) == "role  uses"
    assert markdown_table(["role", "uses"], []) == "| role | uses |\n| --- | --- |"


def test_markdown_cells_cannot_open_a_column():
    lines = markdown_table(["name", "why"], [["a|b", "c"]]).split("\n")
    assert lines == ["| name | why |", "| --- | --- |", "| a\\|b | c |"]


@pytest.mark.parametrize("row", [["1"], ["1", "2", "3"]], ids=["short", "long"])
def test_a_row_of_another_length_is_an_error_not_a_wrong_table(row):
    with pytest.raises((ValueError, IndexError)):
        text_table(["a", "b"], [row])
