"""Profiles of fixed-size batches against exact mixtures on small cases, and the paper's lemma that fails there."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, norm

import dpbilevel as dpb
from dpbilevel.privacy.accountant import composed_delta, composed_epsilon
from dpbilevel.privacy.accounting import Charge
from dpbilevel.privacy.profiles import gaussian_profile, loss_distribution, with_replacement, without_replacement

EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0)


def mixture(batches, data, deviation):
    """The density of the noisy mean of a batch, each of ``batches`` equally likely."""
    means = [np.mean([data[index] for index in batch]) for batch in batches]
    values, times = np.unique(means, return_counts=True)
    return lambda t: times / len(batches) @ norm.pdf(t, values[:, None], deviation)


GRID = np.linspace(-12, 12, 40_001)


def hockey_stick(one, other, epsilon):
    """Integral of max(0, one - exp(epsilon) other), by brute force."""
    return np.trapezoid(np.maximum(one - math.exp(epsilon) * other, 0), GRID)


def true_deltas(batches, others, deviation):
    """The worse of both directions between the record at +1 and at -1 (clip 1), at every epsilon."""
    plus, minus = (mixture(batches, [value, *others], deviation)(GRID) for value in (1.0, -1.0))
    return [max(hockey_stick(plus, minus, epsilon), hockey_stick(minus, plus, epsilon)) for epsilon in EPSILONS]


SCHEMES = {
    "without replacement": (without_replacement, lambda n, b: list(itertools.combinations(range(n), b))),
    "with replacement": (with_replacement, lambda n, b: list(itertools.product(range(n), repeat=b))),
}


def violations(profile, batches_of, cases):
    """How often a claimed profile lies below the truth."""
    found = 0
    for n, b, others, deviation in cases:
        for epsilon, true in zip(EPSILONS, true_deltas(batches_of(n, b), others, deviation), strict=True):
            claimed = profile(2 / (b * deviation), b, n, epsilon)
            found += true > claimed + 2e-6  # the error of the integral
    return found


CASES = [
    (n, b, others, deviation)
    for n, b in ((2, 1), (3, 2), (4, 2), (3, 3))
    for others in ([0.0] * (n - 1), [1.0] * (n - 1), [(-1.0) ** i for i in range(n - 1)])
    for deviation in (0.3, 1.0)
]


@pytest.mark.parametrize("name", SCHEMES)
def test_claimed_delta_is_never_below_the_true_one(name):
    profile, batches_of = SCHEMES[name]
    assert violations(profile, batches_of, CASES) == 0


def the_papers_lemma(ratio, size, records, epsilon):
    """Amplification with replacement as the paper states it: delta stays delta_0, no group sizes k > 1."""
    rate = 1 - (1 - 1 / records) ** size
    return gaussian_profile(ratio, np.log1p(np.expm1(epsilon) / rate))


def test_the_papers_uncorrected_lemma_fails_the_same_check():
    assert violations(the_papers_lemma, SCHEMES["with replacement"][1], CASES) > 0


def test_the_papers_lemma_at_a_thousand_records():
    """n = b = 1000, noise twice the sensitivity of a mean of b: at unamplified epsilon 2 it claims a thousandth."""
    n, ratio = 1000, 0.5
    rate = 1 - (1 - 1 / n) ** n
    epsilon = math.log1p(rate * math.expm1(2.0))
    claimed = float(the_papers_lemma(ratio, n, n, epsilon))
    assert claimed == pytest.approx(9.4e-6, rel=0.02)
    # The truth where all other records stand at the record's first value: how often it is drawn is all that shows.
    draws, grid = np.arange(15), np.linspace(-10, 20, 300_001)
    changed = binom(n, 1 / n).pmf(draws) @ norm.pdf(grid[None], draws[:, None] * ratio, 1.0)
    true = np.trapezoid(np.maximum(changed - math.exp(epsilon) * norm.pdf(grid), 0), grid)
    assert true == pytest.approx(9.5e-3, rel=0.01)
    assert claimed < true / 1000
    assert true <= with_replacement(ratio, n, n, epsilon)


def test_a_batch_of_everybody_is_the_gaussian():
    np.testing.assert_allclose(without_replacement(0.7, 50, 50, EPSILONS), gaussian_profile(0.7, EPSILONS))


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_loss_distribution_is_pessimistic_and_close(name, adjacency):
    profile = SCHEMES[name][0]
    distribution = loss_distribution(profile, (0.8, 5, 50), adjacency, 1e-4)
    for epsilon in EPSILONS:
        exact = float(profile(0.8, 5, 50, epsilon, leaving=adjacency == "zero-out"))
        claimed = distribution.get_delta_for_epsilon(epsilon)
        assert exact * (1 - 1e-9) <= claimed <= exact * 1.01 + 1e-12


@pytest.mark.slow
def test_what_each_sampling_costs_for_the_same_noise():
    """500 steps at 2% of the records, noise equal to the clip: Poisson is by far the cheapest under replace-one."""
    size, records, steps = 20, 1000, 500
    schemes = [dpb.Poisson(0.02), dpb.WithoutReplacement(size), dpb.WithReplacement(size)]
    epsilons = [
        composed_epsilon([Charge("gradient", "lower", 2.0, steps, scheme, records)], 1e-6, "replace-one")
        for scheme in schemes
    ]
    assert epsilons == pytest.approx([4.74, 22.1, 40.2], rel=0.01)


def test_two_steps_against_the_exact_two_dimensional_mixture():
    """Composition: the claimed delta of two steps is not below the truth, by integration over both answers."""
    n, b, deviation = 3, 2, 1.0
    for scheme, (_, batches_of) in zip(
        (dpb.WithoutReplacement(b), dpb.WithReplacement(b)), SCHEMES.values(), strict=True
    ):
        grid = np.linspace(-7, 7, 1401)
        plus, minus = (mixture(batches_of(n, b), [v, 0.0, 0.0], deviation)(grid) for v in (1.0, -1.0))
        for epsilon in (0.5, 1.5):
            excess = np.maximum(np.outer(plus, plus) - math.exp(epsilon) * np.outer(minus, minus), 0)
            true = np.trapezoid(np.trapezoid(excess, grid), grid)
            charge = Charge("mean", "lower", 2 / (b * deviation), 2, scheme, n)
            assert composed_delta([charge], epsilon, "replace-one") >= true - 1e-6
