"""Functions of a record that kernels evaluate entry by entry: the same numbers, and a refusal of everything else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpbilevel.privacy.entries import NotByEntries, Traced
from dpbilevel.records import isolated_jax_config

NUMBER, COLUMNS = 7, 5
MODEL = np.linspace(-1, 1, COLUMNS, dtype=np.float32)
MATRIX = np.arange(COLUMNS * 3, dtype=np.float32).reshape(COLUMNS, 3) / 10


def scalar(record, norm):
    row, target, few = record
    score = row @ jnp.asarray(MODEL)
    return [jax.grad(lambda score: jax.nn.softplus(-target * score))(score), norm.astype(jnp.float32) * few]


def matrix(record, norm):
    """A softmax, whose score is a vector, with a small product, parts of arrays and a number known beforehand."""
    row, target, few = record
    scores = jnp.asarray(MATRIX).T @ row
    first, second = jnp.split(jnp.stack([scores, jnp.flip(jnp.asarray(MODEL)[:3]) * target]), 2)
    mixed = first[0] @ jnp.outer(second[0], few[:1] * jnp.ones(2, jnp.float32))
    return [jax.nn.softmax(scores), jnp.concatenate([mixed, few[1:]]), jnp.where(target > 0, scores[::2].max(), -1.0)]


def data(seed=0):
    draws = np.random.default_rng(seed)
    rows = draws.normal(size=(NUMBER, COLUMNS))
    return tuple(part.astype(np.float32) for part in (rows, draws.normal(size=NUMBER), draws.normal(size=(NUMBER, 2))))


def traced(function, row=0, dtype=jnp.float32):
    record = tuple(jax.ShapeDtypeStruct(leaf.shape[1:], dtype) for leaf in data())
    return Traced(function, record, row, jnp.dtype(jnp.float32))


def entries(leaf):
    found = np.empty(leaf.shape[1:], dtype=object)
    for index in np.ndindex(*leaf.shape[1:]):
        found[index] = jnp.asarray(leaf[(slice(None), *index)])
    return found


@pytest.mark.parametrize("function", [scalar, matrix])
def test_numbers_are_those_of_the_function(function):
    records = data()
    norms = np.linalg.norm(records[0], axis=1)
    with isolated_jax_config(), jax.enable_x64(True):
        found = traced(function)
        scores = [jnp.asarray(records[0]) @ column for column in found.columns]
        own = [entries(records[leaf]) for leaf in found.leaves]
        lines = found.lines(scores, own, jnp.asarray(norms), [list(numbers) for numbers in found.constants], NUMBER)
        expected = jax.vmap(function)(records, norms)
    expected = np.concatenate([np.asarray(part).reshape(NUMBER, -1) for part in expected], axis=1)
    np.testing.assert_allclose(np.stack(lines, axis=1), expected, rtol=2e-5, atol=1e-6)


def test_equal_scores_are_computed_once():
    def twice(record, norm):
        model = jnp.asarray(MODEL)
        return [record[0] @ model, jnp.sin(record[0] @ model)]

    with isolated_jax_config():
        assert len(traced(twice).columns) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda record, norm: [jnp.sum(record[0] ** 2)],  # reads the row itself
        lambda record, norm: [record[0]],
        lambda record, norm: [record[0] @ (record[1] * jnp.asarray(MODEL))],  # a score whose model is the record's
        lambda record, norm: [jnp.asarray(MODEL)[record[1].astype(jnp.int32)]],  # an entry that the record chooses
        lambda record, norm: [jnp.sort(record[2])],
        lambda record, norm: [jax.lax.fori_loop(0, 3, lambda i, part: part * record[1], 1.0)],
        lambda record, norm: [record[1] * jnp.ones(100)],  # too many entries
    ],
)
def test_what_kernels_cannot_compute_is_refused(function):
    with isolated_jax_config(), pytest.raises(NotByEntries):
        traced(function)
