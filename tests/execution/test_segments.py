"""Passes over records on disk: every record once, in segments that memory has room for, and the answers of memory."""

import threading

import jax
import numpy as np
import pytest
from support import unit_neighbours as units
from support.every_method import BUDGET, METHODS, PROBLEM, START, data, solved

import dpbilevel as dpb
from dpbilevel.execution import segments
from dpbilevel.execution.parts import Observer
from dpbilevel.execution.program import Program, Stage
from dpbilevel.execution.segments import Segments
from dpbilevel.privacy import bundles, storage
from dpbilevel.privacy.bundles import as_bundles, units_at
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.memory import Memory
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.second_moments import SecondMoments
from dpbilevel.privacy.storage import Storage
from dpbilevel.privacy.units import Selection

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning", "ignore::dpbilevel.NotPrivateWarning")

NUMBER = 1000
ROWS = np.random.default_rng(0).normal(size=(NUMBER, 3)).astype(np.float32) / 4
PLACES = np.random.default_rng(1).integers(0, NUMBER, 700)
UNITS = 300  # some without rows, and others with more than are used
OWNERS = np.random.default_rng(3).integers(0, UNITS - 1, NUMBER)
BATCH_OF_UNITS = np.random.default_rng(4).integers(0, UNITS, 450)


@pytest.fixture(params=[2**25, 5000, 40], ids=["one segment", "several", "many"])
def _size(request, monkeypatch):
    """A size of segments, in bytes: for all records, for some hundreds, and for a few."""
    monkeypatch.setattr(segments, "_SEGMENT", request.param)


@pytest.fixture
def several(monkeypatch):
    monkeypatch.setattr(segments, "_SEGMENT", 5000)


# ---- which records are read


def read(segments):
    """The present rows of all segments, in order."""
    return np.concatenate([memory.arrays[: len(mask)][mask] for memory, mask in segments])


def stored(where, folder):
    return Memory.filled(ROWS, np.ones(NUMBER, bool), Storage(folder) if where == "disk" else None)


@pytest.mark.parametrize("where", ["disk", "memory"])
@pytest.mark.parametrize("places", [None, PLACES], ids=["all", "a batch"])
@pytest.mark.usefixtures("_size")
def test_every_record_is_in_one_segment(tmp_path, where, places):
    present = np.random.default_rng(2).random(NUMBER if places is None else len(places)) < 0.9
    rows = ROWS if places is None else ROWS[places]
    np.testing.assert_array_equal(read(Segments(stored(where, tmp_path), present, places)), rows[present])


def packed(folder):
    """Units on disk, whose rows lie one after another."""
    chosen = Selection.of(OWNERS, 4, np.arange(UNITS))
    return Memory.filled(chosen.packed(ROWS, np.ones(UNITS, bool), Storage(folder)), np.ones(UNITS, bool))


def reads_every_row(memory, places):
    """Whether segments have the units of memory, with their rows and no others."""
    chosen = np.arange(UNITS) if places is None else places
    whole, present = as_bundles(units_at(memory.arrays, chosen), len(chosen)), np.ones(len(chosen), bool)
    found = [as_bundles(part.arrays, len(mask)) for part, mask in Segments(memory, present, places)]
    return all(
        np.array_equal(leaf, np.concatenate(parts)[: len(leaf)])
        for leaf, parts in zip(jax.tree.leaves(whole), zip(*map(jax.tree.leaves, found), strict=True), strict=True)
    )


@pytest.mark.parametrize("places", [None, BATCH_OF_UNITS], ids=["all", "a batch"])
@pytest.mark.usefixtures("_size")
def test_every_row_of_a_unit_is_in_its_segment(tmp_path, places):
    assert reads_every_row(packed(tmp_path), places)


@pytest.mark.usefixtures("several")
def test_rows_that_are_read_from_another_unit_on_are_noticed(tmp_path, monkeypatch):
    """A mutation: each segment begins with the first rows of all."""
    true = bundles.read_rows
    monkeypatch.setattr(bundles, "read_rows", lambda leaf, first, out: true(leaf, 0, out))
    assert not reads_every_row(packed(tmp_path), None)


