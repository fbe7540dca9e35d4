"""The privacy spend of a run, for reviews: epsilon, delta, mu, the trade-off curve, the relation, the unit."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.stats import norm

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count, non_negative, one_of, positive
from dpbilevel.privacy.accountant import Accountant, accountant
from dpbilevel.privacy.accounting import Charge, composed_mu
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.declared import declared_event
from dpbilevel.privacy.sampling import sampling_from_json
from dpbilevel.privacy.selection import best_of_runs_epsilon

LARGE = 20.0  # an epsilon above which a valid guarantee protects almost nothing
_WEAK = (
    "epsilon is above 20: one record may then make an outcome 485 million times as likely, so that almost nothing is "
    "protected"
)
_RELATIONS = {
    "replace-one": "replacing the content of one record",
    "zero-out": "replacing one record by one that contributes nothing",
}
_RELATIONS_OF_UNITS = {
    "replace-one": "replacing all rows of one unit",
    "zero-out": "replacing one unit by one that contributes nothing",
}


@dataclass(frozen=True, eq=False)
class Privacy:
    """The privacy of one run, computed from its declared releases.

    Roles hold disjoint records and therefore compose in parallel: the total is the *maximum* over roles.

    Attributes:
        charges: the charges on the records of each role.
        budget: the budget of the run, with the neighbouring relation.
        caveats: reasons why the guarantee may not hold as stated, or is weak (an epsilon above 20); normally empty.
        void: whether there is no guarantee at all (a fixed seed, or an infinite epsilon).
        rows_per_unit: how many rows of a unit are used, if records are units; None if they are rows.
        uses_all_rows: whether all rows of a unit are used, however many: its record is one number, computed from them.
    """

    charges: Mapping[str, tuple[Charge, ...]]
    budget: Budget
    caveats: tuple[str, ...] = ()
    void: bool = False
    rows_per_unit: int | None = None
    uses_all_rows: bool = False

    def __post_init__(self) -> None:
        if LARGE < self.budget.epsilon < math.inf and _WEAK not in self.caveats:
            object.__setattr__(self, "caveats", (*self.caveats, _WEAK))

    @property
    def unit(self) -> str:
        """The unit of privacy: one row, or all rows of one person."""
        if self.rows_per_unit is None:
            return "one record (a row of the data, not a person: use group=k for k rows of one person)"
        return f"one unit (one person, or whatever an id denotes: all of its rows{self._used})"

    @property
    def _used(self) -> str:
        if self.uses_all_rows:
            return ""
        return f", of which {'one is' if self.rows_per_unit == 1 else f'at most {self.rows_per_unit} are'} used"

    @property
    def accountant(self) -> str:
        """How epsilon is computed."""
        return self._whole.description

    @property
    def is_gaussian(self) -> bool:
        """Whether all releases are full-batch Gaussian, so that mu exists and accounting is exact."""
        return all(charge.is_gaussian for charge in self._whole.charges)

    @property
    def exact_noise(self) -> bool:
        """Whether noise was drawn as integers and added to integers (``noise="exact"``)."""
        return any(charge.exact for charge in self._whole.charges)

    @property
    def groups_add_up(self) -> bool:
        """Whether mu of a group is a multiple of mu, so that its epsilon is exact and needs no search."""
        return all(mine.adds_up for mine in self._of(None))

    @property
    def mu(self) -> float | None:
        """The GDP parameter; None if releases are sampled (no finite mu exists) or noise is exact."""
        return max(map(composed_mu, self.charges.values()), default=0.0) if self.is_gaussian else None

    def epsilon(self, delta: float | None = None, *, group: int = 1, role: str | None = None) -> float:
        """The epsilon at ``delta`` (by default the budget's) for ``group`` records that change together.

        The records of a group may be in any roles: k records change the answers by at most k times as much as one
        record of the most expensive role, so that mu becomes k mu, also in the zCDP of exact noise and in each run of a
        random search. Otherwise the general bound is used, (k e, delta (exp(k e) - 1)/(exp(e) - 1)).
        """
        delta = self._delta(delta)
        positive("group", count("group", group, "it is the number of records that change together"), "it multiplies mu")
        if not self.budget.is_private:
            return math.inf if self.charges else 0.0
        if group == 1:
            one = max((mine.epsilon(delta) for mine in self._of(role)), default=0.0)
            return one if math.isfinite(one) else self._best_of_runs(delta, 1, role)
        if self.groups_add_up:
            return max((mine.for_group(group).epsilon(delta) for mine in self._of(role)), default=0.0)
        return min(self._group_general(delta, group, role), self._best_of_runs(delta, group, role))

    def delta(self, epsilon: float, *, role: str | None = None) -> float:
        """The delta at ``epsilon``."""
        non_negative("epsilon", epsilon, "it is the privacy loss at which delta is computed")
        if not self.budget.is_private:
            return 1.0 if self.charges else 0.0
        return max((mine.delta(epsilon) for mine in self._of(role)), default=0.0)

    def shares(self, role: str) -> tuple[float, ...]:
        """The share of each release in the spend of a role; they sum to one.

        If all releases are full batch, shares are those of mu^2, which adds up exactly. Otherwise they are proportional
        to the epsilons of the separate releases, which do not add up exactly. All are zero if nothing is protected.
        """
        (mine,) = self._of(role)
        if not self.budget.is_private:
            return (0.0,) * len(mine.charges)
        parts = mine.parts(self._delta(None))
        total = sum(parts)
        return tuple(part / total if total > 0 else 0.0 for part in parts)

    def tradeoff(self, false_positive_rate: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The smallest false-negative rate of any test for one record, at a given false-positive rate.

        The curve f(alpha) of f-DP: Phi(Phi^-1(1 - alpha) - mu) for Gaussian runs, otherwise the envelope of the
        lines given by the (epsilon, delta) profile.
        """
        alpha = np.asarray(false_positive_rate, dtype=float)
        if not np.all((alpha >= 0) & (alpha <= 1)):
            raise InvalidArgument("false_positive_rate: must be between 0 and 1; it is a probability")
        if not self.budget.is_private:
            return np.zeros_like(alpha) if self.charges else 1 - alpha
        if self.mu is not None:
            return np.zeros_like(alpha) if math.isinf(self.mu) else np.asarray(norm.cdf(norm.isf(alpha) - self.mu))
        # Below the delta declared by a black box, epsilon is infinite. The bound is still valid with fewer lines.
        finite = [epsilon for epsilon in (self.epsilon(1e-12), self.epsilon()) if math.isfinite(epsilon)]
        if not finite:
            return np.zeros_like(alpha)
        epsilons = np.linspace(0.0, finite[0], 200)
        deltas = np.array([self.delta(e) for e in epsilons])
        lines = [1 - deltas - np.exp(epsilons) * a for a in alpha.ravel()]
        mirrored = [np.exp(-epsilons) * (1 - deltas - a) for a in alpha.ravel()]
        best = [max(0.0, *np.concatenate(pair)) for pair in zip(lines, mirrored, strict=True)]
        return np.array(best).reshape(alpha.shape)

    def dp_event(self, accountant: str = "pld", *, role: str | None = None) -> Any:
        """The spend as a ``dp_accounting.DpEvent``, to compose it with other mechanisms.

        Compose it under the relation of the budget, ``NeighboringRelation.REPLACE_ONE`` for replace-one and
        ``REPLACE_SPECIAL`` for zero-out, and only with the accountant that it was created for: the two interpret a
        noise multiplier differently, and the wrong one counts half.

        Args:
            accountant: "pld" for ``dp_accounting.pld.PLDAccountant``, whose noise multiplier is noise over the
                contribution of one record; "rdp" for ``dp_accounting.rdp.RdpAccountant``, whose multiplier is noise
                over sensitivity. Exact noise supports "rdp" only.
            role: the role of the records. Roles hold disjoint records and compose separately. None covers all roles if
                one is the most expensive at every epsilon: one role, or no batches and no black boxes.

        >>> import dp_accounting, dp_accounting.pld, dpbilevel as dpb
        >>> parts = {"lower": dpb.Contribution(lambda point, record: record, clip=1.0, count=1000)}
        >>> release = dpb.Release(name="mean", contributions=parts, noise_std=0.01, uses=10)
        >>> privacy = dpb.Privacy({"lower": release.charges()}, dpb.Budget(4.0, 1e-6))
        >>> theirs = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
        >>> round(theirs.compose(privacy.dp_event()).get_epsilon(1e-6), 2), round(privacy.epsilon(), 2)
        (2.95, 2.95)
        """
        one_of(
            "accountant",
            accountant,
            ("pld", "rdp"),
            "it selects the accountant of dp_accounting that will use the event",
        )
        if self.void or not self.budget.is_private:
            raise InvalidArgument(
                "dp_event: a run with a fixed seed or an infinite epsilon is not private and has no event"
            )
        mine = self._of(role)
        if len(mine) > 1 and not (self.groups_add_up and len({type(one) for one in mine}) == 1):
            raise InvalidArgument(
                f"role=None: must be one of {sorted(self.charges)} for runs with batches or black boxes; roles hold "
                "disjoint records, and possibly none is the most expensive at every epsilon"
            )
        from dp_accounting import ComposedDpEvent

        return ComposedDpEvent(max(mine, key=lambda one: one.mu).dp_events(accountant) if mine else [])

    @property
    def relation(self) -> str:
        """What is changed between neighbours, in words."""
        relations = _RELATIONS if self.rows_per_unit is None else _RELATIONS_OF_UNITS
        return relations[self.budget.adjacency]

    def stated(self) -> str:
        """Epsilon (rounded up), delta and the relation, for a run with a finite epsilon."""
        return (
            f"({rounded_up(self.epsilon())}, {self.budget.delta:g})-differentially private with respect to "
            f"{self.relation} ({self.budget.adjacency})"
        )

    def sentence(self) -> str:
        """The guarantee in one sentence, ready to be quoted."""
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
        most = self.rows_per_unit
        bound = "" if self.uses_all_rows else f" of at most {most} row{'' if most == 1 else 's'}"
        unit = "one record" if most is None else f"one unit{bound}"
        stated = f"({rounded_up(self.epsilon())}, {self.budget.delta:g})-DP, {self.budget.adjacency}, {unit}"
        if self.caveats:
            stated += f", with {len(self.caveats)} caveat{'' if len(self.caveats) == 1 else 's'}"
        return f"NOT PRIVATE: fixed seed; otherwise {stated}" if self.void else stated

    def to_json(self) -> dict[str, Any]:
        """A description as plain JSON values, from which anyone can recompute epsilon."""
        return {
            "private": self.budget.is_private and not self.void,
            "guarantee": self.sentence(),
            "epsilon": self.epsilon(),
            "delta": self.budget.delta,
            "mu": self.mu,
            "adjacency": self.budget.adjacency,
            "unit": self.unit,
            **({} if self.rows_per_unit is None else {"rows_per_unit": self.rows_per_unit}),
            **({"uses_all_rows": True} if self.uses_all_rows else {}),
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
                            **charge.sampling.to_json(),
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
        """The inverse of `to_json`; derived numbers are recomputed, not trusted."""
        try:
            return cls._read(data)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise InvalidArgument("data: is not the output of Privacy.to_json; pass it unchanged") from error

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> "Privacy":
        charges = {
            role: tuple(
                Charge(
                    release=item["release"],
                    role=role,
                    ratio=float(item["sensitivity_over_noise"]),
                    uses=int(item["steps"]),
                    sampling=sampling_from_json(item),
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
            composed_mu(mine)  # raises for ratios that overflow
        epsilon, delta = data["budget"]["epsilon"], data["budget"]["delta"]
        budget = Budget(float(epsilon), None if delta is None else float(delta), data["adjacency"])
        most = data.get("rows_per_unit")
        if most is not None:
            most = count("rows_per_unit", most, "it is the number of rows of a unit that are used")
        uses_all_rows = bool(data.get("uses_all_rows", False))
        return cls(charges, budget, tuple(data["caveats"]), bool(data["void"]), most, uses_all_rows)

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
            raise InvalidArgument(f"delta={delta!r}: must be between 0 and 1 (try {self.budget.delta or 1e-6:g})")
        return delta

    @property
    def _whole(self) -> Accountant:
        """The accountant for the charges of all roles: it describes the run, and determines whether mu exists."""
        return accountant([charge for charges in self.charges.values() for charge in charges], self.budget.adjacency)

    def _of(self, role: str | None) -> list[Accountant]:
        """The accountant of a role, or of each role."""
        if role is not None and (not isinstance(role, str) or role not in self.charges):
            raise InvalidArgument(f"role={role!r}: must be one of {sorted(self.charges)}")
        asked = self.charges.values() if role is None else [self.charges[role]]
        return [accountant(charges, self.budget.adjacency) for charges in asked]

    def _best_of_runs(self, delta: float, group: int, role: str | None) -> float:
        return max((best_of_runs_epsilon(mine.charges, delta, group) for mine in self._of(role)), default=math.inf)

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
        while excess(epsilon) > 0:  # the root may be approached from below: report only a valid epsilon
            epsilon += 1e-6
        return group * epsilon


def rounded_up(value: float, digits: int = 4) -> str:
    """Four significant digits, never below the value: a guarantee must not be understated.

    >>> rounded_up(0.84111), rounded_up(1.0), rounded_up(0.0)
    ('0.8412', '1', '0')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    # A tolerance of a millionth of the last digit: otherwise rounding errors would turn 1 into 1.001.
    return f"{math.ceil(value / unit - 1e-6) * unit:.{digits}g}"
