"""What a ledger in a database survives, and what it refuses: damaged files, edited lines, races and kill -9."""

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ledger_racers import TOTAL, charge, happened

import dpbilevel as dpb
from dpbilevel.privacy.stores import tables


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The file of a sound ledger, with three data sets and six entries."""
    path = tmp_path_factory.mktemp("sound") / "ledger.db"
    for name, runs in (("first", 2), ("hospital", 4), ("last", 0)):
        ledger = dpb.Ledger.open(f"sqlite:///{path}", dataset=name, total=TOTAL)
        for number in range(runs):
            charge(ledger, 0.1 + 0.01 * number)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged")


def opened(path) -> dpb.Ledger:
    """As somebody opens it who would begin one if there were none: the way that could forget what was spent."""
    return dpb.Ledger.open(f"sqlite:///{path}", dataset="hospital", total=TOTAL)


@pytest.fixture
def copied(sound, tmp_path):
    return Path(shutil.copy(sound, tmp_path / "ledger.db"))


# --- damaged files -----------------------------------------------------------------------------------------------


def survives(path, entries) -> bool:
    """Whether a damaged ledger refuses, or else has kept everything and continues."""
    try:
        ledger = opened(path)
        charge(ledger, 0.1)
        return ledger.entries[:-1] == entries and ledger.total == TOTAL
    except (dpb.LedgerCorrupt, dpb.LedgerUnavailable):
        return True


POSITIONS = st.integers(0, 10**6)
DAMAGES = st.one_of(
    st.tuples(st.just("flip"), POSITIONS, st.integers(1, 255)),
    st.tuples(st.just("truncate"), POSITIONS, st.just(0)),
    st.tuples(st.just("zeros"), POSITIONS, st.sampled_from([1, 8, 100, 512, 4096])),
    st.tuples(st.just("repeat"), POSITIONS, st.sampled_from([1, 100, 4096])),
    st.tuples(st.just("append"), POSITIONS, st.sampled_from([1, 4096])),
    st.tuples(st.just("swap pages"), POSITIONS, POSITIONS),
)


def damaged(content: bytes, damage: tuple[str, int, int]) -> bytes:
    kind, where, how = damage
    at, page = where % len(content), 4096
    match kind:
        case "flip":
            return content[:at] + bytes([content[at] ^ how]) + content[at + 1 :]
        case "truncate":
            return content[:at]
        case "zeros":
            return content[:at] + bytes(min(how, len(content) - at)) + content[at + how :]
        case "repeat":
            return content[:at] + content[at : at + how] + content[at:]
        case "append":
            return content + bytes([where % 256]) * how
    first, second = (index % (len(content) // page) * page for index in (where, how))
    pages = bytearray(content)
    pages[first : first + page], pages[second : second + page] = (
        content[second : second + page],
        content[first : first + page],
    )
    return bytes(pages)


@pytest.fixture(scope="module")
def content(sound):
    return sound.read_bytes()


@settings(max_examples=100)
@given(damage=DAMAGES)
def test_a_damaged_file_is_refused_or_has_lost_nothing(sound, content, folder, damage):
    path = folder / "ledger.db"
    for leftover in folder.iterdir():
        leftover.unlink()
    path.write_bytes(damaged(content, damage))
    assert survives(path, opened(sound).entries)


@settings(max_examples=25)
@given(garbage=st.binary(max_size=300) | st.text(max_size=300).map(str.encode), header=st.booleans())
def test_a_file_of_something_else_is_refused(folder, garbage, header):
    path = folder / "garbage.db"
    path.write_bytes((b"SQLite format 3\0" if header else b"") + garbage)
    with pytest.raises((dpb.LedgerCorrupt, dpb.LedgerUnavailable)):
        opened(path)


def test_a_name_that_cannot_be_decoded_is_a_damage_like_others(copied, content):
    copied.write_bytes(content.replace(b"dpbilevel_ledger_entries", b"dpbilevel_l\x9adger_entries", 1))
    with pytest.raises(dpb.LedgerCorrupt):
        opened(copied)


def test_an_empty_file_is_refused_and_the_remedy_named(tmp_path):
    path = tmp_path / "ledger.db"
    path.touch()
    with pytest.raises(dpb.LedgerCorrupt, match=r"is empty.*restore its latest backup"):
        opened(path)
    assert path.stat().st_size == 0


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "ledger.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE bookmarks (address TEXT)")
    before = path.read_bytes()
    with pytest.raises(dpb.LedgerCorrupt, match="a database but not a ledger"):
        opened(path)
    assert path.read_bytes() == before


def test_a_ledger_whose_file_is_lost_is_not_created_beside_its_log(copied, tmp_path):
    copied.unlink()
    (tmp_path / "ledger.db-wal").write_bytes(b"charges")
    with pytest.raises(dpb.LedgerCorrupt, match=r"'ledger.db-wal' remains"):
        opened(copied)


def test_a_backup_that_is_put_back_under_an_open_ledger_is_noticed(copied, tmp_path):
    backup = tmp_path / "backup.db"
    backup.write_bytes(copied.read_bytes())
    ledger = opened(copied)
    charge(ledger, 0.1)
    os.replace(backup, copied)
    for look in (lambda: ledger.entries, ledger.spent, lambda: charge(ledger, 0.1)):
        with pytest.raises(dpb.LedgerCorrupt, match=r"that existed before are missing"):
            look()


# --- edited lines ------------------------------------------------------------------------------------------------

EDITS = {
    "a smaller epsilon": "UPDATE dpbilevel_ledger_entries SET epsilon = epsilon / 2 WHERE number = 2",
    "a smaller mu": "UPDATE dpbilevel_ledger_entries SET mu = mu * (1 - 1e-15) WHERE number = 2",
    "another type": "UPDATE dpbilevel_ledger_entries SET mu = 'none' WHERE number = 2",
    "another author": "UPDATE dpbilevel_ledger_entries SET user = 'somebody else' WHERE number = 4",
    "another time": "UPDATE dpbilevel_ledger_entries SET time = '2020-01-01' WHERE number = 1",
    "another plan": "UPDATE dpbilevel_ledger_entries SET plan = '{}' WHERE number = 3",
    "the last entry gone": "DELETE FROM dpbilevel_ledger_entries WHERE dataset = 'hospital' AND number = 4",
    "an early entry gone": "DELETE FROM dpbilevel_ledger_entries WHERE dataset = 'hospital' AND number = 1",
    "all entries gone": "DELETE FROM dpbilevel_ledger_entries",
    "entries and their count gone": "DELETE FROM dpbilevel_ledger_entries;"
    "UPDATE dpbilevel_ledger_datasets SET entries = 0",
    "entries given away": "UPDATE dpbilevel_ledger_entries SET dataset = 'last' WHERE dataset = 'hospital'",
    "entries without owner": "UPDATE dpbilevel_ledger_entries SET dataset = 'nobody' WHERE dataset = 'first'",
    "two entries swapped": "UPDATE dpbilevel_ledger_entries SET number = 5 - number + 10 WHERE dataset = 'hospital';"
    "UPDATE dpbilevel_ledger_entries SET number = number - 10 WHERE dataset = 'hospital'",
    "a larger total": "UPDATE dpbilevel_ledger_datasets SET epsilon = 20 WHERE name = 'hospital'",
    "no total": "UPDATE dpbilevel_ledger_datasets SET epsilon = 0 WHERE name = 'hospital'",
    "another unit": "UPDATE dpbilevel_ledger_datasets SET unit = 'one cell' WHERE name = 'hospital'",
    "another composition": "UPDATE dpbilevel_ledger_datasets SET composition = 'basic' WHERE name = 'hospital'",
    "no such composition": "UPDATE dpbilevel_ledger_datasets SET composition = 'free' WHERE name = 'hospital'",
    "another name": "UPDATE dpbilevel_ledger_datasets SET name = 'hospitol' WHERE name = 'hospital';"
    "UPDATE dpbilevel_ledger_entries SET dataset = 'hospitol' WHERE dataset = 'hospital'",
    "a data set gone": "DELETE FROM dpbilevel_ledger_datasets WHERE name = 'hospital';"
    "DELETE FROM dpbilevel_ledger_entries WHERE dataset = 'hospital'",
    "the last data set gone": "DELETE FROM dpbilevel_ledger_datasets WHERE name = 'last'",
    "all but the first data set gone": "DELETE FROM dpbilevel_ledger_datasets WHERE name <> 'first';"
    "DELETE FROM dpbilevel_ledger_entries WHERE dataset <> 'first'",
    "another format": "UPDATE dpbilevel_ledger SET format = 2",
    "no format": "DELETE FROM dpbilevel_ledger",
    "a table gone": "DROP TABLE dpbilevel_ledger_entries",
    "a column gone": "ALTER TABLE dpbilevel_ledger_entries RENAME COLUMN mu TO nu",
}


def edit(path, script: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as editor:
        editor.executescript(script)


def refuses_after(path, script: str) -> bool:
    edit(path, script)
    try:
        opened(path)
    except dpb.LedgerCorrupt:
        return True
    return False


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_ledger_is_refused(copied, name):
    assert refuses_after(copied, EDITS[name])


OF_ANOTHER_DATA_SET = {"the last data set gone", "another format", "no format", "entries without owner"}


@pytest.mark.parametrize("name", sorted(set(EDITS) - OF_ANOTHER_DATA_SET))
def test_an_edit_under_an_open_ledger_is_noticed_before_the_next_charge(copied, name):
    ledger = opened(copied)
    edit(copied, EDITS[name])
    with pytest.raises(dpb.LedgerCorrupt):
        charge(ledger, 0.01)


def test_mutant_a_ledger_that_does_not_check_its_chain_is_caught(copied, monkeypatch):
    monkeypatch.setattr(tables, "check_entries", lambda *_: None)
    assert not refuses_after(copied, EDITS["the last entry gone"])


def test_mutant_a_ledger_that_does_not_check_its_data_sets_is_caught(copied, monkeypatch):
    monkeypatch.setattr(tables, "check_datasets", lambda *_: None)
    assert not refuses_after(copied, EDITS["all but the first data set gone"])  # it was created again, at zero


def test_a_database_that_changes_what_is_written_charges_nothing(copied):
    ledger = opened(copied)
    before = ledger.entries
    edit(
        copied,
        "CREATE TRIGGER generous AFTER INSERT ON dpbilevel_ledger_entries BEGIN "
        "UPDATE dpbilevel_ledger_entries SET epsilon = 0, mu = 0 WHERE number = NEW.number; END",
    )
    with pytest.raises(dpb.LedgerCorrupt):
        charge(ledger, 0.1)
    assert ledger.entries == before


# --- races and kills ---------------------------------------------------------------------------------------------


def test_of_16_processes_that_race_for_the_last_slice_exactly_one_wins(tmp_path):
    seen = happened(f"sqlite:///{tmp_path}/ledger.db", tmp_path, races=3)
    assert seen["races"] == [["charged"] + ["refused"] * 15] * 3
    assert seen["inherited"] == ["charged"] + ["refused"] * 5, "a ledger that was opened before a fork"
    assert seen["start"] == {"statuses": [0] * 8, "kept": 8}, "processes that begin one ledger together"
    assert seen["decides before it locks"].count("charged") > 1, "a mutation"
    assert seen["locks late"] != ["charged"] + ["refused"] * 3, "a mutation"
    assert seen["jax"] is False, "a charge needs no JAX"
    refused = dict.fromkeys(
        ("charge", "entries", "spent", "remaining", "grandchild", "same number"), "LedgerUnavailable"
    )
    assert seen["memory"] == refused | {
        "receipt": "NotCharged",
        "own": "done",
        "shown": "Ledger(cannot be read: LedgerUnavailable)",
        "parent": "done",
        "entries of the parent": 2,
        "mutant": "done",  # a ledger that forgets its process is charged, and the parent never knows
    }
    assert seen["transaction"] == {"within": "LedgerUnavailable", "after": "done"}


def test_kills_lose_no_charge_and_no_ledger(tmp_path):
    seen = happened(f"sqlite:///{tmp_path}/ledger.db", tmp_path, kills=8)
    assert len(seen["kills"]) == 8
    for kill in seen["kills"]:
        assert kill["acknowledged"] <= kill["kept"] <= kill["acknowledged"] + 1
    # A charge that is killed counts from its commit on.
    assert seen["moments"] == {"before the lock": 0, "before the entry": 0, "after the entry": 0, "after the commit": 1}
    assert list(seen["beginnings"].values()) == [True] * 4
