"""Objective perturbation: the claimed delta against the true one by quadrature, and against the paper's formula."""

import math

import numpy as np
import pytest
from scipy.stats import norm
from support.hockey_stick import hockey_stick

import dpbilevel as dpb
from dpbilevel.errors import InvalidArgument
from dpbilevel.methods.unit_losses import clip_of_units
from dpbilevel.privacy import objective
from dpbilevel.privacy.objective import MOST_ROWS, ObjectiveNoise, smallest_ridge

SLOPE, CURVATURE, ROW_NORM = 1.5, 0.7, 2.0
BOUNDS = {"derivative": SLOPE, "curvature": CURVATURE, "row_norm": ROW_NORM}
TOLERANCE = 1e-9
THETA = np.linspace(-60, 60, 400_001)


def slope(score, target):
    """A convex loss with slopes up to G and curvatures up to K: a tanh of the distance to the target."""
    return SLOPE * np.tanh(CURVATURE / SLOPE * (score - target))


def curvature(score, target):
    return CURVATURE / np.cosh(np.clip(CURVATURE / SLOPE * (score - target), -300, 300)) ** 2


def density(records, noise):
    """Of the minimiser, in one dimension: that of b at its place, times the derivative. A row may have a weight."""
    rows = [(row, target, *(weight or [1.0])) for row, target, *weight in records]
    needed = sum(weight * row * slope(row * THETA, target) for row, target, weight in rows) + noise.ridge * THETA
    bend = sum(weight * row**2 * curvature(row * THETA, target) for row, target, weight in rows) + noise.ridge
    return norm.pdf(needed, scale=noise.noise_std) * bend


def true_delta(first, second, noise, epsilon):
    return hockey_stick(density(first, noise), density(second, noise), epsilon, THETA[1] - THETA[0])


OTHERS = [(ROW_NORM, 0.5), (-1.0, 2.0)]
FAR = 1e3
CHANGED = [
    ("replace-one", [(ROW_NORM, FAR)], [(ROW_NORM, -FAR)]),  # both slopes are extreme: the mean of b moves most
    ("replace-one", [(ROW_NORM, 0.0)], [(ROW_NORM, -FAR)]),  # curvature against none: the determinant changes
    ("replace-one", [(ROW_NORM, 3.0)], [(-ROW_NORM, 3.0)]),
    ("zero-out", [(ROW_NORM, FAR)], [(0.0, 0.0)]),
    ("zero-out", [(ROW_NORM, 0.0)], [(0.0, 0.0)]),
]
SETTINGS = [(0.5, 1e-3, 0.1), (1.0, 1e-5, 0.5), (4.0, 1e-4, 0.9)]  # epsilon, delta, share for the determinant


def noise_for(budget, share):
    ridge = CURVATURE * ROW_NORM**2 / math.expm1(share * budget.epsilon)
    return ObjectiveNoise.of(budget, **BOUNDS, ridge=ridge, tolerance=TOLERANCE)


def violations():
    """Cases in which the true delta exceeds that of the budget."""
    found = []
    for adjacency, one, other in CHANGED:
        for epsilon, delta, share in SETTINGS:
            noise = noise_for(dpb.Budget(epsilon, delta, adjacency), share)
            true = true_delta(OTHERS + one, OTHERS + other, noise, epsilon)
            found += [(adjacency, one, epsilon, true / delta)] if true > delta else []
    return found


def test_the_true_delta_is_within_the_budget():
    assert violations() == []


def test_the_bound_is_not_far_from_the_truth():
    budget = dpb.Budget(1.0, 1e-5)
    noise = noise_for(budget, 0.01)
    _, one, other = CHANGED[0]
    assert true_delta(OTHERS + one, OTHERS + other, noise, 1.0) > budget.delta / 8


@pytest.mark.parametrize("mutation", ["a replaced record counts once", "the determinant is free"])
def test_mutations_exceed_the_budget(monkeypatch, mutation):
    if mutation == "a replaced record counts once":
        monkeypatch.setattr(objective, "_CHANGES", {"replace-one": 1.0, "zero-out": 1.0})
    else:
        true = objective.gaussian_mu
        monkeypatch.setattr(objective, "gaussian_mu", lambda epsilon, delta: true(10 * epsilon, delta))
    assert violations()


