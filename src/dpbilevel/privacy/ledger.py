"""The ledger of a data set. It charges each run before data is read, and refuses runs that exceed the budget.

A ledger belongs to the *data set*, not to an estimator or a run: copies of it are the same ledger. Its total is fixed
when it is created. Nothing is ever refunded. `Ledger(total)` keeps its entries in memory and serves one process: a copy
made by a fork can be neither charged nor read. `Ledger.open(url, dataset=...)` keeps them in a database and serves all
users of the data set. Such a ledger can be pickled, as its address without the password and the name of the data set.
A model that holds it can therefore be saved, and all processes that unpickle it charge the same ledger.

**How runs compose.** The rule is fixed before any record is read, by the first charge or by ``composition=``:

* "gaussian": runs of full-batch Gaussian releases only; mu^2 adds up and the total is a mu as well. With runs chosen
  adaptively this is a privacy filter (Smith and Thakurta 2022).
* "basic": any runs; their epsilons and their deltas add up (the filter of Rogers et al. 2016).

A ledger never switches rules. If the rule were chosen after looking at released values, a run could use the better of
two filters, which neither proof covers. Each run counts with its maximum over roles, because a record may have
different roles in different runs.
"""

import functools
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from decimal import ROUND_DOWN, Context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dpbilevel.errors import BudgetExceeded, DPBilevelError, InvalidArgument, NotCharged
from dpbilevel.foundation.arguments import count, one_of, printable
from dpbilevel.privacy.accounting import Chargeable, all_charges, gaussian_epsilon
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.process import this_process
from dpbilevel.privacy.spend import Privacy
from dpbilevel.privacy.stores.address import Address
from dpbilevel.privacy.stores.entry import COMPOSITIONS, Composition, Entry, MemoryStore, Snapshot, Store
from dpbilevel.privacy.stores.statement import Statement, write_statement

if TYPE_CHECKING:  # importing it would load JAX, which is not needed to inspect a ledger
    from dpbilevel.privacy.noise import KeySchedule

_DECIMAL = 1 + 1e-12  # tolerance for decimal fractions: five times 0.2 must fit into 1


