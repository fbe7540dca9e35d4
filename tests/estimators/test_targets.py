"""Targets: labels as numbers of declared classes, values in a declared range, names as numbers."""

import datetime

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import DataConversionWarning
from support.estimator_cases import NUMBER, WORD, check_silent

from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.estimators.targets import (
    TARGET_BOUND,
    TargetScale,
    check_kind,
    class_codes,
    column,
    name_codes,
    numbers,
    target_scale,
)

HUGE, TINY = np.finfo(float).max, 5e-324

# ---- one entry for each row


def test_columns_of_every_kind_are_read():
    pandas, polars, arrow = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    for values in ([1, 2, 1], (1, 2, 1), np.array([1, 2, 1], np.uint8), np.array([1, 2, 1], object), range(3)):
        assert column("y", values, 3).tolist() == list(values)
    words = ["a", "b", "a"]
    frames = (pandas.Series(words), pandas.Categorical(words), polars.Series(words), arrow.chunked_array([words]))
    for values in (words, np.array(words), np.array(words, object), *frames):
        assert column("y", values, 3).tolist() == words
    nullable = pandas.Series([1, 2, 1], dtype="Int64")
    assert column("y", nullable, 3).tolist() == [1, 2, 1]


def test_a_matrix_of_one_column_is_taken_with_a_word():
    pandas = pytest.importorskip("pandas")
    for values in (np.array([[1], [2], [1]]), pandas.DataFrame({"y": [1, 2, 1]})):
        with pytest.warns(DataConversionWarning, match="A column-vector y was passed"):
            assert column("y", values, 3).tolist() == [1, 2, 1]


REFUSED = {
    "None": None,
    "a number": NUMBER,
    "a word": WORD,
    "a set": {WORD, NUMBER},
    "a dictionary": {WORD: NUMBER},
    "too few": [NUMBER, 1.0],
    "too many": [WORD] * 4,
    "NaN": [NUMBER, np.nan, 1.0],
    "infinity": [NUMBER, np.inf, 1.0],
    "None in a list": [WORD, None, WORD],
    "mixed": [WORD, NUMBER, 1],
    "mixed objects": np.array([WORD, NUMBER, 1], object),
    "nested": [[NUMBER], [1.0], [2.0]],
    "ragged": [[NUMBER], [1.0, 2.0], [3.0]],
    "two columns": np.full((3, 2), NUMBER),
    "three dimensions": np.full((3, 1, 1), NUMBER),
    "complex": np.full(3, NUMBER + 1j),
    "a complex column": np.full((3, 1), NUMBER + 1j),
    "masked": np.ma.masked_array([NUMBER, 1.0, 2.0], [1, 0, 0]),
    "a masked column": np.ma.masked_array([[NUMBER], [1.0], [2.0]], [[1], [0], [0]]),
    "sparse": scipy.sparse.csr_array(np.full((3, 1), NUMBER)),
    "dates": [datetime.date(2020, 1, 1)] * 3,
    "too large": [10**400, 1, 2],
    "bytes": np.array([WORD.encode()] * 3),
}


@pytest.mark.parametrize("values", REFUSED.values(), ids=REFUSED)
def test_other_columns_are_refused_and_not_quoted(values):
    error = check_silent(lambda: column("sources", values, 3))
    assert isinstance(error, InvalidRecords)
    assert str(error).startswith("sources")


def test_numbers_are_no_strings():
    assert numbers("y", [1, 2.5], 2).tolist() == [1.0, 2.5]
    assert isinstance(check_silent(lambda: numbers("y", [WORD, "1"], 2)), InvalidRecords)


# ---- classes


@pytest.mark.parametrize(
    ("y", "classes", "known", "codes"),
    [
        ([3, 1, 3], None, [1, 3], [1, 0, 1]),
        ([3.0, 1.0, 3.0], None, [1, 3], [1, 0, 1]),
        (["b", "a", "b"], None, ["a", "b"], [1, 0, 1]),
        ([True, False], None, [False, True], [1, 0]),
        ([3, 1, 3], [3, 2, 1], [3, 2, 1], [0, 2, 0]),
        ([0.5, 1.5], (1.5, 0.5), [1.5, 0.5], [1, 0]),
        (["no", "yes"], ["yes", "no"], ["yes", "no"], [1, 0]),
        # With an id of its own: a set of strings reads differently in every process, and xdist compares ids.
        pytest.param(["b", "b"], {"a", "b"}, ["a", "b"], [1, 1], id="a set"),
        ([2, 0], range(3), [0, 1, 2], [2, 0]),
        (["b", "a"], np.array(["a", "b", "a longer name"], object), ["a", "b", "a longer name"], [1, 0]),
    ],
    ids=str,
)
def test_labels_become_numbers_of_classes_in_the_declared_order(y, classes, known, codes):
    found, numbered, caveat = class_codes(np.array(y), classes)
    assert (found.tolist(), numbered.tolist(), numbered.dtype) == (known, codes, np.int32)
    assert (caveat is None) == (classes is not None)


def test_fewer_than_two_classes_are_refused():
    for y, classes in (([1, 1], None), ([1, 1], [1])):
        with pytest.raises(InvalidArgument, match="classes: must be two or more"):
            class_codes(np.array(y), classes)


@pytest.mark.filterwarnings("error")
def test_continuous_targets_are_no_labels_and_many_classes_are_not_remarked_on():
    error = check_silent(lambda: class_codes(np.array([NUMBER, 1.0]), None))
    assert isinstance(error, InvalidRecords)
    assert "Unknown label type: continuous" in str(error)
    assert len(class_codes(np.arange(30), None)[0]) == 30


