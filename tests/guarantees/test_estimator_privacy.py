"""One budget for everything, charged before data is touched; and nothing that is not declared goes unsaid."""

import pickle
import re
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.estimator_cases import (
    CASES,
    LABELS,
    PLACES,
    X,
    every_case,
    fitted,
    released,
)

import dpbilevel as dpb
from dpbilevel import records
from dpbilevel.errors import BudgetExceeded, NotPrivateWarning, PrivacyLeakWarning, UtilityWarning
from dpbilevel.estimators.base import default_delta
from dpbilevel.privacy.accounting import gaussian_epsilon

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning", "ignore::dpbilevel.PrivacyLeakWarning")


# ---- one budget, charged first


@every_case
def test_a_ledger_counts_every_fit_and_refuses_the_last(case):
    mu = dpb.Budget(1.0, 0.01).mu
    ledger = dpb.Ledger(dpb.Budget(gaussian_epsilon(2.5**0.5 * mu, 0.01), 0.01))  # enough for two and a half
    models = [case.fit(ledger=ledger, random_state=None) for _ in range(2)]
    assert [entry.mu for entry in ledger.entries] == pytest.approx([mu, mu])
    assert ledger.spent() == pytest.approx(gaussian_epsilon(2**0.5 * mu, 0.01))
    last = case.make(ledger=ledger)
    with pytest.raises(BudgetExceeded):
        last.fit(X, case.y, **case.more())
    assert len(ledger.entries) == 2
    assert not hasattr(last, "solution_")
    assert not hasattr(last, "coef_")
    held, kept = vars(models[0]).copy(), released(models[0])
    with pytest.raises(BudgetExceeded):
        models[0].fit(X, case.y, **case.more())
    assert all(value is held[name] for name, value in vars(models[0]).items())
    np.testing.assert_array_equal(released(models[0]), kept)  # the model that was paid for stays


@every_case
def test_the_charge_comes_before_the_data_and_stands(case, monkeypatch):
    order = []
    charge = dpb.Ledger.charge
    monkeypatch.setattr(dpb.Ledger, "charge", lambda *given, **more: order.append("charge") or charge(*given, **more))

    def execute(*given):
        order.append("data")
        raise RuntimeError("power cut")

    monkeypatch.setattr(records.Records, "execute", execute)
    ledger = dpb.Ledger(dpb.Budget(2.0, 0.01))
    model = case.make(ledger=ledger)
    with pytest.raises(RuntimeError, match="power cut"):
        model.fit(X, case.y, **case.more())
    assert order == ["charge", "data"]
    assert len(ledger.entries) == 1
    assert not hasattr(model, "solution_")


@every_case
def test_delta_is_by_default_a_public_function_of_n_and_is_stated(case):
    model = fitted(case)
    assert model.privacy_.budget.delta == 0.01  # 60^-1.1 = 0.01107
    assert model.solution_.parameters["delta"] == (0.01, "1/n^1.1 rounded down, n = 60 rows, which is public")
    assert "(1, 0.01)-differentially private" in model.privacy_.sentence()
    assert model.delta is None


def test_delta_can_be_given_and_infinite_epsilon_has_none():
    assert CASES["ridge"].make(delta=1e-4)._budget(60) == dpb.Budget(1.0, 1e-4)
    assert CASES["ridge"].make(epsilon=float("inf"))._budget(60) == dpb.Budget(float("inf"))


@given(st.integers(2, 10**15) | st.integers(1, 15).map(lambda power: 10**power))
def test_the_default_delta_is_the_largest_of_one_digit(rows):
    delta, exact = default_delta(rows), rows**-1.1
    assert re.fullmatch(r"[1-9]e-\d+", f"{delta:.0e}")
    assert float(f"{delta:.0e}") == delta
    assert delta <= exact < 2.0000001 * delta
    assert delta < 1 / rows


