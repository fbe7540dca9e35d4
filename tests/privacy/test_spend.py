"""What a run says about its privacy: epsilon, delta, groups, the trade-off curve, words and JSON."""

import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

import dpbilevel as dpb
from dpbilevel.privacy.accountant import composed_epsilon
from dpbilevel.privacy.accounting import Charge, all_charges, gaussian_epsilon

BUDGET = dpb.Budget(3.0, 1e-6)


def run(
    *, rate: float = 1.0, budget: dpb.Budget = BUDGET, caveats: tuple[str, ...] = (), void: bool = False, **mus: float
):
    """The privacy of a run with one charge of five steps per role, with mu by role (as if nothing were sampled)."""
    sampling = dpb.Poisson(rate) if rate < 1 else dpb.FullBatch()
    charges = {role: (Charge("release", role, mu / math.sqrt(5), 5, sampling),) for role, mu in mus.items()}
    return dpb.Privacy(charges, budget, caveats, void)


# --- roles compose in parallel -----------------------------------------------------------------------------------


def roles_compose_in_parallel(rate: float) -> bool:
    """Disjoint records: the most expensive role is the cost of the run."""
    both = run(upper=0.5, lower=0.8, rate=rate)
    alone = {role: run(**{role: mu}, rate=rate).epsilon() for role, mu in (("upper", 0.5), ("lower", 0.8))}
    return both.epsilon() == pytest.approx(max(alone.values())) and both.delta(1.0) == pytest.approx(
        run(lower=0.8, rate=rate).delta(1.0)
    )


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_the_total_is_the_maximum_over_roles(rate):
    assert roles_compose_in_parallel(rate)


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_mutant_composing_roles_one_after_the_other_is_caught(rate, monkeypatch):
    def everything(self, role):
        return [self._whole]

    monkeypatch.setattr(dpb.Privacy, "_of", everything)
    assert not roles_compose_in_parallel(rate)


def test_each_role_can_be_asked_alone():
    both = run(upper=0.5, lower=0.8)
    assert both.epsilon(role="upper") == pytest.approx(gaussian_epsilon(0.5, 1e-6))
    assert both.epsilon(role="lower") == both.epsilon()
    assert both.mu == pytest.approx(0.8)


def test_sampled_runs_have_no_mu():
    assert run(lower=0.5, rate=0.1).mu is None
    mixed = dpb.Privacy({**run(lower=0.5).charges, **run(upper=0.5, rate=0.1).charges}, BUDGET)
    assert mixed.mu is None
    assert not mixed.is_gaussian


def test_epsilon_and_delta_are_inverse():
    for rate in (0.1, 1.0):
        privacy = run(upper=0.5, lower=0.8, rate=rate)
        assert privacy.delta(privacy.epsilon(1e-5)) == pytest.approx(1e-5, rel=1e-3)


def test_epsilon_is_at_the_delta_of_the_budget_by_default():
    privacy = run(lower=0.5)
    assert privacy.epsilon() == privacy.epsilon(1e-6) > privacy.epsilon(1e-3)


# --- groups ------------------------------------------------------------------------------------------------------


@given(mu=st.floats(0.01, 1), group=st.integers(1, 10), delta=st.floats(-9, -3).map(lambda exponent: 10.0**exponent))
def test_a_group_multiplies_mu(mu, group, delta):
    privacy = run(lower=mu, upper=mu / 2)
    assert privacy.epsilon(delta, group=group) == pytest.approx(gaussian_epsilon(group * mu, delta), rel=1e-9)


def group_bound_holds(mu: float, group: int) -> bool:
    # Sampled at a rate of almost one the run is the full-batch run, but goes through the general bound.
    return run(lower=mu, rate=0.999999).epsilon(group=group) >= gaussian_epsilon(group * mu, 1e-6)


@pytest.mark.parametrize("group", [2, 3, 5])
def test_the_general_group_bound_holds(group):
    assert group_bound_holds(0.3, group)


def test_the_general_group_bound_is_of_use():
    # Not more than twice the exact epsilon: it multiplies the epsilon at a delta that is exp((k-1) e) times smaller.
    assert run(lower=0.3, rate=0.999999).epsilon(group=2) < 2 * gaussian_epsilon(0.6, 1e-6)


