"""Exact means of linear models: the same as in blocks, by products with the rows where they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.applications import label_noise
from dpbilevel.execution import means
from dpbilevel.execution.means import mean_over_records
from dpbilevel.privacy.memory import Memory

COLUMNS = 7


def stored(number, valid=None):
    """Records as `Records` holds them, and which of them are present."""
    draws = np.random.default_rng(0)
    rows, labels = draws.normal(size=(number, COLUMNS)).astype(np.float32), draws.normal(size=number)
    valid = np.ones(number, bool) if valid is None else valid
    rows[~valid] = np.nan
    return Memory.stored((rows, labels.astype(np.float32)), valid).arrays, jnp.asarray(valid)


def loss_of(row):
    return dpb.LinearLoss(row=row, loss=lambda x, score, record: jnp.sum(jnp.exp(x) * jnp.tanh(score - record[1]) ** 2))


FIRST = loss_of(lambda record: record[0])


@pytest.mark.parametrize("number", [1, 5, 128, 300])
@pytest.mark.parametrize("outputs", [(), (3,)], ids=["vector", "matrix"])
def test_means_by_products_and_in_blocks_are_equal_and_so_are_their_derivatives(number, outputs):
    valid = np.arange(number) % 4 != 1
    arrays, present = stored(number, valid)
    products = mean_over_records(FIRST, arrays, present, stored=True)
    blocks = mean_over_records(lambda x, y, record: FIRST(x, y, record), arrays, present, stored=True)
    y = jnp.asarray(np.random.default_rng(1).normal(size=(COLUMNS, *outputs)), jnp.float32)
    for of in (lambda f: f, lambda f: jax.grad(f, (0, 1)), lambda f: jax.hessian(f, 1)):
        found, expected = (jax.jit(of(mean))(jnp.asarray(0.3), y) for mean in (products, blocks))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected)


@pytest.mark.parametrize(("number", "columns", "outputs"), [(3000, 7, 3), (300, 2, 3), (128, 20, 10), (1000, 5, 2)])
def test_what_is_compiled_has_the_value_of_its_operations(number, columns, outputs):
    """Of confusions of labels, where a compiler once made zeros of all scores (see `_mean_by_products`)."""
    draws = np.random.default_rng(3)
    labels = draws.integers(outputs, size=number).astype(np.int32)
    memory = Memory.stored((draws.normal(size=(number, columns)).astype(np.float32), labels), np.ones(number, bool))
    problem = label_noise(columns=columns, classes=outputs)
    mean = mean_over_records(problem.lower_loss, memory.arrays, jnp.ones(number, bool), stored=True)
    x, y = problem.start[0], jnp.asarray(draws.normal(size=(columns, outputs)), jnp.float32)
    of_records = jax.vmap(lambda record: problem.lower_loss(x, y, record))(tuple(memory.arrays))[:number]
    np.testing.assert_allclose(jax.jit(mean)(x, y), np.mean(np.asarray(of_records, np.float64)), rtol=1e-5)


def is_by_products(function, arrays, present, y, monkeypatch):
    called = []
    original = means._mean_in_blocks
    with monkeypatch.context() as patch:
        blocks = lambda *arguments: lambda *at: called.append(1) or original(*arguments)(*at)  # noqa: E731
        patch.setattr(means, "_mean_in_blocks", blocks)
        jax.eval_shape(mean_over_records(function, arrays, present, stored=True), 0.3, y)
    return not called


def test_rows_that_are_computed_or_scores_that_are_many_are_summed_in_blocks(monkeypatch):
    arrays, present = stored(300)
    y = jnp.zeros(COLUMNS)
    assert is_by_products(FIRST, arrays, present, y, monkeypatch)
    assert not is_by_products(loss_of(lambda record: 2 * record[0]), arrays, present, y, monkeypatch)
    monkeypatch.setattr(means, "_ELEMENTS", 300)
    assert is_by_products(FIRST, arrays, present, y, monkeypatch)
    assert not is_by_products(FIRST, arrays, present, jnp.zeros((COLUMNS, 2)), monkeypatch)


def test_rows_are_not_copied():
    """Neither by a mean nor by its derivatives: temporary arrays are half of the rows at most, all together."""
    number, columns = 1000, 64
    rows = jax.ShapeDtypeStruct((1024, columns), jnp.float32)
    labels, y = jax.ShapeDtypeStruct((1024,), jnp.float32), jax.ShapeDtypeStruct((columns,), jnp.float32)

    def product(rows, labels, y, v):
        mean = mean_over_records(FIRST, (rows, labels), jnp.ones(number, bool), stored=True)
        return jax.vjp(jax.grad(lambda point: mean(0.3, point)), y)[1](v)

    compiled = jax.jit(product).lower(rows, labels, y, y).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * number * columns / 2


def test_sums_of_many_rows_are_exact_to_a_few_units():
    """Chunk by chunk: a running sum in float32 over all rows would lose four digits."""
    number = 2**17
    rows = np.random.default_rng(2).uniform(0.5, 1.5, size=(number, 2)).astype(np.float32)
    loss = dpb.LinearLoss(row=lambda record: record, loss=lambda x, score, record: score)
    memory = Memory.stored(rows, np.ones(number, bool))
    mean = mean_over_records(loss, memory.arrays, jnp.ones(number, bool), stored=True)
    gradient = jax.jit(jax.grad(mean, 1))(0.0, jnp.zeros(2))
    np.testing.assert_allclose(gradient, rows.mean(axis=0, dtype=np.float64), rtol=1e-6)
