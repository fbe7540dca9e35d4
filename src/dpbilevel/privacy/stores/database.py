"""The store of one data set in a database. Charges are serialized across processes and durable.

A charge is one transaction. It takes the write lock *first*, then reads and checks every entry of the data set, and
only then decides whether one more fits: two processes can never decide on the same state. It writes the entry, reads
back what the database stored, and commits to disk before a receipt is issued. A failure on the way charges nothing, or,
if the connection to a server breaks during the commit, leaves a charge that was never used.
"""

import contextlib
import getpass
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from sqlalchemy import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError

from dpbilevel.errors import InvalidArgument, LedgerCorrupt
from dpbilevel.foundation.about import version
from dpbilevel.foundation.arguments import printable
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.spend import Privacy
from dpbilevel.privacy.stores.address import Address
from dpbilevel.privacy.stores.chain import RESTORE, START, dataset_digest, entry_digest
from dpbilevel.privacy.stores.entry import (
    DEFAULT_UNIT,
    Append,
    Composition,
    DataSet,
    Entry,
    Snapshot,
    StoredEntry,
    plan_text,
)
from dpbilevel.privacy.stores.postgresql import PostgreSQLDatabase
from dpbilevel.privacy.stores.sqlite import SQLiteDatabase
from dpbilevel.privacy.stores.tables import add_dataset, add_entry, all_snapshots, one_snapshot


class Database(Protocol):
    """The interface that a store requires of a database."""

    @property
    def where(self) -> str:
        """A description of the database for messages, without a password."""

    @property
    def url(self) -> URL:
        """The address, with the password if one was given."""

    def exists(self) -> bool:
        """Whether the database contains a ledger."""

    def create(self) -> None:
        """Create a ledger without data sets, unless there is one."""

    def reading(self) -> contextlib.AbstractContextManager[Connection]:
        """A transaction that reads a consistent snapshot."""

    def writing(self) -> contextlib.AbstractContextManager[Connection]:
        """A transaction whose first statement takes the lock of a data set; durable on exit."""

    def adding(self) -> contextlib.AbstractContextManager[Connection]:
        """A transaction that prevents others from adding a data set; durable on exit."""

    def check(self, connection: Connection) -> None:
        """Raise if the database is damaged or is not a ledger."""


class DatabaseStore:
    """The entries of one data set in a database; created by `open_store` and `reopen_store`.

    Args:
        database: where the entries are stored.
        dataset: the data set they belong to.
        who: the name recorded with each charge.
        seen: number and digest of the last entry read so far: the chain may grow from there, but never shrink.
    """

    def __init__(self, database: Database, dataset: DataSet, who: str | None, seen: tuple[int, str]) -> None:
        self._database = database
        self._dataset = dataset
        self._who = who
        self._seen = seen

    @property
    def total(self) -> Budget:
        """The budget of the data set."""
        return self._dataset.total

    @property
    def address(self) -> Address:
        """The address at which other processes can open it."""
        url = self._database.url
        parts = url._asdict() | {"query": dict(url.query)}
        had_password = parts.pop("password") is not None
        return Address(parts, self._dataset.name, self._who, self._seen, had_password)

    def read(self) -> Snapshot:
        """A consistent snapshot of the stored entries."""
        seen = self._seen  # before the transaction: a concurrent charge must not look like lost entries
        with self._database.reading() as connection:
            snapshot = self._snapshot(connection)
        return self._compared(snapshot, seen)

    @contextlib.contextmanager
    def writing(self) -> Iterator[tuple[Snapshot, Append]]:
        """Take the lock of the data set, then read; an appended entry counts once the context exits without error."""
        seen, appended = self._seen, list[StoredEntry]()
        with self._database.writing() as connection:
            snapshot = self._compared(self._snapshot(connection, locked=True), seen)

            def append(entry: Entry, privacy: Privacy) -> None:
                appended.append(self._append(connection, snapshot, entry, privacy))

            yield snapshot, append
        for stored in appended:  # committed when the transaction exited
            self._seen = (stored.number, stored.digest)

    def _append(self, connection: Connection, snapshot: Snapshot, entry: Entry, privacy: Privacy) -> StoredEntry:
        stored = StoredEntry(
            description=printable("description", entry.description, "it describes the charge", longest=1000),
            epsilon=entry.epsilon,
            delta=entry.delta,
            mu=entry.mu,
            number=len(snapshot.entries) + 1,
            user=_user(self._who),
            host=_shown(socket.gethostname()),
            pid=os.getpid(),
            time=_now(),
            version=version(),
            plan=plan_text(privacy, entry.unit),
            digest="",
        )
        stored = replace(stored, digest=entry_digest(_head(snapshot), stored))
        add_entry(connection, self._dataset, stored)
        # The stored row, numbers included, must equal the entry that was checked against the budget.
        if self._snapshot(connection).entries != (*snapshot.entries, stored):
            raise LedgerCorrupt(f"{self._database.where}: does not store what is written to it; nothing was charged")
        return stored

    def _snapshot(self, connection: Connection, *, locked: bool = False) -> Snapshot:
        snapshot = one_snapshot(connection, self._dataset.name, locked=locked)
        if snapshot is None or snapshot.dataset != self._dataset:
            raise LedgerCorrupt(
                f"{self._database.where}: the declarations of {self._dataset.name!r} are missing or changed; {RESTORE}"
            )
        return snapshot

    def _compared(self, snapshot: Snapshot, seen: tuple[int, str]) -> Snapshot:
        """Return the snapshot; raise if entries that this object has read before are missing."""
        count, digest = seen
        if len(snapshot.entries) < count or _head(replace(snapshot, entries=snapshot.entries[:count])) != digest:
            raise LedgerCorrupt(
                f"{self._database.where}: entries of {self._dataset.name!r} that existed before are missing, possibly "
                f"because an older backup was restored; {RESTORE}"
            )
        self._seen = (len(snapshot.entries), _head(snapshot))
        return snapshot


