"""Preconditioned training: it converges where there is little noise, in any units, and follows from public numbers."""

import math

import numpy as np
import pytest
from support.compilations import counted

import dpbilevel as dpb
from dpbilevel.methods.preconditioned import MOMENTS, Preconditioned
from dpbilevel.methods.scale import SCALE

COLUMNS = 6
PENALTIES = (1e-9, 1e-7)  # of a range that is never left: there is no tuning here


def table(kind, number, scale=1.0):
    """Rows of norm at most ``scale`` whose columns differ in size by a factor of thirty, and targets."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(number, COLUMNS)) * np.geomspace(1, 1 / 30, COLUMNS)
    rows = rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))
    scores = rows @ rng.normal(size=(COLUMNS, 3)) * np.array([2.0, 1.0, 1.0])
    if kind == "squared":
        targets = (scores[:, 0] + 0.3 * rng.normal(size=number)).astype(np.float32)
    elif kind == "logistic":
        targets = (rng.random(number) < 1 / (1 + np.exp(-scores[:, 0]))).astype(np.int32)
    else:
        targets = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1).astype(np.int32)
    return (scale * rows).astype(np.float32), targets


def problem_of(kind, row_norm=1.0):
    more = {"classes": 3} if kind == "softmax" else {}
    return dpb.applications.regularization(kind, columns=COLUMNS, penalties=PENALTIES, row_norm=row_norm, **more)


def trained(kind, budget, *, number=4000, scale=1.0, seed=0, refit=None):
    rows, targets = table(kind, number, scale)
    records = dpb.Records(upper=(rows[:1000], targets[:1000]), lower=(rows[1000:], targets[1000:]))
    with pytest.warns(dpb.NotPrivateWarning):
        return dpb.solve(
            problem_of(kind, scale), records, budget, method=refit or dpb.Refit(), seed=seed, progress=False
        )


def excess(kind, y):
    """The loss of a model on its own training rows."""
    rows, targets = table(kind, 4000)
    scores = rows.astype(np.float64) @ np.asarray(y, np.float64)
    if kind == "squared":
        return 0.5 * np.mean((scores - targets) ** 2)
    if kind == "logistic":
        return np.mean(np.logaddexp(0, -np.where(targets > 0, 1, -1) * scores))
    return np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), targets])


@pytest.mark.parametrize("kind", ["squared", "logistic", "softmax"])
def test_with_little_noise_it_reaches_the_minimiser(kind):
    """The smallest columns are thirty times smaller than the largest: their curvature is a thousand times smaller."""
    best = excess(kind, trained(kind, dpb.Budget(math.inf)).y)
    solution = trained(kind, dpb.Budget(1000.0, 1e-6))
    nothing = excess(kind, np.zeros_like(solution.y))
    scaled = [SCALE] if kind == "softmax" else []
    assert {charge.release for charge in solution.privacy.charges["lower"]} == {MOMENTS, "training", *scaled}
    assert excess(kind, solution.y) - best < 0.01 * (nothing - best)


@pytest.mark.parametrize("kind", ["logistic", "squared"])
def test_units_of_rows_do_not_matter(kind):
    budget = dpb.Budget(3.0, 1e-5)
    here, there = trained(kind, budget).y, trained(kind, budget, scale=64.0).y
    np.testing.assert_allclose(64 * np.asarray(there), here, rtol=0.02, atol=0.02 * np.abs(here).max())


def test_a_given_learning_rate_or_undeclared_rows_take_adam():
    sizes = dpb.Records(**dict.fromkeys(("upper", "lower"), table("logistic", 500))).sizes
    names = []
    for problem, refit in (
        (problem_of("logistic"), dpb.Refit()),
        (problem_of("logistic"), dpb.Refit(learning_rate=0.2)),
        (problem_of("logistic", None), dpb.Refit()),
    ):
        plan = dpb.plan(problem, sizes, dpb.Budget(30.0, 1e-4), method=refit)
        names.append([release.name for release in plan.releases])
    assert names == [[MOMENTS, "training"], ["training"], ["training"]]


def test_another_epsilon_takes_other_steps_and_compiles_nothing():
    first = trained("logistic", dpb.Budget(2.0, 1e-5))
    with counted() as number:
        second = trained("logistic", dpb.Budget(20.0, 1e-5))
    steps = [solution.parameters["training: steps"][0] for solution in (first, second)]
    assert steps[0] < steps[1]
    assert number == [0]


def test_steps_follow_from_the_noise():
    bounds = dpb.LinearBounds(row_norm=1.0, curvature=0.25, derivative=1.0)

    def training(records=20_000, columns=100, mu=0.3, bounds=bounds):
        return Preconditioned(bounds, records, columns, mu, True, 1)

    steps = training().number_of_steps
    assert training(records=200_000, mu=0.03).number_of_steps == steps
    assert abs(training(records=5_000).number_of_steps - steps / 2) <= 1
    assert (training(records=20).number_of_steps, training(records=10**8).number_of_steps) == (10, 180)
    # Coefficients of one size want a ridge of s, directions that explain as much one of d s^2: it is between the two.
    for columns in (10, 1000):
        noise = 2 * 5.0 / 2 / (20_000 * 0.3 * math.sqrt(0.95))
        assert training(columns=columns).ridge == pytest.approx(0.25 * math.sqrt(noise * columns * noise**2))
    assert (
        training(bounds=dpb.LinearBounds(row_norm=8.0, curvature=0.25 / 64, derivative=1 / 8)).number_of_steps == steps
    )
    assert training(bounds=dpb.LinearBounds(row_norm=1.0, curvature=1.0)).number_of_steps > steps
