"""Exact noise: integers from the discrete Gaussian, P[Z = z] proportional to exp(-z^2/(2 scale^2)).

The sampler is OpenDP's (after Canonne, Kamath and Steinke 2020). It uses exact integer and rational arithmetic, so that
samples have exactly this distribution, with the float's exact rational value as the scale. Its random bits come from a
generator seeded by the operating system. No seed can be fixed, so a run with exact noise cannot be reproduced.

The time of a draw depends on its value. All noise of a group of rounds is therefore drawn before those rounds read a
record.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument

# Beyond this a draw could reach the limits of 64-bit integers, at which OpenDP saturates. Up to it a draw stays within
# 2^62 except with probability 2 exp(-2^19), which vanishes in any sum of deltas in float64.
LARGEST_SCALE = 2.0**52


def check_sampler() -> None:
    """Raise if OpenDP is not installed; called before anything is charged."""
    _opendp()


def discrete_gaussian(scale: float, size: int) -> npt.NDArray[np.int64]:
    """``size`` independent discrete Gaussians of a scale above zero and at most 2^52."""
    if not 0 < scale <= LARGEST_SCALE:
        raise InvalidArgument(f"scale={scale!r}: must be above 0 and at most 2^52, for noise to fit 64-bit integers")
    if size == 0:
        return np.zeros(0, np.int64)
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    drawn = dp.m.make_gaussian(*space, scale=float(scale))([0] * int(size))
    return np.array(drawn, dtype=np.int64)


def _opendp() -> Any:
    try:
        import opendp.prelude as dp
    except ImportError as error:
        raise InvalidArgument(
            'noise="exact": needs OpenDP, which is not installed; run pip install "dpbilevel[exact]", or use '
            'noise="float"'
        ) from error
    dp.enable_features("contrib")
    return dp
