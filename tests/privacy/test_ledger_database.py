"""A ledger in a database: the rules of one in memory, kept for everybody and for good."""

import contextlib
import copy
import csv
import io
import json
import math
import os
import sqlite3
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ledger_racers import TOTAL, Run, charge

import dpbilevel as dpb
from dpbilevel.foundation.about import version
from dpbilevel.privacy.accounting import all_charges
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.stores import database, sqlite
from dpbilevel.privacy.stores.chain import entry_digest
from dpbilevel.privacy.stores.entry import Entry, StoredEntry, plan_text
from dpbilevel.privacy.stores.sqlite import SQLiteDatabase


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def url(path):
    return f"sqlite:///{path}"


@pytest.fixture
def ledger(url):
    return dpb.Ledger.open(url, dataset="hospital", total=TOTAL)


# --- opening -----------------------------------------------------------------------------------------------------


def test_a_ledger_is_created_with_a_total_and_opened_without(url):
    created = dpb.Ledger.open(url, dataset="hospital", total=TOTAL, composition="basic", unit="one patient")
    charge(created, 0.1)
    again = dpb.Ledger.open(url, dataset="hospital")
    assert (again.total, again.composition, again.entries) == (TOTAL, "basic", created.entries)
    assert again.statement().dataset.unit == "one patient"
    said_again = dpb.Ledger.open(url, dataset="hospital", total=TOTAL, composition="basic", unit="one patient")
    assert said_again.entries == created.entries


def test_the_unit_is_one_record_unless_declared(ledger):
    assert ledger.statement().dataset.unit == "one record"


def test_a_ledger_names_the_unit_of_its_runs(ledger):
    for most, unit in ((8, None), (4, PERSON)):
        ledger.charge([Run(0.1)], TOTAL, "run", rows_per_unit=most, unit=unit)
        shown = "one unit, all rows of one id" if unit is None else PERSON
        assert ledger.statement().to_json()["unit"] == shown
    assert [(entry.rows_per_unit, entry.unit) for entry in ledger.entries] == [(8, None), (4, PERSON)]
    assert dpb.Ledger.open(str(ledger._store._database.url), dataset="hospital").entries == ledger.entries
    assert json.loads(ledger.entries[1].plan)["unit"] == PERSON
    assert ledger.entries[1].privacy().rows_per_unit == 4


PERSON, VISIT = "all rows with the same person", "all rows with the same visit"


@pytest.fixture(params=["in memory", "in a database"])
def either(request, ledger):
    return ledger if request.param == "in a database" else dpb.Ledger(TOTAL)


def test_runs_on_another_unit_are_refused(either):
    """A visit is less than a person: at most one row of each would be accepted as if it were all of a person's."""
    either.charge([Run(0.1)], TOTAL, "run", rows_per_unit=8, unit=PERSON)
    with pytest.raises(dpb.InvalidArgument, match=f"protects '{VISIT}', and the ledger is for '{PERSON}'"):
        either.charge([Run(0.1)], TOTAL, "run", rows_per_unit=1, unit=VISIT)
    with pytest.raises(dpb.InvalidArgument, match="protects rows and its runs so far protect units"):
        either.charge([Run(0.1)], TOTAL, "run")
    either.charge([Run(0.1)], TOTAL, "run", rows_per_unit=1, unit=PERSON)
    either.charge([Run(0.1)], TOTAL, "run", rows_per_unit=1)  # in Python, a run need not name its unit
    assert [entry.unit for entry in either.entries] == [PERSON, PERSON, None]


def test_a_ledger_of_a_column_of_ids_accepts_only_its_units(url):
    ledger = dpb.Ledger.open(url, dataset="hospital", total=TOTAL, unit=PERSON)
    with pytest.raises(dpb.InvalidArgument, match=f"protects rows, and the ledger is for {PERSON}"):
        ledger.charge([Run(0.1)], TOTAL, "run")
    with pytest.raises(dpb.InvalidArgument, match=f"protects '{VISIT}', and the ledger is for '{PERSON}'"):
        ledger.charge([Run(0.1)], TOTAL, "run", rows_per_unit=1, unit=VISIT)
    assert not ledger.entries
    ledger.charge([Run(0.1)], TOTAL, "run", rows_per_unit=8)
    assert ledger.entries[0].unit == PERSON
    with pytest.raises(dpb.InvalidArgument, match="unit"):
        ledger.charge([Run(0.1)], TOTAL, "run", rows_per_unit=8, unit="two\nlines")


