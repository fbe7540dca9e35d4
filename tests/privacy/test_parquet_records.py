"""Records of Parquet files: those of the same arrays, made one block after another; errors show no cell."""

import re
import warnings

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import dpbilevel as dpb
from dpbilevel.foundation import parquet as reading
from dpbilevel.privacy import parquet_records

KEY = b"k" * 32
ROWS = 1000


def table(rows=ROWS, seed=0):
    draws = np.random.default_rng(seed)
    town = np.array(["Oslo", "Rome"], object)[draws.integers(0, 2, rows)]
    return {"age": draws.uniform(0, 120, rows), "ill": draws.integers(0, 2, rows), "town": town}


def record(block):
    rows = np.stack([block["age"] / 120, block["town"] == "Oslo"], axis=1)
    return {"row": rows / np.sqrt(2), "ill": block["ill"]}


def write(path, columns, **options):
    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(reading, "_ROWS", 64)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("on_disk", [True, False])
def test_records_are_those_of_the_same_arrays(tmp_path, parts, on_disk):
    columns = table()
    folder = tmp_path / "train"
    folder.mkdir()
    for at in range(parts):
        part = slice(at * ROWS // parts, (at + 1) * ROWS // parts)
        write(folder / f"part-{at}.parquet", {name: cells[part] for name, cells in columns.items()}, row_group_size=100)
    path = folder if parts > 1 else folder / "part-0.parquet"
    found = dpb.Records.from_parquet(lower=path, record=record, storage=tmp_path if on_disk else None)
    expected = dpb.Records(lower=record(columns))
    assert found.seal(KEY) == expected.seal(KEY)
    assert found.sizes == expected.sizes
    assert found.is_on_disk is on_disk
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train"]


def test_roles_have_files_of_their_own(tmp_path):
    one, other = write(tmp_path / "a.parquet", table(40)), write(tmp_path / "b.parquet", table(60, seed=1))
    found = dpb.Records.from_parquet(upper=one, lower=str(other), record=record, columns=["age", "town", "ill"])
    assert repr(found) == "Records(upper=40 records, lower=60 records; values hidden)"


def test_results_say_what_is_assumed_of_the_function(tmp_path):
    found = dpb.Records.from_parquet(lower=write(tmp_path / "a.parquet", table(40)), record=record, storage=tmp_path)
    assert found.caveats == (
        "records were made by a function of blocks of rows, which is assumed to map every row by itself",
    )


# ---- shapes come before cells


def test_the_function_sees_made_up_rows_before_any_cell(tmp_path):
    seen = []

    def spying(block):
        seen.append({name: cells.tolist() for name, cells in block.items()})
        raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        dpb.Records.from_parquet(lower=write(tmp_path / "a.parquet", table(40)), record=spying, storage=tmp_path)
    assert seen == [{"age": [0.0] * 3, "ill": [0] * 3, "town": [""] * 3}]


def raising(block):
    if len(block["age"]) > 3:
        raise ValueError(f"cannot use {block['age'].tolist()}")
    return block["age"]


def shorter(block):
    return block["age"][block["age"] >= 0][:30] if len(block["age"]) > 3 else block["age"]


def typed_by_cells(block):
    return block["age"].astype(np.float32 if block["age"].max() > 0 else np.float64)


def wider(block):
    return np.zeros((len(block["age"]), 1 + int(block["age"].max() > 0)))


def is_withheld(folder, function):
    """Whether what a function does on cells is an error that shows nothing of them."""
    path = write(folder / "a.parquet", table(40))
    with pytest.raises((ValueError, dpb.InvalidArgument)) as raised:
        dpb.Records.from_parquet(lower=path, record=function, storage=folder)
    same = "record: raised an error, or returned other arrays" in str(raised.value)
    return same and raised.value.__context__ is None and not re.search(r"\d", str(raised.value))


@pytest.mark.parametrize("function", [raising, shorter, typed_by_cells, wider])
def test_what_a_function_does_with_cells_is_withheld(tmp_path, function):
    assert is_withheld(tmp_path, function)


@pytest.mark.parametrize("function", [raising, shorter, typed_by_cells, wider])
def test_a_function_whose_errors_are_shown_is_noticed(tmp_path, monkeypatch, function):
    def unguarded(record, block, rows, described, structure):
        return [np.asarray(record(block))]

    monkeypatch.setattr(parquet_records, "_made", unguarded)
    try:
        assert not is_withheld(tmp_path, function)
    except pytest.fail.Exception:  # nothing is raised: cells have decided on a dtype
        assert function is typed_by_cells


def test_warnings_of_the_function_are_not_shown(tmp_path):
    def warning(block):
        if len(block["age"]) > 3:
            warnings.warn(f"saw {block['age'][0]}", stacklevel=1)
        return np.exp(block["age"] * 1000)

    path = write(tmp_path / "a.parquet", table(40))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dpb.Records.from_parquet(lower=path, record=warning, storage=tmp_path, invalid="zero")


# ---- what is refused


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"age": pyarrow.array([1, None])}, "column 'age': has missing cells"),
        ({"age": pyarrow.array([1.0, np.nan])}, "must hold finite values"),
        ({"age": pyarrow.array([], pyarrow.float64())}, "is empty"),
        ({"age": pyarrow.array([[1.0], [2.0]])}, "must have numbers, booleans or text"),
        ({"age": pyarrow.array([1.0, 1e300])}, "must hold finite values"),
        ({"age": pyarrow.array([1, 2**40])}, "must hold finite values"),
    ],
)
def test_unusable_cells_are_refused(tmp_path, columns, message):
    with pytest.raises(dpb.errors.InvalidArgument, match=message):
        dpb.Records.from_parquet(
            lower=write(tmp_path / "a.parquet", columns), record=lambda block: block["age"], storage=tmp_path
        )


