"""Tables of every kind are read as the same columns, and no error quotes a cell."""

import datetime
import decimal
import traceback

import numpy as np
import pytest
import scipy.sparse

from dpbilevel.encoding import columns
from dpbilevel.encoding.columns import is_missing, numbers_of, read_table
from dpbilevel.errors import InvalidRecords

CELLS = {"age": [31.0, 57.0, 20.0], "sex": ["F", "M", "F"], "member": [True, False, True]}


def all_values(table):
    return [[value for _, chunk in table.chunks() for value in chunk[at].tolist()] for at in range(table.shape[1])]


def pandas_frame(**types):
    return pytest.importorskip("pandas").DataFrame(CELLS).astype(types)


def polars_frame():
    return pytest.importorskip("polars").DataFrame(CELLS)


def arrow_table():
    return pytest.importorskip("pyarrow").table(CELLS)


TABLES = {
    "dictionary of lists": lambda: CELLS,
    "dictionary of arrays": lambda: {name: np.array(values) for name, values in CELLS.items()},
    "dictionary of series": lambda: dict(pandas_frame().items()),
    "dictionary of polars series": lambda: polars_frame().to_dict(),
    "dictionary of Arrow arrays": lambda: dict(zip(CELLS, arrow_table().columns, strict=True)),
    "pandas": pandas_frame,
    "pandas, categorical": lambda: pandas_frame(sex="category"),
    "pandas, nullable": lambda: pandas_frame(age="Float64", sex="string", member="boolean"),
    "pandas, integers": lambda: pandas_frame(age="Int64"),
    "polars": polars_frame,
    "Arrow": arrow_table,
}


@pytest.mark.parametrize("made", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("cells", [2**20, 3], ids=["one chunk", "a chunk a row"])
def test_named_tables_are_alike(made, cells, monkeypatch):
    monkeypatch.setattr(columns, "_CELLS", cells)
    table = read_table(made())
    assert table.names == table.labels == ("age", "sex", "member")
    assert table.shape == (3, 3)
    assert all_values(table) == list(CELLS.values())


MATRIX = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]])
MATRICES = {
    "array": MATRIX,
    "lists": MATRIX.tolist(),
    "sparse array": scipy.sparse.coo_array(MATRIX),
    "sparse matrix that is a dictionary": scipy.sparse.dok_matrix(MATRIX),
}


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
@pytest.mark.parametrize("cells", [2**20, 3], ids=["one chunk", "a chunk a row"])
def test_matrices_are_alike(matrix, cells, monkeypatch):
    monkeypatch.setattr(columns, "_CELLS", cells)
    table = read_table(matrix)
    assert table.names is None
    assert table.labels == (0, 1, 2)
    assert table.kinds == ("numbers",) * 3
    assert all_values(table) == MATRIX.T.tolist()
    chunks = [numbers_of(chunk, [0, 2], table.labels) for _, chunk in table.chunks()]
    np.testing.assert_array_equal(np.concatenate(chunks), MATRIX[:, [0, 2]])


def test_lists_keep_the_types_of_their_cells():
    assert all_values(read_table([[1, "a"], [2, "b"]])) == [[1, 2], ["a", "b"]]
    assert all_values(read_table({"mixed": [1, "a", None]})) == [[1, "a", None]]


def test_kinds_go_by_type():
    pandas, polars, arrow = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    words = arrow.array(["a", "b"])
    numbers = arrow.array([1, 2])
    of = {
        "numbers": [
            np.array([1, 2], np.uint8),
            pandas.array([1, None], dtype="Int64"),
            pandas.arrays.SparseArray([0.0, 1.0]),
            polars.Series([1, None]),
            numbers,
        ],
        "booleans": [np.array([True, False]), pandas.array([True, None], dtype="boolean"), polars.Series([True, None])],
        "strings": [np.array(["a", "b"]), pandas.array(["a", None], dtype="string"), polars.Series(["a", None])],
        "categories": [
            pandas.Categorical([1, 2]),
            pandas.Categorical(["a", "b"]),
            pandas.array(words, dtype=pandas.ArrowDtype(arrow.dictionary(arrow.int32(), arrow.string()))),
            polars.Series(["a", "b"], dtype=polars.Categorical),
            polars.Series(["a", "b"], dtype=polars.Enum(["a", "b"])),
            words.dictionary_encode(),
            numbers.dictionary_encode(),
        ],
        "objects": [np.array(["a", 1], dtype=object), ["a", "b"], [None, None], polars.Series([None, None])],
    }
    for kind, made in of.items():
        for column in made:
            if type(column).__module__.startswith("pandas"):
                column = pandas.Series(column)
            assert read_table({"column": column}).kinds == (kind,), type(column)


