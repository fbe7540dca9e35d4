"""Shared representations: a planted map is found, a hidden layer finds what no linear map can, starts are spread."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.linalg import subspace_angles
from support.application_data import COLUMNS, NO_PRIVACY, parts, planned, solved, unit_rows

import dpbilevel as dpb
from dpbilevel.applications import represented, shared_representation
from dpbilevel.applications.representation import spread
from dpbilevel.errors import InvalidArgument
from dpbilevel.theory.representation import solution_radius

DIMENSION, TASKS = 2, 8
PLANTED = np.linalg.qr(np.random.default_rng(0).normal(size=(COLUMNS, DIMENSION)))[0]


def draw(number, seed, shape=lambda features: features):
    """Lower and upper records of tasks with heads of norm one and intercepts, and 4,000 more to test on."""
    rng = np.random.default_rng(seed)
    heads = np.linalg.qr(rng.normal(size=(TASKS, DIMENSION)))[0] * np.sqrt(TASKS / DIMENSION)
    rows = unit_rows(rng, number + number // 3 + 4000, intercept=False)
    tasks = rng.integers(0, TASKS, len(rows)).astype(np.int32)
    scores = np.sum(shape(rows @ PLANTED) * heads[tasks], axis=1) + np.linspace(-0.2, 0.2, TASKS)[tasks]
    lower, rest = parts(number, rows, scores + 0.1 * rng.normal(size=len(rows)), tasks)
    return lower, *parts(number // 3, *rest)


def error(solution, rows, targets, tasks):
    """The part of the variance that is not explained."""
    heads = solution.y[tasks]
    predicted = np.sum(np.asarray(represented(solution.x, rows)) * heads[:, :-1], axis=1) + heads[:, -1]
    return np.mean((predicted - targets) ** 2) / np.var(targets)


def angles(x):
    return np.degrees(subspace_angles(x, PLANTED))


LINEAR = {"columns": COLUMNS, "dimension": DIMENSION, "tasks": TASKS}


@pytest.mark.slow
def test_a_planted_subspace_is_found_and_what_is_bent_needs_a_hidden_layer():
    problem = shared_representation(**LINEAR)
    assert angles(problem.start[0]).max() > 30
    lower, upper, test = draw(1200, 1)
    solution = solved(problem, lower, upper, NO_PRIVACY)
    assert angles(solution.x).max() < 10
    assert error(solution, *test) < 0.15
    # The same linear problem, which does not compile again, on features that are even; then a hidden layer.
    lower, upper, test = draw(1200, 2, lambda features: np.abs(3 * features) - 1)
    assert error(solved(problem, lower, upper, NO_PRIVACY), *test) > 0.9
    assert error(solved(shared_representation(**LINEAR, hidden=13), lower, upper, NO_PRIVACY), *test) < 0.5


@pytest.mark.slow
def test_a_planted_subspace_is_found_privately():
    problem = shared_representation(**LINEAR)
    lower, upper, test = draw(4500, 3)
    solution = solved(problem, lower, upper, dpb.Budget(6.0, 1e-6), refit=None)
    assert angles(solution.x).max() < 15
    assert error(solution, *test) < 0.2
    assert solution.privacy.epsilon() == pytest.approx(6.0, abs=1e-6)


# --------------------------------------------------------------------------------------------------------- constants


@pytest.mark.slow
def test_constants_are_not_refuted_and_wrong_ones_are():
    """With the intercepts, which the theory has as one more column of ones that the map leaves as it is."""
    problem = shared_representation(columns=2, dimension=1, tasks=2, ridge=2.0, row_norm=0.7, target_bound=1.5)
    map_norm = problem.domain.radius
    larger = {"map_norm": np.hypot(map_norm, 1), "target_bound": 1.5, "ridge": 2.0 / 2}
    radius = solution_radius(np.hypot(0.7, 1), **larger)

    def record(rng, row):
        row = 0.7 * row / np.linalg.norm(row) * rng.choice([-1, 1, rng.uniform()])
        return row, 1.5 * rng.choice([-1.0, 1.0, rng.uniform(-1, 1)]), int(rng.integers(2))

    def sample(rng):
        row, heads = rng.normal(size=2), rng.normal(size=(2, 2)) * rng.choice([0.03, 1.0], size=(2, 2))
        x = row[:, None] if rng.uniform() < 0.7 else rng.normal(size=(2, 1))
        x = x * map_norm / np.linalg.norm(x) * rng.choice([1, 1, rng.uniform()])
        return x, heads * radius / np.linalg.norm(heads), record(rng, row), record(rng, row)

    report = dpb.theory.check_constants(problem, problem.constants, sample)
    assert report.holds, report
    own = problem.constants
    mistakes = {
        "f moves with the map too": ("upper_lipschitz", 0.4 * own.lower_lipschitz),
        "the curvature in the heads alone": ("lower_smoothness", (0.7 * map_norm) ** 2 + 1.0),
        "the ridge is all the convexity there is": ("strong_convexity", 1.1),
    }
    for why, (name, value) in mistakes.items():
        assert not replace(report[name], declared=value).holds, f"{why}\n{report}"


def test_a_hidden_layer_has_no_constants():
    assert shared_representation(**LINEAR).constants is not None
    assert shared_representation(**LINEAR, hidden=5).constants is None


# ------------------------------------------------------------------------------------------------------- the problem


def test_losses_by_hand():
    problem = shared_representation(columns=2, dimension=1, tasks=2, ridge=0.5)
    x, y = np.array([[1.0], [2.0]], np.float32), np.array([[0.0, 0.0], [2.0, 0.5]], np.float32)
    record = (np.array([1.0, -1.0], np.float32), 1.0, 1)
    assert float(problem.lower_loss(x, y, record)) == pytest.approx(0.5 * (-2 + 0.5 - 1) ** 2)
    assert problem.upper_loss is problem.lower_loss
    assert float(problem.lower_term(x, y)) == pytest.approx(0.25 / 2 * 4.25), "intercepts too, and by task"


def test_a_representation_of_many_rows_is_that_of_each():
    rows = unit_rows(np.random.default_rng(0), 5)
    for hidden in (None, 4):
        x, _ = shared_representation(**LINEAR, hidden=hidden).start
        many = represented(x, rows)
        assert many.shape == (5, DIMENSION)
        np.testing.assert_allclose(many, [represented(x, row) for row in rows], rtol=1e-5)
    expected = jnp.tanh(rows @ x["hidden"] + x["bias"]) @ x["output"]
    np.testing.assert_allclose(many, expected, rtol=1e-4)


def test_the_start_lies_inside_at_half_the_radius():
    for hidden in (None, 5, 13):
        problem = shared_representation(**LINEAR, hidden=hidden)
        assert optax.tree.norm(problem.start[0]) == pytest.approx(problem.domain.radius / 2, rel=1e-5)


@pytest.mark.parametrize("rows", [3, 8, 20])
@pytest.mark.parametrize("columns", [1, 2, 8, 13, 21, 34, 55])
def test_starts_look_every_way(rows, columns):
    """Multiples of the golden ratio would nearly repeat after 8, 13, 21, ... columns, and all point one way."""
    start = spread(rows, columns)
    np.testing.assert_allclose(np.linalg.norm(start, axis=0), 1, rtol=1e-5)
    singular = np.linalg.svd(start, compute_uv=False)
    if columns <= rows:
        np.testing.assert_allclose(singular, 1, rtol=1e-5)
    elif columns > 1.5 * rows:
        assert singular.min() > 0.1 * singular.max()


def test_equal_arguments_give_the_same_problem():
    assert shared_representation(**LINEAR) is shared_representation(**LINEAR, hidden=None, ridge=1e-3, row_norm=1)
    assert shared_representation(**LINEAR) is not shared_representation(**LINEAR, hidden=2)


def test_nothing_is_closed_over_and_both_levels_pay_for_the_hypergradient():
    records = (np.zeros((60, COLUMNS), np.float32), np.zeros(60, np.float32), np.zeros(60, np.int32))
    for hidden in (None, 3):
        plan = planned(shared_representation(**LINEAR, hidden=hidden), records, records)
        for part in ("training pass: share of the cross derivative", "validation pass: share of the hypergradient"):
            assert plan.parameters[part][0] > 0
        assert "hypergradient" not in plan.parameters


BAD = {
    "more dimensions than columns": ({"dimension": 4}, "dimension=4: must not exceed columns=3"),
    "no dimension": ({"dimension": 0}, "dimension=0: must be a whole number >= 1"),
    "no columns": ({"columns": 0}, "columns=0: must be a whole number >= 1"),
    "no tasks": ({"tasks": 0}, "tasks=0: must be a whole number >= 1"),
    "tasks by name": ({"tasks": ["a"]}, "tasks=['a']: must be a whole number >= 1"),
    "no hidden units": ({"hidden": 0}, "hidden=0: must be a whole number >= 1"),
    "half a hidden unit": ({"hidden": 2.5}, "hidden=2.5: must be a whole number >= 1"),
    "ridge zero": ({"ridge": 0.0}, "ridge=0.0: must be a finite number > 0"),
    "row norm": ({"row_norm": -1.0}, "row_norm=-1.0: must be a finite number > 0"),
    "row norm a word": ({"row_norm": "one"}, "row_norm='one': must be a real number"),
    "row norm with a layer": ({"row_norm": -1.0, "hidden": 3}, "row_norm=-1.0: must be a finite number > 0"),
    "no target bound": ({"target_bound": None}, "target_bound=None: must be a real number"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(InvalidArgument) as caught:
        shared_representation(**{"columns": 3, "dimension": 2, "tasks": 4} | change)
    assert str(caught.value).startswith(message)
