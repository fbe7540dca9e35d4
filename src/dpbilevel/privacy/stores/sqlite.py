"""A ledger in a SQLite file: a writer holds the file's only write lock, and commits are on disk when they return.

The file is created atomically: it is written under a temporary name and then linked to its own. Opening never creates
it afterwards, so a deleted or emptied file is an error and not a new ledger.

Only SQLite opens the file. POSIX drops every lock that a process has on a file when the process closes any descriptor
of it: reading a single byte of it here could make another thread's transaction lose its lock.

A fork drops those locks as well. SQLite in the child does not notice, because it tracks locks in memory, for all
connections of a process. Therefore a process that was forked while another thread had a transaction open is refused.
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

PATIENCE = 60.0  # seconds that a process waits for other writers
_CHECKPOINT_PATIENCE = 5.0  # seconds that it waits for readers, to move its commit from the log into the file

_open: set[object] = set()  # open transactions of this process
_forked_while_open = False


def _record_fork() -> None:
    global _forked_while_open
    _forked_while_open = _forked_while_open or bool(_open)
    _open.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_record_fork)


class SQLiteDatabase:
    """The file of a ledger. Every operation opens and closes its own connection, so none is shared after a fork."""

    def __init__(self, url: URL) -> None:
        if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
            raise InvalidArgument(
                "url: must name a file (sqlite:///ledger.db); create a ledger in memory with dpb.Ledger(total)"
            )
        if url.query or url.host or url.username:
            raise InvalidArgument(
                "url: a SQLite ledger takes no options; write sqlite:///ledger.db and nothing after it"
            )
        try:
            self.path = Path(url.database).resolve()  # a later chdir must not select another ledger
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"url: {url.database!r} is not a valid path; write sqlite:///ledger.db") from error
        self.where = f"ledger {str(self.path)!r}"
        self.url = url.set(database=str(self.path))
        self._engine = _engine(self.path)

    def exists(self) -> bool:
        """Whether the file exists; raises if it cannot be a ledger."""
        with self._typed_errors():
            if not self.path.exists():
                self._refuse_leftovers()
                return False
            if not self.path.is_file():
                raise InvalidArgument(f"{self.where}: must be a file; name an existing file or a new one")
            if self.path.stat().st_size == 0:
                raise LedgerCorrupt(f"{self.where}: is empty, which a ledger never is; {RESTORE}")
            return True

    def create(self) -> None:
        """Create the file with its tables, without data sets, unless another process has already done so."""
        with self._typed_errors():
            if not self.path.parent.is_dir():
                raise InvalidArgument(f"{self.where}: its folder does not exist; create it first")
            with tempfile.TemporaryDirectory(prefix=f".{self.path.name}-", dir=self.path.parent) as folder:
                fresh = Path(folder) / "ledger"
                with contextlib.closing(sqlite3.connect(fresh)) as bare:
                    bare.execute("PRAGMA journal_mode = WAL")  # stored in the file
                with _engine(fresh).connect() as connection:
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                    make(connection)
                    connection.commit()
                with contextlib.suppress(FileExistsError):
                    os.link(fresh, self.path)
            _sync_folder(self.path.parent)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that reads a consistent snapshot."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that holds the write lock from the start; it is on disk when the context exits.

        The commit is moved from the write-ahead log into the file itself, so that a log that is lost, damaged or left
        out of a copy loses no charge that was used. If readers keep the log busy, or the disk is full, the commit stays
        in the log: it counts, and the charge is valid.
        """
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection
            connection.commit()
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(1000 * _CHECKPOINT_PATIENCE)}")
            with contextlib.suppress(OperationalError):
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextlib.contextmanager
    def adding(self) -> Iterator[Connection]:
        """A transaction that may add a data set; the write lock of the file covers this too."""
        with self.writing() as connection:
            yield connection

    def check(self, connection: Connection) -> None:
        """Raise unless every page of the file is intact and the tables of a ledger are present."""
        problems = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalars().all()
        if problems != ["ok"]:
            raise LedgerCorrupt(f"{self.where}: is damaged; {RESTORE}")
        if not present(connection):
            raise LedgerCorrupt(f"{self.where}: is a database but not a ledger; name another file")

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[Connection]:
        if not self.exists():
            raise LedgerUnavailable(f"{self.where}: is missing; put it back, or restore its latest backup")
        if _forked_while_open:
            raise LedgerUnavailable(
                f"{self.where}: this process was forked while another thread was using a ledger, so it cannot rely on "
                "SQLite's locks; nothing was charged. Fork before threads use ledgers, or start new processes instead "
                '(multiprocessing\'s "spawn", joblib\'s "loky")'
            )
        with _tracked(), self._typed_errors(), self._engine.connect() as connection:
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
                    f"{self.where}: is missing, but {self.path.name + suffix!r} remains; put the file back beside it, "
                    f"or {RESTORE}"
                )

    @contextlib.contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise self._typed(error.orig) from error
        except (
            sqlite3.Error,
            SQLAlchemyError,
            UnicodeDecodeError,
        ) as error:  # SQLite's messages may quote damaged names
            raise self._typed(error) from error
        except OSError as error:
            raise LedgerUnavailable(
                f"{self.where}: {error.strerror or 'cannot be used'}; check its folder, permissions and free space"
            ) from error

    def _typed(self, error: BaseException | None) -> Exception:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")):
            return LedgerUnavailable(
                f"{self.where}: was locked by other writers for {PATIENCE:g} s; nothing was charged; try again"
            )
        if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_FULL", "SQLITE_IOERR")):
            return LedgerUnavailable(
                f"{self.where}: cannot be opened or written ({error}); check its folder, permissions and free space"
            )
        return LedgerCorrupt(f"{self.where}: cannot be read as a ledger ({error}); {RESTORE}")


@contextlib.contextmanager
def _tracked() -> Iterator[None]:
    transaction = object()
    _open.add(transaction)
    try:
        yield
    finally:
        _open.discard(transaction)


def _engine(path: Path) -> Engine:
    def connect() -> sqlite3.Connection:
        # mode=rw never creates a file. Transactions are started explicitly: sqlite3 would start them too late.
        address = f"file:{quote(os.fsencode(path))}?mode=rw"
        connection = sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")  # independent of SQLite's build: NORMAL can lose commits
        except BaseException:
            connection.close()
            raise
        return connection

    return create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)


def _sync_folder(folder: Path) -> None:
    """Flush the directory, so that the name of a new file is on disk too."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
