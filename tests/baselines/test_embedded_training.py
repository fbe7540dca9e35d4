"""Baselines train as the default does: with second moments of rows where `Refit` decides so, inside larger programs."""

import math

import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.baselines import (
    FixedDefault,
    NaiveGridSearch,
    PrivateRandomSearch,
    ScreenSources,
    UpperRecordsOnly,
)

ROWS, COLUMNS, SOURCES = 3000, 4, 3
BUDGET = dpb.Budget(8.0, 1e-5)
draws = np.random.default_rng(0)
TABLE = draws.normal(size=(ROWS, COLUMNS)) / 3
TABLE /= np.maximum(np.linalg.norm(TABLE, axis=1, keepdims=True), 1.0)
LABELS = (TABLE[:, 0] + 0.2 * draws.normal(size=ROWS) > 0).astype(np.int32)
SOURCE = np.arange(ROWS, dtype=np.int32) % SOURCES
GIVEN = np.where(SOURCE == 1, 1 - LABELS, LABELS)
PENALTIES = dpb.applications.regularization("logistic", columns=COLUMNS, row_norm=1.0)
WEIGHTS = dpb.applications.source_weights("logistic", columns=COLUMNS, sources=SOURCES, row_norm=1.0)
CANDIDATES = [np.full(1, value) for value in (-9.0, 1.5)]


def pairs():
    return dpb.Records(upper=(TABLE[:1500], LABELS[:1500]), lower=(TABLE[1500:], LABELS[1500:]))


def from_sources():
    return dpb.Records(upper=(TABLE[:1500], LABELS[:1500]), lower=(TABLE[1500:], GIVEN[1500:], SOURCE[1500:]))


def source_of(record):
    return record[-1]


METHODS = {
    "FixedDefault": (FixedDefault(), PENALTIES, pairs, 1),
    "UpperRecordsOnly": (UpperRecordsOnly(), PENALTIES, pairs, 1),
    "NaiveGridSearch": (NaiveGridSearch(candidates=CANDIDATES), PENALTIES, pairs, 2),
    "ScreenSources": (ScreenSources(source=source_of), WEIGHTS, from_sources, 1),
}


@pytest.mark.parametrize("name", METHODS)
def test_second_moments_are_released_and_the_budget_is_spent(name):
    method, problem, records, rounds = METHODS[name]
    planned = dpb.plan(problem, records().sizes, BUDGET, method=method)
    uses = [release.uses for release in planned.program.releases if release.name == "second moments"]
    assert uses == [rounds]
    assert planned.privacy.epsilon() == pytest.approx(BUDGET.epsilon, rel=1e-6)
    roles = {role for release in planned.program.releases for role in release.contributions}
    assert roles == ({"upper"} if name == "UpperRecordsOnly" else {"upper", "lower"})


def test_the_model_of_a_run_is_that_of_the_training():
    """A grid of one candidate, twice, with hardly any noise, beside the training alone and the exact minimiser."""
    alone = NaiveGridSearch(candidates=CANDIDATES[:1] * 2, score_share=1e-6)  # two, as below: one program for both
    searched = alone.solve(PENALTIES, pairs(), dpb.Budget(1e4, 1e-5), seed=3, progress=False)
    trained = FixedDefault().solve(
        PENALTIES, pairs(), dpb.Budget(1e4, 1e-5), start=(CANDIDATES[0], np.zeros(COLUMNS)), seed=3, progress=False
    )
    np.testing.assert_allclose(searched.y, trained.y, rtol=0.02, atol=1e-3)
    exact = FixedDefault().solve(
        PENALTIES, pairs(), dpb.Budget(math.inf), start=(CANDIDATES[0], np.zeros(COLUMNS)), progress=False
    )
    np.testing.assert_allclose(searched.y, exact.y, rtol=0.1, atol=0.3)


def test_every_round_of_a_search_trains_from_the_start():
    solution = NaiveGridSearch(candidates=CANDIDATES[::-1]).solve(PENALTIES, pairs(), BUDGET, seed=0, progress=False)
    assert float(solution.x[0]) == -9.0
    scores = solution.history["score"]
    assert scores[1] < 0.45 < 0.6 < scores[0]
    best = PrivateRandomSearch(candidates=CANDIDATES[:1], mean_runs=2.0)
    assert float(best.solve(PENALTIES, pairs(), BUDGET, seed=0, progress=False).history["score"][0]) < 0.45


def test_screening_trains_on_the_sources_that_it_keeps():
    solution = ScreenSources(source=source_of).solve(WEIGHTS, from_sources(), BUDGET, seed=0, progress=False)
    np.testing.assert_allclose(solution.x, [0.5, 0.0, 0.5])
    assert np.mean((TABLE @ solution.y > 0) == (LABELS == 1)) > 0.8
