"""Rows as models are trained on them: of norm at most one whatever the cells are, each by itself, without a word."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpbilevel.encoding.columns import read_table
from dpbilevel.encoding.encoded_rows import EncodedRows
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.estimators.rows import norm_scaling, scaling, split_intercept, with_intercept

HUGE, TINY = np.finfo(float).max, 5e-324
ROUNDING = 1 + 1e-6  # rows are float32
extremes = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([HUGE, -HUGE, TINY, -TINY, 0.0, 1e-160])
tables = arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 5)), elements=extremes)


def scaled(rows, **declared):
    table = read_table(rows)
    made, caveat = scaling(table, declared.get("data_norm"), declared.get("bounds"))
    assert (caveat is None) == bool(declared)
    return made.rows(table)


def check_norms(rows):
    assert rows.dtype == np.float32
    assert (np.linalg.norm(rows.astype(np.float64), axis=1) <= ROUNDING).all()


# ---- every row has norm one at most


@pytest.mark.filterwarnings("error")
@given(tables, st.floats(TINY, HUGE))
def test_no_row_is_longer_than_the_declared_norm(rows, norm):
    result = scaled(rows, data_norm=norm)
    check_norms(result)
    check_norms(with_intercept(result))
    # A row keeps its direction, and all of its length up to the norm.
    largest = np.abs(rows).max(axis=1)
    for row, given_row, size in zip(result.astype(np.float64), rows, largest, strict=True):
        if size == 0:
            assert not row.any()
            continue
        direction = given_row / size
        length = np.linalg.norm(direction)
        with np.errstate(over="ignore"):
            expected = direction / length * min(1.0, size / norm * length)
        np.testing.assert_allclose(row, expected, rtol=1e-6, atol=1e-30)


@pytest.mark.filterwarnings("error")
@given(tables)
def test_no_row_is_longer_than_the_norm_of_the_data(rows):
    check_norms(scaled(rows))


@pytest.mark.filterwarnings("error")
@given(tables, st.floats(-1e300, 1e300), st.floats(1e-3, 1e300))
def test_columns_are_clamped_to_their_bounds(rows, low, width):
    high = low + width
    if not low / 2 < high / 2:
        return
    result = scaled(rows, bounds=(low, high))
    check_norms(result)
    unit = 1 / math.sqrt(rows.shape[1])
    for cells, outside in ((result[rows >= high], unit), (result[rows <= low], -unit)):
        np.testing.assert_allclose(cells, outside, rtol=1e-6)


def shortened_naively(rows, norm):
    lengths = np.linalg.norm(rows / norm, axis=1, keepdims=True)
    return (rows / norm / np.maximum(lengths, 1)).astype(np.float32)


def test_rows_beyond_the_norm_are_shortened_to_it():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [HUGE, HUGE], [-HUGE, 0.0], [TINY, 0.0], [0.0, 0.0]])
    half = math.sqrt(0.5)
    expected = [[0.6, 0.8], [0.3, 0.4], [half, half], [-1, 0], [0, 0], [0, 0]]
    np.testing.assert_allclose(scaled(rows, data_norm=1.0), expected, atol=1e-7)
    with np.errstate(all="ignore"), pytest.raises(AssertionError):
        np.testing.assert_allclose(shortened_naively(rows, 1.0), expected, atol=1e-7)


def test_bounds_can_differ_between_columns():
    rows = np.array([[0.0, 15.0], [10.0, 100.0], [-5.0, 10.0]])
    result = scaled(rows, bounds=([0, 10], [10, 20]))
    np.testing.assert_allclose(result * math.sqrt(2), [[-1, 0], [1, 1], [-1, -1]], atol=1e-6)


# ---- a row at a time


def check_rows_apart(transform, rows):
    together = transform(rows)
    for at in range(len(rows)):
        np.testing.assert_array_equal(transform(rows[at : at + 1]), together[at : at + 1])


def test_a_row_is_scaled_by_itself_unless_the_norm_is_the_datas():
    rows = np.random.default_rng(0).normal(size=(20, 3))
    check_rows_apart(lambda rows: scaled(rows, data_norm=0.7), rows)
    check_rows_apart(lambda rows: scaled(rows, bounds=(-1, 1)), rows)
    with pytest.raises(AssertionError):
        check_rows_apart(scaled, rows)


def test_long_tables_are_read_in_parts(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(20, 3))
    whole = scaled(rows, data_norm=0.7)
    monkeypatch.setattr("dpbilevel.encoding.columns._CELLS", 9)
    np.testing.assert_array_equal(scaled(rows, data_norm=0.7), whole)
    made, _ = scaling(read_table(rows), None, None)
    assert made.size[0] == pytest.approx(np.linalg.norm(rows, axis=1).max())


def reported(rows, **declared):
    """Everything that scaling leaves behind besides the rows."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = read_table(rows)
        made, caveat = scaling(table, declared.get("data_norm"), declared.get("bounds"))
        made.rows(table)
    return [str(warning.message) for warning in caught], caveat, made.middle.tolist(), made.size.tolist(), made.clamped


@pytest.mark.parametrize("declared", [{"data_norm": 0.5}, {"bounds": (-1, 1)}], ids=str)
def test_the_number_of_rows_beyond_appears_nowhere(declared):
    inside, outside = np.full((9, 2), 0.1), np.full((9, 2), HUGE)
    assert reported(inside, **declared) == reported(outside, **declared)
    assert reported(inside) != reported(outside)


