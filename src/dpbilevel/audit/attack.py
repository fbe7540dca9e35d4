"""What a membership attack achieved, beside what privacy allows, and the picture of both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy.accounting import gaussian_delta, gaussian_mu
from dpbilevel.privacy.budget import Budget


@dataclass(frozen=True, kw_only=True, repr=False)
class Attack:
    """What a membership attack achieved.

    Attributes:
        method: what was attacked.
        advantage: TPR - FPR, as measured.
        interval: confidence interval of the advantage, from exact (Clopper-Pearson) ones of TPR and FPR.
        confidence: of the interval, at least.
        tight_bound: the best advantage that the accountant's privacy profile allows, delta(0).
        n: number of records.
        dimension: of a record.
        budget: what each run was allowed; infinite for the exact attack.
        trials: runs in each of the two worlds.
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
        """The best advantage that (epsilon, delta) allows."""
        return allowed_advantage(self.budget)

    @property
    def within_bounds(self) -> bool:
        """Whether the attack is compatible with what privacy promises; if not, something is broken."""
        return self.interval[0] <= min(self.bound, self.tight_bound)

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
    """The best TPR - FPR of any membership test against an (epsilon, delta)-DP release (Kairouz et al. 2015).

    >>> round(allowed_advantage(Budget(1.0, 1e-6)), 4)
    0.4621
    """
    # (e^epsilon - 1 + 2 delta)/(e^epsilon + 1), written so that nothing overflows.
    certain = math.tanh(budget.epsilon / 2)
    return certain + (budget.delta or 0.0) * (1 - certain)


def plot(results: Sequence[Attack], axes: Any = None) -> Any:
    """Draw the advantage of attacks against epsilon, with what privacy allows as curves; needs matplotlib.

    Args:
        results: of `exact_attack` (a horizontal band) and `private_attack` (points with intervals).
        axes: matplotlib Axes to draw on; new ones by default.

    Returns:
        The Axes.
    """
    if not results or not all(isinstance(result, Attack) for result in results):
        raise InvalidArgument("results: must be a list of what exact_attack and private_attack return, at least one")
    if axes is None:
        axes = _pyplot().subplots()[1]
    private = [result for result in results if result.budget.is_private]
    smallest, largest = (choose((r.budget.epsilon for r in private), default=1.0) for choose in (min, max))
    epsilons = np.geomspace(smallest / 2, largest * 2, 100)
    for delta in sorted({result.budget.delta or 0.0 for result in private}):
        allowed = [allowed_advantage(Budget(epsilon, delta)) for epsilon in epsilons]
        gaussian = [gaussian_delta(gaussian_mu(epsilon, delta), 0.0) for epsilon in epsilons]
        axes.plot(epsilons, allowed, "k--", label=f"(ε, {delta:g})-DP allows")
        axes.plot(epsilons, gaussian, "k-", label=f"Gaussian noise at (ε, {delta:g}) allows")
    for result in results:
        if not result.budget.is_private:
            axes.axhspan(*result.interval, color="C3", alpha=0.3)
            axes.axhline(result.advantage, color="C3", label=f"{result.method}, n = {result.n}")
    for colour, name in enumerate(dict.fromkeys(result.method for result in private)):
        mine = [result for result in private if result.method == name]
        values = np.array([result.advantage for result in mine])
        limits = np.abs(np.array([result.interval for result in mine]).T - values)
        at = [result.budget.epsilon for result in mine]
        axes.errorbar(at, values, yerr=limits, fmt="o", capsize=3, color=f"C{colour}", label=f"{name}, attacked")
    axes.set_xscale("log")
    axes.minorticks_off()
    tested = sorted({result.budget.epsilon for result in private})
    axes.set_xticks(tested, labels=[f"{epsilon:g}" for epsilon in tested])
    axes.set_xlabel("ε of the run")
    axes.set_ylabel("advantage of the membership attack (TPR − FPR)")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, frameon=False)
    return axes


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise ImportError("plot: needs matplotlib; pip install matplotlib, or pass axes=...") from error
    return matplotlib.pyplot
