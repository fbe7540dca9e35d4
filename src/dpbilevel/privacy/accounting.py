"""What uses of releases cost (`Charge`), and the formulas of the Gaussian; `accountant` composes charges.

A use of a release is described to the accountant by its *ratio* alone, sensitivity over noise: T uses of a
full-batch Gaussian release with ratio r are exactly mu-GDP with mu^2 = T r^2, and full-batch releases compose,
adaptively, to mu^2 = sum of their mu^2 (Dong, Roth and Su 2022). Exact noise is accounted for by zCDP instead
(`concentrated`), whose rho = mu^2/2 adds up alike.

The ratio of a sampled release is that of a batch which holds the record, once, against the same batch with the record
changed. What sampling adds to that is for the scheme to say (`sampling`): that the record may be left out, that another
record then has its place in a batch of fixed size, and that it may be drawn several times.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from scipy.stats import norm

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy.sampling import Sampling

ROLES: tuple[str, ...] = ("upper", "lower", "both")


class Declared(Protocol):
    """What one call of a black box is declared to cost (`privacy/declared.py`); the charge keeps it as it is."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...


@dataclass(frozen=True)
class Charge:
    """What ``uses`` uses of one release cost the records of one role."""

    release: str
    role: str
    ratio: float  # sensitivity over noise, of one use whose batch holds the record once
    uses: int
    sampling: Sampling
    records: int | None = None  # of the role; fixed-size batches need it
    declared: Declared | None = None  # of one call of a black box, which has no ratio
    clip: float | None = None  # largest norm of what one record adds; None where a black box bounds it
    exact: bool = False  # integer noise: of it zCDP is known, and no mu-GDP

    @property
    def mu(self) -> float:
        """The GDP parameter of all uses together, as if nothing were sampled; of exact noise sqrt(2 rho), its zCDP."""
        return self.ratio * math.sqrt(self.uses)

    @property
    def is_full_batch(self) -> bool:
        """Whether it is of noise on sums over everybody, so that its mu adds up: no batch, and no black box."""
        return self.sampling.is_full_batch and self.declared is None

    @property
    def is_gaussian(self) -> bool:
        """Whether it is of a full-batch Gaussian, so that it is mu-GDP."""
        return self.is_full_batch and not self.exact


class Chargeable(Protocol):
    """What a ledger charges: a `Release`, or a `DeclaredRelease` of a black box."""

    @property
    def name(self) -> str: ...
    @property
    def uses(self) -> int: ...
    @property
    def adjacency(self) -> str: ...
    def charges(self) -> tuple[Charge, ...]:
        """What all uses cost, role by role."""


def all_charges(releases: Sequence[Chargeable]) -> dict[str, tuple[Charge, ...]]:
    """Charges of several releases, per role. Roles hold disjoint records, so that they compose in parallel."""
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
            f"epsilon={epsilon!r}, delta={delta!r}: are beyond what the accountant computes (try 1.0 and 1e-6)"
        ) from error


def composed_mu(charges: Sequence[Charge]) -> float:
    """The exact mu of full-batch charges on one role."""
    return math.sqrt(sum(charge.mu**2 for charge in charges))
