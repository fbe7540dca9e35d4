"""The tables of a ledger in a database. Every row is verified when it is read.

There are three tables: one row with the format and the number of data sets, one row per data set (its declarations and
number of entries), and one row per entry. Numbers are stored as 64-bit floats and are read back bit for bit; a value
whose type differs from the written one is refused.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Double, Integer, MetaData, Table, Text, inspect, select, update

from dpbilevel.errors import InvalidArgument, LedgerCorrupt
from dpbilevel.foundation.arguments import one_of
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.stores.chain import RESTORE, START, check_datasets, check_entries
from dpbilevel.privacy.stores.entry import COMPOSITIONS, IN_PLAN, DataSet, Snapshot, StoredEntry

FORMAT = 1

METADATA = MetaData()

HEADS = Table(
    "dpbilevel_ledger",
    METADATA,
    Column("format", Integer, primary_key=True, autoincrement=False),
    Column("datasets", Integer, nullable=False),  # number of data sets
    Column("digest", Text, nullable=False),  # digest of the last data set
)

DATASETS = Table(
    "dpbilevel_ledger_datasets",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False, unique=True),
    Column("unit", Text, nullable=False),
    Column("epsilon", Double, nullable=False),
    Column("delta", Double),
    Column("adjacency", Text, nullable=False),
    Column("composition", Text),
    Column("created", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("entries", Integer, nullable=False),  # number of entries; only this column and the next ever change
    Column("head", Text, nullable=False),  # digest of the last entry
)

ENTRIES = Table(
    "dpbilevel_ledger_entries",
    METADATA,
    Column("dataset", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("description", Text, nullable=False),
    Column("epsilon", Double, nullable=False),
    Column("delta", Double, nullable=False),
    Column("mu", Double),
    Column("user", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("time", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("plan", Text, nullable=False),
    Column("digest", Text, nullable=False),
)


def present(connection: Connection) -> bool:
    """Whether the tables of a ledger exist; raises if only some of them do."""
    missing = [name for name in METADATA.tables if not inspect(connection).has_table(name)]
    if missing and len(missing) < len(METADATA.tables):
        raise LedgerCorrupt(f"ledger: its table {missing[0]} is missing; {RESTORE}")
    return not missing


def make(connection: Connection) -> None:
    """Create the tables, without data sets."""
    METADATA.create_all(connection)
    connection.execute(HEADS.insert().values(format=FORMAT, datasets=0, digest=START))


def all_snapshots(connection: Connection, *, locked: bool = False) -> dict[str, Snapshot]:
    """Snapshots of all data sets by name, after verifying the entire ledger; ``locked`` as in `one_snapshot`."""
    rows = connection.execute(select(HEADS)).mappings().all()
    if len(rows) != 1:
        raise LedgerCorrupt(f"ledger: its table {HEADS.name} has {len(rows)} rows, must have 1; {RESTORE}")
    ((version, count, head),) = ((_whole(row["format"]), _whole(row["datasets"]), _text(row["digest"])) for row in rows)
    if version != FORMAT:
        raise LedgerCorrupt(
            f"ledger: has format {version}, and this version of the library reads format {FORMAT}; use the version of "
            "the library that wrote it"
        )
    rows = connection.execute(select(DATASETS).order_by(DATASETS.c.number)).mappings().all()
    datasets = {dataset.name: dataset for dataset in map(_dataset, rows)}
    check_datasets(list(datasets.values()), count, head)
    snapshots = {name: one_snapshot(connection, name, locked=locked) for name in datasets}
    owners = set(connection.execute(select(ENTRIES.c.dataset).distinct()).scalars())
    if not owners <= set(datasets):
        raise LedgerCorrupt(f"ledger: has entries of a data set that was never created; {RESTORE}")
    return {name: snapshot for name, snapshot in snapshots.items() if snapshot is not None}


def one_snapshot(connection: Connection, name: str, *, locked: bool = False) -> Snapshot | None:
    """A data set and its entries, verified; None if it does not exist.

    Args:
        connection: a connection inside a transaction.
        name: the name of the data set.
        locked: whether to lock the row first, so that it cannot change until the transaction ends.
    """
    query = select(DATASETS).where(DATASETS.c.name == name)
    row = connection.execute(query.with_for_update() if locked else query).mappings().one_or_none()
    if row is None:
        return None
    dataset = _dataset(row)
    query = select(ENTRIES).where(ENTRIES.c.dataset == name).order_by(ENTRIES.c.number)
    entries = tuple(_entry(row) for row in connection.execute(query).mappings())
    check_entries(dataset, entries, _whole(row["entries"]), _text(row["head"]))
    return Snapshot(dataset.composition, entries, dataset)


def add_dataset(connection: Connection, dataset: DataSet) -> None:
    """Insert a data set without entries; the caller holds the lock of the entire ledger."""
    values = {key: value for key, value in vars(dataset).items() if key != "total"}
    connection.execute(DATASETS.insert().values(**values, **asdict(dataset.total), entries=0, head=dataset.digest))
    connection.execute(update(HEADS).values(datasets=dataset.number, digest=dataset.digest))


def add_entry(connection: Connection, dataset: DataSet, entry: StoredEntry) -> None:
    """Insert an entry and update the count and head of its data set, whose lock the caller holds."""
    values = {key: value for key, value in asdict(entry).items() if key not in IN_PLAN}
    connection.execute(ENTRIES.insert().values(dataset=dataset.name, **values))
    connection.execute(
        update(DATASETS).where(DATASETS.c.name == dataset.name).values(entries=entry.number, head=entry.digest)
    )


def _dataset(row: Mapping[Any, Any]) -> DataSet:
    texts = {key: _text(row[key]) for key in ("name", "unit", "created", "user", "version", "digest")}
    delta, composition = row["delta"], row["composition"]
    try:
        total = Budget(_real(row["epsilon"]), None if delta is None else _real(delta), row["adjacency"])
        declared: Any = None if composition is None else one_of("composition", composition, COMPOSITIONS, "stored")
    except InvalidArgument as error:
        raise LedgerCorrupt(f"ledger: a total is not a budget; {RESTORE}") from error
    return DataSet(number=_whole(row["number"]), total=total, composition=declared, **texts)


def _entry(row: Mapping[Any, Any]) -> StoredEntry:
    names = ("description", "user", "host", "time", "version", "plan", "digest")
    mu = row["mu"]
    return StoredEntry(
        number=_whole(row["number"]),
        epsilon=_real(row["epsilon"]),
        delta=_real(row["delta"]),
        mu=None if mu is None else _real(mu),
        pid=_whole(row["pid"]),
        **{name: _text(row[name]) for name in names},
    )


def _checked(value: Any, kinds: type) -> Any:
    if type(value) is not kinds:
        raise LedgerCorrupt(f"ledger: holds a {type(value).__name__} where a {kinds.__name__} was written; {RESTORE}")
    return value


def _whole(value: Any) -> int:
    return int(_checked(value, int))


def _real(value: Any) -> float:
    return float(_checked(value, float))


def _text(value: Any) -> str:
    return str(_checked(value, str))
