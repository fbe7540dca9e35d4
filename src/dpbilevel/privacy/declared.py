"""The privacy cost that a black box declares before it reads any record, and the release that charges it.

A mechanism that is not written as a `Release` can still be accounted for if it declares the cost of one call to the
records that it reads. Two declarations are supported: mu-GDP, which composes exactly with Gaussian releases, and
(epsilon, delta)-DP, which applies to any mechanism.

`DeclaredRelease` is the counterpart of `Release` for such mechanisms. It is charged like any other, before the first
call. The guarantee assumes that the declaration is correct, and states this as a caveat.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count, non_negative, one_of, positive
from dpbilevel.privacy.accounting import ROLES, Charge
from dpbilevel.privacy.budget import ADJACENCIES, Adjacency
from dpbilevel.privacy.sampling import FullBatch


@dataclass(frozen=True)
class GaussianDP:
    """One call is mu-GDP: at least as private as a Gaussian mechanism with sensitivity mu times its noise.

    >>> GaussianDP(0.1)
    GaussianDP(mu=0.1)
    """

    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", positive("mu", self.mu, "it is sensitivity over noise of one call (try 0.1)"))


@dataclass(frozen=True)
class ApproximateDP:
    """One call is (epsilon, delta)-DP, and nothing more is known.

    Calls compose optimally (Kairouz, Oh and Viswanath 2015), through the loss distribution that dominates every
    (epsilon, delta)-DP mechanism.

    >>> ApproximateDP(0.1, 1e-9)
    ApproximateDP(epsilon=0.1, delta=1e-09)
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive("epsilon", self.epsilon, "it is the cost of one call (try 0.1)"))
        object.__setattr__(self, "delta", non_negative("delta", self.delta, "it is the cost of one call (try 1e-9)"))
        if self.delta >= 1:
            raise InvalidArgument(f"delta={self.delta!r}: must be below 1; it is a probability (try 1e-9)")


@dataclass(frozen=True)
class BestOfRuns(ApproximateDP):
    """The cost of the best of a secret number of runs, each of which is mu-GDP.

    `selection` computes epsilon and delta from mu and the distribution of the number of runs. Both are stored, so that
    the cost for a group of records or at another delta can be computed too.

    Args:
        mu: the GDP parameter of one run.
        mean_runs: E[K].
        shape: the shape of the distribution of K, as in `NumberOfRuns`.
    """

    mu: float = field(kw_only=True)
    mean_runs: float = field(kw_only=True)
    shape: float = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "mu", positive("mu", self.mu, "it is the cost of one run (try 0.1)"))
        for name in ("mean_runs", "shape"):  # in JSON an infinite shape is a string
            object.__setattr__(self, name, float(getattr(self, name)))


def declared_event(fields: Mapping[str, Any] | None) -> ApproximateDP | None:
    """The event with these fields, from JSON; None if nothing was declared."""
    if fields is None:
        return None
    return BestOfRuns(**fields) if "mu" in fields else ApproximateDP(**fields)


Event = GaussianDP | ApproximateDP


@dataclass(frozen=True, eq=False, kw_only=True)
class DeclaredRelease:
    """``uses`` calls of a black box.

    Args:
        name: its name in the ledger and in the report.
        roles: the public number of records of each role that the black box reads; every call reads all of them.
        event: the cost of one call to each record.
        uses: the number of calls in the run.
        adjacency: the neighbouring relation of the event.
        condition: what the declared cost rests on, as a sentence; by default that the declaration is true.
        rows_per_unit: the most rows of a unit for which the event is the cost; None for the cost of a record with one.

    >>> release = DeclaredRelease(name="training", roles={"lower": 100}, event=GaussianDP(0.1), uses=25)
    >>> release.charges()[0].mu
    0.5
    """

    name: str
    roles: Mapping[str, int]
    event: Event
    uses: int
    adjacency: Adjacency = "replace-one"
    condition: str | None = None
    rows_per_unit: int | None = None

    def __post_init__(self) -> None:
        count("uses", self.uses, "it is the number of calls in the run")
        if self.rows_per_unit is not None:
            count("rows_per_unit", self.rows_per_unit, "it is the most rows of a unit that the cost is declared for")
        one_of("adjacency", self.adjacency, ADJACENCIES, "it defines which data sets are neighbours")
        if not self.roles:
            raise InvalidArgument("roles: must name at least one role that the black box reads")
        for role in self.roles:
            one_of("role", role, ROLES, "it defines which records the black box reads")
        object.__setattr__(self, "roles", MappingProxyType(dict(self.roles)))

    @property
    def assumption(self) -> str:
        """The assumption that the guarantee relies on."""
        most = self.rows_per_unit
        unit = "" if most is None else f", for all rows of a unit of at most {most}"
        black_box = (
            f"{self.name} is a black box: the guarantee holds if each of its calls is {self.event!r}, as declared{unit}"
        )
        return black_box if self.condition is None else self.condition

    def charges(self) -> tuple[Charge, ...]:
        """The cost of all calls, one charge per role."""
        return tuple(self._charge(role, number) for role, number in self.roles.items())

    def _charge(self, role: str, number: int) -> Charge:
        if isinstance(self.event, ApproximateDP):
            return Charge(self.name, role, 0.0, self.uses, FullBatch(), number, self.event)
        return Charge(self.name, role, self.event.mu, self.uses, FullBatch(), number)
