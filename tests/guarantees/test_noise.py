"""Noise: the right law at the right scale, far enough into the tails, and never used twice.

Every statistical check is a function that mutations go through as well. Seeds are fixed, so that a test either
always passes or never does; the false-alarm rate says how lucky the seed had to be.
"""

import copy
import functools
import pickle

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm
from support.noise_checks import check_independent, check_moments, check_scale

from dpbilevel.errors import InvalidArgument
from dpbilevel.execution.program import Program, Stage
from dpbilevel.privacy import noise as noise_module
from dpbilevel.privacy import release as release_module
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.noise import KeySchedule, membership, standard_normal
from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.records import Records, isolated_jax_config

DIMENSION, STEPS, NOISE = 256, 300, 0.37
CENTRE = np.linspace(-0.05, 0.05, DIMENSION).astype(np.float32)  # every record, so that the noiseless answer is known


def constant_release(name="constant", noise=NOISE, steps=STEPS):
    parts = {"lower": Contribution(lambda point, record: record, 10.0, 4)}
    return Release(name=name, contributions=parts, noise_std=noise, uses=steps)


@functools.lru_cache  # so that all runs of the same releases share what is compiled
def program_of(*releases):
    """One use of each release a round; the history keeps all answers."""

    def stage(position, release):
        return Stage(
            release=release,
            uses_per_round=1,
            query=lambda state, carry, step: 0.0,
            update=lambda state, carry, answer, step: carry.at[position].set(answer),
            begin=lambda state: state,
            end=lambda state, carry: carry,
        )

    return Program(
        rounds=releases[0].uses,
        stages=tuple(stage(position, release) for position, release in enumerate(releases)),
        start=lambda x, y: x,
        observe=lambda state: state,
        finish=lambda state: (state, state),
    )


def draws(*releases, seed=0, schedule=None):
    """The noise of all answers, in units of the declared NOISE: shape (steps, releases, DIMENSION)."""
    program = program_of(*releases)
    records = Records(lower=np.tile(CENTRE, (4, 1)))
    schedule = KeySchedule(seed) if schedule is None else schedule
    state = np.zeros((len(releases), DIMENSION), np.float32)
    answers = np.asarray(records.execute(program, Receipt(releases), schedule, state, program.rounds)[1], np.float64)
    return (answers - CENTRE) / NOISE


TRUE = constant_release()


@pytest.fixture(scope="module")
def true_draws():
    return draws(TRUE)[:, 0]


# ---- law and scale


def test_noise_is_normal_at_the_declared_scale(true_draws):
    check_scale(true_draws)
    check_moments(true_draws)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_another_scale_is_caught(factor):
    """A release that executes 0.9 or 1.1 times the noise that it declares."""
    broken = draws(constant_release().scaled(factor))
    with pytest.raises(AssertionError):
        check_scale(broken)
    with pytest.raises(AssertionError):
        check_moments(broken)


@pytest.mark.parametrize("law", ["laplace", "uniform"])
def test_another_law_is_caught(monkeypatch, law):
    """Of the same mean and variance."""

    def mutant(key, size):
        key = jax.random.wrap_key_data(key)
        if law == "laplace":
            return jax.random.laplace(key, (size,), jnp.float64) / np.sqrt(2)
        return jax.random.uniform(key, (size,), jnp.float64, -np.sqrt(3), np.sqrt(3))

    monkeypatch.setattr(release_module, "standard_normal", mutant)
    broken = draws(constant_release())
    with pytest.raises(AssertionError):
        check_scale(broken)


def test_no_noise_where_none_is_declared():
    np.testing.assert_allclose(draws(constant_release(noise=0.0, steps=2)), 0, atol=1e-6)


# ---- tails


def extreme(function, ones):
    """What ``function`` draws when every random bit is one (or zero): the end of its support, without luck."""

    def bits(key, bit_width, shape):
        dtype = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}[bit_width]
        return jnp.full(shape, jnp.iinfo(dtype).max if ones else 0, dtype)

    implementation = jax.extend.random.define_prng_impl(
        key_shape=(2,),
        seed=lambda seed: jnp.zeros(2, jnp.uint32),
        split=lambda key, shape: jnp.zeros((*shape, 2), jnp.uint32),
        random_bits=bits,
        fold_in=lambda key, data: key,
        name=f"all bits {'one' if ones else 'zero'}",
        tag="test",
    )
    with isolated_jax_config():
        return float(function(jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl=implementation))[0])


def drawn(key):
    """`standard_normal` with a key that is wrapped already."""
    return standard_normal(key, 1)


def check_support(function):
    """Both ends of the support lie beyond eight standard deviations."""
    assert extreme(function, ones=False) < -8
    assert extreme(function, ones=True) > 8


