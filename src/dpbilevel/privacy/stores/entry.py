"""The entries of a ledger, and the stores that hold them.

The ledger decides which charges fit; a store holds the entries. A `MemoryStore` lives as long as its process. The store
in a database (`dpbilevel.privacy.stores.database`) is shared by all processes and outlives them.
"""

import contextlib
import json
import math
import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from dpbilevel.errors import LedgerUnavailable
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.process import this_process
from dpbilevel.privacy.spend import Privacy
from dpbilevel.privacy.stores.address import Address

Composition = Literal["gaussian", "basic"]
COMPOSITIONS: tuple[str, ...] = ("gaussian", "basic")
DEFAULT_UNIT = "one record"
IN_PLAN = ("rows_per_unit", "unit")  # fields of an entry that are stored with its plan
_COLUMN = "all rows with the same "


def unit_of_column(name: str) -> str:
    """What a unit is, if rows with the same cell of a column make one.

    >>> unit_of_column("person")
    'all rows with the same person'
    """
    return _COLUMN + name


@dataclass(frozen=True)
class Entry:
    """One charge: an upper bound on the cost of a run."""

    description: str
    epsilon: float
    delta: float
    mu: float | None  # None if releases are sampled
    rows_per_unit: int | None = field(default=None, kw_only=True)  # of a run on units; None for a run on rows
    unit: str | None = field(default=None, kw_only=True)  # what a unit is, if the run or its ledger says so


@dataclass(frozen=True)
class StoredEntry(Entry):
    """One charge as stored in a database, with user, time, plan and library version.

    Attributes:
        number: 1 for the first charge of the data set.
        user: who charged; the operating system's user name unless ``who=`` was given.
        host: the machine's host name.
        pid: the process id.
        time: UTC, ISO 8601.
        version: the version of the library.
        plan: every charge of the run as JSON; `privacy` recomputes epsilon from it.
        digest: SHA-256 over all other fields and the digest of the previous entry.
    """

    number: int
    user: str
    host: str
    pid: int
    time: str
    version: str
    plan: str
    digest: str
    rows_per_unit: int | None = field(default=None, init=False)
    unit: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # Part of the plan: the columns of existing ledgers stay as they are. A plan that cannot be read is found later.
        for name in IN_PLAN:
            with contextlib.suppress(ValueError, TypeError, AttributeError):
                object.__setattr__(self, name, json.loads(self.plan).get(name))

    def privacy(self) -> Privacy:
        """The cost of the run, recomputed from its plan: the stored epsilon is not used.

        Events after the charge are unknown here: a fixed seed, for example, voids the guarantee of a run but the run is
        charged all the same.
        """
        return Privacy.from_json({**json.loads(self.plan), "caveats": (), "void": False})


@dataclass(frozen=True)
class DataSet:
    """The declarations with which the ledger of a data set was created. They never change.

    Attributes:
        number: 1 for the first data set of the database.
        name: the name of the data set.
        unit: the unit of privacy: what one record represents.
        total: the budget.
        composition: as declared; None if the first charge decides.
        created: UTC, ISO 8601.
        user: who created it.
        version: the version of the library that created it.
        digest: SHA-256 over all other fields and the digest of the previous data set; the first entry is chained to it.
    """

    number: int
    name: str
    unit: str
    total: Budget
    composition: Composition | None
    created: str
    user: str
    version: str
    digest: str


@dataclass(frozen=True)
class Snapshot:
    """The content of a store at one moment.

    Attributes:
        declared: the composition requested when the ledger was created.
        entries: all charges, oldest first.
        dataset: the data set they belong to, if they are stored in a database.
    """

    declared: Composition | None
    entries: tuple[Entry, ...]
    dataset: DataSet | None = None

    @property
    def composition(self) -> Composition | None:
        """As declared, otherwise as decided by the first charge; None before it."""
        if self.declared is not None or not self.entries:
            return self.declared
        return "basic" if self.entries[0].mu is None else "gaussian"

    @property
    def unit(self) -> str:
        """The unit of privacy: as declared, otherwise that of the runs."""
        declared = DEFAULT_UNIT if self.dataset is None else self.dataset.unit
        if declared != DEFAULT_UNIT or not self.entries or self.entries[0].rows_per_unit is None:
            return declared
        return next((entry.unit for entry in self.entries if entry.unit is not None), "one unit, all rows of one id")

    @property
    def column_unit(self) -> str | None:
        """The declared unit, if that is a column of ids. Other declarations are words, which no run can be held to."""
        declared = "" if self.dataset is None else self.dataset.unit
        return declared if declared.startswith(_COLUMN) else None


Append = Callable[[Entry, Privacy], None]


class Store(Protocol):
    """Keeps the entries of one data set."""

    @property
    def total(self) -> Budget:
        """The budget of the data set."""

    @property
    def address(self) -> Address | None:
        """The address at which other processes can open it; None if they cannot."""

    def read(self) -> Snapshot:
        """A consistent snapshot of the entries."""

    def writing(self) -> AbstractContextManager[tuple[Snapshot, Append]]:
        """Lock out other writers, then read; an appended entry counts once the context exits without an error."""


class MemoryStore:
    """Entries in the memory of this process. A copy made by a fork can be neither charged nor read."""

    address = None

    def __init__(self, total: Budget, declared: Composition | None) -> None:
        self.total = total
        self.declared = declared
        self.entries: list[Entry] = []
        self.lock: AbstractContextManager[Any] = threading.Lock()
        self.process = this_process()

    def read(self) -> Snapshot:
        """A consistent snapshot of the entries."""
        self._check_process()
        return Snapshot(self.declared, tuple(self.entries))

    @contextmanager
    def writing(self) -> Iterator[tuple[Snapshot, Append]]:
        """Lock out other threads, then read."""
        self._check_process()  # before the lock, which another thread may have held at the moment of the fork
        with self.lock:
            yield self.read(), lambda entry, _: self.entries.append(entry)

    def _check_process(self) -> None:
        if self.process != this_process():
            raise LedgerUnavailable(
                "ledger: is kept in the memory of another process, and this process has a copy made by a fork; charges "
                "to a copy are lost, so each copy could spend the budget again. Keep the ledger in a database that all "
                'processes share: dpb.Ledger.open("sqlite:///ledger.db", dataset=..., total=...)'
            )


def plan_text(privacy: Privacy, unit: str | None = None) -> str:
    """The charges of a run as JSON, without a statement of guarantee: whether one will hold is not known yet."""
    content = privacy.to_json()
    keys = ("adjacency", "accountant", "budget", "roles", "rows_per_unit")
    plan = {key: content[key] for key in keys if key in content} | ({} if unit is None else {"unit": unit})
    return json.dumps(standard(plan), sort_keys=True, separators=(",", ":"), allow_nan=False, default=operator.index)


def standard(value: Any) -> Any:
    """Replace non-finite numbers, which standard JSON cannot represent, by strings.

    >>> standard({"epsilon": float("inf"), "steps": [1, 2]})
    {'epsilon': 'inf', 'steps': [1, 2]}
    """
    if isinstance(value, dict):
        return {key: standard(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [standard(item) for item in value]
    return str(float(value)) if isinstance(value, float) and not math.isfinite(value) else value
