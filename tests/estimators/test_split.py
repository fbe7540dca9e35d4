"""Which rows validate: a function of their number, the fraction and a public seed, and of nothing else."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split
from support.estimator_cases import CASES, X, every_case

from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators import base, prepared, targets
from dpbilevel.estimators.split import split


@given(st.integers(2, 500), st.floats(0.001, 0.999), st.integers(0, 10**9))
def test_a_split_is_a_partition_with_rows_on_both_sides(rows, fraction, seed):
    validation, training = split(rows, fraction, seed)
    assert sorted([*validation, *training]) == list(range(rows))
    assert min(len(validation), len(training)) >= 1
    assert abs(len(validation) - rows * fraction) <= 1
    again = split(rows, fraction, seed)
    np.testing.assert_array_equal(np.concatenate(again), np.concatenate([validation, training]))


def test_a_split_depends_on_sizes_and_a_seed_alone():
    assert list(inspect.signature(split).parameters) == ["rows", "validation_fraction", "split_seed"]
    assert (split(60, 0.2, 0)[0] != split(60, 0.2, 1)[0]).any()
    assert len(split(60, np.float32(0.25), np.int64(7))[0]) == 15


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan"), float("inf"), "0.2", None, True, [0.2]], ids=str)
def test_wrong_fractions_are_refused(fraction):
    with pytest.raises(InvalidArgument, match="validation_fraction="):
        split(10, fraction, 0)


@pytest.mark.parametrize("seed", [-1, 0.5, "0", None, True, np.random.default_rng(0)], ids=str)
def test_wrong_seeds_are_refused(seed):
    with pytest.raises(InvalidArgument, match="split_seed="):
        split(10, 0.2, seed)


# ---- as estimators use it


class Handed(Exception):
    """Stops a fit where it would hand its records over."""


def check_split_ignores_content(case, monkeypatch):
    """The positions of validation rows are those of `split`, however the targets are ordered."""
    handed = []

    def records(upper, lower, invalid, **where):
        handed.append(np.concatenate([upper[0], lower[0]])[:, 0])
        raise Handed

    monkeypatch.setattr(base, "Records", records)
    rows = np.zeros_like(X)
    rows[:, 0] = np.arange(60) / 100  # which tells the position of a row
    expected = np.concatenate(split(60, 0.3, 3))
    for y in (case.y, np.sort(case.y), np.roll(case.y, 7)):
        with pytest.raises(Handed):
            case.make(split_seed=3, validation_fraction=0.3).fit(rows, y, **case.more())
        positions = np.argsort(np.argsort(handed.pop()))
        assert (positions == expected).all(), "the split depends on content"


@every_case
def test_estimators_split_by_position(case, monkeypatch):
    check_split_ignores_content(case, monkeypatch)


def test_a_stratified_split_is_caught(monkeypatch):
    seen = []
    class_codes = targets.class_codes

    def looking(y, classes):
        seen.append(y)
        return class_codes(y, classes)

    def stratified(rows, validation_fraction, split_seed):
        return train_test_split(np.arange(rows), train_size=18, stratify=seen[-1], random_state=split_seed)

    monkeypatch.setattr(targets, "class_codes", looking)
    monkeypatch.setattr(prepared, "split", stratified)
    with pytest.raises(AssertionError, match="split depends on content"):
        check_split_ignores_content(CASES["logistic"], monkeypatch)
