"""Accountants: they compose the charges on the records of one role. Only this module decides which one is used.

* `GaussianAccountant`: full-batch Gaussians. Exact: mu^2 adds up.
* `ConcentratedAccountant`: exact noise, which satisfies zCDP (no mu-GDP bound is known). rho = mu^2/2 adds up.
* `LossAccountant`: everything else, that is, batches and declared costs of black boxes, by privacy loss distributions.

dp_accounting computes the privacy loss distributions. This module and `sampling` convert units, where that library has
pitfalls: under ``REPLACE_ONE`` its PLD accountant expects noise over *clip norm* and doubles the sensitivity itself,
while its RDP accountant and its Gaussian formulas expect noise over *sensitivity*. An integer or NumPy multiplier is
silently under-counted, hence ``float``.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy.accounting import Charge, composed_mu, gaussian_delta, gaussian_epsilon
from dpbilevel.privacy.concentrated import concentrated_delta, concentrated_epsilon

# Pessimistic rounding of the privacy loss: dp_accounting's default. For 10^4 and more tiny steps a finer grid would
# give an epsilon up to a tenth smaller; this one is on the safe side.
_DISCRETISATION = 1e-4


@dataclass(frozen=True)
class Accountant(ABC):
    """The total cost of all charges on the records of one role.

    Args:
        charges: the charges of one role, in any order: they compose adaptively.
        adjacency: the neighbouring relation of their ratios.
    """

    charges: tuple[Charge, ...]
    adjacency: str
    adds_up: ClassVar[bool] = True  # whether mu^2 adds up; a group of k records then has k mu

    @property
    @abstractmethod
    def description(self) -> str:
        """How epsilon is computed, for the guarantee."""

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """The epsilon at delta."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """The delta at epsilon."""

    @abstractmethod
    def dp_events(self, reader: str) -> list[Any]:
        """The charges as ``dp_accounting.DpEvent``, in the units of its "pld" or "rdp" accountant."""

    @property
    def mu(self) -> float:
        """The GDP parameter, if mu^2 adds up; for exact noise sqrt(2 rho), from its zCDP."""
        return composed_mu(self.charges)

    def parts(self, delta: float) -> list[float]:
        """The cost of each charge, in a unit that adds up at least approximately."""
        return [charge.mu**2 for charge in self.charges]

    def for_group(self, size: int) -> "Accountant":
        """The accountant for ``size`` records that change together; requires `adds_up`."""
        assert self.adds_up, "with batches, the cost of a group is more than a multiple of the cost of a record"
        return replace(self, charges=tuple(replace(charge, ratio=size * charge.ratio) for charge in self.charges))


class GaussianAccountant(Accountant):
    """Full-batch Gaussians, exactly."""

    @property
    def description(self) -> str:
        return "exact Gaussian composition (mu-GDP)"

    def epsilon(self, delta: float) -> float:
        return gaussian_epsilon(self.mu, delta)

    def delta(self, epsilon: float) -> float:
        return gaussian_delta(self.mu, epsilon)

    def dp_events(self, reader: str) -> list[Any]:
        return [_sampled_event(charge, self.adjacency, reader) for charge in self.charges if charge.ratio > 0]


class ConcentratedAccountant(Accountant):
    """Exact noise, by zero-concentrated DP; full-batch Gaussians in the same run satisfy the same zCDP."""

    @property
    def description(self) -> str:
        return "zero-concentrated DP of discrete Gaussian noise, converted at the best Rényi order"

    @property
    def mu(self) -> float:
        """sqrt(2 rho) of all charges."""
        if not all(charge.is_full_batch for charge in self.charges):
            raise InvalidArgument("charges: exact noise does not compose with sampled releases or black boxes here")
        return composed_mu(self.charges)

    def epsilon(self, delta: float) -> float:
        return concentrated_epsilon(self.mu, delta)

    def delta(self, epsilon: float) -> float:
        return concentrated_delta(self.mu, epsilon)

    def dp_events(self, reader: str) -> list[Any]:
        from dp_accounting.dp_event import ZCDpEvent

        if reader != "rdp":
            raise InvalidArgument(
                f'accountant={reader!r}: must be "rdp" for exact noise, which is accounted for by zero-concentrated DP'
            )
        return [ZCDpEvent(rho=float(self.mu**2 / 2))]


class LossAccountant(Accountant):
    """Batches, and declared costs of black boxes, by pessimistic privacy loss distributions."""

    adds_up: ClassVar[bool] = False

    @property
    def description(self) -> str:
        declared = any(charge.declared is not None for charge in self.charges)
        return "privacy loss distribution (dp_accounting, pessimistic)" + (
            ", with costs declared by black boxes" if declared else ""
        )

    def epsilon(self, delta: float) -> float:
        if math.isinf(self.mu):
            return gaussian_epsilon(self.mu, delta)
        sampled = float(_loss_distribution(_merged(self.charges), self.adjacency).get_epsilon_for_delta(delta))
        without = gaussian_epsilon(_mu_without_sampling(self.charges), delta)
        return min(sampled, without, _as_declared(self.charges, delta))

    def delta(self, epsilon: float) -> float:
        if math.isinf(self.mu):
            return gaussian_delta(self.mu, epsilon)
        sampled = float(_loss_distribution(_merged(self.charges), self.adjacency).get_delta_for_epsilon(epsilon))
        return min(sampled, gaussian_delta(_mu_without_sampling(self.charges), epsilon))

    def parts(self, delta: float) -> list[float]:
        """The epsilons of the separate charges, which do not add up exactly."""
        return [accountant((charge,), self.adjacency).epsilon(delta) for charge in self.charges]

    def dp_events(self, reader: str) -> list[Any]:
        return [
            _sampled_event(charge, self.adjacency, reader)
            for charge in self.charges
            if charge.ratio > 0 or charge.declared is not None
        ]


def accountant(charges: Sequence[Charge], adjacency: str) -> Accountant:
    """The accountant for charges on one role."""
    kind: type[Accountant] = LossAccountant
    if any(charge.exact for charge in charges):
        kind = ConcentratedAccountant
    elif all(charge.is_gaussian for charge in charges):
        kind = GaussianAccountant
    return kind(tuple(charges), adjacency)


def composed_epsilon(charges: Sequence[Charge], delta: float, adjacency: str) -> float:
    """The epsilon at delta of all charges on the records of one role."""
    return accountant(charges, adjacency).epsilon(delta)


def composed_delta(charges: Sequence[Charge], epsilon: float, adjacency: str) -> float:
    """The delta at epsilon of all charges on the records of one role."""
    return accountant(charges, adjacency).delta(epsilon)


def _as_declared(charges: Sequence[Charge], delta: float) -> float:
    """The declared epsilon if there is only one call of a black box, which the grid would round up; else infinity."""
    (declared, uses), *others = [(charge.declared, charge.uses) for charge in charges]
    alone = declared is not None and uses == 1 and not others and delta >= declared.delta
    return declared.epsilon if declared is not None and alone else math.inf


def _mu_without_sampling(charges: Sequence[Charge]) -> float:
    """The mu of full batches, which is an upper bound: sampling never costs more, but a coarse grid may suggest it.

    Given the batch, which is the same for two neighbours, a use is a Gaussian of this ratio or independent of the
    record. By joint convexity, a mixture over batches is at most as distinguishable. The bound is infinite for schemes
    that can draw a record several times, and for black boxes, whose mu is unknown.
    """
    bounded = all(charge.sampling.draws_once and charge.declared is None for charge in charges)
    return composed_mu(charges) if bounded else math.inf


def _merged(charges: Sequence[Charge]) -> tuple[Charge, ...]:
    """Charges as a cache key: without names, and without clip norms, which the ratio includes."""
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
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    if charge.declared is not None:
        stated = DifferentialPrivacyParameters(charge.declared.epsilon, charge.declared.delta)
        return pld.from_privacy_parameters(stated, value_discretization_interval=_DISCRETISATION)
    return charge.sampling.loss_distribution(charge.ratio, charge.records, adjacency, _DISCRETISATION)


def _sampled_event(charge: Charge, adjacency: str, reader: str) -> Any:
    """All uses of a release as an event; raises if dp_accounting would not count it correctly."""
    from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, SelfComposedDpEvent

    if charge.declared is not None:
        raise InvalidArgument(
            f"release {charge.release!r}: is declared as {charge.declared!r}, for which dp_accounting has no event; "
            "compose epsilon(delta) and delta instead"
        )
    readers = charge.sampling.accountants(adjacency)
    if reader not in readers:
        remedy = f"must be {' or '.join(map(repr, readers))}" if readers else "compose epsilon(delta) and delta instead"
        raise InvalidArgument(
            f"accountant={reader!r}: dp_accounting's does not support the {charge.sampling!r} of release "
            f"{charge.release!r} under {adjacency}; {remedy}"
        )
    if math.isinf(charge.ratio):
        return NonPrivateDpEvent()
    # A record's contribution is half of the sensitivity under replace-one. The RDP accountant expects the sensitivity.
    halves = 2.0 if adjacency == "replace-one" and reader == "pld" else 1.0
    event = charge.sampling.dp_event(GaussianDpEvent(float(halves / charge.ratio)), charge.records)
    return SelfComposedDpEvent(event, int(charge.uses))
