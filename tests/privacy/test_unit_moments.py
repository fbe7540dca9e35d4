"""Second moments of units: all rows of a unit count as one matrix, which is clipped as a whole."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy import second_moments
from dpbilevel.privacy.clipping import clipped
from dpbilevel.privacy.release import Contribution
from dpbilevel.privacy.second_moments import SecondMoments
from dpbilevel.privacy.unit_moments import MOST_ROWS, clipped_bundles
from dpbilevel.records import isolated_jax_config

UNITS, ROWS, COLUMNS, NORM = 40, 3, 5, 2.0
KEYS = np.arange(4, dtype=np.uint32).reshape(2, 2)


def declared(adjacency="replace-one", *, noise_std=0.0, count=UNITS):
    rows = Contribution(lambda point, record: record, NORM, count)
    return SecondMoments(name="m", contributions={"lower": rows}, noise_std=noise_std, uses=1, adjacency=adjacency)


@functools.cache
def compiled(release):
    def answer(rows, present, keys):
        with jax.enable_x64(False):
            return release.answer({"lower": (rows, present)}, (), keys)

    return jax.jit(answer)


def moments(release, units, present=None, keys=KEYS):
    present = np.ones(len(units), bool) if present is None else present
    with isolated_jax_config():
        return np.asarray(compiled(release)(np.asarray(units, np.float32), present, keys), np.float64)


@functools.cache
def without_noise(adjacency="replace-one"):
    return declared(adjacency)


def expected(units, clip=NORM):
    """The sum of the matrices of units, each scaled to a norm of at most the square of the clip."""
    matrices = np.einsum("ujp,ujq->upq", units.astype(np.float64), units.astype(np.float64))
    norms = np.linalg.norm(matrices, axis=(1, 2))
    return (matrices * np.minimum(1, clip**2 / np.maximum(norms, 1e-300))[:, None, None]).sum(axis=0)


@pytest.mark.parametrize(
    ("number", "rows", "columns"), [(UNITS, ROWS, COLUMNS), (3000, 8, 20), (50, 300, 4), (7, 60, 3)]
)
def test_agrees_with_numpy(number, rows, columns):
    """Units of several blocks, with more rows than a chunk, and with a chunk that no number of units fills."""
    rng = np.random.default_rng(0)
    units = rng.normal(size=(number, rows, columns)) * 10 ** rng.uniform(-2, 1, size=(number, 1, 1))
    present = rng.random(number) < 0.8
    found = moments(declared(count=number), units, present)
    np.testing.assert_allclose(found, expected(units[present]) / number, rtol=1e-4, atol=1e-6)


def test_a_unit_of_one_row_is_a_row():
    rows = np.random.default_rng(1).normal(size=(UNITS, COLUMNS)) * 3
    np.testing.assert_allclose(moments(without_noise(), rows[:, None]), moments(without_noise(), rows), rtol=1e-5)


def test_rows_of_zeros_change_nothing():
    units = np.random.default_rng(2).normal(size=(UNITS, ROWS, COLUMNS))
    wider = np.concatenate([units, np.zeros((UNITS, 5, COLUMNS))], axis=1)
    np.testing.assert_allclose(moments(without_noise(), wider), moments(without_noise(), units), rtol=1e-5, atol=1e-7)


def test_a_unit_with_a_row_that_is_not_finite_counts_as_zero_as_a_whole():
    units = np.ones((UNITS, ROWS, COLUMNS))
    spoiled = units.copy()
    spoiled[3, 1, 1], spoiled[7, 0, 0] = np.nan, np.inf
    whole = moments(without_noise(), units) * (UNITS - 2) / UNITS
    np.testing.assert_allclose(moments(without_noise(), spoiled), whole, rtol=1e-6)


# ---- how far one unit moves the answer

_ENTRIES = st.sampled_from([0.0, 1e-30, 0.3, -0.3, 1.0, -1.0, 2.0, -2.0, 50.0, 1e30, -1e30, math.nan, math.inf])
_ROW = st.lists(_ENTRIES, min_size=COLUMNS, max_size=COLUMNS)
_UNIT = st.one_of(st.lists(_ROW, min_size=ROWS, max_size=ROWS), _ROW.map(lambda row: [row] * ROWS))


def moved(release, before, after, others):
    units = np.tile(np.asarray(others, np.float64), (UNITS, 1, 1))
    first, second = units.copy(), units.copy()
    first[0], second[0] = before, after
    return float(np.linalg.norm(moments(release, first) - moments(release, second)))


@given(_UNIT, _UNIT, _UNIT)
@settings(max_examples=60, deadline=None, phases=[Phase.generate, Phase.shrink])
def test_a_replaced_unit_moves_it_by_no_more_than_the_sensitivity(before, after, others):
    release = without_noise()
    assert moved(release, before, after, others) <= release.sensitivity("lower")


@given(_UNIT, _UNIT)
@settings(max_examples=40, deadline=None, phases=[Phase.generate, Phase.shrink])
def test_a_unit_set_to_zero_moves_it_by_no_more_than_the_sensitivity(before, others):
    release = without_noise("zero-out")
    assert moved(release, before, np.zeros((ROWS, COLUMNS)), others) <= release.sensitivity("lower")


def orthogonal(length=NORM):
    """Two units, all rows of one of them alike, and those of the other at right angles to them."""
    first, second = np.zeros((2, ROWS, COLUMNS))
    first[:, 0] = second[:, 1] = length
    return first, second, np.full((ROWS, COLUMNS), 0.3)


def test_orthogonal_units_reach_the_sensitivity():
    release = without_noise()
    assert 0.99 * release.sensitivity("lower") < moved(release, *orthogonal()) <= release.sensitivity("lower")


def _row_by_row(bundles, present, clip):
    """A broken clip: every row is shortened on its own."""
    units, most, columns = bundles.shape
    rows = clipped(bundles.reshape(-1, columns), jnp.repeat(present, most), clip)
    return rows.reshape(units, most, columns)


def _by_the_longest_row(bundles, present, clip):
    """A broken clip: the unit is scaled by its longest row."""
    longest = jnp.sqrt(jnp.max(jnp.sum(bundles**2, axis=2), axis=1))
    return bundles * (present / jnp.maximum(1, longest / clip)).astype(bundles.dtype)[:, None, None]


def _not_at_all(bundles, present, clip):
    return jnp.where(present[:, None, None], bundles, 0)


@pytest.mark.parametrize("broken", [_row_by_row, _by_the_longest_row, _not_at_all])
def test_a_broken_clip_is_noticed(broken, monkeypatch):
    monkeypatch.setattr(second_moments, "clipped_bundles", broken)
    release = declared()
    assert moved(release, *orthogonal()) > 2 * release.sensitivity("lower")


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15, 1e29])
def test_no_matrix_is_longer_than_the_clip(scale):
    """In float64, from the rows that are summed. At 1e29 some entries count as infinite, and their units are zero."""
    rng = np.random.default_rng(3)
    units = (scale * rng.normal(size=(200, 6, 9)) * 10 ** rng.uniform(-3, 3, size=(200, 6, 1))).astype(np.float32)
    units[::3] = units[::3, :1]
    with isolated_jax_config():
        rows = np.asarray(clipped_bundles(jnp.asarray(units), jnp.ones(200, bool), 0.7), np.float64)
    norms = np.linalg.norm(np.einsum("ujp,ujq->upq", rows, rows), axis=(1, 2))
    assert norms.max() <= 0.7**2 * (1 + 2**-14)
    assert scale != 1e15 or norms.min() > 0.7**2 * (1 - 2**-14)


def test_exact_integers_agree_and_move_by_no_more_than_the_sensitivity():
    release = declared(noise_std=0.01).discretized(COLUMNS**2)
    none = np.zeros((release.grid.dimension, 2), np.uint32)
    units = np.random.default_rng(4).normal(size=(UNITS, ROWS, COLUMNS))
    np.testing.assert_allclose(moments(release, units, keys=none), expected(units) / UNITS, atol=1e-5)
    first, second, others = orthogonal()
    answers = []
    for unit in (first, second, 30 * first, -second, np.full((ROWS, COLUMNS), np.nan)):
        every = np.tile(others, (UNITS, 1, 1))
        every[0] = unit
        answers.append(moments(release, every, keys=none))
    farthest = max(float(np.linalg.norm(a - b)) for a in answers for b in answers)
    assert 0.99 * release.sensitivity("lower") < farthest <= release.sensitivity("lower")


@pytest.mark.parametrize("shape", [(MOST_ROWS + 1, 2), (2, 2, 2), ()])
def test_what_is_no_row_and_no_unit_is_refused(shape):
    one = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    with pytest.raises(InvalidArgument, match="at most 16384 rows"), isolated_jax_config():
        jax.eval_shape(compiled(declared(count=2)), one, np.ones(2, bool), KEYS)
