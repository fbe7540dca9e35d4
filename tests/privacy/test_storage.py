"""Records on disk: the same bits as in memory, read where they are, in private files without a name."""

import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from support.every_method import data, solved

import dpbilevel as dpb
from dpbilevel.privacy import storage as storage_module
from dpbilevel.privacy.memory import Memory, Reserved, reserved
from dpbilevel.privacy.storage import Storage, read_rows

KEY = b"k" * 32


def rows(number, columns=4, seed=0, kind=np.float64):
    draws = np.random.default_rng(seed)
    return (draws.normal(size=(number, columns)) / 4).astype(kind), draws.integers(0, 2, number)


# ---- the same records


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("units", [{}, {"unit": np.arange(500) // 3, "rows_per_unit": 2}])
def test_records_on_disk_are_those_in_memory(tmp_path, kind, units):
    matrix, labels = rows(500, kind=kind)
    np.save(tmp_path / "rows.npy", matrix)
    arrays = np.load(tmp_path / "rows.npy", mmap_mode="r"), labels
    one, other = (dpb.Records(lower=arrays, **units, storage=where) for where in (None, tmp_path))
    assert one.seal(KEY) == other.seal(KEY)
    assert one.sizes == other.sizes
    assert (one.is_on_disk, other.is_on_disk) == (False, True)


def test_arrays_of_all_kinds_are_stored_alike(tmp_path):
    valid = np.arange(300) % 7 > 0
    arrays = [*rows(300, kind=np.float32), np.ones((300, 2, 2), np.float32), np.ones((300, 3), bool)]
    one, other = (Memory.filled(arrays, valid, where) for where in (None, Storage(tmp_path)))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for leaf, same in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert leaf.dtype == same.dtype
        np.testing.assert_array_equal(leaf, same)


@pytest.mark.parametrize("invalid", ["refuse", "zero"])
def test_invalid_records_are_found(tmp_path, invalid):
    matrix, labels = rows(300)
    matrix[7, 1], labels[8] = 1e300, 2**40
    if invalid == "refuse":
        with pytest.raises(dpb.errors.InvalidRecords, match="finite values"):
            dpb.Records(lower=(matrix, labels), storage=tmp_path)
        return
    one, other = (dpb.Records(lower=(matrix, labels), invalid=invalid, storage=where) for where in (None, tmp_path))
    assert one.seal(KEY) == other.seal(KEY)


@pytest.mark.parametrize("method", ["Tracking", "Tracking, Poisson"])
@pytest.mark.filterwarnings("ignore::dpbilevel.errors.UtilityWarning")
def test_a_run_releases_the_same_bits(tmp_path, method):
    one, other = (solved(method, dpb.Records(**data(), storage=where), seed=0) for where in (None, tmp_path))
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.y, other.y)


# ---- where they are


def test_arrays_are_files(tmp_path):
    array = reserved(300, (4,), np.float32, Storage(tmp_path))
    memory = Memory.filled(array, np.ones(300, bool), Storage(tmp_path))
    assert memory.arrays.ctypes.data == array.ctypes.data
    mappings = Path("/proc/self/maps").read_text().splitlines()
    mapping = next(line for line in mappings if _holds(line, array.ctypes.data))
    assert str(tmp_path) in mapping
    assert "(deleted)" in mapping


@pytest.mark.parametrize("kind", [np.float32, np.int64, bool])
@pytest.mark.parametrize("where", ["disk", "memory"])
def test_rows_are_read_from_the_file(tmp_path, kind, where):
    array = reserved(300, (4,), kind, Storage(tmp_path) if where == "disk" else None)
    array[...] = np.random.default_rng(0).integers(0, 2, (300, 4))
    out = np.full((100, 4), 1, kind)
    for first in (0, 7, 200):
        read_rows(array.whole, first, out)
        np.testing.assert_array_equal(out, array[first : first + 100])


def test_what_the_system_reads_in_pieces_is_joined(tmp_path, monkeypatch):
    array, true = Storage(tmp_path).zeros(1000), os.preadv
    array[:] = np.arange(1000) % 251
    monkeypatch.setattr(os, "preadv", lambda handle, rooms, begin: true(handle, [rooms[0][:300]], begin))
    out = np.zeros(900, np.uint8)
    read_rows(array, 100, out)
    np.testing.assert_array_equal(out, array[100:])


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "as a disk says it"), 0])
def test_a_disk_that_fails_raises(tmp_path, monkeypatch, failure):
    array = Storage(tmp_path).zeros(1000)

    def fails(*_):
        if isinstance(failure, OSError):
            raise failure
        return failure

    monkeypatch.setattr(os, "preadv", fails)
    with pytest.raises(dpb.StorageFailed, match="a checkpoint resumes the run") as raised:
        read_rows(array, 0, np.zeros(1000, np.uint8))
    assert not any(character.isdigit() for character in str(raised.value))


