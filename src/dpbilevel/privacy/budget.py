"""The budget of a run: (epsilon, delta) and the neighbouring relation they refer to."""

import math
from dataclasses import dataclass
from typing import Literal

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import one_of, positive
from dpbilevel.privacy.accounting import gaussian_mu

Adjacency = Literal["replace-one", "zero-out"]
ADJACENCIES: tuple[str, ...] = ("replace-one", "zero-out")


@dataclass(frozen=True)
class Budget:
    """What a run may spend.

    Args:
        epsilon: above zero; ``float("inf")`` runs the same method without noise or clipping (not private).
        delta: above zero and below 1/n (checked when a plan knows n); required unless epsilon is infinite.
        adjacency: "replace-one", neighbours differ in the content of one record (the paper's relation), or
            "zero-out", one record contributes nothing instead (often loosely called add/remove). The number of
            records is public under both.

    >>> Budget(epsilon=1.0, delta=1e-6)
    Budget(epsilon=1.0, delta=1e-06, adjacency='replace-one')
    >>> round(Budget(1.0, 1e-6).mu, 4)
    0.2367
    """

    epsilon: float
    delta: float | None = None
    adjacency: Adjacency = "replace-one"

    def __post_init__(self) -> None:
        epsilon = positive("epsilon", self.epsilon, "it bounds the privacy loss (try 1.0)", infinite=True)
        object.__setattr__(self, "epsilon", epsilon)  # a plain float, even for a NumPy scalar
        one_of("adjacency", self.adjacency, ADJACENCIES, "it defines which data sets are neighbours")
        if self.delta is None:
            if self.is_private:
                raise InvalidArgument("delta=None: required with a finite epsilon; choose it below 1/n (try 1e-6)")
        else:
            object.__setattr__(self, "delta", positive("delta", self.delta, "it must be below 1/n (try 1e-6)"))
            if self.delta >= 1:
                raise InvalidArgument(f"delta={self.delta!r}: must be below 1, and even below 1/n (try 1e-6)")

    @property
    def is_private(self) -> bool:
        """Whether epsilon is finite."""
        return math.isfinite(self.epsilon)

    @property
    def mu(self) -> float:
        """The mu of the Gaussian mechanism that spends exactly this budget (infinite if epsilon is)."""
        return gaussian_mu(self.epsilon, self.delta) if self.is_private and self.delta is not None else math.inf
