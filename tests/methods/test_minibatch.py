"""Mini-batch DP Bilevel with DP-Loc-SGD (Algorithms 3 and 4): every sampling, right solutions, truthful accounts."""

import math

import numpy as np
import pytest
from support.problems import CASES, leak, quadratic

import dpbilevel as dpb

SAMPLINGS = {
    "poisson": (dpb.Poisson(0.25), dpb.Poisson(0.5)),
    "without replacement": (dpb.WithoutReplacement(50), dpb.WithoutReplacement(100)),
    "with replacement": (dpb.WithReplacement(50), dpb.WithReplacement(100)),
}


def minibatch(case, inner_sampling, outer_sampling, **changes):
    settings = case.inner | changes.pop("inner", {})
    inner = dpb.DPLocSGD(sampling=inner_sampling, **settings)
    return dpb.DPBilevel(inner=inner, sampling=outer_sampling, **(case.outer | changes))


def solve(case, budget, method, seed=0):
    return dpb.solve(case.problem, case.records(), budget, method=method, start=case.start, seed=seed)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_gets_close_without_privacy(name):
    """Only sampling noise is left: within a few standard deviations of a mean over a batch."""
    case = leak(400)
    method = minibatch(case, *SAMPLINGS[name], penalty_weight=10.0, steps=20, inner={"steps": 40, "rounds": 1})
    solution = solve(case, dpb.Budget(math.inf), method)
    assert np.linalg.norm(solution.x - case.solution) < 0.1
    assert np.linalg.norm(case.solution) > 0.4


def test_a_batch_of_everybody_is_the_full_batch_method():
    """Poisson at rate 1, and without replacement at size n: the same records in another order."""
    case = CASES["quadratic_both"](100)
    settings = {"steps": 3, "penalty_weight": 10.0}
    full = case.solve(dpb.Budget(math.inf), **settings)
    for everybody in (dpb.Poisson(1.0), dpb.WithoutReplacement(100)):
        same = solve(case, dpb.Budget(math.inf), minibatch(case, everybody, everybody, **settings))
        np.testing.assert_allclose(same.history["x"], full.history["x"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    # Noise is found by bisection, and each loss distribution with replacement takes seconds.
    "name",
    ["poisson", "without replacement", pytest.param("with replacement", marks=pytest.mark.heavy)],
)
def test_spends_within_the_budget(name):
    case = leak(400)
    budget = dpb.Budget(1.0, 1e-4)
    method = minibatch(case, *SAMPLINGS[name], penalty_weight=10.0, steps=2, inner={"steps": 5, "rounds": 1})
    planned = dpb.plan(case.problem, case.records().sizes, budget, method=method, start=case.start)
    assert 0.99 <= planned.privacy.epsilon() <= 1.0
    assert planned.privacy.mu is None
    assert "privacy loss distribution" in planned.privacy.sentence()


def test_poisson_needs_less_noise_than_no_sampling_per_expected_batch():
    """Amplification: as little noise as the full batch; a batch of that size alone would need four times as much."""
    case = leak(400)
    budget = dpb.Budget(1.0, 1e-4)
    sizes = case.records().sizes
    few = {"penalty_weight": 10.0, "steps": 2, "inner": {"steps": 5, "rounds": 1}}
    sampled = minibatch(case, dpb.Poisson(0.25), dpb.FullBatch(), **few)
    full = case.method(**few)
    noises = [
        dpb.plan(case.problem, sizes, budget, method=method, start=case.start).releases[0].noise_std
        for method in (sampled, full)
    ]
    assert noises[1] * 0.99 < noises[0] < noises[1] * 1.5


def test_the_same_batch_serves_both_terms_of_the_hypergradient():
    """With y = z the difference of the two g-terms cancels record by record, whatever the batch and the penalty."""
    case = quadratic(200)
    planned = dpb.plan(
        case.problem,
        case.records().sizes,
        dpb.Budget(math.inf),
        method=minibatch(case, dpb.Poisson(0.5), dpb.Poisson(0.1)),
        start=case.start,
    )
    vector = planned.releases[-1].contributions["lower"].per_record
    x, y = np.float32([0.1, 0.2, 0.3]), np.float32([1.0, -1.0, 0.5])
    np.testing.assert_array_equal(vector((x, y, y), np.float32([0.3, 0.1, 0.2])), np.zeros(3))


def test_bad_sampling_is_refused():
    with pytest.raises(dpb.InvalidArgument, match="sampling="):
        dpb.DPLocSGD(strong_convexity=1.0, sampling=0.1)
    with pytest.raises(dpb.InvalidArgument, match="sampling="):
        dpb.DPBilevel(inner=dpb.DPLocGD(strong_convexity=1.0), sampling="poisson")
    case = leak(40)
    method = minibatch(case, dpb.WithReplacement(41), dpb.FullBatch())
    with pytest.raises(dpb.InvalidArgument, match="must be at most n = 40"):
        dpb.plan(case.problem, case.records().sizes, dpb.Budget(1.0, 1e-3), method=method, start=case.start)