class Receipt:
    """Proof that releases were charged. Records evaluate each release at most as often as was charged."""

    def __init__(self, releases: Sequence[Chargeable]) -> None:
        self.__left = {id(release): (release, release.uses) for release in releases}
        self.__used = 0
        self.__lock = threading.Lock()
        self.__process = this_process()

    def advance(self, schedule: "KeySchedule", uses: int) -> int:
        """Reserve the next ``uses`` uses of the schedule and return the index of the first.

        The receipt, not the caller, stores the position, and a schedule serves one receipt only. Otherwise two uses
        could draw the same noise, which would cancel in their difference.
        """
        self.__check_process()
        with self.__lock:
            schedule.claim(self)
            first, self.__used = self.__used, self.__used + uses
            return first

    def redeem(self, release: Chargeable, uses: int) -> None:
        """Deduct ``uses`` uses of ``release`` from the receipt, before they are executed."""
        count("uses", uses, "it is the number of uses to deduct")
        self.__check_process()
        with self.__lock:
            _, left = self.__left.get(id(release), (release, 0))
            if uses > left:
                raise NotCharged(
                    f"release {release.name!r}: {uses} uses requested, {left} left on its receipt; charge it first"
                )
            self.__left[id(release)] = (release, left - uses)

    def __check_process(self) -> None:
        if self.__process != this_process():
            raise NotCharged(
                "receipt: was issued in another process and copied by a fork; charge in the process that uses it"
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Receipt can be redeemed only once: it cannot be copied or pickled")


class Ledger:
    """Tracks how the runs on one data set spend its total budget.

    Args:
        total: the budget of the data set, with the neighbouring relation that every run must use.
        composition: "gaussian" or "basic" (see the module); by default the first charge decides.

    >>> import dpbilevel as dpb
    >>> ledger = dpb.Ledger(dpb.Budget(3.0, 1e-6))
    >>> ledger
    Ledger(epsilon 0 of 3 spent at delta 1e-06, replace-one, 0 runs)
    """

    _address: Address  # set on unpickled ledgers

    def __init__(self, total: Budget, *, composition: Composition | None = None) -> None:
        _check_total(total)
        _check_composition(composition)
        self._store = MemoryStore(total, composition)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        dataset: str,
        total: Budget | None = None,
        composition: Composition | None = None,
        unit: str | None = None,
        who: str | None = None,
    ) -> "Ledger":
        """Open the ledger of a data set in a database; create it if it does not exist and ``total`` is given.

        Guarantee: a charge is one transaction that is on disk before a receipt is issued. Concurrent charges are
        serialized and cannot exceed the total together. Every row is verified when the ledger is opened and before
        each charge; a damaged, empty or truncated ledger raises `LedgerCorrupt` and never starts at zero. The database
        stores public facts only, no records.

        Args:
            url: "sqlite:///ledger.db" (a file on this machine) or "postgresql://user@server/database".
            dataset: the name of the data set, the same for all its users.
            total: the budget; required to create the ledger, and otherwise omitted or equal to the stored one.
            composition: "gaussian" or "basic" (see the module); by default the first charge decides.
            unit: the unit of privacy, that is, what one record represents; "one record" by default. "all rows with the
                same person" names a column of ids: only runs on units are then accepted, and of no other column.
            who: the name recorded with each charge; the system's user name by default.

        >>> import tempfile, dpbilevel as dpb
        >>> folder = tempfile.TemporaryDirectory()
        >>> url = f"sqlite:///{folder.name}/ledger.db"
        >>> dpb.Ledger.open(url, dataset="hospital-2026", total=dpb.Budget(3.0, 1e-6))
        Ledger('hospital-2026', epsilon 0 of 3 spent at delta 1e-06, replace-one, 0 runs)
        >>> dpb.Ledger.open(url, dataset="hospital-2026").total
        Budget(epsilon=3.0, delta=1e-06, adjacency='replace-one')
        """
        from dpbilevel.privacy.stores.database import open_store

        if total is not None:
            _check_total(total)
        _check_composition(composition)
        ledger = cls.__new__(cls)
        ledger._store = open_store(url, dataset, total=total, composition=composition, unit=unit, who=who)
        return ledger

    @functools.cached_property
    def _store(self) -> Store:
        # An unpickled ledger connects on first use, so that a model can be loaded where its ledger is unreachable.
        from dpbilevel.privacy.stores.database import reopen_store

        return reopen_store(self._address)

    @property
    def total(self) -> Budget:
        """The budget of the data set."""
        return self._store.total

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All charges so far, oldest first. A ledger in a database reads them on each access, as `StoredEntry`."""
        return self._store.read().entries

    @property
    def composition(self) -> Composition | None:
        """How runs compose; None if the first charge is to decide and has not been made."""
        return self._store.read().composition

    @property
    def is_stored(self) -> bool:
        """Whether the entries are in a database, so that a run can resume in another process."""
        return self._store.read().dataset is not None

    def charge(
        self,
        releases: Sequence[Chargeable],
        budget: Budget,
        description: str,
        *,
        once: bool = False,
        rows_per_unit: int | None = None,
        unit: str | None = None,
    ) -> Receipt:
        """Charge an entire run, in one transaction, before its first record is read.

        Raises `BudgetExceeded`, and changes nothing, if the total would be exceeded. With ``once``, the description
        permanently identifies this run: if the ledger already contains it, the run was charged before it was
        interrupted and is not charged again. ``rows_per_unit`` is that of a run on units, and ``unit`` is
        public: what a unit is, such as "all rows with the same person"; by default the column of ids that was declared
        for the ledger, if one was. A ledger is one of rows or one of units, of any number of rows, as its declaration
        or its first charge decides, and runs on another unit are refused.
        """
        for adjacency in {budget.adjacency, *(release.adjacency for release in releases)}:
            if adjacency != self.total.adjacency:
                raise InvalidArgument(
                    f"adjacency={adjacency!r}: must be {self.total.adjacency!r}, the relation of the ledger; spends "
                    "under different relations cannot be added"
                )
        privacy = Privacy(all_charges(releases), budget, rows_per_unit=rows_per_unit)
        unbound = Entry(description, privacy.epsilon(), budget.delta or 0.0, privacy.mu, rows_per_unit=rows_per_unit)
        with self._store.writing() as (snapshot, append):
            entry = _with_unit(unbound, unit, snapshot)
            if once and any(_is_charge_of(entry, other) for other in snapshot.entries):
                return Receipt(releases)
            composition = snapshot.composition or ("basic" if entry.mu is None else "gaussian")
            if composition == "gaussian" and entry.mu is None:
                raise InvalidArgument(
                    "ledger: its runs so far compose as full-batch Gaussians and this run does not; to combine both, "
                    'create the ledger with Ledger(total, composition="basic") before its first run'
                )
            if not self._fits([*snapshot.entries, entry], composition):
                raise BudgetExceeded(
                    f"{description}: needs epsilon {entry.epsilon:.6g} at delta {entry.delta:.3g}, but "
                    f"{self._describe(snapshot)}; {self._advise(snapshot, composition, entry.delta)}"
                )
            append(entry, privacy)
        return Receipt(releases)

    def follow(self, releases: Sequence[Chargeable]) -> Receipt:
        """The receipt of a charge that the first process of a job has made, for another one; nothing is charged."""
        return Receipt(releases)

    def spent(self) -> float:
        """Epsilon spent so far, at the total's delta."""
        return self._spent(self._store.read())

    def remaining(self) -> Budget | None:
        """The largest budget that one more run of the same kind may use; None if the budget is exhausted."""
        return self._remaining(self._store.read())

    def statement(self) -> Statement:
        """A consistent snapshot of the entire ledger for a review; requires a ledger in a database."""
        snapshot = self._store.read()
        if snapshot.dataset is None:
            raise InvalidArgument(
                "ledger: is kept in memory, which records neither users nor times; open one in a database with "
                'dpb.Ledger.open("sqlite:///ledger.db", dataset=...)'
            )
        return Statement(snapshot, self._spent(snapshot), self._remaining(snapshot))

    def export(self, path: str | Path) -> Path:
        """Write `statement` atomically as .json or .csv; the same ledger gives the same bytes."""
        return write_statement(self.statement(), Path(path))

    def _spent(self, snapshot: Snapshot) -> float:
        if not snapshot.entries:
            return 0.0
        if snapshot.composition == "basic":
            return math.fsum(entry.epsilon for entry in snapshot.entries)
        return gaussian_epsilon(_sum_of_squares(snapshot.entries) ** 0.5, self.total.delta or 0.0)

    def _remaining(self, snapshot: Snapshot) -> Budget | None:
        total = self.total
        if not snapshot.entries or not total.is_private:
            return total
        if snapshot.composition == "basic":
            epsilon = total.epsilon - self._spent(snapshot)
            delta = (total.delta or 0.0) - math.fsum(entry.delta for entry in snapshot.entries)
        else:
            left = total.mu**2 - _sum_of_squares(snapshot.entries)
            delta = total.delta or 0.0
            # The remainder that calibration leaves as a rounding margin is too small to plan a run with.
            epsilon = gaussian_epsilon(left**0.5, delta) if left > 1e-8 * total.mu**2 else 0.0
        return Budget(epsilon, delta, total.adjacency) if epsilon > 0 and delta > 0 else None

    def _advise(self, snapshot: Snapshot, composition: Composition, delta: float) -> str:
        """Suggest the largest epsilon that a run at this delta may use instead."""
        left = self._remaining(snapshot)
        if left is None:
            return "the budget is exhausted"
        if composition == "gaussian":
            epsilon, at = gaussian_epsilon(left.mu, delta), f"delta {delta:.6g}"
        else:  # deltas are used up as well
            least = delta if delta <= (left.delta or 0.0) else _rounded_down(left.delta or 0.0)
            epsilon, at = left.epsilon, f"delta {least:.6g}"
        fits = _rounded_down(epsilon)
        return f"epsilon {fits:.6g} at {at} would fit" if fits > 0 else f"no epsilon fits at {at}; lower delta"

    def _fits(self, entries: list[Entry], composition: Composition) -> bool:
        if not self.total.is_private:
            return True
        if composition == "gaussian":
            return _sum_of_squares(entries) <= self.total.mu**2
        epsilon, delta = (math.fsum(column) for column in zip(*((e.epsilon, e.delta) for e in entries), strict=True))
        return epsilon <= self.total.epsilon * _DECIMAL and delta <= (self.total.delta or 0.0) * _DECIMAL

    def _describe(self, snapshot: Snapshot) -> str:
        delta = "" if self.total.delta is None else f" at delta {self.total.delta:g}"
        return f"epsilon {self._spent(snapshot):.6g} of {self.total.epsilon:g} spent{delta}"

    def __repr__(self) -> str:
        try:
            snapshot = self._store.read()
        except DPBilevelError as error:  # a repr must not raise: it is needed most when something is wrong
            return f"Ledger(cannot be read: {type(error).__name__})"
        name = "" if snapshot.dataset is None else f"{snapshot.dataset.name!r}, "
        runs = f"{len(snapshot.entries)} run{'' if len(snapshot.entries) == 1 else 's'}"
        return f"Ledger({name}{self._describe(snapshot)}, {self.total.adjacency}, {runs})"

    def _repr_html_(self) -> str:
        """A compact card for notebooks."""
        from dpbilevel.report.privacy_cards import ledger_card, unreadable_ledger_card

        try:
            snapshot = self._store.read()
        except DPBilevelError as error:
            return unreadable_ledger_card(error)
        return ledger_card(snapshot, self.total, self._spent(snapshot), self._remaining(snapshot))

    def __copy__(self) -> "Ledger":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ledger":
        return self  # scikit-learn's clone makes deep copies of parameters; two ledgers would spend the budget twice

    def __reduce__(self) -> tuple[Any, ...]:
        address = self._store.address if "_store" in vars(self) else self._address
        if address is None:
            raise TypeError(
                "a Ledger in memory cannot be pickled: a second copy could spend the same budget again. Keep it in a "
                'database that processes share, dpb.Ledger.open("sqlite:///ledger.db", dataset=..., total=...); to '
                "save a model without its ledger, call model.set_params(ledger=None)"
            )
        return _unpickled, (address,)


