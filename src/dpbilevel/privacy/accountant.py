"""Who composes the charges on the records of one role. The choice is made here, once; everything else asks.

* `GaussianAccountant`: full-batch Gaussians. Exact: mu^2 adds up.
* `ConcentratedAccountant`: exact noise, of which zCDP is known and no mu-GDP. rho = mu^2/2 adds up.
* `LossAccountant`: whatever else, batches and what black boxes declare, by privacy loss distributions.

The heavy lifting is dp_accounting's. What is written here and in `sampling` is the translation of units, where that
library has traps: under ``REPLACE_ONE`` its PLD accountant takes noise over *clip* and doubles by itself, while its RDP
accountant and its Gaussian formulas take noise over *sensitivity*; and an integer or numpy multiplier silently
under-counts, hence ``float``.
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
# claim up to a tenth less; this one errs on the safe side.
_DISCRETISATION = 1e-4


@dataclass(frozen=True)
class Accountant(ABC):
    """What all charges on the records of one role cost together.

    Args:
        charges: of one role, in any order: they compose adaptively.
        adjacency: the neighbouring relation of their ratios.
    """

    charges: tuple[Charge, ...]
    adjacency: str
    adds_up: ClassVar[bool] = True  # whether squares of mu add up: k records that change together then cost k mu

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
        """The charges as ``dp_accounting.DpEvent``, in the units that its "pld" or "rdp" accountant reads."""

    @property
    def mu(self) -> float:
        """The GDP parameter, where squares of mu add up: of exact noise sqrt(2 rho), its zCDP."""
        return composed_mu(self.charges)

    def parts(self, delta: float) -> list[float]:
        """What each charge has of the whole, in a unit that adds up, or nearly so."""
        return [charge.mu**2 for charge in self.charges]

    def for_group(self, size: int) -> "Accountant":
        """The accountant of ``size`` records that change together; exact where `adds_up`, and wrong elsewhere."""
        assert self.adds_up, "a group of records is more than their multiple where batches are drawn"
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
    """Exact noise, by zero-concentrated DP; a full-batch Gaussian beside it has the same zCDP."""

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
                f'accountant={reader!r}: must be "rdp" for exact noise, of which zero-concentrated DP is known'
            )
        return [ZCDpEvent(rho=float(self.mu**2 / 2))]


class LossAccountant(Accountant):
    """Batches, and what black boxes declare, by privacy loss distributions that are never below the truth."""

    adds_up: ClassVar[bool] = False

    @property
    def description(self) -> str:
        declared = any(charge.declared is not None for charge in self.charges)
        return "privacy loss distribution (dp_accounting, pessimistic)" + (
            ", of what black boxes declare" if declared else ""
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
        """The epsilons that charges would have alone, which do not add up exactly."""
        return [accountant((charge,), self.adjacency).epsilon(delta) for charge in self.charges]

    def dp_events(self, reader: str) -> list[Any]:
        return [
            _sampled_event(charge, self.adjacency, reader)
            for charge in self.charges
            if charge.ratio > 0 or charge.declared is not None
        ]


def accountant(charges: Sequence[Charge], adjacency: str) -> Accountant:
    """The accountant that charges on one role ask for."""
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
    """One call of a black box costs what it declares; the grid would round that up."""
    (declared, uses), *others = [(charge.declared, charge.uses) for charge in charges]
    alone = declared is not None and uses == 1 and not others and delta >= declared.delta
    return declared.epsilon if declared is not None and alone else math.inf


def _mu_without_sampling(charges: Sequence[Charge]) -> float:
    """Leaving records out never costs more than taking everybody; a grid too coarse for tiny steps may think so.

    Given the batch, which two neighbours have in common, a use is a Gaussian of this ratio or says nothing of the
    record; a mixture of such pairs over batches is no easier to tell apart (joint convexity), whatever the others are.
    A scheme that can draw a record many times over, and a black box, of which no mu is known, have no such bound.
    """
    bounded = all(charge.sampling.draws_once and charge.declared is None for charge in charges)
    return composed_mu(charges) if bounded else math.inf


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
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    if charge.declared is not None:
        stated = DifferentialPrivacyParameters(charge.declared.epsilon, charge.declared.delta)
        return pld.from_privacy_parameters(stated, value_discretization_interval=_DISCRETISATION)
    return charge.sampling.loss_distribution(charge.ratio, charge.records, adjacency, _DISCRETISATION)


def _sampled_event(charge: Charge, adjacency: str, reader: str) -> Any:
    """All uses of a release as an event, or a reason why dp_accounting would not count it as it is meant."""
    from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, SelfComposedDpEvent

    if charge.declared is not None:
        raise InvalidArgument(
            f"release {charge.release!r}: is declared as {charge.declared!r}, for which dp_accounting has no event; "
            "compose by epsilon(delta) and delta instead"
        )
    readers = charge.sampling.accountants(adjacency)
    if reader not in readers:
        remedy = (
            f"must be {' or '.join(map(repr, readers))}" if readers else "compose by epsilon(delta) and delta instead"
        )
        raise InvalidArgument(
            f"accountant={reader!r}: dp_accounting's does not know the {charge.sampling!r} of release "
            f"{charge.release!r} under {adjacency}; {remedy}"
        )
    if math.isinf(charge.ratio):
        return NonPrivateDpEvent()
    # What one record adds is half of what replacing it changes. The RDP accountant does not double.
    halves = 2.0 if adjacency == "replace-one" and reader == "pld" else 1.0
    event = charge.sampling.dp_event(GaussianDpEvent(float(halves / charge.ratio)), charge.records)
    return SelfComposedDpEvent(event, int(charge.uses))
