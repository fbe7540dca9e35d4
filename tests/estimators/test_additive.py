"""Additive models: errors of shapes, smoothness in an orthonormal basis, and its first penalty."""

import functools
import warnings

import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators import DPLogisticRegressionCV, DPRidgeCV
from dpbilevel.estimators.additive import Basis, cyclic_basis, smooth_basis


@functools.cache
def table(rows=8000, seed=0):
    draws = np.random.default_rng(seed)
    cells = {"a": draws.uniform(0, 10, rows), "b": draws.uniform(0, 1, rows), "c": draws.choice(["x", "y"], rows)}
    targets = np.sin(cells["a"]) + 0.5 * (cells["c"] == "x") + 0.1 * draws.normal(size=rows)
    encoder = dpb.BoundedEncoder(ranges={"a": (0, 10), "b": (0, 1)}, categories={"c": ["x", "y"]}, knots=9)
    return encoder.fit_transform(cells), targets, encoder


def fitted(kind=DPRidgeCV, targets=None, **settings):
    rows, numbers, _ = table()
    declared = {"target_range": (-2, 2)} if kind is DPRidgeCV else {"classes": [0, 1]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(**declared, **{"random_state": 0, **settings}).fit(rows, numbers if targets is None else targets)


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("kind", [DPLogisticRegressionCV, DPRidgeCV])
def test_errors_of_shapes_are_those_of_many_runs(kind, smooth):
    draws, numbers = np.random.default_rng(5), table()[1]
    targets = np.clip(numbers + draws.normal(size=len(numbers)), -2, 2)
    if kind is DPLogisticRegressionCV:
        targets = (numbers + draws.logistic(size=len(numbers)) > 0.2).astype(int)
    runs = [fitted(kind, targets, smooth=smooth, random_state=seed, epsilon=2.0) for seed in range(20)]
    # Without smoothness, categories are collinear with the intercept, and how the two divide the level is not known.
    for at in range(3 if smooth else 2):
        effects = np.array([run.shapes_[at].effect[0] for run in runs])
        claimed = np.array([run.shapes_[at].error for run in runs])
        assert 0.6 < np.sqrt(effects.var(axis=0, ddof=1).mean() / np.mean(claimed**2)) < 1.6


def test_errors_of_centred_curves_are_below_those_of_coefficients():
    # Hats and intercept are collinear: a shift of all hats is known worse than differences between them.
    model, (_, _, encoder) = fitted(), table()
    for shape, term in zip(model.shapes_[:2], encoder.terms_[:2], strict=True):
        plain = np.abs(np.diag(term.values)) * model.coef_noise_[list(term.columns)]
        assert shape.error.mean() < plain.mean()


def test_shapes_cost_nothing_and_change_nothing():
    rows, targets, _ = table()
    bare = np.asarray(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = DPRidgeCV(target_range=(-2, 2), data_norm=1.0, random_state=0).fit(bare, targets)
    model = fitted()
    assert np.allclose(model.coef_, other.coef_, rtol=1e-4, atol=1e-5)
    assert not hasattr(other, "shapes_")
    assert model.privacy_.epsilon() == other.privacy_.epsilon()
    assert np.allclose(model.coef_noise_, other.coef_noise_, rtol=1e-3)


def test_smooth_curves_are_centred_and_predict_by_coefficients():
    model, (rows, targets, encoder) = fitted(smooth=True), table()
    for term in encoder.terms_[:2]:
        assert abs(model.coef_[list(term.columns)].sum()) < 1e-6
    assert model.groups_.tolist() == ["all", "a, smoothness", "b, smoothness"]
    assert model.penalties_.shape == (3,)
    assert np.allclose(model.predict(rows), np.asarray(rows, np.float64) @ model.coef_ + model.intercept_)
    assert model.score(rows, targets) > 0.9
    assert fitted(smooth="shared").groups_.tolist() == ["all", "smoothness"]


def test_smooth_curves_of_several_classes():
    classes = np.digitize(table()[1], [-0.5, 0.5])
    rows = table()[0]
    model = DPLogisticRegressionCV(classes=[0, 1, 2], smooth=True, epsilon=3.0).fit(rows, classes)
    assert model.coef_.shape == model.coef_noise_.shape == (3, 20)
    assert model.shapes_[0].effect.shape == (3, 9)
    assert model.score(rows, classes) > 0.7


def test_a_search_moves_every_penalty_of_smoothness():
    model = fitted(smooth=True, method=dpb.Tracking(steps=40), epsilon=8.0)
    start = fitted(smooth=True, epsilon=8.0).penalties_
    assert model.penalties_.shape == start.shape
    assert (model.penalties_ != start).any()


def test_the_basis_is_orthonormal_and_makes_the_penalty_a_sum_of_squares():
    places = np.array([0.0, 0.1, 0.3, 0.6, 1.0])
    basis, eigenvalues = smooth_basis(places)
    assert np.allclose(basis.T @ basis, np.eye(4))
    assert np.allclose(basis.sum(axis=0), 0)
    straight = basis.T @ (3 * places - 1)
    assert np.allclose(straight[1:], 0)
    even, sizes = smooth_basis(np.linspace(0, 1, 7))
    curve = np.random.default_rng(0).normal(size=7)
    parts = even.T @ curve
    assert np.isclose(np.sum(np.diff(curve, 2) ** 2), np.sum(np.array(sizes) * parts[1:] ** 2))
    assert all(size > 0 for size in eigenvalues)


def test_on_a_circle_no_place_is_an_end():
    basis, sizes = cyclic_basis(12)
    assert np.allclose(basis.T @ basis, np.eye(11))
    assert np.allclose(basis.sum(axis=0), 0)
    curve = np.random.default_rng(0).normal(size=12)
    around = np.roll(curve, 1) - 2 * curve + np.roll(curve, -1)
    assert np.isclose(np.sum(around**2), np.sum(np.array(sizes) * (basis.T @ curve) ** 2))
    assert min(sizes) > 0  # every function with mean zero is penalised


def test_months_and_weekdays_are_curves_and_go_around():
    days = np.datetime64("2025-01-01") + np.random.default_rng(0).integers(0, 730, 6000).astype("timedelta64[D]")
    encoder = dpb.BoundedEncoder(
        dates={"day": ("2025-01-01", "2026-12-31")}, parts={"day": ["month", "weekday", "year"]}
    )
    rows = encoder.fit_transform({"day": days})
    month = days.astype("datetime64[M]").astype(int) % 12
    targets = np.cos(2 * np.pi * month / 12) + 0.1 * np.random.default_rng(1).normal(size=6000)
    cyclic = {term.name: term.cyclic for term in encoder.terms_}
    assert [name for name, around in cyclic.items() if around] == ["day, month", "day, weekday"]
    model = DPRidgeCV(target_range=(-2, 2), smooth=True, random_state=0, epsilon=3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(rows, targets)
    assert {"day, month, smoothness", "day, weekday, smoothness"} < set(model.groups_.tolist())
    shape = next(own for own in model.shapes_ if own.name == "day, month")
    assert shape.points.tolist() == [str(number) for number in range(1, 13)]
    truth = np.cos(2 * np.pi * np.arange(12) / 12)
    assert np.abs(shape.effect[0] - truth).max() < 0.3


@pytest.mark.parametrize("settings", [{"smooth": True}, {"smooth": "shared", "data_norm": 2.0}, {}])
def test_a_plan_by_the_encoder_is_the_plan_of_the_fit(settings):
    rows, targets, encoder = table()
    model = DPRidgeCV(target_range=(-2, 2), **settings)
    planned, fit = model.plan(len(rows), encoder), model._prepare(rows, targets).planned
    assert planned.parameters == fit.parameters
    assert [(one.name, one.uses, one.noise_std) for one in planned.releases] == [
        (one.name, one.uses, one.noise_std) for one in fit.releases
    ]
    np.testing.assert_array_equal(planned.start[0], fit.start[0])


def test_a_plan_by_the_number_of_columns_has_no_curves():
    with pytest.raises(InvalidArgument, match="smooth=True"):
        DPRidgeCV(target_range=(-2, 2), smooth=True).plan(5000, 20)


def test_rows_in_the_basis_are_no_longer():
    rows, _, encoder = table()
    basis = Basis.of(encoder.terms_, rows.shape[1])
    before, after = (np.linalg.norm(part, axis=1) for part in (rows, np.asarray(rows, np.float64) @ basis.matrix))
    assert (after <= before + 1e-6).all()


def test_the_first_penalty_falls_with_rows_and_epsilon():
    rows, _, encoder = table()
    basis = Basis.of(encoder.terms_, rows.shape[1])
    noisy, quiet = (basis.first_penalties(noise, 8000, 1.0) for noise in (1e-3, 1e-5))
    assert noisy[0] > quiet[0] > basis.first_penalties(1e-5, 80_000, 1.0)[0]
    one = Basis.of(encoder.terms_, rows.shape[1], shared=True).first_penalties(1e-3, 8000, 1.0)
    assert one == pytest.approx([noisy[0]])


@pytest.mark.parametrize(("smooth", "rows"), [("both", None), (1.5, None), (True, np.zeros((20, 3)))])
def test_what_cannot_be_smoothed_is_refused_before_the_charge(smooth, rows):
    ledger = dpb.Ledger(dpb.Budget(1.0, 1e-3))
    model = DPRidgeCV(smooth=smooth, target_range=(-2, 2), data_norm=1.0, delta=1e-3, ledger=ledger)
    rows = table()[0][:20] if rows is None else rows
    with pytest.raises(InvalidArgument, match="smooth="):
        model.fit(rows, np.zeros(20))
    assert len(ledger.entries) == 0
