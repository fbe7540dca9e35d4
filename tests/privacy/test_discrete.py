"""Exact noise: its distribution, against the mass function and against mutations, and its limits."""

import sys

import numpy as np
import pytest
from scipy.stats import chisquare, norm

pytest.importorskip("opendp", reason='exact noise needs the extra "exact"')

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy.discrete import LARGEST_SCALE, check_sampler, discrete_gaussian

NUMBER = 10_000
FALSE_ALARM = 1e-6  # of each chi-square test: noise has no seed, so that tests of it do err now and then


def mass(scale, reach):
    """P[Z = z] for |z| <= reach, summed far beyond it."""
    z = np.arange(-reach, reach + 1)
    weights = np.exp(-((z / scale) ** 2) / 2)
    far = np.arange(reach + 1, reach + 1 + int(50 * scale) + 50)
    return weights / (weights.sum() + 2 * np.exp(-((far / scale) ** 2) / 2).sum())


def p_value(draws, scale):
    """Of the chi-square test against the discrete Gaussian; rare values are merged, for its tail to be true."""
    reach = int(20 * scale) + 5
    expected = mass(scale, reach) * len(draws)
    counts = np.bincount(np.clip(draws, -reach, reach) + reach, minlength=2 * reach + 1)
    usual = expected >= 25
    counts, expected = (np.append(x[usual], x[~usual].sum()) for x in (counts, expected))
    if expected[-1] < 25:  # too little in the tails for a cell of their own
        counts, expected = (np.append(x[:-2], x[-2:].sum()) for x in (counts, expected))
    return chisquare(counts, expected * len(draws) / expected.sum()).pvalue


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.3, 40.0])
def test_draws_have_the_mass_function_of_the_discrete_gaussian(scale):
    assert p_value(discrete_gaussian(scale, NUMBER), scale) > FALSE_ALARM


def rounded(scale):
    return np.rint(np.random.default_rng(0).normal(0, scale, NUMBER)).astype(np.int64)


@pytest.mark.parametrize(
    ("draws", "scale"),
    [
        pytest.param(lambda: rounded(0.5), 0.5, id="rounded Gaussian"),
        pytest.param(lambda: rounded(0.9 * 3.3), 3.3, id="nine tenths of the noise"),
        pytest.param(lambda: rounded(20.0), 40.0, id="half of the noise"),
        pytest.param(lambda: discrete_gaussian(3.0, NUMBER), 3.3, id="another scale"),
        pytest.param(lambda: np.abs(discrete_gaussian(3.3, NUMBER)), 3.3, id="no sign"),
        pytest.param(lambda: np.clip(discrete_gaussian(3.3, NUMBER), -7, 7), 3.3, id="no tails"),
    ],
)
def test_the_test_of_the_mass_function_catches_broken_samplers(draws, scale):
    assert p_value(draws(), scale) < FALSE_ALARM


def test_large_scales_look_like_gaussians():
    draws = discrete_gaussian(2.0**48 + 0.5, NUMBER) / 2.0**48
    places = np.floor(norm.cdf(draws) * 50).astype(int)
    assert chisquare(np.bincount(places, minlength=50)).pvalue > FALSE_ALARM
    assert len(np.unique(draws)) == NUMBER


def test_the_lowest_bits_of_large_noise_are_used():
    """A float times a scale would leave them at zero."""
    draws = discrete_gaussian(LARGEST_SCALE, 2000)
    assert np.abs(draws).max() < 2**62
    for bit in range(8):
        ones = int(((draws >> bit) & 1).sum())
        assert abs(ones - 1000) < 5.5 * np.sqrt(500), "false alarm in 4e-8 of runs"


def test_no_two_calls_are_alike_whatever_seeds_there_are():
    np.random.seed(0)
    first = discrete_gaussian(1e6, 20)
    np.random.seed(0)
    assert not np.array_equal(first, discrete_gaussian(1e6, 20))


def test_what_is_drawn_are_64_bit_integers():
    assert discrete_gaussian(5.0, 7).dtype == np.int64
    assert discrete_gaussian(5.0, 7).shape == (7,)
    assert discrete_gaussian(5.0, 0).shape == (0,)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, np.nextafter(LARGEST_SCALE, np.inf)])
def test_scales_that_64_bits_do_not_hold_are_refused(scale):
    with pytest.raises(InvalidArgument, match=r"scale=.*must be above 0 and at most 2\^52"):
        discrete_gaussian(scale, 1)


def test_beyond_the_limit_opendp_would_saturate():
    """What the limit is there for: at the ends of 64 bits the noise would tell of the sum."""
    import opendp.prelude as dp

    check_sampler()
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    draws = dp.m.make_gaussian(*space, scale=2.0**70)([0] * 20)
    assert np.isin(draws, [-(2**63), 2**63 - 1]).any()


def test_a_missing_opendp_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(InvalidArgument, match=r'noise="exact": needs OpenDP.*dpbilevel\[exact\]'):
        check_sampler()
