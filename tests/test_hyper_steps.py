"""How hyperparameters move: still where there is nothing to learn, sure where there is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.methods.hyper_steps import CappedWeights, CommonSteps, RoundSteps, Surroundings, rule_for, unit_of

K, STEPS, CLIP, RECORDS = 12, 200, 12.0, 30_000


def around(noise: float, clip: float = CLIP) -> Surroundings:
    return Surroundings(steps=STEPS, noise=noise, clip=clip, records=RECORDS, unsettled=1.0)


def runs(rule, x, slopes, noise: float, seeds) -> np.ndarray:
    """Paths of the rule on gradients ``slopes(x)`` with Gaussian noise, one for each seed."""

    def step(carry, inputs):
        key, index = inputs
        state, x = carry
        gradient = slopes(x) + noise * jax.random.normal(key, x.shape)
        state, x = rule.move(state, x, gradient, index)
        return (state, x), x

    def one(seed):
        keys = jax.random.split(jax.random.key(seed), STEPS)
        return jax.lax.scan(step, (rule.start(first), first), (keys, jnp.arange(STEPS, dtype=jnp.float32)))[1]

    first = jnp.asarray(x, jnp.float32)
    return np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(list(seeds))))


def run(rule, x, slopes, noise: float, seed: int) -> np.ndarray:
    return runs(rule, x, slopes, noise, [seed])[0]


UNIFORM = np.full(K, 1 / K)


def test_noise_alone_leaves_weights_uniform():
    """A weight falls by a third in fewer than 1 of 100 runs (500 runs, seeds fixed)."""
    rule = CappedWeights(1.0, around(noise=0.5))
    finals = runs(rule, UNIFORM, lambda x: jnp.zeros(K), 0.5, range(500))[:, -1]
    assert np.mean(finals.min(1) * K < 1 / 1.5) < 0.01
    assert finals.max() * K < 1.5


def test_twin_that_normalises_noise_wanders():
    """Without the threshold the same noise moves weights by more than a half."""
    rule = CappedWeights(1.0, Surroundings(steps=STEPS, noise=0.0, clip=0.0, records=RECORDS, unsettled=1.0))
    finals = runs(rule, UNIFORM, lambda x: jnp.zeros(K), 0.5, range(50))[:, -1]
    assert np.mean(finals.min(1) * K < 1 / 1.5) > 0.5


def test_bad_weights_fall_and_good_ones_stay_equal():
    slopes = jnp.where(jnp.arange(K) < 8, 0.3, -0.6)
    final = run(CappedWeights(1.0, around(noise=0.5)), UNIFORM, lambda x: slopes, 0.5, 0)[-1]
    assert final[:8].sum() < 0.02
    np.testing.assert_allclose(final[8:], final[8:].mean(), rtol=1e-5)


def test_weights_stay_on_the_simplex_and_start_where_they_are_told():
    start = np.linspace(1, 2, K) / np.linspace(1, 2, K).sum() * 3
    path = run(CappedWeights(3.0, around(noise=0.5)), start, lambda x: 0.3 * jnp.sin(jnp.arange(K)), 0.5, 1)
    np.testing.assert_allclose(path.sum(1), 3.0, rtol=1e-5)
    assert path.min() >= 0
    np.testing.assert_allclose(path[0], start, rtol=0.05)


def test_weights_find_an_interior_solution_without_noise():
    """F(x) = |x - target|^2/2 on the simplex: the minimiser is the target, and swings die out."""
    target = jnp.asarray([0.5, 0.3, 0.15, 0.05])
    rule = CappedWeights(1.0, Surroundings(steps=STEPS, noise=0.0, clip=0.0, records=RECORDS, unsettled=1.0))
    path = run(rule, np.full(4, 0.25), lambda x: x - target, 0.0, 0)
    np.testing.assert_allclose(path[-20:].mean(0), target, atol=0.01)


def test_chance_is_explained_even_where_noise_is_not():
    """A mean over n/K records strays by clip/(2 sqrt(K n)) or so in every step, the same way: no evidence."""
    chance = CLIP / (2 * np.sqrt(K * RECORDS))
    slopes = jnp.asarray(np.random.default_rng(0).normal(size=K) * chance)
    final = run(CappedWeights(1.0, around(noise=1e-6)), UNIFORM, lambda x: slopes, 1e-6, 0)[-1]
    assert final.min() * K > 1 / 1.5


def test_a_faint_coordinate_follows_the_common_vote_and_a_sure_one_itself():
    rng = np.random.default_rng(0)
    noise = jnp.asarray(rng.normal(size=(STEPS, 6)) * np.array([0.01, 0.01, 0.01, 0.01, 3.0, 0.01]))
    drift = jnp.asarray([1.0, 1.0, 1.0, 1.0, 0.0, -1.0])  # the fifth shows nothing but noise, the last dissents
    rule, x = CommonSteps(False, around(0.0)), jnp.zeros(6)
    state = rule.start(x)
    move = jax.jit(rule.move)
    for index in range(STEPS):
        state, x = move(state, x, drift + noise[index], jnp.float32(index))
    x = np.asarray(x)
    assert x[:4].max() < -10
    assert x[4] < -3
    assert x[5] > 8


def test_votes_do_not_depend_on_the_scale_of_the_loss():
    paths = [
        run(CommonSteps(False, around(0.0)), np.zeros(3), lambda x, s=scale: s * (x - jnp.arange(3.0)), 0.0, 0)
        for scale in (1e-6, 1.0, 1e6)
    ]
    np.testing.assert_allclose(paths[0], paths[1], atol=1e-3)
    np.testing.assert_allclose(paths[2], paths[1], atol=1e-3)
    np.testing.assert_allclose(paths[1][-1], np.arange(3.0), atol=0.3)


def test_known_noise_does_not_vote():
    told, untold = (
        run(CommonSteps(False, around(noise)), np.zeros(5), lambda x: jnp.zeros(5), 1.0, 3)[-1] for noise in (1.0, 0.0)
    )
    assert np.abs(told).max() < 0.5 * np.abs(untold).max()


def test_non_negative_numbers_move_in_logarithms():
    path = run(rule_for(dpb.NonNegative(), around(0.0)), np.array([1.0, 1e-3]), lambda x: jnp.log(x / 0.1) / x, 0.0, 0)
    assert path.min() > 0
    np.testing.assert_allclose(np.log(path[-1]), np.log(0.1), atol=0.5)


# ------------------------------------------------------------------------------------------------------------- balls

STRETCH = np.array([10.0, 1.0, 0.1, 0.1], np.float32)  # how steep a bowl is in each coordinate
ROTATION = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0].astype(np.float32)


def bowl(rule, start, rotation):
    """The path to the bottom of a stretched bowl in turned coordinates, turned back."""
    slopes = jnp.asarray(rotation.T * STRETCH @ rotation)
    return run(rule, start @ rotation, lambda x: slopes @ x, 0.0, 0) @ rotation.T


def test_steps_in_a_ball_do_not_depend_on_coordinates():
    start = np.array([0.5, -1.0, 1.0, 0.3], np.float32)
    plain, turned = (bowl(RoundSteps(2.0, around(0.0)), start, by) for by in (np.eye(4, dtype=np.float32), ROTATION))
    np.testing.assert_allclose(turned, plain, atol=1e-3)


def test_twin_whose_coordinates_vote_depends_on_them():
    start = np.array([0.5, -1.0, 1.0, 0.3], np.float32)
    plain, turned = (bowl(CommonSteps(False, around(0.0)), start, by) for by in (np.eye(4, dtype=np.float32), ROTATION))
    assert np.abs(turned - plain).max() > 0.1


def test_steps_in_a_ball_find_a_solution_inside():
    target = jnp.asarray([0.5, -0.3, 0.8])
    for scale in (1e-4, 1e4):  # whatever the scale of the loss
        path = run(RoundSteps(2.0, around(0.0)), np.zeros(3), lambda x, s=scale: s * (x - target), 0.0, 0)
        np.testing.assert_allclose(path[-1], target, atol=0.02)


def test_steps_in_a_ball_grow_with_it_and_are_never_longer_than_a_tenth_of_its_radius():
    slope = jnp.asarray([3.0, -4.0])
    paths = [run(RoundSteps(radius, around(0.0)), np.zeros(2), lambda x: slope, 0.0, 0) for radius in (1.0, 5.0)]
    np.testing.assert_allclose(paths[1], 5 * paths[0], rtol=1e-4)
    steps = np.diff(paths[0], axis=0)
    np.testing.assert_allclose(steps, np.linalg.norm(steps, axis=1)[:, None] * [-0.6, 0.8], atol=1e-5)
    assert 0.09 < np.linalg.norm(steps, axis=1).max() <= 0.1 + 1e-6


def test_gradients_that_cancel_each_other_make_short_steps():
    """Noise in many coordinates goes nowhere, at the same size of gradients that agree."""
    size = 100
    rule, drift = RoundSteps(1.0, around(0.0)), jnp.full(size, 1.0)
    agreed = run(rule, np.zeros(size), lambda x: drift, 0.0, 0)[-1]
    random = runs(rule, np.zeros(size), lambda x: jnp.zeros(size), 1.0, range(20))[:, -1]
    assert np.linalg.norm(random, axis=1).max() < 0.15 * np.linalg.norm(agreed)


def test_the_parts_of_a_tree_in_a_ball_move_as_one_vector():
    rule, slopes = RoundSteps(2.0, around(0.0)), np.array([1.0, -2.0, 0.5, 3.0], np.float32)
    tree = {"bias": jnp.zeros(1), "map": jnp.ones((3, 1))}
    gradient = {"bias": jnp.asarray(slopes[:1]), "map": jnp.asarray(slopes[1:, None])}
    flat = jnp.asarray([0.0, 1.0, 1.0, 1.0])
    _, moved = rule.move(rule.start(tree), tree, gradient, jnp.float32(50))
    _, expected = rule.move(rule.start(flat), flat, jnp.asarray(slopes), jnp.float32(50))
    np.testing.assert_allclose(np.concatenate([moved["bias"], moved["map"][:, 0]]), expected, rtol=1e-6)
    assert moved["map"].shape == (3, 1)


@pytest.mark.parametrize(
    ("convex_set", "unit", "rule"),
    [
        (dpb.Simplex(2.0), 2.0 / 6, CappedWeights),
        (dpb.Box(-1.0, 1.0), 1.0, CommonSteps),
        (dpb.Everything(), 1.0, CommonSteps),
        (dpb.Ball(2.0), 3.0, RoundSteps),
    ],
)
def test_every_set_has_a_rule_and_a_unit(convex_set, unit, rule):
    x = {"a": jnp.zeros((2, 2)), "b": jnp.zeros(2)}
    assert unit_of(convex_set, x) == pytest.approx(unit)
    assert isinstance(rule_for(convex_set, around(0.0)), rule)
