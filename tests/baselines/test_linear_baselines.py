"""Objective perturbation and AdaSSP: the models they give, what they charge, and how far one record reaches."""

import math
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel import planning
from dpbilevel.baselines import AdaSSP, ObjectivePerturbation
from dpbilevel.baselines import objective_perturbation as module
from dpbilevel.errors import InvalidArgument, InvalidProblem, TrainerFailed
from dpbilevel.privacy.bundles import Bundle
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


UNITS = {"rows_per_unit": 4, "mean_rows": 1.0}
PEOPLE = np.repeat(np.arange(ROWS // 2), 2)  # two rows each, of which 200 have theirs in the upper role


def records(targets, **units):
    roles = {"upper": (TABLE[:400], targets[:400]), "lower": (TABLE[400:], targets[400:])}
    return dpb.Records(**roles, **units, **({"unit": {"upper": PEOPLE[:400], "lower": PEOPLE[400:]}} if units else {}))


def solved(baseline, problem, targets, budget=BUDGET, units=None, **options):
    given = records(targets, **({} if units is None else units))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return baseline.solve(problem, given, budget, start=SMALL, progress=False, **options)


def logistic_gradient(y, labels=LABELS):
    signs = np.where(labels > 0, 1.0, -1.0)
    return TABLE.T @ (-signs / (1 + np.exp(signs * (TABLE @ y))))


# ----------------------------------------------------------------------------------------------- objective perturbation


def recovered(seed, units=None):
    """b, in units of its standard deviation: what the released model says about it, up to the noise of the output."""
    y = np.asarray(solved(ObjectivePerturbation(), LOGISTIC, LABELS, units=units, seed=seed).y, np.float64)
    number, rows, mean = (ROWS, 1, 1.0) if units is None else (ROWS // 2, 4, 1.0)
    bounds = LOGISTIC.lower_loss.bounds
    noise = ObjectivePerturbation().noise(BUDGET, bounds, number, COLUMNS, rows, math.sqrt(rows / mean))
    gradient = (
        logistic_gradient(y) / mean
    )  # units of two rows are as they are: their loss is reduced from three rows on
    return -(gradient + (noise.ridge + number * math.exp(-9.0)) * y) / noise.noise_std


def noise_is_as_charged(units=None):
    standard = np.concatenate([recovered(seed, units) for seed in range(12)])
    deviation = np.sqrt(np.mean(standard**2))
    return abs(deviation - 1) < 4 / math.sqrt(2 * standard.size)  # a false alarm in 1 of 16,000


@pytest.mark.parametrize("units", [None, UNITS], ids=["rows", "units"])
def test_the_model_minimises_the_objective_with_the_noise_that_was_charged(units):
    assert noise_is_as_charged(units)
    assert not np.array_equal(recovered(0, units), recovered(1, units))


def test_too_little_noise_is_noticed(monkeypatch):
    true = module.standard_normal
    monkeypatch.setattr(module, "standard_normal", lambda key, size: 0.6 * true(key, size))
    assert not noise_is_as_charged()


def test_units_with_the_noise_of_rows_are_noticed(monkeypatch):
    monkeypatch.setattr(module, "clip_of_units", lambda *_: 1.0)
    planning._planned.cache_clear()
    noisy = noise_is_as_charged(UNITS)
    planning._planned.cache_clear()
    assert not noisy


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


def test_units_are_charged_as_units():
    ledger = dpb.Ledger(dpb.Budget(3.0, 1e-4))
    solution = solved(ObjectivePerturbation(), LOGISTIC, LABELS, units=UNITS, ledger=ledger)
    assert [entry.rows_per_unit for entry in ledger.entries] == [4]
    assert "of which at most 4 are used" in solution.privacy.sentence()
    assert solution.sizes == {"upper": 200, "lower": 400}
    with pytest.raises(InvalidArgument, match="rows_per_unit=300: must be at most 256"):
        solved(ObjectivePerturbation(), LOGISTIC, LABELS, units={"rows_per_unit": 300}, ledger=ledger)
    assert len(ledger.entries) == 1


EXTREME = [0.0, 1e-3, 1.0, 30.0, 1e6, 1e30]
OF_ROWS, OF_UNITS = module._Units(1, 1.0, 1.0), module._Units(4, 1.0, 2.0)


def reach_of_units(units=OF_UNITS):
    """The largest gradient and the largest sum of curvatures of one unit of 0 to k extreme rows, alike or not."""
    draws, gradients, curvatures = np.random.default_rng(1), [0.0], [0.0]
    with isolated_jax_config():
        derivatives = module._derivatives(LOGISTIC, ("lower",), LOGISTIC.lower_loss.bounds, units)
        for size in EXTREME:
            for number in range(units.rows + 1):
                rows = size * draws.normal(size=(1, units.rows, COLUMNS))
                rows = rows[:, :1] + np.zeros_like(rows) if number % 2 == 0 else rows
                y = draws.choice(EXTREME[:-1]) * draws.normal(size=COLUMNS)
                unit = Bundle((rows, np.ones((1, units.rows), int)), np.arange(units.rows)[None] < number)
                gradient, curved = derivatives(np.zeros(1), -y * np.sign(rows[0, 0] @ y), {"lower": unit})
                gradients.append(float(np.linalg.norm(gradient)))
                curvatures.append(float(np.trace(curved)))
    return max(gradients), max(curvatures)


def test_one_unit_reaches_no_further_than_the_proof_assumes():
    gradient, curvature = reach_of_units()
    assert 0.9 < gradient / OF_UNITS.reach <= 1 + 1e-12
    assert 0.2 < curvature / OF_UNITS.reach <= 0.25 + 1e-12


def test_a_unit_whose_loss_is_a_mere_sum_is_noticed(monkeypatch):
    monkeypatch.setattr(module.jnp, "minimum", lambda one, other: jnp.ones_like(other))
    module._derivatives.cache_clear()
    gradient, _ = reach_of_units()
    module._derivatives.cache_clear()
    assert gradient > 1.3 * OF_UNITS.reach


def reach():
    """The largest gradient and curvature of one record, over extreme records and models."""
    bounds = LOGISTIC.lower_loss.bounds
    draws, gradients, curvatures = np.random.default_rng(1), [0.0], [0.0]
    with isolated_jax_config():
        derivatives = module._derivatives(LOGISTIC, ("lower",), bounds, OF_ROWS)
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


def test_statistics_of_units_give_the_same_ridge_regression():
    """All units have two rows, and as many as the declared mean: their mean is that over rows, and none is clipped."""
    rows, units = (
        solved(AdaSSP(target_bound=4.0), SQUARED, NUMBERS, dpb.Budget(1e6, 1e-5), seed=0, units=given)
        for given in (None, UNITS | {"mean_rows": 2.0})
    )
    np.testing.assert_allclose(rows.y, units.y, rtol=2e-3, atol=1e-3)
    assert units.sizes == {"upper": 200, "lower": 400}


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
