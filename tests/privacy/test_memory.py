"""Records in memory: copies with room for chunks, zeros for invalid records, norms, and a block without copies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.memory import largest_intermediate

from dpbilevel.privacy import buffer, memory
from dpbilevel.privacy.clipping import clipped_sum
from dpbilevel.privacy.memory import CHUNK, Memory, reserved, room
from dpbilevel.privacy.outer import Outer
from dpbilevel.privacy.products import row_norms
from dpbilevel.records import isolated_jax_config


def stored(arrays, valid=None):
    number = len(jax.tree.leaves(arrays)[0])
    with isolated_jax_config():
        return Memory.stored(arrays, np.ones(number, bool) if valid is None else valid)


def records(number, columns=5, seed=0):
    draws = np.random.default_rng(seed)
    return draws.normal(size=(number, columns)).astype(np.float32), draws.normal(size=number).astype(np.float32)


def total(source, present, clip=0.5, contribution=lambda record: Outer(*record)):
    with isolated_jax_config():
        return np.asarray(jax.jit(lambda *given: clipped_sum(contribution, *given, clip))(source, present))


# ---- arrays


@pytest.mark.parametrize(("number", "length"), [(1, 1), (100, 100), (128, 128), (129, 256), (1000, 1024)])
def test_arrays_have_room_for_whole_chunks_and_zeros_there(number, length):
    assert room(number) == length
    rows, targets = records(number)
    found = stored((rows, targets))
    for leaf, given in zip(found.arrays, (rows, targets), strict=True):
        assert leaf.shape == (length, *given.shape[1:])
        np.testing.assert_array_equal(leaf[:number], given)
        np.testing.assert_array_equal(leaf[number:], 0)


def test_norms_are_those_of_the_stored_rows():
    found = stored(records(300))
    np.testing.assert_array_equal(found.norms[0], row_norms(np.asarray(found.arrays[0])))
    assert found.norms[0].dtype == np.float64


@pytest.mark.parametrize("number", [100, 5000])
def test_numpy_and_compiled_programs_measure_alike(number):
    rows = np.random.default_rng(0).lognormal(0, 15, size=(number, 30)).astype(np.float32)
    true = np.sqrt(np.sum(rows.astype(np.longdouble) ** 2, axis=1))
    with isolated_jax_config():
        compiled = np.asarray(jax.jit(row_norms)(jnp.asarray(rows)))
    for found in (row_norms(rows), compiled):
        assert ((found >= true) & (found <= true * (1 + 1e-12))).all()


def test_only_matrices_of_real_numbers_are_measured():
    arrays = tuple(
        np.ones(shape, kind) for shape, kind in (((4, 3), "f4"), (4, "f4"), ((4, 3), "i4"), ((4, 2, 2), "f4"))
    )
    assert [norms is None for norms in stored(arrays).norms] == [False, True, True, True]


def test_shapes_are_those_of_what_is_stored():
    arrays = records(300)
    with isolated_jax_config():
        expected = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), stored(arrays))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), Memory.shapes(arrays)) == expected
    assert jax.tree.map(lambda leaf: leaf.shape, stored(arrays).records(300)) == ((300, 5), (300,))


@pytest.mark.parametrize("junk", [np.nan, np.inf])
def test_invalid_records_are_stored_as_zeros(junk):
    rows, targets = records(300)
    valid = np.arange(300) % 7 > 0
    rows[~valid, 1] = junk
    found = stored((rows, targets), valid)
    for leaf in found.arrays:
        np.testing.assert_array_equal(np.asarray(leaf)[:300][~valid], 0)
    assert np.isfinite(total(found, valid)).all()
    assert np.isnan(rows[0, 1]) or np.isinf(rows[0, 1]), "the caller's array changed"


def test_nan_that_is_not_stored_as_zeros_is_noticed(monkeypatch):
    """The mutation that the test above must detect: rows are read as they are, and zero times NaN is NaN."""
    true = memory._filled
    monkeypatch.setattr(memory, "_filled", lambda leaf, valid, storage: true(leaf, np.ones_like(valid), storage))
    rows, targets = records(300)
    rows[0, 1] = np.nan
    assert np.isnan(total(stored((rows, targets), np.arange(300) > 0), np.arange(300) > 0)).any()


def test_stored_arrays_are_copies():
    rows, targets = records(256)
    found = stored((rows, targets))
    before = np.array(found.arrays[0])
    rows[:] = 7
    np.testing.assert_array_equal(found.arrays[0], before)


def test_a_reserved_array_is_stored_without_a_copy():
    array = reserved(300, (4,), np.float32)
    array[...] = 3
    assert not np.any(array.whole[300:])
    if jax.default_backend() == "cpu":
        assert stored(array).arrays.unsafe_buffer_pointer() == array.ctypes.data


def test_a_part_of_a_reserved_array_is_an_array_as_any_other():
    array = reserved(300, (4,), np.float32)
    array[...] = np.arange(300)[:, None]
    for part in (array[10:], array + 0, array.copy()):
        np.testing.assert_array_equal(stored(part).arrays[: len(part)], np.asarray(part))


# ---- sums


@pytest.mark.parametrize("number", [2, 100, 129, 1000, 3000])
def test_a_sum_over_stored_records_is_that_over_plain_arrays(number):
    arrays, present = records(number), np.random.default_rng(1).random(number) < 0.8
    np.testing.assert_allclose(total(stored(arrays), present), total(arrays, present), rtol=1e-5, atol=1e-5)


def test_a_sum_in_blocks_is_that_in_one_block(monkeypatch):
    arrays, present = stored(records(3000)), np.arange(3000) % 5 > 0
    whole = total(arrays, present)
    monkeypatch.setattr(memory, "_NUMBERS", 100)
    np.testing.assert_allclose(total(arrays, present), whole, rtol=1e-5, atol=1e-5)


def test_one_block_holds_nothing_as_large_as_the_rows():
    """The rows are read where they are, in the optimised program too."""
    number, columns = 4 * CHUNK, 300
    arrays = Memory.shapes(
        (jax.ShapeDtypeStruct((number, columns), jnp.float32), jax.ShapeDtypeStruct((number,), "f4"))
    )

    def summed(arrays, present):
        return clipped_sum(lambda record: Outer(*record), arrays, present, 1.0)

    present = jax.ShapeDtypeStruct((number,), bool)
    with isolated_jax_config():
        analysis = jax.jit(summed).lower(arrays, present).compile().memory_analysis()
    assert analysis.temp_size_in_bytes < 4 * number * columns / 2
    assert largest_intermediate(summed, arrays, present) <= number * columns


def test_a_single_coefficient_has_a_line_of_zeros_beside_it_on_accelerators(monkeypatch):
    """Their compilers make no matrix product of one coefficient. The sum, and which records are usable, stay."""
    rows, targets = records(1000)
    rows[3] *= 1e30
    targets[3] = 1e30
    present = np.arange(1000) % 7 > 0

    def contribution(record):
        return {"outer": Outer(*record), "other": record[1]}

    expected = total((rows, targets), present, contribution=contribution)
    lines = []

    def stored_once(parts):
        lines.extend(parts)
        return buffer.stored_once(parts)

    monkeypatch.setattr(memory, "stored_once", stored_once)
    monkeypatch.setattr(memory.jax, "default_backend", lambda: "gpu")
    found = total((rows, targets), present, contribution=contribution)
    assert len(lines) == 3
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
