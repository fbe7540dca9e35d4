"""Weights of rows and of classes: relative to a declared largest, part of the record; no count of classes is read."""

import numpy as np
import pytest
from support.estimator_cases import CASES, LABELS, QUICK, X, check_silent, released

import dpbilevel as dpb
from dpbilevel import planning
from dpbilevel.estimators import DPLogisticRegressionCV, DPRidgeCV
from dpbilevel.methods.preconditioned import Preconditioned

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning", "ignore::dpbilevel.NotPrivateWarning")
LOGISTIC, RIDGE = CASES["logistic"], CASES["ridge"]
WEIGHTS = np.linspace(0, 3, 60)


def columns(prepared):
    """The weights of all records, in the order of the rows of each role."""
    return [np.asarray(prepared.records[role][2]) for role in ("upper", "lower")]


def check_bounded(case, weights, **settings):
    found = np.concatenate(columns(case.make(**settings)._prepare(X, case.y, weights)))
    assert found.dtype == np.float32
    assert ((found >= 0) & (found <= 1)).all()
    return found


@pytest.mark.parametrize("case", [LOGISTIC, RIDGE], ids=["logistic", "ridge"])
def test_weights_are_relative_to_the_declared_largest_and_clamped_to_it(case):
    found = check_bounded(case, WEIGHTS, largest_weight=2.0)
    np.testing.assert_allclose(np.sort(found), np.minimum(WEIGHTS / 2, 1), rtol=1e-6)
    check_bounded(case, np.full(60, 1e308), largest_weight=1e-300)


def test_a_weight_that_is_not_clamped_is_caught(monkeypatch):
    monkeypatch.setattr("dpbilevel.estimators.weights.np.minimum", lambda values, _: values)
    with pytest.raises(AssertionError):
        check_bounded(RIDGE, WEIGHTS, largest_weight=2.0)


def test_weights_of_classes_multiply_those_of_rows():
    settings = {"class_weight": {0: 1.0, 1: 4.0}}
    alone = check_bounded(LOGISTIC, None, **settings)
    assert sorted(set(alone.tolist())) == [0.25, 1.0]
    assert (alone == 1).sum() == LABELS.sum()
    both = check_bounded(LOGISTIC, WEIGHTS, largest_weight=3.0, **settings)
    np.testing.assert_allclose(both.sum(), (WEIGHTS / 3 * np.where(LABELS, 1, 0.25)).sum(), rtol=1e-6)


def test_an_undeclared_largest_weight_has_a_caveat():
    model = LOGISTIC.make(random_state=0)
    with pytest.warns(dpb.PrivacyLeakWarning, match="largest_weight was not declared"):
        model.fit(X, LOGISTIC.y, WEIGHTS)
    assert any("largest_weight" in caveat for caveat in model.privacy_.caveats)
    declared = LOGISTIC.make(random_state=0, largest_weight=3.0).fit(X, LOGISTIC.y, WEIGHTS)
    assert declared.privacy_.caveats == ()
    np.testing.assert_array_equal(released(declared), released(model))


def test_no_weights_change_nothing_and_a_plan_knows_them():
    plain, declared = LOGISTIC.make(), LOGISTIC.make(largest_weight=2.0)
    assert len(plain._prepare(X, LOGISTIC.y).records["lower"]) == 2
    assert len(declared._prepare(X, LOGISTIC.y).records["lower"]) == 2
    assert declared.plan(100, 3).privacy.epsilon() == plain.plan(100, 3).privacy.epsilon()


def test_rows_of_weight_zero_do_not_count():
    """Three quarters of the labels are wrong, and have no weight."""
    draws = np.random.default_rng(0)
    rows = draws.normal(size=(3000, 3)) / 4
    truth = rows[:, 0] > 0
    wrong = draws.random(3000) < 0.75
    settings = {"epsilon": float("inf"), "data_norm": 1.0}
    weights = np.where(wrong, 0.0, 1.0)
    model = DPLogisticRegressionCV(classes=[False, True], largest_weight=1.0, **settings)
    assert model.fit(rows, truth ^ wrong, weights).score(rows, truth) > 0.95
    regression = DPRidgeCV(target_range=(-2, 2), largest_weight=1.0, **settings)
    target = np.where(wrong, -1, 1) * rows[:, 0]
    assert regression.fit(rows, target, weights).score(rows, rows[:, 0]) > 0.95


PEOPLE = np.arange(60) // 3
UNITS = {"rows_per_unit": 6, "mean_rows": 3, "largest_weight": 2.0, "epsilon": 8.0, "delta": 1e-3, "random_state": 0}


