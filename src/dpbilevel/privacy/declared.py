"""A release whose privacy is declared, not computed: what a black box costs the records that it reads.

The counterpart of `Release` for mechanisms from elsewhere. It is charged like any other, before the first call; that
the black box keeps its word is an assumption of the guarantee, and is stated with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dpbilevel.arguments import count, one_of
from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy.accounting import Charge
from dpbilevel.privacy.budget import ADJACENCIES, Adjacency
from dpbilevel.privacy.events import ApproximateDP, Event
from dpbilevel.privacy.release import ROLES
from dpbilevel.privacy.sampling import FullBatch


@dataclass(frozen=True, eq=False, kw_only=True)
class DeclaredRelease:
    """``steps`` calls of a black box.

    Args:
        name: what the ledger and the report call it.
        roles: role to the public number of its records; the black box reads all of them in every call.
        event: what one call costs each record.
        steps: calls in the whole run.
        adjacency: the neighbouring relation that the event refers to.

    >>> from dpbilevel.privacy.events import GaussianDP
    >>> release = DeclaredRelease(name="training", roles={"lower": 100}, event=GaussianDP(0.1), steps=25)
    >>> release.charges()[0].mu
    0.5
    """

    name: str
    roles: Mapping[str, int]
    event: Event
    steps: int
    adjacency: Adjacency = "replace-one"

    def __post_init__(self) -> None:
        count("steps", self.steps, "it is the number of calls in the whole run")
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
            return Charge(self.name, role, 0.0, self.steps, FullBatch(), number, self.event)
        return Charge(self.name, role, self.event.mu, self.steps, FullBatch(), number)
