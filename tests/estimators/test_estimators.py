"""What all estimators have in common: the contract of scikit-learn, tables of every kind, settings that are refused."""

import functools
import pickle
import pydoc
import re
import warnings

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import has_fit_parameter
from support.estimator_cases import CASES, ENCODER, PLACES, QUICK, X, every_case, fitted, released, said, untrained

import dpbilevel as dpb
from dpbilevel import estimators, planning
from dpbilevel.errors import (
    DPBilevelError,
    InvalidArgument,
    InvalidRecords,
    PrivacyLeakWarning,
    UtilityWarning,
)

EXPECTED_FAILURES = {
    "check_dtype_object": "it wants a TypeError for a cell that is a dictionary; whatever is wrong with a cell, the "
    "error is InvalidRecords, because the kind of an exception would tell of a record"
}

# Of estimators whose fit has weights of rows.
WITH_WEIGHTS = {
    "check_all_zero_sample_weights_error": "it wants an error where all weights are zero, which would tell of weights"
}
TRAINED_WITH_WEIGHTS = {
    f"check_sample_weight_equivalence_on_{kind}_data": "it compares two fits, which have different noise"
    for kind in ("dense", "sparse")
}

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning")


# ---- scikit-learn's contract


def find_what_is_wrong(estimator, *, trained=False):
    expected = {**EXPECTED_FAILURES}
    if has_fit_parameter(estimator, "sample_weight"):
        expected |= WITH_WEIGHTS | (TRAINED_WITH_WEIGHTS if trained else {})
    results = check_estimator(estimator, expected_failed_checks=expected, on_fail=None, on_skip=None)
    found = {status: {r["check_name"] for r in results if r["status"] == status} for status in ("failed", "xfail")}
    assert found == {"failed": set(), "xfail": set(expected)}
    assert len(results) > 40


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@every_case
def test_scikit_learn_finds_nothing_else_wrong(case, monkeypatch):
    # Each of the hundred fits has a shape of its own, and compiling them is nine tenths of the time. Of what is left,
    # three quarters are traces of the programs that would run, which one estimator keeps.
    monkeypatch.setattr(dpb.Records, "execute", untrained)
    if case is not CASES["ridge"]:
        monkeypatch.setattr(planning, "check_traceable", lambda *program: None)
    find_what_is_wrong(case.kind(method=QUICK))


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [QUICK, None], ids=["quick", "defaults"])
@every_case
def test_scikit_learn_finds_nothing_else_wrong_with_models_that_are_trained(case, method):
    find_what_is_wrong(case.kind(method=method), trained=True)


@every_case
def test_a_fit_leaves_what_scikit_learn_expects(case):
    model = fitted(case)
    assert model.n_features_in_ == 3
    assert not hasattr(model, "feature_names_in_")
    assert model.get_params()["data_norm"] == 1.0
    shapes = {"ridge": ((3,), ()), "weighted regressor": ((3,), ()), "multitask": ((2, 3), (2,))}
    (name,) = [name for name, known in CASES.items() if known is case]
    assert (np.shape(model.coef_), np.shape(model.intercept_)) == shapes.get(name, ((1, 3), (1,)))
    assert model.privacy_ is model.solution_.privacy


@every_case
def test_predictions_are_linear_in_the_columns_as_given(case):
    model = case.fit(100 * X, bounds=(-90, [80, 90, 110]), data_norm=None)
    scores = 100 * X @ np.atleast_2d(model.coef_).T + model.intercept_
    if hasattr(model, "task_names_"):
        expected = np.where(PLACES == "east", scores[:, 0], scores[:, 1])
        np.testing.assert_allclose(model.predict(100 * X, PLACES), expected)
    elif hasattr(model, "classes_"):
        np.testing.assert_allclose(model.decision_function(100 * X), scores[:, 0])
        np.testing.assert_array_equal(model.predict(100 * X), scores[:, 0] > 0)
    else:
        np.testing.assert_allclose(model.predict(100 * X), scores[:, 0])


