"""Losses of linear models: against independent implementations and differences, in labels of every kind."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import pseudo_huber, xlogy
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import log_loss, mean_poisson_deviance, mean_squared_error

import dpbilevel as dpb
from dpbilevel.applications.losses import LOSSES, LinearModel
from dpbilevel.errors import InvalidArgument
from dpbilevel.theory import losses as theory_losses
from dpbilevel.theory.glm import glm_constants

COLUMNS, CLASSES, ROWS = 4, 3, 50
DRAWS = np.random.default_rng(0)
TABLE = DRAWS.normal(size=(ROWS, COLUMNS))
TARGETS = {
    "logistic": DRAWS.integers(0, 2, ROWS),
    "softmax": DRAWS.integers(0, CLASSES, ROWS),
    "squared": DRAWS.normal(size=ROWS),
    "poisson": DRAWS.poisson(2.0, ROWS).astype(float),
    "pseudo-huber": 3 * DRAWS.normal(size=ROWS),
}
every_loss = pytest.mark.parametrize("loss", LOSSES)


def model(loss, **changes):
    options = {"softmax": {"classes": CLASSES}, "pseudo-huber": {"threshold": 0.7}}
    return LinearModel(**{"loss": loss, "columns": COLUMNS, **options.get(loss, {}), **changes})


def coefficients(loss):
    return np.random.default_rng(1).normal(size=model(loss).start().shape)


def mean_loss(loss, y, targets=None):
    targets = TARGETS[loss] if targets is None else targets
    return jnp.mean(jax.vmap(model(loss).of_score())(TABLE @ jnp.asarray(y), targets))


def by_others(loss, y):
    """The mean loss as scikit-learn and scipy have it."""
    scores, targets = TABLE @ y, TARGETS[loss]
    match loss:
        case "logistic":
            return log_loss(targets, 1 / (1 + np.exp(-scores)))
        case "softmax":
            return log_loss(targets, np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True))
        case "squared":
            return mean_squared_error(targets, scores) / 2
        case "poisson":
            left_out = np.mean(targets - xlogy(targets, targets))  # what half a deviance has more, free of y
            return mean_poisson_deviance(targets, np.exp(scores)) / 2 + left_out
    return np.mean(pseudo_huber(0.7, scores - targets))


@every_loss
def test_losses_are_those_of_others(loss):
    with jax.enable_x64(True):
        assert float(mean_loss(loss, coefficients(loss))) == pytest.approx(by_others(loss, coefficients(loss)))


@every_loss
def test_gradients_are_those_of_differences(loss):
    y, step = coefficients(loss), 1e-5
    with jax.enable_x64(True):
        slopes = np.asarray(jax.grad(lambda y: mean_loss(loss, y))(jnp.asarray(y))).ravel()
    shifts = (step * np.eye(y.size)).reshape(-1, *y.shape)
    differences = [(by_others(loss, y + shift) - by_others(loss, y - shift)) / (2 * step) for shift in shifts]
    np.testing.assert_allclose(slopes, differences, rtol=1e-5, atol=1e-8)


def test_the_poisson_regression_of_others_is_where_the_gradient_vanishes():
    fitted = PoissonRegressor(alpha=0.3, fit_intercept=False, tol=1e-10).fit(TABLE, TARGETS["poisson"]).coef_
    with jax.enable_x64(True):
        slopes = jax.grad(lambda y: mean_loss("poisson", y) + 0.3 * jnp.sum(y**2) / 2)(jnp.asarray(fitted))
    np.testing.assert_allclose(slopes, 0, atol=1e-6)


@pytest.mark.parametrize("positive", [True, 1, 1.0, np.uint8(1)])
@pytest.mark.parametrize("negative", [False, 0, -1, 0.0, -1.0])
def test_logistic_labels_are_positive_above_zero(positive, negative):
    loss, score = model("logistic").of_score(), jnp.asarray(2.0)
    assert float(loss(score, jnp.asarray(positive))) == pytest.approx(math.log1p(math.exp(-2)))
    assert float(loss(score, jnp.asarray(negative))) == pytest.approx(math.log1p(math.exp(2)))


@pytest.mark.parametrize("loss", ["logistic", "softmax", "pseudo-huber"])
def test_far_out_losses_and_slopes_stay_finite(loss):
    far = 1e4 * np.sign(coefficients(loss)).astype(np.float32)
    value, slope = jax.value_and_grad(lambda y: mean_loss(loss, y))(jnp.asarray(far))
    assert np.isfinite(value)
    assert np.isfinite(slope).all()


def test_a_small_threshold_is_nearly_the_absolute_value_and_a_large_one_the_square():
    residual = jnp.float32(0.5)
    for threshold, expected in ((1e-3, 1e-3 * 0.5), (1e2, 0.5**2 / 2)):
        loss = LinearModel(loss="pseudo-huber", columns=1, threshold=threshold).of_score()
        assert float(loss(residual, 0.0)) == pytest.approx(expected, rel=0.01)


def test_the_theory_knows_the_same_losses():
    assert set(LOSSES) == set(theory_losses.LOSSES) == set(dpb.applications.LOSSES)


def test_what_is_not_declared_is_one_where_the_loss_needs_it():
    assert model("squared").target_bound == model("poisson").target_bound == 1.0
    assert LinearModel(loss="pseudo-huber", columns=2).threshold == 1.0
    assert model("logistic").target_bound is model("logistic").threshold is None
    assert model("squared", target_bound=3.0).target_bound == 3.0
    assert model("squared") == model("squared", target_bound=1.0)


def test_the_start_is_zero_and_fits_rows():
    assert model("logistic").start().shape == (COLUMNS,)
    assert model("softmax").start().shape == (COLUMNS, CLASSES)
    assert not model("softmax").start().any()


def test_constants_that_do_not_fit_a_float_are_none():
    """The rate of the Poisson loss on the ball of all solutions is e^(R r): about e^250 here, and then e^1200."""
    near, far = model("poisson", target_bound=1.0), model("poisson", target_bound=10.0)
    declared = {"penalty": (6e-6, 1.0)}
    assert near.certified(glm_constants, **declared) == glm_constants(**near.shape(), **declared)
    with pytest.raises(InvalidArgument, match="must fit float64"):
        glm_constants(**far.shape(), **declared)
    assert far.certified(glm_constants, **declared) is None


BAD = {
    "unknown loss": ({"loss": "hinge"}, "loss='hinge': must be one of"),
    "loss a number": ({"loss": 1}, "loss=1: must be one of"),
    "loss a list": ({"loss": ["squared"]}, "loss=['squared']: must be one of"),
    "huber": ({"loss": "huber"}, "loss='huber': its second derivative jumps"),
    "no columns": ({"columns": 0}, "columns=0: must be a whole number >= 1"),
    "half a column": ({"columns": 2.5}, "columns=2.5: must be a whole number >= 1"),
    "row norm zero": ({"row_norm": 0.0}, "row_norm=0.0: must be a finite number > 0"),
    "row norm a word": ({"row_norm": "1"}, "row_norm='1': must be a real number"),
    "classes missing": ({"loss": "softmax"}, "classes=None: required with loss='softmax'"),
    "one class": ({"loss": "softmax", "classes": 1}, "classes=1: must be at least 2"),
    "classes without softmax": ({"classes": 3}, "classes=3: must be None with loss='logistic'"),
    "target bound of labels": ({"target_bound": 1.0}, "target_bound=1.0: must be None with loss='logistic'"),
    "target bound zero": ({"loss": "squared", "target_bound": 0.0}, "target_bound=0.0: must be a finite number > 0"),
    "target bound a list": ({"loss": "squared", "target_bound": [1.0]}, "target_bound=[1.0]: must be a real number"),
    "threshold without a bend": ({"loss": "squared", "threshold": 1.0}, "threshold=1.0: must be None with"),
    "threshold negative": ({"loss": "pseudo-huber", "threshold": -1.0}, "threshold=-1.0: must be a finite number > 0"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(InvalidArgument) as caught:
        LinearModel(**{"loss": "logistic", "columns": COLUMNS} | change)
    assert str(caught.value).startswith(message)
