"""Batches: who is in them, of fixed shape, divided by public numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binomtest

import dpbilevel as dpb
from dpbilevel.privacy.noise import KeySchedule, capacity
from dpbilevel.records import isolated_jax_config

N, STEPS = 12, 3000


def counts(sampling, roles=("lower",), steps=STEPS):
    """How often each record is in each of ``steps`` batches: every record contributes a coordinate of its own."""
    release = dpb.Release(
        name="who",
        contributions={role: dpb.Contribution(lambda point, record: record, 1.0, N) for role in roles},
        noise_std=0.0,
        uses=steps,
        sampling=sampling,
    )
    wide = len(roles) * N
    records = {role: (jnp.eye(N, wide, index * N), jnp.ones(N, bool)) for index, role in enumerate(roles)}
    schedule = KeySchedule(3)
    keys = np.stack([schedule.keys(purpose, 0, steps) for purpose in ("noise", "batch")], axis=1)
    with isolated_jax_config():
        answers = jax.jit(jax.vmap(lambda key: release.answer(records, 0.0, key)))(keys)
    return np.rint(np.asarray(answers) * sampling.divisor(N)).astype(int)


def test_batches_without_replacement_hold_different_records_equally_often():
    """False-alarm rate 1e-4 in all, by Bonferroni over the records."""
    taken = counts(dpb.WithoutReplacement(5))
    assert set(np.unique(taken)) == {0, 1}
    assert np.all(taken.sum(axis=1) == 5)
    for frequency in taken.sum(axis=0):
        assert binomtest(int(frequency), STEPS, 5 / N).pvalue > 1e-4 / N


def test_batches_with_replacement_draw_independently():
    taken = counts(dpb.WithReplacement(5))
    assert np.all(taken.sum(axis=1) == 5)
    assert taken.max() > 1
    for frequency in taken.sum(axis=0):
        assert binomtest(int(frequency), 5 * STEPS, 1 / N).pvalue > 1e-4 / N
    twice = int((taken >= 2).sum())
    expected = 1 - (1 - 1 / N) ** 5 - 5 / N * (1 - 1 / N) ** 4
    assert binomtest(twice, STEPS * N, expected).pvalue > 1e-4


@pytest.mark.parametrize("sampling", [dpb.Poisson(0.3), dpb.WithoutReplacement(4), dpb.WithReplacement(4)])
def test_roles_and_steps_are_sampled_independently(sampling):
    taken = counts(sampling, roles=("upper", "lower"))
    upper, lower = taken[:, :N], taken[:, N:]
    limit = 4.5 / np.sqrt(STEPS)  # false-alarm rate below 1e-4 over the N coordinates
    for one, other in ((upper, lower), (upper[1:], upper[:-1])):
        for column in range(N):
            assert abs(np.corrcoef(one[:, column], other[:, column])[0, 1]) < limit


def test_a_poisson_batch_has_room_for_everybody_that_may_come():
    assert capacity(0.5, 10) == 10
    assert 1_000 < capacity(0.01, 100_000) < 1_700
    assert capacity(1e-12, 1000) < 100


def test_poisson_batches_of_fixed_shape_are_those_of_the_mask():
    """Large n, where the batch is gathered into fewer places than there are records."""
    n, rate = 5_000, 0.02
    assert capacity(rate, n) < n
    release = dpb.Release(
        name="sum",
        contributions={"lower": dpb.Contribution(lambda point, record: record, 1.0, n)},
        noise_std=0.0,
        uses=1,
        sampling=dpb.Poisson(rate),
    )
    keys = jnp.asarray(np.stack([KeySchedule(0).keys(p, 0, 1)[0] for p in ("noise", "batch")]))
    with isolated_jax_config():
        from dpbilevel.privacy.noise import membership

        mask = np.asarray(membership(keys[1], rate, n))
        values = jnp.linspace(-1, 1, n, dtype=jnp.float32)
        answer = float(release.answer({"lower": (values, jnp.ones(n, bool))}, 0.0, keys))
    assert answer == pytest.approx(float(np.asarray(values, np.float64)[mask].sum()) / (rate * n), rel=1e-5)


@pytest.mark.parametrize("kind", [dpb.WithoutReplacement, dpb.WithReplacement])
def test_batches_larger_than_the_role_are_refused(kind):
    with pytest.raises(dpb.InvalidArgument, match="size=13: must be at most n = 12"):
        counts(kind(13))
    for size in (0, -1, 1.5, True, "4"):
        with pytest.raises(dpb.InvalidArgument, match="size="):
            kind(size)
