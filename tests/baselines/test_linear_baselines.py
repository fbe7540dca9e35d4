"""Objective perturbation and AdaSSP: the models they give, what they charge, and how far one record reaches."""

import math
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.baselines import AdaSSP, ObjectivePerturbation
from dpbilevel.baselines import objective_perturbation as module
from dpbilevel.errors import InvalidArgument, InvalidProblem, TrainerFailed
from dpbilevel.records import isolated_jax_config

ROWS, COLUMNS = 1200, 6
BUDGET = dpb.Budget(2.0, 1e-5)
draws = np.random.default_rng(0)
TABLE = draws.normal(size=(ROWS, COLUMNS)) / math.sqrt(COLUMNS)
TABLE /= np.maximum(np.linalg.norm(TABLE, axis=1, keepdims=True), 1.0)
TRUTH = draws.normal(size=COLUMNS)
LABELS = (TABLE @ TRUTH + 0.3 * draws.normal(size=ROWS) > 0).astype(np.int32)
NUMBERS = np.clip(TABLE @ TRUTH + 0.1 * draws.normal(size=ROWS), -2, 2)
LOGISTIC = dpb.applications.regularization("logistic", columns=COLUMNS, row_norm=1.0)
SQUARED = dpb.applications.regularization("squared", columns=COLUMNS, row_norm=1.0, target_bound=2.0)
SMALL = np.full(1, -9.0), np.zeros(COLUMNS)


def records(targets):
    return dpb.Records(upper=(TABLE[:400], targets[:400]), lower=(TABLE[400:], targets[400:]))


