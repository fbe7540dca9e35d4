"""Weights of sources and of classes: wrong sources lose theirs, costly classes gain, with privacy and without."""

import dataclasses
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from support.application_data import COLUMNS, NO_PRIVACY, logistic_labels, parts, planned, solved, unit_rows
from support.linear_models import FEATURES
from support.linear_models import LinearModel as Draws

import dpbilevel as dpb
from dpbilevel.applications import class_weights, source_weights
from dpbilevel.applications.reweighting import RIDGE
from dpbilevel.errors import InvalidArgument
from dpbilevel.theory.weighted import solution_radius, weighted_constants

ROWS, LABELS = np.zeros((60, COLUMNS), np.float32), np.zeros(60, np.int32)  # where only shapes matter


# ----------------------------------------------------------------------------------------------------------- sources

WRONG = 1  # of three sources: all its labels are flipped


def draw_sources(number, seed):
    """(rows, given labels, sources) of lower records, and (rows, labels) of upper ones, a quarter as many."""
    rng = np.random.default_rng(seed)
    rows = unit_rows(rng, number + number // 4)
    labels = logistic_labels(rng, 2 * rows @ np.array([3.0, -3.0, 2.0, 0.0, 0.0, 0.0, 0.5]))
    lower, upper = parts(number, rows, labels)
    sources = rng.integers(0, 3, number).astype(np.int32)
    return (lower[0], np.where(sources == WRONG, 1 - lower[1], lower[1]), sources), upper


def validation_loss(weights, lower, upper):
    """F at these weights, with scikit-learn as the lower solver."""
    rows, labels, sources = lower
    solver = LogisticRegression(C=1 / (len(rows) * RIDGE), fit_intercept=False, tol=1e-10, max_iter=10_000)
    y = solver.fit(rows, labels, sample_weight=3 * np.asarray(weights, np.float64)[sources]).coef_[0]
    return np.mean(np.logaddexp(0, upper[0] @ y) - upper[1] * (upper[0] @ y))


@pytest.mark.slow
def test_a_source_of_flipped_labels_loses_its_weight():
    solution = solved(source_weights(columns=COLUMNS, sources=3), *draw_sources(1600, 0), NO_PRIVACY)
    assert solution.x[WRONG] < 0.02
    # The good sources need not have equal weights: by another solver, F is lower here than with equal ones.
    equal = np.where(np.arange(3) == WRONG, 0.0, 0.5)
    assert validation_loss(solution.x, *draw_sources(1600, 0)) < validation_loss(equal, *draw_sources(1600, 0)) - 1e-3
    assert min(np.delete(solution.x, WRONG)) > 0.3
    assert solution.x.sum() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.slow
def test_a_source_of_flipped_labels_loses_its_weight_privately():
    lower, (rows, labels) = draw_sources(4000, 1)
    problem, budget = source_weights(columns=COLUMNS, sources=3), dpb.Budget(1.0, 1e-6)
    solution = solved(problem, lower, (rows, labels), budget, refit=None)
    assert solution.x[WRONG] < 0.02
    assert min(solution.x[0], solution.x[2]) > 0.1
    assert solution.privacy.epsilon() == pytest.approx(1.0, abs=1e-6)
    # A third of wrong labels leaves directions as they are, and shrinks scores: it shows in the loss.
    untuned = LogisticRegression(C=1e5, fit_intercept=False).fit(lower[0], lower[1]).coef_[0]
    losses = [np.mean(np.logaddexp(0, rows @ y) - labels * (rows @ y)) for y in (solution.y, untuned)]
    assert losses[0] < losses[1] - 0.1


# ----------------------------------------------------------------------------------------------------------- classes

COSTS = [1.0, 8.0]


def draw_classes(number, seed):
    """Lower and upper records with a rarer class 1, and 4,000 more to test on."""
    rng = np.random.default_rng(seed)
    rows = unit_rows(rng, number + number // 2 + 4000)
    labels = logistic_labels(rng, 3 * rows @ np.array([1.0, 1.0, -1.0, 0.0, 0.0, 0.0, 0.0]) - 1.5)
    lower, rest = parts(number, rows, labels)
    return lower, *parts(number // 2, *rest)


def right_share(y, rows, labels, label):
    """Of the records of a class."""
    return np.mean((rows @ y > 0)[labels == label] == label)


def trained(lower, weight):
    """The model of scikit-learn with this weight of class 1, as the problem has it."""
    rows, labels = lower
    weights = 2 * np.array([1 - weight, weight])[labels] / len(rows)
    fit = LogisticRegression(C=1e5, fit_intercept=False, tol=1e-8, max_iter=2000)
    return fit.fit(rows, labels, sample_weight=weights).coef_[0]


@pytest.mark.slow
def test_a_costly_class_gains_weight_and_right_predictions():
    lower, upper, test = draw_classes(1500, 1)
    relative = np.array(COSTS) / np.mean(COSTS)

    def value(weight):
        rows, labels = upper
        scores = rows @ trained(lower, weight)
        return np.mean(relative[labels] * (np.logaddexp(0, scores) - labels * scores))

    solution = solved(class_weights(columns=COLUMNS, costs=COSTS), lower, upper, NO_PRIVACY)
    best = min(map(value, np.linspace(0.5, 0.96, 24)))
    assert value(solution.x[1]) - best < 0.3 * (value(0.5) - best)
    assert right_share(solution.y, *test, 1) > right_share(trained(lower, 0.5), *test, 1) + 0.1


@pytest.mark.slow
def test_a_costly_class_gains_weight_and_right_predictions_privately():
    lower, upper, test = draw_classes(6000, 1)
    solution = solved(class_weights(columns=COLUMNS, costs=COSTS), lower, upper, dpb.Budget(3.0, 1e-6))
    assert solution.x[1] > 0.6
    assert right_share(solution.y, *test, 1) > right_share(trained(lower, 0.5), *test, 1) + 0.1
    assert solution.privacy.epsilon() == pytest.approx(3.0, abs=1e-6)


# --------------------------------------------------------------------------------------------------------- constants


@pytest.mark.slow
def test_constants_are_not_refuted_and_wrong_ones_are():
    draws = Draws("squared")
    declared = {"row_norm": draws.row_norm, "target_bound": draws.target_bound}
    problem = source_weights("squared", columns=FEATURES, sources=2, ridge=2.0, **declared)
    radius = solution_radius("squared", weights=2, ridge=2.0, **declared)

    def sample(rng):
        x = np.eye(2)[rng.integers(2)] if rng.uniform() < 0.5 else rng.dirichlet(np.ones(2))
        y = draws.draw_lower(rng, radius)
        return x, y, draws.draw_record(rng, y), (*draws.draw_record(rng, y), int(rng.integers(2)))

    report = dpb.theory.check_constants(problem, problem.constants, sample)
    assert report.holds, report
    for check in report.checks:
        factor = 1 / 0.8 if check.name == "strong_convexity" else 0.8
        assert not replace(check, declared=check.declared * factor).holds, f"{check}\n{report}"


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_have_the_constants_of_sources_where_mistakes_cost_the_same(classes):
    loss, more = ("logistic", {}) if classes == 2 else ("softmax", {"classes": 3})
    expected = weighted_constants(loss, 0.5, weights=classes, ridge=0.1, **more)
    assert class_weights(columns=4, classes=classes, ridge=0.1, row_norm=0.5).constants == expected
    assert source_weights(loss, columns=4, sources=classes, ridge=0.1, row_norm=0.5, **more).constants == expected
    assert class_weights(columns=4, classes=classes, ridge=0.1, row_norm=0.5, costs=[1.0] * classes).constants is None


def test_too_many_sources_of_counts_have_no_constants():
    assert source_weights("poisson", columns=3, sources=20).constants is None
    assert source_weights("poisson", columns=3, sources=2, ridge=0.1).constants is not None


# ------------------------------------------------------------------------------------------------------- the problem


def test_losses_by_hand():
    row, y = np.array([1.0, 2.0], np.float32), np.array([0.5, 0.25], np.float32)
    x = np.array([0.1, 0.2, 0.7], np.float32)
    problem = source_weights("squared", columns=2, sources=3)
    assert float(problem.lower_loss(x, y, (row, 3.0, 2))) == pytest.approx(3 * 0.7 * 2.0)
    assert float(problem.upper_loss(x, y, (row, 3.0))) == pytest.approx(2.0)
    assert float(problem.lower_scale(x)) == pytest.approx(3 * (0.01 + 0.04 + 0.49))
    assert float(problem.lower_scale(problem.start[0])) == pytest.approx(1.0)
    costly = class_weights(columns=2, costs=[1.0, 3.0])
    for label, cost in ((0, 0.5), (1, 1.5)):
        likelihood = np.logaddexp(0, (1 - 2 * label) * 1.0)
        assert float(costly.upper_loss(x[:2], y, (row, label))) == pytest.approx(cost * likelihood)
        assert float(costly.lower_loss(x[:2], y, (row, label))) == pytest.approx(2 * x[label] * likelihood)


def test_two_classes_have_a_vector_and_more_a_matrix():
    assert [class_weights(columns=4, classes=classes).start[1].shape for classes in (2, 3)] == [(4,), (4, 3)]
    np.testing.assert_allclose(class_weights(columns=4, classes=4).start[0], 0.25)


def test_equal_arguments_give_the_same_problem():
    assert source_weights(columns=4, sources=3) is source_weights("logistic", columns=4, sources=np.int64(3))
    assert source_weights(columns=4, sources=3) is not source_weights(columns=4, sources=3, ridge=1e-4)
    same = [[1, 2], (1.0, 2.0), np.array([1.0, 2.0]), np.array([1, 2])]
    assert len({id(class_weights(columns=4, costs=costs)) for costs in same}) == 1
    assert class_weights(columns=4) is class_weights(columns=4, classes=2, costs=None)
    assert class_weights(columns=4) is not class_weights(columns=4, costs=[1.0, 1.0])


def test_nothing_is_closed_over_and_hypergradients_are_paid_for():
    problem = source_weights(columns=COLUMNS, sources=3)
    plan = planned(problem, (ROWS, LABELS, LABELS), (ROWS, LABELS))
    assert plan.parameters["training pass: share of the cross derivative"][0] > 0
    assert "hypergradient" not in plan.parameters
    for classes, costs in ((2, COSTS), (3, [1.0, 2.0, 3.0])):
        planned(class_weights(columns=COLUMNS, classes=classes, costs=costs), (ROWS, LABELS), (ROWS, LABELS))


def test_the_mutant_that_does_not_declare_its_costs_is_marked():
    problem = dataclasses.replace(class_weights(columns=COLUMNS, costs=COSTS), public=())
    with pytest.raises(dpb.PrivacyLeakWarning, match="upper_loss closes over an array"):
        planned(problem, (ROWS, LABELS), (ROWS, LABELS))


def test_a_class_or_source_that_was_not_declared_moves_no_other_number():
    """An error or a NaN would say that it is there; it counts as the last one."""
    problem = source_weights("squared", columns=2, sources=3)
    y, x = np.ones(2, np.float32), np.array([0.1, 0.2, 0.7], np.float32)
    losses = jax.vmap(lambda source: problem.lower_loss(jnp.asarray(x), y, (y, 0.0, source)))(jnp.array([2, 3, 100]))
    np.testing.assert_allclose(losses, losses[0])


# --------------------------------------------------------------------------------------------------------- bad input

BAD = {
    "no sources": (source_weights, {"sources": 0}, "sources=0: must be a whole number >= 1"),
    "sources a list": (source_weights, {"sources": ["a", "b"]}, "sources=['a', 'b']: must be a whole number >= 1"),
    "half a source": (source_weights, {"sources": 2.5}, "sources=2.5: must be a whole number >= 1"),
    "ridge zero": (source_weights, {"sources": 2, "ridge": 0.0}, "ridge=0.0: must be a finite number > 0"),
    "unknown loss": (source_weights, {"sources": 2, "loss": "hinge"}, "loss='hinge': must be one of"),
    "softmax without classes": (source_weights, {"sources": 2, "loss": "softmax"}, "classes=None: required"),
    "no columns": (source_weights, {"sources": 2, "columns": 0}, "columns=0: must be a whole number >= 1"),
    "one class": (class_weights, {"classes": 1}, "classes=1: must be at least 2"),
    "no class": (class_weights, {"classes": 0}, "classes=0: must be a whole number >= 1"),
    "classes None": (class_weights, {"classes": None}, "classes=None: must be a whole number >= 1"),
    "two classes as a float": (class_weights, {"classes": 2.0}, "classes=2.0: must be a whole number >= 1"),
    "too few costs": (class_weights, {"costs": [1.0]}, "costs=[1.0]: must have one number for each of the 2 classes"),
    "too many costs": (class_weights, {"costs": [1.0] * 3}, "costs=[1.0, 1.0, 1.0]: must have one number for each"),
    "costs a number": (class_weights, {"costs": 3.0}, "costs=3.0: must have one number for each of the 2 classes"),
    "costs by name": (class_weights, {"costs": {1: 1.0, 2: 2.0}}, "costs={1: 1.0, 2: 2.0}: must have one number"),
    "a cost of nothing": (class_weights, {"costs": [1.0, 0.0]}, "costs=0.0: must be a finite number > 0"),
    "a cost without end": (class_weights, {"costs": [1.0, float("inf")]}, "costs=inf: must be a finite number > 0"),
    "class ridge": (class_weights, {"ridge": -1.0}, "ridge=-1.0: must be a finite number > 0"),
    "class row norm": (class_weights, {"row_norm": 0.0}, "row_norm=0.0: must be a finite number > 0"),
}


@pytest.mark.parametrize(("application", "change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused(application, change, message):
    with pytest.raises(InvalidArgument) as caught:
        application(**{"columns": 3} | change)
    assert str(caught.value).startswith(message)
