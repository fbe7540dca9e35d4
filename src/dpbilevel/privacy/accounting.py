"""Exact Gaussian accounting, and privacy loss distributions for sampled releases.

The heavy lifting is dp_accounting's. What is written here is the translation of units, where that library has
traps: under ``REPLACE_ONE`` its PLD accountant takes noise over *clip* and doubles by itself, while its Gaussian
formulas take noise over *sensitivity*; and an integer or numpy multiplier silently under-counts, hence ``float``.

A use of a release is described to the accountant by its *ratio* alone, sensitivity over noise: T uses of a
full-batch Gaussian release with ratio r are exactly mu-GDP with mu^2 = T r^2, and full-batch releases compose,
adaptively, to mu^2 = sum of their mu^2 (Dong, Roth and Su 2022). Exact noise is accounted for by zCDP instead
(`concentrated`), whose rho = mu^2/2 adds up alike.

The ratio of a sampled release is that of a batch which holds the record, once, against the same batch with the record
changed. What sampling adds to that is counted here and in `profiles`: that the record may be left out, that another
record then has its place in a batch of fixed size, and that it may be drawn several times.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from scipy.stats import norm

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy.concentrated import concentrated_delta, concentrated_epsilon
from dpbilevel.privacy.profiles import loss_distribution
from dpbilevel.privacy.sampling import Poisson, Sampling, WithoutReplacement, WithReplacement

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


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose mu-GDP is (epsilon, delta)-DP."""
    import dp_accounting

    try:
        return float(1 / dp_accounting.get_sigma_gaussian(float(epsilon), float(delta)))
    except (ArithmeticError, ValueError) as error:
        raise InvalidArgument(
            f"epsilon={epsilon!r}, delta={delta!r}: are beyond what the accountant computes (try 1.0 and 1e-6)"
        ) from error


def is_gaussian(charges: Sequence[Charge]) -> bool:
    """Whether every charge is a full-batch Gaussian, so that accounting is exact."""
    return _is_full_batch(charges) and not has_exact_noise(charges)


def has_exact_noise(charges: Sequence[Charge]) -> bool:
    """Whether a charge is of integer noise, so that accounting is by zCDP."""
    return any(charge.exact for charge in charges)


def composed_mu(charges: Sequence[Charge]) -> float:
    """The exact mu of full-batch charges on one role."""
    return math.sqrt(sum(charge.mu**2 for charge in charges))


def composed_epsilon(charges: Sequence[Charge], delta: float, adjacency: str) -> float:
    """The epsilon at delta of all charges on the records of one role."""
    if has_exact_noise(charges):
        return concentrated_epsilon(_concentrated(charges), delta)
    if is_gaussian(charges) or math.isinf(composed_mu(charges)):
        return gaussian_epsilon(composed_mu(charges), delta)
    sampled = float(_loss_distribution(_merged(charges), adjacency).get_epsilon_for_delta(delta))
    return min(sampled, gaussian_epsilon(_mu_without_sampling(charges), delta), _as_declared(charges, delta))


def composed_delta(charges: Sequence[Charge], epsilon: float, adjacency: str) -> float:
    """The delta at epsilon of all charges on the records of one role."""
    if has_exact_noise(charges):
        return concentrated_delta(_concentrated(charges), epsilon)
    if is_gaussian(charges) or math.isinf(composed_mu(charges)):
        return gaussian_delta(composed_mu(charges), epsilon)
    sampled = float(_loss_distribution(_merged(charges), adjacency).get_delta_for_epsilon(epsilon))
    return min(sampled, gaussian_delta(_mu_without_sampling(charges), epsilon))


def _is_full_batch(charges: Sequence[Charge]) -> bool:
    return all(charge.sampling.is_full_batch and charge.declared is None for charge in charges)


def _concentrated(charges: Sequence[Charge]) -> float:
    """sqrt(2 rho) of charges some of which are of exact noise; a full-batch Gaussian has the same zCDP."""
    if not _is_full_batch(charges):
        raise InvalidArgument("charges: exact noise does not compose with sampled releases or black boxes here")
    return composed_mu(charges)


def _as_declared(charges: Sequence[Charge], delta: float) -> float:
    """One call of a black box costs what it declares; the grid would round that up."""
    (declared, uses), *others = [(charge.declared, charge.uses) for charge in charges]
    alone = declared is not None and uses == 1 and not others and delta >= declared.delta
    return declared.epsilon if declared is not None and alone else math.inf


def _mu_without_sampling(charges: Sequence[Charge]) -> float:
    """Leaving records out never costs more than taking everybody; a grid too coarse for tiny steps may think so.

    Given the batch, which two neighbours have in common, a use is a Gaussian of this ratio or says nothing of the
    record; a mixture of such pairs over batches is no easier to tell apart (joint convexity), whatever the others are.
    Draws with replacement can take a record many times over, and of a black box no mu is known: no such bound.
    """
    unbounded = any(isinstance(c.sampling, WithReplacement) or c.declared is not None for c in charges)
    return math.inf if unbounded else composed_mu(charges)


def _merged(charges: Sequence[Charge]) -> tuple[Charge, ...]:
    """What charges cost: a cache key that does not depend on names, nor on clips, which the ratio has in it."""
    return tuple(replace(charge, release="", role="", clip=None) for charge in charges)


@functools.lru_cache(maxsize=64)
def _loss_distribution(charges: tuple[Charge, ...], adjacency: str) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld

    total = pld.identity(value_discretization_interval=_DISCRETISATION)
    for charge in charges:
        if charge.ratio > 0 or charge.declared is not None:
            total = total.compose(_one_use(charge, adjacency).self_compose(int(charge.uses)))
    return total


def _one_use(charge: Charge, adjacency: str) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    ratio, sampling, records = charge.ratio, charge.sampling, charge.records
    if charge.declared is not None:
        stated = DifferentialPrivacyParameters(charge.declared.epsilon, charge.declared.delta)
        return pld.from_privacy_parameters(stated, value_discretization_interval=_DISCRETISATION)
    if isinstance(sampling, WithoutReplacement | WithReplacement):
        if records is None:
            raise InvalidArgument(f"records=None: {sampling!r} cannot be accounted for without the number of records")
        kind = "without replacement" if isinstance(sampling, WithoutReplacement) else "with replacement"
        return loss_distribution(kind, float(ratio), sampling.size, records, adjacency, _DISCRETISATION)
    relation, multiple = {
        "replace-one": (NeighboringRelation.REPLACE_ONE, 2.0),  # sensitivity is twice one record's contribution
        "zero-out": (NeighboringRelation.REPLACE_SPECIAL, 1.0),
    }[adjacency]
    return pld.from_gaussian_mechanism(
        standard_deviation=float(multiple / ratio),
        value_discretization_interval=_DISCRETISATION,
        sampling_prob=float(sampling.rate) if isinstance(sampling, Poisson) else 1.0,
        neighboring_relation=relation,
    )


# Pessimistic rounding of the privacy loss: dp_accounting's default. For 10^4 and more tiny steps a finer grid would
# claim up to a tenth less; this one errs on the safe side.
_DISCRETISATION = 1e-4
