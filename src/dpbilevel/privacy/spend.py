"""What a run spends, in the words a review needs: epsilon, delta, mu, the trade-off curve, the relation, the unit."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.stats import norm

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count, non_negative, positive
from dpbilevel.privacy.accounting import (
    Charge,
    composed_delta,
    composed_epsilon,
    composed_mu,
    has_exact_noise,
    is_gaussian,
)
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.declared import declared_event
from dpbilevel.privacy.sampling import FullBatch, Poisson, Sampling, WithoutReplacement, WithReplacement
from dpbilevel.privacy.selection import best_of_runs_epsilon

_SAMPLINGS: dict[str, type[Sampling]] = {
    kind.__name__: kind for kind in (FullBatch, Poisson, WithoutReplacement, WithReplacement)
}
LARGE = 20.0  # an epsilon above which a guarantee that holds is worth next to nothing
_WEAK = (
    "epsilon is above 20: at that size one record may make an outcome 485 million times as likely, so that next to "
    "nothing is protected"
)
_RELATIONS = {
    "replace-one": "replacing the content of one record",
    "zero-out": "replacing one record by one that contributes nothing",
}


@dataclass(frozen=True, eq=False)
class Privacy:
    """The privacy of one run, computed from its declared releases.

    Roles hold disjoint records and therefore compose in parallel: the total is the *maximum* over roles.

    Attributes:
        charges: role to the charges on its records.
        budget: what the run was allowed, with the neighbouring relation.
        caveats: reasons why the guarantee may not hold as stated, or says little (an epsilon above 20); empty for a
            sound run.
        void: whether there is no guarantee at all (a fixed seed, or an infinite epsilon).
    """

    charges: Mapping[str, tuple[Charge, ...]]
    budget: Budget
    caveats: tuple[str, ...] = ()
    void: bool = False

    def __post_init__(self) -> None:
        if LARGE < self.budget.epsilon < math.inf and _WEAK not in self.caveats:
            object.__setattr__(self, "caveats", (*self.caveats, _WEAK))

    @property
    def unit(self) -> str:
        """What one "record" is: the guarantee is for a row, not for a person with several rows."""
        return "one record (a row of the data, not a person: use group=k for k rows of one person)"

    @property
    def accountant(self) -> str:
        """How epsilon is computed."""
        if self.is_gaussian:
            return "exact Gaussian composition (mu-GDP)"
        if self.exact_noise:
            return "zero-concentrated DP of discrete Gaussian noise, converted at the best Rényi order"
        declared = any(charge.declared is not None for charges in self.charges.values() for charge in charges)
        return "privacy loss distribution (dp_accounting, pessimistic)" + (
            ", of what black boxes declare" if declared else ""
        )

    @property
    def is_gaussian(self) -> bool:
        """Whether all releases are full-batch Gaussian, so that mu exists and accounting is exact."""
        return all(is_gaussian(charges) for charges in self.charges.values())

    @property
    def exact_noise(self) -> bool:
        """Whether noise was drawn as integers and added to integers (``noise="exact"``)."""
        return any(has_exact_noise(charges) for charges in self.charges.values())

    @property
    def mu(self) -> float | None:
        """The GDP parameter; None where releases are sampled (no finite mu describes them) or noise is exact."""
        return max(map(composed_mu, self.charges.values()), default=0.0) if self.is_gaussian else None

    def epsilon(self, delta: float | None = None, *, group: int = 1, role: str | None = None) -> float:
        """The epsilon at ``delta`` (by default the budget's) for ``group`` records that change together.

        The records of a group may lie in any roles: k records shift the answers by at most k times what the
        most expensive role's record does, so mu becomes k mu, also in the zCDP of exact noise and in each run of a
        random search. Elsewhere the general bound is used, (k e, delta (exp(k e) - 1)/(exp(e) - 1)).
        """
        delta = self._delta(delta)
        positive("group", count("group", group, "it is how many records change together"), "it multiplies mu")
        if not self.budget.is_private:
            return math.inf if self.charges else 0.0
        if group == 1:
            one = max((composed_epsilon(c, delta, self.budget.adjacency) for c in self._of(role)), default=0.0)
            return one if math.isfinite(one) else self._best_of_runs(delta, 1, role)
        if self.is_gaussian or self.exact_noise:
            further = [tuple(replace(charge, ratio=group * charge.ratio) for charge in c) for c in self._of(role)]
            return max((composed_epsilon(c, delta, self.budget.adjacency) for c in further), default=0.0)
        return min(self._group_general(delta, group, role), self._best_of_runs(delta, group, role))

    def delta(self, epsilon: float, *, role: str | None = None) -> float:
        """The delta at ``epsilon``."""
        non_negative("epsilon", epsilon, "it is the privacy loss at which delta is asked")
        if not self.budget.is_private:
            return 1.0 if self.charges else 0.0
        return max((composed_delta(c, epsilon, self.budget.adjacency) for c in self._of(role)), default=0.0)

    def shares(self, role: str) -> tuple[float, ...]:
        """What part of a role's spend each of its releases has; they sum to one.

        Of mu^2, which adds up exactly, where everything is full batch; otherwise in proportion to the epsilons
        that the releases would have alone, which do not add up exactly. All zero where nothing is protected.
        """
        (charges,) = self._of(role)
        if not self.budget.is_private:
            return (0.0,) * len(charges)
        if is_gaussian(charges) or has_exact_noise(charges):
            parts = [charge.mu**2 for charge in charges]
        else:
            parts = [composed_epsilon((charge,), self._delta(None), self.budget.adjacency) for charge in charges]
        total = sum(parts)
        return tuple(part / total if total > 0 else 0.0 for part in parts)

    def tradeoff(self, false_positive_rate: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The least false-negative rate of any test for one record, at a given false-positive rate.

        The curve f(alpha) of f-DP: Phi(Phi^-1(1 - alpha) - mu) for Gaussian runs, otherwise the envelope of the
        lines that the (epsilon, delta) profile gives.
        """
        alpha = np.asarray(false_positive_rate, dtype=float)
        if not np.all((alpha >= 0) & (alpha <= 1)):
            raise InvalidArgument("false_positive_rate: must lie between 0 and 1; it is a probability")
        if not self.budget.is_private:
            return np.zeros_like(alpha) if self.charges else 1 - alpha
        if self.mu is not None:
            return np.zeros_like(alpha) if math.isinf(self.mu) else np.asarray(norm.cdf(norm.isf(alpha) - self.mu))
        # Below the delta that a black box declares no epsilon is finite. Fewer lines bound less, and hold all the same.
        finite = [epsilon for epsilon in (self.epsilon(1e-12), self.epsilon()) if math.isfinite(epsilon)]
        if not finite:
            return np.zeros_like(alpha)
        epsilons = np.linspace(0.0, finite[0], 200)
        deltas = np.array([self.delta(e) for e in epsilons])
        lines = [1 - deltas - np.exp(epsilons) * a for a in alpha.ravel()]
        mirrored = [np.exp(-epsilons) * (1 - deltas - a) for a in alpha.ravel()]
        best = [max(0.0, *np.concatenate(pair)) for pair in zip(lines, mirrored, strict=True)]
        return np.array(best).reshape(alpha.shape)

    def stated(self) -> str:
        """Epsilon, never rounded down, delta and the relation, of a run with a finite epsilon."""
        return (
            f"({rounded_up(self.epsilon())}, {self.budget.delta:g})-differentially private with respect to "
            f"{_RELATIONS[self.budget.adjacency]} ({self.budget.adjacency})"
        )

    def sentence(self) -> str:
        """The guarantee in one sentence that can be quoted."""
        if not self.budget.is_private:
            return "NOT PRIVATE: epsilon is infinite, neither noise nor clipping was applied."
        stated = f"{self.stated()}; unit of privacy: {self.unit}; accountant: {self.accountant}."
        caveats = "".join(f" CAVEAT: {caveat}." for caveat in self.caveats)
        if self.void:
            return (
                "NOT PRIVATE (reproducible: the noise came from a fixed seed). With secret noise it would be "
                f"{stated}{caveats}"
            )
        return f"With caveats, {stated}{caveats}" if caveats else stated

    def label(self) -> str:
        """The guarantee in a few words, for a repr or a table."""
        if not self.budget.is_private:
            return "NOT PRIVATE: epsilon is infinite"
        stated = f"({rounded_up(self.epsilon())}, {self.budget.delta:g})-DP, {self.budget.adjacency}, one record"
        if self.caveats:
            stated += f", with {len(self.caveats)} caveat{'' if len(self.caveats) == 1 else 's'}"
        return f"NOT PRIVATE: fixed seed; otherwise {stated}" if self.void else stated

    def to_json(self) -> dict[str, Any]:
        """A plain description from which a stranger can re-derive epsilon."""
        return {
            "private": self.budget.is_private and not self.void,
            "guarantee": self.sentence(),
            "epsilon": self.epsilon(),
            "delta": self.budget.delta,
            "mu": self.mu,
            "adjacency": self.budget.adjacency,
            "unit": self.unit,
            "accountant": self.accountant,
            "budget": {"epsilon": self.budget.epsilon, "delta": self.budget.delta},
            "caveats": list(self.caveats),
            "void": self.void,
            "roles": {
                role: {
                    "epsilon": self.epsilon(role=role),
                    "charges": [
                        {
                            "release": charge.release,
                            "sensitivity_over_noise": charge.ratio,
                            "steps": charge.uses,
                            "sampling": type(charge.sampling).__name__,
                            "sampling_parameters": asdict(charge.sampling),
                            "records": charge.records,
                            "declared": None if charge.declared is None else asdict(charge.declared),
                            "clip": charge.clip,
                            "noise": "exact" if charge.exact else "float",
                        }
                        for charge in charges
                    ],
                }
                for role, charges in self.charges.items()
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Privacy":
        """The inverse of `to_json`; derived numbers are computed anew, not trusted."""
        try:
            return cls._read(data)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise InvalidArgument("data: is no spend as Privacy.to_json tells it; pass it as it was written") from error

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> "Privacy":
        charges = {
            role: tuple(
                Charge(
                    release=item["release"],
                    role=role,
                    ratio=float(item["sensitivity_over_noise"]),
                    uses=int(item["steps"]),
                    sampling=_SAMPLINGS[item["sampling"]](**item["sampling_parameters"]),
                    records=item["records"],
                    declared=declared_event(item.get("declared")),
                    clip=item.get("clip"),
                    exact=item.get("noise") == "exact",
                )
                for item in entry["charges"]
            )
            for role, entry in data["roles"].items()
        }
        for mine in charges.values():
            composed_mu(mine)  # a ratio that no float can compose is found here
        epsilon, delta = data["budget"]["epsilon"], data["budget"]["delta"]
        budget = Budget(float(epsilon), None if delta is None else float(delta), data["adjacency"])
        return cls(charges, budget, tuple(data["caveats"]), bool(data["void"]))

    def _repr_html_(self) -> str:
        """A compact card, for notebooks."""
        from dpbilevel.report.privacy_cards import privacy_card

        return privacy_card(self)

    def __repr__(self) -> str:
        return f"Privacy({self.label()})"

    def _delta(self, delta: float | None) -> float:
        if delta is None:
            return self.budget.delta or 0.0
        if not positive("delta", delta, "it is a probability (try 1e-6)") < 1:
            raise InvalidArgument(f"delta={delta!r}: must lie between 0 and 1 (try {self.budget.delta or 1e-6:g})")
        return delta

    def _of(self, role: str | None) -> list[tuple[Charge, ...]]:
        if role is not None and (not isinstance(role, str) or role not in self.charges):
            raise InvalidArgument(f"role={role!r}: must be one of {sorted(self.charges)}")
        return list(self.charges.values()) if role is None else [self.charges[role]]

    def _best_of_runs(self, delta: float, group: int, role: str | None) -> float:
        return max((best_of_runs_epsilon(c, delta, group) for c in self._of(role)), default=math.inf)

    def _group_general(self, delta: float, group: int, role: str | None) -> float:
        def excess(epsilon: float) -> float:
            # delta (1 + e^epsilon + ... + e^((k-1) epsilon)), compared in logarithms
            one = self.delta(epsilon, role=role)
            growth = sum(math.exp(min(index * epsilon, 700.0)) for index in range(group))
            return math.log(max(one, 1e-300)) + math.log(growth) - math.log(delta)

        if excess(0.0) <= 0:
            return 0.0
        upper = 1.0
        while excess(upper) > 0:
            upper *= 2
            if upper > 350 / group:
                return math.inf
        epsilon = float(brentq(excess, 0.0, upper, xtol=1e-6))
        while excess(epsilon) > 0:  # a root is met from either side: report only what holds
            epsilon += 1e-6
        return group * epsilon


def rounded_up(value: float, digits: int = 4) -> str:
    """Four significant digits, never below the value: a guarantee may not be stated too small.

    >>> rounded_up(0.84111), rounded_up(1.0), rounded_up(0.0)
    ('0.8412', '1', '0')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    # A millionth of the last digit is forgiven, or rounding alone would turn 1 into 1.001.
    return f"{math.ceil(value / unit - 1e-6) * unit:.{digits}g}"
