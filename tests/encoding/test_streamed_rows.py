"""Rows that nothing holds: the same as an array of them, whatever their blocks are."""

import numpy as np
import pytest
from support.estimator_cases import LABELS, X

import dpbilevel as dpb
from dpbilevel.encoding.columns import read_table
from dpbilevel.encoding.encoded_rows import caveats_of
from dpbilevel.encoding.streamed_rows import StreamedRows
from dpbilevel.errors import InvalidRecords
from dpbilevel.estimators import DPLogisticRegressionCV
from dpbilevel.estimators.rows import norm_scaling
from dpbilevel.estimators.scaled_rows import ScaledRows

ENCODER = dpb.BoundedEncoder(ranges=dict.fromkeys(range(3), (-1, 1)), knots=None).fit(X)
WHOLE = ENCODER.transform(X)


def streamed(size, rows=X, number=None):
    blocks = [rows[first : first + size] for first in range(0, len(rows), size)]
    return StreamedRows(len(rows) if number is None else number, ENCODER, lambda: map(ENCODER.transform, blocks))


def read(rows):
    """All chunks as one array, with the number of rows of each."""
    found, places = np.full(rows.shape, np.nan, np.float32), []
    for chosen, chunk in rows.as_table().chunks():
        found[chosen] = chunk.T
        places.append(chosen)
    assert [place.start for place in places] == [0, *(place.stop for place in places[:-1])]
    return found, [place.stop - place.start for place in places]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 59, 60, 100])
def test_rows_are_those_of_the_array(size):
    found, lengths = read(streamed(size))
    np.testing.assert_array_equal(found, WHOLE)
    assert min(lengths) > 1, "NumPy adds up a single row in another order"


@pytest.mark.parametrize("size", [1, 7, 100])
def test_some_of_the_rows(size):
    positions = np.array([0, 3, 4, 31, 58])
    chosen = streamed(size).at(positions)
    assert (chosen.shape, len(chosen)) == ((5, 3), 5)
    np.testing.assert_array_equal(read(chosen)[0], WHOLE[positions])
    np.testing.assert_array_equal(read(chosen.at(np.array([1, 4])))[0], WHOLE[[3, 58]])


def test_an_estimator_scales_them_alike():
    selections = np.array([7, 3, 40]), np.array([0, 49, 8, 1])
    one, other = (ScaledRows(norm_scaling(3, 1.0), read_table(rows), intercept=True) for rows in (WHOLE, streamed(7)))
    for part, same in zip(one.parts(selections), other.parts(selections), strict=True):
        np.testing.assert_array_equal(part, same)


@pytest.mark.parametrize("number", [59, 61])
def test_another_number_of_rows_is_refused(number):
    with pytest.raises(InvalidRecords, match="has another number of rows than when they were counted"):
        read(streamed(7, number=number))


def test_they_know_what_encoded_rows_know():
    rows = streamed(7)
    for name in ("shape", "data_norm", "caveats", "terms", "counts_rows"):
        assert getattr(rows, name) == getattr(WHOLE, name), name
    undeclared = dpb.BoundedEncoder(ranges={0: (-1, 1), 1: (-1, 1)}).fit(X)
    assert caveats_of([StreamedRows(60, undeclared, list)]) == undeclared.transform(X).caveats
    assert "0." not in repr(rows)


def test_a_fit_is_that_on_the_array():
    settings = {"classes": [0, 1], "method": dpb.Refit(steps=2), "random_state": 0}
    with pytest.warns(dpb.UtilityWarning):
        one, other = (DPLogisticRegressionCV(**settings).fit(rows, LABELS) for rows in (WHOLE, streamed(7)))
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert one.solution_.privacy.caveats == other.solution_.privacy.caveats
