"""DPMultiTaskRidge: a head for each task on features that all share, and what becomes of tasks it does not know."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from support.estimator_cases import CASES, NUMBER, NUMBERS, PLACES, WORD, X, check_silent, fitted, released

from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.estimators import DPMultiTaskRidge, multitask

CASE = CASES["multitask"]

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning")


def fit(tasks=PLACES, **settings):
    return CASE.make(**{"random_state": 0, **settings}).fit(X, NUMBERS, tasks=tasks)


@pytest.fixture(scope="module")
def many_tasks():
    draws = np.random.default_rng(0)
    rows, tasks = draws.normal(size=(3000, 4)) / 3, draws.choice(["a", "b", "c"], 3000)
    slopes, levels = {"a": 4.0, "b": -4.0, "c": 8.0}, {"a": 0.0, "b": 5.0, "c": -5.0}
    direction = np.array([0.6, 0.8, 0.0, 0.0])
    y = rows @ direction * [slopes[task] for task in tasks] + [levels[task] for task in tasks]
    model = DPMultiTaskRidge(
        epsilon=float("inf"), dimension=1, data_norm=1.6, task_names=["a", "b", "c"], target_range=(-15, 15)
    ).fit(rows, y, tasks=tasks)
    return model, rows, y, tasks


def test_without_noise_every_task_is_learnt(many_tasks):
    model, rows, y, tasks = many_tasks
    assert model.score(rows, y, tasks) > 0.97
    for at, task in enumerate(model.task_names_):
        alone = LinearRegression().fit(rows[tasks == task], y[tasks == task])
        np.testing.assert_allclose(model.coef_[at], alone.coef_, atol=1.0)
        assert model.intercept_[at] == pytest.approx(alone.intercept_, abs=0.5)


def test_heads_share_one_representation(many_tasks):
    model, *_ = many_tasks
    assert (model.representation_.shape, model.coef_.shape, model.intercept_.shape) == ((4, 1), (3, 4), (3,))
    assert np.linalg.matrix_rank(model.coef_, tol=1e-6 * np.abs(model.coef_).max()) == 1
    direction = model.representation_[:, 0] / np.linalg.norm(model.representation_)
    assert abs(direction @ [0.6, 0.8, 0, 0]) > 0.98


def test_predictions_are_those_of_the_tasks_head(many_tasks):
    model, rows, _, tasks = many_tasks
    at = np.searchsorted(model.task_names_, tasks)
    expected = (rows * model.coef_[at]).sum(axis=1) + model.intercept_[at]
    np.testing.assert_allclose(model.predict(rows, tasks), expected)
    np.testing.assert_allclose(model.predict(rows, tasks.tolist()), expected)


def test_unknown_tasks_are_predicted_by_the_mean_head():
    model = fitted(CASE)
    mean = X @ model.coef_.mean(axis=0) + model.intercept_.mean()
    np.testing.assert_allclose(model.predict(X), mean)
    for unknown in ([WORD] * 60, np.full(60, NUMBER), np.arange(60)):
        np.testing.assert_allclose(model.predict(X, unknown), mean)
    mixed = np.where(np.arange(60) < 30, PLACES, WORD)
    np.testing.assert_allclose(model.predict(X, mixed)[:30], model.predict(X, PLACES)[:30])
    np.testing.assert_allclose(model.predict(X, mixed)[30:], mean[30:])


def test_unknown_tasks_are_those_of_other_where_that_is_listed():
    named, unnamed = (np.where(np.arange(60) % 3 == 0, name, "east") for name in ("other", WORD))
    models = [fit(tasks, task_names=["other", "east"]) for tasks in (named, unnamed)]
    np.testing.assert_array_equal(*map(released, models))
    model = models[0]
    assert model.task_names_.tolist() == ["east", "other"]
    np.testing.assert_allclose(model.predict(X, [WORD] * 60), X @ model.coef_[1] + model.intercept_[1])
    error = check_silent(lambda: fit(unnamed))
    assert isinstance(error, InvalidRecords)
    assert "tasks: has a name that task_names= does not list" in str(error)


def test_rows_without_a_task_are_of_one_task():
    for names in (None, ["east", "west"]):
        model = fit(None, task_names=names)
        assert (model.task_names_.tolist(), model.privacy_.caveats) == (["all"], ())
        assert model.coef_.shape == (1, 3)
        for tasks in (None, [WORD] * 60, ["all"] * 60):
            np.testing.assert_allclose(model.predict(X, tasks), X @ model.coef_[0] + model.intercept_[0])


def test_tasks_can_be_numbers():
    numbers = (PLACES == "west").astype(int)
    model = fit(numbers, task_names=range(2))
    np.testing.assert_array_equal(released(model), released(fitted(CASE)))
    np.testing.assert_array_equal(model.predict(X, numbers.astype(float)), fitted(CASE).predict(X, PLACES))


@pytest.mark.parametrize(
    "tasks",
    [[WORD] * 59, [WORD, NUMBER] * 30, [NUMBER, np.nan] * 30, [WORD, None] * 30, np.full((60, 2), WORD), WORD],
    ids=["too few", "mixed", "NaN", "missing", "two columns", "one word"],
)
def test_bad_tasks_are_refused_and_not_quoted(tasks):
    model = fitted(CASE)
    for function in (
        lambda: fit(tasks),
        lambda: model.predict(X, tasks),
        lambda: model.score(X, NUMBERS, tasks),
    ):
        error = check_silent(function)
        assert isinstance(error, InvalidRecords)
        assert str(error).startswith("tasks")


def test_a_dimension_is_at_most_the_number_of_columns(monkeypatch):
    asked = []
    monkeypatch.setattr(multitask, "shared_representation", lambda **sizes: asked.append(sizes) or 1 / 0)
    for dimension in (1, 3, 9):
        with pytest.raises(ZeroDivisionError):
            fit(dimension=dimension)
    assert [sizes["dimension"] for sizes in asked] == [1, 3, 3]
    for dimension in (0, 1.5, "2", None):
        with pytest.raises(InvalidArgument, match=r"dimension=.*: must be a whole number >= 1"):
            fit(dimension=dimension)


def test_columns_are_represented_as_they_are_given():
    plain, larger = fitted(CASE), CASE.fit(7 * X, data_norm=7.0)
    np.testing.assert_allclose(7 * X @ larger.representation_, X @ plain.representation_, rtol=1e-4, atol=1e-6)


def test_scores_are_r_squared_by_task():
    model = fitted(CASE)
    assert model.score(X, NUMBERS, PLACES) == r2_score(NUMBERS, model.predict(X, PLACES))
    assert model.score(X, NUMBERS) == r2_score(NUMBERS, model.predict(X))
    assert model.score(X, np.full(60, 2.0)) == 0.0
    assert isinstance(check_silent(lambda: model.score(X, [WORD] * 60)), InvalidRecords)