@every_case
def test_a_seed_warns_at_each_fit_and_voids_the_guarantee(case):
    model = case.make(random_state=np.int64(3))
    for _ in range(2):
        with pytest.warns(NotPrivateWarning, match="random_state is fixed: the noise can be recomputed") as caught:
            model.fit(X, case.y, **case.more())
        (warning,) = [warning for warning in caught if warning.category is NotPrivateWarning]
        assert warning.filename == __file__
    assert model.privacy_.void
    assert "NOT PRIVATE" in model.privacy_.sentence()
    again = case.fit(random_state=3)
    np.testing.assert_array_equal(released(again), released(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotPrivateWarning)
        secret = model.set_params(random_state=None).fit(X, case.y, **case.more())
    assert not secret.privacy_.void
    assert (released(secret) != released(again)).any()


@every_case
def test_a_warning_that_is_an_error_stops_a_fit_before_its_charge(case):
    ledger = dpb.Ledger(dpb.Budget(2.0, 0.01))
    for category, settings in (
        (PrivacyLeakWarning, {"data_norm": None}),
        (NotPrivateWarning, {"random_state": 0}),
        (UtilityWarning, {"epsilon": 0.1}),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error", category)
            model = case.make(ledger=ledger, **settings)
            with pytest.raises(category):
                model.fit(X, case.y, **case.more())
        assert not hasattr(model, "solution_")
    assert ledger.entries == ()


# ---- what is not declared is said so

UNDECLARED = {
    "data_norm": "data_norm was not declared and is the largest norm of the data",
    "classes": "classes were not declared and are read from the data",
    "target_range": "target_range was not declared and is read from the data",
    "source_names": "names of sources were not declared and are read from the data",
    "task_names": "names of tasks were not declared and are read from the data",
}


@every_case
def test_what_is_not_declared_warns_and_leaves_a_caveat(case):
    for name, sentence in UNDECLARED.items():
        if name not in case.make().get_params():
            continue
        model = case.make(**{name: None})
        with pytest.warns(PrivacyLeakWarning, match=sentence) as caught:
            model.fit(X, case.y, **case.more())
        leaks = [warning for warning in caught if warning.category is PrivacyLeakWarning]
        assert [warning.filename for warning in leaks] == [__file__]
        assert model.privacy_.caveats == tuple(str(warning.message) for warning in leaks)
        assert f"CAVEAT: {sentence}" in model.privacy_.sentence()
        assert model.solution_.privacy is model.privacy_


@every_case
def test_nothing_is_left_to_say_where_all_is_declared(case):
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyLeakWarning)
        for settings in ({}, {"data_norm": None, "bounds": (-1, 1)}):
            model = case.make(**settings).fit(X, case.y, **case.more())
            assert model.privacy_.caveats == ()


def public_side(model) -> bytes:
    """What a model holds besides released numbers."""
    names = ("classes_", "groups_", "source_names_", "task_names_", "n_features_in_")
    parts = [getattr(model, name, None) for name in names]
    numbers = {name: value for name, (value, _) in model.solution_.parameters.items()}
    scaling = [part.tobytes() for part in (model._scaling_.middle, model._scaling_.size)]
    return pickle.dumps((parts, numbers, scaling, model.privacy_.to_json(), model.solution_.sizes))


@every_case
def test_only_released_numbers_depend_on_records(case):
    other = 3 * X[::-1], case.y[::-1] if case.y is LABELS else 2 * case.y[::-1]
    assert public_side(case.fit(*other)) == public_side(fitted(case))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        one, two = case.fit(data_norm=None), case.fit(*other, data_norm=None)
    assert public_side(one) != public_side(two)


def test_categories_of_pandas_are_no_declaration():
    pandas = pytest.importorskip("pandas")
    case = CASES["weighted classifier"]
    words = np.where(LABELS == 1, "yes", "no")
    labels = pandas.Series(pandas.Categorical(words, categories=["no", "yes", "never"]))
    places = pandas.Categorical(PLACES, categories=["east", "west", "nowhere"])
    model = case.make(classes=None, source_names=None)
    with pytest.warns(PrivacyLeakWarning) as caught:
        model.fit(X, labels, sources=places)
    assert len([warning for warning in caught if warning.category is PrivacyLeakWarning]) == 2
    assert len(model.privacy_.caveats) == 2
    assert (model.classes_.tolist(), model.source_names_.tolist()) == (["no", "yes"], ["east", "west"])


@pytest.mark.parametrize("name", CASES)
def test_a_plan_of_sizes_is_the_plan_of_the_fit(name):
    case = CASES[name]
    model = case.fit(delta=None)
    planned = case.make(random_state=0, delta=None).plan(*X.shape)
    assert planned.parameters == model.solution_.parameters
    assert planned.privacy.epsilon() == model.privacy_.epsilon()
