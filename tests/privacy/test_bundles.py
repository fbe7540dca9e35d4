"""Units in memory: bundles are the same however units are stored, and memory is that of their rows."""

import mmap
import os
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import unit_neighbours as units
from support.every_method import solved
from support.memory import largest_intermediate

import dpbilevel as dpb
from dpbilevel import records as records_module
from dpbilevel.estimators import DPLogisticRegressionCV
from dpbilevel.privacy import bundles, memory, preparing
from dpbilevel.privacy.bundles import Bundle, Packed, packed_shapes, place_dtype, units_from
from dpbilevel.privacy.clipping import clipped_sum
from dpbilevel.privacy.grid import Grid
from dpbilevel.privacy.memory import Memory
from dpbilevel.privacy.storage import Storage
from dpbilevel.privacy.units import Selection
from dpbilevel.records import isolated_jax_config

UNITS, MOST, COLUMNS = 37, 3, 2
KEY = b"k" * 32


def rows_of(unit, seed=0):
    """So many rows of units as ``unit`` has entries; those of one unit are the same for every number of others."""
    values = [[one, place, np.sin(7 * one + place + seed)] for place, one in _ranked(unit)]
    table = np.asarray(values, np.float32).reshape(-1, COLUMNS + 1)
    return table[:, :COLUMNS], table[:, COLUMNS]


def _ranked(unit):
    seen = dict.fromkeys(range(UNITS), 0)
    for one in unit.tolist():
        yield seen[one], one
        seen[one] += 1


def selected(unit, most=MOST):
    return Selection.of(np.asarray(unit), most, np.arange(UNITS))


TABLES = {
    "any number of rows": np.random.default_rng(0).integers(0, UNITS, 60),
    "all units are full": np.tile(np.arange(UNITS), MOST),
    "one row each": np.arange(UNITS),
    "more than are used": np.repeat(np.arange(UNITS), MOST + 2),
    "nobody has rows but the last": np.array([UNITS - 1]),
    "the first and the last have none": np.repeat(np.arange(1, UNITS - 1), 2),
}


@jax.jit
def _all_in_blocks(packed):
    """All units, five at a time, as a sum reads them."""
    parts = [units_from(packed, jnp.minimum(begin, UNITS - 5), 5) for begin in range(0, UNITS, 5)]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[: UNITS - 2], *parts)


def laid_out(chosen, arrays):
    with isolated_jax_config():
        return _all_in_blocks(chosen.packed(arrays, np.ones(UNITS, bool)))


def check_same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", TABLES)
def test_a_block_of_packed_units_has_the_bundles_of_units(name):
    chosen, arrays = selected(TABLES[name]), rows_of(TABLES[name])
    whole = chosen.bundled(arrays)
    check_same(laid_out(chosen, arrays), jax.tree.map(lambda leaf: leaf[: UNITS - 2], whole))
    held = Memory.stored(chosen.packed(arrays, np.ones(UNITS, bool)), np.ones(UNITS, bool))
    check_same(held.as_numpy(UNITS), whole)
    for unit, (rows, present) in enumerate(zip(whole.rows[0], whole.present, strict=True)):
        assert set(rows[:, 0].tolist()) == {unit if present.any() else 0}


def other_units_stay(unit, fresh, seed):
    """One unit gets other rows, any number of them: what is laid out for all others has the same bits."""
    rng = np.random.default_rng(seed)
    changed = int(rng.integers(0, UNITS - 2))
    without = unit[unit != changed]
    other = np.insert(without, np.sort(rng.integers(0, len(without) + 1, fresh)), changed)
    tables = (unit, rows_of(unit)), (other, rows_of(other, seed=9.0))
    # Rows of all others are those of the first table, wherever they are in the second.
    tables[1][1][1][other != changed] = tables[0][1][1][unit != changed]
    one, new = (laid_out(selected(ids), arrays) for ids, arrays in tables)
    check_same(*(jax.tree.map(lambda leaf: np.delete(leaf, changed, axis=0), tree) for tree in (one, new)))


@pytest.mark.parametrize("fresh", [0, 1, 3, 9])
@pytest.mark.parametrize("name", TABLES)
def test_other_rows_of_one_unit_change_no_other(name, fresh):
    other_units_stay(TABLES[name], fresh, seed=fresh)


def _rows_behind(first, number, most, xp):
    """A mutant: in the place of absent rows are those that follow, of other units."""
    slots = xp.arange(most, dtype=first.dtype)
    return slots < number[:, None], xp.minimum(first[:, None] + slots, UNITS * MOST - 1)


