"""The accounting of exact noise, against brute-force sums over integers, which it may never fall below."""

import itertools
import math

import numpy as np
import pytest

from dpbilevel.privacy.accountant import composed_delta, composed_epsilon
from dpbilevel.privacy.accounting import Charge, gaussian_delta, gaussian_epsilon
from dpbilevel.privacy.concentrated import concentrated_delta, concentrated_epsilon, concentrated_mu
from dpbilevel.privacy.sampling import FullBatch

EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
GRID = [(epsilon, delta) for epsilon in (1e-2, 0.1, 1.0, 3.0, 10.0, 100.0) for delta in (1e-3, 1e-6, 1e-12)]


def masses(scale):
    """The discrete Gaussian on integers, 30 scales to each side and more."""
    reach = math.ceil(30 * scale) + 5
    weights = np.exp(-((np.arange(-reach, reach + 1) / scale) ** 2) / 2)
    return weights / weights.sum()


def true_delta(scale, shift, epsilon):
    """delta(epsilon) between discrete Gaussians that lie ``shift``, a vector of integers, apart; by adding it up."""
    one, other = np.ones(1), np.ones(1)
    for step in shift:
        mass = np.pad(masses(scale), abs(step))
        one = np.outer(one, mass).ravel()
        other = np.outer(other, np.roll(mass, step)).ravel()
    return np.maximum(one - math.exp(epsilon) * other, 0).sum()


SHIFTS = [(1,), (2,), (5,), (1, 1), (1, 2), (2, -1)]
SCALES = (0.4, 0.7, 1.0, 2.5, 6.0)


def falls_short(claimed):
    """Where a claimed delta(mu, epsilon) is below the truth."""
    return [
        (scale, shift, epsilon)
        for scale, shift, epsilon in itertools.product(SCALES, SHIFTS, EPSILONS)
        if claimed(math.hypot(*shift) / scale, epsilon) < true_delta(scale, shift, epsilon) - 1e-12
    ]


def test_delta_is_never_below_the_truth():
    assert falls_short(concentrated_delta) == []


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda mu, epsilon: concentrated_delta(mu / math.sqrt(2), epsilon), id="half of rho"),
        pytest.param(lambda mu, epsilon: concentrated_delta(0.8 * mu, epsilon), id="eight tenths of the sensitivity"),
        # This is why epsilon is not computed as that of a Gaussian: of integer noise mu-GDP is not true.
        pytest.param(gaussian_delta, id="mu-GDP"),
    ],
)
def test_the_test_against_the_truth_catches_broken_accountants(broken):
    assert falls_short(broken)


def test_uses_that_are_composed_are_never_below_the_truth():
    """Three uses of shift one: the masses of three integers, against the charge that a ledger sees."""
    scale = 2.0
    charge = Charge("mean", "lower", 1 / scale, 3, FullBatch(), exact=True)
    for epsilon in EPSILONS:
        claimed = composed_delta([charge], epsilon, "replace-one")
        truth = true_delta(scale, (1, 1, 1), epsilon)
        assert truth <= claimed <= max(1000 * truth, 1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_the_three_functions_agree(epsilon, delta):
    mu = concentrated_mu(epsilon, delta)
    assert concentrated_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-9)
    assert concentrated_delta(mu, epsilon) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_it_asks_for_more_than_a_gaussian_and_not_for_much_more(epsilon, delta):
    mu = concentrated_mu(epsilon, delta)
    assert gaussian_epsilon(mu, delta) < epsilon
    assert gaussian_epsilon(1.35 * mu, delta) > epsilon


@pytest.mark.parametrize("mu", [1e-3, 0.1, 0.5, 3.0, 20.0])
def test_it_agrees_with_dp_accounting_where_that_has_the_orders(mu):
    from dp_accounting import GaussianDpEvent
    from dp_accounting.rdp import RdpAccountant

    theirs = RdpAccountant(1 + np.geomspace(1e-3, 1e5, 3000)).compose(GaussianDpEvent(float(1 / mu)))
    ours = concentrated_epsilon(mu, 1e-6)
    assert theirs.get_epsilon(1e-6) == pytest.approx(ours, rel=1e-4)
    assert ours <= theirs.get_epsilon(1e-6) * (1 + 1e-9)


def test_opendp_says_the_same_of_rho():
    dp = pytest.importorskip("opendp.prelude", reason='exact noise needs the extra "exact"')
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    assert dp.m.make_gaussian(*space, scale=7.5).map(3.0) == pytest.approx((3 / 7.5) ** 2 / 2, rel=1e-12)


def test_the_ends():
    assert concentrated_epsilon(0.0, 1e-6) == concentrated_delta(0.0, 1.0) == 0
    assert concentrated_epsilon(math.inf, 1e-6) == math.inf
    assert concentrated_delta(math.inf, 1.0) == 1
    assert concentrated_epsilon(1e-9, 1e-3) == 0
    assert 0 < concentrated_delta(50.0, 0.0) <= 1


def test_exact_charges_compose_with_each_other_and_with_nothing_that_is_sampled_or_declared():
    from dpbilevel.errors import InvalidArgument
    from dpbilevel.privacy.declared import ApproximateDP
    from dpbilevel.privacy.sampling import Poisson

    exact = Charge("a", "lower", 0.01, 100, FullBatch(), exact=True)
    plain = Charge("b", "lower", 0.01, 100, FullBatch())
    both = composed_epsilon([exact, exact], 1e-6, "replace-one")
    assert both == composed_epsilon([exact, plain], 1e-6, "replace-one")
    assert both == pytest.approx(concentrated_epsilon(math.sqrt(0.02), 1e-6))
    sampled = Charge("c", "lower", 0.01, 100, Poisson(0.1), 100)
    declared = Charge("d", "lower", 0.0, 1, FullBatch(), 100, ApproximateDP(0.1, 1e-9))
    for other in (sampled, declared):
        with pytest.raises(InvalidArgument, match="exact noise does not compose"):
            composed_epsilon([exact, other], 1e-6, "replace-one")