def test_a_unit_in_other_words_is_a_declaration(url):
    ledger = dpb.Ledger.open(url, dataset="hospital", total=TOTAL, unit="one patient")
    ledger.charge([Run(0.1)], TOTAL, "run", rows_per_unit=8, unit=PERSON)
    assert ledger.statement().to_json()["unit"] == "one patient"


@pytest.mark.parametrize(
    ("most", "digest"),
    [
        (None, "badfb6ef9e52ef78bdfa8aebdf4d1b0a50dfc096f95a5697795db052564326a2"),
        (8, "b1ca664cc0f8db32fe5a3cbaf8e5127e0e1c982a25790a3e1665ac6d1b2e0b4d"),
    ],
)
def test_entries_without_a_name_of_their_unit_have_the_digests_of_before(most, digest):
    """Ledgers that were written before entries named their unit remain readable."""
    plan = plan_text(dpb.Privacy(all_charges([Run(0.5)]), dpb.Budget(1.0, 1e-6), rows_per_unit=most))
    when = "2026-01-31T12:00:00.000000+00:00"
    entry = StoredEntry("Tracking", 1.0, 1e-6, 0.25, 1, "Ana", "ward", 7, when, "0.1", plan, "")
    assert (entry_digest("0" * 64, entry), entry.rows_per_unit, entry.unit) == (digest, most, None)


def test_data_sets_of_one_database_are_apart(url):
    first, second = (dpb.Ledger.open(url, dataset=name, total=TOTAL) for name in ("first", "second"))
    charge(first, 1.0)
    assert (len(first.entries), len(second.entries)) == (1, 0)
    charge(second, 1.0)


def test_what_does_not_exist_is_not_created_without_a_total(path, url, tmp_path):
    with pytest.raises(dpb.InvalidArgument, match="does not exist; check the address, or give total="):
        dpb.Ledger.open(url, dataset="hospital")
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_name_is_not_created_without_a_total(ledger, url):
    with pytest.raises(dpb.InvalidArgument, match=r"dataset='hospitol': is not in .*'hospital'.*give total="):
        dpb.Ledger.open(url, dataset="hospitol")


@pytest.mark.parametrize(
    "wish",
    [
        {"total": dpb.Budget(2.5, 1e-6)},
        {"total": dpb.Budget(2.0, 1e-7)},
        {"total": dpb.Budget(2.0, 1e-6, "zero-out")},
        {"composition": "basic"},
        {"unit": "one patient"},
    ],
    ids=["epsilon", "delta", "adjacency", "composition", "unit"],
)
def test_what_is_said_again_must_agree(ledger, url, wish):
    ((argument, _),) = wish.items()
    with pytest.raises(dpb.InvalidArgument, match=rf"{argument}=.*which cannot change; omit {argument}="):
        dpb.Ledger.open(url, dataset="hospital", **wish)


def test_the_composition_that_the_first_charge_decided_may_be_said_again(ledger, url):
    charge(ledger, 0.1)
    assert dpb.Ledger.open(url, dataset="hospital", composition="gaussian").composition == "gaussian"
    with pytest.raises(dpb.InvalidArgument, match="composition="):
        dpb.Ledger.open(url, dataset="hospital", composition="basic")


BAD = [
    ("dataset", {"dataset": ""}),
    ("dataset", {"dataset": "two\nlines"}),
    ("dataset", {"dataset": "nul\0"}),
    ("dataset", {"dataset": "lone \ud800"}),
    ("dataset", {"dataset": "x" * 201}),
    ("dataset", {"dataset": None}),
    ("unit", {"unit": " "}),
    ("who", {"who": 7}),
    ("total", {"total": 2.0}),
    ("composition", {"composition": "advanced"}),
]