def _unpickled(address: Address) -> Ledger:
    ledger = Ledger.__new__(Ledger)
    ledger._address = address
    return ledger


def _check_total(total: Any) -> None:
    if isinstance(total, str):
        raise InvalidArgument(
            "total: must be a dpb.Budget, not text; open a ledger in a database with "
            "dpb.Ledger.open(url, dataset=..., total=...)"
        )
    if not isinstance(total, Budget):
        raise InvalidArgument(f"total={total!r}: must be a dpb.Budget; it is fixed for the life of the ledger")


def _check_composition(composition: Any) -> None:
    if composition is not None:
        one_of("composition", composition, COMPOSITIONS, "it determines how runs compose")


def _with_unit(run: Entry, unit: str | None, snapshot: Snapshot) -> Entry:
    """The entry with its unit; raises unless the ledger is one of this unit."""
    declared, rule = snapshot.column_unit, "spends on different units of privacy cannot be added"
    remedy = "(use the same for all runs, or another ledger)"
    if snapshot.entries and (snapshot.entries[0].rows_per_unit is None) != (run.rows_per_unit is None):
        kinds = ("rows", "units") if run.rows_per_unit is None else ("units", "rows")
        raise InvalidArgument(
            f"ledger: this run protects {kinds[0]} and its runs so far protect {kinds[1]}; {rule} {remedy}"
        )
    if run.rows_per_unit is None:
        if declared is not None:
            raise InvalidArgument(f"ledger: this run protects rows, and the ledger is for {declared}; {rule} {remedy}")
        return run
    own = declared if unit is None else printable("unit", unit, "it says what a unit is", longest=1000)
    for known in (declared, *(entry.unit for entry in snapshot.entries)):
        if None not in (own, known) and own != known:
            raise InvalidArgument(
                f"ledger: this run protects {own!r}, and the ledger is for {known!r}; {rule} {remedy}"
            )
    return replace(run, unit=own)


def _is_charge_of(run: Entry, entry: Entry) -> bool:
    """Whether ``entry`` is the charge of this run; raises if the same name was charged with another cost."""
    if run.description != entry.description:
        return False
    costs = [(charge.epsilon, charge.delta, charge.mu or 0.0) for charge in (run, entry)]
    if not all(map(functools.partial(math.isclose, rel_tol=1e-9), *costs)):
        raise InvalidArgument(f"ledger: {run.description!r} was charged with another cost; run it under a new name")
    return True


def _rounded_down(number: float) -> float:
    """Round down to four digits, so that the displayed number fits whenever the exact one does."""
    return float(Context(prec=4, rounding=ROUND_DOWN).create_decimal_from_float(number * _DECIMAL))


def _sum_of_squares(entries: Sequence[Entry]) -> float:
    return math.fsum((entry.mu or 0.0) ** 2 for entry in entries)
