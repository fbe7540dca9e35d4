"""Exact Gaussian accounting, and privacy loss distributions for sampled releases.

The heavy lifting is dp_accounting's. What is written here is the translation of units, where that library has
traps: under ``REPLACE_ONE`` its PLD accountant takes noise over *clip* and doubles by itself, while its Gaussian
formulas take noise over *sensitivity*; and an integer or numpy multiplier silently under-counts, hence ``float``.

A use of a release is described to the accountant by its *ratio* alone, sensitivity over noise: T uses of a
full-batch Gaussian release with ratio r are exactly mu-GDP with mu^2 = T r^2, and full-batch releases compose,
adaptively, to mu^2 = sum of their mu^2 (Dong, Roth and Su 2022).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import norm

from dpbilevel.arguments import positive
from dpbilevel.errors import InvalidArgument


@dataclass(frozen=True)
class FullBatch:
    """Every record takes part in every step."""

    @property
    def rate(self) -> float:
        """The share of records that takes part."""
        return 1.0


@dataclass(frozen=True)
class Poisson:
    """Each record takes part in a step with probability ``rate``, independently.

    The size of a batch is private: an answer is divided by the public rate * n, an empty batch is pure noise.
    """

    rate: float

    def __post_init__(self) -> None:
        if not positive("rate", self.rate, "it is a sampling probability (try 0.1)") <= 1:
            raise InvalidArgument(f"rate={self.rate!r}: must be at most 1; it is a sampling probability (try 0.1)")


Sampling = FullBatch | Poisson


@dataclass(frozen=True)
class Charge:
    """What ``steps`` uses of one release cost the records of one role."""

    release: str
    role: str
    ratio: float  # sensitivity over noise, of one use
    steps: int
    sampling: Sampling

    @property
    def mu(self) -> float:
        """The GDP parameter of all uses together, as if nothing were sampled."""
        return self.ratio * math.sqrt(self.steps)


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

    return float(1 / dp_accounting.get_sigma_gaussian(float(epsilon), float(delta)))


def is_gaussian(charges: Sequence[Charge]) -> bool:
    """Whether every charge is a full-batch Gaussian, so that accounting is exact."""
    return all(charge.sampling.rate == 1 for charge in charges)


def composed_mu(charges: Sequence[Charge]) -> float:
    """The exact mu of full-batch charges on one role."""
    return math.sqrt(sum(charge.mu**2 for charge in charges))


def composed_epsilon(charges: Sequence[Charge], delta: float, adjacency: str) -> float:
    """The epsilon at delta of all charges on the records of one role."""
    if is_gaussian(charges) or math.isinf(composed_mu(charges)):
        return gaussian_epsilon(composed_mu(charges), delta)
    sampled = float(_loss_distribution(_merged(charges), adjacency).get_epsilon_for_delta(delta))
    # Sampling never costs more than its absence; a grid that is coarse for many tiny steps may think so.
    return min(sampled, gaussian_epsilon(composed_mu(charges), delta))


def composed_delta(charges: Sequence[Charge], epsilon: float, adjacency: str) -> float:
    """The delta at epsilon of all charges on the records of one role."""
    if is_gaussian(charges) or math.isinf(composed_mu(charges)):
        return gaussian_delta(composed_mu(charges), epsilon)
    sampled = float(_loss_distribution(_merged(charges), adjacency).get_delta_for_epsilon(epsilon))
    return min(sampled, gaussian_delta(composed_mu(charges), epsilon))


def _merged(charges: Sequence[Charge]) -> tuple[tuple[float, int, float], ...]:
    """Charges as (ratio, steps, rate): a cache key that does not depend on names."""
    return tuple((charge.ratio, charge.steps, float(charge.sampling.rate)) for charge in charges)


@functools.lru_cache(maxsize=64)
def _loss_distribution(charges: tuple[tuple[float, int, float], ...], adjacency: str) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    relation, multiple = {
        "replace-one": (NeighboringRelation.REPLACE_ONE, 2.0),  # sensitivity is twice one record's contribution
        "zero-out": (NeighboringRelation.REPLACE_SPECIAL, 1.0),
    }[adjacency]
    total = pld.identity(value_discretization_interval=_DISCRETISATION)
    for ratio, steps, rate in charges:
        if ratio == 0:
            continue
        one = pld.from_gaussian_mechanism(
            standard_deviation=float(multiple / ratio),
            value_discretization_interval=_DISCRETISATION,
            sampling_prob=float(rate),
            neighboring_relation=relation,
        )
        total = total.compose(one.self_compose(int(steps)))
    return total


# Pessimistic rounding of the privacy loss: dp_accounting's default. For 10^4 and more tiny steps a finer grid would
# claim up to a tenth less; this one errs on the safe side.
_DISCRETISATION = 1e-4
