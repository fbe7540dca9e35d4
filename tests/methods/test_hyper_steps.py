"""How hyperparameters move: still where there is nothing to learn, sure where there is, in any unit and any set."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import dpbilevel as dpb
from dpbilevel.constraints import project
from dpbilevel.methods.tracking import hyper_rules, hyper_steps
from dpbilevel.methods.tracking.hyper_groups import groups

STEPS, K = 200, 12
UNIFORM = np.full(K, 1 / K)


def runs(
    domain, x, slopes, noise, seeds, natural=1.0, sampling_variance=0.0, persistent_noise=0.0, known=True, steps=STEPS
) -> np.ndarray:
    """Where steps on gradients ``slopes(x)`` with Gaussian noise end, one for each seed.

    ``lasting`` is the standard deviation of noise that stays the same in all steps, and ``known`` whether they know it.
    """
    first, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), x))
    found = groups(domain, unravel(first))

    def step(carry, inputs):
        key, index = inputs
        state, x, stays = carry
        gradient = slopes(x) + noise * jax.random.normal(key, x.shape) + stays
        state, x = hyper_steps.move(
            found,
            state,
            x,
            gradient,
            natural=[jnp.float32(natural)] * len(found),
            length=1 - index / STEPS,
            persistent_noise=jnp.full(x.shape, known * persistent_noise**2, x.dtype),
            rate=jnp.ones(()),
            sampling_variance=sampling_variance,
            steps=steps,
            has_hypergradient=jnp.asarray(True),
        )
        return (state, ravel_pytree(project(domain, unravel(x)))[0], stays), None

    def one(seed):
        keys = jax.random.split(jax.random.key(seed), STEPS + 1)
        last, keys = keys[0], keys[1:]
        start = (hyper_steps.start(found, first), first, persistent_noise * jax.random.normal(last, first.shape))
        return jax.lax.scan(step, start, (keys, jnp.arange(STEPS, dtype=jnp.float32)))[0][1]

    return np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(list(seeds))))


def test_noise_alone_leaves_weights_within_a_factor_of_one_and_a_half():
    weights = runs(dpb.Simplex(), UNIFORM, lambda x: 0 * x, 1.0, range(50))
    assert weights.max() < 1.5 / K
    assert weights.min() > 1 / (1.5 * K)


def test_mutant_that_does_not_shrink_wanders(monkeypatch):
    monkeypatch.setattr(hyper_rules, "_beyond_noise", lambda square, noise, number: jnp.ones(()))
    assert runs(dpb.Simplex(), UNIFORM, lambda x: 0 * x, 1.0, range(5)).max() > 1.5 / K


def test_chance_is_explained_even_where_noise_is_not():
    """Slopes that differ by what the luck of records explains, the same in every step, do not part weights."""
    luck = np.random.default_rng(0).normal(size=K).astype(np.float32)
    strayed = runs(dpb.Simplex(), UNIFORM, lambda x: luck, 0.01, [0], sampling_variance=2.0 * K)
    believed = runs(dpb.Simplex(), UNIFORM, lambda x: luck, 0.01, [0])
    assert strayed.max() < 1.5 / K < believed.max()


def test_weights_fall_and_rise():
    slopes = jnp.where(jnp.arange(K) < 8, 1.0, -1.0)
    weights = runs(dpb.Simplex(), UNIFORM, lambda x: slopes, 0.5, range(10))
    assert weights[:, :8].max() < 0.02
    assert np.median(weights[:, 8:]) > 2 / K


def test_faint_slopes_part_weights_in_the_end():
    """Noise of three times a slope. If the first steps are the longest, their noise hides all others."""
    slopes = jnp.where(jnp.arange(K) < 6, 1.0, -1.0)
    wrong, mutant = (
        runs(dpb.Simplex(), UNIFORM, lambda x: slopes, 3.0, range(40), steps=steps)[:, :6].sum(axis=1)
        for steps in (STEPS, 0)
    )
    assert np.mean(wrong < 0.1) > 0.6 > 0.3 > np.mean(mutant < 0.1)


def test_weights_find_an_interior_solution_and_return():
    target = np.linspace(1, 3, K) / np.linspace(1, 3, K).sum()
    weights = runs(dpb.Simplex(), UNIFORM, lambda x: x - target, 0.0, [0])
    np.testing.assert_allclose(weights[0], target, atol=0.01)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("domain", [dpb.Unconstrained(), dpb.Ball(1e6)], ids=["everything", "ball"])
def test_a_solution_far_from_the_first_distance_is_found_in_any_unit(domain, scale):
    target = scale * np.array([3.0, -2.0, 0.5], np.float32)
    found = runs(domain, np.zeros(3), lambda x: x - target, 0.0, [0], natural=0.1 * scale)
    np.testing.assert_allclose(found[0], target, rtol=0.1)


def test_zero_is_reached_and_left():
    """The first coordinate's solution lies below zero; the second starts at zero, and its solution does not."""
    target = np.array([-1.0, 2.0], np.float32)
    found = runs(dpb.NonNegative(), np.array([1.0, 0.0]), lambda x: x - target, 0.01, [0])
    assert found[0, 0] == 0.0
    assert found[0, 1] == pytest.approx(2.0, rel=0.1)


