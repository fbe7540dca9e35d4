"""Wrong labels: how often which class is taken for which is found, and the model does not follow them."""

import numpy as np
import pytest
from application_data import COLUMNS, NO_PRIVACY, parts, planned, softmax_labels, solved, unit_rows
from sklearn.linear_model import LogisticRegression

import dpbilevel as dpb
from dpbilevel.applications import confusion, label_noise
from dpbilevel.errors import InvalidArgument

FLIPPED = 0.4  # of the records of class 0 are labelled 1
CLASSES = 3
TRUTH = np.zeros((COLUMNS, CLASSES))
TRUTH[:CLASSES] = 10 * np.eye(CLASSES) - 3


def draw(number, clean, seed):
    """Lower records with wrong labels, upper ones with right labels, and 4,000 more to test on."""
    rng = np.random.default_rng(seed)
    rows = unit_rows(rng, number + clean + 4000)
    labels = softmax_labels(rng, rows @ TRUTH)
    lower, rest = parts(number, rows, labels)
    wrong = (lower[1] == 0) & (rng.uniform(size=number) < FLIPPED)
    return (lower[0], np.where(wrong, 1, lower[1]).astype(np.int32)), *parts(clean, *rest)


def accuracy(y, rows, labels):
    return np.mean((rows @ y).argmax(axis=1) == labels)


def uncorrected(lower, upper):
    """The model that believes every label, trained on all records."""
    rows, labels = (np.concatenate(both) for both in zip(lower, upper, strict=True))
    return LogisticRegression(C=1e4, fit_intercept=False, max_iter=1000).fit(rows, labels).coef_.T


@pytest.mark.slow
def test_confusions_are_found_and_the_model_does_not_follow_them():
    lower, upper, test = draw(3000, 1000, 2)
    solution = solved(label_noise(columns=COLUMNS, classes=CLASSES), lower, upper, NO_PRIVACY)
    found = np.asarray(confusion(solution.x))
    np.testing.assert_allclose(found, [[1 - FLIPPED, FLIPPED, 0], [0, 1, 0], [0, 0, 1]], atol=0.12)
    assert found[0, 1] == found[~np.eye(CLASSES, dtype=bool)].max()
    assert accuracy(solution.y, *test) > accuracy(uncorrected(lower, upper), *test) + 0.03
    assert accuracy(solution.y, *test) > accuracy(TRUTH, *test) - 0.02


@pytest.mark.slow
def test_confusions_are_found_privately():
    lower, upper, test = draw(5000, 1000, 1)
    solution = solved(label_noise(columns=COLUMNS, classes=CLASSES), lower, upper, dpb.Budget(3.0, 1e-6))
    found = np.asarray(confusion(solution.x))
    assert found[0, 1] > 0.2
    assert found[0, 1] > 2 * np.delete(found[~np.eye(CLASSES, dtype=bool)], 0).max()
    assert accuracy(solution.y, *test) > accuracy(uncorrected(lower, upper), *test) + 0.03
    assert solution.privacy.epsilon() == pytest.approx(3.0, abs=1e-6)


# -------------------------------------------------------------------------------------------------------- the matrix


def test_confusion_leaves_out_the_diagonal():
    """Row c holds odds against being right, in the order of the other classes."""
    odds = np.log(np.array([[0.25, 0.5], [2.0, 4.0], [1.0, 0.5]]))
    expected = [[1, 0.25, 0.5], [2.0, 1, 4.0], [1.0, 0.5, 1]]
    np.testing.assert_allclose(confusion(odds), expected / np.sum(expected, axis=1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(confusion(np.log([[1.0], [3.0]])), [[0.5, 0.5], [0.75, 0.25]], rtol=1e-6)


def test_the_lower_loss_is_the_likelihood_of_the_given_label():
    rng = np.random.default_rng(0)
    problem = label_noise(columns=4, classes=3)
    x, y, row = rng.normal(size=(3, 2)), rng.normal(size=(4, 3)), rng.normal(size=4)
    chances = np.exp(row @ y) / np.exp(row @ y).sum()
    for label in range(3):
        given = -np.log(chances @ np.asarray(confusion(x))[:, label])
        assert float(problem.lower_loss(x, y, (row, label))) == pytest.approx(given, rel=1e-5)
        assert float(problem.upper_loss(x, y, (row, label))) == pytest.approx(-np.log(chances[label]), rel=1e-5)


def test_without_confusions_the_losses_of_both_levels_agree():
    rng = np.random.default_rng(1)
    problem, never = label_noise(columns=4, classes=3), np.full((3, 2), -40.0)
    y, row = rng.normal(size=(4, 3)), rng.normal(size=4)
    losses = [float(loss(never, y, (row, 1))) for loss in (problem.lower_loss, problem.upper_loss)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


# ------------------------------------------------------------------------------------------------------- the problem


def test_equal_arguments_give_the_same_problem():
    assert label_noise(columns=4, classes=3) is label_noise(columns=4, classes=np.int64(3), row_norm=1)
    assert label_noise(columns=4, classes=3) is not label_noise(columns=4, classes=3, ridge=0.1)


def test_nothing_is_closed_over_and_no_constants_are_claimed():
    problem = label_noise(columns=COLUMNS, classes=CLASSES)
    assert problem.constants is None
    records = (np.zeros((60, COLUMNS), np.float32), np.zeros(60, np.int32))
    plan = planned(problem, records, records)
    assert plan.parameters["training pass: share of the cross derivative"][0] > 0
    assert set(plan.releases[-1].contributions) == {"upper", "lower"}, "clean records train too"


BAD = {
    "one class": ({"classes": 1}, "classes=1: must be at least 2"),
    "no number of classes": ({"classes": None}, "classes=None: required with loss='softmax'"),
    "classes a list": ({"classes": [0, 1]}, "classes=[0, 1]: must be a whole number"),
    "no columns": ({"columns": 0}, "columns=0: must be a whole number >= 1"),
    "ridge zero": ({"ridge": 0.0}, "ridge=0.0: must be a finite number > 0"),
    "row norm": ({"row_norm": -1.0}, "row_norm=-1.0: must be a finite number > 0"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(InvalidArgument) as caught:
        label_noise(**{"columns": 3, "classes": 3} | change)
    assert str(caught.value).startswith(message)