def test_mutant_multiplying_epsilon_without_shrinking_delta_is_caught(monkeypatch):
    monkeypatch.setattr(
        dpb.Privacy,
        "_group_general",
        lambda self, delta, group, role: self.epsilon(group * delta, role=role) * group / 2,
    )
    assert not group_bound_holds(0.3, 2)


def test_a_group_bound_is_a_valid_pair():
    # (k e, delta (1 + exp(e) + ... + exp((k-1) e))): recomputed from the profile of one record.
    privacy = run(lower=0.5, rate=0.1)
    for group in (2, 3):
        one = privacy.epsilon(group=group) / group
        assert privacy.delta(one) * sum(math.exp(index * one) for index in range(group)) <= 1e-6 * (1 + 1e-9)


def test_a_group_costs_more_than_its_parts():
    for rate in (0.1, 1.0):
        epsilons = [run(lower=0.5, rate=rate).epsilon(group=group) for group in (1, 2, 3, 4)]
        assert epsilons == sorted(set(epsilons))


def test_a_hopelessly_large_group_costs_infinity_rather_than_a_number_that_does_not_hold():
    assert run(lower=0.5, rate=0.1).epsilon(group=10_000) == math.inf


# --- the trade-off curve -----------------------------------------------------------------------------------------

ALPHA = np.linspace(0, 1, 101)


def is_a_tradeoff_curve(beta: np.ndarray) -> bool:
    """Between 0 and 1 - alpha, decreasing and convex."""
    return bool(
        np.all(beta >= 0)
        and np.all(beta <= 1 - ALPHA + 1e-12)
        and np.all(np.diff(beta) <= 1e-12)
        and np.all(np.diff(beta, 2) >= -1e-12)
    )


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_the_curve_is_a_tradeoff_curve(rate):
    beta = run(upper=0.4, lower=0.8, rate=rate).tradeoff(ALPHA)
    assert is_a_tradeoff_curve(beta)
    assert beta[0] == pytest.approx(1, abs=1e-9)
    assert beta[-1] == 0


def test_the_curve_of_a_gaussian_run_is_the_gaussian_curve():
    # The power of the likelihood ratio test between N(0, 1) and N(0.8, 1).
    threshold = norm.isf(ALPHA[1:-1])
    assert run(lower=0.8).tradeoff(ALPHA[1:-1]) == pytest.approx(norm.cdf(threshold, loc=0.8), rel=1e-12)


def test_the_curve_of_a_sampled_run_respects_its_profile():
    # Every (epsilon, delta) gives two lines below the curve; epsilons between the grid points may miss by a hair.
    privacy = run(lower=1.5, rate=0.2)
    beta = privacy.tradeoff(ALPHA)
    for epsilon in np.linspace(0, 3, 17):
        delta = privacy.delta(float(epsilon))
        assert np.all(beta >= 1 - delta - math.exp(epsilon) * ALPHA - 1e-4)
        assert np.all(beta >= math.exp(-epsilon) * (1 - delta - ALPHA) - 1e-4)


def test_no_test_beats_the_curve_of_a_sampled_step():
    # One replace-one step at rate 0.2, noise/clip 1.5: the best test thresholds the answer, its errors are closed form.
    rate, deviation = 0.2, 1.5
    charges = {"lower": (Charge("release", "lower", 2 / deviation, 1, dpb.Poisson(rate)),)}
    thresholds = np.linspace(-6, 6, 101)
    nobody, here, there = (norm.cdf(thresholds, loc=location, scale=deviation) for location in (0, 1, -1))
    false_positives = 1 - ((1 - rate) * nobody + rate * there)
    false_negatives = (1 - rate) * nobody + rate * here
    claimed = dpb.Privacy(charges, BUDGET).tradeoff(false_positives)
    assert np.all(claimed <= false_negatives + 1e-9)
    assert np.all(claimed >= false_negatives - 1e-3)


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_the_curve_keeps_the_shape_of_what_is_asked(rate):
    privacy = run(lower=0.5, rate=rate)
    assert privacy.tradeoff(0.1).shape == ()
    assert privacy.tradeoff([[0.1, 0.2, 0.3]]).shape == (1, 3)


def test_the_curve_of_a_run_that_is_not_private_promises_nothing():
    assert np.all(run(lower=math.inf, budget=dpb.Budget(math.inf)).tradeoff(ALPHA) == 0)


def test_the_curve_of_a_run_without_noise_promises_nothing():
    assert np.all(run(lower=math.inf).tradeoff(ALPHA) == 0)


