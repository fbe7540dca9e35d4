"""Tune, then train: shares of the budget, pooled records, and a model that is trained at the final x."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from support.problems import leak, quadratic, ridge, sources

import dpbilevel as dpb
from dpbilevel import planning

BUDGET = dpb.Budget(1.0, 1e-4)
NO_PRIVACY = dpb.Budget(math.inf)


def test_trains_at_the_final_x_for_every_method():
    case = ridge()
    inner = dpb.DPLocGD(**(case.inner | {"steps": 5, "rounds": 1}))
    for method in (
        dpb.Tracking(steps=20),
        dpb.DPBilevel(inner=inner, **(case.outer | {"steps": 5, "penalty_weight": 10.0})),
    ):
        solution = dpb.solve(
            case.problem,
            case.records(),
            NO_PRIVACY,
            method=method,
            start=case.start,
            refit=dpb.Refit(steps=400),
            seed=0,
            progress=False,
        )
        rows, targets = case.data["lower"]
        gram = rows.T @ rows / len(rows) + np.exp(float(solution.x)) * np.eye(4)
        np.testing.assert_allclose(solution.y, np.linalg.solve(gram, rows.T @ targets / len(rows)), atol=0.02)


def test_pools_upper_records_only_where_they_are_declared_to_train():
    case = quadratic()
    for trains, roles in ((False, {"lower"}), (True, {"upper", "lower"})):
        problem = dataclasses.replace(case.problem, upper_trains=trains)
        plan = dpb.plan(
            problem, case.records().sizes, BUDGET, method=dpb.Tracking(steps=3), start=case.start, refit=dpb.Refit()
        )
        assert set(plan.releases[-1].contributions) == roles
        # A mean over all records together: each moves it by at most 2C/(n_f + n_g).
        bounds = {role: plan.releases[-1].sensitivity(role) for role in roles}
        assert max(bounds.values()) == pytest.approx(min(bounds.values()))


def test_the_leak_is_never_pooled():
    """Its upper level reads no records: training is that of the lower level, wherever f would pull."""
    case = leak()
    problem = dataclasses.replace(case.problem, upper_trains=True)
    solution = dpb.solve(
        problem,
        case.records(),
        NO_PRIVACY,
        method=dpb.Tracking(steps=10),
        start=case.start,
        refit=dpb.Refit(steps=300),
        seed=0,
        progress=False,
    )
    np.testing.assert_allclose(solution.y, case.data["lower"].mean(0), atol=1e-2)


def test_shares_follow_public_facts_smoothly():
    sizes = sources().records().sizes
    shares = [dpb.Refit().budgets(dpb.Budget(e, 1e-6), sizes, True)[2] for e in (0.1, 0.5, 1.0, 3.0, 10.0)]
    assert all(0.1 < later < earlier < 0.2 for earlier, later in itertools.pairwise(shares))
    assert dpb.Refit(share=0.5).budgets(BUDGET, sizes, True)[2] == 0.5


def test_gaussian_shares_add_up_to_the_whole_budget():
    tuning, training, share = dpb.Refit().budgets(BUDGET, sources().records().sizes, True)
    assert tuning.mu**2 + training.mu**2 == pytest.approx(BUDGET.mu**2, rel=1e-6)
    assert tuning.mu**2 == pytest.approx(share * BUDGET.mu**2, rel=1e-6)
    tuning, training, _ = dpb.Refit().budgets(BUDGET, sources().records().sizes, False)
    assert tuning.epsilon + training.epsilon == pytest.approx(1.0)
    assert tuning.delta + training.delta == pytest.approx(1e-4)


def test_as_a_method_it_trains_at_the_start_with_the_whole_budget():
    case = sources()
    solution = dpb.solve(
        case.problem, case.records(), BUDGET, method=dpb.Refit(), start=case.start, refit=None, seed=0, progress=False
    )
    np.testing.assert_array_equal(solution.x["weights"], np.float32(case.start[0]["weights"]))
    assert solution.privacy.epsilon() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps=0"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0"),
        ({"clip_norm": 0.0}, "clip_norm=0.0"),
        ({"share": 1.0}, "share=1.0: must lie between 0 and 1"),
    ],
)
def test_bad_arguments_are_named(settings, message):
    with pytest.raises(dpb.InvalidArgument, match=message):
        dpb.Refit(**settings)


def test_refit_must_be_one():
    case = leak()
    with pytest.raises(dpb.InvalidArgument, match="refit='yes'"):
        dpb.plan(case.problem, case.records().sizes, BUDGET, method=dpb.Tracking(), start=case.start, refit="yes")


def _mean_error(records: int, scale: float) -> float:
    """Of the trained mean of points whose distance from it is about ``scale``, over five runs."""
    points = np.random.default_rng(3).normal(size=(records, 5)).astype(np.float32) * scale / np.sqrt(5)
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: x**2, lower_loss=lambda x, y, record: 0.5 * ((y - record) ** 2).sum()
    )
    errors = []
    for seed in range(5):
        solution = dpb.solve(
            problem,
            dpb.Records(lower=points),
            dpb.Budget(1.0, 1e-6),
            method=dpb.Refit(learning_rate=0.05),
            start=(0.0, np.zeros(5)),
            refit=None,
            seed=seed,
            progress=False,
        )
        errors.append(np.sum((solution.y - points.mean(0)) ** 2))
    return float(np.sqrt(np.mean(errors)))


def test_the_clip_follows_the_norms_of_gradients(monkeypatch):
    """Gradients of norm 0.02 under a clip that starts at one: a clip that stays there pays for noise to the end."""
    followed = _mean_error(20_000, 0.02)
    monkeypatch.setattr("dpbilevel.methods.training_gradients._WANDERING", 1e-9)
    planning._planned.cache_clear()
    stayed = _mean_error(20_000, 0.02)
    planning._planned.cache_clear()
    assert followed < stayed / 1.8


def test_few_records_do_not_drive_the_clip_away():
    """What the count of records within the clip says of 60 records is noise: the clip may not walk off with it."""
    assert _mean_error(60, 1.0) < 2.0
