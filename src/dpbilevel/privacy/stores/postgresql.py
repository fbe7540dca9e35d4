"""A ledger in a PostgreSQL server: a process that charges a data set locks its row until the charge is committed."""

import contextlib
from collections.abc import Iterator

from sqlalchemy import URL, Connection, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError

from dpbilevel.errors import InvalidArgument, LedgerCorrupt, LedgerUnavailable
from dpbilevel.privacy.stores.chain import RESTORE
from dpbilevel.privacy.stores.tables import make, present

PATIENCE = 60.0  # seconds that a process waits for other writers
_PASSWORD = (
    "its address comes from a pickle, which does not contain the password: set it in ~/.pgpass or PGPASSWORD, or open "
    "the ledger again with Ledger.open and replace it, as in model.set_params(ledger=...); "
)
_ADDING = 0x6470_6269_6C65  # "dpbile": the advisory lock for creating tables or adding a data set


class PostgreSQLDatabase:
    """The tables of a ledger in a server. Every operation opens its own connection, so none is shared after a fork.

    Args:
        url: the URL of the database.
        lost_password: whether the address had a password before it was pickled.
    """

    def __init__(self, url: URL, *, lost_password: bool = False) -> None:
        for name in ("password", "sslpassword"):
            if name in url.query:
                raise InvalidArgument(
                    f"url: has {name}= among its options, where messages would show it; keep it in ~/.pgpass, in "
                    "PGPASSWORD or in a service file, or write postgresql://user:password@server/database"
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
        """Whether the database contains a ledger."""
        with self.reading() as connection:
            return present(connection)

    def create(self) -> None:
        """Create the tables, without data sets, unless another process has already done so."""
        with self.adding() as connection:
            if not present(connection):
                make(connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that reads a consistent snapshot."""
        with self._transaction("REPEATABLE READ") as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction in which each statement sees all earlier commits; it is durable on exit.

        Its first statement must take the lock of a row: later reads then see what the last holder committed.
        """
        with self._transaction("READ COMMITTED") as connection:
            # A server may be configured to confirm commits before they are on disk.
            connection.exec_driver_sql("SET LOCAL synchronous_commit TO on")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout TO {int(1000 * PATIENCE)}")
            yield connection

    @contextlib.contextmanager
    def adding(self) -> Iterator[Connection]:
        """A transaction that prevents all others from creating tables or adding a data set."""
        with self.writing() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADDING})
            yield connection

    def check(self, connection: Connection) -> None:
        """Raise unless the tables of a ledger are present; the server itself checks its pages."""
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
            # Unknown columns, damaged pages, impossible values; but a missing permission (42501) is not damage.
            if state.startswith(("42", "XX", "22", "23")) and state != "42501":
                raise LedgerCorrupt(f"{self.where}: cannot be read as a ledger ({reason}); {RESTORE}") from error
            raise LedgerUnavailable(
                f"{self.where}: {reason}; {self._remedy}if this happened during a charge, the charge may have been "
                "recorded: check ledger.entries before trying again"
            ) from error