def test_a_file_is_closed_with_its_last_array(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    array = Storage(tmp_path).zeros(1000)[10:].view(np.uint16)
    assert len(os.listdir("/proc/self/fd")) > before
    del array
    assert len(os.listdir("/proc/self/fd")) == before


def _holds(line, address):
    first, last = (int(part, 16) for part in line.split()[0].split("-"))
    return first <= address < last


def test_what_is_reserved_on_disk_is_not_copied(tmp_path):
    array = reserved(300, (4,), np.float32, Storage(tmp_path))
    assert isinstance(array, Reserved)
    written, true = [], Storage.zeros
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Storage, "zeros", lambda self, size: written.append(size) or true(self, size))
        dpb.Records(lower=array, storage=tmp_path)
    assert written == [384 * 8]  # their norms


def is_private(storage):
    """Whether a file is for its owner only, and has no name while it is used."""
    handle = storage._nameless()
    try:
        found = os.fstat(handle)
        return stat.S_IMODE(found.st_mode) == 0o600 and found.st_nlink == 0 and not list(storage.folder.iterdir())
    finally:
        os.close(handle)


@pytest.mark.parametrize("has_nameless", [True, False])
def test_files_are_private_and_have_no_name(tmp_path, monkeypatch, has_nameless):
    if not has_nameless:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    assert is_private(Storage(tmp_path))
    records = dpb.Records(lower=rows(300), storage=tmp_path)
    assert not list(tmp_path.iterdir())
    del records
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_file_with_a_name_or_for_others_is_noticed(tmp_path, monkeypatch, mode):
    class Mutant(Storage):
        def _nameless(self):
            handle = os.open(self.folder / "rows", os.O_CREAT | os.O_RDWR, mode)
            if mode != 0o600:
                os.unlink(self.folder / "rows")
            return handle

    assert not is_private(Mutant(tmp_path))


# ---- what is refused, before a charge


@pytest.mark.parametrize("folder", ["nowhere", 3, "a file"])
def test_a_folder_must_exist(tmp_path, folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a file").touch()
    with pytest.raises(dpb.errors.InvalidArgument, match=r"storage=.*must be a folder that exists"):
        dpb.Records(lower=rows(10), storage=folder)


@pytest.mark.parametrize(
    ("code", "rule"), [(errno.ENOSPC, "has no room left for the records"), (errno.EIO, "cannot be written to")]
)
def test_a_disk_that_is_full_is_noticed_before_anything_is_charged(tmp_path, monkeypatch, code, rule):
    def fails(*_):
        raise OSError(code, "as a disk says it")

    monkeypatch.setattr(os, "posix_fallocate", fails)
    with pytest.raises(dpb.errors.InvalidArgument, match=rule) as raised:
        dpb.Records(lower=rows(10), storage=tmp_path)
    assert raised.value.__context__ is None
    assert not any(character.isdigit() for character in str(raised.value).replace(str(tmp_path), ""))


def test_space_is_taken_when_an_array_is_made(tmp_path):
    free = os.statvfs(tmp_path)
    array = Storage(tmp_path).zeros(2**26)
    now = os.statvfs(tmp_path)
    assert len(array) == 2**26
    assert (free.f_bfree - now.f_bfree) * free.f_frsize > 2**25


def test_systems_that_map_no_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(storage_module, "os", SimpleNamespace(name="nt", PathLike=os.PathLike))
    with pytest.raises(dpb.errors.InvalidArgument, match="storage: is for systems like Linux"):
        dpb.Records(lower=rows(10), storage=tmp_path)


def test_black_boxes_are_refused_before_the_charge(tmp_path):
    ledger = dpb.Ledger(dpb.Budget(10.0, 1e-3), composition="basic")
    with pytest.raises(dpb.errors.InvalidArgument, match="a black box receives its records as arrays in memory"):
        solved("DPBilevel, black box", dpb.Records(**data(), storage=tmp_path), ledger=ledger)
    assert not ledger.entries
