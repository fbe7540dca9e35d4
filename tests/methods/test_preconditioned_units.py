"""Preconditioned training of units: the same minimiser as that of rows, stable whatever the rows of a unit are."""

import math

import jax
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.methods.preconditioned import MOMENTS, Preconditioned

PEOPLE, K, COLUMNS = 1500, 4, 3
PENALTIES = (1e-6, 1e-4)  # of a range that is never left: there is no tuning here


def problem_of(kind):
    return dpb.applications.regularization(kind, columns=COLUMNS, penalties=PENALTIES, row_norm=1.0)


def table(kind, alike=False):
    """One to four rows for each person; with ``alike``, four equal rows of norm one for each."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(PEOPLE), K if alike else rng.integers(1, K + 1, PEOPLE))
    rows = rng.normal(size=(len(ids), COLUMNS)) * np.geomspace(1, 1 / 10, COLUMNS)
    rows = (rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))).astype(np.float32)
    if alike:
        rows[:] = np.eye(COLUMNS, dtype=np.float32)[0]
    scores = rows @ np.array([2.0, -1.0, 1.0])
    if kind == "squared":
        return rows, (scores + 0.3 * rng.normal(size=len(ids))).astype(np.float32), ids
    return rows, (rng.random(len(ids)) < 1 / (1 + np.exp(-scores))).astype(np.int32), ids


def trained(kind, budget, *, mean_rows, alike=False, units=K):
    rows, targets, ids = table(kind, alike)
    upper = ids < PEOPLE // 4
    parts = {"upper": upper, "lower": ~upper}
    records = dpb.Records(
        **{role: (rows[part], targets[part]) for role, part in parts.items()},
        unit={role: ids[part] for role, part in parts.items()},
        rows_per_unit=units,
        mean_rows=mean_rows,
    )
    with pytest.warns(dpb.NotPrivateWarning):
        return dpb.solve(problem_of(kind), records, budget, method=dpb.Refit(), seed=0, progress=False)


def loss(kind, y):
    rows, targets, _ = table(kind)
    scores = rows.astype(np.float64) @ np.asarray(y, np.float64)
    if kind == "squared":
        return 0.5 * np.mean((scores - targets) ** 2)
    return np.mean(np.logaddexp(0, -np.where(targets > 0, 1, -1) * scores))


@pytest.mark.parametrize("kind", ["squared", "logistic"])
def test_with_little_noise_it_reaches_the_minimiser(kind):
    best = loss(kind, trained(kind, dpb.Budget(math.inf), mean_rows=2.5).y)
    solution = trained(kind, dpb.Budget(1000.0, 1e-6), mean_rows=2.5)
    assert [charge.release for charge in solution.privacy.charges["lower"]] == [MOMENTS, "training"]
    assert loss(kind, solution.y) - best < 0.01 * (loss(kind, np.zeros(COLUMNS)) - best)


def test_steps_are_stable_where_every_unit_is_clipped():
    """Four equal rows where a quarter of one is declared: second moments are clipped by the most, to a third."""
    solution = trained("squared", dpb.Budget(100.0, 1e-6), mean_rows=0.25, alike=True)
    assert np.isfinite(np.asarray(solution.y)).all()
    assert abs(float(solution.y[0]) - 2.0) < 0.1


def test_clip_and_damping_follow_from_public_numbers():
    training = {"bounds": problem_of("logistic").lower_loss.bounds, "records": 1000, "columns": 10, "mu": 1.0}
    training |= {"replaced": True, "outputs": 1}
    rows = Preconditioned(**training)
    assert rows.moments_clip == 1.0
    for most, mean, clip in ((8, 8.0, 1.0), (8, 2.0, 2.0), (64, 1.0, 64 / 3)):
        units = Preconditioned(**training, rows_per_unit=most, mean_rows=mean)
        assert units.moments_clip == pytest.approx(clip)
        assert units.damping == pytest.approx(clip * rows.damping)
        assert most / (mean * units.moments_clip) <= 3.0


def test_units_of_one_row_are_rows_bit_for_bit():
    rows, targets, _ = table("logistic")
    parts = {"upper": slice(0, 1000), "lower": slice(1000, None)}
    arrays = {role: (rows[part], targets[part]) for role, part in parts.items()}
    ids = {role: np.arange(len(rows))[part] for role, part in parts.items()}
    found = []
    for more in ({}, {"unit": ids, "rows_per_unit": 1}):
        with pytest.warns(dpb.NotPrivateWarning):
            found.append(
                dpb.solve(
                    problem_of("logistic"),
                    dpb.Records(**arrays, **more),
                    dpb.Budget(1.0, 1e-5),
                    method=dpb.Refit(),
                    seed=1,
                    progress=False,
                )
            )
    assert jax.tree.all(jax.tree.map(np.array_equal, *((one.x, one.y, one.history) for one in found)))
