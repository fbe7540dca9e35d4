"""The metric of contributions: B and its inverse, norms that are never too small, sums and their sensitivity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpbilevel.privacy import clipping, memory
from dpbilevel.privacy import metric as metric_module
from dpbilevel.privacy.clipping import clipped_sum
from dpbilevel.privacy.metric import SHORTEST, Metric
from dpbilevel.privacy.outer import Outer, layout
from dpbilevel.privacy.products import row_norms
from dpbilevel.records import isolated_jax_config

COLUMNS = 12


def a_metric(factors=(0.9, 0.3, 0.05), columns=COLUMNS, seed=0):
    """Directions as a decomposition in float32 has them."""
    draws = np.random.default_rng(seed).normal(size=(columns, len(factors)))
    return Metric(jnp.asarray(np.linalg.qr(draws)[0], jnp.float32), jnp.asarray(factors, jnp.float32))


def matrix_of(metric):
    directions, factors = np.asarray(metric.directions, np.longdouble), np.asarray(metric.factors, np.longdouble)
    return np.eye(len(directions)) - (directions * (1 - factors)) @ directions.T


def some_rows(number, columns=COLUMNS, seed=1):
    """Rows of all sizes, some of which lie in the directions that count for less."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(number, columns)) * 10 ** rng.uniform(-3, 3, size=(number, 1))
    along = np.asarray(a_metric(columns=columns).directions) @ rng.normal(size=(3, number // 2))
    rows[: number // 2] = along.T + 1e-3 * rows[: number // 2]
    return rows.astype(np.float32)


# ---- B


def test_from_second_moments():
    """Directions far above the noise count for less, those that noise may have made as they are."""
    rng = np.random.default_rng(0)
    noise, true = 1e-3, np.array([0.5, 0.2, *[1e-6] * 10])
    sizes, directions = np.linalg.eigh(np.diag(true) + noise * np.triu(rng.normal(size=(12, 12)), 1))
    metric = Metric.of(jnp.asarray(sizes), jnp.asarray(directions), noise)
    edge = np.sqrt(24) * noise
    np.testing.assert_allclose(metric.factors[-1], np.sqrt(edge / (edge + sizes[-1])), rtol=1e-6)
    assert (np.asarray(metric.factors[:4]) > 0.7).all()
    whole = matrix_of(metric)
    assert np.trace(whole @ np.diag(true) @ whole) < 0.1 * true.sum()
    np.testing.assert_allclose(
        metric.mean_square(jnp.asarray(sizes)), np.sum(metric.by_direction(12) ** 2 * sizes), 1e-4
    )


def test_times_and_its_inverse():
    metric, columns = a_metric(), jnp.asarray(some_rows(5).T)
    np.testing.assert_allclose(metric.times(columns), matrix_of(metric) @ np.asarray(columns), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(metric.inverse_times(metric.times(columns)), columns, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize(
    "broken", ["longer directions", "skewed directions", "factor above one", "factor of zero", "NaN"]
)
def test_what_is_no_metric_counts_as_the_identity(broken):
    directions, factors = a_metric()
    if broken.endswith("directions"):
        directions = 1.01 * directions if broken.startswith("longer") else directions.at[:, 1].set(directions[:, 0])
    else:
        factors = factors.at[0].set({"factor above one": 1.5, "factor of zero": 0.0}.get(broken, np.nan))
    with isolated_jax_config():
        found = Metric(directions, factors).sound()
        np.testing.assert_array_equal(matrix_of(found), np.eye(COLUMNS))
        np.testing.assert_array_equal(a_metric().sound().factors, np.asarray(a_metric().factors, np.float64))


# ---- norms


def norms_over_true(metric, rows):
    with isolated_jax_config():
        measured = jax.jit(lambda metric, rows: metric.norms(rows, row_norms(rows)))(metric, rows)
    true = np.linalg.norm((matrix_of(metric) @ rows.astype(np.longdouble).T).astype(np.float64), axis=0)
    return np.asarray(measured), true


@pytest.mark.parametrize("columns", [3, COLUMNS, 300])
def test_norms_are_never_below_the_true_ones(columns):
    rows = some_rows(4000, columns)
    measured, true = norms_over_true(a_metric(columns=columns), rows)
    floor = SHORTEST * np.linalg.norm(rows.astype(np.float64), axis=1)
    assert (measured >= true).all()
    assert (measured >= floor).all()
    assert (measured <= np.maximum(1.02 * true, 1.2 * floor)).all()


def test_the_check_of_norms_rejects_norms_of_rounded_products(monkeypatch):
    """Without the bound on the rounding of products with directions, norms of rows along them may be too small."""
    monkeypatch.setattr(metric_module, "_ROUNDING", 0.0)
    monkeypatch.setattr(metric_module, "SHORTEST", 0.0)
    measured, true = norms_over_true(a_metric((1e-4, 1e-4, 1e-4), columns=301), some_rows(4000, 301))
    assert (measured < true).any()


@pytest.mark.parametrize("size", [3e38, 1e38, 1e25, 1e-30])
def test_rows_of_any_size_are_not_underestimated(size):
    """Products with directions overflow in float32, where nothing is known of the row."""
    rows = (size * np.sign(some_rows(50))).astype(np.float32)
    measured, true = norms_over_true(a_metric(), rows)
    assert (measured >= true).all()


# ---- sums


def gradient(metric, record):
    row, target = record
    outer = Outer(row, jnp.stack([target, 1 - target]))
    return {"m": outer.within(metric), "z": target * jnp.ones(2)}


def total(rows, targets, clip=1.0, metric=None, present=None):
    metric = a_metric(columns=rows.shape[1]) if metric is None else metric
    present = np.ones(len(rows), bool) if present is None else present

    def summed(metric, rows, targets, present):
        return clipped_sum(lambda record: gradient(metric, record), (rows, targets), present, clip)

    with isolated_jax_config():
        return np.asarray(jax.jit(summed)(metric, rows, np.asarray(targets, np.float32), present))


def reference(rows, targets, clip=1.0):
    whole = matrix_of(a_metric(columns=rows.shape[1]))
    images = rows.astype(np.longdouble) @ whole
    coefficients = np.stack([targets, 1 - targets], axis=1)
    products = (images[:, :, None] * coefficients[:, None, :]).reshape(len(rows), -1)
    every = np.concatenate([products, np.stack([targets, targets], axis=1)], axis=1)
    return (every * np.minimum(1, clip / np.linalg.norm(every.astype(float), axis=1))[:, None]).sum(axis=0)


@pytest.mark.parametrize("number", [2, 101, 128, 1000, 5000])
def test_a_sum_is_that_of_images(monkeypatch, number):
    """In one block and in many, and with fewer records than a chunk."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(number, COLUMNS)).astype(np.float32)
    targets = rng.normal(size=number).astype(np.float32)
    np.testing.assert_allclose(total(rows, targets), reference(rows, targets), rtol=1e-4, atol=1e-5 * number)
    monkeypatch.setattr(memory, "_ELEMENTS", 3000)
    monkeypatch.setattr(memory, "_NUMBERS", 1)
    np.testing.assert_allclose(total(rows, targets), reference(rows, targets), rtol=1e-4, atol=1e-5 * number)


def test_contributions_of_one_metric_have_a_layout():
    metric, other = a_metric(), a_metric(seed=1)
    record = jax.ShapeDtypeStruct((COLUMNS,), jnp.float32), jax.ShapeDtypeStruct((), jnp.float32)
    assert layout(lambda record: gradient(metric, record), record).metric is metric
    assert layout(lambda record: [Outer(*record).within(metric), Outer(*record).within(other)], record) is None
    assert layout(lambda record: [Outer(*record).within(metric), Outer(*record)], record) is None


def movement(rows, targets, place, clip=0.1):
    """How far a sum moves when one record is set to zero."""
    present = np.arange(len(rows)) != place
    return np.linalg.norm(total(rows, targets, clip) - total(rows, targets, clip, present=present))


def test_many_rows_along_one_direction_keep_the_sensitivity():
    """They count for 1/20 of their norm: what is summed in float32 is sixteen times as long as the clip."""
    rows = np.tile(np.asarray(a_metric().directions)[:, 2], (200_000, 1)).astype(np.float32)
    assert movement(100 * rows, np.zeros(len(rows)), 77) <= 0.1 * (1 + clipping.ROUNDING)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6, 1e30])
def test_no_record_moves_a_sum_by_more_than_the_clip(size):
    rows = some_rows(600)
    rows[5] *= size
    targets = np.random.default_rng(3).normal(size=600)
    targets[5] *= size
    assert movement(rows, targets, 5) <= 0.1 * (1 + clipping.ROUNDING)


def test_the_check_of_movements_rejects_a_metric_that_is_not_applied(monkeypatch):
    """Rows are measured as B a, and summed as a."""
    monkeypatch.setattr(Metric, "times", lambda self, columns: columns)
    rows = np.tile(np.asarray(a_metric().directions)[:, 2], (600, 1)).astype(np.float32)
    assert movement(100 * rows, np.zeros(600), 5) > 1
