"""Privacy profiles of fixed-size batches, and their privacy loss distributions.

dp_accounting composes Poisson samples exactly and does not support sampling with replacement. For both fixed-size
schemes a profile delta(epsilon) of one use is known (Balle, Barthe and Gaboardi 2018), in terms of the Gaussian profile
for k draws of the record that changes:

    without replacement:  delta'(epsilon') = q delta(epsilon),                               q = b/n
    with replacement:     delta'(epsilon') = sum over k >= 1, P[k draws] delta_k(epsilon),   q = 1 - (1 - 1/n)^b

with epsilon' = ln(1 + q (exp(epsilon) - 1)) and delta_k the profile of a shift that is k times as large. The paper's
own amplification lemma ignores group sizes k > 1; its delta is too small by a factor of a hundred and more.

**Zero-out is not symmetric.** A batch of fixed size that does not contain the record contains another one in its place.
In the direction in which the record is added, the profile above holds, with the shift C of one record. In the direction
in which it is removed, other records can point the other way, and the answer changes by up to 2C. The cost of k draws
is then at most, and for k = 1 exactly, the hockey-stick divergence of a pair of mixtures,

    (1 - q) N(-k mu, 1) + q N(k mu, 1)   against   (1 - q) N(-k mu, 1) + q N(0, 1),   mu = C/sigma.

The proof is in docs/methods/accounting.md, a comparison with brute force in docs/results/sampling_truth.md.

A profile is converted into a privacy loss distribution by the pessimistic connect-the-dots construction (Doroshenko et
al. 2022). The two directions are composed separately.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr
from scipy.stats import binom

Profile = npt.NDArray[np.float64]

_TAIL = 1e-18  # mass beyond the grid of losses, and beyond the largest k: counted as infinite loss
_LARGEST_LOSS = 100.0


def gaussian_profile(mu: float, epsilon: npt.ArrayLike) -> Profile:
    """delta(epsilon) of mu-GDP, for any real epsilon."""
    e = np.asarray(epsilon, dtype=float)
    first, second = log_ndtr(-e / mu + mu / 2), e + log_ndtr(-e / mu - mu / 2)
    return np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))


def leaving_profile(mu: float, rate: float, epsilon: npt.ArrayLike) -> Profile:
    """delta(epsilon), epsilon >= 0, of (1 - q) N(-mu, 1) + q N(mu, 1) against (1 - q) N(-mu, 1) + q N(0, 1).

    The ratio of the densities is increasing, so that the optimal test is a threshold t. There q exp(mu t - mu^2/2)
    = (1 - q) (exp(epsilon) - 1) exp(-mu t - mu^2/2) + q exp(epsilon), a quadratic equation for exp(mu t).

    >>> bool(np.isclose(leaving_profile(0.7, 1.0, 1.0), gaussian_profile(0.7, 1.0)))
    True
    """
    e = np.asarray(epsilon, dtype=float)
    others, rising = (1 - rate) / rate, -np.expm1(-e)  # (exp(epsilon) - 1)/exp(epsilon), which does not overflow
    root = np.sqrt(1 + 4 * others * rising * np.exp(-e - mu**2))
    threshold = (mu**2 / 2 + e + np.log((1 + root) / 2)) / mu
    with np.errstate(divide="ignore"):  # the logarithm of zero is minus infinity
        displaced = e + np.log(others * rising) + log_ndtr(-threshold - mu)
    first, second = log_ndtr(mu - threshold), np.logaddexp(displaced, e + log_ndtr(-threshold))
    return rate * np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))


def without_replacement(
    ratio: float, size: int, records: int, epsilon: npt.ArrayLike, *, leaving: bool = False
) -> Profile:
    """delta(epsilon), epsilon >= 0, of one step on ``size`` of ``records`` records.

    Args:
        ratio: sensitivity over noise, for a batch that contains the record.
        size: the size of a batch.
        records: the number of records.
        epsilon: one or several values.
        leaving: whether the record is removed (zero-out); otherwise it is added, or replaced (replace-one).

    >>> bool(without_replacement(2.0, 10, 10, 1.0) == gaussian_profile(2.0, 1.0))
    True
    """
    rate = size / records
    if leaving:
        return leaving_profile(ratio, rate, epsilon)
    return rate * gaussian_profile(ratio, _before_sampling(epsilon, rate))


def with_replacement(
    ratio: float, size: int, records: int, epsilon: npt.ArrayLike, *, leaving: bool = False
) -> Profile:
    """delta(epsilon), epsilon >= 0, of one step on ``size`` draws from ``records`` records.

    ``ratio`` is for a record that is drawn once; a record drawn k times changes the answer k times as much. The other
    arguments are those of `without_replacement`.
    """
    draws = binom(size, 1 / records)
    rate = float(draws.sf(0))
    inner = _before_sampling(epsilon, rate)
    largest = int(draws.isf(_TAIL)) + 1

    def drawn(k: int) -> Profile:  # delta, given that a batch contains the record k times
        return leaving_profile(k * ratio, rate, epsilon) / rate if leaving else gaussian_profile(k * ratio, inner)

    total = sum(draws.pmf(k) * drawn(k) for k in range(1, min(largest, size) + 1))
    return np.minimum(total + draws.sf(largest), 1.0)


@functools.lru_cache(maxsize=256)
def loss_distribution(
    profile: Callable[..., Profile], parameters: tuple[float, ...], adjacency: str, discretisation: float
) -> Any:
    """The privacy loss distribution (dp_accounting's) of one use.

    Args:
        profile: (*parameters, epsilons, leaving=...) -> delta at each epsilon >= 0, like `without_replacement`. It
            must be decreasing in epsilon, and valid in both directions.
        parameters: public numbers.
        adjacency: the neighbouring relation.
        discretisation: grid step of the privacy loss.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    both = {"replace-one": (False,), "zero-out": (True, False)}[adjacency]  # whether the record is removed
    largest = 1.0
    while largest < _LARGEST_LOSS and profile(*parameters, largest, leaving=both[0]) > _TAIL:
        largest *= 1.25  # removing a record costs at least as much as adding it
    positive = np.arange(int(np.ceil(largest / discretisation)) + 1)
    epsilons = positive * discretisation
    deltas = [profile(*parameters, epsilons, leaving=leaving) for leaving in both]
    grid = np.concatenate([-positive[:0:-1], positive])
    masses = []
    for ahead, back in zip(deltas, deltas[::-1], strict=True):
        # The profile at negative epsilon follows from that of the other direction.
        mirrored = -np.expm1(-epsilons) + np.exp(-epsilons) * back
        values = np.concatenate([mirrored[:0:-1], ahead])
        masses.append(pld_pmf.create_pmf_pessimistic_connect_dots(discretisation, grid, values))
    return PrivacyLossDistribution(*masses)


def _before_sampling(epsilon: npt.ArrayLike, rate: float) -> Profile:
    """The epsilon of the unsampled mechanism whose amplified value is ``epsilon``: ln(1 + (exp(epsilon) - 1)/rate)."""
    return np.log1p(np.expm1(np.asarray(epsilon, dtype=float)) / rate)
