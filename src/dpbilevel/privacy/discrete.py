"""Exact noise: integers from the discrete Gaussian, P[Z = z] proportional to exp(-z^2/(2 scale^2)).

The sampler is OpenDP's (after Canonne, Kamath and Steinke 2020): it works with whole numbers and fractions of any size,
so that what is drawn has that distribution, and takes the scale for the very fraction that the float is. Its random
bits come from a generator that the operating system seeds. There is no seed to fix: nobody draws the same noise twice,
and a run with exact noise cannot be repeated.

How long a draw takes depends on what is drawn. All noise of some rounds is drawn before those rounds touch a record.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument

# Beyond this the limits of 64-bit integers, at which OpenDP saturates, would come into sight. Up to it a draw stays
# within 2^62 but for a probability of 2 exp(-2^19), which no sum of deltas in float64 can see.
LARGEST_SCALE = 2.0**52


def check_sampler() -> None:
    """Raise where OpenDP is not installed; called before anything is charged."""
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
            'noise="exact": needs OpenDP, which draws it and is not installed; pip install "dpbilevel[exact]", or '
            'leave noise="float"'
        ) from error
    dp.enable_features("contrib")
    return dp