@every_case
def test_scalings_are_undone(case):
    plain = case.fit().predict(X[:20])
    np.testing.assert_allclose(case.fit(7 * X, data_norm=7.0).predict(7 * X[:20]), plain, rtol=1e-5)
    bounds = (np.array([-1.0, -2.0, -0.5]), np.array([1.0, 0.5, 0.5]))
    moved = tuple(bound * [7, 0.1, 30] + [5, -3, 100] for bound in bounds)
    plain = case.fit(bounds=bounds, data_norm=None).predict(X[:20])
    again = case.fit(X * [7, 0.1, 30] + [5, -3, 100], bounds=moved, data_norm=None)
    np.testing.assert_allclose(again.predict(X[:20] * [7, 0.1, 30] + [5, -3, 100]), plain, rtol=1e-4, atol=1e-5)


def tables():
    yield "list", X.tolist()
    yield "float32", X.astype(np.float32)
    yield "objects", X.astype(object)
    yield "columns first", np.asfortranarray(X)
    yield "EncodedRows", dpb.EncodedRows(X, data_norm=5.0)
    for kind in ("csr_matrix", "csc_array", "coo_matrix"):
        yield kind, getattr(scipy.sparse, kind)(X)
    columns = {f"column {at}": X[:, at] for at in range(3)}
    pandas, polars, arrow = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    yield "pandas", pandas.DataFrame(columns)
    yield "pandas, nullable", pandas.DataFrame(columns).astype("Float64")
    yield "polars", polars.DataFrame(columns)
    yield "Arrow", arrow.table(columns)


@every_case
def test_tables_of_every_kind_give_the_same_fit(case):
    expected, predictions = released(fitted(case)), fitted(case).predict(X)
    for name, table in tables():
        model = case.fit(table)
        np.testing.assert_array_equal(released(model), expected, err_msg=name)
        # A matrix product with columns first may round differently in the last bit.
        np.testing.assert_allclose(model.predict(table), predictions, rtol=1e-14, err_msg=name)


@every_case
def test_rows_on_disk_give_the_same_model_up_to_rounding(case, tmp_path):
    """Rows of a role are then summed in another order."""
    model = case.fit(storage=tmp_path)
    np.testing.assert_allclose(released(model), released(fitted(case)), rtol=1e-3, atol=1e-4)
    assert not list(tmp_path.iterdir())


@every_case
def test_whole_numbers_are_numbers(case):
    whole = np.round(9 * X)
    expected = released(case.fit(whole, data_norm=9.0))
    for dtype in (np.int64, np.int8):
        np.testing.assert_array_equal(released(case.fit(whole.astype(dtype), data_norm=9.0)), expected)


@every_case
def test_targets_of_every_kind_give_the_same_fit(case):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    expected = released(fitted(case))
    for y in (case.y.tolist(), tuple(case.y), pandas.Series(case.y, index=range(60, 0, -1)), polars.Series(case.y)):
        np.testing.assert_array_equal(released(case.fit(y=y)), expected)
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed"):
        np.testing.assert_array_equal(released(case.fit(y=case.y[:, None])), expected)


@every_case
def test_names_of_columns_are_remembered(case):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    model = case.fit(frame)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["c", "b", "a"]])
    with pytest.raises(ValueError, match=r"X has 2 features, but .* is expecting 3"):
        fitted(case).predict(X[:, :2])
    with pytest.raises(NotFittedError):
        case.make().predict(X)


@every_case
def test_parameters_are_copied_and_set(case):
    copied = clone(fitted(case))
    assert {**copied.get_params(), "method": None} == {**fitted(case).get_params(), "method": None}
    assert copied.method == QUICK
    assert not hasattr(copied, "solution_")
    assert copied.set_params(epsilon=2.0).epsilon == 2.0
    ledger = dpb.Ledger(dpb.Budget(1.0, 1e-3))
    assert clone(case.make(ledger=ledger)).ledger is ledger


@every_case
def test_pickled_models_predict_the_same(case):
    again = pickle.loads(pickle.dumps(fitted(case)))
    np.testing.assert_array_equal(again.predict(X), fitted(case).predict(X))
    assert again.privacy_.sentence() == fitted(case).privacy_.sentence()


