"""The ledger of a data set: it charges before data is touched, and refuses when the budget is gone.

A ledger belongs to the *data set*, not to an estimator or a run: copies of it are the same ledger. Its total is fixed
when it is made. Nothing is ever refunded.

**How runs compose.** The rule is fixed before any record is read, by the first charge or by ``composition=``:

* "gaussian": runs of full-batch Gaussian releases only; mu^2 adds up and the total is a mu as well. With runs chosen
  adaptively this is a privacy filter (Smith and Thakurta 2022).
* "basic": any runs; their epsilons and their deltas add up (the filter of Rogers et al. 2016).

One ledger does not change from one rule to the other: were the rule picked after looking at released values, a run
could take the better of two filters, and neither proof covers that. Across runs each run counts with its maximum over
roles, because who is in which role may change between runs.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from dpbilevel.arguments import count, one_of
from dpbilevel.errors import BudgetExceeded, InvalidArgument, NotCharged
from dpbilevel.privacy.accounting import Chargeable, gaussian_epsilon
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.release import all_charges
from dpbilevel.privacy.spend import Privacy

Composition = Literal["gaussian", "basic"]

_DECIMAL = 1 + 1e-12  # five times 0.2 is 1, though not in binary fractions


@dataclass(frozen=True)
class Entry:
    """One charge: what a run costs at most."""

    description: str
    epsilon: float
    delta: float
    mu: float | None  # None where releases are sampled


class Receipt:
    """Proof that releases were charged: records evaluate them with it, as often as was charged and no more."""

    def __init__(self, releases: Sequence[Chargeable]) -> None:
        self.__left = {id(release): (release, release.steps) for release in releases}
        self.__used = 0
        self.__lock = threading.Lock()

    def advance(self, schedule: KeySchedule, uses: int) -> int:
        """Take the next ``uses`` uses off the schedule; returns the index of the first of them.

        The position is kept here and not by the caller, and a schedule serves one receipt: otherwise two uses could
        draw the same noise, and their difference would be free of it.
        """
        with self.__lock:
            schedule.claim(self)
            first, self.__used = self.__used, self.__used + uses
            return first

    def redeem(self, release: Chargeable, uses: int) -> None:
        """Take ``uses`` uses of ``release`` off the receipt, before they are executed."""
        count("uses", uses, "it is how often the release is about to be used")
        with self.__lock:
            _, left = self.__left.get(id(release), (release, 0))
            if uses > left:
                raise NotCharged(
                    f"release {release.name!r}: {uses} uses asked for, {left} left on its receipt; charge it first"
                )
            self.__left[id(release)] = (release, left - uses)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Receipt can be redeemed once: it cannot be copied or pickled")


class Ledger:
    """Spends one total budget over the runs on one data set.

    Args:
        total: the budget of the data set, with the neighbouring relation that every run must use.
        composition: "gaussian" or "basic" (see the module); by default the first charge decides.

    >>> import dpbilevel as dpb
    >>> ledger = dpb.Ledger(dpb.Budget(3.0, 1e-6))
    >>> ledger
    Ledger(epsilon 0 of 3 spent at delta 1e-06, replace-one, 0 runs)
    """

    def __init__(self, total: Budget, *, composition: Composition | None = None) -> None:
        if not isinstance(total, Budget):
            raise InvalidArgument(f"total={total!r}: must be a dpb.Budget; it is fixed for the life of the ledger")
        if composition is not None:
            one_of("composition", composition, ("gaussian", "basic"), "it says how runs add up")
        self._total = total
        self._composition = composition
        self._entries: list[Entry] = []
        self._lock = threading.Lock()

    @property
    def total(self) -> Budget:
        """The budget of the data set."""
        return self._total

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All charges so far, oldest first."""
        return tuple(self._entries)

    @property
    def composition(self) -> Composition | None:
        """How runs add up; None before the first charge of a ledger that lets the first charge decide."""
        return self._composition

    def charge(self, releases: Sequence[Chargeable], budget: Budget, description: str) -> Receipt:
        """Charge a whole run, in one transaction, before its first record is read.

        Raises `BudgetExceeded`, and changes nothing, where the total would be exceeded.
        """
        for adjacency in {budget.adjacency, *(release.adjacency for release in releases)}:
            if adjacency != self._total.adjacency:
                raise InvalidArgument(
                    f"adjacency={adjacency!r}: must be {self._total.adjacency!r}, the relation of the ledger; spends "
                    "under different relations do not add up"
                )
        privacy = Privacy(all_charges(releases), budget)
        entry = Entry(description, privacy.epsilon(), budget.delta or 0.0, privacy.mu)
        with self._lock:
            composition = self._composition or ("basic" if entry.mu is None else "gaussian")
            if composition == "gaussian" and entry.mu is None:
                raise InvalidArgument(
                    "ledger: its runs so far compose as full-batch Gaussians and this run does not; a ledger for "
                    'both is made with Ledger(total, composition="basic") before its first run'
                )
            if not self._fits([*self._entries, entry], composition):
                raise BudgetExceeded(
                    f"{description}: asks for epsilon {entry.epsilon:.6g} at delta {entry.delta:.3g}, but "
                    f"{self._describe()}; lower the run's epsilon to ledger.remaining() or stop here"
                )
            self._composition = composition
            self._entries.append(entry)
        return Receipt(releases)

    def spent(self) -> float:
        """Epsilon spent so far, at the total's delta."""
        if not self._entries:
            return 0.0
        if self._composition == "basic":
            return math.fsum(entry.epsilon for entry in self._entries)
        return gaussian_epsilon(_sum_of_squares(self._entries) ** 0.5, self._total.delta or 0.0)

    def remaining(self) -> Budget | None:
        """The largest budget that one more run of the same kind may have; None where nothing is left."""
        if not self._entries or not self._total.is_private:
            return self._total
        if self._composition == "basic":
            epsilon = self._total.epsilon - self.spent()
            delta = (self._total.delta or 0.0) - math.fsum(entry.delta for entry in self._entries)
        else:
            left = self._total.mu**2 - _sum_of_squares(self._entries)
            delta = self._total.delta or 0.0
            # What calibration leaves over, to be on the safe side of rounding, is nothing to plan a run with.
            epsilon = gaussian_epsilon(left**0.5, delta) if left > 1e-8 * self._total.mu**2 else 0.0
        return Budget(epsilon, delta, self._total.adjacency) if epsilon > 0 and delta > 0 else None

    def _fits(self, entries: list[Entry], composition: Composition) -> bool:
        if not self._total.is_private:
            return True
        if composition == "gaussian":
            return _sum_of_squares(entries) <= self._total.mu**2
        epsilon, delta = (math.fsum(column) for column in zip(*((e.epsilon, e.delta) for e in entries), strict=True))
        return epsilon <= self._total.epsilon * _DECIMAL and delta <= (self._total.delta or 0.0) * _DECIMAL

    def _describe(self) -> str:
        delta = "" if self._total.delta is None else f" at delta {self._total.delta:g}"
        return f"epsilon {self.spent():.6g} of {self._total.epsilon:g} spent{delta}"

    def __repr__(self) -> str:
        runs = f"{len(self._entries)} run{'' if len(self._entries) == 1 else 's'}"
        return f"Ledger({self._describe()}, {self._total.adjacency}, {runs})"

    def __copy__(self) -> "Ledger":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ledger":
        return self  # scikit-learn's clone copies parameters deeply; two ledgers would spend the budget twice

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Ledger cannot be pickled: a second copy of it could spend the same budget again")


def _sum_of_squares(entries: Sequence[Entry]) -> float:
    return math.fsum((entry.mu or 0.0) ** 2 for entry in entries)