def open_store(
    url: str,
    name: str,
    *,
    total: Budget | None,
    composition: Composition | None,
    unit: str | None,
    who: str | None,
) -> DatabaseStore:
    """Open the store of a data set; create it if it does not exist and a total is given.

    Every row of the ledger is checked first, including those of other data sets: a data set that is not found because
    its row is damaged must not be created a second time.
    """
    printable("dataset", name, "it identifies the data set for the life of its budget")
    for argument, value, why in (
        ("unit", unit, "it is what one record represents"),
        ("who", who, "it is the name recorded with each charge"),
    ):
        if value is not None:
            printable(argument, value, why)
    database = _database(_parsed(url))
    dataset, snapshot = _looked_up(database, name, total=total, composition=composition, unit=unit, who=who)
    return DatabaseStore(database, dataset, who, (len(snapshot.entries), _head(snapshot)))


def reopen_store(address: Address) -> DatabaseStore:
    """Open the store at an unpickled address. It is never created, and must still hold the entries it held then."""
    url = URL.create(**address.database)
    database = _database(url, lost_password=address.had_password)
    dataset, _ = _looked_up(database, address.dataset, total=None, composition=None, unit=None, who=None)
    return DatabaseStore(database, dataset, address.who, address.seen)


def _looked_up(
    database: Database,
    name: str,
    *,
    total: Budget | None,
    composition: Composition | None,
    unit: str | None,
    who: str | None,
) -> tuple[DataSet, Snapshot]:
    if not database.exists():
        if total is None:
            raise InvalidArgument(
                f"{database.where}: does not exist; check the address, or give total= to create a ledger there "
                "(on the command line: dpbilevel ledger create)"
            )
        database.create()
    with database.reading() as connection:
        database.check(connection)
        known = all_snapshots(connection)
    if name not in known:
        if total is None:
            raise InvalidArgument(
                f"dataset={name!r}: is not in {database.where}, which holds {sorted(known)}; check the name, or give "
                "total= to create its ledger"
            )
        with database.adding() as connection:
            known = all_snapshots(connection, locked=True)  # again: now no other process can add one
            if name not in known:
                created = _new_dataset(list(known.values()), name, unit or DEFAULT_UNIT, total, composition, who)
                add_dataset(connection, created)
                known = all_snapshots(connection, locked=True)
                if name not in known or known[name].dataset != created:
                    raise LedgerCorrupt(f"{database.where}: does not store what is written to it; nothing was created")
    snapshot = known[name]
    assert snapshot.dataset is not None  # snapshots of a database have one
    _check_agreement(snapshot.dataset, snapshot, total, composition, unit)
    return snapshot.dataset, snapshot


def dataset_names(url: str) -> tuple[str, ...]:
    """The names of all data sets in a database, in order of creation."""
    database = _database(_parsed(url))
    if not database.exists():
        raise InvalidArgument(f"{database.where}: does not exist; check the address")
    with database.reading() as connection:
        database.check(connection)
        return tuple(all_snapshots(connection))


_KNOWN = "sqlite:///ledger.db or postgresql://user@server/database"


def _parsed(url: Any) -> URL:
    try:
        address = make_url(url) if isinstance(url, str) else None
    except (ArgumentError, ValueError):
        address = None
    if address is None:  # the message omits the value, which may contain a password
        raise InvalidArgument(f"url: must be the address of a database as text, {_KNOWN}")
    return address


def _database(address: URL, *, lost_password: bool = False) -> Database:
    if address.drivername in ("sqlite", "sqlite+pysqlite"):
        return SQLiteDatabase(address)
    if address.drivername in ("postgresql", "postgresql+psycopg"):
        return PostgreSQLDatabase(address, lost_password=lost_password)
    raise InvalidArgument(f"url: starts with {address.drivername!r}; must be {_KNOWN}")


def _new_dataset(
    others: list[Snapshot], name: str, unit: str, total: Budget, composition: Composition | None, who: str | None
) -> DataSet:
    last = others[-1].dataset if others else None
    previous = START if last is None else last.digest
    bare = DataSet(len(others) + 1, name, unit, total, composition, _now(), _user(who), version(), "")
    return replace(bare, digest=dataset_digest(previous, bare))


def _check_agreement(
    stored: DataSet, snapshot: Snapshot, total: Budget | None, composition: Composition | None, unit: str | None
) -> None:
    """Arguments given when a ledger is opened must agree with those with which it was created."""
    arguments = (
        ("total", total, stored.total),
        ("composition", composition, snapshot.composition),
        ("unit", unit, stored.unit),
    )
    for argument, value, fixed in arguments:
        if value is not None and value != fixed:
            shown = "left to the first charge" if fixed is None else f"{fixed!r}"
            raise InvalidArgument(
                f"{argument}={value!r}: the ledger of {stored.name!r} was created with {shown}, which cannot change; "
                f"omit {argument}= to use the stored value"
            )


def _head(snapshot: Snapshot) -> str:
    last = snapshot.entries[-1] if snapshot.entries else snapshot.dataset
    return last.digest if isinstance(last, StoredEntry | DataSet) else ""


def _user(who: str | None) -> str:
    if who is not None:
        return who
    try:
        return _shown(getpass.getuser())
    except (KeyError, OSError):  # a container may run under a user id without a name
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def _shown(text: str) -> str:
    """Escape system names that contain bytes a database cannot store as text."""
    return text if text.isprintable() and text else ascii(text)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