@pytest.mark.parametrize("number", [1, 2, 127, 128, 129, 1000])
@pytest.mark.usefixtures("several")
def test_segments_have_one_shape(number):
    memory = Memory.filled(ROWS[:number], np.ones(number, bool))
    shapes = {
        (mask.shape, *(leaf.shape for leaf in jax.tree.leaves(part)))
        for part, mask in Segments(memory, np.ones(number, bool))
    }
    assert len(shapes) == 1
    ((mask, *leaves),) = shapes
    assert all(leaf[0] >= mask[0] for leaf in leaves)


@pytest.mark.usefixtures("several")
def test_what_is_absent_is_zero_in_the_last_segment():
    *_, (last, mask) = Segments(Memory.filled(ROWS, np.ones(NUMBER, bool)), np.ones(NUMBER, bool))
    assert not mask.all()
    assert not last.arrays[~mask].any()


@pytest.mark.usefixtures("several")
def test_two_segments_are_in_memory(tmp_path):
    memory = stored("disk", tmp_path)
    addresses = [part.arrays.ctypes.data for part, _ in Segments(memory, np.ones(NUMBER, bool))]
    assert len(addresses) > 3
    assert len(set(addresses)) == 2
    assert addresses[::2] == [addresses[0]] * len(addresses[::2])


def is_kept_while_the_next_is_read(folder, monkeypatch):
    """Whether the first segment is what it was once all of the second one has been read."""
    done, true = threading.Semaphore(0), segments.read_rows
    monkeypatch.setattr(segments, "read_rows", lambda *given: (true(*given), done.release()))
    reading = iter(Segments(stored("disk", folder), np.ones(NUMBER, bool)))
    first, _ = next(reading)
    for _ in range(2 * len(jax.tree.leaves(first))):
        assert done.acquire(timeout=60)
    return np.array_equal(first.arrays, ROWS[: len(first.arrays)])


@pytest.mark.usefixtures("several")
def test_a_segment_is_kept_while_the_next_is_read(tmp_path, monkeypatch):
    assert is_kept_while_the_next_is_read(tmp_path, monkeypatch)


@pytest.mark.usefixtures("several")
def test_one_place_for_all_segments_is_noticed(tmp_path, monkeypatch):
    """The mutation: the next segment is read to where the current one is."""
    true, places = segments.reserved, {}
    monkeypatch.setattr(
        segments, "reserved", lambda number, shape, dtype: places.setdefault((shape, dtype), true(number, shape, dtype))
    )
    assert not is_kept_while_the_next_is_read(tmp_path, monkeypatch)


# ---- answers


def row(point, record):
    return record + point


def asking(kind, **options):
    declared = {"lower": dpb.Contribution(row, 1.0, NUMBER)}
    release = (SecondMoments if kind == "moments" else dpb.Release)(
        name=kind, contributions=declared, noise_std=1e-3, uses=6, **options
    )
    return release.discretized(9 if kind == "moments" else 3) if kind in ("exact", "moments, exact") else release


def carried(state, carry, step):
    return carry["sum"][:3]


def added(state, carry, answer, step):
    """Answers, with the number of the step, so that another order would be noticed."""
    return {"sum": 0.5 * carry["sum"] + (step + 1) * answer.reshape(-1)[:3], "last": answer.reshape(-1)[:3]}


def program(release):
    stage = Stage(
        release=release,
        uses_per_round=3,
        begin=lambda state: {"sum": state, "last": state},
        query=carried,
        update=added,
        end=lambda state, carry: carry["sum"] + state,
    )
    free = Stage(release=None, update=lambda state, carry, answer, step: 2 * carry)
    return Program(
        rounds=2,
        stages=[stage, free],
        start=lambda x, y: x,
        observe=lambda state: {"state": state},
        finish=lambda state: (state, state),
    )


def answers(release, where, **observed):
    records = dpb.Records(lower=ROWS, storage=where)
    asked = program(release)
    arguments = asked, Receipt(asked.releases), KeySchedule(0), np.zeros(3, np.float32), 2, 0, Observer(**observed)
    return records.execute(*arguments)[1]["state"]


SAMPLINGS = {
    "full batch": {},
    "Poisson": {"sampling": dpb.Poisson(0.3)},
    "without replacement": {"sampling": dpb.WithoutReplacement(300)},
    "with replacement": {"sampling": dpb.WithReplacement(300)},
    "moments": {},
}


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_answers_have_the_bits_of_memory_in_one_segment(tmp_path, kind):
    release = asking(kind, **SAMPLINGS[kind])
    np.testing.assert_array_equal(answers(release, tmp_path), answers(release, None))


