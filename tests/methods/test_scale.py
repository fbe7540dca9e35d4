"""The scale of a trained model of several classes: derivatives of its loss, and the factor that follows from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.methods import scale
from dpbilevel.methods.scale import PASSES, SCALE, Scale

COLUMNS, CLASSES = 6, 3
NUMBERS = {"noise_std": 0.0, "records": 10**9, "derivative": 2**0.5, "curvature": 0.5}


def problem_of(loss="softmax", classes=CLASSES):
    return dpb.applications.regularization(loss, columns=COLUMNS, classes=classes, row_norm=1.0)


def table(number, seed=0, size=6.0):
    draws = np.random.default_rng(seed)
    rows = draws.normal(size=(number, COLUMNS)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    scores = rows @ np.random.default_rng(1).normal(size=(COLUMNS, CLASSES)) * size
    return rows, (scores + draws.gumbel(size=scores.shape)).argmax(axis=1).astype(np.int32)


def loss_of(rows, labels, y):
    scores = rows.astype(float) @ np.asarray(y, float)
    return float(np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]))


def test_contributions_are_the_derivatives_of_the_loss():
    rows, labels = table(1)
    record, y = (jnp.asarray(rows[0]), jnp.asarray(labels[0])), np.linspace(-2, 2, COLUMNS * CLASSES)
    y = y.reshape(COLUMNS, CLASSES)
    first, second = scale._derivatives(problem_of(), "lower")
    point = (jnp.zeros(1), jnp.asarray(y), jnp.asarray(0.7), jnp.array([2.0, 4.0]))
    up, here, down = (loss_of(rows, labels, factor * y) for factor in (0.7 + 1e-4, 0.7, 0.7 - 1e-4))
    assert 2 * float(first(point, record)) == pytest.approx((up - down) / 2e-4, rel=1e-3)
    assert 4 * float(second(point, record)) == pytest.approx((up - 2 * here + down) / 1e-8, rel=1e-2)


def factor_of(rows, labels, y, passes=PASSES, fitted=0.0, **numbers):
    """The factor without noise, by the mean contribution of all records."""
    problem = problem_of()
    found = Scale(parts=scale._parts(problem, "lower"), **NUMBERS | numbers)
    square = jnp.asarray(np.mean(np.sum((rows @ np.asarray(y)) ** 2, axis=1)))
    state = found.begin(found.start(), square, jnp.asarray(fitted))
    contribution = scale.joined(found.parts, clipped=True)
    for step in range(passes):
        point = (jnp.zeros(1), jnp.asarray(y), state["factor"], state["clips"])
        each = jax.vmap(lambda record, point=point: contribution(point, record))((jnp.asarray(rows), labels))
        state = found.step(state, jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), each), jnp.asarray(step))
    return float(state["factor"]), float(state["error"])


@pytest.mark.parametrize("shrunk", [0.5, 1.0, 1.6])
def test_the_factor_is_that_of_least_loss(shrunk):
    rows, labels = table(5000)
    y = np.random.default_rng(1).normal(size=(COLUMNS, CLASSES)) * 6 / shrunk
    best = min(np.linspace(0.3, 2.5, 221), key=lambda factor: loss_of(rows, labels, factor * y))
    assert factor_of(rows, labels, y, passes=8)[0] == pytest.approx(best, abs=0.1)
    assert factor_of(rows, labels, y)[0] == pytest.approx(best, rel=0.2)


def test_what_sampling_explains_shortens_a_model():
    rows, labels = table(2000)
    y = np.random.default_rng(1).normal(size=(COLUMNS, CLASSES)) * 6
    assert factor_of(rows, labels, y, fitted=18.0, records=2000)[0] < factor_of(rows, labels, y)[0]


def test_a_factor_that_noise_hides_stays_close_to_one():
    rows, labels = table(500)
    y = np.random.default_rng(1).normal(size=(COLUMNS, CLASSES)) * 12
    (plain, exact), (hidden, error) = (factor_of(rows, labels, y, noise_std=noise) for noise in (0.0, 2.0))
    assert plain < 0.9
    assert exact == 0
    assert abs(hidden - 1) < abs(plain - 1) / 2
    assert 0 < error < scale._SPREAD


def solved(loss, classes, budget, method=None):
    rows, labels = table(2000)
    if loss != "softmax":
        labels = (labels > 0).astype(np.int32)
    records = dpb.Records(upper=(rows[:500], labels[:500]), lower=(rows[500:], labels[500:]))
    with pytest.warns(dpb.NotPrivateWarning):
        return dpb.solve(
            problem_of(loss, classes), records, budget, method=method or dpb.Refit(), seed=0, progress=False
        )


def uses_of(solution):
    return sum(charge.uses for charge in solution.privacy.charges["lower"] if charge.release == SCALE)


def test_the_release_is_charged_and_is_that_of_several_classes():
    found = solved("softmax", CLASSES, dpb.Budget(2.0, 1e-5))
    assert uses_of(found) == PASSES
    assert found.privacy.epsilon() == pytest.approx(2.0, rel=1e-6)
    factor = float(found.history["y factor"][-1])
    assert 0 < factor < 3
    assert f"{factor:.3g}" in found.result
    assert (found.history["y standard error"][-1] > 0).all()
    two = solved("logistic", None, dpb.Budget(2.0, 1e-5))
    assert uses_of(two) == 0
    assert "y factor" not in two.history