def test_a_larger_box_does_not_hurt():
    target = np.array([1.0, -1.0], np.float32)
    narrow, wide = (
        runs(dpb.Box(-bound, bound), np.zeros(2), lambda x: x - target, 0.05, range(5)) for bound in (2.0, 1e6)
    )
    np.testing.assert_allclose(wide, narrow, atol=0.05)


def test_faint_coordinates_follow_the_common_mean():
    """Twenty slopes of one size under much noise: none goes its own way, all go together."""
    found = runs(dpb.Box(-12.0, 12.0), np.zeros(20), lambda x: jnp.ones(20), 4.0, range(20))
    together = found.mean(axis=1)
    assert np.mean(together < -1) > 0.9
    assert np.std(found - together[:, None]) < 0.3 * np.abs(together).mean()


FEW = {"box": (dpb.Box(-12.0, 12.0), 3), "ball": (dpb.Ball(12.0), 20)}


@pytest.mark.parametrize(("domain", "number"), FEW.values(), ids=FEW.keys())
def test_noise_alone_moves_few_numbers_and_vectors_little(domain, number, monkeypatch):
    """In three of ten runs on noise alone, at most, does anything go further than the first distance.

    Evidence begins at two standard deviations, but is looked at in every step, and for each of three coordinates.
    """

    def far(**options):
        found = runs(domain, np.zeros(number), lambda x: 0 * x, 1.0, range(100), **options)
        return np.mean(np.linalg.norm(found, axis=1) > 0.05)

    assert far() < 0.3
    monkeypatch.setattr(hyper_rules, "_evidence", lambda gain, variance: jnp.ones(()))
    assert far() > 0.9, "without evidence they wander"


@pytest.mark.parametrize(("domain", "number"), FEW.values(), ids=FEW.keys())
def test_noise_that_lasts_is_not_taken_for_a_slope(domain, number):
    """Noise of y and d is the same in every step: it looks like a slope, unless it is known."""

    def far(**options):
        found = runs(domain, np.zeros(number), lambda x: 0 * x, 0.1, range(100), persistent_noise=1.0, **options)
        return np.mean(np.linalg.norm(found, axis=1) > 0.05)

    assert far() < 0.3
    assert far(known=False) > 0.9


def test_a_slope_in_a_ball_is_found_through_noise():
    """Twenty numbers, of whose noise no step is free: the gain along the steps says that they lead downwards."""
    target = np.zeros(20, np.float32)
    target[:2] = 3.0, -2.0
    found = runs(dpb.Ball(12.0), np.zeros(20), lambda x: x - target, 1.0, range(20))
    left = np.sum((found - target) ** 2, axis=1) / np.sum(target**2)
    assert np.median(left) < 0.1


def test_groups_follow_the_domain():
    domain = {"a": dpb.Simplex(2.0), "b": dpb.NonNegative(), "c": dpb.Ball(1.0)}
    x = {"a": jnp.zeros(3), "b": {"one": jnp.zeros(2), "two": jnp.zeros((2, 2))}, "c": [jnp.zeros(1), jnp.zeros(2)]}
    found = groups(domain, x)
    assert [(group.kind, group.size) for group in found] == [
        ("weights", 3),
        ("separate", 2),
        ("separate", 4),
        ("round", 3),
    ]
    assert found[0].total == 2.0


@pytest.mark.parametrize("domain", [dpb.Simplex(), dpb.NonNegative()])
def test_before_the_first_slope_nothing_moves_and_nothing_breaks(domain):
    """A hypergradient of zero comes first where d is still zero: steps over a sum of no squares made NaN of weights."""
    x = jnp.full(5, 0.2)
    found = groups(domain, x)
    state = hyper_steps.start(found, x)
    for gradient in (jnp.zeros(5), jnp.asarray([1.0, -1, 0, 0, 0])):
        state, x = hyper_steps.move(
            found,
            state,
            x,
            gradient,
            natural=[jnp.ones(())] * len(found),
            length=jnp.ones(()),
            persistent_noise=jnp.zeros(5),
            rate=jnp.ones(()),
            sampling_variance=0.0,
            steps=STEPS,
            has_hypergradient=jnp.asarray(True),
        )
        assert np.all(np.isfinite(x))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state))