# --- words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("adjacency", "words"),
    [("replace-one", "replacing the content of one record"), ("zero-out", "contributes nothing")],
)
@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_the_sentence_states_relation_unit_epsilon_and_delta(adjacency, words, rate):
    privacy = run(lower=0.5, rate=rate, budget=dpb.Budget(3.0, 1e-6, adjacency))
    sentence = privacy.sentence()
    assert adjacency in sentence
    assert words in sentence
    assert privacy.unit in sentence
    assert privacy.accountant in sentence
    assert f"({privacy.epsilon():.3g}"[:4] in sentence
    assert "1e-06)-differentially private" in sentence
    assert "NOT PRIVATE" not in sentence
    assert "caveat" not in sentence
    assert privacy.label() in repr(privacy)


def test_the_sentence_of_a_seeded_run_says_that_it_is_not_private():
    privacy = run(lower=0.5, void=True)
    assert privacy.sentence().startswith("NOT PRIVATE")
    assert "seed" in privacy.sentence()
    assert privacy.to_json()["private"] is False


def test_the_sentence_of_an_infinite_budget_says_that_it_is_not_private():
    privacy = run(lower=math.inf, budget=dpb.Budget(math.inf))
    assert privacy.sentence().startswith("NOT PRIVATE")
    assert privacy.to_json()["private"] is False
    assert privacy.epsilon() == math.inf
    assert privacy.delta(1.0) == 1


CAVEATS = ("the losses close over arrays", "classes were discovered in the data")


def test_the_sentence_of_a_run_with_caveats_says_so():
    privacy = run(lower=0.5, caveats=CAVEATS)
    assert "caveat" in privacy.sentence().lower()
    assert privacy.to_json()["caveats"] == list(CAVEATS)


@pytest.mark.parametrize("void", [False, True])
def test_the_sentence_names_every_caveat(void):
    sentence = run(lower=0.5, caveats=CAVEATS, void=void).sentence()
    assert all(caveat in sentence for caveat in CAVEATS)


def test_the_sentence_never_claims_less_than_is_spent():
    for mu in np.linspace(0.1, 1.0, 20):
        privacy = run(lower=float(mu))
        stated = float(re.match(r"\(([^,]+),", privacy.sentence())[1])
        assert stated >= privacy.epsilon()


# --- JSON --------------------------------------------------------------------------------------------------------


def through_json(privacy: dpb.Privacy) -> dpb.Privacy:
    return dpb.Privacy.from_json(json.loads(json.dumps(privacy.to_json(), allow_nan=True)))


@pytest.mark.parametrize(
    "privacy",
    [
        run(upper=0.5, lower=0.8),
        run(upper=0.5, lower=0.8, budget=dpb.Budget(3.0, 1e-6, "zero-out")),
        run(lower=0.5, rate=0.1),
        run(both=0.3, caveats=CAVEATS, void=True),
        run(lower=math.inf, budget=dpb.Budget(math.inf)),
        dpb.Privacy({}, BUDGET),
    ],
    ids=["two roles", "zero-out", "sampled", "marked", "infinite", "free"],
)
def test_a_stranger_re_derives_the_same_epsilon(privacy):
    read = through_json(privacy)
    assert read.charges == privacy.charges
    assert read.epsilon() == privacy.epsilon()
    assert read.epsilon(1e-8) == privacy.epsilon(1e-8)
    assert read.sentence() == privacy.sentence()
    assert read.to_json() == privacy.to_json()


def test_numbers_that_can_be_derived_are_not_trusted():
    data = run(lower=0.5).to_json()
    data["epsilon"], data["mu"], data["roles"]["lower"]["epsilon"] = 0.001, 0.001, 0.001
    assert dpb.Privacy.from_json(data).epsilon() == run(lower=0.5).epsilon()


def test_json_of_declared_releases_is_read_back():
    release = dpb.Release(
        name="gradient",
        contributions={role: dpb.Contribution(lambda point, record: record, 1.0, 100) for role in ("upper", "lower")},
        noise_std=0.1,
        uses=3,
    )
    privacy = dpb.Privacy(all_charges([release]), BUDGET)
    assert (
        through_json(privacy).epsilon()
        == privacy.epsilon()
        == composed_epsilon(release.charges()[:1], 1e-6, "replace-one")
    )