def test_noise_is_drawn_in_float64():
    with isolated_jax_config():
        assert standard_normal(jnp.zeros(2, jnp.uint32), 3).dtype == np.float64
        assert membership(jnp.zeros(2, jnp.uint32), 0.5, 3).dtype == bool


def test_the_support_of_the_noise_exceeds_eight_sigma(monkeypatch):
    monkeypatch.setattr(noise_module, "_wrapped", lambda key: key)
    check_support(drawn)


def test_float32_noise_is_caught():
    """float32 stops short of 5.5 standard deviations: an event of probability 1e-7 would identify a record."""

    def narrow(key):
        return jax.random.normal(key, (1,), jnp.float32)

    assert 5 < abs(extreme(narrow, ones=False)) < 5.5
    assert 5 < abs(extreme(narrow, ones=True)) < 5.5
    with pytest.raises(AssertionError):
        check_support(narrow)


def test_noise_has_more_digits_than_float32():
    with isolated_jax_config():
        values = np.asarray(standard_normal(jnp.asarray(KeySchedule(0).keys("noise", 0, 1)[0]), 4000))
    assert np.mean(values != values.astype(np.float32)) > 0.99
    assert len(np.unique(values)) == 4000


def test_the_noise_does_not_depend_on_the_default_generator():
    key = jnp.asarray(KeySchedule(0).keys("noise", 0, 1)[0])
    with isolated_jax_config():
        expected = np.asarray(standard_normal(key, 5))
        with jax.default_prng_impl("rbg"):
            np.testing.assert_array_equal(standard_normal(key, 5), expected)


def test_the_noise_is_the_same_in_pieces_of_a_run(true_draws):
    """A run that stops after 150 of 300 rounds and resumes draws the same noise as the uninterrupted run."""
    program, records = program_of(TRUE), Records(lower=np.tile(CENTRE, (4, 1)))
    receipt, schedule = Receipt([TRUE]), KeySchedule(0)
    state, parts = np.zeros((1, DIMENSION), np.float32), []
    for _ in range(2):
        state, seen = records.execute(program, receipt, schedule, state, 150)
        parts.append(np.asarray(seen, np.float64))
    np.testing.assert_array_equal((np.concatenate(parts)[:, 0] - CENTRE) / NOISE, true_draws)


# ---- independence


def test_coordinates_and_steps_are_independent(true_draws):
    check_independent(true_draws)
    check_independent(true_draws.T)


def test_releases_and_runs_are_independent(true_draws):
    """Two releases in one run (even with equal declarations), and two runs."""
    two = draws(constant_release("one"), constant_release("two"))
    check_independent(np.concatenate([two[:, 0], two[:, 1]]))
    check_independent(np.concatenate([true_draws, draws(TRUE, seed=1)[:, 0]]))


def test_two_private_runs_never_share_noise():
    first, second = (draws(TRUE, seed=None)[:, 0] for _ in range(2))
    assert len(np.unique(np.concatenate([first, second]))) > 0.999 * 2 * first.size  # float32 answers may coincide
    check_independent(np.concatenate([first, second]))


def test_correlated_noise_is_caught(monkeypatch, true_draws):
    """One draw for all coordinates; one key for all steps; the same seed twice."""

    class Replaying(KeySchedule):
        def keys(self, purpose, first, number):
            return np.repeat(super().keys(purpose, 0, 1), number, axis=0)

    broken = [draws(TRUE, schedule=Replaying(0))[:, 0]]
    broken.append(np.concatenate([true_draws, draws(TRUE, seed=0)[:, 0]]))
    monkeypatch.setattr(
        release_module, "standard_normal", lambda key, size: jnp.broadcast_to(standard_normal(key, 1), (size,))
    )
    broken.append(draws(constant_release())[:, 0].T)
    for rows in broken:
        with pytest.raises(AssertionError):
            check_independent(rows)


# ---- the key schedule


def rows(keys):
    return [tuple(key) for key in np.asarray(keys).tolist()]


def check_schedule(make):
    """A resumed schedule neither replays nor skips, and no key appears twice within a run or across two."""
    schedule, other = make(), make()
    whole = rows(schedule.keys("noise", 0, 100))
    assert rows(schedule.keys("noise", 0, 37)) + rows(schedule.keys("noise", 37, 63)) == whole
    assert rows(schedule.keys("noise", 99, 1)) == whole[-1:]
    everything = [*whole, *rows(schedule.keys("batch", 0, 100))]
    everything += [*rows(other.keys("noise", 0, 100)), *rows(other.keys("batch", 0, 100))]
    assert len(set(everything)) == 400


class Replaying(KeySchedule):
    """Starts over whenever it is asked: what a resumed run would do with a plain generator."""

    def keys(self, purpose, first, number):
        return super().keys(purpose, 0, number)


