"""Models with a weight for each source of rows: what weights do, names, and validation rows of their own."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from support.estimator_cases import CASES, LABELS, NUMBER, NUMBERS, PLACES, WORD, X, check_silent, released

import dpbilevel as dpb
from dpbilevel.errors import InvalidArgument, InvalidRecords, PrivacyLeakWarning
from dpbilevel.estimators import DPSourceWeightedClassifier, DPSourceWeightedRegressor

CLASSIFIER, REGRESSOR = CASES["weighted classifier"], CASES["weighted regressor"]
both = pytest.mark.parametrize("case", [CLASSIFIER, REGRESSOR], ids=["classifier", "regressor"])

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning")


def fit(case, X=X, y=None, *, sources=PLACES, validation=None, **settings):
    model = case.make(**{"random_state": 0, **settings})
    return model.fit(X, case.y if y is None else y, sources=sources, validation=validation)


# ---- without noise


def tables(draws):
    rows = draws.normal(size=(1500, 3)) / 3
    return rows, draws.choice(["good", "wrong"], 1500)


def test_a_source_of_wrong_labels_loses_its_weight():
    draws = np.random.default_rng(0)
    rows, sources = tables(draws)
    truth = (rows[:, 0] + 0.1 * draws.normal(size=1500) > 0).astype(int)
    y = np.where(sources == "wrong", 1 - truth, truth)
    model = DPSourceWeightedClassifier(
        epsilon=float("inf"), data_norm=1.5, classes=[0, 1], source_names=["wrong", "good"]
    ).fit(rows[500:], y[500:], sources=sources[500:], validation=(rows[:500], truth[:500]))
    assert model.source_names_.tolist() == ["good", "wrong"]
    assert model.source_weights_[0] > 0.95
    assert model.source_weights_.sum() == pytest.approx(1.0, abs=1e-5)
    clean = LogisticRegression(C=100.0).fit(rows, truth)
    assert model.score(rows, truth) > clean.score(rows, truth) - 0.02
    assert model.coef_.shape == (1, 3)


def test_a_source_of_wrong_numbers_loses_its_weight():
    draws = np.random.default_rng(0)
    rows, sources = tables(draws)
    truth = 3 + 10 * rows[:, 0] + 0.1 * draws.normal(size=1500)
    y = np.where(sources == "wrong", 6 - truth, truth)
    model = DPSourceWeightedRegressor(
        epsilon=float("inf"), data_norm=1.5, target_range=(-12, 18), source_names=["wrong", "good"]
    ).fit(rows[500:], y[500:], sources=sources[500:], validation=(rows[:500], truth[:500]))
    assert model.source_weights_[0] > 0.95
    clean = LinearRegression().fit(rows, truth)
    np.testing.assert_allclose(model.coef_, clean.coef_, atol=0.5)
    assert model.intercept_ == pytest.approx(clean.intercept_, abs=0.2)
    assert model.score(rows, truth) > 0.98


# ---- standard errors


def test_standard_errors_are_those_of_many_runs():
    """The training follows the search for weights; what it released about its noise is kept."""
    draws = np.random.default_rng(0)
    rows, sources = draws.normal(size=(9000, 4)) / 3, draws.choice(["a", "b", "c"], 9000)
    y = np.clip(rows @ [1, -1, 0.5, 0] + 0.3 * draws.normal(size=9000), -3, 3)
    given = np.where(sources == "c", -y, y)
    clean = rows[:2000], y[:2000]
    models = [
        DPSourceWeightedRegressor(
            data_norm=1.0, target_range=(-3, 3), source_names=list("abc"), random_state=seed, epsilon=2.0
        ).fit(rows[2000:], given[2000:], sources=sources[2000:], validation=clean)
        for seed in range(12)
    ]
    spread = np.array([model.coef_ for model in models]).var(axis=0, ddof=1).mean()
    claimed = np.mean([model.coef_noise_**2 for model in models])
    assert 0.6 < np.sqrt(spread / claimed) < 1.6
    assert "standard errors of y by the noise of training" in models[0].solution_.summary()


def test_shapes_have_bands():
    draws = np.random.default_rng(0)
    table = {"a": draws.uniform(0, 10, 6000)}
    encoder = dpb.BoundedEncoder(ranges={"a": (0, 10)}, knots=5)
    sources, y = draws.choice(["a", "b"], 6000), np.sin(table["a"] / 3)
    model = DPSourceWeightedRegressor(target_range=(-1, 1), source_names=["a", "b"], epsilon=8.0, random_state=0)
    (shape,) = model.fit(encoder.fit_transform(table), y, sources=sources).shapes_
    assert shape.error.shape == (5,)
    assert (shape.error > 0).all()


# ---- sources


@both
def test_rows_without_a_source_are_of_one_source(case):
    for names in (None, ["east", "west"]):
        model = fit(case, sources=None, source_names=names)
        assert (model.source_names_.tolist(), model.source_weights_.tolist()) == (["all"], [1.0])
        assert model.privacy_.caveats == ()


@both
def test_rows_of_sources_that_are_not_listed_are_those_of_other(case):
    named = np.where(np.arange(60) % 3 == 0, "other", "east")
    unnamed = np.where(np.arange(60) % 3 == 0, WORD, "east")
    models = [fit(case, sources=sources, source_names=["east", "other"]) for sources in (named, unnamed)]
    np.testing.assert_array_equal(*map(released, models))
    assert models[1].source_names_.tolist() == ["east", "other"]
    error = check_silent(lambda: fit(case, sources=unnamed))
    assert isinstance(error, InvalidRecords)
    assert "sources: has a name that source_names= does not list" in str(error)


@both
def test_sources_can_be_numbers(case):
    numbers = (PLACES == "west").astype(int)
    expected = released(fit(case))
    np.testing.assert_array_equal(released(fit(case, sources=numbers, source_names=[0, 1])), expected)
    np.testing.assert_array_equal(released(fit(case, sources=numbers.tolist(), source_names=["0", "1"])), expected)
    with pytest.warns(PrivacyLeakWarning, match="names of sources were not declared"):
        np.testing.assert_array_equal(released(fit(case, sources=numbers, source_names=None)), expected)


def test_many_classes_have_a_score_each():
    model = fit(CLASSIFIER, y=np.arange(60) % 3, classes=range(3))
    assert model.decision_function(X).shape == (60, 3)
    np.testing.assert_allclose(model.decision_function(X), X @ model.coef_.T + model.intercept_)
    assert set(model.predict(X)) <= {0, 1, 2}


# ---- validation rows


def held_out(case, rows=X):
    return {"X": rows[12:], "y": case.y[12:], "sources": PLACES[12:]}


@both
def test_validation_rows_of_ones_own_replace_the_split(case):
    given = fit(case, **held_out(case), validation=(X[:12], case.y[:12]))
    assert given.solution_.sizes == {"upper": 12, "lower": 48}
    as_list = fit(case, **held_out(case), validation=[X[:12].tolist(), case.y[:12].tolist()], split_seed="unused")
    np.testing.assert_array_equal(released(as_list), released(given))
    assert given.privacy_.budget.delta == 0.01  # of all 60 rows


@both
def test_validation_rows_are_scaled_as_the_others(case):
    given = fit(case, **held_out(case), validation=(X[:12], case.y[:12]))
    larger = fit(case, **held_out(case, 7 * X), validation=(7 * X[:12], case.y[:12]), data_norm=7.0)
    np.testing.assert_allclose(larger.predict(7 * X), given.predict(X), rtol=1e-5)
    with pytest.warns(PrivacyLeakWarning, match="data_norm was not declared"):
        free = fit(case, **held_out(case), validation=(100 * X[:12], case.y[:12]), data_norm=None)
    assert free._scaling_.size[0] == pytest.approx(np.linalg.norm(X[12:], axis=1).max())


WRONG_PAIRS = [5, WORD, X[:12], (X[:12],), (X[:12], LABELS[:12], PLACES[:12]), {"X": X[:12], "y": LABELS[:12]}]


@both
@pytest.mark.parametrize("validation", WRONG_PAIRS, ids=lambda pair: type(pair).__name__)
def test_validation_rows_must_be_a_pair(case, validation):
    with pytest.raises(InvalidArgument, match=r"validation: must be a pair \(X, y\)"):
        fit(case, **held_out(case), validation=validation)


@both
def test_bad_validation_rows_are_refused_not_quoted_and_cost_nothing(case):
    ledger = dpb.Ledger(dpb.Budget(2.0, 0.01))
    good, bad = (X[:12], case.y[:12]), np.where(np.arange(12)[:, None] == 3, np.nan, NUMBER + X[:12])
    pairs = [(bad, good[1]), (bad.astype(str), good[1]), (NUMBER, good[1]), (good[0], np.full(12, WORD))]
    pairs += [(good[0], None), (good[0], good[1][:11]), (good[0], [WORD, NUMBER] * 6), (good[0], bad[:, 0])]
    pairs += [(good[0], np.full(12, int(NUMBER)))] if case is CLASSIFIER else []
    for pair in pairs:
        error = check_silent(lambda pair=pair: fit(case, **held_out(case), validation=pair, ledger=ledger))
        assert isinstance(error, InvalidRecords)
    with pytest.raises(ValueError, match="X has 2 features"):
        fit(case, **held_out(case), validation=(X[:12, :2], case.y[:12]))
    assert ledger.entries == ()


@both
def test_caveats_of_validation_rows_are_carried_along(case):
    rows = dpb.EncodedRows(X, data_norm=1.0, caveats=["the range of 'age' was taken from the data"])
    model = case.make()
    with pytest.warns(PrivacyLeakWarning, match="range of 'age'") as caught:
        model.fit(X[12:], case.y[12:], sources=PLACES[12:], validation=(rows[:12], case.y[:12]))
    assert len([warning for warning in caught if warning.category is PrivacyLeakWarning]) == 1
    assert model.privacy_.caveats == rows.caveats
    with pytest.warns(PrivacyLeakWarning, match="range of 'age'"):  # once, though both have it
        model.fit(rows[12:], case.y[12:], sources=PLACES[12:], validation=(rows[:12], case.y[:12]))
    assert model.privacy_.caveats == rows.caveats


@both
def test_sources_travel_through_a_pipeline(case):
    pipeline = make_pipeline(dpb.BoundedEncoder(ranges=dict.fromkeys(range(3), (-1, 1))), case.make(data_norm=None))
    step = pipeline.steps[-1][0]
    pipeline.fit(X, case.y, **{f"{step}__sources": PLACES})
    assert pipeline[-1].source_weights_.shape == (2,)
    assert pipeline.predict(X).shape == NUMBERS.shape
