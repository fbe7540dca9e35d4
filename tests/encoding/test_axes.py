"""Axes and hats: a partition of unity on every scale, that reproduces lines, and a number of knots from public rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbilevel.encoding.axes import SCALES, Axis, Hats, intervals

FINITE = st.floats(allow_nan=False, allow_infinity=False)
RANGES = st.tuples(FINITE, FINITE).filter(lambda pair: pair[0] < pair[1])


@given(bounds=RANGES, scale=st.sampled_from(SCALES), numbers=st.lists(FINITE, min_size=2, max_size=6))
def test_an_axis_is_monotone_and_clamps(bounds, scale, numbers):
    axis = Axis(*bounds, scale)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        places = axis.places(np.sort(numbers))
        ends = axis.places([bounds[0], bounds[1]])
    assert ((places >= 0) & (places <= 1)).all()
    assert (np.diff(places) >= 0).all()
    assert ends[0] == 0
    if bounds[1] / 2 > bounds[0] / 2:
        assert ends[1] == pytest.approx(1)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("bounds", [(0.0, 99_999.0), (-60.0, 180.0), (1.0, 1e6), (-5.0, -1.0), (0.01, 0.02)])
def test_numbers_are_the_inverse_of_places(bounds, scale):
    axis = Axis(*bounds, scale)
    places = np.linspace(0, 1, 50)
    np.testing.assert_allclose(axis.places(axis.numbers(places)), places, atol=1e-9)


def test_the_logarithm_is_that_of_the_number_where_the_range_is_positive_and_does_not_depend_on_the_unit():
    np.testing.assert_allclose(Axis(1.0, 1000.0, "log").places([1, 10, 100, 1000]), [0, 1 / 3, 2 / 3, 1], atol=1e-12)
    money = np.array([0.0, 50.0, 7688.0, 99_999.0])
    dollars, cents = Axis(0.0, 99_999.0, "log"), Axis(0.0, 9_999_900.0, "log")
    np.testing.assert_allclose(dollars.places(money), cents.places(100 * money), atol=1e-12)


@given(
    bounds=RANGES.filter(lambda pair: pair[1] / 2 - pair[0] / 2 > 1e-300),
    scale=st.sampled_from(SCALES),
    knots=st.integers(2, 40),
    cells=st.lists(FINITE, min_size=1, max_size=8),
)
def test_hats_are_a_partition_of_unity(bounds, scale, knots, cells):
    hats = Hats.even(Axis(*bounds, scale), knots)
    if not (np.diff(hats.axis.places(hats.knots)) > 0).all():  # an encoder refuses these
        return
    out = np.zeros((len(cells), knots), np.float32)
    hats.write(np.array(cells), np.full(len(cells), True), out, 1.0)
    assert (out >= 0).all()
    np.testing.assert_allclose(out.sum(axis=1), 1, atol=1e-6)
    assert ((out > 0).sum(axis=1) <= 2).all()
    assert np.linalg.norm(out.astype(np.float64), axis=1).max() <= 1.0


def test_hats_reproduce_lines_and_are_flat_beyond_explicit_knots():
    axis = Axis(0.0, 10.0)
    cells = np.linspace(-3, 13, 81)
    out = np.zeros((81, 4), np.float32)
    hats = Hats(axis, np.array([2.0, 3.0, 7.0, 9.0]))
    hats.write(cells, np.full(81, True), out, 1.0)
    np.testing.assert_allclose(out @ hats.knots, np.clip(cells, 2, 9), atol=1e-5)


def test_unused_cells_are_zeros():
    out = np.zeros((2, 3), np.float32)
    Hats.even(Axis(0.0, 1.0), 3).write(np.array([np.nan, 0.5]), np.array([False, True]), out, 1.0)
    assert out.tolist() == [[0, 0, 0], [0, 1, 0]]


def test_the_number_of_intervals_minimises_bias_and_variance():
    """For a whole wave with as much noise, by least squares on a grid: within one of the best."""
    rows, grid = 20_000, (np.arange(4000) + 0.5) / 4000
    wave = np.sqrt(2) * np.sin(2 * np.pi * grid)
    errors = {}
    for number in range(4, 25):
        basis = np.zeros((4000, number + 1), np.float32)
        Hats.even(Axis(0.0, 1.0), number + 1).write(grid, np.full(4000, True), basis, 1.0)
        fitted = basis @ np.linalg.lstsq(basis, wave, rcond=None)[0]
        errors[number] = np.mean((fitted - wave) ** 2) + number / rows
    assert abs(min(errors, key=errors.get) - intervals(rows)) <= 1
