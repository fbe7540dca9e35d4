"""What a black box declares about its own privacy, before it is handed any record.

A mechanism that was not written as a `Release` can still be accounted for, as long as it says what one call of it costs
the records that it reads. Two statements cover what trainers come with: mu-GDP composes exactly with everything else
that is Gaussian, and (epsilon, delta) holds for any mechanism at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpbilevel.arguments import non_negative, positive
from dpbilevel.errors import InvalidArgument


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
