"""The two precisions of a run: the user's precision for losses and iterates, and float64 for sums and noise.

JAX has one setting for both. Losses are traced under the user's setting, because closed-over NumPy arrays would change
type under the other one (and JAX 0.10 confuses an array that it has seen under both).
"""

import jax
import numpy as np


def is_double() -> bool:
    """Whether float64 is enabled in the current context, including contexts such as ``jax.enable_x64()``."""
    return user_float() == np.float64


def user_float() -> np.dtype[np.floating]:
    """The dtype of floating-point records and iterates: float32, unless the user has enabled float64 in JAX."""
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))