@pytest.mark.parametrize("kind", SAMPLINGS)
@pytest.mark.usefixtures("several")
def test_answers_in_several_segments_differ_by_rounding(tmp_path, kind):
    release = asking(kind, **SAMPLINGS[kind])
    np.testing.assert_allclose(answers(release, tmp_path), answers(release, None), rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("several")
def test_integers_have_the_same_bits_in_any_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(Program, "draws", lambda self, rounds: tuple(map(zeros, self.draw_shapes(rounds))))
    exact = asking("exact")
    np.testing.assert_array_equal(answers(exact, tmp_path), answers(exact, None))


def zeros(shape):
    return np.zeros(shape, np.uint32)


def test_progress_is_told_after_every_use(tmp_path):
    told = []
    answers(asking("full batch"), tmp_path, advance=told.append)
    assert told == [1] * 6


@pytest.mark.usefixtures("several")
def test_a_segment_that_is_summed_twice_is_noticed(tmp_path, monkeypatch):
    """A mutation: one record would count twice, and its neighbours' answers be twice as far apart."""
    true = Segments.__iter__
    monkeypatch.setattr(Segments, "__iter__", lambda self: (part for found in true(self) for part in (found, found)))
    release = asking("full batch")
    assert not np.allclose(answers(release, tmp_path), answers(release, None), rtol=1e-2)


@pytest.mark.usefixtures("several")
def test_sums_of_segments_are_compensated(monkeypatch):
    """The sum of a large segment and of many small ones: in plain float64 these would be lost."""
    parts = iter([np.array([2.0**53]), *[np.array([1.0])] * 4, np.array([-(2.0**53)])])
    monkeypatch.setattr(segments, "_sum", lambda *_: next(parts))
    memory = Memory.filled(np.ones((1500, 3), np.float32), np.ones(1500, bool))
    six = Segments(memory, np.ones(1500, bool))
    assert len(list(six)) == 6
    assert segments._total(None, False, (), "lower", six).tolist() == [4.0]


# ---- whole runs


@pytest.mark.parametrize("name", ["Tracking", "DPBilevel, without replacement"])
def test_whole_runs_release_the_same_bits(tmp_path, name):
    one, other = (solved(name, dpb.Records(**data(), storage=where), seed=0) for where in (None, tmp_path))
    jax.tree.map(np.testing.assert_array_equal, (one.x, one.y, one.history), (other.x, other.y, other.history))


@pytest.mark.usefixtures("several")
def test_runs_on_units_in_several_segments_differ_by_rounding(tmp_path):
    one, other = (
        solved("Tracking, Poisson", units.records(storage=where), seed=1).history["x"] for where in (None, tmp_path)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), one, other)


def test_a_disk_that_fails_in_a_run_leaves_a_charge_and_a_checkpoint(tmp_path, monkeypatch):
    ledger, options = dpb.Ledger(dpb.Budget(10.0, 1e-3)), {"checkpoint": tmp_path / "run.checkpoint"}
    true, reads = storage.read_rows, []

    def failing(*arguments):
        reads.append(1)
        if len(reads) > 4:
            raise dpb.StorageFailed("as storage says it")
        true(*arguments)

    def run(**more):
        method, records = METHODS["Tracking"], dpb.Records(**data(), storage=tmp_path)
        return dpb.solve(PROBLEM, records, BUDGET, method=method, start=START, seed=0, refit=None, **more)

    with monkeypatch.context() as patch:
        patch.setattr(segments, "read_rows", failing)
        with pytest.raises(dpb.StorageFailed):
            run(ledger=ledger, **options)
    assert len(ledger.entries) == 1
    np.testing.assert_array_equal(run(**options).y, run().y)


def test_exact_means_are_read_from_the_files(tmp_path):
    """Without privacy, a solver reads the mapped files, as it reads memory."""
    budget = dpb.Budget(float("inf"))
    one, other = (
        dpb.solve(PROBLEM, dpb.Records(**data(), storage=where), budget, start=START, refit=None)
        for where in (None, tmp_path)
    )
    np.testing.assert_array_equal(one.x, other.x)
