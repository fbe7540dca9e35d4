"""Preconditions of the paper's theorems besides their assumptions, as inequalities with numeric sides."""

import math
from dataclasses import dataclass

from dpbilevel.constants import Constants


@dataclass(frozen=True)
class Precondition:
    """An inequality that a theorem requires, with the values of both sides.

    >>> print(Precondition("alpha <= kappa^2 gap", 3.0, 2.0, "Theorem 1"))
    alpha <= kappa^2 gap fails: 3 > 2, by a factor 1.5 (Theorem 1)
    """

    inequality: str
    left: float
    right: float
    source: str

    @property
    def holds(self) -> bool:
        """Whether the left side is at most the right one."""
        return self.left <= self.right

    @property
    def factor(self) -> float:
        """Left side divided by right side: above 1 the inequality fails by this factor."""
        return self.left / self.right if self.right > 0 else math.inf

    def __str__(self) -> str:
        verdict = f"holds: {self.left:.4g} <= {self.right:.4g}"
        if not self.holds:
            verdict = f"fails: {self.left:.4g} > {self.right:.4g}, by a factor {self.factor:.4g}"
        return f"{self.inequality} {verdict} ({self.source})"


def theorem_preconditions(constants: Constants, gap: float, alpha: float) -> tuple[Precondition, ...]:
    """alpha <= l kappa^3 min{1/(2 kappa), L0g/L0f, L1g/L1f, gap/(l kappa)}, as four inequalities.

    Theorems 1 to 3 of the paper require them so that lambda = l kappa^3/alpha is large enough and L*_lambda starts at
    most O(gap) above its infimum. The planner's own inequalities do not need them: it bounds lambda from below and adds
    L0f^2/(2 lambda mu_g) to the gap. If one fails, the planner's alpha still holds; the paper's does not apply.

    >>> constants = Constants(
    ...     upper_lipschitz=1.0,
    ...     upper_smoothness=0.25,
    ...     lower_lipschitz=1.0,
    ...     lower_smoothness=0.35,
    ...     lower_hessian_lipschitz=0.1,
    ...     strong_convexity=0.1,
    ... )
    >>> [condition.holds for condition in theorem_preconditions(constants, gap=1.0, alpha=60.0)]
    [False, True, True, True]
    """
    largest, kappa = _largest(constants)
    scale = largest * kappa**3
    ratios = {
        "1/(2 kappa)": 1 / (2 * kappa),
        "L0g/L0f": _ratio(constants.lower_lipschitz, constants.upper_lipschitz),
        "L1g/L1f": _ratio(constants.lower_smoothness, constants.upper_smoothness),
        "gap/(l kappa)": gap / (largest * kappa),
    }
    return tuple(
        Precondition(f"alpha <= l kappa^3 {name}", alpha, scale * ratio, "Theorem 1") for name, ratio in ratios.items()
    )


def _largest(constants: Constants) -> tuple[float, float]:
    largest = max(value for name, value in vars(constants).items() if name != "strong_convexity")
    return largest, largest / constants.strong_convexity


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else math.inf
