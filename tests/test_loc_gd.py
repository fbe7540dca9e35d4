"""DP-Loc-GD: its schedule, and its solutions against an independent solver."""

import itertools
import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import dpbilevel as dpb


def test_radii_follow_the_formula_and_never_grow():
    inner = dpb.DPLocGD(strong_convexity=0.5, clip_norm=1.0, steps=10**8)
    schedule = inner.localise(0.5, 1e-3, dimension=9, smoothness=None)
    assert schedule.radii[0] == 2 * 1.0 / 0.5
    assert len(schedule.radii) == math.ceil(math.log2(math.log2(4.0 / 1e-3)))
    for before, after in itertools.pairwise(schedule.radii):
        assert after == pytest.approx(math.sqrt(before * 1e-3) + 1e-3 * 3)
        assert after <= before


def test_rounds_are_defined_in_any_units():
    """The paper's log2 log(1/A) is undefined for A >= 1; scaling y must not change the number of rounds."""
    for scale in (1e-6, 1.0, 1e6):
        inner = dpb.DPLocGD(strong_convexity=1.0, radius=4.0 * scale, clip_norm=scale, steps=10**8)
        assert len(inner.localise(1.0, 1e-3 * scale, 2, None).radii) == 4
    assert len(dpb.DPLocGD(strong_convexity=1.0).localise(1.0, 1e9, 2, None).radii) == 1


def test_balls_do_not_shrink_faster_than_the_steps_can_follow():
    few = dpb.DPLocGD(strong_convexity=1.0, steps=4).localise(1.0, 0.0, 1, None)
    many = dpb.DPLocGD(strong_convexity=1.0, steps=10_000, rounds=2).localise(1.0, 0.0, 1, None)
    assert few.radii[-1] > many.radii[-1]


def lower_solution(features, labels, budget, *, penalty=0.1, steps=300, rounds=2, lower_domain=None, **settings):
    """The lower solve alone: one outer step that gives it nearly everything."""
    import jax.numpy as jnp

    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: 0.5 * jnp.sum(x**2),
        lower_loss=lambda x, y, record: jnp.logaddexp(0.0, -record[1] * (record[0] @ y)),
        lower_term=lambda x, y: 0.5 * penalty * jnp.sum(y**2),
        lower_domain=lower_domain or dpb.Unconstrained(),
    )
    inner = dpb.DPLocGD(strong_convexity=penalty, smoothness=0.25 + penalty, steps=steps, rounds=rounds, **settings)
    method = dpb.DPBilevel(inner=inner, steps=1, step_size=1.0, split=(98.0, 1.0, 1.0))
    start = (0.0, np.zeros(features.shape[1]))
    return dpb.solve(problem, dpb.Records(lower=(features, labels)), budget, method=method, start=start, seed=0).y


@pytest.fixture(scope="module")
def logistic():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(4000, 4))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.where(rng.random(4000) < 1 / (1 + np.exp(-4 * features @ [1, -1, 0.5, 0])), 1.0, -1.0)
    reference = LogisticRegression(C=1 / (0.1 * 4000), fit_intercept=False, tol=1e-8).fit(features, labels).coef_[0]
    return features, labels, reference


def test_agrees_with_scikit_learn_without_privacy(logistic):
    features, labels, reference = logistic
    np.testing.assert_allclose(lower_solution(features, labels, dpb.Budget(math.inf)), reference, atol=2e-3)


def test_paper_step_sizes_need_no_smoothness(logistic):
    features, labels, reference = logistic
    y = lower_solution(features, labels, dpb.Budget(math.inf), steps=600, rounds=3, radius=5.0)
    np.testing.assert_allclose(y, reference, atol=2e-3)


def test_private_error_is_of_the_planned_size(logistic):
    """||y - y*|| is about sensitivity/(mu mu_solve) sqrt(d), the rate of the paper's Theorem on DP-Loc-GD."""
    features, labels, reference = logistic
    budget = dpb.Budget(1.0, 1e-5)
    error = np.linalg.norm(lower_solution(features, labels, budget, rounds=1) - reference)
    scale = 2 / (4000 * 0.1 * budget.mu) * math.sqrt(4)
    assert error < 2 * scale


def test_iterates_stay_in_the_lower_domain(logistic):
    features, labels, reference = logistic
    assert np.linalg.norm(reference) > 0.3
    y = lower_solution(features, labels, dpb.Budget(1.0, 1e-5), lower_domain=dpb.Ball(0.3))
    assert np.linalg.norm(y) <= 0.3 * (1 + 1e-5)
