"""Tune, then train: shares of the budget, pooled records, and a model that is trained at the final x."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compilations import counted
from support.problems import leak, quadratic, ridge, sources

import dpbilevel as dpb
from dpbilevel import planning
from dpbilevel.methods.descent import Descent

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


def _mean_error(records: int, scale: float, epsilon: float = 1.0) -> float:
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
            dpb.Budget(epsilon, 1e-6),
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
    followed = _mean_error(2000, 0.02, epsilon=12.0)
    monkeypatch.setattr("dpbilevel.methods.training_gradients._WANDERING", 1e-9)
    planning._planned.cache_clear()
    stayed = _mean_error(2000, 0.02, epsilon=12.0)
    planning._planned.cache_clear()
    assert followed < stayed / 1.8


def test_few_records_do_not_drive_the_clip_away():
    """What the count of records within the clip says of 60 records is noise: the clip may not walk off with it."""
    assert _mean_error(60, 1.0) < 2.0


# ---- steps of Adam: their number, their rate and their average


def test_steps_and_rate_of_adam_follow_public_numbers():
    def planned(records, epsilon=1.0, columns=4, **refit):
        rows = np.zeros((records, columns), np.float32), np.zeros(records, np.float32)
        sizes = dpb.Records(upper=rows, lower=rows).sizes
        parameters = dpb.plan(problem, sizes, dpb.Budget(epsilon, 1e-6), method=dpb.Refit(**refit)).parameters
        return parameters["training: steps"][0], parameters["training: learning rate"][0]

    problem = dpb.applications.regularization("logistic", columns=4)
    assert planned(50, epsilon=0.5)[0] == 200
    assert planned(50_000)[0] == 600
    steps, rate = planned(2000)
    assert steps == math.ceil(4000 * dpb.Budget(1.0, 1e-6).mu / 3)
    assert rate == pytest.approx(1 / math.sqrt(steps))
    assert planned(2000, steps=50, learning_rate=0.3, clip_norm=2.0) == (50, pytest.approx(0.15))
    problem = dpb.applications.regularization("logistic", columns=3000, row_norm=8.0)  # too many for second moments
    assert planned(20, epsilon=0.5, columns=3000)[1] == pytest.approx(2 / (8 * math.sqrt(200)))
    problem = dataclasses.replace(problem, upper_loss=lambda x, y, record: y @ y, lower_loss=lambda x, y, record: y @ y)
    assert planned(20, epsilon=0.5, clip_norm=4.0)[1] == pytest.approx(1 / (4 * math.sqrt(200)))


def noise_that_stays(averages: bool = True) -> float:
    """Variance of y in units of that of a single exact release, where noise dominates and training is long."""
    steps, curvature, length, coordinates = 400, 1.0, 40.0, 4000
    noise = 100 * math.sqrt(steps)  # of a step: far above the gradient
    descent = Descent(steps, length * noise / (curvature * steps), dpb.Unconstrained())
    draws = np.random.default_rng(0).normal(size=(steps, coordinates)).astype(np.float32) * noise

    def move(state, draw):
        return descent.move(state, curvature * state["y"] + draw), ()

    state, _ = jax.lax.scan(move, descent.start(jnp.zeros(coordinates)), draws)
    return float(jnp.var(state["average" if averages else "y"])) * steps * curvature**2 / noise**2


def test_averaged_steps_leave_twice_the_noise_of_one_release():
    assert noise_that_stays() == pytest.approx(2.0, rel=0.1)
    assert noise_that_stays(averages=False) > 8, "the last iterate has far more"


def test_the_average_is_that_of_the_second_half():
    descent = Descent(5, 0.1, dpb.Unconstrained())
    state, iterates = descent.start(jnp.ones(2)), []
    for gradient in np.random.default_rng(1).normal(size=(5, 2)):
        state = descent.move(state, jnp.asarray(gradient, jnp.float32))
        iterates.append(state["y"])
    np.testing.assert_allclose(state["average"], np.mean(iterates[2:], axis=0), rtol=1e-6)


def test_with_little_noise_adam_reaches_the_minimiser():
    """Softmax, and the same loss as a function, of which nothing is known."""
    draws = np.random.default_rng(5)
    rows = draws.normal(size=(3000, 4)).astype(np.float32) * [0.7, 0.3, 0.1, 0.5]
    labels = (rows @ draws.normal(size=(4, 3)) * 4 + draws.gumbel(size=(3000, 3))).argmax(1).astype(np.int32)
    records = {level: (rows.astype(np.float32), labels) for level in ("upper", "lower")}
    linear = dpb.applications.regularization("softmax", columns=4, classes=3)
    start = np.full(1, -9.0, np.float32), np.zeros((4, 3), np.float32)

    def objective(y):
        scores = rows @ np.asarray(y)
        of_labels = np.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
        return np.mean(np.log(np.exp(scores).sum(1)) - of_labels) + math.exp(-9.0) / 2 * np.sum(np.square(y))

    def trained(problem, epsilon):
        budget, settings = dpb.Budget(epsilon, 1e-6), {"method": dpb.Refit(), "start": start, "refit": None}
        return dpb.solve(problem, dpb.Records(**records), budget, seed=0, progress=False, **settings)

    def written(x, y, record):
        return linear.lower_loss(x, y, record)

    best, nothing = objective(trained(linear, math.inf).y), objective(start[1])
    for problem in (linear, dataclasses.replace(linear, upper_loss=written, lower_loss=written)):
        assert objective(trained(problem, 1000.0).y) - best < 0.01 * (nothing - best)
        with counted() as compiled:
            solution = trained(problem, 0.5)
        assert (compiled[0], solution.parameters["training: steps"][0] < 600) == (0, True)