def _one_too_early(first, number, most, xp):
    """A mutant: units begin a row too early."""
    present, places = _PLACES(first, number, most, xp)
    return present, xp.maximum(places - 1, 0)


_PLACES = bundles._places


@pytest.mark.parametrize("mutant", [_rows_behind, _one_too_early])
def test_rows_of_other_units_are_noticed(mutant, monkeypatch):
    monkeypatch.setattr(bundles, "_places", mutant)
    _all_in_blocks.clear_cache()
    with pytest.raises(AssertionError):
        other_units_stay(TABLES["any number of rows"], 9, seed=9)
    _all_in_blocks.clear_cache()


def test_a_unit_with_an_invalid_row_has_no_rows():
    unit = TABLES["more than are used"]
    arrays, valid = rows_of(unit), np.ones(UNITS, bool)
    valid[5] = False
    arrays[0][unit == 5] = np.nan
    packed = selected(unit).packed(arrays, valid)
    assert (packed.number[5], packed.number.sum()) == (0, (UNITS - 1) * MOST)
    assert np.isfinite(packed.rows[0]).all()


# ------------------------------------------------------------------------------------------------------ released bits

PEOPLE = np.repeat(np.arange(60), 1 + np.arange(60) % 5)


def fitted():
    """Released second moments, gradients of a linear model, and its scale."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(len(PEOPLE), 3)) / 3
    model = DPLogisticRegressionCV(
        data_norm=1.0, classes=[0, 1], rows_per_unit=4, mean_rows=3, epsilon=8.0, delta=1e-3, random_state=0
    )
    return model.fit(X, (X[:, 0] > 0).astype(int), units=PEOPLE).solution_


def without_noise():
    problem = dpb.applications.regularization("squared", columns=3, row_norm=1.0)
    rows = np.random.default_rng(0).normal(size=(len(PEOPLE), 3)) / 3
    records = dpb.Records(
        upper=(rows, rows[:, 0]),
        lower=(rows, rows[:, 1]),
        unit={"upper": PEOPLE, "lower": 100 + PEOPLE},
        rows_per_unit=4,
    )
    return dpb.solve(problem, records, dpb.Budget(float("inf")), progress=False)


def with_k_places_each(monkeypatch):
    for module in (records_module, preparing):
        monkeypatch.setattr(module, "is_packed", lambda *_: False)


RUNS = {
    "tuning on Poisson batches": lambda: solved("Tracking, Poisson", units.records(), seed=1),
    "batches of fixed size": lambda: solved("DPBilevel, without replacement", units.records(), seed=1),
    "a linear model": fitted,
    "exact means": without_noise,
}


@pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning")
@pytest.mark.parametrize("name", RUNS)
def test_packed_units_release_the_bits_of_units_with_k_places_each(name, monkeypatch):
    one = RUNS[name]()
    with_k_places_each(monkeypatch)
    other = RUNS[name]()
    check_same((one.x, one.y, one.history), (other.x, other.y, other.history))


@pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning")
def test_packed_units_on_disk_release_the_same_bits(tmp_path):
    one, other = (
        solved("Tracking, Poisson", units.records(storage=where), seed=1).to_json()["history"]
        for where in (None, tmp_path)
    )
    assert one == other


def test_integers_of_packed_units_are_those_of_units_with_k_places_each():
    unit = TABLES["any number of rows"]
    chosen, arrays = selected(unit), rows_of(unit)
    grid, present = Grid.of("a", COLUMNS, {"lower": (1.0, UNITS)}), np.arange(UNITS) % 5 > 0

    def vector(bundle):
        rows, scores = bundle.rows
        return jnp.sum(jnp.where(bundle.present[:, None], jnp.sin(rows) * scores[:, None], 0), axis=0)

    with isolated_jax_config():
        summed = jax.jit(lambda held: grid.summed(vector, held, present, 1.0, UNITS))
        check_same(summed(chosen.packed(arrays, present)), summed(chosen.bundled(arrays)))


def test_the_seal_is_that_of_the_rows_however_they_lie(monkeypatch):
    ids = TABLES["any number of rows"]
    given = {"lower": rows_of(ids), "rows_per_unit": MOST}
    one, same, other = (dpb.Records(**given, unit=own).seal(KEY) for own in (ids, ids + 5, ids[::-1]))
    assert one == same != other
    with_k_places_each(monkeypatch)
    assert dpb.Records(**given, unit=ids).seal(KEY) == one


# ------------------------------------------------------------------------------------------------------------- memory

FEW, WIDE, LONG = 100_000, 8, 32  # units of two rows of so many numbers, and k


def resident():
    """The memory of this process that is backed by pages, in bytes."""
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def held_rows(storage=None):
    unit = np.repeat(np.arange(FEW), 2)
    rows = np.ones((len(unit), WIDE), np.float32)
    return Selection.of(unit, LONG).packed(rows, np.ones(FEW, bool), storage), rows.nbytes


@pytest.mark.skipif(not hasattr(mmap, "MAP_ANONYMOUS"), reason="the system backs all addresses by memory")
def test_units_take_the_memory_of_their_rows():
    before = resident()
    packed, size = held_rows()
    with isolated_jax_config():
        held = Memory.stored(packed, np.ones(FEW, bool))
        assert held.arrays.rows.unsafe_buffer_pointer() == packed.rows.ctypes.data, "a copy touches every page"
        summed = jax.jit(lambda held: clipped_sum(_row_sum, held, jnp.ones(FEW, bool), 1e3))
        assert np.array_equal(summed(held), np.full(WIDE, 2.0 * FEW))
    places = packed.rows.nbytes
    assert places > 15 * size
    assert resident() - before < size + 0.25 * places, "pages behind the last row were touched"


def _row_sum(unit):
    return jnp.sum(jnp.where(unit.present[:, None], unit.rows, 0), axis=0)


def test_units_on_disk_take_the_space_of_their_rows(tmp_path, monkeypatch):
    handles, true = [], Storage._nameless

    def kept(self):
        handles.append(os.dup(handle := true(self)))
        return handle

    monkeypatch.setattr(Storage, "_nameless", kept)
    packed, size = held_rows(Storage(tmp_path))
    found = os.fstat(handles[0])
    assert found.st_size == packed.rows.nbytes
    assert found.st_blocks * 512 < 1.2 * size
    for handle in handles:
        os.close(handle)


def test_no_program_holds_the_places_of_all_units():
    """Of two rows each or of k: shapes are the same, and a block is all that is laid out."""
    number = 2**19
    shapes = Bundle(
        jax.ShapeDtypeStruct((number, LONG, WIDE), jnp.float32), jax.ShapeDtypeStruct((number, LONG), np.dtype(bool))
    )
    held, present = Memory.shapes(packed_shapes(shapes)), jax.ShapeDtypeStruct((number,), bool)

    def summed(held, present):
        return clipped_sum(_row_sum, held, present, 1.0)

    with isolated_jax_config():
        analysis = jax.jit(summed).lower(held, present).compile().memory_analysis()
    assert analysis.temp_size_in_bytes < 3 * 4 * memory._ELEMENTS
    # The array of rows is seen as one of (units k) rows, which copies nothing.
    assert largest_intermediate(summed, held, present) <= number * LONG * WIDE


@pytest.mark.parametrize(("units", "kind"), [(2**26 - 1, np.int32), (2**26, np.int64)])
def test_places_have_the_bits_that_public_numbers_need(units, kind):
    assert place_dtype(units, 32) == kind


def test_places_of_64_bits_are_read_in_the_precision_of_losses():
    chosen, arrays = selected(TABLES["all units are full"]), rows_of(TABLES["all units are full"])
    packed = chosen.packed(arrays, np.ones(UNITS, bool))
    with jax.enable_x64(True):
        wide = jax.device_put(packed._replace(first=packed.first.astype(np.int64)))
        with jax.enable_x64(False):
            check_same(jax.jit(lambda held: units_from(held, 3, 7))(wide), jax.jit(lambda: units_from(packed, 3, 7))())


def test_more_addresses_than_there_are_is_a_typed_error(monkeypatch):
    def refused(*_, **__):
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refused)
    with pytest.raises(dpb.InvalidArgument, match="rows_per_unit: the system has no"):
        memory.untouched(10**6, (8, 100), np.float32, 10)


def test_a_system_without_such_pages_has_ordinary_ones(monkeypatch):
    monkeypatch.delattr(mmap, "MAP_ANONYMOUS", raising=False)
    chosen, arrays = selected(TABLES["one row each"]), rows_of(TABLES["one row each"])
    found = chosen.packed(arrays, np.ones(UNITS, bool))
    assert isinstance(found, Packed)
    np.testing.assert_array_equal(found.rows[1].reshape(-1)[:UNITS], arrays[1])