def test_unusable_arguments_are_refused(tmp_path):
    path = write(tmp_path / "a.parquet", table(10))
    (tmp_path / "empty").mkdir()
    for given, message in (
        ({"lower": path, "record": None}, "record: must be a function"),
        ({"lower": path, "columns": ["age", "weight"]}, "'weight' are not"),
        ({"lower": path, "columns": []}, "columns: must be names"),
        ({"lower": tmp_path / "none.parquet"}, "must be a Parquet file, or a folder"),
        ({"lower": tmp_path / "empty"}, "must be a Parquet file, or a folder"),
        ({"lower": path, "middle": path}, "roles: must be paths"),
        ({"record": record}, "roles: give lower="),
        ({"lower": path, "record": lambda block: block["age"].sum()}, "a leaf has no axis"),
        ({"lower": path, "record": lambda block: block["age"][:2]}, "one line for each row"),
    ):
        with pytest.raises(dpb.errors.InvalidArgument, match=message):
            dpb.Records.from_parquet(**{"record": record, "storage": tmp_path} | given)


def test_files_of_a_folder_must_agree(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    write(folder / "a.parquet", {"age": np.zeros(4)})
    write(folder / "b.parquet", {"age": np.zeros(4, np.int32)})
    with pytest.raises(dpb.errors.InvalidArgument, match="its files have different columns"):
        dpb.Records.from_parquet(lower=folder, record=lambda block: block["age"], storage=tmp_path)


def test_a_file_that_is_none_shows_no_cell(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_text("age\n31\n")
    with pytest.raises(dpb.errors.InvalidRecords, match="a Parquet file must be complete") as raised:
        dpb.Records.from_parquet(lower=path, record=record, storage=tmp_path)
    assert "31" not in str(raised.value).replace(str(tmp_path), "")


def test_a_file_that_is_written_to_is_noticed(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", table(40))
    monkeypatch.setattr("dpbilevel.privacy.parquet_records.footers", lambda path: (reading.footers(path)[0], 39))
    with pytest.raises(dpb.errors.InvalidRecords, match="another number of rows than its footer"):
        dpb.Records.from_parquet(lower=path, record=record, storage=tmp_path)
