"""The integers of exact noise: no neighbour moves a sum further than is charged, no order of records changes a bit."""

import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy import clipping, memory
from dpbilevel.privacy import release as release_module
from dpbilevel.privacy.clipping import clipped_sum
from dpbilevel.privacy.grid import Grid, integers
from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.privacy.sampling import Poisson, WithoutReplacement
from dpbilevel.records import isolated_jax_config


def identity(point, record):
    return record


def discretized(dimension, roles, noise=0.01, **settings):
    """A release of means, with clips and counts by role, on integers."""
    contributions = {role: Contribution(identity, clip, count) for role, (clip, count) in roles.items()}
    release = Release(name="mean", contributions=contributions, noise_std=noise, uses=1, **settings)
    return release.discretized(dimension)


def halves(noise):
    return np.array(noise, "<i8", order="C").view("<u4").reshape(-1, 2)


def answered(release, rows, noise=None):
    """The answer of a release in a compiled program."""
    noise = np.zeros(release.grid.dimension, np.int64) if noise is None else noise
    arrays = {role: (jnp.asarray(leaf), jnp.ones(len(leaf), bool)) for role, leaf in rows.items()}
    with isolated_jax_config():
        wide = jax.jit(lambda arrays, noise: Release.answer(release, arrays, 0.0, noise))(arrays, halves(noise))
    return np.asarray(wide)


@functools.cache
def compiled(dimension, clip, count, elements):
    grid = Grid.of("mean", dimension, {"lower": (clip, count)})
    return jax.jit(lambda rows: grid.summed(lambda row: row, rows, jnp.ones(len(rows), bool), clip, count))


def summed(vectors, clip, count=None):
    """A role's sum of integers."""
    count = len(vectors) if count is None else count
    with isolated_jax_config():
        return np.asarray(compiled(vectors.shape[1], clip, count, memory._ELEMENTS)(jnp.asarray(vectors)))


def exact_integers(vectors, clip, count):
    """What a record adds, record by record, as Python integers."""
    grid = Grid.of("mean", vectors.shape[1], {"lower": (clip, count)})
    return on(grid, vectors, clip, count), grid


def on(grid, vectors, clip, count):
    with isolated_jax_config():
        return np.asarray(_integers(vectors.astype(float), clip, count * grid.unit, grid.longest(clip, count)))


@jax.jit
def _integers(vectors, clip, spacing, longest):
    return integers(vectors, jnp.ones(len(vectors), bool), clip, spacing, longest)


# ---- sensitivity


def adversarial(dimension, clip, count, seed=0):
    """Rows at the clip, beyond it, and such that every entry is rounded away from zero."""
    rng = np.random.default_rng(seed)
    grid = Grid.of("mean", dimension, {"lower": (clip, count)})
    spacing = count * grid.unit
    directions = rng.normal(size=(10, dimension))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    even = np.full((1, dimension), clip / math.sqrt(dimension))
    one = np.eye(1, dimension) * clip
    away = (np.floor(even / spacing) - 0.5 + 1e-6) * spacing  # just within the clip, all entries rounded up
    rows = [directions * clip, directions * clip * 1e6, even, one, -one, away, -away, even * (1 + 1e-6)]
    return np.concatenate(rows).astype(np.float32)


@pytest.mark.parametrize("clip", [0.3, 2.0**-60, 2.0**60])
@pytest.mark.parametrize("dimension", [1, 30, 70_000])
def test_no_row_of_integers_is_longer_than_is_charged(dimension, clip):
    count = 1000
    rows, grid = exact_integers(adversarial(dimension, clip, count), clip, count)
    squares = (rows**2).sum(axis=1)  # in int64, below 2^43: exact
    longest = Fraction(clip) / Fraction(count) / Fraction(grid.unit)
    assert int(squares.max()) <= (longest * (1 + Fraction(1, 2**7))) ** 2
    assert int(squares.min()) > (longest * Fraction(99, 100)) ** 2, "none is cut off: rounding does not reach the limit"


