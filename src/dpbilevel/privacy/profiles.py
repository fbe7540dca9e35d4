"""Privacy profiles of fixed-size batches, and their privacy loss distributions.

dp_accounting composes Poisson samples exactly and has nothing for draws with replacement. Both fixed-size schemes have
a known profile delta(epsilon) instead (Balle, Barthe and Gaboardi 2018), in terms of the Gaussian's at group size k:

    without replacement:  delta'(epsilon') = q delta(epsilon),                        q = b/n
    with replacement:     delta'(epsilon') = sum over k >= 1, P[k draws] delta_k(epsilon),   q = 1 - (1 - 1/n)^b

with epsilon' = ln(1 + q (exp(epsilon) - 1)) and delta_k the profile of a shift that is k times as long. The paper's own
amplification lemma leaves the group sizes k > 1 out; it then promises too little delta, a hundredfold and more.

A profile becomes a distribution of the privacy loss by the pessimistic connect-the-dots construction (Doroshenko et al.
2022), and that composes.
"""

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr
from scipy.stats import binom

Profile = npt.NDArray[np.float64]

_TAIL = 1e-18  # of one use's delta beyond the grid, and of draws beyond the largest k: counted as certain loss
_LARGEST_LOSS = 100.0


def gaussian_profile(mu: float, epsilon: npt.ArrayLike) -> Profile:
    """delta(epsilon) of mu-GDP, for any real epsilon."""
    e = np.asarray(epsilon, dtype=float)
    first, second = log_ndtr(-e / mu + mu / 2), e + log_ndtr(-e / mu - mu / 2)
    return np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))


def without_replacement(ratio: float, size: int, records: int, epsilon: npt.ArrayLike) -> Profile:
    """delta(epsilon), epsilon >= 0, of one step on ``size`` of ``records`` records.

    >>> bool(without_replacement(2.0, 10, 10, 1.0) == gaussian_profile(2.0, 1.0))
    True
    """
    rate = size / records
    return rate * gaussian_profile(ratio, _before_sampling(epsilon, rate))


def with_replacement(ratio: float, size: int, records: int, epsilon: npt.ArrayLike) -> Profile:
    """delta(epsilon), epsilon >= 0, of one step on ``size`` draws from ``records`` records.

    ``ratio`` belongs to a record that is drawn once; drawn k times it moves the answer k times as far.
    """
    draws = binom(size, 1 / records)
    inner = _before_sampling(epsilon, float(draws.sf(0)))
    largest = int(draws.isf(_TAIL)) + 1
    total = sum(draws.pmf(k) * gaussian_profile(k * ratio, inner) for k in range(1, min(largest, size) + 1))
    return np.minimum(total + draws.sf(largest), 1.0)


@functools.lru_cache(maxsize=256)
def loss_distribution(kind: str, ratio: float, size: int, records: int, discretisation: float) -> Any:
    """The privacy loss distribution of one use; ``kind`` is "without replacement" or "with replacement"."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    profile = {"without replacement": without_replacement, "with replacement": with_replacement}[kind]
    largest = 1.0
    while largest < _LARGEST_LOSS and profile(ratio, size, records, largest) > _TAIL:
        largest *= 1.25
    steps = int(np.ceil(largest / discretisation))
    positive = np.arange(steps + 1)
    epsilons = positive * discretisation
    deltas = profile(ratio, size, records, epsilons)
    # The pair of outputs is symmetric in replacing a record, which gives the profile at negative epsilon.
    mirrored = -np.expm1(-epsilons) + np.exp(-epsilons) * deltas
    grid = np.concatenate([-positive[:0:-1], positive])
    values = np.concatenate([mirrored[:0:-1], deltas])
    return PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots(discretisation, grid, values))


def _before_sampling(epsilon: npt.ArrayLike, rate: float) -> Profile:
    """The epsilon of the unsampled mechanism whose amplified value is ``epsilon``: ln(1 + (exp(epsilon) - 1)/rate)."""
    return np.log1p(np.expm1(np.asarray(epsilon, dtype=float)) / rate)