def units_fitted(X, y, weights, units, **settings):
    return LOGISTIC.make(**UNITS | settings).fit(X, y, weights, units=units)


def test_a_row_of_a_unit_with_twice_the_weight_is_two_rows_of_it(monkeypatch):
    # Two equal rows are alike; training expects shorter gradients of units with more rows.
    monkeypatch.setattr(Preconditioned, "unlike", 1.0)
    planning._planned.cache_clear()
    weights = 1.0 + np.arange(60) % 2
    weighted = units_fitted(X, LABELS, weights, PEOPLE)
    # Weights are relative to the largest: halved, as the sum over twice as many rows is by their mean.
    twice = np.repeat(np.arange(60), weights.astype(int))
    settings = {"rows_per_unit": 12, "mean_rows": 6}  # the same k/m, on which the clip of second moments depends
    repeated = units_fitted(X[twice], LABELS[twice], np.full(len(twice), 2.0), PEOPLE[twice], **settings)
    planning._planned.cache_clear()
    np.testing.assert_allclose(released(weighted), released(repeated), rtol=1e-4, atol=1e-5)


def test_rows_of_a_unit_without_weight_do_not_count():
    wrong = np.concatenate([X, -X[::-1]])
    given = np.concatenate([LABELS, LABELS[::-1]]), np.repeat([2.0, 0.0], 60), np.concatenate([PEOPLE, PEOPLE[::-1]])
    np.testing.assert_allclose(
        released(units_fitted(wrong, *given)),
        released(units_fitted(X, LABELS, np.full(60, 2.0), PEOPLE)),
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_fit_of_units_with_weights_of_classes_is_what_was_planned():
    settings = {"class_weight": {0: 1.0, 1: 3.0}, "random_state": None}
    fitted = units_fitted(X, LABELS, np.linspace(0, 2, 60), PEOPLE, **settings)
    planned = LOGISTIC.make(**UNITS | settings).plan(20, 3)
    assert planned.parameters == fitted.solution_.parameters
    assert planned.privacy.charges == fitted.privacy_.charges
    assert fitted.solution_.sizes == {"upper": 4, "lower": 16}


def test_a_class_of_larger_weight_is_predicted_more_often():
    draws = np.random.default_rng(0)
    rows = draws.normal(size=(3000, 2)) / 4
    labels = (rows[:, 0] + draws.normal(size=3000) > 0.8).astype(int)
    shares = {}
    for weight in (1.0, 10.0):
        model = DPLogisticRegressionCV(
            epsilon=8.0, delta=1e-5, data_norm=1.0, classes=[0, 1], class_weight={0: 1.0, 1: weight}, random_state=0
        )
        shares[weight] = model.fit(rows, labels).predict(rows).mean()
    assert shares[10.0] > shares[1.0] + 0.3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_weight": "balanced"}, "reads the counts of classes, which are private"),
        ({"class_weight": {0: 1.0}}, "from every class to its weight"),
        ({"class_weight": {0: 1.0, 1: 1.0, 2: 1.0}}, "from every class to its weight"),
        ({"class_weight": {0: 1.0, 1: 0.0}}, "must be a finite number > 0"),
        ({"class_weight": [1.0, 2.0]}, "from every class to its weight"),
        ({"largest_weight": 0.0}, "largest_weight=0.0: must be a finite number > 0"),
        ({"largest_weight": float("inf")}, "must be a finite number > 0"),
    ],
)
def test_wrong_declarations_are_refused_before_the_charge(settings, message):
    ledger = dpb.Ledger(dpb.Budget(1.0, 1e-3))
    model = LOGISTIC.make(ledger=ledger, **settings)
    with pytest.raises(dpb.InvalidArgument, match=message):
        model.fit(X, LOGISTIC.y)
    with pytest.raises(dpb.InvalidArgument, match=message):
        model.plan(100, 3)
    assert not ledger.entries


@pytest.mark.parametrize(
    "weights",
    [
        np.full(59, 987654.25),
        np.full(60, -987654.25),
        [*([987654.25] * 59), np.nan],
        np.full((60, 2), 987654.25),
        "Zanzibar",
    ],
)
def test_wrong_weights_are_refused_without_a_word_of_them(weights):
    model = RIDGE.make(largest_weight=1.0, method=QUICK)
    error = check_silent(lambda: model.fit(X, RIDGE.y, weights))
    assert isinstance(error, dpb.InvalidRecords)
    assert "sample_weight" in str(error)
