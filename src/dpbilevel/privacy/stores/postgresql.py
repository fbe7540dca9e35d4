"""A ledger in a PostgreSQL server: who charges a data set holds the lock of its row until the charge is committed."""

import contextlib
from collections.abc import Iterator

from sqlalchemy import URL, Connection, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError

from dpbilevel.errors import InvalidArgument, LedgerCorrupt, LedgerUnavailable
from dpbilevel.privacy.stores.chain import RESTORE
from dpbilevel.privacy.stores.tables import make, present

PATIENCE = 60.0  # seconds that a process waits for others that write
_PASSWORD = (
    "its address came in a pickle, which carries no password: give it in ~/.pgpass or PGPASSWORD, or open the ledger "
    "again with Ledger.open and pass that on, as in model.set_params(ledger=...); "
)
_ADDING = 0x6470_6269_6C65  # "dpbile": the advisory lock of those who make tables or add a data set


class PostgreSQLDatabase:
    """The tables of a ledger in a server. Every operation has a connection of its own: none is shared by a fork.

    Args:
        url: of the database.
        lost_password: whether the address had a password before it was pickled.
    """

    def __init__(self, url: URL, *, lost_password: bool = False) -> None:
        for name in ("password", "sslpassword"):
            if name in url.query:
                raise InvalidArgument(
                    f"url: has {name}= among its options, where it would be shown; keep it in ~/.pgpass, in PGPASSWORD "
                    "or in a service file, or write postgresql://user:password@server/database"
                )
        self.url = url
        self._remedy = _PASSWORD if lost_password else ""
        self.where = f"ledger {url.render_as_string(hide_password=True)}"
        try:
            self._engine = create_engine(
                url.set(drivername="postgresql+psycopg"),
                poolclass=NullPool,
                connect_args={"connect_timeout": 10},
                hide_parameters=True,
            )
        except ImportError as error:
            raise InvalidArgument("url: PostgreSQL needs psycopg; install it with dpbilevel[postgresql]") from error

    def exists(self) -> bool:
        """Whether the ledger was begun."""
        with self.reading() as connection:
            return present(connection)

    def create(self) -> None:
        """Make the tables, without a data set; nothing happens where another process was first."""
        with self.adding() as connection:
            if not present(connection):
                make(connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one moment."""
        with self._transaction("REPEATABLE READ") as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction in which each statement sees what was committed before it; it is durable when left.

        Its first statement must take the lock of a row: what is read after that is what the last holder left.
        """
        with self._transaction("READ COMMITTED") as connection:
            # A server may be set up to answer before a commit is on disk.
            connection.exec_driver_sql("SET LOCAL synchronous_commit TO on")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout TO {int(1000 * PATIENCE)}")
            yield connection

    @contextlib.contextmanager
    def adding(self) -> Iterator[Connection]:
        """A transaction that keeps all others from making tables or adding a data set."""
        with self.writing() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADDING})
            yield connection

    def check(self, connection: Connection) -> None:
        """Raise unless the tables are a ledger's; the server looks after its own pages."""
        if not present(connection):
            raise LedgerCorrupt(f"{self.where}: its tables are missing; {RESTORE}")

    @contextlib.contextmanager
    def _transaction(self, isolation: str) -> Iterator[Connection]:
        with self._typed_errors(), self._engine.connect() as bare:
            connection = bare.execution_options(isolation_level=isolation)
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    @contextlib.contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            state = getattr(error.orig, "sqlstate", None) or ""
            reason = (str(error.orig).strip().splitlines() or ["no reason given"])[0]
            # Unknown columns, damaged pages, impossible values; but a missing permission (42501) mends itself.
            if state.startswith(("42", "XX", "22", "23")) and state != "42501":
                raise LedgerCorrupt(f"{self.where}: cannot be read as a ledger ({reason}); {RESTORE}") from error
            raise LedgerUnavailable(
                f"{self.where}: {reason}; {self._remedy}if this happened during a charge it may have been recorded: "
                "look at ledger.entries before trying again"
            ) from error