@pytest.mark.parametrize(("argument", "wrong"), BAD, ids=str)
def test_a_bad_argument_is_named_and_nothing_is_written(url, tmp_path, argument, wrong):
    with pytest.raises(dpb.InvalidArgument, match=f"^{argument}="):
        dpb.Ledger.open(url, **({"dataset": "hospital", "total": TOTAL} | wrong))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "address",
    [
        *("sqlite://", "sqlite:///:memory:", "sqlite:///x.db?mode=memory", "sqlite:///file:x.db", "sqlite://host/x.db"),
        *("mysql://me:s3cret@host/db", "postgresql+asyncpg://me:s3cret@host/db", "s3cret", "", "://s3cret", None, 3),
    ],
)
def test_an_address_that_is_no_ledger_is_refused_without_its_password(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(dpb.InvalidArgument, match=r"^url: .*(sqlite:///ledger\.db)") as caught:
        dpb.Ledger.open(address, dataset="hospital", total=TOTAL)
    assert "s3cret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_ledger_and_is_not_made(tmp_path):
    with pytest.raises(dpb.InvalidArgument, match="must be a file"):
        dpb.Ledger.open(f"sqlite:///{tmp_path}", dataset="hospital", total=TOTAL)
    with pytest.raises(dpb.InvalidArgument, match="folder does not exist"):
        dpb.Ledger.open(f"sqlite:///{tmp_path}/nowhere/ledger.db", dataset="hospital", total=TOTAL)


def test_the_constructor_names_the_way_to_a_database():
    with pytest.raises(dpb.InvalidArgument, match=r"Ledger\.open\(url, dataset="):
        dpb.Ledger("sqlite:///ledger.db")


def test_a_relative_address_stays_the_same_ledger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = dpb.Ledger.open("sqlite:///ledger.db", dataset="hospital", total=TOTAL)
    monkeypatch.chdir("/")
    charge(ledger, 0.1)
    assert (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize("name", ["with space.db", "q?a#b%20.db", "naïve-数.db"])
def test_any_name_of_a_file_will_do(tmp_path, name):
    from dpbilevel.cli.ledger import ledger_url

    charge(dpb.Ledger.open(ledger_url(str(tmp_path / name)), dataset="hospital", total=TOTAL), 0.1)
    assert [file.name for file in tmp_path.iterdir()] == [name]


# --- charging ----------------------------------------------------------------------------------------------------


def after(ledger: dpb.Ledger, runs: list[Run]) -> list:
    """What a ledger says and holds after each of several runs, refusals included."""
    said = []
    for run in runs:
        try:
            assert isinstance(ledger.charge([run], TOTAL, run.name), Receipt)
            said.append("charged")
        except (dpb.BudgetExceeded, dpb.InvalidArgument) as error:
            said.append(str(error))
        costs = [(entry.description, entry.epsilon, entry.delta, entry.mu) for entry in ledger.entries]
        said += [costs, ledger.spent(), ledger.remaining(), ledger.composition]
    return said


@pytest.mark.parametrize("composition", [None, "gaussian", "basic"])
@pytest.mark.parametrize("first", [0.3, 5.0], ids=["first fits", "first does not fit"])
def test_its_rules_are_those_of_a_ledger_in_memory(url, composition, first):
    runs = [Run(first, "a"), Run(0.001, "sampled", rate=0.1, uses=3), Run(0.5, "b"), Run(0.3, "c"), Run(0.01, "d")]
    stored = dpb.Ledger.open(url, dataset="hospital", total=TOTAL, composition=composition)
    assert after(stored, runs) == after(dpb.Ledger(TOTAL, composition=composition), runs)
    assert after(dpb.Ledger.open(url, dataset="hospital"), []) == []


def test_ledgers_of_one_data_set_see_what_the_others_charge(ledger, url):
    other = dpb.Ledger.open(url, dataset="hospital")
    charge(ledger, 0.6)
    assert other.spent() == ledger.spent() > 0
    with pytest.raises(dpb.BudgetExceeded):
        charge(other, 0.6)
    charge(other, 0.3)
    assert [entry.number for entry in ledger.entries] == [1, 2]
    assert ledger.remaining() == other.remaining()


def test_an_infinite_total_is_kept(url):
    ledger = dpb.Ledger.open(url, dataset="public", total=dpb.Budget(math.inf))
    ledger.charge([Run(math.inf)], dpb.Budget(math.inf), "without noise")
    again = dpb.Ledger.open(url, dataset="public")
    assert again.total == dpb.Budget(math.inf)
    assert (again.entries[0].epsilon, again.entries[0].mu) == (math.inf, math.inf)
    assert json.loads(json.dumps(again.statement().to_json(), allow_nan=False))["total"]["epsilon"] == "inf"
    assert again.entries[0].privacy().epsilon() == math.inf


REALS = st.floats(min_value=0, allow_nan=False) | st.sampled_from([5e-324, 1.7976931348623157e308, 0.1, 1 / 3])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('floats')}/ledger.db"
    return dpb.Ledger.open(url, dataset="floats", total=TOTAL)._store


@settings(max_examples=40)
@given(epsilon=REALS, delta=REALS, mu=st.none() | REALS)
def test_numbers_come_back_bit_for_bit(store, epsilon, delta, mu):
    with store.writing() as (_, append):
        append(Entry("any", epsilon, delta, mu), dpb.Privacy({}, TOTAL))
    stored = store.read().entries[-1]
    bits = [None if number is None else float(number).hex() for number in (stored.epsilon, stored.delta, stored.mu)]
    assert bits == [None if number is None else number.hex() for number in (epsilon, delta, mu)]


def test_a_total_comes_back_bit_for_bit(url):
    total = dpb.Budget(0.1 + 0.2, math.nextafter(1e-6, 1))
    dpb.Ledger.open(url, dataset="hospital", total=total)
    assert dpb.Ledger.open(url, dataset="hospital").total == total


def test_of_threads_that_race_for_the_last_slice_exactly_one_wins(ledger):
    charge(ledger, 0.6)
    gate, won, lost = threading.Barrier(8), [], []

    def racer() -> None:
        gate.wait()
        try:
            charge(ledger, 0.3)
        except dpb.BudgetExceeded as error:
            lost.append(error)
        else:
            won.append(True)

    threads = [threading.Thread(target=racer) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost), len(ledger.entries)) == (1, 7, 2)


