"""The cost of releases (`Charge`), and formulas of the Gaussian mechanism; `accountant` composes charges.

The only number that the accountant uses of a release is its *ratio*, sensitivity over noise, the inverse of the noise
multiplier. T uses of a full-batch Gaussian release with ratio r are exactly mu-GDP with mu^2 = T r^2, and full-batch
releases compose, adaptively, to mu^2 = sum of their mu^2 (Dong, Roth and Su 2022). Exact noise is accounted for by zCDP
(`concentrated`), whose rho = mu^2/2 adds up in the same way.

The ratio of a sampled release compares a batch that contains the record once with the same batch after the record has
changed. The sampling scheme accounts for everything else (`sampling`): the record may be left out, another record may
take its place in a batch of fixed size, and it may be drawn several times.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from scipy.stats import norm

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy.sampling import Sampling

ROLES: tuple[str, ...] = ("upper", "lower", "both", "heldout")


class Declared(Protocol):
    """The declared cost of one call of a black box (`privacy/declared.py`), stored unchanged in the charge."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...


@dataclass(frozen=True)
class Charge:
    """The cost of ``uses`` uses of one release to the records of one role."""

    release: str
    role: str
    ratio: float  # sensitivity over noise, of one use whose batch contains the record once
    uses: int
    sampling: Sampling
    records: int | None = None  # number of records of the role; needed for batches of fixed size
    declared: Declared | None = None  # cost of one call of a black box, which has no ratio
    clip: float | None = None  # largest norm of one record's contribution; None for a black box
    exact: bool = False  # integer noise: it satisfies zCDP, but no mu-GDP bound is known

    @property
    def mu(self) -> float:
        """The GDP parameter of all uses, ignoring sampling; for exact noise sqrt(2 rho), from its zCDP."""
        return self.ratio * math.sqrt(self.uses)

    @property
    def noise_multiplier(self) -> float | None:
        """Noise over sensitivity of one use, the inverse of the ratio; None where the cost of a call is declared."""
        if self.declared is not None:
            return None
        return 1 / self.ratio if self.ratio > 0 else math.inf

    @property
    def is_full_batch(self) -> bool:
        """Whether the release is full batch, so that mu^2 adds up: no sampling, and no black box."""
        return self.sampling.is_full_batch and self.declared is None

    @property
    def is_gaussian(self) -> bool:
        """Whether the release is a full-batch Gaussian, so that it is mu-GDP."""
        return self.is_full_batch and not self.exact


class Chargeable(Protocol):
    """What a ledger can charge: a `Release`, or a `DeclaredRelease` of a black box."""

    @property
    def name(self) -> str: ...
    @property
    def uses(self) -> int: ...
    @property
    def adjacency(self) -> str: ...
    def charges(self) -> tuple[Charge, ...]:
        """The cost of all uses, one charge per role."""


def all_charges(releases: Sequence[Chargeable]) -> dict[str, tuple[Charge, ...]]:
    """Charges of several releases by role. Roles hold disjoint records and compose in parallel."""
    charges: dict[str, tuple[Charge, ...]] = {}
    for release in releases:
        for charge in release.charges():
            charges[charge.role] = (*charges.get(charge.role, ()), charge)
    return charges


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of mu-GDP at delta (Balle and Wang 2018, through dp_accounting).

    >>> round(gaussian_epsilon(mu=0.5, delta=1e-6), 4)
    2.2541
    """
    import dp_accounting

    if mu == 0:
        return 0.0
    return float(dp_accounting.get_epsilon_gaussian(float(1 / mu), float(delta)))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The delta of mu-GDP at epsilon: Phi(-e/mu + mu/2) - exp(e) Phi(-e/mu - mu/2)."""
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    first, second = norm.logcdf(-epsilon / mu + mu / 2), epsilon + norm.logcdf(-epsilon / mu - mu / 2)
    return float(math.exp(first) * -math.expm1(min(second - first, 0.0)))


@functools.lru_cache(maxsize=256)  # a root search, for which a plan asks a dozen times
def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose mu-GDP is (epsilon, delta)-DP."""
    import dp_accounting

    try:
        return float(1 / dp_accounting.get_sigma_gaussian(float(epsilon), float(delta)))
    except (ArithmeticError, ValueError) as error:
        raise InvalidArgument(
            f"epsilon={epsilon!r}, delta={delta!r}: are outside the range of the accountant (try 1.0 and 1e-6)"
        ) from error


def composed_mu(charges: Sequence[Charge]) -> float:
    """The exact mu of full-batch charges on one role."""
    return math.sqrt(sum(charge.mu**2 for charge in charges))
