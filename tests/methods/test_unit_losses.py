"""The loss of a unit: the sum over its rows, whatever pads them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.methods.preconditioned import MOMENTS
from dpbilevel.methods.unit_losses import UnitLoss, problem_of_units
from dpbilevel.privacy.bundles import Bundle

BUDGET = dpb.Budget(4.0, 1e-3)


def loss(x, y, row):
    return x * jnp.log(row["a"] @ y) + row["b"] ** 2


def test_a_unit_has_the_sum_of_the_gradients_of_its_rows():
    rng = np.random.default_rng(0)
    rows = {"a": rng.uniform(1, 2, size=(4, 3)).astype(np.float32), "b": rng.normal(size=4).astype(np.float32)}
    x, y, unit = 2.0, np.ones(3, np.float32), Bundle(rows, np.array([True, True, False, True]))
    summed = jax.grad(UnitLoss(loss, 3.0), (0, 1))(x, y, unit)
    each = [jax.grad(loss, (0, 1))(x, y, jax.tree.map(lambda leaf, j=j: leaf[j], rows)) for j in (0, 1, 3)]
    for got, *parts in zip(summed, *each, strict=True):
        assert got == pytest.approx(np.sum(parts, axis=0) / 3, rel=1e-5)


def mean_problem(**more):
    return dpb.BilevelProblem(
        upper_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
        lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
        lower_term=lambda x, y: 0.5 * jnp.exp(x) * y**2,
        **more,
    )


def test_without_noise_units_of_equal_size_are_the_mean_over_rows():
    """With the true mean of rows per unit, the problem of units is the problem of rows."""
    values = np.random.default_rng(1).normal(size=(2, 300)) + 2
    ids = {"upper": np.arange(300) // 3, "lower": 1000 + np.arange(300) // 3}
    arrays, run = {"upper": values[0], "lower": values[1]}, {"start": (0.0, 0.0), "progress": False}
    with pytest.warns(dpb.NotPrivateWarning):
        rows = dpb.solve(mean_problem(), dpb.Records(**arrays), dpb.Budget(float("inf")), **run)
    with pytest.warns(dpb.NotPrivateWarning):
        units = dpb.solve(
            mean_problem(),
            dpb.Records(**arrays, unit=ids, rows_per_unit=5, mean_rows=3),
            dpb.Budget(float("inf")),
            **run,
        )
    assert units.y == pytest.approx(rows.y, rel=1e-4)
    assert units.x == pytest.approx(rows.x, rel=1e-3)
    assert units.sizes == {"upper": 100, "lower": 100}


def test_constants_of_rows_are_not_those_of_units():
    constants = dpb.Constants(
        upper_lipschitz=1.0,
        upper_smoothness=1.0,
        lower_lipschitz=1.0,
        lower_smoothness=1.0,
        lower_hessian_lipschitz=0.0,
        strong_convexity=1.0,
    )
    assert problem_of_units(mean_problem(constants=constants), 2.0).constants is None


def test_a_loss_that_does_not_fit_rows_is_refused_in_the_words_of_rows():
    problem = dpb.BilevelProblem(upper_term=lambda x, y: x**2, lower_loss=lambda x, y, record: record * y)
    sizes = dpb.RecordShapes(lower=np.zeros((50, 3)), rows_per_unit=4)
    with pytest.raises(dpb.InvalidProblem, match="lower_loss: must return one real number for one record"):
        dpb.plan(problem, sizes, BUDGET, start=(0.0, 0.0))


def test_an_x_that_no_row_reads_stays_free_of_charge():
    sizes = dpb.RecordShapes(upper=np.zeros(50), lower=np.zeros(50), rows_per_unit=4)
    planned = dpb.plan(mean_problem(), sizes, BUDGET, start=(0.0, 0.0))
    assert planned.parameters["hypergradient"][0] == 0


@pytest.mark.parametrize("name", ["logistic", "squared"])
def test_training_of_units_is_preconditioned_as_that_of_rows(name):
    problem = dpb.applications.regularization(name, columns=3, row_norm=1.0)
    shapes = np.zeros((5000, 3)), np.zeros(5000, np.int32 if name == "logistic" else np.float32)
    for most in (None, 1, 4):
        sizes = dpb.RecordShapes(upper=shapes, lower=shapes, rows_per_unit=most)
        planned = dpb.plan(problem, sizes, dpb.Budget(4.0, 1e-5), method=dpb.Refit())
        names = {release.name for release in planned.releases}
        assert MOMENTS in names