@every_case
def test_a_pipeline_carries_the_declared_norm_along(case):
    pipeline = make_pipeline(clone(ENCODER), case.make(data_norm=None))
    model = pipeline[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyLeakWarning)
        pipeline.fit(X, case.y, **case.more(f"{pipeline.steps[-1][0]}__"))
    assert model.privacy_.caveats == ()
    np.testing.assert_array_equal(model._scaling_.size, np.ones(3))
    np.testing.assert_array_equal(pipeline.predict(X), model.predict(pipeline[0].transform(X)))


@every_case
def test_a_pipeline_carries_caveats_along(case):
    pipeline = make_pipeline(dpb.BoundedEncoder(ranges={0: (-1, 1), 1: (-1, 1)}), case.make(data_norm=None))
    with pytest.warns(PrivacyLeakWarning, match="column 2 was not declared") as caught:
        pipeline.fit(X, case.y, **case.more(f"{pipeline.steps[-1][0]}__"))
    assert len([warning for warning in caught if warning.category is PrivacyLeakWarning]) == 2  # encoder and estimator
    assert pipeline[-1].privacy_.caveats == pipeline[0].caveats_


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_in_a_pipeline_have_lost_the_norm_and_it_is_said(library):
    pytest.importorskip(library)
    encoder, case = clone(ENCODER).set_output(transform=library), CASES["ridge"]
    pipeline = make_pipeline(encoder, case.make(data_norm=None))
    with pytest.warns(PrivacyLeakWarning, match="data_norm was not declared"):
        pipeline.fit(X, case.y)
    assert pipeline[-1].feature_names_in_.tolist() == ["x0", "x1", "x2"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyLeakWarning)
        pipeline.set_params(dpridgecv__data_norm=1.0).fit(X, case.y)


@pytest.mark.parametrize("kind", [*(getattr(estimators, name) for name in estimators.__all__), dpb.BoundedEncoder])
def test_help_explains_every_setting(kind):
    text = pydoc.render_doc(kind, renderer=pydoc.plaintext)
    for name in kind().get_params():
        assert len(re.findall(rf"^ *\|? +{name}: \S", text, re.MULTILINE)) == 1, name


# ---- rows and settings that cannot be used


@every_case
def test_invalid_rows_count_for_nothing(case):
    def fit(row, y, **settings):
        rows, targets = X.copy(), case.y.copy()
        rows[17], targets[17] = row, y
        return released(case.fit(rows, targets, invalid="zero", **settings))

    bounds = {"bounds": (-1, 1), "data_norm": None}
    for settings in ({}, bounds):
        expected = fit([np.nan, 0.0, 0.0], 0, **settings)
        for row in ([0.1, np.inf, 0.2], [-np.inf, 0.3, np.nan]):
            np.testing.assert_array_equal(fit(row, 1, **settings), expected)
        assert (fit([0.1, 0.1, 0.1], 1, **settings) != expected).any()


@every_case
def test_missing_cells_are_taken_for_the_middle_when_predicting(case):
    model = case.fit(bounds=(-1, [3, 1, 1]), data_norm=None, invalid="zero")
    missing, middle = np.array([[np.nan, 0.2, np.inf]]), np.array([[1.0, 0.2, 0.0]])
    np.testing.assert_array_equal(model.predict(missing), model.predict(middle))
    with pytest.raises(InvalidRecords, match=r"X: contains NaN.*pass invalid=\"zero\""):
        model.set_params(invalid="refuse").predict(missing)