@pytest.mark.parametrize("number", [np.int64(3), np.int32(3)])
def test_json_of_numpy_numbers(number):
    release = dpb.Release(
        name="gradient",
        contributions={"lower": dpb.Contribution(lambda point, record: record, 1.0, 100)},
        noise_std=0.1,
        uses=number,
    )
    json.dumps(dpb.Privacy(all_charges([release]), BUDGET).to_json())


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5, -1e-6, math.nan])
def test_delta_must_lie_between_zero_and_one(delta):
    with pytest.raises(dpb.InvalidArgument, match="delta="):
        run(lower=0.5).epsilon(delta)


def test_delta_must_be_a_number():
    with pytest.raises(dpb.InvalidArgument, match="delta="):
        run(lower=0.5).epsilon("1e-6")


@pytest.mark.parametrize("group", [0, -1, 1.5, True, "2"])
def test_a_group_must_be_a_whole_number(group):
    with pytest.raises(dpb.InvalidArgument, match="group="):
        run(lower=0.5).epsilon(group=group)


@pytest.mark.parametrize("epsilon", [-1.0, math.nan, math.inf, "1"])
def test_delta_is_asked_at_a_finite_epsilon(epsilon):
    with pytest.raises(dpb.InvalidArgument, match="epsilon="):
        run(lower=0.5).delta(epsilon)


def test_an_unknown_role_is_refused_with_the_known_ones():
    with pytest.raises(dpb.InvalidArgument, match=r"role='upper'.*lower"):
        run(lower=0.5).epsilon(role="upper")
    with pytest.raises(dpb.InvalidArgument, match=r"role='upper'.*lower"):
        run(lower=0.5).delta(1.0, role="upper")


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan, [0.5, 2.0]])
def test_a_false_positive_rate_is_a_probability(alpha):
    with pytest.raises(dpb.InvalidArgument, match="false_positive_rate"):
        run(lower=0.5).tradeoff(alpha)


def test_shares_are_of_mu_squared_and_sum_to_one():
    charges = (
        Charge("cheap", "lower", 0.01, 100, dpb.FullBatch()),
        Charge("expensive", "lower", 0.02, 100, dpb.FullBatch()),
    )
    spent = dpb.Privacy({"lower": charges}, dpb.Budget(1.0, 1e-6))
    assert spent.shares("lower") == pytest.approx((0.2, 0.8))
    assert dpb.Privacy({"lower": charges}, dpb.Budget(math.inf), void=True).shares("lower") == (0.0, 0.0)
    with pytest.raises(dpb.InvalidArgument, match="role"):
        spent.shares("upper")


def test_shares_of_sampled_and_declared_releases_are_of_their_epsilons():
    charges = (
        Charge("sampled", "lower", 0.5, 20, dpb.Poisson(0.1)),
        Charge("declared", "lower", 0.0, 1, dpb.FullBatch(), None, dpb.ApproximateDP(0.3, 1e-7)),
    )
    spent = dpb.Privacy({"lower": charges}, dpb.Budget(3.0, 1e-6))
    alone = [dpb.Privacy({"lower": (charge,)}, dpb.Budget(3.0, 1e-6)).epsilon() for charge in charges]
    assert spent.shares("lower") == pytest.approx([epsilon / sum(alone) for epsilon in alone])


def test_the_tradeoff_of_a_declared_delta_is_what_its_epsilon_gives():
    declared = dpb.ApproximateDP(0.5, 1e-3)
    charges = {"lower": (Charge("box", "lower", 0.0, 1, dpb.FullBatch(), None, declared),)}
    missed = float(dpb.Privacy(charges, dpb.Budget(0.5, 1e-3)).tradeoff(0.05))
    # The classic line 1 - delta - exp(epsilon) alpha, met up to the accountant's grid.
    assert missed == pytest.approx(1 - 1e-3 - math.exp(0.5) * 0.05, abs=1e-3)


def test_clips_are_kept_and_cost_nothing():
    release = dpb.Release(
        name="mean",
        contributions={"lower": dpb.Contribution(lambda point, record: record, 0.5, 100)},
        noise_std=0.1,
        uses=1,
    )
    (charge,) = release.charges()
    assert charge.clip == 0.5
    before = dpb.Privacy({"lower": (charge,)}, dpb.Budget(9.0, 1e-6))
    after = dpb.Privacy.from_json(before.to_json())
    assert after.charges["lower"][0].clip == 0.5
    assert after.epsilon() == before.epsilon()
