"""What an audit found, beside what was claimed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.tables import text_table

HEADER = ("audit", "n", "releases", "runs", "claimed ε", "proved ε ≥", "at most", "in reach")


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an attack proved about epsilon.

    Attributes:
        name: what was audited.
        claimed: the epsilon that the accountant states, at ``delta``.
        delta: of the claim.
        adjacency: of the claim.
        lower_bound: epsilon is at least this, with ``confidence``. Above ``claimed`` the claim is refuted.
        upper_bound: the same attack proves no more than this, with ``confidence``, however often it is repeated;
            infinite where it was never wrong. It bounds the attack, not the method.
        reach: what the best attack there can be would prove, on average, with as many runs, if exactly the claimed
            privacy were spent.
        confidence: of each bound.
        runs: on each of two data sets, half of which choose the attack and half of which judge it; or 1.
        records: of a data set.
        releases: uses of releases in a run.
        canaries: of an audit with one run, otherwise None.
    """

    name: str
    claimed: float
    delta: float
    adjacency: str
    lower_bound: float
    upper_bound: float
    reach: float
    confidence: float
    runs: int
    records: int
    releases: int
    canaries: int | None = None

    @property
    def passed(self) -> bool:
        """Whether what was found is compatible with the claim. If not, something is broken."""
        return self.lower_bound <= self.claimed

    def row(self) -> list[str]:
        """Cells of a table under `HEADER`; a lower bound is never rounded up."""
        return [
            self.name,
            str(self.records),
            str(self.releases),
            f"{self.runs:,}",
            f"{self.claimed:.4g}",
            f"{math.floor(100 * self.lower_bound) / 100:.2f}",
            "∞" if math.isinf(self.upper_bound) else f"{math.ceil(100 * self.upper_bound) / 100:.2f}",
            f"{self.reach:.2f}",
        ]

    def to_json(self) -> dict[str, Any]:
        """A value of standard JSON; an infinite bound is null."""
        content = asdict(self)
        content["upper_bound"] = None if math.isinf(self.upper_bound) else self.upper_bound
        return content | {"passed": self.passed}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Audit":
        """The inverse of `to_json`; whatever else was noted along with an audit is left out."""
        told = {field.name: content[field.name] for field in fields(cls)}
        return cls(**told | {"upper_bound": math.inf if told["upper_bound"] is None else told["upper_bound"]})

    def __str__(self) -> str:
        verdict = "compatible with" if self.passed else "REFUTES"
        return (
            f"{self.name}: epsilon is at least {math.floor(1000 * self.lower_bound) / 1000:g} at delta "
            f"{self.delta:g} ({100 * self.confidence:.6g}% confidence), which {'is ' if self.passed else ''}{verdict} "
            f"the claim of {self.claimed:.4g}"
        )


def table(audits: Sequence[Audit]) -> str:
    """Audits as a table of text, one a line."""
    if not isinstance(audits, Sequence) or not audits or not all(isinstance(audit, Audit) for audit in audits):
        raise InvalidArgument("audits: must be a list of what dpbilevel.audit.audit returns, at least one")
    return text_table(HEADER, [audit.row() for audit in audits])