WRONG = {
    "epsilon": ["1", None, True, -1.0, 0, float("nan"), np.array([1.0, 2.0])],
    "delta": ["1", True, -1.0, 0.0, 1.0, 0.5, [1e-3]],
    "adjacency": ["add-remove", None, 1],
    "data_norm": ["1", True, -1.0, 0.0, float("inf"), 10**400, [1.0]],
    "bounds": ["ab", 1.0, (1, 0), (0, 0), (0, np.nan), (0, [1, 2]), (0, 1, 2), ("low", "high"), (0, 10**400)],
    "validation_fraction": ["half", None, True, 0, 1, -0.5, float("nan"), [0.2]],
    "split_seed": ["0", None, True, -1, 0.5],
    "method": ["tracking", 5, dpb.Tracking],
    "ledger": ["mine", dpb.Budget(1.0, 1e-3), dpb.Ledger],
    "invalid": ["drop", None, True],
    "noise": ["off", None, True],
    "random_state": ["0", True, 0.5, -1, np.random.RandomState(0)],
    "classes": [5, "ab", [], [0, 0], [0, "a"], [0, np.nan], [[0, 1]], object()],
    "groups": [5, "abc", [0, 1], [0, 1, "a"], [[0], [1, 2], [3]], [0.5, 1, 2], [None, 1, 2]],
    "target_range": [5, "ab", (1, 0), (0, 0), (0, np.inf), (0, "a"), (0, 1, 2), (0, 10**400), {0: 1, 2: 3}],
    "source_names": [5, "ab", [], ["east", "east"], ["east", 1], object()],
    "task_names": [5, "ab", [], ["east", "east"], ["east", 1], object()],
    "dimension": ["2", None, True, 0, -1, 1.5],
    "largest_weight": ["2", True, 0, -1.0, float("nan"), float("inf")],
    "class_weight": ["balanced", 5, [1, 2], {0: 1.0}, {0: 1.0, 1: -1.0}, {0: 1.0, 1: "a"}],
    "smooth": ["yes", None, 1, 0.5, True],  # rows of plain columns have nothing to smooth
    "rows_per_unit": ["2", True, 0, -1, 1.5],
    "mean_rows": ["2", True, 0, float("nan"), [1.0]],  # without rows_per_unit, too
    "unit_ids": [5, "ab", [1, 1], [1, 2], object()],  # likewise
    "devices": ["2", True, 0, -1, 1.5, 1000],
    "storage": ["nowhere", 5, True, ["."]],
}


@every_case
def test_wrong_settings_are_refused_by_fit_with_their_name(case):
    names = set(case.make().get_params()) & set(WRONG)
    assert names == set(case.make().get_params())
    for name in names:
        for value in WRONG[name]:
            settings = {"data_norm": None} if name == "bounds" else {}
            model = case.make(**{**settings, name: value})  # which never raises
            text, error = said(functools.partial(model.fit, X, case.y, **case.more()))
            assert isinstance(error, DPBilevelError), (name, value)
            assert str(error).startswith(name), text
            assert not hasattr(model, "solution_")


def test_rows_are_divided_among_devices():
    """Several of them: tests/privacy/test_shards.py."""
    case = CASES["ridge"]
    divided = case.fit(devices=1)
    assert divided.solution_.parameters["devices"][0] == 1
    assert "devices" not in fitted(case).solution_.parameters
    np.testing.assert_allclose(released(divided), released(fitted(case)), rtol=1e-4, atol=1e-5)


@every_case
def test_a_norm_and_bounds_are_too_much(case):
    with pytest.raises(InvalidArgument, match="data_norm, bounds: must not both be given"):
        case.fit(bounds=(-1, 1))


@every_case
def test_few_rows_are_reported_with_the_planned_noise(case):
    model = case.make(epsilon=0.1)
    with pytest.warns(UtilityWarning, match=r"60 records are few for epsilon = 0\.1") as caught:
        model.fit(X, case.y, **case.more())
    (warning,) = [warning for warning in caught if warning.category is UtilityWarning]
    ratio = model.solution_.parameters["training: noise to signal"][0]
    assert f"is {ratio:.2g}; more records" in str(warning.message)
    assert warning.filename == __file__


def test_enough_rows_are_not_reported_and_too_few_validation_rows_are():
    rows = np.random.default_rng(1).normal(size=(4000, 3)) / 3
    ledger = dpb.Ledger(dpb.Budget(2.0, 0.01))
    model = CASES["ridge"].make(method=dpb.Tracking(), validation_fraction=0.0025, ledger=ledger)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UtilityWarning)  # which stops the fit before its charge, and before it compiles
        with pytest.raises(UtilityWarning, match=r"more noise than signal: .*validation pass") as caught:
            model.fit(rows, rows[:, 0])
    ratio, least = re.search(r"is (\S+) with 10 records; about ([\d,]+) records would", str(caught.value)).groups()
    assert int(least.replace(",", "")) == pytest.approx(10 * float(ratio), rel=0.05)
    assert ledger.entries == ()
