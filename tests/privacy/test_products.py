"""Sums of outer products: what they add up and leave out, how long a record may get, how much memory they take."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.memory import largest_intermediate

from dpbilevel.privacy import clipping, memory
from dpbilevel.privacy.clipping import clipped_sum
from dpbilevel.privacy.outer import Outer, layout
from dpbilevel.privacy.products import Products, _clipped_numbers, row_norms
from dpbilevel.records import isolated_jax_config


def contribution(record):
    """A vector, a matrix and two numbers."""
    row, target = record
    return {"w": Outer(row, target), "m": Outer(row, jnp.stack([target**2, 1 - target])), "z": target * jnp.ones(2)}


def vectors(rows, targets):
    """The same, written out in NumPy and float64."""
    rows, targets = np.asarray(rows, np.float64), np.asarray(targets, np.float64)
    matrix = rows[:, :, None] * np.stack([targets**2, 1 - targets], axis=1)[:, None, :]
    parts = [matrix.reshape(len(rows), -1), rows * targets[:, None], np.stack([targets, targets], axis=1)]
    return np.concatenate(parts, axis=1)


def reference(every, present, clip):
    usable = present & np.isfinite(every).all(axis=1)
    every = np.where(usable[:, None], every, 0)
    norms = np.linalg.norm(every, axis=1, keepdims=True)
    return np.sum(every * np.minimum(1, clip / np.maximum(norms, 1e-300)), axis=0)


def data(number, columns, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(number, columns)) * 10 ** rng.uniform(-2, 1, size=(number, 1))
    return rows.astype(np.float32), rng.normal(size=number).astype(np.float32)


def total(records, present, clip, vector=contribution):
    with isolated_jax_config():
        return np.asarray(jax.jit(lambda *given: clipped_sum(vector, *given, clip))(records, present))


# ---- what is added up


@pytest.mark.parametrize(("number", "columns"), [(2, 3), (127, 2), (128, 3), (1000, 7), (3000, 101)])
def test_agrees_with_numpy(number, columns):
    records = data(number, columns)
    present = np.random.default_rng(1).random(number) < 0.8
    np.testing.assert_allclose(
        total(records, present, 1.0), reference(vectors(*records), present, 1.0), rtol=1e-5, atol=2e-6 * number
    )


@pytest.mark.parametrize("elements", [2, 1500, 4000])
def test_blocks_count_every_record_once(monkeypatch, elements):
    monkeypatch.setattr(memory, "_ROW_ELEMENTS", elements)
    monkeypatch.setattr(memory, "_ELEMENTS", elements)
    records, present = data(700, 3), np.arange(700) % 5 > 0
    np.testing.assert_allclose(
        total(records, present, 0.5), reference(vectors(*records), present, 0.5), rtol=1e-5, atol=1e-3
    )


def test_an_infinite_clip_does_not_clip():
    records = data(300, 4)
    np.testing.assert_allclose(
        total(records, np.ones(300, bool), np.inf), vectors(*records).sum(axis=0), rtol=1e-4, atol=1e-3
    )


# ---- what is left out


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("place", [0, 1])
def test_absent_records_contribute_nothing_whatever_they_hold(junk, place):
    records, present = data(300, 4), np.arange(300) % 7 > 0
    expected = total(records, present, 1.0)
    records[place][~present] = junk
    np.testing.assert_array_equal(total(records, present, 1.0), expected)


@pytest.mark.parametrize("junk", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("place", [0, 1])
def test_records_that_are_not_finite_or_too_long_contribute_nothing(junk, place):
    records, present = data(300, 4), np.ones(300, bool)
    expected = total(records, np.arange(300) != 5, 1.0)
    records[place][5] = junk
    np.testing.assert_array_equal(total(records, present, 1.0), expected)


@pytest.mark.parametrize("junk", [np.nan, np.inf])
def test_a_coefficient_of_zero_does_not_save_a_row_that_is_not_finite(junk):
    rows = np.ones((4, 3), np.float32)
    rows[2, 1] = junk
    found = total((rows, np.zeros(4, np.float32)), np.ones(4, bool), 1.0, lambda record: Outer(*record))
    np.testing.assert_array_equal(found, 0)


# ---- how long a record may get

floats = st.floats(-(2.0**90), 2.0**90, width=32)


@functools.cache
def compiled_norms(columns):
    return jax.jit(row_norms)


@settings(max_examples=200, deadline=None, phases=[Phase.generate])
@given(st.lists(st.lists(floats, min_size=3, max_size=3), min_size=2, max_size=2))
def test_norms_of_rows_are_never_below_the_true_ones(rows):
    rows = np.array(rows, np.float32)
    with isolated_jax_config():
        found = np.asarray(compiled_norms(3)(rows))
    true = np.sqrt(np.sum(rows.astype(np.longdouble) ** 2, axis=1))
    assert (found >= true).all()
    assert (found <= true * (1 + 1e-13) + 2.0**-124).all()


def test_norms_of_many_wide_rows_are_never_below_the_true_ones():
    """In blocks, and by the compiler's own sums: they are in float64 there, too."""
    rows = np.random.default_rng(0).lognormal(0, 15, size=(2500, 300)).astype(np.float32)
    with isolated_jax_config():
        found = np.asarray(jax.jit(row_norms)(rows))
    true = np.sqrt(np.sum(rows.astype(np.longdouble) ** 2, axis=1))
    assert ((found >= true) & (found <= true * (1 + 1e-12))).all()