@pytest.mark.parametrize(
    ("y", "classes"),
    [([1, int(NUMBER)], [0, 1]), (["a", WORD], ["a", "b"]), ([NUMBER, 1], ["a", "b"]), ([WORD], [0, 1])],
)
def test_labels_that_are_no_class_are_refused_and_not_quoted(y, classes):
    assert isinstance(check_silent(lambda: class_codes(np.array(y), classes)), InvalidRecords)
    check_kind(np.array(["a"]), np.array(["a", "b"]))


@pytest.mark.parametrize(
    "classes", [5, "ab", [], [0, 0], [0, "a"], [0, np.nan], [[0, 1]], {"a": 1}, [None, 1]], ids=str
)
def test_classes_must_be_a_list_of_different_labels(classes):
    with pytest.raises(InvalidArgument, match=r"classes=.*: must list numbers or strings without duplicates"):
        class_codes(np.array([0, 1]), classes)


# ---- names


def test_names_that_are_not_listed_are_those_of_other():
    values = np.array(["b", WORD, "a", "bb"])
    known, codes, caveat = name_codes("task", values, ["b", "other", "a"], strict=True)
    assert (known.tolist(), codes.tolist(), caveat) == (["a", "b", "other"], [1, 2, 0, 2], None)
    assert name_codes("task", values, ["a", "b"], strict=False)[1].tolist() == [1, -1, 0, -1]
    error = check_silent(lambda: name_codes("task", values, ["a", "b"], strict=True))
    assert isinstance(error, InvalidRecords)
    assert str(error).startswith("tasks: has a name that task_names= does not list")


def test_names_can_be_numbers_and_numbers_can_be_named():
    assert name_codes("source", np.array([3, 1]), range(4), strict=True)[1].tolist() == [3, 1]
    assert name_codes("source", np.array([1, 7]), ["1", "other"], strict=True)[1].tolist() == [0, 1]
    assert name_codes("source", np.array(["1", "x"]), [0, 1], strict=False)[1].tolist() == [-1, -1]


def test_a_longer_number_is_not_truncated_to_a_name():
    assert name_codes("source", np.array([12, 1]), ["1", "2"], strict=False)[1].tolist() == [-1, 0]
    with pytest.raises(InvalidRecords, match="sources: has a name"):
        name_codes("source", np.array([12, 1]), ["1", "2"], strict=True)


def test_names_that_are_not_declared_are_those_of_the_data():
    known, codes, caveat = name_codes("source", np.array(["b", "a", "b"]), None, strict=True)
    assert (known.tolist(), codes.tolist()) == (["a", "b"], [1, 0, 1])
    assert caveat.startswith("names of sources were not declared")


# ---- ranges


@pytest.mark.filterwarnings("error")
@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300), st.lists(st.floats(-HUGE, HUGE), min_size=1, max_size=5))
def test_scaled_targets_are_bounded_and_lead_back(low, high, targets):
    if not TargetScale(low, high).unit > 0:
        return
    scale, caveat = target_scale(np.array(targets), (low, high))
    scaled = scale.scaled(np.array(targets))
    assert caveat is None
    assert scaled.dtype == np.float32
    assert (np.abs(scaled) <= TARGET_BOUND).all()
    width = high / 2 - low / 2
    for target, number in zip(targets, scaled.astype(np.float64), strict=True):
        back = number * scale.unit + scale.middle
        assert abs(back - min(max(target, low), high)) <= 1e-6 * width + 1e-15 * abs(scale.middle) + TINY


def test_the_ends_of_the_range_are_the_bounds():
    scale, _ = target_scale(np.zeros(1), (0, 40))
    assert scale.scaled(np.array([0, 40, 20, -7, 99])).tolist() == [-3, 3, 0, -3, 3]
    assert (scale.middle, scale.unit) == (20.0, 20 / 3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.uint8, bool])
def test_targets_of_narrow_types_do_not_overflow(dtype):
    scale, _ = target_scale(np.zeros(1), (0, 1e6))
    np.testing.assert_allclose(scale.scaled(np.array([0, 1], dtype)), [-3, -3 + 6e-6], rtol=1e-6)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("y", [[1.0, 5.0], [2.0, 2.0], [1e300, 1e300], [0.0, 0.0], [0.0, TINY], [-HUGE, HUGE]], ids=str)
def test_a_range_that_is_not_declared_is_that_of_the_data(y):
    scale, caveat = target_scale(np.array(y), None)
    assert caveat.startswith("target_range was not declared")
    assert scale.low <= min(y) <= max(y) <= scale.high
    assert np.isfinite(scale.scaled(np.array(y))).all()
    if y == [1.0, 5.0]:
        assert (scale.low, scale.high) == (1.0, 5.0)


NO_RANGES = [5, "12", (0,), (0, 1, 2), (1, 0), (0, 0), (0, np.nan), (-np.inf, 0), (0, "a"), (None, 1), {0: 1, 2: 3}]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("target_range", [*NO_RANGES, (0, 10**400), (0, TINY)], ids=lambda value: str(value)[:20])
def test_ranges_that_are_none_are_refused(target_range):
    with pytest.raises(InvalidArgument, match=r"target_range=.*: must be two finite numbers"):
        target_scale(np.zeros(2), target_range)
