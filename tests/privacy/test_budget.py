"""What a budget accepts, and the mu it stands for."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpbilevel as dpb
from dpbilevel.privacy.accounting import gaussian_delta, gaussian_epsilon


@pytest.mark.parametrize("epsilon", [0, 0.0, -1.0, -math.inf, math.nan, "1.0", True, None, 1j])
def test_epsilon_must_be_a_positive_number(epsilon):
    with pytest.raises(dpb.InvalidArgument, match="epsilon="):
        dpb.Budget(epsilon, 1e-6)


@pytest.mark.parametrize("delta", [0, 0.0, 1, 1.0, 1.5, -1e-6, math.inf, math.nan, "1e-6", True])
@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_delta_must_lie_between_zero_and_one(delta, epsilon):
    with pytest.raises(dpb.InvalidArgument, match="delta="):
        dpb.Budget(epsilon, delta)


def test_a_finite_epsilon_needs_a_delta():
    with pytest.raises(dpb.InvalidArgument, match="delta=None"):
        dpb.Budget(1.0)


@pytest.mark.parametrize("adjacency", ["add-remove", "Replace-One", "", None, ["replace-one"]])
def test_an_unknown_adjacency_is_refused_with_the_known_ones(adjacency):
    with pytest.raises(dpb.InvalidArgument, match=r"adjacency=.*'replace-one', 'zero-out'"):
        dpb.Budget(1.0, 1e-6, adjacency)


def test_refusals_are_value_errors_too():
    # Callers that know nothing of this library catch ValueError.
    with pytest.raises(ValueError, match="epsilon"):
        dpb.Budget(-1.0, 1e-6)


def test_the_relation_of_the_paper_is_the_default():
    assert dpb.Budget(1.0, 1e-6).adjacency == "replace-one"


def test_an_infinite_budget_needs_no_delta_and_is_not_private():
    budget = dpb.Budget(math.inf)
    assert budget.delta is None
    assert not budget.is_private
    assert budget.mu == math.inf
    assert dpb.Budget(math.inf, 1e-6).mu == math.inf


def test_a_budget_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        dpb.Budget(1.0, 1e-6).epsilon = 2.0


@given(
    epsilon=st.floats(-2, 1.3).map(lambda exponent: 10.0**exponent),
    delta=st.floats(-12, -3).map(lambda exponent: 10.0**exponent),
    adjacency=st.sampled_from(["replace-one", "zero-out"]),
)
def test_mu_spends_exactly_the_budget(epsilon, delta, adjacency):
    # mu already speaks of sensitivity over noise, so that the relation makes no difference here.
    mu = dpb.Budget(epsilon, delta, adjacency).mu
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-8)
    assert gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-7)