def longest_over_clip(rows, targets, clip, clipped=_clipped_numbers):
    """The largest norm of what a record adds, over the clip, in extended precision."""
    records = np.asarray(rows, np.float32), np.asarray(targets, np.float32)
    with isolated_jax_config():
        one = tuple(jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in records)
        found = layout(contribution, one)

        @jax.jit
        def numbers(rows, targets):
            given = jnp.stack([targets**2, 1 - targets, targets, targets, targets])
            block = Products(given, rows, row_norms(rows), found.coefficients, found)
            return clipped(block, jnp.ones(len(rows), bool), clip)

        scaled = np.asarray(numbers(*records)).astype(np.longdouble)
    norms = np.sum(records[0].astype(np.longdouble) ** 2, axis=1)
    squares = np.sum(scaled[:3] ** 2, axis=0) * norms + np.sum(scaled[3:] ** 2, axis=0)
    return float(np.max(np.sqrt(squares)) / clip)


@pytest.mark.parametrize("clip", [2.0**-60, 1e-6, 1.0, 2.0**60])
def test_no_record_is_longer_than_the_clip(clip):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5000, 4)) * 10 ** rng.uniform(-30, 25, size=(5000, 1))
    targets = rng.normal(size=5000) * 10 ** rng.uniform(-12, 12, size=5000)
    assert longest_over_clip(rows, targets, clip) <= 1 + 2.0**-22


def test_the_check_of_lengths_rejects_clipping_without_rows():
    def broken(block, usable, clip):
        return _clipped_numbers(block._replace(norms=jnp.ones_like(block.norms)), usable, clip)

    assert longest_over_clip(2 * np.ones((3, 4)), np.ones(3), 1.0, broken) > 1.5


def test_many_records_of_one_direction_keep_the_sensitivity():
    """Half a million records of norm C: without float64 between chunks, rounding alone moves the sum by more than C."""
    rows = np.tile(np.random.default_rng(0).normal(size=(1, 3)), (500_000, 1)).astype(np.float32)
    targets = np.ones(len(rows), np.float32)
    records, everybody = (rows, targets), np.ones(len(rows), bool)
    whole = total(records, everybody, 0.1, lambda record: Outer(*record))
    without = total(records, np.arange(len(rows)) != 77, 0.1, lambda record: Outer(*record))
    assert np.linalg.norm(whole - without) <= 0.1 * (1 + clipping.ROUNDING)


# ---- memory


def test_memory_is_bounded_for_a_million_records():
    """No array is larger than a block, but the norms: one number for each record."""
    million = jax.ShapeDtypeStruct((10**6, 100), jnp.float32), jax.ShapeDtypeStruct((10**6,), jnp.float32)
    present = jax.ShapeDtypeStruct((10**6,), bool)
    largest = largest_intermediate(lambda r, p: clipped_sum(lambda record: Outer(*record), r, p, 1.0), million, present)
    assert largest <= 10**6
