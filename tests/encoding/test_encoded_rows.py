"""Encoded rows keep their declared norm while they are the same rows, and their caveats whatever becomes of them."""

import copy
import pickle

import numpy as np
import pytest
from sklearn.model_selection import train_test_split
from sklearn.utils import resample, shuffle

from dpbilevel.encoding.encoded_rows import EncodedRows
from dpbilevel.errors import InvalidArgument, InvalidRecords

CAVEAT = "column 'age' was not declared"


@pytest.fixture
def rows():
    made = EncodedRows(np.arange(12, dtype=np.float32).reshape(4, 3), data_norm=2.5, caveats=[CAVEAT])
    made.counts_rows = True  # that columns follow from the number of rows; inherited like a caveat
    return made


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
    assert same.counts_rows
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
    "hstack": lambda rows: np.hstack((rows, np.asarray(rows))),
    "rows upon rows": lambda rows: np.concatenate([rows, rows]),
    "transposed": lambda rows: rows.T,
    "one column": lambda rows: rows[:, 1],
    "a column twice": lambda rows: rows[:, [0, 0]],
    "cells of many rows": lambda rows: rows[[0, 1], [1, 2]],
    "another axis": lambda rows: rows[:, None],
    "reshaped": lambda rows: rows.reshape(2, 6),
    "whole numbers": lambda rows: rows.astype(bool),
    "vstack": lambda rows: np.vstack([rows, np.zeros(3)]),
    "stack": lambda rows: np.stack([rows, rows]),
    "column_stack": lambda rows: np.column_stack([np.ones(4), rows]),
}


@pytest.mark.parametrize("of", OTHER_ROWS.values(), ids=OTHER_ROWS)
def test_other_rows_keep_the_caveats_and_forget_the_norm(rows, of):
    other = of(rows)
    assert (other.data_norm, other.caveats) == (None, (CAVEAT,))
    assert other.counts_rows


SIDE_BY_SIDE = {
    "hstack": np.hstack,
    "column_stack": np.column_stack,
    "concatenate": lambda parts: np.concatenate(parts, axis=1),
    "last axis": lambda parts: np.concatenate(parts, axis=-1),
}


@pytest.mark.parametrize("joined", SIDE_BY_SIDE.values(), ids=SIDE_BY_SIDE)
def test_rows_side_by_side_have_the_root_of_the_sum_of_squares(rows, joined):
    others = EncodedRows(np.ones((4, 2)), data_norm=6.0, caveats=["another"])
    longer = joined((rows, others))
    assert longer.data_norm == 6.5
    assert longer.caveats == (CAVEAT, "another")
    assert longer.counts_rows
    assert not joined((others, others)).counts_rows
    assert joined((rows, EncodedRows(np.ones((4, 2)), caveats=["another"]))).data_norm is None


def test_joined_rows_have_the_caveats_of_all_once(rows):
    others = EncodedRows(rows, caveats=["another", CAVEAT])
    assert np.concatenate([rows, others, rows]).caveats == (CAVEAT, "another")


def write(rows, others):
    rows[1:] = others[1:]


IN_PLACE = {
    "product": lambda rows, others: rows.__imul__(others),
    "ufunc": lambda rows, others: np.add(others, 1, out=rows),
    "ufunc at": lambda rows, others: np.add.at(rows, [0, 1], others[:2]),
    "assignment": write,
    "fill": lambda rows, others: rows.fill(others[0, :1].reshape(())),
    "put": lambda rows, others: rows.put([0], others[0]),
    "copyto": np.copyto,
    "np.put": lambda rows, others: np.put(rows, [0], others[0]),
    "putmask": lambda rows, others: np.putmask(rows, np.asarray(rows) > 1, others),
    "place": lambda rows, others: np.place(rows, np.asarray(rows) > 1, others),
    "put_along_axis": lambda rows, others: np.put_along_axis(rows, np.zeros((4, 1), int), others[:, :1], axis=1),
    "fill_diagonal": lambda rows, others: np.fill_diagonal(rows, others[0]),
    "clip": lambda rows, others: np.clip(others, 0, 1, out=rows),
    "take": lambda rows, others: np.take(others, range(4), axis=0, out=rows),
    "matmul": lambda rows, others: np.matmul(others, np.eye(3, dtype=np.float32), out=rows),
    "concatenate": lambda rows, others: np.concatenate([others[:2], others[2:]], out=rows),
}


@pytest.mark.parametrize("change", IN_PLACE.values(), ids=IN_PLACE)
def test_rows_that_are_written_into_forget_the_norm_and_take_over_caveats(rows, change):
    others = EncodedRows(np.full((4, 3), 9, np.float32), data_norm=99.0, caveats=["another"])
    rows.counts_rows, others.counts_rows = False, True
    change(rows, others)
    assert rows.counts_rows
    assert (rows.data_norm, rows.caveats) == (None, (CAVEAT, "another"))


@pytest.mark.parametrize("change", [lambda rows: rows.sort(axis=0), lambda rows: rows.partition(1, axis=0)])
def test_mixed_rows_have_no_norm(rows, change):
    change(rows)
    assert (rows.data_norm, rows.caveats) == (None, (CAVEAT,))


def test_in_place_arithmetic_of_a_plain_array_gives_it_the_caveats(rows):
    plain = np.ones((4, 3), np.float32)
    same = plain
    plain += rows
    assert plain.caveats == (CAVEAT,)
    assert plain.counts_rows
    np.testing.assert_array_equal(same, 1 + np.asarray(rows))


def test_what_becomes_of_rows_in_a_split_and_a_fold(rows):
    validating, training = train_test_split(rows, test_size=0.5, random_state=0)
    for part in (validating, training, resample(rows, random_state=0), shuffle(rows, random_state=0)):
        assert (part.data_norm, part.caveats, part.counts_rows) == (2.5, (CAVEAT,), True)


def test_plain_arrays_and_numbers_are_plain(rows):
    assert type(np.asarray(rows)) is np.ndarray
    assert type(rows.sum()) is np.float32
    assert type(rows[0, 0]) is np.float32
    assert EncodedRows([[1.0]]).data_norm is None
    assert EncodedRows([[1.0]]).caveats == ()
    assert not (2 * EncodedRows([[1.0]])).counts_rows


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
