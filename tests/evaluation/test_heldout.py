"""Held-out rows: what is refused is refused before the charge, in words that say nothing of a row."""

import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import LinearSVC

import dpbilevel as dpb

BUDGET = dpb.Budget(5.0, 1e-3)
EXACT = dpb.Budget(float("inf"))
ROWS = np.linspace(-1, 1, 60)[:, None]
LABELS = (ROWS[:, 0] > 0).astype(int)
CLASSIFIER = LogisticRegression().fit(ROWS, LABELS)
SECRET = "7654.321"


def bare(answer):
    return lambda rows: answer


class Claims:
    """A classifier whose parts do not fit together."""

    def __init__(self, classes, probability=None):
        self.classes_ = classes
        self.probability = probability

    def predict(self, rows):
        return np.zeros(len(rows), int)

    def predict_proba(self, rows):
        return self.probability


def changed(**changes):
    return {"model": CLASSIFIER, "records": (ROWS, LABELS), "budget": BUDGET} | changes


REFUSED = {
    "not a pair": (changed(records=ROWS), "must be a pair"),
    "three things": (changed(records=(ROWS, LABELS, LABELS)), "must be a pair"),
    "library's records": (changed(records=dpb.Records(both=ROWS)), "must be a pair"),
    "lengths differ": (changed(records=(ROWS, LABELS[:-1])), "lengths differ"),
    "rows of no length": (changed(records=(3.0, LABELS)), "lengths differ"),
    "empty": (changed(records=(ROWS[:0], LABELS[:0])), "empty"),
    "empty lists": (changed(records=([], [])), "empty"),
    "missing number": (changed(records=(ROWS, np.where(LABELS, np.nan, 0.0))), "none missing"),
    "infinite number": (changed(records=(ROWS, np.where(LABELS, np.inf, 0.0))), "none missing"),
    "missing string": (changed(records=(ROWS, np.array(["a", None] * 30, object))), "none missing"),
    "mixed": (changed(records=(ROWS, ["a", 1] * 30)), "all strings"),
    "masked": (changed(records=(ROWS, np.ma.array(LABELS, mask=LABELS == 1))), "none missing"),
    "targets in a column": (changed(records=(ROWS, LABELS[:, None])), "one per row"),
    "other labels": (changed(records=(ROWS, LABELS.astype(str))), "y holds strings"),
    "other labels, loss": (changed(records=(ROWS, LABELS.astype(str)), metric="loss"), "y holds strings"),
    "other labels, objects": (changed(model=Claims(np.array(["a", "b"], object))), "y holds numbers"),
    "strings for a regressor": (
        changed(model=bare(ROWS[:, 0]), records=(ROWS, LABELS.astype(str)), metric="loss", loss_bound=1.0),
        "needs numbers",
    ),
    "a model class": (changed(model=LogisticRegression), "not LogisticRegression"),
    "no model": (changed(model=3.0), "not float"),
    "not fitted": (changed(model=LogisticRegression()), "fit it first"),
    "several outputs": (changed(model=Claims([[0, 1], [0, 1, 2]])), "classes_"),
    "predictions in a column": (changed(model=bare(ROWS)), "another shape"),
    "too few predictions": (changed(model=bare(LABELS[:-1])), "another shape"),
    "no predictions": (changed(model=bare(None)), "another shape"),
    "dates": (changed(model=bare(np.zeros(60, "M8[s]"))), "another type"),
    "strings as numbers": (changed(model=bare(np.full(60, "x")), metric="loss", loss_bound=1.0), "real numbers"),
    "probabilities in a row": (
        changed(model=Claims([0, 1], np.zeros(60)), metric="loss"),
        "each row and each of classes_",
    ),
    "no probabilities": (changed(model=LinearSVC().fit(ROWS, LABELS), metric="loss"), "need predict_proba"),
    "calibration of a function": (changed(model=bare(LABELS), metric="calibration"), "needs a classifier"),
    "unknown metric": (changed(metric="f1"), "must be one of"),
    "unhashable metric": (changed(metric=(["loss"],)), "must be one of"),
    "metric twice": (changed(metric=("loss", "loss")), "without duplicates"),
    "no metric": (changed(metric=()), "at least one"),
    "no bound": (changed(model=bare(ROWS[:, 0]), metric="loss"), "loss_bound=None: required"),
    "bound zero": (changed(metric="loss", loss_bound=0.0), "loss_bound=0.0"),
    "bound infinite": (changed(metric="loss", loss_bound=float("inf")), "loss_bound=inf"),
    "no bins": (changed(metric="calibration", bins=0), "bins=0"),
    "class of no one": (changed(metric="calibration", positive_class="yes"), "positive_class='yes'"),
    "class an array": (changed(metric="calibration", positive_class=np.array([0, 1])), "one of the model's classes_"),
    "class of three": (
        changed(model=Claims([0, 1, 2], np.zeros((60, 3))), metric="calibration"),
        "positive_class=None: required for a model of 3 classes",
    ),
    "scores of a function": (changed(model=bare(LABELS), metric="auc"), '"auc" needs a classifier'),
    "R² of a classifier": (changed(metric="r2"), "for models that predict numbers"),
    "R² without a range": (changed(model=bare(ROWS[:, 0]), metric="r2"), "target_range=None: required"),
    "range reversed": (changed(model=bare(ROWS[:, 0]), metric="r2", target_range=(1, 0)), "low < high"),
    "range of words": (changed(model=bare(ROWS[:, 0]), metric="r2", target_range=("a", "b")), "low < high"),
    "range a number": (changed(model=bare(ROWS[:, 0]), metric="r2", target_range=1.0), "must be a pair"),
    "strings with a range": (
        changed(model=bare(ROWS[:, 0]), records=(ROWS, LABELS.astype(str)), metric="r2", target_range=(0, 1)),
        "needs numbers",
    ),
    "quantiles without bins": (
        changed(model=bare(ROWS[:, 0]), metric="error_quantiles"),
        "target_range=None: required",
    ),
    "edges that fall": (changed(metric="auc", edges=[0, 0.6, 0.5, 1]), "must increase"),
    "edges that end early": (changed(metric="auc", edges=[0, 0.5, 0.9]), "end at 1"),
    "edges of words": (changed(metric="auc", edges=["a", "b", "c"]), "increasing numbers"),
    "edges a number": (changed(metric="auc", edges=10), "increasing numbers"),
    "no groups": (changed(metric="group_accuracy", group_names=[0, 1]), "groups: must be"),
    "no names": (changed(metric="group_accuracy", groups=LABELS), "group_names: must list"),
    "names twice": (changed(metric="group_accuracy", groups=LABELS, group_names=[0, 0]), "without duplicates"),
    "too few groups": (changed(metric="group_accuracy", groups=LABELS[1:], group_names=[0, 1]), "one per row"),
    "missing group": (
        changed(metric="group_accuracy", groups=np.where(LABELS, np.nan, 0.0), group_names=[0, 1]),
        "none missing",
    ),
    "groups of another kind": (changed(metric="group_accuracy", groups=LABELS, group_names=["a"]), "both hold"),
    "groups for nothing": (changed(groups=LABELS), "only for"),
    "budget a number": (changed(budget=1.0), "budget: must be dpb.Budget"),
    "delta 1/n": (changed(budget=dpb.Budget(1.0, 1 / 60)), "must be below 1/n = 0.0167"),
    "ledger a budget": (changed(ledger=BUDGET), "ledger: must be dpb.Ledger"),
    "seed a float": (changed(seed=0.5), "seed=0.5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_before_the_charge(name):
    arguments, words = REFUSED[name]
    ledger = dpb.Ledger(BUDGET)
    with pytest.raises(dpb.InvalidArgument) as caught:
        dpb.evaluate(**({"ledger": ledger} | arguments))
    assert words in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert not ledger.entries


def quoting(rows):
    raise ValueError(f"could not convert {rows[0]}")


def quoting_in_a_warning(rows):
    warnings.warn(f"odd value {rows[0]}", stacklevel=1)
    return np.zeros(len(rows))


def test_what_a_model_says_of_a_row_when_it_fails_is_withheld():
    """The message of scikit-learn quotes the cell: that is what would leak."""
    cells = np.full((60, 1), SECRET + "x", object)
    with pytest.raises(ValueError, match=SECRET):
        CLASSIFIER.predict(cells)
    for model in (CLASSIFIER, quoting):
        ledger = dpb.Ledger(BUDGET)
        with pytest.raises(dpb.InvalidArgument, match="withheld") as caught:
            dpb.evaluate(model, (cells, LABELS), BUDGET, ledger=ledger)
        assert SECRET not in str(caught.value)
        assert caught.value.__context__ is None
        assert not ledger.entries


def test_warnings_of_a_model_are_withheld():
    colours = np.array([["red"], ["blue"]] * 30, object)
    model = make_pipeline(OneHotEncoder(handle_unknown="warn"), LogisticRegression()).fit(colours, LABELS)
    unseen = np.where(np.arange(60)[:, None] == 3, "green", colours)
    with pytest.warns(UserWarning, match="unknown"):
        model.predict(unseen)
    for speaking, rows in ((model, unseen), (quoting_in_a_warning, [SECRET] * 60)):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            dpb.evaluate(speaking, (rows, LABELS), BUDGET)
        assert not [str(one.message) for one in heard]


@pytest.mark.parametrize("budget", [BUDGET, EXACT], ids=["private", "not private"])
@pytest.mark.parametrize("worst", [np.nan, np.inf, -np.inf, 1e200, None], ids=str)
def test_predictions_that_are_not_finite_are_wrong_and_no_error(worst, budget):
    """Whether one row's prediction is finite is a fact about the row."""
    answer = [worst, *LABELS[1:].tolist()]
    released = dpb.evaluate(bare(answer), (ROWS, LABELS), budget, seed=0)
    assert 0 <= released.values["accuracy"] <= 1
    if not budget.is_private:
        assert released.values["accuracy"] == pytest.approx(59 / 60)
    released = dpb.evaluate(bare(answer), (ROWS, LABELS), budget, metric="loss", loss_bound=2.0, seed=0)
    assert 0 <= released.values["loss"] <= 2.0
    if not budget.is_private:
        assert released.values["loss"] == pytest.approx(2.0 / 60)


@pytest.mark.parametrize("budget", [BUDGET, EXACT], ids=["private", "not private"])
def test_probabilities_that_are_not_finite_are_the_worst_and_no_error(budget):
    probability = np.full((60, 2), 0.5)
    probability[:6] = [[np.nan, np.nan], [np.inf, 0], [-1, 2], [5, 5], [1e300, 0], [0, 0]]
    released = dpb.evaluate(
        Claims([0, 1], probability), (ROWS, LABELS), budget, metric=("accuracy", "loss", "calibration"), seed=0
    )
    assert np.isfinite(released.values["loss"])
    assert all(np.isfinite(part).all() for part in released.values["calibration"].values())


@pytest.mark.parametrize("dtype", [bool, np.int8, np.float32, object])
def test_targets_of_many_types_give_the_same_score(dtype):
    expected = dpb.evaluate(CLASSIFIER, (ROWS, LABELS), EXACT, metric=("accuracy", "loss")).values
    for targets in (LABELS.astype(dtype), LABELS.astype(dtype).tolist()):
        assert dpb.evaluate(CLASSIFIER, (ROWS, targets), EXACT, metric=("accuracy", "loss")).values == expected


@pytest.mark.parametrize("dtype", ["str", "object", np.dtypes.StringDType()], ids=str)
def test_labels_may_be_strings(dtype):
    words = np.where(LABELS == 1, "yes", "no")
    model = LogisticRegression().fit(ROWS, words)
    unknown = np.where(np.arange(60) == 5, "maybe", words)
    released = dpb.evaluate(model, (ROWS, unknown.astype(dtype)), EXACT, metric=("accuracy", "calibration"))
    assert released.values["accuracy"] == pytest.approx(np.mean(model.predict(ROWS) == unknown))
    assert released.values["calibration"]["positives"].sum() == pytest.approx((unknown == "yes").sum())
    assert "'yes'" in released.meanings["calibration"]
    said = dpb.evaluate(bare(words.astype(dtype)), (ROWS, unknown), EXACT)
    assert said.values["accuracy"] == pytest.approx(59 / 60)


def test_data_frames_serve_and_their_missing_values_are_no_exception():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": ROWS[:, 0]})
    model = LogisticRegression().fit(frame, LABELS)
    expected = dpb.evaluate(CLASSIFIER, (ROWS, LABELS), EXACT).values
    for targets in (pd.Series(LABELS, index=np.arange(60)[::-1]), pd.Series(LABELS, dtype="Int64")):
        assert dpb.evaluate(model, (frame, targets), EXACT).values == expected
    with pytest.raises(dpb.InvalidRecords, match="none missing"):
        dpb.evaluate(model, (frame, pd.Series([1, None] * 30, dtype="Int64")), EXACT)
    gaps = pd.Series([pd.NA, *LABELS[1:].tolist()], dtype="Int64")
    assert dpb.evaluate(bare(gaps), (frame, LABELS), EXACT).values["accuracy"] == pytest.approx(59 / 60)
    words = pd.Series(np.where(LABELS == 1, "yes", "no"))
    for dtype in ("category", "string"):
        assert dpb.evaluate(bare(words.astype(dtype)), (frame, words), EXACT).values == {"accuracy": 1.0}


def test_rows_may_be_sparse():
    from scipy.sparse import csr_array

    expected = dpb.evaluate(CLASSIFIER, (ROWS, LABELS), EXACT, metric="loss").values["loss"]
    released = dpb.evaluate(CLASSIFIER, (csr_array(ROWS), LABELS), EXACT, metric="loss")
    assert released.values["loss"] == pytest.approx(expected)
