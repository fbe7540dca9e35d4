"""Passes: joint vectors within one clip, counts that find the scale of clips from anywhere, validation at the end."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbilevel.methods.tracking import passes
from dpbilevel.methods.tracking.passes import ABOVE, LOSS_CHANGE, SCALE, SEARCH, TRACK, VALIDATE, Pass

STEPS, FEW = 200, 10


def three(noise: float = 0.01) -> Pass:
    def contributions(point, record):
        return {"long": point * record, "short": record[:1], LOSS_CHANGE: record[1:2]}

    return Pass(contributions, {"long": 3, "short": 1, LOSS_CHANGE: 1}, noise, STEPS)


def at(phase: int, scale=1.0, medians=(0.0, 0.0, 0.0)):
    names = dict(zip(("long", "short", LOSS_CHANGE), map(jnp.float32, medians), strict=True))
    return {"at": jnp.float32(scale), "medians": names, "phase": jnp.int32(phase)}


@given(
    st.sampled_from([SEARCH, TRACK, SCALE, VALIDATE]),
    st.floats(-1e6, 1e6, width=32),
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3),
    st.lists(st.floats(-12, 12), min_size=3, max_size=3),
)
def test_the_whole_has_norm_at_most_one(phase, scale, record, medians):
    whole = three().contribution(at(phase, scale, medians), jnp.asarray(record, jnp.float32))
    assert math.sqrt(sum(float(np.sum(np.square(leaf))) for leaf in whole.values())) <= 1 + 1e-5


def test_each_phase_sends_what_it_is_for():
    record = jnp.asarray([0.5, -0.25, 2.0])
    sent = {phase: three().contribution(at(phase), record) for phase in (SEARCH, TRACK, SCALE, VALIDATE)}
    loud = {phase: {name for name, part in whole.items() if np.any(part)} for phase, whole in sent.items()}
    vectors = {"long", "short"}
    assert loud == {SEARCH: {ABOVE}, TRACK: {*vectors, ABOVE}, SCALE: {ABOVE}, VALIDATE: {LOSS_CHANGE}}
    counted = {phase: tuple(np.flatnonzero(whole[ABOVE])) for phase, whole in sent.items()}
    assert counted == {SEARCH: (0, 1), TRACK: (0, 1), SCALE: (2,), VALIDATE: ()}  # the count of loss changes is alone


def test_small_vectors_come_back_as_they_were_and_noise_is_that_of_separate_releases():
    one, record = three(), jnp.asarray([0.5, -0.25, 0.1])
    for phase, names in ((TRACK, ("long", "short")), (VALIDATE, (LOSS_CHANGE,))):
        point = at(phase, 2.0)
        contributions, _ = one.released_means(one.contribution(point, record), point)
        for name in names:
            np.testing.assert_allclose(
                contributions[name], one.contributions(jnp.float32(2.0), record)[name], rtol=1e-5
            )
            share = 1.0 if phase == VALIDATE else one.share
            expected = one.noise_std * one.multiple(name) / math.sqrt(share)
            assert float(one.noise_of(name, point)) == pytest.approx(expected, rel=1e-5)


def test_clips_are_medians_where_noise_rules_and_wide_where_there_is_none():
    assert three(noise=10.0).multiple("long") == 1.0
    assert three(noise=1e-9).multiple("long") == 3.0


def after(floored: str | None, norms: np.ndarray, mean: float, times: int = 100) -> float:
    """Where a clip that begins at one ends, in passes that release the same mean."""
    one = dataclasses.replace(three(noise=1e-3), floored=floored)
    clips, point = one.start(1.0), at(TRACK)
    means = {"long": jnp.asarray([mean, 0.0, 0.0]), "short": jnp.zeros(1), LOSS_CHANGE: jnp.zeros(1)}
    for _ in range(times):
        count = float(np.mean(norms > np.exp(float(clips["long"]["median"])))) - 0.5
        clips = one.update_clips(clips, dict.fromkeys(one.names, jnp.float32(count)), means, point)
    return float(jnp.exp(clips["long"]["median"]))


def test_a_clip_is_held_where_less_noise_is_of_no_use():
    """Gradients of all but a rare class vanish; the mutant follows them down, and with it all that the class says."""
    rare = np.append(np.full(970, 1e-6), np.full(30, 1.0))
    one = three(noise=1e-3)
    enough = passes._ENOUGH * 0.03 / (one._run_noise("long") * one.multiple("long"))
    assert after("long", rare, mean=0.03) == pytest.approx(enough, rel=0.1)  # the mean has noise in it
    assert after(None, rare, mean=0.03) < 1e-5
    assert after("long", np.full(1000, 3.0), mean=0.03) > 2.5  # it may always rise


def update_clips(start: float, truth: float, noise: float, seed: int, search: int = FEW) -> np.ndarray:
    """The trajectory of a median, against the true one of lognormal norms."""
    one = three(noise)
    norms = truth * np.exp(np.random.default_rng(seed).normal(size=500)).astype(np.float32)
    nothing = {name: jnp.zeros(size) for name, size in one.dimensions.items()}

    def step(clips, inputs):
        index, key = inputs
        point = at(SEARCH) | {"phase": jnp.where(index < search, SEARCH, TRACK)}
        above = jnp.mean(norms > jnp.exp(clips["long"]["median"])) - 0.5
        unit = jnp.maximum(one._count_roots(point["phase"]), 1e-30)
        counts = jnp.full(3, above) + noise / unit * jax.random.normal(key, (3,))
        clips = one.update_clips(clips, dict(zip(one.names, counts, strict=True)), nothing, point)
        return clips, clips["long"]["median"]

    keys = jax.random.split(jax.random.key(seed), 2 * FEW)
    trajectory = np.asarray(jax.lax.scan(step, one.start(start), (jnp.arange(2 * FEW), keys))[1])
    return trajectory - math.log(np.median(norms))


@pytest.mark.parametrize("factor", [1e-4, 1e-2, 1.0, 1e2, 1e4])
def test_clips_find_their_scale_within_a_tenth_of_the_run(factor):
    """From any start within a factor of 10^4, without noise and where a count has one of a sixth of the records."""
    for noise in (0.0, 0.1):
        assert abs(update_clips(factor * 3.0, 3.0, noise, seed=1)[-1]) < 1.0


def test_mutant_that_only_follows_does_not_find_it():
    """Counts at a twentieth of mu^2, with noise of two thirds of the records, do not lead anywhere in twenty passes."""
    noise = 0.3 * math.sqrt(3 / 2)  # two counts share a twentieth of mu^2
    assert abs(update_clips(3e4, 3.0, noise, seed=1, search=0)[-1]) > 3.0
    assert abs(update_clips(3e4, 3.0, noise, seed=1)[-1]) < 2.0


def scale_of_changes(expected: float, noise: float, seed: int) -> float:
    """The logarithm of the clip that five steps find for loss changes, relative to their median norm of one."""
    one, draws = three(noise), np.random.default_rng(seed)
    norms = np.exp(draws.normal(size=500))
    norms /= np.median(norms)
    clips = one.start(1.0) | {LOSS_CHANGE: one.expect(jnp.float32(expected), 2.0)}
    nothing = {name: jnp.zeros(size) for name, size in one.dimensions.items()}
    for _ in range(5):
        above = np.mean(norms > np.exp(float(clips[LOSS_CHANGE]["median"]))) - 0.5
        counts = dict.fromkeys(one.names, jnp.float32(above + noise / 2 * draws.normal()))
        clips = one.update_clips(clips, counts, nothing, at(SCALE))
    return float(clips[LOSS_CHANGE]["median"])


@pytest.mark.parametrize("expected", [math.exp(-1.8), 1.0, math.exp(1.8)])
def test_the_scale_of_loss_changes_is_found_where_a_pass_is_mostly_noise(expected):
    """With the noise of a thousand records at epsilon 1: a clip that is tracked by a twentieth of mu^2 diverges."""
    assert abs(scale_of_changes(expected, 0.0, seed=1)) < 0.4
    errors = [abs(scale_of_changes(expected, 0.28, seed)) for seed in range(20)]
    assert np.mean(errors) < 0.5


def test_nothing_but_the_scale_of_loss_changes_moves_at_the_end():
    one = three()
    clips, counts = one.start(1.0), dict.fromkeys(one.names, jnp.float32(0.5))
    nothing = {name: jnp.zeros(size) for name, size in one.dimensions.items()}
    for phase, moving in ((SCALE, {LOSS_CHANGE}), (VALIDATE, set()), (TRACK, {"long", "short"})):
        after = one.update_clips(clips, counts, nothing, at(phase))
        assert {name for name in one.names if after[name]["median"] != clips[name]["median"]} == moving
