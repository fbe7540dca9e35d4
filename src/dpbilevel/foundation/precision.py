"""The two precisions of a run: the user's, for losses and iterates, and float64, for sums and noise.

JAX keeps one switch for both. Losses are traced with the switch as the user has set it: under the other setting their
closed-over NumPy arrays change type (and JAX 0.10 confuses an array that it has seen under both).
"""

import jax
import numpy as np


def is_double() -> bool:
    """Whether float64 is on where this is called, contexts such as ``jax.enable_x64()`` included."""
    return user_float() == np.float64


def user_float() -> np.dtype[np.floating]:
    """The type of floating-point records and iterates: float32, unless the user has switched JAX to float64."""
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))