# ---- cells that are missing, and predictions


def test_rows_with_missing_or_infinite_cells_stay_unusable():
    rows = np.array([[np.nan, 1.0], [np.inf, 1.0], [-np.inf, np.nan], [1.0, 1.0]])
    for declared in ({"data_norm": 1.0}, {"bounds": (-2, 2)}):
        assert np.isfinite(scaled(rows, **declared)).all(axis=1).tolist() == [False, False, False, True]
    for bad in rows[:3]:
        with pytest.raises(InvalidRecords, match="X: contains NaN, infinity"):
            norm_scaling(len(bad), 1.0).rows(read_table(bad[None]), refuse=True)
    norm_scaling(len(bad), 1.0).rows(read_table(rows[3:]), refuse=True)


@pytest.mark.parametrize("declared", [{"ranges": {0: (-1, 1), 1: (-1, 1)}}, {"categories": {0: [1, 2], 1: [3, 4]}}])
def test_encoded_rows_are_copied_and_scaling_them_again_would_not_change_a_bit(declared):
    cells = np.random.default_rng(0).integers(1, 5, (50, 2)) if "categories" in declared else np.sin(np.arange(100.0))
    encoded = BoundedEncoder(**declared).fit_transform(cells.reshape(50, 2))
    made = norm_scaling(encoded.shape[1], encoded.data_norm)
    result = made.rows(read_table(encoded), refuse=True)
    np.testing.assert_array_equal(result, np.asarray(encoded))
    np.testing.assert_array_equal(result, made._shortened(np.asarray(encoded, np.float64)).astype(np.float32))


def test_rows_that_claim_a_norm_are_shortened_to_it():
    for wrong in (2.0, np.float32(1 + 1e-6)):
        rows = np.full((3, 1), wrong, np.float32)
        assert norm_scaling(1, 1.0).rows(read_table(EncodedRows(rows, data_norm=1.0))).tolist() == [[1.0]] * 3


def test_one_long_row_changes_no_other_row_and_no_branch():
    rows = np.sin(np.arange(40, dtype=np.float32)).reshape(20, 2) / 2
    long = rows.copy()
    long[7] = (3e38, 1.0)
    made = norm_scaling(2, 1.0)
    changed = made.rows(read_table(long), refuse=True)
    np.testing.assert_array_equal(np.delete(changed, 7, axis=0), np.delete(rows, 7, axis=0))
    assert np.linalg.norm(changed[7].astype(np.float64)) == pytest.approx(1.0, abs=1e-7)
    unusable = rows.copy()
    unusable[3, 0] = np.inf
    assert np.isfinite(made.rows(read_table(unusable))).all(axis=1).tolist() == [row != 3 for row in range(20)]


@pytest.mark.parametrize("declared", [(2.5, None), (None, ([-1, 0], [1, 8]))], ids=["norm", "bounds"])
def test_coefficients_of_scaled_rows_are_those_of_the_columns(declared):
    rows = np.array([[0.5, 1.0], [-0.25, 2.0], [1.0, 0.5]])
    made, _ = scaling(read_table(rows), *declared)
    own, intercepts = np.array([[1.5, -2.0], [0.0, 1.0]]), np.array([0.25, -1.0])
    scores = made.scores(read_table(rows), *made.unscaled(own, intercepts))
    np.testing.assert_allclose(scores, made.rows(read_table(rows)) @ own.T + intercepts, rtol=1e-6)
    missing = np.array([[np.nan, 1.0], [0.5, -np.inf]])
    filled = np.where(np.isfinite(missing), missing, made.middle)
    np.testing.assert_array_equal(
        made.scores(read_table(missing), own, intercepts), made.scores(read_table(filled), own, intercepts)
    )


def test_the_intercept_is_a_column_that_leaves_the_norm_at_one():
    rows = np.array([[0.6, 0.8], [0.0, 0.0]], np.float32)
    longer = with_intercept(rows)
    assert longer.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(longer, axis=1), [1.0, 0.3], rtol=1e-6)
    for weights in (np.array([1.0, 2.0, 3.0]), np.array([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]])):
        coefficients, intercepts = split_intercept(weights)
        scores = rows @ coefficients.T + intercepts
        np.testing.assert_allclose(scores, (longer @ weights).reshape(2, -1), rtol=1e-6)


# ---- declarations


NO_BOUNDS = [5, "ab", (0,), (0, 1, 2), (1, 0), (0, 0), (0, np.nan), (0, np.inf), ([0, 0], 1), (0, "a"), (None, 1)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bounds", [*NO_BOUNDS, (0, 10**400), (0, TINY), (-HUGE, HUGE)], ids=lambda it: str(it)[:20])
def test_bounds_that_are_none_are_refused(bounds):
    with pytest.raises(InvalidArgument, match=r"bounds: must be a pair \(low, high\)"):
        scaling(read_table(np.zeros((2, 3))), None, bounds)


def test_a_norm_that_is_not_declared_is_said_so():
    made, caveat = scaling(read_table(np.array([[3.0, 4.0], [np.nan, 1.0]])), None, None)
    assert made.size.tolist() == [5.0, 5.0]
    assert "data_norm was not declared" in caveat
    made, _ = scaling(read_table(np.zeros((2, 3))), None, None)
    assert made.size.tolist() == [1.0] * 3
