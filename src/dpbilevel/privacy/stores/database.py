"""The store of one data set in a database: charged before use, by one process at a time, and never forgotten.

A charge is one transaction. It takes the write lock *first*, then reads and checks every entry of the data set, and
only then decides whether one more fits: two processes can never decide on the same state. It writes the entry, reads
back what the database made of it, and commits to disk before anybody gets a receipt. What fails on the way charges
nothing, or (when the connection to a server breaks during the commit) stands without having been used.
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
from dpbilevel.privacy.stores.entry import Append, Composition, DataSet, Entry, Snapshot, StoredEntry, plan_text
from dpbilevel.privacy.stores.postgresql import PostgreSQLDatabase
from dpbilevel.privacy.stores.sqlite import SQLiteDatabase
from dpbilevel.privacy.stores.tables import add_dataset, add_entry, all_snapshots, one_snapshot

DEFAULT_UNIT = "one record"


class Database(Protocol):
    """What a store needs of a database."""

    @property
    def where(self) -> str:
        """The database in words, without a password."""

    @property
    def url(self) -> URL:
        """Its address, with a password where one was given."""

    def exists(self) -> bool:
        """Whether a ledger was begun in it."""

    def create(self) -> None:
        """Begin a ledger without a data set, once."""

    def reading(self) -> contextlib.AbstractContextManager[Connection]:
        """A transaction that sees one moment."""

    def writing(self) -> contextlib.AbstractContextManager[Connection]:
        """A transaction whose first statement takes the lock of a data set; durable when left."""

    def adding(self) -> contextlib.AbstractContextManager[Connection]:
        """A transaction that keeps others from adding a data set; durable when left."""

    def check(self, connection: Connection) -> None:
        """Raise where what is stored is damaged or no ledger."""


class DatabaseStore:
    """The entries of one data set in a database; made by `opened` and `reopened`.

    Args:
        database: where they are.
        dataset: whose they are.
        who: the name that charges carry.
        seen: number and digest of the last entry that was met: the chain may grow from there, and never shrink.
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
        """Where other processes find it."""
        url = self._database.url
        parts = url._asdict() | {"query": dict(url.query)}
        had_password = parts.pop("password") is not None
        return Address(parts, self._dataset.name, self._who, self._seen, had_password)

    def read(self) -> Snapshot:
        """What is written, all of one moment."""
        seen = self._seen  # before the transaction: what others charge meanwhile must not look like a loss
        with self._database.reading() as connection:
            snapshot = self._snapshot(connection)
        return self._compared(snapshot, seen)

    @contextlib.contextmanager
    def writing(self) -> Iterator[tuple[Snapshot, Append]]:
        """Take the lock of the data set, then read; an appended entry counts once the context ends without an error."""
        seen, appended = self._seen, list[StoredEntry]()
        with self._database.writing() as connection:
            snapshot = self._compared(self._snapshot(connection, locked=True), seen)

            def append(entry: Entry, privacy: Privacy) -> None:
                appended.append(self._append(connection, snapshot, entry, privacy))

            yield snapshot, append
        for stored in appended:  # only now are they committed
            self._seen = (stored.number, stored.digest)

    def _append(self, connection: Connection, snapshot: Snapshot, entry: Entry, privacy: Privacy) -> StoredEntry:
        stored = StoredEntry(
            description=printable("description", entry.description, "it says what the charge is for", longest=1000),
            epsilon=entry.epsilon,
            delta=entry.delta,
            mu=entry.mu,
            number=len(snapshot.entries) + 1,
            user=_user(self._who),
            host=_shown(socket.gethostname()),
            pid=os.getpid(),
            time=_now(),
            version=version(),
            plan=plan_text(privacy),
            digest="",
        )
        stored = replace(stored, digest=entry_digest(_head(snapshot), stored))
        add_entry(connection, self._dataset, stored)
        # What the database made of it, numbers included, must be what was decided on.
        if self._snapshot(connection).entries != (*snapshot.entries, stored):
            raise LedgerCorrupt(f"{self._database.where}: does not keep what is written to it; nothing was charged")
        return stored

    def _snapshot(self, connection: Connection, *, locked: bool = False) -> Snapshot:
        snapshot = one_snapshot(connection, self._dataset.name, locked=locked)
        if snapshot is None or snapshot.dataset != self._dataset:
            raise LedgerCorrupt(
                f"{self._database.where}: what was declared for {self._dataset.name!r} is gone or changed; {RESTORE}"
            )
        return snapshot

    def _compared(self, snapshot: Snapshot, seen: tuple[int, str]) -> Snapshot:
        """The snapshot, unless it lacks what this object has met before."""
        count, digest = seen
        if len(snapshot.entries) < count or _head(replace(snapshot, entries=snapshot.entries[:count])) != digest:
            raise LedgerCorrupt(
                f"{self._database.where}: entries of {self._dataset.name!r} that were there before are gone, as "
                f"after a backup was put back; {RESTORE}"
            )
        self._seen = (len(snapshot.entries), _head(snapshot))
        return snapshot


