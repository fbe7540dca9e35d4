"""Encoded rows keep their declared norm while they are the same rows, and their caveats whatever becomes of them."""

import copy
import pickle

import numpy as np
import pytest

from dpbilevel.encoding.encoded_rows import EncodedRows
from dpbilevel.errors import InvalidArgument, InvalidRecords

CAVEAT = "column 'age' was not declared"


@pytest.fixture
def rows():
    return EncodedRows(np.arange(12, dtype=np.float32).reshape(4, 3), data_norm=2.5, caveats=[CAVEAT])


SAME_ROWS = {
    "slice": lambda rows: rows[1:3],
    "one row": lambda rows: rows[0],
    "indices": lambda rows: rows[[2, 0]],
    "mask": lambda rows: rows[np.array([True, False, True, False])],
    "columns": lambda rows: rows[:, :2],
    "take": lambda rows: np.take(rows, [0, 1], axis=0),
    "copy": lambda rows: rows.copy(),
    "deepcopy": copy.deepcopy,
    "astype": lambda rows: rows.astype(np.float64),
    "pickle": lambda rows: pickle.loads(pickle.dumps(rows)),
    "newest pickle": lambda rows: pickle.loads(pickle.dumps(rows, pickle.HIGHEST_PROTOCOL)),
}


@pytest.mark.parametrize("of", SAME_ROWS.values(), ids=SAME_ROWS)
def test_the_same_rows_keep_norm_and_caveats(rows, of):
    same = of(rows)
    assert type(same) is EncodedRows
    assert (same.data_norm, same.caveats) == (2.5, (CAVEAT,))


def test_pickles_keep_values(rows):
    again = pickle.loads(pickle.dumps(rows))
    np.testing.assert_array_equal(again, rows)
    assert again.dtype == rows.dtype


OTHER_ROWS = {
    "product": lambda rows: 2 * rows,
    "sum of two": lambda rows: rows + rows,
    "matrix product": lambda rows: rows @ np.eye(3),
    "column sums": lambda rows: rows.sum(axis=0),
    "concatenate": lambda rows: np.concatenate([np.asarray(rows), rows]),
    "hstack": lambda rows: np.hstack((rows, rows)),
    "vstack": lambda rows: np.vstack([rows, np.zeros(3)]),
    "stack": lambda rows: np.stack([rows, rows]),
    "column_stack": lambda rows: np.column_stack([np.ones(4), rows]),
}


@pytest.mark.parametrize("of", OTHER_ROWS.values(), ids=OTHER_ROWS)
def test_other_rows_keep_the_caveats_and_forget_the_norm(rows, of):
    other = of(rows)
    assert (other.data_norm, other.caveats) == (None, (CAVEAT,))


def test_joined_rows_have_the_caveats_of_all_once(rows):
    others = EncodedRows(rows, caveats=["another", CAVEAT])
    assert np.concatenate([rows, others, rows]).caveats == (CAVEAT, "another")


def test_in_place_arithmetic_forgets_the_norm(rows):
    rows *= 2
    assert rows.data_norm is None
    assert rows.caveats == (CAVEAT,)


def test_plain_arrays_and_numbers_are_plain(rows):
    assert type(np.asarray(rows)) is np.ndarray
    assert type(rows.sum()) is np.float32
    assert type(rows[0, 0]) is np.float32
    assert EncodedRows([[1.0]]).data_norm is None
    assert EncodedRows([[1.0]]).caveats == ()


def test_what_is_no_array_is_refused_without_a_word_of_it():
    class Rude:
        def __array__(self, *_, **__):
            raise ValueError("quotes 987654.25")

    with pytest.raises(InvalidRecords, match=r"^rows: must be an array$") as caught:
        EncodedRows(Rude())
    assert caught.value.__context__ is None
    for wrong in ("a sentence", [1], None):
        with pytest.raises(InvalidArgument, match=r"^caveats"):
            EncodedRows(np.eye(2), caveats=wrong)
