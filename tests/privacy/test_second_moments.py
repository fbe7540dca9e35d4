"""Second moments of rows: what is summed, how far a record moves them, and their noise."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import dpbilevel as dpb
from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy import second_moments
from dpbilevel.privacy.release import Contribution
from dpbilevel.privacy.second_moments import SecondMoments, coordinates, matrix
from dpbilevel.records import isolated_jax_config

RECORDS, COLUMNS, NORM = 40, 5, 2.0
KEYS = np.arange(4, dtype=np.uint32).reshape(2, 2)


def declared(adjacency="replace-one", *, noise_std=0.0, count=RECORDS):
    row = Contribution(lambda point, record: record, NORM, count)
    return SecondMoments(name="moments", contributions={"lower": row}, noise_std=noise_std, uses=1, adjacency=adjacency)


@functools.cache
def compiled(release):
    def answer(rows, present, keys):
        with jax.enable_x64(False):
            return release.answer({"lower": (rows, present)}, (), keys)

    return jax.jit(answer)


def moments(release, rows, present=None, keys=KEYS):
    present = np.ones(len(rows), bool) if present is None else present
    with isolated_jax_config():
        answer = compiled(release)(np.asarray(rows, np.float32), present, keys)
        return np.asarray(answer, np.float64)


@functools.cache
def without_noise(adjacency="replace-one"):
    return declared(adjacency)


def clipped_rows(rows):
    rows = np.asarray(rows, np.float64)
    return rows * np.minimum(1, NORM / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300))


def test_a_clip_whose_square_float32_cannot_hold_is_refused():
    """Products of such rows are set to zero by some processors, beyond what the proof of rounding covers."""
    for clip in (2.0**-60, 2.0**-40 * 0.99):
        row = Contribution(lambda point, record: record, clip, RECORDS)
        with pytest.raises(InvalidArgument, match=r"clip=.*must be at least 2\^-40 for second moments"):
            SecondMoments(name="moments", contributions={"lower": row}, noise_std=1.0, uses=1)
    row = Contribution(lambda point, record: record, 2.0**-40, RECORDS)
    SecondMoments(name="moments", contributions={"lower": row}, noise_std=1.0, uses=1)


def test_agrees_with_numpy():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(RECORDS, COLUMNS)) * 10 ** rng.uniform(-2, 1, size=(RECORDS, 1))
    present = rng.random(RECORDS) < 0.8
    used = clipped_rows(rows[present])
    np.testing.assert_allclose(moments(without_noise(), rows, present), used.T @ used / RECORDS, rtol=1e-5, atol=1e-6)


def test_rows_that_are_not_finite_count_as_zero():
    rows = np.ones((RECORDS, COLUMNS))
    spoiled = rows.copy()
    spoiled[3, 1], spoiled[7, 0] = np.nan, np.inf
    expected = moments(without_noise(), rows) * (RECORDS - 2) / RECORDS
    np.testing.assert_allclose(moments(without_noise(), spoiled), expected, rtol=1e-6)


def test_many_blocks(monkeypatch):
    rows = np.random.default_rng(1).normal(size=(5000, 30))
    release = declared(count=5000)
    used = clipped_rows(rows)
    np.testing.assert_allclose(moments(release, rows), used.T @ used / 5000, rtol=1e-4, atol=1e-6)


def test_coordinates_keep_the_norm_and_come_back():
    square = np.random.default_rng(2).normal(size=(4, 4))
    square = square + square.T
    entries = coordinates(jnp.asarray(square).ravel())
    assert float(jnp.sum(entries**2)) == pytest.approx(np.sum(square**2), rel=1e-5)
    np.testing.assert_allclose(matrix(entries), square, rtol=1e-5)


# ---- how far one record moves the answer

_ENTRIES = st.sampled_from([0.0, 1e-30, 0.3, -0.3, 1.0, -1.0, 2.0, -2.0, 50.0, 1e30, -1e30, math.nan, math.inf])
_ROWS = st.lists(_ENTRIES, min_size=COLUMNS, max_size=COLUMNS)


def moved(release, before, after, others):
    rows = np.tile(np.asarray(others, np.float64), (RECORDS, 1))
    first, second = rows.copy(), rows.copy()
    first[0], second[0] = before, after
    return float(np.linalg.norm(moments(release, first) - moments(release, second)))


@given(_ROWS, _ROWS, _ROWS)
@settings(max_examples=60, deadline=None, phases=[Phase.generate, Phase.shrink])
def test_a_replaced_row_moves_it_by_no_more_than_the_sensitivity(before, after, others):
    release = without_noise()
    assert moved(release, before, after, others) <= release.sensitivity("lower")


@given(_ROWS, _ROWS)
@settings(max_examples=40, deadline=None, phases=[Phase.generate, Phase.shrink])
def test_a_row_set_to_zero_moves_it_by_no_more_than_the_sensitivity(before, others):
    release = without_noise("zero-out")
    assert moved(release, before, [0.0] * COLUMNS, others) <= release.sensitivity("lower")


def orthogonal():
    first, second = np.zeros((2, COLUMNS))
    first[0] = second[1] = NORM
    return first, second, np.full(COLUMNS, 0.9)


def test_orthogonal_rows_reach_the_sensitivity():
    """The bound is tight: a sensitivity that is smaller by more than rounding would be wrong."""
    release = without_noise()
    assert moved(release, *orthogonal()) > 0.99 * release.sensitivity("lower")


def test_a_smaller_sensitivity_is_noticed():
    """The mutant charges a replaced row like one that is set to zero."""
    assert moved(without_noise(), *orthogonal()) > 1.3 * without_noise("zero-out").sensitivity("lower")


def test_longer_rows_are_noticed(monkeypatch):
    """The mutant does not clip."""
    monkeypatch.setattr(second_moments, "clipped", lambda rows, taken, clip: jnp.where(taken[:, None], rows, 0))
    release = declared()
    first, second, others = orthogonal()
    assert moved(release, 2 * first, second, others) > 1.5 * release.sensitivity("lower")


def test_products_that_are_not_of_one_row_are_noticed(monkeypatch):
    """The mutant trusts a declaration: a record may choose the sign of its product, and inner products are negative."""
    honest = jax.lax.dot_general

    def signed(left, right, *arguments, **options):
        return honest(left * jnp.sign(left[..., :1]), right, *arguments, **options)

    monkeypatch.setattr(jax.lax, "dot_general", signed)
    release = declared()
    first = np.zeros(COLUMNS)
    first[0] = first[1] = NORM / math.sqrt(2)
    second = np.array([-first[0], first[1], 0, 0, 0])
    second[1] = -first[1]
    assert moved(release, first, second, np.full(COLUMNS, 0.5)) > 1.3 * release.sensitivity("lower")


# ---- noise


def test_noise_is_symmetric_with_the_stated_deviations():
    """2,000 draws; each of the two deviations is off by 8% with a probability below 1e-6."""
    release = declared(noise_std=0.5)
    draws = np.stack(
        [
            moments(release, np.zeros((RECORDS, COLUMNS)), keys=np.array([[seed, 1], [0, 0]], np.uint32))
            for seed in range(2000)
        ]
    )
    np.testing.assert_array_equal(draws, draws.transpose(0, 2, 1))
    assert draws[:, range(COLUMNS), range(COLUMNS)].std() == pytest.approx(0.5, rel=0.08)
    assert draws[:, 0, 1:].std() == pytest.approx(0.5 / math.sqrt(2), rel=0.08)


def test_exact_integers_agree_and_move_by_no_more_than_the_sensitivity():
    release = declared(noise_std=0.01).discretized(COLUMNS**2)
    grid = release.grid
    none = np.zeros((grid.dimension, 2), np.uint32)
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(RECORDS, COLUMNS))
    used = clipped_rows(rows)
    np.testing.assert_allclose(moments(release, rows, keys=none), used.T @ used / RECORDS, atol=1e-5)
    first, second, others = orthogonal()
    answers = []
    for row in (first, second, 30 * first, -second, np.full(COLUMNS, np.nan)):
        every = np.tile(others, (RECORDS, 1))
        every[0] = row
        answers.append(moments(release, every, keys=none))
    farthest = max(float(np.linalg.norm(a - b)) for a in answers for b in answers)
    assert 0.99 * release.sensitivity("lower") < farthest <= release.sensitivity("lower")


def test_batches_are_refused():
    row = Contribution(lambda point, record: record, NORM, RECORDS)
    with pytest.raises(InvalidArgument, match="FullBatch"):
        SecondMoments(name="m", contributions={"lower": row}, noise_std=1.0, uses=1, sampling=dpb.Poisson(0.1))
