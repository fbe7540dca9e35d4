"""DPRidgeCV: the exact solution without noise, in units of the columns and of the target."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from support.estimator_cases import CASES, NUMBERS, SETTLED, X, fitted, released

from dpbilevel.encoding.columns import read_table
from dpbilevel.estimators import DPRidgeCV
from dpbilevel.estimators.rows import scaling, split_intercept, with_intercept
from dpbilevel.estimators.targets import TargetScale

RIDGE = CASES["ridge"]
INFINITE = float("inf")

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning")


def solution(model, rows, y):
    """Coefficients and intercept that solve the normal equations; rows with missing cells add nothing to them."""
    table = read_table(rows)
    scaled, _ = scaling(table, model.data_norm, model.bounds)
    scale = TargetScale(*model.target_range)
    design = with_intercept(scaled.rows(table)).astype(np.float64)
    design[~np.isfinite(design).all(axis=1)] = 0
    penalties = np.diag([model.penalties_[0]] * 3 + [0.01 / len(rows)])  # the intercept has the smallest penalty
    weights = np.linalg.solve(design.T @ design / len(rows) + penalties, design.T @ scale.scaled(y) / len(rows))
    coefficients, intercepts = scaled.unscaled(*split_intercept(weights))
    return scale.unit * coefficients[0], scale.unit * intercepts[0] + scale.middle


def settled(rows=X, y=NUMBERS, **settings):
    return RIDGE.fit(rows, y, epsilon=INFINITE, method=SETTLED, **settings)


def check_solved(model, rows, y, tolerance=1e-3):
    coefficients, intercept = solution(model, rows, y)
    np.testing.assert_allclose(model.coef_, coefficients, rtol=tolerance)
    assert model.intercept_ == pytest.approx(intercept, rel=tolerance)


def test_without_noise_the_normal_equations_are_solved():
    model = settled()
    assert (model.coef_.shape, type(model.intercept_)) == ((3,), float)
    check_solved(model, X, NUMBERS)


def test_columns_and_targets_have_units():
    bounds = ([900, -3, 0], [1100, 3, 0.01])
    rows = X * [100, 2, 0.004] + [1000, 0, 0.005]
    model = settled(rows, 1e6 * NUMBERS, bounds=bounds, data_norm=None, target_range=(-6e6, 14e6))
    check_solved(model, rows, 1e6 * NUMBERS, tolerance=1e-2)  # bounds make rows short, and training slower
    np.testing.assert_allclose(model.predict(rows), rows @ model.coef_ + model.intercept_)


def test_targets_beyond_the_range_are_its_ends():
    clamped = np.clip(NUMBERS, 2, 6)
    assert (clamped != NUMBERS).any()
    one, two = RIDGE.fit(target_range=(2, 6)), RIDGE.fit(y=clamped, target_range=(2, 6))
    np.testing.assert_array_equal(released(one), released(two))


def test_rescaled_targets_give_rescaled_predictions():
    plain = fitted(RIDGE).predict(X)
    again = RIDGE.fit(y=50 * NUMBERS + 3, target_range=(-50 * 6 + 3, 50 * 14 + 3))
    np.testing.assert_allclose(again.predict(X), 50 * plain + 3, rtol=1e-4)


def test_a_row_with_a_missing_cell_adds_nothing():
    rows = X.copy()
    rows[[3, 8], [0, 2]] = np.nan, -np.inf
    model = settled(rows, invalid="zero")
    check_solved(model, rows, NUMBERS)
    with pytest.raises(AssertionError):
        check_solved(settled(np.nan_to_num(rows, neginf=0.0)), rows, NUMBERS)


def test_tuning_finds_penalties_that_predict_as_well_as_scikit_learns():
    draws = np.random.default_rng(0)
    rows = draws.normal(size=(2000, 3)) / 3
    y = 20 + 10 * rows[:, 0] - 4 * rows[:, 1] + draws.normal(size=2000)
    model = DPRidgeCV(epsilon=INFINITE, data_norm=1.5, target_range=(0, 40)).fit(rows, y)
    other = Ridge(1e-3).fit(rows, y)
    assert model.score(rows, y) > other.score(rows, y) - 0.01
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=0.05, atol=0.1)
    assert model.intercept_ == pytest.approx(other.intercept_, abs=0.1)


def test_scores_are_r_squared():
    model = fitted(RIDGE)
    weights = np.arange(60.0)
    assert model.score(X, NUMBERS) == r2_score(NUMBERS, model.predict(X))
    assert model.score(X, NUMBERS, weights) == r2_score(NUMBERS, model.predict(X), sample_weight=weights)
    assert model.score(X, np.full(60, 2.0)) == 0.0