def opened(
    url: str,
    name: str,
    *,
    total: Budget | None,
    composition: Composition | None,
    unit: str | None,
    who: str | None,
) -> DatabaseStore:
    """The store of a data set, which is begun where it does not exist and a total is given.

    Every line of the ledger is checked first, those of other data sets included: a data set that cannot be found
    because its line is damaged must not be begun again.
    """
    printable("dataset", name, "it names the data set, for as long as its budget lasts")
    for argument, value, why in (
        ("unit", unit, "it says what one record stands for"),
        ("who", who, "it says who charges"),
    ):
        if value is not None:
            printable(argument, value, why)
    database = _database(_parsed(url))
    dataset, snapshot = _looked_up(database, name, total=total, composition=composition, unit=unit, who=who)
    return DatabaseStore(database, dataset, who, (len(snapshot.entries), _head(snapshot)))


def reopened(address: Address) -> DatabaseStore:
    """The store at an address that came in a pickle; it is never begun, and must hold what it held then."""
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
                f"{database.where}: does not exist; check the address, or give total= to start a ledger there "
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
                "total= to start its ledger"
            )
        with database.adding() as connection:
            known = all_snapshots(connection, locked=True)  # again, now that nobody else can add one
            if name not in known:
                begun = _begun(list(known.values()), name, unit or DEFAULT_UNIT, total, composition, who)
                add_dataset(connection, begun)
                known = all_snapshots(connection, locked=True)
                if name not in known or known[name].dataset != begun:
                    raise LedgerCorrupt(f"{database.where}: does not keep what is written to it; nothing was begun")
    snapshot = known[name]
    assert snapshot.dataset is not None  # snapshots of a database have one
    _check_agreement(snapshot.dataset, snapshot, total, composition, unit)
    return snapshot.dataset, snapshot


def dataset_names(url: str) -> tuple[str, ...]:
    """The names of all data sets in a database, in the order in which they were begun."""
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
    if address is None:  # without the value: it may hold a password
        raise InvalidArgument(f"url: must be the address of a database as text, {_KNOWN}")
    return address


def _database(address: URL, *, lost_password: bool = False) -> Database:
    if address.drivername in ("sqlite", "sqlite+pysqlite"):
        return SQLiteDatabase(address)
    if address.drivername in ("postgresql", "postgresql+psycopg"):
        return PostgreSQLDatabase(address, lost_password=lost_password)
    raise InvalidArgument(f"url: starts with {address.drivername!r}, and must be {_KNOWN}")


def _begun(
    others: list[Snapshot], name: str, unit: str, total: Budget, composition: Composition | None, who: str | None
) -> DataSet:
    last = others[-1].dataset if others else None
    previous = START if last is None else last.digest
    bare = DataSet(len(others) + 1, name, unit, total, composition, _now(), _user(who), version(), "")
    return replace(bare, digest=dataset_digest(previous, bare))


def _check_agreement(
    stored: DataSet, snapshot: Snapshot, total: Budget | None, composition: Composition | None, unit: str | None
) -> None:
    """What is said again when a ledger is opened must be what was said when it was begun."""
    wishes = (
        ("total", total, stored.total),
        ("composition", composition, snapshot.composition),
        ("unit", unit, stored.unit),
    )
    for argument, wish, fixed in wishes:
        if wish is not None and wish != fixed:
            kept = "left to the first charge" if fixed is None else f"{fixed!r}"
            raise InvalidArgument(
                f"{argument}={wish!r}: the ledger of {stored.name!r} was begun with {kept}, which is fixed for its "
                f"life; leave {argument}= out to go on with that"
            )


def _head(snapshot: Snapshot) -> str:
    last = snapshot.entries[-1] if snapshot.entries else snapshot.dataset
    return last.digest if isinstance(last, StoredEntry | DataSet) else ""


def _user(who: str | None) -> str:
    if who is not None:
        return who
    try:
        return _shown(getpass.getuser())
    except (KeyError, OSError):  # a container may run as a number without a name
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def _shown(text: str) -> str:
    """Names that the system gives may hold bytes that no database stores as text."""
    return text if text.isprintable() and text else ascii(text)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