@given(
    st.floats(-50, 50),
    st.integers(1, 10**9),
    st.floats(-10, 2),
    st.sampled_from(["replace-one", "zero-out"]),
    st.one_of(st.none(), st.tuples(st.floats(-3, 3), st.integers(1, 10**6))),
)
def test_sensitivity_over_noise_of_the_integers_is_at_most_what_is_charged(exponent, count, noise, adjacency, other):
    """In fractions: (largest move of the sum) / (scale, for the very float that it is) against the charged ratio."""
    roles = {"lower": (2.0**exponent, count)}
    if other is not None:
        roles["upper"] = (2.0 ** (exponent + other[0]), other[1])
    deviation = 10.0**-noise * max(clip / number for clip, number in roles.values())
    try:
        release = discretized(5, roles, noise=deviation, adjacency=adjacency)
    except InvalidArgument:
        return  # beyond 64 bits: refused
    changed = 2 if adjacency == "replace-one" else 1
    for charge in release.charges():
        clip, number = roles[charge.role]
        # `integers` compares a sum of squares in float64 with the limit: 2^-25 covers its rounding.
        longest = Fraction(release.grid.longest(clip, number)) * (1 + Fraction(1, 2**25))
        assert changed * longest / Fraction(release.scale) <= Fraction(charge.ratio)
        assert number * longest < 2**62


