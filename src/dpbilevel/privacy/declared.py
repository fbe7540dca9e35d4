"""What a black box declares about its own privacy, before it is handed any record, and the release that charges it.

A mechanism that was not written as a `Release` can still be accounted for, as long as it says what one call of it costs
the records that it reads. Two statements cover what trainers come with: mu-GDP composes exactly with everything else
that is Gaussian, and (epsilon, delta) holds for any mechanism at all.

`DeclaredRelease` is the counterpart of `Release` for such mechanisms. It is charged like any other, before the first
call; that the black box keeps its word is an assumption of the guarantee, and is stated with it.
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
    """One call is mu-GDP: no easier to attack than one Gaussian whose sensitivity is mu times its noise.

    >>> GaussianDP(0.1)
    GaussianDP(mu=0.1)
    """

    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", positive("mu", self.mu, "it is sensitivity over noise of one call (try 0.1)"))


@dataclass(frozen=True)
class ApproximateDP:
    """One call is (epsilon, delta)-DP, and nothing more is known of it.

    Calls compose optimally (Kairouz, Oh and Viswanath 2015), through the loss distribution that dominates every
    (epsilon, delta)-DP mechanism.

    >>> ApproximateDP(0.1, 1e-9)
    ApproximateDP(epsilon=0.1, delta=1e-09)
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive("epsilon", self.epsilon, "it is what one call costs (try 0.1)"))
        object.__setattr__(self, "delta", non_negative("delta", self.delta, "it is what one call costs (try 1e-9)"))
        if self.delta >= 1:
            raise InvalidArgument(f"delta={self.delta!r}: must be below 1; it is a probability (try 1e-9)")


@dataclass(frozen=True)
class BestOfRuns(ApproximateDP):
    """The best of a secret number of runs, each of them mu-GDP: what that costs one record, and why.

    `selection` turns mu and the law of the number of runs into epsilon and delta; with both at hand, the price for a
    group of records or at another delta can be asked as well.

    Args:
        mu: of one run.
        mean_runs: E[K].
        shape: of the law of K, as `NumberOfRuns` has it.
    """

    mu: float = field(kw_only=True)
    mean_runs: float = field(kw_only=True)
    shape: float = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "mu", positive("mu", self.mu, "it is the price of one run (try 0.1)"))
        for name in ("mean_runs", "shape"):  # JSON has an infinite shape as text
            object.__setattr__(self, name, float(getattr(self, name)))


def declared_event(fields: Mapping[str, Any] | None) -> ApproximateDP | None:
    """The event that has these fields, from JSON; None where nothing was declared."""
    if fields is None:
        return None
    return BestOfRuns(**fields) if "mu" in fields else ApproximateDP(**fields)


Event = GaussianDP | ApproximateDP


@dataclass(frozen=True, eq=False, kw_only=True)
class DeclaredRelease:
    """``uses`` calls of a black box.

    Args:
        name: what the ledger and the report call it.
        roles: role to the public number of its records; the black box reads all of them in every call.
        event: what one call costs each record.
        uses: calls in the whole run.
        adjacency: the neighbouring relation that the event refers to.

    >>> release = DeclaredRelease(name="training", roles={"lower": 100}, event=GaussianDP(0.1), uses=25)
    >>> release.charges()[0].mu
    0.5
    """

    name: str
    roles: Mapping[str, int]
    event: Event
    uses: int
    adjacency: Adjacency = "replace-one"

    def __post_init__(self) -> None:
        count("uses", self.uses, "it is the number of calls in the whole run")
        one_of("adjacency", self.adjacency, ADJACENCIES, "it says which data sets count as neighbours")
        if not self.roles:
            raise InvalidArgument("roles: must name at least one role that the black box reads")
        for role in self.roles:
            one_of("role", role, ROLES, "it says which records the black box reads")
        object.__setattr__(self, "roles", MappingProxyType(dict(self.roles)))

    @property
    def assumption(self) -> str:
        """What the guarantee takes on trust."""
        return f"{self.name} is a black box: the guarantee holds if each call of it is {self.event!r}, as declared"

    def charges(self) -> tuple[Charge, ...]:
        """What all calls cost, role by role."""
        return tuple(self._charge(role, number) for role, number in self.roles.items())

    def _charge(self, role: str, number: int) -> Charge:
        if isinstance(self.event, ApproximateDP):
            return Charge(self.name, role, 0.0, self.uses, FullBatch(), number, self.event)
        return Charge(self.name, role, self.event.mu, self.uses, FullBatch(), number)
