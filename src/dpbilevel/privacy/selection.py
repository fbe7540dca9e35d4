"""The privacy cost of the best of K runs, where K is random and secret (Papernot and Steinke 2022).

A mechanism is run K times and only the best output is released. If K is fixed or known, all K runs must be charged. If
K is drawn from one of these distributions and never revealed, the cost hardly grows with the number of runs:

    truncated negative binomial   P[K = k] ~ (1 - gamma)^k prod_{l < k} (l + eta)/(l + 1),  k >= 1,  eta > -1
    (eta = 1: geometric; eta = 0: logarithmic, P[K = k] ~ (1 - gamma)^k / k)
    Poisson                       P[K = k] = exp(-m) m^k / k!,                              k >= 0

If one run is (a, e)-RDP and (b, c)-RDP, then selection with the first is (a, e')-RDP with (their Theorem 2)

    e' = e + (1 + eta) ((1 - 1/b) c + ln(1/gamma)/b) + ln(E[K])/(a - 1)

and similarly with the second (their Theorem 6). dp_accounting implements both as `RepeatAndSelectDpEvent`, for
eta >= 0. Its units are noise over *sensitivity* under every relation (see `privacy.accounting` for the pitfall), and a
run of full-batch Gaussian releases is one Gaussian of ratio mu. The default orders stop at 1,024, which is too small
for small budgets.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.stats import poisson

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import positive
from dpbilevel.privacy.accounting import Charge, gaussian_mu
from dpbilevel.privacy.declared import BestOfRuns

Curve = npt.NDArray[np.float64]

# Selection at order a costs ln(E[K])/(a - 1), which is large near a = 1; small budgets need large orders.
_ORDERS: Curve = 1 + np.geomspace(1e-3, 1e6, 180)
_HALVINGS = 60
_BISECTIONS = 18  # a relative 3e-6 of mu
_SMALLEST_LOG_GAMMA = -600.0
_LEAST_MU = 1e-50  # its square and the inverse of that are representable
_SMALLEST_SHAPE = 1e-9  # except zero itself: smaller values are lost in rounding
_MOST_RUNS, _LARGEST_SHAPE = 1e4, 100.0  # within these bounds all probabilities are representable


@dataclass(frozen=True)
class NumberOfRuns:
    """The distribution of K, the number of runs.

    Args:
        mean: E[K], at least one.
        shape: eta, above -1; zero is the logarithmic distribution, one the geometric, infinity the Poisson, for which K
            can be zero. A larger value concentrates K around its mean and costs more.

    >>> NumberOfRuns(10.0, shape=1.0).gamma
    0.1
    >>> NumberOfRuns(10.0, shape=1.0).probability(1)
    0.1
    """

    mean: float = 10.0
    shape: float = 1.0

    def __post_init__(self) -> None:
        mean = positive("mean_runs", self.mean, "it is the expected number of runs (try 10)")
        if not 1 <= mean <= _MOST_RUNS:
            raise InvalidArgument(
                f"mean_runs={self.mean!r}: must lie between 1 and {_MOST_RUNS:g}; it is the expected number of runs, "
                "each of which trains once (try 10)"
            )
        try:
            shape = float(self.shape)
        except (TypeError, ValueError, OverflowError):
            shape = math.nan
        if isinstance(self.shape, bool) or not (-1 < shape <= _LARGEST_SHAPE or shape == math.inf):
            raise InvalidArgument(
                f"shape={self.shape!r}: must be above -1 and at most {_LARGEST_SHAPE:g}, or infinite; it selects the "
                'distribution of the number of runs: 0 is logarithmic, 1 geometric, float("inf") Poisson (try 1.0)'
            )
        if 0 < abs(shape) < _SMALLEST_SHAPE:
            raise InvalidArgument(
                f"shape={self.shape!r}: is too close to 0, which is the logarithmic distribution; pass 0.0"
            )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "shape", shape)
        if not self.is_poisson and self.gamma <= math.exp(_SMALLEST_LOG_GAMMA):
            raise InvalidArgument(f"shape={self.shape!r}: is too close to -1 for a mean of {mean:g} runs (try 0.0)")

    @property
    def is_poisson(self) -> bool:
        """Whether K has a Poisson distribution, so that it can be zero."""
        return math.isinf(self.shape)

    @functools.cached_property
    def gamma(self) -> float:
        """The success probability of the truncated negative binomial distribution with this mean."""
        if self.is_poisson:
            raise InvalidArgument(f"shape={self.shape!r}: the Poisson distribution has no gamma; use a finite shape")
        if self.mean == 1 or self.shape == 1:
            return 1 / self.mean

        def excess(log_gamma: float) -> float:
            return self._log_mean(log_gamma) - math.log(self.mean)

        if excess(_SMALLEST_LOG_GAMMA) <= 0:
            return math.exp(_SMALLEST_LOG_GAMMA)
        if excess(-1e-12) >= 0:
            return 1.0  # the mean is one up to rounding
        return math.exp(brentq(excess, _SMALLEST_LOG_GAMMA, -1e-12, xtol=1e-14, rtol=1e-14))

    def _log_mean(self, log_gamma: float) -> float:
        failure = -math.expm1(log_gamma)
        if self.shape == 0:
            return math.log(failure / -log_gamma) - log_gamma
        # eta / (1 - gamma^eta), positive for either sign of eta; in logarithms, because gamma^eta may overflow
        exponent = self.shape * log_gamma
        if exponent > 0:
            return math.log(-self.shape * failure) - log_gamma - exponent - math.log(-math.expm1(-exponent))
        return math.log(self.shape * failure) - log_gamma - math.log(-math.expm1(exponent))

    def _first(self) -> float:
        """P[K = 1] of the truncated negative binomial distribution."""
        if self.gamma == 1:
            return 1.0
        log_gamma = math.log(self.gamma)
        if self.shape == 0:
            return (1 - self.gamma) / -log_gamma
        return (1 - self.gamma) * self.shape / math.expm1(-self.shape * log_gamma)

    def probability(self, number: int) -> float:
        """P[K = number]."""
        if self.is_poisson:
            return float(poisson.pmf(number, self.mean))
        if number < 1:
            return 0.0
        value = self._first()
        for k in range(1, number):
            value *= (1 - self.gamma) * (k + self.shape) / (k + 1)
        return value

    def quantile(self, uniform: float) -> int:
        """The smallest k with P[K <= k] >= uniform; a uniform variate gives a draw of K."""
        if self.is_poisson:
            return max(0, int(poisson.ppf(uniform, self.mean)))
        number, left, mass = 1, uniform, self._first()
        while left > mass > 0:  # with rounding, a uniform just below one may stay unmatched until the mass vanishes
            left -= mass
            mass *= (1 - self.gamma) * (number + self.shape) / (number + 1)
            number += 1
        return number


def selection_rdp(orders: Curve, rdp: Curve, runs: NumberOfRuns) -> Curve:
    """Theorem 2: the RDP of the best of K runs of a mechanism with this RDP."""
    extra = (1 + runs.shape) * np.min((1 - 1 / orders) * rdp - math.log(runs.gamma) / orders)
    return np.asarray(rdp + extra + math.log(runs.mean) / (orders - 1))


def selection_epsilon(mu: float, runs: NumberOfRuns, delta: float) -> float:
    """The epsilon at delta of the best of K runs, each of which is mu-GDP.

    >>> one, best = selection_epsilon(0.1, NumberOfRuns(1.0), 1e-6), selection_epsilon(0.1, NumberOfRuns(10.0), 1e-6)
    >>> round(one, 3), round(best, 3)
    (0.431, 0.899)
    """
    _check(runs, delta)
    if not _LEAST_MU <= positive("mu", mu, "it is the cost of one run") <= 1 / _LEAST_MU:
        raise InvalidArgument(f"mu={mu!r}: must be between {_LEAST_MU:g} and {1 / _LEAST_MU:g}")
    return _selection_epsilon(float(mu), runs, float(delta))


def _selection_epsilon(mu: float, runs: NumberOfRuns, delta: float) -> float:
    if runs.shape >= 0:
        return float(_accountant(mu, runs).get_epsilon(delta))
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    curve = selection_rdp(_ORDERS, _ORDERS * mu**2 / 2, runs)
    return float(compute_epsilon(_ORDERS, curve, delta)[0])


def best_of_runs_epsilon(charges: Sequence[Charge], delta: float, group: int) -> float:
    """The epsilon at delta for ``group`` records that change together; infinite if charges are not one selection.

    Each run of full-batch Gaussians is (group mu)-GDP with respect to the group, whatever roles its records have. The
    theorems above apply to any two data sets for which the RDP of one run is known, hence also to these.
    """
    charge, *others = charges
    event = charge.declared
    if others or charge.uses != 1 or not isinstance(event, BestOfRuns):
        return math.inf
    return _selection_epsilon(group * event.mu, NumberOfRuns(event.mean_runs, event.shape), delta)


def _accountant(mu: float, runs: NumberOfRuns) -> Any:
    from dp_accounting import GaussianDpEvent, NeighboringRelation
    from dp_accounting.dp_event import RepeatAndSelectDpEvent
    from dp_accounting.rdp import RdpAccountant

    # mu already includes the relation, through the run's sensitivity; the RDP of a Gaussian needs nothing else.
    accountant = RdpAccountant(list(map(float, _ORDERS)), NeighboringRelation.REPLACE_ONE)
    run = GaussianDpEvent(float(1 / mu))
    return accountant.compose(RepeatAndSelectDpEvent(run, float(runs.mean), float(runs.shape)))


def _check(runs: Any, delta: Any) -> None:
    if not isinstance(runs, NumberOfRuns):
        raise InvalidArgument(f"runs: must be NumberOfRuns(mean, shape), not {type(runs).__name__}")
    if positive("delta", delta, "the cost of repeated runs is stated at a delta (try 1e-6)") >= 1:
        raise InvalidArgument(f"delta={delta!r}: must be below 1 (try 1e-6)")


def run_mu(runs: NumberOfRuns, epsilon: float, delta: float) -> float:
    """The largest mu of each run for which the best of K is (epsilon, delta)-DP.

    >>> round(run_mu(NumberOfRuns(10.0, shape=1.0), 1.0, 1e-6), 3), round(gaussian_mu(1.0, 1e-6), 3)
    (0.111, 0.237)
    """
    _check(runs, delta)
    return _run_mu(runs, positive("epsilon", epsilon, "it is the budget of all runs (try 1.0)"), float(delta))


@functools.lru_cache(maxsize=64)
def _run_mu(runs: NumberOfRuns, epsilon: float, delta: float) -> float:
    lower = gaussian_mu(epsilon, delta)  # selection costs more than one run, so this is an upper bound
    for _ in range(_HALVINGS):
        if _selection_epsilon(lower, runs, delta) <= epsilon:
            break
        lower /= 2
    else:
        raise InvalidArgument(
            f"epsilon={epsilon!r}: is too small for the accountant of repeated runs at any noise; increase it, or "
            "make fewer runs"
        )
    upper = 2 * lower
    for _ in range(_BISECTIONS):
        middle = math.sqrt(lower * upper)
        lower, upper = (middle, upper) if _selection_epsilon(middle, runs, delta) <= epsilon else (lower, middle)
    return lower