def test_threads_that_look_never_think_that_entries_are_gone(ledger):
    # What was seen is noted before a transaction begins: an older view must not look like a loss.
    trouble, done = [], threading.Event()

    def looker() -> None:
        while not done.is_set():
            try:
                ledger.entries  # noqa: B018
            except dpb.DPBilevelError as error:
                trouble.append(error)

    threads = [threading.Thread(target=looker) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        charge(ledger, 0.01)
    done.set()
    for thread in threads:
        thread.join()
    assert trouble == []


# --- what an entry says ------------------------------------------------------------------------------------------


def test_an_entry_says_who_when_what_and_with_which_version(ledger):
    charge(ledger, 0.1)
    (entry,) = ledger.entries
    assert isinstance(entry, StoredEntry)
    assert (entry.number, entry.pid, entry.version) == (1, os.getpid(), version())
    assert entry.user
    assert entry.host
    assert entry.time.endswith("+00:00")
    assert entry.description == "a share of 0.1"


def test_who_charges_can_be_said(url):
    ledger = dpb.Ledger.open(url, dataset="hospital", total=TOTAL, who="Ana (analyst)")
    charge(ledger, 0.1)
    assert ledger.entries[0].user == ledger.statement().dataset.user == "Ana (analyst)"


@pytest.mark.parametrize("run", [Run(0.1, uses=7), Run(0.01, rate=0.1, uses=20)], ids=["gaussian", "sampled"])
def test_a_stranger_can_compute_epsilon_again_from_the_plan(ledger, run):
    ledger.charge([run], TOTAL, "run")
    (entry,) = ledger.entries
    recomputed = dpb.Privacy.from_json(json.loads(entry.plan) | {"caveats": [], "void": False})
    assert recomputed.epsilon() == entry.privacy().epsilon() == entry.epsilon
    assert recomputed.mu == entry.mu


def test_a_plan_holds_no_sentence_of_guarantee(ledger):
    # A charge cannot know whether a seed will void the run.
    charge(ledger, 0.1)
    assert set(json.loads(ledger.entries[0].plan)) == {"accountant", "adjacency", "budget", "roles"}


def test_names_of_the_system_that_cannot_be_stored_are_spelt_out(ledger, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "caf\udce9")
    charge(ledger, 0.1)
    assert ledger.entries[0].user == r"'caf\udce9'"


def test_a_user_without_a_name_can_charge(ledger, monkeypatch):
    def nameless() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    charge(ledger, 0.1)
    assert ledger.entries[0].user.startswith("user ")


@pytest.mark.parametrize("description", ["", "two\nlines", None, "x" * 1001])
def test_a_description_that_cannot_be_shown_charges_nothing(ledger, description):
    with pytest.raises(dpb.InvalidArgument, match="description="):
        ledger.charge([Run(0.1)], TOTAL, description)
    assert ledger.entries == ()


def test_a_ledger_shows_its_data_set(ledger):
    charge(ledger, 1.0)
    assert repr(ledger) == "Ledger('hospital', epsilon 2 of 2 spent at delta 1e-06, replace-one, 1 run)"


# --- copies ------------------------------------------------------------------------------------------------------


def test_copies_are_the_same_ledger(ledger):
    assert copy.copy(ledger) is copy.deepcopy(ledger) is ledger


# --- export ------------------------------------------------------------------------------------------------------


def test_json_holds_everything_and_is_the_same_each_time(ledger, tmp_path):
    charge(ledger, 0.25)
    charge(ledger, 0.5)
    first, second = (ledger.export(tmp_path / name).read_bytes() for name in ("a.json", "b.json"))
    assert first == second
    content = json.loads(first)
    assert content["format"] == "dpbilevel.ledger/1"
    assert content["total"] == {"epsilon": 2.0, "delta": 1e-6}
    assert content["spent"]["epsilon"] == ledger.spent()
    assert content["remaining"]["epsilon"] == ledger.remaining().epsilon
    assert [entry["epsilon"] for entry in content["entries"]] == [entry.epsilon for entry in ledger.entries]
    assert content["entries"][0]["plan"]["roles"]["lower"]["charges"][0]["steps"] == 1
    assert content["digest"] == content["entries"][-1]["digest"] == ledger.entries[-1].digest


def test_csv_has_a_line_for_each_charge(ledger, tmp_path):
    ledger.charge([Run(0.1)], TOTAL, '=cmd|"x", y')
    (row,) = csv.DictReader(io.StringIO(ledger.export(tmp_path / "a.csv").read_text("utf-8")))
    assert float(row["epsilon"]) == ledger.entries[0].epsilon
    assert row["description"] == '\'=cmd|"x", y'  # which no spreadsheet runs
    assert json.loads(row["plan"]) == json.loads(ledger.entries[0].plan)


def test_an_export_appears_whole_or_not_at_all(ledger, tmp_path, monkeypatch):
    target = tmp_path / "a.json"
    target.write_text("before")

    def fails(descriptor) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(dpb.InvalidArgument, match=r"a\.json.*No space left"):
        ledger.export(target)
    assert target.read_text() == "before"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json", "ledger.db"]


def test_an_export_needs_a_name_that_says_what_it_is(ledger, tmp_path):
    with pytest.raises(dpb.InvalidArgument, match=r"must end in \.json or \.csv"):
        ledger.export(tmp_path / "a.xlsx")
    with pytest.raises(dpb.InvalidArgument, match=r"nowhere.*cannot be written"):
        ledger.export(tmp_path / "nowhere" / "a.json")


def test_a_ledger_in_memory_has_nothing_to_export(tmp_path):
    with pytest.raises(dpb.InvalidArgument, match=r"kept in memory.*Ledger\.open"):
        dpb.Ledger(TOTAL).export(tmp_path / "a.json")


# --- the file ----------------------------------------------------------------------------------------------------


def test_a_commit_reaches_the_disk_and_one_file_is_left(ledger, path, tmp_path):
    charge(ledger, 0.1)
    with SQLiteDatabase(sqlite.URL.create("sqlite", database=str(path))).writing() as connection:
        settings = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("synchronous", "journal_mode")
        ]
    assert settings == [2, "wal"]
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.db"]


