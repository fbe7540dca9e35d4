"""A ledger in a PostgreSQL server that the tests start; skipped, with a reason, where none can be started."""

import pytest
from support import postgresql_server
from support.ledger_racers import TOTAL, Run, charge, happened

import dpbilevel as dpb
from dpbilevel.privacy.stores import postgresql
from dpbilevel.privacy.stores.entry import Entry

reason = postgresql_server.reason_to_skip()
pytestmark = pytest.mark.skipif(reason is not None, reason=reason or "")


@pytest.fixture(scope="module")
def url():
    with postgresql_server.server() as address:
        yield address


@pytest.fixture
def ledger(url, request):
    return dpb.Ledger.open(url, dataset=request.node.name, total=TOTAL)


def execute(url: str, *statements: str) -> None:
    import psycopg

    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement)


def test_a_server_without_a_ledger_gets_one_only_with_a_total(url):
    with pytest.raises(dpb.InvalidArgument, match="does not exist"):
        dpb.Ledger.open(url, dataset="hospital")
    ledger = dpb.Ledger.open(url, dataset="hospital", total=TOTAL)
    charge(ledger, 0.6)
    again = dpb.Ledger.open(url, dataset="hospital")
    assert (again.total, again.entries) == (TOTAL, ledger.entries)
    with pytest.raises(dpb.BudgetExceeded):
        charge(again, 0.6)
    with pytest.raises(dpb.InvalidArgument, match="unit="):
        dpb.Ledger.open(url, dataset="hospital", unit="one patient")


def test_processes_race_fairly_and_mutants_are_caught(url, tmp_path):
    seen = happened(url, tmp_path, races=2)
    assert seen["start"] == {"statuses": [0] * 8, "kept": 8}
    assert seen["races"] == [["charged"] + ["refused"] * 15] * 2
    assert seen["inherited"] == ["charged"] + ["refused"] * 5
    assert seen["decides before it locks"].count("charged") > 1


def test_numbers_come_back_bit_for_bit(ledger):
    numbers = [0.1, 1 / 3, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, float("inf"), 0.0]
    for number in numbers:
        with ledger._store.writing() as (_, append):
            append(Entry("any", number, number, number), dpb.Privacy({}, TOTAL))
    assert [entry.mu for entry in ledger.entries] == [entry.epsilon for entry in ledger.entries] == numbers


def test_text_comes_back_as_it_was(url):
    ledger = dpb.Ledger.open(url, dataset="Krankenhaus Süd 数", total=TOTAL, who="Zoë", unit="one 'patient' \\ \"x\"")
    ledger.charge([Run(0.1)], TOTAL, "très %s :name ünïcode")
    again = dpb.Ledger.open(url, dataset="Krankenhaus Süd 数")
    assert again.entries[0].description == "très %s :name ünïcode"
    assert again.statement().dataset.unit == "one 'patient' \\ \"x\""


EDITS = {
    "a smaller epsilon": "UPDATE dpbilevel_ledger_entries SET mu = mu / 2 WHERE dataset = '{0}'",
    "an entry gone": "DELETE FROM dpbilevel_ledger_entries WHERE dataset = '{0}'",
    "a larger total": "UPDATE dpbilevel_ledger_datasets SET epsilon = 20 WHERE name = '{0}'",
    "a column gone": "ALTER TABLE dpbilevel_ledger_entries RENAME COLUMN mu TO nu",
    "a table gone": "ALTER TABLE dpbilevel_ledger_entries RENAME TO hidden",
}
MENDS = {
    "a column gone": "ALTER TABLE dpbilevel_ledger_entries RENAME COLUMN nu TO mu",
    "a table gone": "ALTER TABLE hidden RENAME TO dpbilevel_ledger_entries",
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_ledger_is_refused(url, ledger, request, name):
    charge(ledger, 0.5)
    dataset = request.node.name
    save = "CREATE TABLE saved_{0} AS SELECT * FROM {0}"
    restore = "DELETE FROM {0}; INSERT INTO {0} SELECT * FROM saved_{0}; DROP TABLE saved_{0}"
    stored = ("dpbilevel_ledger_entries", "dpbilevel_ledger_datasets")
    execute(url, *(save.format(table) for table in stored), EDITS[name].format(dataset))
    try:
        with pytest.raises(dpb.LedgerCorrupt):
            charge(ledger, 0.1)
        with pytest.raises(dpb.LedgerCorrupt):
            dpb.Ledger.open(url, dataset=dataset, total=TOTAL)
    finally:
        execute(url, MENDS.get(name, "SELECT 1"), *(restore.format(table) for table in stored))
    assert len(ledger.entries) == 1


def test_who_waits_too_long_charges_nothing(url, ledger, monkeypatch):
    import psycopg

    monkeypatch.setattr(postgresql, "PATIENCE", 0.05)
    with psycopg.connect(url) as other:
        other.execute("SELECT * FROM dpbilevel_ledger_datasets FOR UPDATE")
        with pytest.raises(dpb.LedgerUnavailable, match="lock timeout"):
            charge(ledger, 0.1)
        assert ledger.entries == ()  # and who reads does not wait
    charge(ledger, 0.1)


def test_a_connection_that_breaks_during_a_charge_gives_no_receipt(url, ledger, monkeypatch):
    from dpbilevel.privacy.stores import database

    true = database.add_entry

    def broken(connection, dataset, entry) -> None:
        true(connection, dataset, entry)
        connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")

    monkeypatch.setattr(database, "add_entry", broken)
    with pytest.raises(dpb.LedgerUnavailable, match=r"check ledger\.entries before trying again"):
        charge(ledger, 0.1)
    monkeypatch.undo()
    assert ledger.entries == ()


def test_a_commit_is_durable_whatever_the_server_is_set_to(url, ledger):
    execute(url, "ALTER ROLE postgres SET synchronous_commit TO off")
    with ledger._store._database.writing() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar_one() == "read committed"


def test_a_server_that_cannot_be_reached_is_said_without_the_password():
    with pytest.raises(dpb.LedgerUnavailable) as caught:
        dpb.Ledger.open("postgresql://me:s3cret@127.0.0.1:1/nothing", dataset="hospital", total=TOTAL)
    assert "s3cret" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)