def solved(baseline, problem, targets, budget=BUDGET, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return baseline.solve(problem, records(targets), budget, start=SMALL, progress=False, **options)


def logistic_gradient(y, labels=LABELS):
    signs = np.where(labels > 0, 1.0, -1.0)
    return TABLE.T @ (-signs / (1 + np.exp(signs * (TABLE @ y))))


# ----------------------------------------------------------------------------------------------- objective perturbation


def recovered(seed):
    """b, in units of its standard deviation: what the released model says about it, up to the noise of the output."""
    y = np.asarray(solved(ObjectivePerturbation(), LOGISTIC, LABELS, seed=seed).y, np.float64)
    noise = ObjectivePerturbation().noise(BUDGET, LOGISTIC.lower_loss.bounds, ROWS, COLUMNS)
    return -(logistic_gradient(y) + (noise.ridge + ROWS * math.exp(-9.0)) * y) / noise.noise_std


def noise_is_as_charged():
    standard = np.concatenate([recovered(seed) for seed in range(12)])
    deviation = np.sqrt(np.mean(standard**2))
    return abs(deviation - 1) < 4 / math.sqrt(2 * standard.size)  # a false alarm in 1 of 16,000


def test_the_model_minimises_the_objective_with_the_noise_that_was_charged():
    assert noise_is_as_charged()
    assert not np.array_equal(recovered(0), recovered(1))


def test_too_little_noise_is_noticed(monkeypatch):
    true = module.standard_normal
    monkeypatch.setattr(module, "standard_normal", lambda key, size: 0.6 * true(key, size))
    assert not noise_is_as_charged()


def test_it_is_charged_as_declared_before_any_record_is_read():
    planned = dpb.plan(LOGISTIC, records(LABELS).sizes, BUDGET, method=ObjectivePerturbation(), start=SMALL)
    (release,) = planned.releases
    assert release.event == dpb.ApproximateDP(BUDGET.epsilon, BUDGET.delta)
    assert set(planned.privacy.charges) == {"upper", "lower"}
    assert planned.privacy.epsilon() == BUDGET.epsilon
    assert any("second derivative is at most the declared 0.25" in caveat for caveat in planned.privacy.caveats)
    ledger = dpb.Ledger(dpb.Budget(3.0, 1e-4))
    solved(ObjectivePerturbation(), LOGISTIC, LABELS, ledger=ledger)
    with pytest.raises(dpb.BudgetExceeded):
        solved(ObjectivePerturbation(), LOGISTIC, LABELS, ledger=ledger)


EXTREME = [0.0, 1e-3, 1.0, 30.0, 1e6, 1e30]


def reach():
    """The largest gradient and curvature of one record, over extreme records and models."""
    bounds = LOGISTIC.lower_loss.bounds
    draws, gradients, curvatures = np.random.default_rng(1), [0.0], [0.0]
    with isolated_jax_config():
        derivatives = module._derivatives(LOGISTIC, ("lower",), bounds)
        for size in EXTREME:
            for scale in EXTREME[:-1]:
                row, y = size * draws.normal(size=(1, COLUMNS)), scale * draws.normal(size=COLUMNS)
                gradient, curved = derivatives(np.zeros(1), y, {"lower": (row, np.array([1]))})
                gradients.append(float(np.linalg.norm(gradient)))
                curvatures.append(float(np.linalg.norm(curved, 2)))
    return max(gradients), max(curvatures)


def test_one_record_reaches_no_further_than_the_proof_assumes():
    gradient, curvature = reach()
    assert 0.9 < gradient <= 1 + 1e-12
    assert 0.2 < curvature <= 0.25 + 1e-12


def test_long_rows_are_noticed(monkeypatch):
    module._derivatives.cache_clear()
    monkeypatch.setattr(module.jnp, "minimum", lambda one, other: jnp.ones_like(other))
    gradient, _ = reach()
    module._derivatives.cache_clear()
    assert gradient > 2


def test_the_minimiser_is_found_from_anywhere_or_nothing_is_released():
    def derivatives(y):  # a steep logistic loss with a small ridge, where plain Newton steps overshoot
        return 1e3 * np.tanh(1e3 * (y - 3)) + 1e-3 * y, np.diag(
            1e6 / np.cosh(np.clip(1e3 * (y - 3), -300, 300)) ** 2 + 1e-3
        )

    found = module.minimiser(derivatives, np.array([-50.0]), 1e-6)
    assert abs(derivatives(found)[0][0]) <= 1e-6
    with pytest.raises(TrainerFailed, match="nothing is released"):
        module.minimiser(lambda y: (np.ones(1), np.eye(1)), np.zeros(1), 1e-6)


def test_without_privacy_it_is_the_exact_minimiser():
    solution = solved(ObjectivePerturbation(), LOGISTIC, LABELS, dpb.Budget(math.inf))
    gradient = logistic_gradient(np.asarray(solution.y, np.float64)) / ROWS + math.exp(-9.0) * solution.y
    assert np.linalg.norm(gradient) < 1e-4


# --------------------------------------------------------------------------------------------------------------- AdaSSP


def test_statistics_give_the_ridge_regression():
    solution = solved(AdaSSP(target_bound=2.0), SQUARED, NUMBERS, dpb.Budget(1e6, 1e-5))
    exact = np.linalg.solve(TABLE.T @ TABLE / ROWS + math.exp(-9.0) * np.eye(COLUMNS), TABLE.T @ NUMBERS / ROWS)
    np.testing.assert_allclose(solution.y, exact, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize(("adjacency", "factors"), [("replace-one", (math.sqrt(2), 2.0)), ("zero-out", (1.0, 1.0))])
def test_two_releases_share_the_budget(adjacency, factors):
    budget = dpb.Budget(1.0, 1e-5, adjacency)
    planned = dpb.plan(SQUARED, records(NUMBERS).sizes, budget, method=AdaSSP(target_bound=2.0), start=SMALL)
    moments, products = planned.releases
    rounding = 1 + 2**-7
    for role in ("upper", "lower"):  # the mean over both roles has one part for each record, of weight 1/n
        assert moments.sensitivity(role) == pytest.approx(factors[0] * rounding / ROWS)
        assert products.sensitivity(role) == pytest.approx(factors[1] * 2.0 * rounding / ROWS)
        assert [c.mu**2 / budget.mu**2 for c in planned.privacy.charges[role]] == pytest.approx([0.5, 0.5], rel=1e-6)
    assert planned.privacy.epsilon() == pytest.approx(1.0, rel=1e-6)


def test_products_of_long_targets_are_clipped():
    far = NUMBERS.copy()
    far[7] = 1e9
    near = NUMBERS.copy()
    near[7] = 2.0 / np.linalg.norm(TABLE[7])
    models = [
        solved(AdaSSP(target_bound=2.0), SQUARED, targets, dpb.Budget(1e6, 1e-5), seed=0).y for targets in (far, near)
    ]
    np.testing.assert_allclose(*models, rtol=1e-3, atol=1e-5)


# ------------------------------------------------------------------------------------------------- what they apply to


@pytest.mark.parametrize("baseline", [ObjectivePerturbation(), AdaSSP()])
def test_other_problems_are_refused_before_a_charge(baseline):
    generic = dpb.BilevelProblem(
        upper_loss=lambda x, y, record: jnp.sum(record[0] * y), lower_loss=lambda x, y, record: jnp.sum(record[0] * y)
    )
    unbounded = dpb.applications.regularization("logistic", columns=COLUMNS)
    softmax = dpb.applications.regularization("softmax", columns=COLUMNS, classes=3, row_norm=1.0)
    for problem, start in ((generic, SMALL), (unbounded, None), (softmax, None)):
        with pytest.raises(InvalidProblem, match="one score per record and declared bounds"):
            dpb.plan(problem, records(LABELS).sizes, BUDGET, method=baseline, start=start)
    other = SQUARED if isinstance(baseline, ObjectivePerturbation) else LOGISTIC
    with pytest.raises(InvalidProblem, match="bounded derivative"):
        dpb.plan(other, records(LABELS).sizes, BUDGET, method=baseline)


def test_settings_are_checked():
    for share in (0.0, 1.0, math.nan):
        with pytest.raises(InvalidArgument, match="share"):
            ObjectivePerturbation(share=share)
    for settings in ({"target_bound": 0.0}, {"failure": 1.0}):
        with pytest.raises(InvalidArgument, match=next(iter(settings))):
            AdaSSP(**settings)


def test_they_are_methods_of_estimators():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        declared = {"epsilon": 4.0, "data_norm": 1.0, "random_state": 0}
        classifier = dpb.estimators.DPLogisticRegressionCV(**declared, classes=[0, 1], method=ObjectivePerturbation())
        regressor = dpb.estimators.DPRidgeCV(**declared, target_range=(-2, 2), method=AdaSSP(target_bound=3.0))
        assert classifier.fit(TABLE, LABELS).score(TABLE, LABELS) > 0.8
        assert regressor.fit(TABLE, NUMBERS).score(TABLE, NUMBERS) > 0.3
