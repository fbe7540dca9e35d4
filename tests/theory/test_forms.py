"""The maxima of forms on the quarter circle, against a dense grid, for coefficients of any size."""

import math

import numpy as np
import pytest

from dpbilevel.theory.forms import largest_cubic, largest_square

ANGLES = np.concatenate(
    [
        np.linspace(0, math.pi / 2, 20_001),
        10.0 ** np.linspace(-30, -1, 3000),
        math.pi / 2 - 10.0 ** np.linspace(-16, -1),
    ]
)
A, B = np.sin(ANGLES), np.cos(ANGLES)


@pytest.mark.parametrize("span", [1, 40, 300])
def test_cubic_forms_are_never_larger_than_their_maximum(span):
    rng = np.random.default_rng(span)
    for _ in range(500):
        c = 10 ** rng.uniform(-span, span, size=4) * rng.choice([0, 1, 1], size=4)
        on_the_grid = (c[0] * A**3 + c[1] * A**2 * B + c[2] * A * B**2 + c[3] * B**3).max()
        largest = largest_cubic(*map(float, c))
        assert on_the_grid <= largest * (1 + 1e-14)
        assert largest <= on_the_grid * (1 + 1e-6)


def test_quadratic_forms():
    rng = np.random.default_rng(0)
    for aa, ab, bb in 10 ** rng.uniform(-3, 3, size=(200, 3)):
        assert largest_square(aa, ab, bb) == pytest.approx(np.linalg.norm([[aa, ab], [ab, bb]], 2))


def test_what_is_infinite_stays_so():
    assert largest_cubic(0.0, math.inf, 1.0, 0.0) == math.inf
    assert largest_cubic(0.0, 0.0, 0.0, 0.0) == 0.0
