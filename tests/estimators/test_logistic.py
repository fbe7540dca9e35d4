"""DPLogisticRegressionCV: scikit-learn's own coefficients without noise, labels of any kind, probabilities."""

import math

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from support.estimator_cases import CASES, LABELS, NUMBER, SETTLED, WORD, X, check_silent, fitted, released

from dpbilevel.encoding.columns import read_table
from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.estimators import DPLogisticRegressionCV
from dpbilevel.estimators.rows import scaling, split_intercept, with_intercept

LOGISTIC = CASES["logistic"]
THREE = np.digitize(X[:, 0] + 0.3 * X[:, 1], [-0.2, 0.2])
INFINITE = float("inf")

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning")


def reference(model, y):
    """Coefficients and intercepts by scikit-learn, from the same rows and penalties."""
    table = read_table(X)
    scaled, _ = scaling(table, model.data_norm, None)
    rows = with_intercept(scaled.rows(table)).astype(np.float64)
    # scikit-learn has one penalty: a longer column of constants stands for the smaller penalty of the intercept.
    longer = math.sqrt(model.penalties_[0] / (0.01 / len(X)))  # the intercept has the smallest penalty
    rows[:, -1] *= longer
    solver = LogisticRegression(
        C=1 / (len(X) * model.penalties_[0]), fit_intercept=False, tol=1e-10, max_iter=10_000
    ).fit(rows, y)
    weights = solver.coef_.T
    weights[-1] *= longer
    return scaled.unscaled(*split_intercept(weights))


@pytest.mark.parametrize(("y", "classes"), [(LABELS, [0, 1]), (THREE, [0, 1, 2])], ids=["two", "three"])
def test_without_noise_coefficients_are_scikit_learns(y, classes):
    model = LOGISTIC.fit(y=y, classes=classes, epsilon=INFINITE, method=SETTLED)
    coefficients, intercepts = reference(model, y)
    assert model.coef_.shape == (1 if len(classes) == 2 else 3, 3)
    assert model.intercept_.shape == model.coef_.shape[:1]
    np.testing.assert_allclose(model.coef_, coefficients, rtol=1e-3, atol=1e-4)
    # Softmax has one intercept too many: what is added to all of them means nothing.
    apart = (
        (model.intercept_, intercepts)
        if len(classes) == 2
        else (model.intercept_ - model.intercept_.mean(), intercepts - intercepts.mean())
    )
    np.testing.assert_allclose(*apart, rtol=1e-3, atol=1e-4)


def test_tuning_finds_penalties_that_predict_as_well_as_scikit_learns():
    draws = np.random.default_rng(0)
    rows = draws.normal(size=(2000, 3)) / 3
    y = draws.random(2000) < expit(6 * rows[:, 0] - 3 * rows[:, 1] + 1)
    model = DPLogisticRegressionCV(epsilon=INFINITE, data_norm=1.5, classes=[False, True]).fit(rows, y)
    other = LogisticRegression(C=1e4).fit(rows, y)
    assert model.penalties_[0] < 1e-3
    assert model.score(rows, y) > other.score(rows, y) - 0.01
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=0.05, atol=0.05)
    assert not model.privacy_.caveats
    assert model.privacy_.void


def test_probabilities_are_those_of_the_scores():
    model = fitted(LOGISTIC)
    scores = model.decision_function(X)
    np.testing.assert_allclose(model.predict_proba(X), np.stack([expit(-scores), expit(scores)], axis=1))
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(model.predict_proba(X)))
    np.testing.assert_array_equal(model.predict(X), model.predict_proba(X).argmax(axis=1))


@pytest.fixture(scope="module")
def of_three():
    return LOGISTIC.fit(y=THREE, classes=[0, 1, 2])


def test_many_classes_have_a_score_each(of_three):
    scores = of_three.decision_function(X)
    assert scores.shape == (60, 3)
    np.testing.assert_allclose(scores, X @ of_three.coef_.T + of_three.intercept_)
    np.testing.assert_allclose(of_three.predict_proba(X), softmax(scores, axis=1))
    np.testing.assert_array_equal(of_three.predict(X), scores.argmax(axis=1))


def test_labels_are_what_they_are_called(of_three):
    words = np.array(["low", "middle", "high"])
    named = LOGISTIC.fit(y=words[THREE], classes=["middle", "high", "low"])
    assert named.classes_.tolist() == ["middle", "high", "low"]
    assert set(named.predict(X)) <= set(words)
    # Columns of softmax are alike: with names in another order, the same noise would fall on other classes.
    for y, classes in ((10 * THREE, [0, 10, 20]), (np.array(["a", "b", "c"])[THREE], ("a", "b", "c"))):
        again = LOGISTIC.fit(y=y, classes=classes)
        np.testing.assert_array_equal(released(again), released(of_three))
        np.testing.assert_array_equal(again.predict(X), again.classes_[of_three.predict(X)])


def test_a_class_that_no_row_has_is_a_class_all_the_same():
    model = LOGISTIC.fit(y=np.zeros(60, int))
    assert model.classes_.tolist() == [0, 1]
    assert model.predict_proba(X).shape == (60, 2)


def test_fewer_than_two_classes_are_refused():
    for settings in ({"classes": [0]}, {"classes": None}):
        with pytest.raises(InvalidArgument, match="classes: must be two or more"):
            LOGISTIC.fit(y=np.zeros(60, int), **settings)


@pytest.mark.parametrize(
    "y",
    [np.where(LABELS == 1, WORD, "no"), np.where(LABELS == 1, int(NUMBER), 0), np.where(LABELS == 1, NUMBER, 0)],
    ids=["words", "whole numbers", "numbers"],
)
def test_labels_that_are_not_listed_are_refused_and_not_quoted(y):
    for classes in ([0, 1], ["no", "yes"]):
        assert isinstance(check_silent(lambda classes=classes: LOGISTIC.fit(y=y, classes=classes)), InvalidRecords)


def test_scores_are_accuracies():
    model, weights = fitted(LOGISTIC), np.arange(60.0)
    right = model.predict(X) == LABELS
    assert model.score(X, LABELS) == right.mean()
    assert model.score(X, LABELS, weights) == pytest.approx((weights * right).sum() / weights.sum())
    assert model.score(X, np.where(LABELS == 1, NUMBER, 0)) == (right & (LABELS == 0)).mean()  # never right, no error
    words = np.where(LABELS == 1, WORD, "no")
    assert isinstance(check_silent(lambda: model.score(X, words)), InvalidRecords)


@pytest.mark.filterwarnings("ignore::dpbilevel.PrivacyLeakWarning")
def test_cross_validation_scores_by_accuracy():
    everything = [(np.arange(60), np.arange(60))] * 2
    scores = cross_val_score(LOGISTIC.make(random_state=0), X, LABELS, cv=everything)
    assert scores.tolist() == [fitted(LOGISTIC).score(X, LABELS)] * 2