class OneKeyForAll(KeySchedule):
    """The batch key is the noise key."""

    def keys(self, purpose, first, number):
        return super().keys("noise", first, number)


class Constant(KeySchedule):
    """Ignores the index."""

    def keys(self, purpose, first, number):
        return np.repeat(super().keys(purpose, 0, 1), number, axis=0)


class Skipping(KeySchedule):
    """Loses a key wherever a run is resumed."""

    def keys(self, purpose, first, number):
        return super().keys(purpose, first + (first > 0), number)


def test_the_schedule_neither_replays_nor_skips():
    check_schedule(KeySchedule)


@pytest.mark.parametrize("mutant", [Replaying, OneKeyForAll, Constant, Skipping, lambda: KeySchedule(7)])
def test_a_broken_schedule_is_caught(mutant):
    with pytest.raises(AssertionError):
        check_schedule(mutant)


def test_keys_are_two_words_each():
    keys = KeySchedule().keys("noise", 5, 3)
    assert (keys.shape, keys.dtype) == ((3, 2), np.uint32)
    assert KeySchedule().keys("noise", 0, 0).shape == (0, 2)


def test_keys_look_uniform():
    """Every one of 64 bits is set in half of 4,000 keys; 64 tests, false-alarm rate below 1e-4."""
    bits = np.unpackbits(KeySchedule(0).keys("noise", 0, 4000).view(np.uint8), axis=1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < norm.isf(1e-6) * 0.5 / np.sqrt(4000)


def test_unknown_purposes_are_refused():
    with pytest.raises(KeyError):
        KeySchedule().keys("noize", 0, 1)


def test_a_program_gives_every_use_a_key_of_its_own():
    """Two stages, one use each a round; chunks of rounds concatenate; noise and batch keys all differ."""
    program = program_of(constant_release("one", steps=12), constant_release("two", steps=12))
    schedule = KeySchedule(0)
    whole = np.asarray(program.keys(schedule, 0, 12))
    assert whole.shape == (12, 2, 2, 2)
    assert len(set(rows(whole.reshape(-1, 2)))) == 48
    parts = [np.asarray(program.keys(schedule, first * program.keys_per_round, 4)) for first in (0, 4, 8)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_a_seed_fixes_the_keys_and_says_so():
    assert rows(KeySchedule(3).keys("noise", 0, 5)) == rows(KeySchedule(3).keys("noise", 0, 5))
    assert rows(KeySchedule(3).keys("noise", 0, 5)) == rows(KeySchedule(np.int64(3)).keys("noise", 0, 5))
    assert rows(KeySchedule(3).keys("noise", 0, 5)) != rows(KeySchedule(4).keys("noise", 0, 5))
    assert KeySchedule(3).reproducible
    assert KeySchedule(0).reproducible
    assert not KeySchedule().reproducible
    assert "not private" in repr(KeySchedule(3))


def test_a_seeded_schedule_cannot_be_declared_private():
    schedule = KeySchedule(3)
    with pytest.raises(AttributeError):
        schedule.reproducible = False


@pytest.mark.parametrize(
    "seed", [-1, 1.0, True, False, "1", b"1", [1], np.float64(2), np.array(3), np.bool_(1)], ids=repr
)
def test_bad_seeds_are_refused(seed):
    with pytest.raises(InvalidArgument, match="seed"):
        KeySchedule(seed)


def check_secret_is_hidden(schedule, secret):
    """The secret appears, as bytes or digits, in nothing that describes the object."""
    described = [repr(schedule), str(schedule), f"{schedule}", repr([schedule]), repr(dir(schedule))]
    described.append(repr(getattr(schedule, "__dict__", {})))
    for text in described:
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text
        assert str(int.from_bytes(secret, "big")) not in text


def test_the_secret_is_hidden(monkeypatch):
    secret = bytes(range(65, 97))
    monkeypatch.setattr(noise_module.secrets, "token_bytes", lambda size: secret[:size])
    check_secret_is_hidden(KeySchedule(), secret)


@pytest.mark.parametrize("carry_away", [pickle.dumps, copy.copy, copy.deepcopy, vars], ids=lambda f: f.__name__)
def test_the_secret_cannot_be_carried_away(carry_away):
    with pytest.raises(TypeError):
        carry_away(KeySchedule())


def test_the_secret_is_not_part_of_a_state():
    """``__getstate__`` is what other serialisers than pickle ask."""
    try:
        state = KeySchedule().__getstate__()
    except TypeError:
        return
    assert "bytes" not in {type(value).__name__ for part in state for value in (part or {}).values()}


def test_the_secret_comes_from_the_operating_system(monkeypatch):
    asked = []
    monkeypatch.setattr(noise_module.secrets, "token_bytes", lambda size: asked.append(size) or bytes(size))
    KeySchedule()
    assert asked == [32]
