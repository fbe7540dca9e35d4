"""Calibration: the noise with which releases spend a budget.

A method defines how releases share the budget, which determines their noise up to one common factor. The factor is
chosen such that the most expensive role spends exactly the budget: in closed form for full-batch releases, by bisection
on the composed privacy loss if a release is sampled.
"""

import math
from collections.abc import Mapping, Sequence

from dpbilevel.errors import BudgetExceeded, InvalidArgument
from dpbilevel.privacy.accountant import composed_epsilon
from dpbilevel.privacy.accounting import all_charges, composed_mu, gaussian_epsilon
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.concentrated import concentrated_mu
from dpbilevel.privacy.declared import DeclaredRelease
from dpbilevel.privacy.release import Release, shared_noise

_HEADROOM = 1e-9  # full batch: relative margin, so that rounding never pushes a calibrated run above its budget
_SLACK = 1e-6  # exact noise: relative margin for two numerical inversions between mu and epsilon
_SMALLEST_DELTA = 1e-13  # sampled: dp_accounting truncates tails of mass 1e-15
_DOUBLINGS = 40  # more than enough: without sampling the closed formula would be exact
_TOLERANCE = 0.005  # sampled: spend between (1 - tolerance) and 1 times epsilon; a PLD takes a second to compute


def with_shares(release: Release, shares: Mapping[str, float], budget: Budget) -> Release:
    """The release with the noise at which each role spends its share of mu^2 on all uses of the release."""
    if not budget.is_private:
        return release
    ratios = {role: budget.mu * math.sqrt(shares[role] / release.uses) for role in release.contributions}
    sensitivities = {role: release.sensitivity(role) for role in release.contributions}
    return release.scaled(shared_noise(ratios, sensitivities) / release.noise_std)


def for_exact_noise(budget: Budget) -> Budget:
    """The budget to which Gaussian noise must be calibrated so that exact noise of the same ratios spends ``budget``.

    Calibration determines ratios of sensitivity to noise. For the same ratios, zCDP gives a larger epsilon than mu-GDP,
    so that the Gaussian budget is smaller. Shares of mu^2 are shares of rho.

    >>> round(for_exact_noise(Budget(1.0, 1e-6)).epsilon, 4)
    0.9274
    """
    if not budget.is_private or budget.delta is None:
        raise InvalidArgument('noise="exact": needs a finite epsilon; without privacy there is nothing to discretize')
    mu = concentrated_mu(budget.epsilon, budget.delta) * (1 - _SLACK)
    epsilon = gaussian_epsilon(mu, budget.delta)
    if not epsilon > 0:
        raise InvalidArgument(
            f'noise="exact": epsilon={budget.epsilon!r} is too small for delta={budget.delta!r}; choose a smaller '
            'delta, or noise="float"'
        )
    return Budget(epsilon, budget.delta, budget.adjacency)


def calibrate(
    releases: Sequence[Release], budget: Budget, fixed: Sequence[DeclaredRelease] = ()
) -> tuple[Release, ...]:
    """Scale the noise of all releases by one factor so that the most expensive role spends the budget, and never more.

    The spend equals epsilon up to 1e-6 for full batch, and is within 1% below it if releases are sampled. The declared
    costs of black boxes (``fixed``) count but cannot be scaled: if they alone exceed the budget, the run is refused.
    """
    if budget.is_private and fixed:
        _check_fixed(fixed, budget)
    if not budget.is_private:
        return tuple(release.scaled(0.0) for release in releases)
    if any(release.noise_std == 0 or release.adjacency != budget.adjacency for release in releases):
        raise InvalidArgument("releases: must have noise_std > 0 and the adjacency of the budget, to be calibrated")
    if not releases:
        return ()
    charges = all_charges(releases)
    if not fixed and all(charge.is_gaussian for role_charges in charges.values() for charge in role_charges):
        factor = max(composed_mu(role_charges) for role_charges in charges.values()) / budget.mu
        return tuple(release.scaled(factor * (1 + _HEADROOM)) for release in releases)
    factor = _bisect(releases, budget, fixed)
    return tuple(release.scaled(factor) for release in releases)


def _check_fixed(fixed: Sequence[DeclaredRelease], budget: Budget) -> None:
    for release in fixed:
        if release.adjacency != budget.adjacency:
            raise InvalidArgument(
                f"adjacency={release.adjacency!r}: must be {budget.adjacency!r}, the relation of the budget; declare "
                "the cost of the black box under that relation"
            )
    spent = _most_expensive(fixed, budget)
    # Other releases need a part of the budget: if there are any, black boxes must not spend all of it.
    if spent > budget.epsilon:
        calls = " + ".join(f"{release.uses} calls of {release.name!r}" for release in fixed)
        raise BudgetExceeded(
            f"epsilon={budget.epsilon!r}: {calls} with their declared events cost {spent:.4g} at delta "
            f"{budget.delta:g}; use black boxes that spend less per call, or make fewer calls"
        )


def _most_expensive(releases: Sequence[Release | DeclaredRelease], budget: Budget) -> float:
    charges = all_charges(releases).values()
    return max(composed_epsilon(c, budget.delta or 0.0, budget.adjacency) for c in charges)


def _bisect(releases: Sequence[Release], budget: Budget, fixed: Sequence[DeclaredRelease]) -> float:
    def spend(factor: float) -> float:
        return _most_expensive([*(release.scaled(factor) for release in releases), *fixed], budget)

    if (budget.delta or 0.0) < _SMALLEST_DELTA:
        raise InvalidArgument(
            f"delta={budget.delta!r}: must be at least {_SMALLEST_DELTA:g} for sampled releases; a privacy loss "
            "distribution truncates tails of that order (full-batch releases have no such limit)"
        )

    # The Gaussian formula without amplification is an upper bound on the noise.
    upper = max(composed_mu(c) for c in all_charges(releases).values()) / budget.mu
    for _ in range(_DOUBLINGS):
        if spend(upper) <= budget.epsilon:
            break
        upper *= 2
    else:
        raise BudgetExceeded(
            f"epsilon={budget.epsilon!r}: the black boxes spend all of it, and nothing is left for the other releases; "
            "use black boxes that spend less per call, or make fewer calls"
        )
    lower = upper / 2
    while spend(lower) <= budget.epsilon:
        lower, upper = lower / 2, lower
    while spend(upper) < (1 - _TOLERANCE) * budget.epsilon:
        middle = math.sqrt(lower * upper)
        lower, upper = (middle, upper) if spend(middle) > budget.epsilon else (lower, middle)
    return upper
