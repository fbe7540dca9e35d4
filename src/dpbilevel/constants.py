"""Certified constants of a bilevel problem (Assumptions 1 and 2 of the paper) and what follows from them.

*Totals* bound f and g including their data-free terms; *per-record* values bound a single f_i or g_i. The paper has no
data-free terms and needs no such distinction. With data-free terms, confusing the two gives wrong bounds: a regulariser
adds to the smoothness of g, but not to any sensitivity.

Constants must hold for *every possible record and every possible data set*. A constant measured on private records is a
leak. Privacy never depends on them, because records are clipped in any case; a wrong constant costs accuracy only.
"""

from dataclasses import dataclass, fields

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import non_negative, positive

_TOTALS = {"record_upper_lipschitz": "upper_lipschitz", "record_lower_smoothness": "lower_smoothness"}


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Lipschitz, smoothness and strong convexity constants, with the paper's symbols.

    Args:
        upper_lipschitz: L0f, total: f is Lipschitz with this constant.
        upper_smoothness: L1f, total: the gradient of f is Lipschitz.
        lower_lipschitz: L0g, per record: each g_i(x, .) is Lipschitz on the solutions' set Y.
        lower_smoothness: L1g, total: the gradient of g is Lipschitz.
        lower_hessian_lipschitz: L2g, total: the Hessian of g is Lipschitz.
        strong_convexity: mu_g, total: g(x, .) is strongly convex for every x of the domain.
        record_upper_lipschitz: L0f per record; the total by default, which is correct if f has no data-free term.
        record_lower_smoothness: L1g per record; the total by default, likewise.

    >>> constants = Constants(
    ...     upper_lipschitz=1.0,
    ...     upper_smoothness=0.25,
    ...     lower_lipschitz=1.0,
    ...     lower_smoothness=0.35,
    ...     lower_hessian_lipschitz=0.1,
    ...     strong_convexity=0.1,
    ... )
    >>> constants.smallest_penalty_weight()
    5.0
    """

    upper_lipschitz: float
    upper_smoothness: float
    lower_lipschitz: float
    lower_smoothness: float
    lower_hessian_lipschitz: float
    strong_convexity: float
    record_upper_lipschitz: float = None  # type: ignore[assignment]  # a number after __post_init__
    record_lower_smoothness: float = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        positive("strong_convexity", self.strong_convexity, "mu_g; a regulariser (w/2)||y||^2 gives w")
        for record, total in _TOTALS.items():
            if getattr(self, record) is None:
                object.__setattr__(self, record, getattr(self, total))
        for field in fields(self):
            non_negative(field.name, getattr(self, field.name), "it bounds every possible record")
        if self.lower_smoothness < self.strong_convexity:
            raise InvalidArgument(
                f"lower_smoothness={self.lower_smoothness!r}: must be >= strong_convexity={self.strong_convexity!r}; "
                "no function is more strongly convex than it is smooth (count the regulariser in both)"
            )

    def smallest_penalty_weight(self) -> float:
        """The smallest penalty weight that Algorithm 1 allows: max{2 L1f/mu_g, L0f/L0g, L1f/L1g}."""
        bounds = [2 * self.upper_smoothness / self.strong_convexity, self.upper_smoothness / self.lower_smoothness]
        if self.lower_lipschitz > 0:
            bounds.append(self.upper_lipschitz / self.lower_lipschitz)
        return max(bounds)

    def penalised_strong_convexity(self, penalty_weight: float) -> float:
        """Strong convexity of f/penalty + g in y: mu_g - L1f/penalty (the paper's lemma has L1g, a misprint)."""
        positive("penalty_weight", penalty_weight, "it is lambda, the weight of the lower level")
        return self.strong_convexity - self.upper_smoothness / penalty_weight

    def hyperobjective_smoothness(self, penalty_weight: float) -> float:
        """Smoothness constant L of the penalised hyperobjective, for every penalty weight >= 2 L1f/mu_g."""
        mu = self.strong_convexity
        if penalty_weight < 2 * self.upper_smoothness / mu * (1 - 1e-12):
            raise InvalidArgument(
                f"penalty_weight={penalty_weight!r}: must be at least 2 L1f/mu_g = "
                f"{2 * self.upper_smoothness / mu!r}; below it the penalised problem may not be convex"
            )
        solution_lipschitz = (self.upper_smoothness + penalty_weight * self.lower_smoothness) / (
            penalty_weight * mu - self.upper_smoothness
        )
        curvature = self.upper_smoothness + self.lower_hessian_lipschitz * self.upper_lipschitz / mu
        coupling = 2 * self.lower_smoothness / mu * (1 + self.lower_smoothness / mu)
        return curvature * (1 + solution_lipschitz) + coupling * curvature
