"""A ledger in a SQLite file: who writes holds the file's one write lock, and a commit has reached the disk.

The file appears whole or not at all: it is made under another name and linked to its own. After that it is never
created by opening it, so that a file that was deleted or emptied is an error and not a new ledger.

The file is never opened but by SQLite. POSIX drops every lock that a process has on a file when the process closes any
descriptor of it: reading a single byte of it here could let another thread's transaction lose its lock.

A fork drops those locks as well, and SQLite in the child does not know: it keeps account of them in memory, for all
connections of a process. A process that was forked while another thread had a transaction open is refused therefore.
"""

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from dpbilevel.errors import InvalidArgument, LedgerCorrupt, LedgerUnavailable
from dpbilevel.privacy.stores.chain import RESTORE
from dpbilevel.privacy.stores.tables import make, present

PATIENCE = 60.0  # seconds that a process waits for others that write
_HASTE = 5.0  # seconds that it waits for others that read, to move what it wrote from the log into the file

_open: set[object] = set()  # transactions of this process, one object for each
_split = False  # whether this process was forked while there was one


def _note_fork() -> None:
    global _split
    _split = _split or bool(_open)
    _open.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_note_fork)


class SQLiteDatabase:
    """The file of a ledger. Every operation has a connection of its own: none outlives it, none is shared by a fork."""

    def __init__(self, url: URL) -> None:
        if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
            raise InvalidArgument(
                "url: must name a file (sqlite:///ledger.db); a ledger in memory is made with dpb.Ledger(total)"
            )
        if url.query or url.host or url.username:
            raise InvalidArgument(
                "url: a SQLite ledger takes no options; write sqlite:///ledger.db and nothing after it"
            )
        try:
            self.path = Path(url.database).resolve()  # a later chdir must not lead to another ledger
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"url: {url.database!r} is no path of a file; write sqlite:///ledger.db") from error
        self.where = f"ledger {str(self.path)!r}"
        self.url = url.set(database=str(self.path))
        self._engine = _engine(self.path)

    def exists(self) -> bool:
        """Whether the ledger was begun; raises where a file is there that cannot be one."""
        with self._typed_errors():
            if not self.path.exists():
                self._refuse_leftovers()
                return False
            if not self.path.is_file():
                raise InvalidArgument(f"{self.where}: must be a file; name one that is or that may be made")
            if self.path.stat().st_size == 0:
                raise LedgerCorrupt(f"{self.where}: is empty, and a ledger never is; {RESTORE}")
            return True

    def create(self) -> None:
        """Make the file, with tables and without a data set; nothing happens where another process was first."""
        with self._typed_errors():
            if not self.path.parent.is_dir():
                raise InvalidArgument(f"{self.where}: its folder does not exist; make it first")
            with tempfile.TemporaryDirectory(prefix=f".{self.path.name}-", dir=self.path.parent) as folder:
                fresh = Path(folder) / "ledger"
                with contextlib.closing(sqlite3.connect(fresh)) as bare:
                    bare.execute("PRAGMA journal_mode = WAL")  # a property of the file, from now on
                with _engine(fresh).connect() as connection:
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                    make(connection)
                    connection.commit()
                with contextlib.suppress(FileExistsError):
                    os.link(fresh, self.path)
            _sync_folder(self.path.parent)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one moment."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that holds the write lock from its first moment; it is on disk when the context is left.

        On disk in the file itself, not only in the write-ahead log beside it: a log that is lost, damaged or left out
        of a copy takes nothing with it that was charged and used. Where readers keep the log busy, or the disk is full,
        it stays there: what is committed counts, and who charged it gets what was paid for.
        """
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection
            connection.commit()
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(1000 * _HASTE)}")
            with contextlib.suppress(OperationalError):
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextlib.contextmanager
    def adding(self) -> Iterator[Connection]:
        """A transaction that may add a data set: the write lock of the file covers that too."""
        with self.writing() as connection:
            yield connection

    def check(self, connection: Connection) -> None:
        """Raise unless every page of the file is sound and its tables are a ledger's."""
        found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalars().all()
        if found != ["ok"]:
            raise LedgerCorrupt(f"{self.where}: is damaged; {RESTORE}")
        if not present(connection):
            raise LedgerCorrupt(f"{self.where}: is a database but not a ledger; name another file")

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[Connection]:
        if not self.exists():
            raise LedgerUnavailable(f"{self.where}: is gone; put it back, or restore its latest backup")
        if _split:
            raise LedgerUnavailable(
                f"{self.where}: this process was forked while another thread was using a ledger, so that SQLite's "
                "locks cannot be relied on in it; nothing was charged. Fork before threads use ledgers, or start "
                'processes afresh (multiprocessing\'s "spawn", joblib\'s "loky")'
            )
        with _noted(), self._typed_errors(), self._engine.connect() as connection:
            connection.exec_driver_sql(begin)
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def _refuse_leftovers(self) -> None:
        for suffix in ("-wal", "-journal"):
            if self.path.with_name(self.path.name + suffix).exists():
                raise LedgerCorrupt(
                    f"{self.where}: is missing, and {self.path.name + suffix!r} is left of it; put the file back "
                    f"beside it, or else {RESTORE}"
                )

    @contextlib.contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise self._typed(error.orig) from error
        except (sqlite3.Error, SQLAlchemyError, UnicodeDecodeError) as error:  # messages of SQLite quote damaged names
            raise self._typed(error) from error
        except OSError as error:
            raise LedgerUnavailable(
                f"{self.where}: {error.strerror or 'cannot be used'}; look at its folder, permissions and free space"
            ) from error

    def _typed(self, error: BaseException | None) -> Exception:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")):
            return LedgerUnavailable(
                f"{self.where}: others kept writing for {PATIENCE:g} s; nothing was charged; try again"
            )
        if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_FULL", "SQLITE_IOERR")):
            return LedgerUnavailable(
                f"{self.where}: cannot be opened or written ({error}); look at its folder, permissions and free space"
            )
        return LedgerCorrupt(f"{self.where}: cannot be read as a ledger ({error}); {RESTORE}")


@contextlib.contextmanager
def _noted() -> Iterator[None]:
    transaction = object()
    _open.add(transaction)
    try:
        yield
    finally:
        _open.discard(transaction)


def _engine(path: Path) -> Engine:
    def connect() -> sqlite3.Connection:
        # mode=rw never makes a file. Transactions are begun by hand: sqlite3 would begin them after the first read.
        address = f"file:{quote(os.fsencode(path))}?mode=rw"
        connection = sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")  # not left to how SQLite was built: NORMAL loses commits
        except BaseException:
            connection.close()
            raise
        return connection

    return create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)


def _sync_folder(folder: Path) -> None:
    """Make sure that the name of a new file has reached the disk too."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