def moved(kind, dimension=40, count=50, clip=0.7):
    """The largest move of integer sums between neighbours, over what is charged; ``kind`` maps rows to integers."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(count, dimension)).astype(np.float32)
    grid = Grid.of("mean", dimension, {"lower": (clip, count)})
    bound = 2 * clip * (1 + clipping.ROUNDING) / (count * grid.unit)
    largest = 0.0
    for row in adversarial(dimension, clip, count):
        one, other = rows.copy(), rows.copy()
        one[0], other[0] = row, -row
        largest = max(largest, float(np.linalg.norm((kind(one, clip, grid) - kind(other, clip, grid)).astype(float))))
    return largest / bound


def test_neighbours_move_a_sum_no_further_than_is_charged():
    assert 0.98 < moved(lambda rows, clip, grid: summed(rows, clip)) <= 1


def no_clip(rows, clip, grid):
    return np.rint(rows.astype(float) / (len(rows) * grid.unit)).astype(np.int64).sum(axis=0)


def coarse(rows, clip, grid):
    """Rounded away from zero, on a grid of the clip itself."""
    short = rows * np.minimum(1, clip / np.linalg.norm(rows, axis=1, keepdims=True))
    units = np.sign(short) * np.ceil(np.abs(short) / clip * 4)
    return (units / 4 * clip / (len(rows) * grid.unit)).astype(np.int64).sum(axis=0)


@pytest.mark.parametrize("mutant", [no_clip, coarse])
def test_the_neighbour_test_catches_broken_sums(mutant):
    assert moved(mutant) > 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_rows_that_are_not_finite_count_as_zero(bad):
    rows = np.ones((3, 2), np.float32) / 2
    rows[1, 0] = bad
    assert np.array_equal(summed(rows, 1.0), 2 * summed(rows[:1], 1.0, count=3))


def test_a_row_that_clipping_left_too_long_counts_as_zero():
    """The limit is enforced on the integers; it does not rest on what clipping promises."""
    with isolated_jax_config():
        vectors = jnp.asarray([[3.0, 4.0], [3.0, 4.1], [np.nan, 0.0]])
        rows = integers(vectors, jnp.ones(3, bool), 10.0, 2.0**-20, 5.0 * 2**20)
    assert np.array_equal(np.asarray(rows), [[3 * 2**20, 4 * 2**20], [0, 0], [0, 0]])


# ---- sums that are exact


@pytest.mark.parametrize("seed", [0, 1])
def test_no_order_of_records_changes_a_bit(seed):
    rng = np.random.default_rng(seed)
    rows = (rng.normal(size=(3001, 7)) * rng.uniform(0.01, 10, size=(3001, 1))).astype(np.float32)
    assert np.array_equal(summed(rows, 1.0), summed(rows[rng.permutation(len(rows))], 1.0))


def test_sums_in_floating_point_would_show_the_order():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3001, 7)).astype(np.float32)
    with isolated_jax_config():
        add = jax.jit(lambda rows: clipped_sum(lambda row: row, rows, jnp.ones(len(rows), bool), 1.0))
        assert not np.array_equal(add(jnp.asarray(rows)), add(jnp.asarray(rows[rng.permutation(len(rows))])))


@pytest.mark.parametrize("elements", [70, 5000])
def test_no_size_of_blocks_changes_a_bit(monkeypatch, elements):
    rows = np.random.default_rng(3).normal(size=(1003, 7)).astype(np.float32)
    whole = summed(rows, 1.0)
    monkeypatch.setattr(memory, "_ELEMENTS", elements)
    assert np.array_equal(summed(rows, 1.0), whole)


def test_sums_are_those_of_python_integers():
    rows = np.random.default_rng(4).normal(size=(500, 5)).astype(np.float32)
    each, _ = exact_integers(rows, 1.0, 500)
    expected = [sum(int(entry) for entry in column) for column in each.T]
    assert summed(rows, 1.0).tolist() == expected


def test_an_answer_is_noise_plus_sums_times_the_unit():
    """Of two roles with other counts and clips: one grid, one noise."""
    rng = np.random.default_rng(5)
    rows = {"upper": rng.normal(size=(30, 3)).astype(np.float32), "lower": rng.normal(size=(77, 3)).astype(np.float32)}
    roles = {"upper": (0.25, 30), "lower": (1.0, 77)}
    release = discretized(3, roles)
    noise = np.array([2**40 + 1, -(2**40) - 3, 5], np.int64)
    total = noise.astype(object)
    for role, (clip, count) in roles.items():
        total = total + on(release.grid, rows[role], clip, count).sum(axis=0)
    expected = (np.array(total, float) * release.grid.unit).astype(np.float32)
    assert np.array_equal(answered(release, rows, noise), expected)
    mean = noise * release.grid.unit
    for role, (clip, _) in roles.items():
        lengths = np.linalg.norm(rows[role], axis=1, keepdims=True)
        mean = mean + (rows[role] * np.minimum(1, clip / lengths)).mean(axis=0)
    np.testing.assert_allclose(expected, mean, rtol=1e-5, atol=1e-6)


def test_noise_of_any_size_arrives_whole():
    noise = np.array([0, 1, -1, 2**31, -(2**31) - 1, 2**53 - 1, -(2**53) + 1, 2**61 + 2**40, -(2**62)])
    release = discretized(len(noise), {"lower": (1.0, 4)})
    answer = answered(release, {"lower": np.zeros((4, len(noise)), np.float32)}, noise)
    assert np.array_equal(answer, (noise.astype(np.float64) * release.grid.unit).astype(np.float32))


# ---- limits


def test_the_unit_is_a_power_of_two_and_small_against_every_clip():
    for clip, count in ((1.0, 1000), (0.3, 7), (2.0**-60, 10**9), (2.0**60, 1)):
        grid = Grid.of("mean", 3, {"lower": (clip, count), "upper": (3 * clip, count)})
        assert math.frexp(grid.unit)[0] == 0.5
        assert 2**20 <= clip / count / grid.unit < 2**21


def test_what_64_bits_do_not_hold_is_refused():
    with pytest.raises(InvalidArgument, match=r'noise="exact": release .mean. has .* entries; must be at most 2\^24'):
        Grid.of("mean", 2**24 + 1, {"lower": (1.0, 10)})
    with pytest.raises(InvalidArgument, match="could exceed 64-bit integers"):
        Grid.of("mean", 3, {"lower": (1.0, 2**42)})
    with pytest.raises(InvalidArgument, match="could exceed 64-bit integers"):
        Grid.of("mean", 3, {"lower": (2.0**-40, 1000), "upper": (2.0**10, 1000)})
    with pytest.raises(InvalidArgument, match=r"needs noise of .* units; must be above 0 and at most 2\^52"):
        discretized(3, {"lower": (1.0, 1000)}, noise=1e8)
    with pytest.raises(InvalidArgument, match="needs noise of 0 units"):
        discretized(3, {"lower": (1.0, 1000)}, noise=0.0)
    with pytest.raises(InvalidArgument, match=r"at most 2\^52"):
        discretized(3, {"lower": (1.0, 1000)}).scaled(1e10)
    with pytest.raises(InvalidArgument, match="needs a finite epsilon"):
        discretized(3, {"lower": (math.inf, 1000)})


@pytest.mark.parametrize("sampling", [Poisson(0.5), WithoutReplacement(5)])
def test_batches_are_refused(sampling):
    with pytest.raises(InvalidArgument, match=r'noise="exact": release .mean. samples'):
        discretized(3, {"lower": (1.0, 10)}, sampling=sampling)


def test_poisson_of_everybody_is_no_batch():
    assert discretized(3, {"lower": (1.0, 10)}, sampling=Poisson(1.0)).grid is not None


def test_a_release_with_exact_noise_takes_no_keys(monkeypatch):
    release = discretized(3, {"lower": (1.0, 4)})
    monkeypatch.setattr(release_module, "standard_normal", None)
    arrays = {"lower": (jnp.zeros((4, 3)), jnp.ones(4, bool))}
    for wrong in (np.zeros((2, 2), np.uint32), np.zeros((3, 2), np.int32), np.zeros(3, np.uint32)):
        with (
            isolated_jax_config(),
            pytest.raises(InvalidArgument, match="takes 3 integers of exact noise, and no keys"),
        ):
            Release.answer(release, arrays, 0.0, jnp.asarray(wrong))