def test_missing_numbers_are_nan():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    made = [
        [1.0, None],
        ["1", "NA"],
        ["1", " nan "],
        ["1", ""],
        [True, None],
        [decimal.Decimal(1), pandas.NA],
        [1, pandas.NaT],
        pandas.Series([1, None], dtype="Int64"),
        polars.Series([1, None]),
    ]
    for column in made:
        _, chunk = next(read_table({"column": column}).chunks())
        np.testing.assert_array_equal(numbers_of(chunk, [0], ("column",)), [[1.0], [np.nan]])
    np.testing.assert_array_equal(
        numbers_of([np.array([1, 10**400], dtype=object)], [0], ("column",)), [[1.0], [np.inf]]
    )
    assert [is_missing(value) for value in (None, np.nan, np.float32("nan"), pandas.NA, pandas.NaT)] == [True] * 5
    assert [is_missing(value) for value in (0, "", False, "nan", np.inf)] == [False] * 5


SECRET = "987654"


@pytest.mark.parametrize(
    "cell", [f"{SECRET},5", f"{SECRET}-01-31", {SECRET: 1}, [SECRET], datetime.date(9876, 5, 4)], ids=str
)
def test_cells_that_are_no_numbers_are_refused_and_not_quoted(cell):
    column = np.empty(2, dtype=object)
    column[:] = [1.5, cell]
    with pytest.raises(InvalidRecords, match="column 'age': must hold numbers") as raised:
        numbers_of([column], [0], ("age",))
    assert SECRET[:4] not in "".join(traceback.format_exception(raised.value, chain=True)).split("InvalidRecords")[-1]


REFUSED = {
    "one dimension": lambda: [987654.0, 987654.0],
    "three dimensions": lambda: np.full((2, 2, 2), 987654.0),
    "ragged": lambda: [[987654.0, 987654.0], [987654.0]],
    "lengths": lambda: {"a": [987654.0], "b": [987654.0, 1.0]},
    "nested": lambda: {"a": np.array([[987654.0, 1.0]])},
    "masked": lambda: np.ma.masked_array([[987654.0]], mask=[[False]]),
    "complex": lambda: np.full((2, 2), 987654.0j),
    "dates": lambda: {"a": np.array([987654], dtype="datetime64[D]")},
    "polars dates": lambda: polars_frame().select(pytest.importorskip("polars").lit(np.datetime64("2013-01-01"))),
    "polars lists": lambda: pytest.importorskip("polars").DataFrame({"a": [[987654]]}),
    "names twice": lambda: pytest.importorskip("pandas").DataFrame([[987654, 987654]], columns=["a", "a"]),
    "sparse, one dimension": lambda: scipy.sparse.coo_array(np.full(3, 987654.0)),
}


def check_silent(error):
    assert SECRET not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("made", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_refused_without_a_word_of_it(made):
    X = made()
    with pytest.raises(InvalidRecords) as caught:
        read_table(X)
    check_silent(caught.value)


def test_an_error_that_quotes_a_cell_is_caught():
    with pytest.raises(ValueError, match="could not convert") as caught:
        np.array([f"x{SECRET}"]).astype(float)
    with pytest.raises(AssertionError):
        check_silent(caught.value)


@pytest.mark.parametrize("cells", [1, 6, 9, 300])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 7, 100, 101])
def test_no_chunk_has_a_single_row(monkeypatch, cells, number):
    """NumPy adds up the squares of a single row in another order than those of several."""
    monkeypatch.setattr(columns, "_CELLS", cells)
    chosen = [part for part, _ in read_table(np.zeros((number, 3))).chunks()]
    assert [row for part in chosen for row in range(part.start, part.stop)] == list(range(number))
    assert all(part.stop - part.start >= min(2, number) for part in chosen)
