"""The result of an audit, compared with the claim."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.tables import text_table

HEADER = ("audit", "n", "releases", "runs", "claimed ε", "proved ε ≥", "at most", "attainable")


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The lower bound on epsilon that an attack proved.

    Attributes:
        name: the name of the audited case.
        claimed: the epsilon computed by the accountant, at ``delta``.
        delta: delta of the claim.
        adjacency: neighbouring relation of the claim.
        lower_bound: epsilon is at least this, with ``confidence``. If it exceeds ``claimed``, the claim is refuted.
        upper_bound: the same attack cannot prove more than this with any number of runs, with ``confidence``; infinite
            if it had no false positive. It bounds the attack, not the method.
        reach: the bound that an optimal attack would prove, on average, with as many runs, if the claim were tight.
        confidence: confidence level of each bound.
        runs: number of runs on each of two data sets (half choose the attack, half evaluate it); or 1.
        records: number of records of a data set.
        releases: total uses of releases in a run.
        canaries: number of canaries of an audit with one run, otherwise None.
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
        """Whether the lower bound is compatible with the claim. If not, there is a bug."""
        return self.lower_bound <= self.claimed

    def row(self) -> list[str]:
        """Cells of a table with `HEADER`; lower bounds are rounded down."""
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
        """As plain JSON values; an infinite bound is null."""
        content = asdict(self)
        content["upper_bound"] = None if math.isinf(self.upper_bound) else self.upper_bound
        return content | {"passed": self.passed}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Audit":
        """The inverse of `to_json`; additional keys are ignored."""
        known = {field.name: content[field.name] for field in fields(cls)}
        return cls(**known | {"upper_bound": math.inf if known["upper_bound"] is None else known["upper_bound"]})

    def __str__(self) -> str:
        verdict = "compatible with" if self.passed else "REFUTES"
        return (
            f"{self.name}: epsilon is at least {math.floor(1000 * self.lower_bound) / 1000:g} at delta "
            f"{self.delta:g} ({100 * self.confidence:.6g}% confidence), which {'is ' if self.passed else ''}{verdict} "
            f"the claim of {self.claimed:.4g}"
        )


def table(audits: Sequence[Audit]) -> str:
    """Audits as a table of text, one per line."""
    if not isinstance(audits, Sequence) or not audits or not all(isinstance(audit, Audit) for audit in audits):
        raise InvalidArgument("audits: must be a non-empty list of results of dpbilevel.audit.audit")
    return text_table(HEADER, [audit.row() for audit in audits])