@pytest.mark.parametrize(("epsilon", "delta", "share"), SETTINGS)
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_the_budget_is_spent_and_not_exceeded(epsilon, delta, share, adjacency):
    budget = dpb.Budget(epsilon, delta, adjacency)
    noise = noise_for(budget, share)
    assert 0.999 * delta < noise.delta(epsilon, **BOUNDS, adjacency=adjacency) <= delta
    # By the formula of the paper, for a record that is removed: 2 H(epsilon - log(1 + K R^2/ridge), L/sigma).
    ratio = math.hypot(
        (2 if adjacency == "replace-one" else 1) * SLOPE * ROW_NORM / noise.noise_std,
        2 * TOLERANCE / (noise.ridge * noise.output_std),
    )
    left = epsilon - math.log(1 + CURVATURE * ROW_NORM**2 / noise.ridge)
    tail = norm.cdf(ratio / 2 - left / ratio) - math.exp(left) * norm.cdf(-ratio / 2 - left / ratio)
    assert (4 if adjacency == "replace-one" else 2) * tail == pytest.approx(delta, rel=1e-3)


# ------------------------------------------------------------------------------------------------------------- units

MOST, MEAN = 3, 1.5
REACH = clip_of_units(MOST, MEAN)


def unit(*rows):
    """Rows with the weights of a unit that has them."""
    weight = min(1.0, REACH * MEAN / max(len(rows), 1)) / MEAN
    return [(*row, weight) for row in rows]


OF_UNITS = [
    ("replace-one", [(ROW_NORM, FAR)] * 3, [(ROW_NORM, -FAR)] * 3),  # all derivatives of both are extreme
    ("replace-one", [(ROW_NORM, 0.0), (ROW_NORM, 4.0), (-ROW_NORM, 4.0)], [(ROW_NORM, -FAR)]),
    ("replace-one", [(ROW_NORM, 1.0), (ROW_NORM, -1.0)], [(-ROW_NORM, 9.0)] * 3),
    ("replace-one", [(ROW_NORM, 0.0)] * 3, []),  # a unit without rows
    ("zero-out", [(ROW_NORM, FAR)] * 3, []),
    ("zero-out", [(ROW_NORM, 0.0)] * 3, []),
]


def noise_for_units(budget, share, **units):
    own = {"curvature": CURVATURE, "row_norm": ROW_NORM} | units
    ridge = smallest_ridge(share * budget.epsilon, **own)
    return ObjectiveNoise.of(budget, **own, derivative=SLOPE, ridge=ridge, tolerance=TOLERANCE)


def violations_by_units(**units):
    found = []
    for adjacency, one, other in OF_UNITS:
        for epsilon, delta, share in SETTINGS:
            noise = noise_for_units(dpb.Budget(epsilon, delta, adjacency), share, **units)
            true = true_delta(OTHERS + unit(*one), OTHERS + unit(*other), noise, epsilon)
            found += [(adjacency, one, epsilon, true / delta)] if true > delta else []
    return found


def test_the_true_delta_of_units_is_within_the_budget():
    assert violations_by_units(rows=MOST, reach=REACH) == []


def test_units_that_are_charged_as_rows_exceed_the_budget():
    assert violations_by_units()
    assert violations_by_units(rows=MOST, reach=REACH / 2)


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("rows", [1, 8, MOST_ROWS])
def test_the_budget_of_units_is_spent_and_not_exceeded(adjacency, rows):
    budget, units = dpb.Budget(2.0, 1e-5, adjacency), {"rows": rows, "reach": 1.5}
    noise = noise_for_units(budget, 0.1, **units)
    assert 0.999 * budget.delta < noise.delta(2.0, **BOUNDS, adjacency=adjacency, **units) <= budget.delta


def test_a_ridge_that_costs_all_of_epsilon_is_refused():
    with pytest.raises(InvalidArgument, match=r"ridge=1\.0: its determinant costs.*all of epsilon=1\.0"):
        ObjectiveNoise.of(dpb.Budget(1.0, 1e-5), **BOUNDS, ridge=1.0, tolerance=TOLERANCE)