def is_complete_without_its_log(ledger: dpb.Ledger, path) -> bool:
    """Whether the file alone holds a charge, though another connection keeps the log from being folded in."""
    with contextlib.closing(sqlite3.connect(path)) as idle:
        idle.execute("SELECT count(*) FROM dpbilevel_ledger").fetchone()
        charge(ledger, 0.1)
        alone = path.with_name("alone.db")
        alone.write_bytes(path.read_bytes())
        return len(dpb.Ledger.open(f"sqlite:///{alone}", dataset="hospital").entries) == len(ledger.entries)


def test_the_file_alone_holds_every_charge(ledger, path):
    assert is_complete_without_its_log(ledger, path)


def test_mutant_a_charge_that_stays_in_the_log_is_caught(ledger, path, monkeypatch):
    @contextlib.contextmanager
    def writing(self):
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    monkeypatch.setattr(SQLiteDatabase, "writing", writing)
    assert not is_complete_without_its_log(ledger, path)


def test_who_waits_too_long_charges_nothing(ledger, path, monkeypatch):
    monkeypatch.setattr(sqlite, "PATIENCE", 0.05)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(dpb.LedgerUnavailable, match="locked by other writers"):
            charge(ledger, 0.1)
        assert ledger.entries == ()  # and who reads does not wait
    charge(ledger, 0.1)


def test_a_ledger_that_is_gone_is_not_created_again(ledger, path, tmp_path):
    path.unlink()
    with pytest.raises(dpb.LedgerUnavailable, match="is missing; put it back"):
        charge(ledger, 0.1)
    assert repr(ledger) == "Ledger(cannot be read: LedgerUnavailable)"
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_charges_nothing(ledger, monkeypatch):
    true = database.add_entry

    def full(connection, dataset, entry) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")
        true(connection, dataset, replace(entry, plan="x" * 100_000))

    monkeypatch.setattr(database, "add_entry", full)
    with pytest.raises(dpb.LedgerUnavailable, match="full"):
        charge(ledger, 0.1)
    monkeypatch.undo()
    assert ledger.entries == ()
    charge(ledger, 0.1)
