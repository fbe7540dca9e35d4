"""What a ledger writes down, and the store that it writes into.

The ledger knows the rules (what fits), a store knows how entries are kept. `MemoryStore` is gone with its process. The
store in a database (`dpbilevel.privacy.stores.database`) is shared by all processes and outlives them.
"""

import json
import math
import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from dpbilevel.errors import LedgerUnavailable
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.process import this_process
from dpbilevel.privacy.spend import Privacy
from dpbilevel.privacy.stores.address import Address

Composition = Literal["gaussian", "basic"]
COMPOSITIONS: tuple[str, ...] = ("gaussian", "basic")


@dataclass(frozen=True)
class Entry:
    """One charge: what a run costs at most."""

    description: str
    epsilon: float
    delta: float
    mu: float | None  # None where releases are sampled


@dataclass(frozen=True)
class StoredEntry(Entry):
    """One charge as a database keeps it: also who, when, what plan, and which version of the library.

    Attributes:
        number: 1 for the first charge of the data set.
        user: who charged; the name of the operating system's user unless ``who=`` said otherwise.
        host: the machine.
        pid: the process.
        time: UTC, ISO 8601.
        version: of the library.
        plan: every charge of the run as JSON; `privacy` computes epsilon from it anew.
        digest: SHA-256 over all of this and the digest of the entry before.
    """

    number: int
    user: str
    host: str
    pid: int
    time: str
    version: str
    plan: str
    digest: str

    def privacy(self) -> Privacy:
        """The cost of the run, computed anew from its plan: nothing that the entry says of epsilon is trusted.

        What happened after the charge is not known here: a fixed seed, say, voids a run and is charged all the same.
        """
        return Privacy.from_json({**json.loads(self.plan), "caveats": (), "void": False})


@dataclass(frozen=True)
class DataSet:
    """What was declared when the ledger of a data set was begun, and never changes.

    Attributes:
        number: 1 for the first data set of the database.
        name: of the data set.
        unit: of privacy: what one record stands for.
        total: the budget.
        composition: as declared; None where the first charge decides.
        created: UTC, ISO 8601.
        user: who began it.
        version: of the library that began it.
        digest: SHA-256 over all of this and the digest of the data set before; the first entry continues from it.
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
    """What a store holds at one moment.

    Attributes:
        declared: the composition that was asked for when the ledger was made.
        entries: all charges, oldest first.
        dataset: whose they are, where a database keeps them.
    """

    declared: Composition | None
    entries: tuple[Entry, ...]
    dataset: DataSet | None = None

    @property
    def composition(self) -> Composition | None:
        """As declared, or else as the first charge decided; None before it."""
        if self.declared is not None or not self.entries:
            return self.declared
        return "basic" if self.entries[0].mu is None else "gaussian"


Append = Callable[[Entry, Privacy], None]


class Store(Protocol):
    """Keeps the entries of one data set."""

    @property
    def total(self) -> Budget:
        """The budget of the data set."""

    @property
    def address(self) -> Address | None:
        """Where other processes find it; None where they cannot."""

    def read(self) -> Snapshot:
        """What is written, all of one moment."""

    def writing(self) -> AbstractContextManager[tuple[Snapshot, Append]]:
        """Keep others from writing, then read; what is appended counts once the context ends without an error."""


class MemoryStore:
    """Entries in the memory of this process. A fork copies them: a copy is neither charged nor read."""

    address = None

    def __init__(self, total: Budget, declared: Composition | None) -> None:
        self.total = total
        self.declared = declared
        self.entries: list[Entry] = []
        self.lock: AbstractContextManager[Any] = threading.Lock()
        self.process = this_process()

    def read(self) -> Snapshot:
        """What is written, all of one moment."""
        self._check_process()
        return Snapshot(self.declared, tuple(self.entries))

    @contextmanager
    def writing(self) -> Iterator[tuple[Snapshot, Append]]:
        """Keep other threads from writing, then read."""
        self._check_process()  # before the lock, which another thread may have held at the moment of the fork
        with self.lock:
            yield self.read(), lambda entry, _: self.entries.append(entry)

    def _check_process(self) -> None:
        if self.process != this_process():
            raise LedgerUnavailable(
                "ledger: is kept in the memory of another process, and this one has a copy that a fork made; what is "
                "charged to a copy is lost, and each could spend the budget again. Keep the ledger in a database, "
                'which all processes share: dpb.Ledger.open("sqlite:///ledger.db", dataset=..., total=...)'
            )


def plan_text(privacy: Privacy) -> str:
    """The charges of a run as JSON, without a sentence of guarantee: a charge cannot know whether that will hold."""
    content = privacy.to_json()
    plan = {key: content[key] for key in ("adjacency", "accountant", "budget", "roles")}
    return json.dumps(standard(plan), sort_keys=True, separators=(",", ":"), allow_nan=False, default=operator.index)


def standard(value: Any) -> Any:
    """The same value without non-finite numbers, for which standard JSON has no word: they become strings.

    >>> standard({"epsilon": float("inf"), "steps": [1, 2]})
    {'epsilon': 'inf', 'steps': [1, 2]}
    """
    if isinstance(value, dict):
        return {key: standard(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [standard(item) for item in value]
    return str(float(value)) if isinstance(value, float) and not math.isfinite(value) else value
