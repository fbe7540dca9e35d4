"""The true delta between two densities, by quadrature."""

import itertools
import math

import numpy as np


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float, cell: float) -> float:
    """The true delta: the larger of both directions, by the trapezoidal rule (densities vanish at the ends)."""
    return max(
        float(np.sum(np.maximum(one - math.exp(epsilon) * other, 0)) * cell)
        for one, other in itertools.permutations((p, q))
    )
