"""The paper's split of a budget over T outer steps, and its exact cost.

Each step applies three mechanisms (two solves and one gradient), each (epsilon/sqrt(18 T), delta/(3 (T + 1)))-DP with
the noise of the classical Gaussian lemma, sigma = sensitivity * sqrt(2 ln(1.25/delta_0)) / epsilon_0. By the paper's
own composition lemma that does *not* compose to (epsilon, delta). With Gaussian noise it still satisfies the budget,
with a margin, because exact composition is much tighter. For black-box solvers that are only (epsilon_0, delta_0)-DP
this argument is not available.
"""

import math
from dataclasses import dataclass

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count
from dpbilevel.privacy.accounting import gaussian_epsilon
from dpbilevel.privacy.budget import Budget


@dataclass(frozen=True)
class PaperSplit:
    """The split of a budget over ``steps`` outer steps, as Algorithm 1 prints it.

    >>> split = PaperSplit(Budget(1.0, 1e-6), steps=100)
    >>> round(split.epsilon_by_its_own_lemma, 2), round(split.exact_epsilon, 3), round(split.excess_noise, 2)
    (5.29, 0.25, 3.64)
    """

    budget: Budget
    steps: int

    def __post_init__(self) -> None:
        count("steps", self.steps, "it is the number of outer steps")
        if not self.budget.is_private:
            raise InvalidArgument('split="paper": needs a finite epsilon; use the default split without privacy')

    @property
    def epsilon(self) -> float:
        """Epsilon of one mechanism: epsilon/sqrt(18 T)."""
        return self.budget.epsilon / math.sqrt(18 * self.steps)

    @property
    def delta(self) -> float:
        """Delta of one mechanism: delta/(3 (T + 1))."""
        return (self.budget.delta or 0.0) / (3 * (self.steps + 1))

    @property
    def mu(self) -> float:
        """Sensitivity over noise of one mechanism, by the paper's Gaussian lemma."""
        return self.epsilon / math.sqrt(2 * math.log(1.25 / self.delta))

    @property
    def epsilon_by_its_own_lemma(self) -> float:
        """The epsilon of T steps of (epsilon/sqrt(2T), delta/(T + 1)) by the paper's advanced composition."""
        one = self.budget.epsilon / math.sqrt(2 * self.steps)
        delta = (self.budget.delta or 0.0) / (self.steps + 1)
        return math.sqrt(2 * self.steps * math.log(1 / delta)) * one + 2 * self.steps * one**2

    @property
    def exact_epsilon(self) -> float:
        """The exact epsilon of all 3 T Gaussian mechanisms at the budget's delta."""
        return gaussian_epsilon(self._total_mu, self.budget.delta or 0.0)

    @property
    def excess_noise(self) -> float:
        """The noise relative to that of exact calibration for the same budget."""
        return self.budget.mu / self._total_mu

    @property
    def _total_mu(self) -> float:
        return self.mu * math.sqrt(3 * self.steps)
