"""The result of a membership attack, compared with what privacy allows."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dpbilevel.privacy.budget import Budget


@dataclass(frozen=True, kw_only=True, repr=False)
class Attack:
    """The result of a membership attack.

    Attributes:
        method: the attacked method.
        advantage: measured TPR - FPR.
        interval: confidence interval of the advantage, from exact (Clopper-Pearson) intervals of TPR and FPR.
        confidence: the confidence level of the interval, at least.
        tight_bound: the largest advantage that the accountant's privacy profile allows, delta(0).
        n: number of records.
        dimension: dimension of a record.
        budget: the budget of each run; infinite for the attack on exact bilevel optimisation.
        trials: runs with the target, and as many without it.
    """

    method: str
    advantage: float
    interval: tuple[float, float]
    confidence: float
    tight_bound: float
    n: int
    dimension: int
    budget: Budget
    trials: int

    @property
    def bound(self) -> float:
        """The largest advantage that (epsilon, delta) allows."""
        return allowed_advantage(self.budget)

    @property
    def within_bounds(self) -> bool:
        """Whether the attack is compatible with the privacy guarantee; if not, there is a bug."""
        return self.interval[0] <= min(self.bound, self.tight_bound)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; an infinite epsilon is null."""
        content = asdict(self)
        content["interval"] = list(self.interval)
        if not self.budget.is_private:
            content["budget"]["epsilon"] = None
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Attack":
        """The inverse of `to_json`."""
        budget = dict(content["budget"])
        budget["epsilon"] = math.inf if budget["epsilon"] is None else budget["epsilon"]
        return cls(**{**content, "interval": tuple(content["interval"]), "budget": Budget(**budget)})

    def __repr__(self) -> str:
        low, high = self.interval
        allowed = "not private"
        if self.budget.is_private:
            allowed = (
                f"({self.budget.epsilon:g}, {self.budget.delta:g})-DP allows {self.bound:.3f}, "
                f"its accountant {self.tight_bound:.3f}"
            )
        return (
            f"Attack({self.method}, n={self.n}: advantage {self.advantage:.3f} in [{low:.3f}, {high:.3f}] at "
            f"{100 * self.confidence:.4g}%; {allowed}; {self.trials} trials)"
        )


def allowed_advantage(budget: Budget) -> float:
    """The largest TPR - FPR of any membership test against an (epsilon, delta)-DP release (Kairouz et al. 2015).

    >>> round(allowed_advantage(Budget(1.0, 1e-6)), 4)
    0.4621
    """
    # (e^epsilon - 1 + 2 delta)/(e^epsilon + 1), written so that nothing overflows.
    certain = math.tanh(budget.epsilon / 2)
    return certain + (budget.delta or 0.0) * (1 - certain)
