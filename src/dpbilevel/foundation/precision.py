"""The two precisions of a run: the user's precision for losses and iterates, and float64 for sums and noise.

JAX has one setting for both. Losses are traced under the user's setting, because closed-over NumPy arrays would change
type under the other one (and JAX 0.10 confuses an array that it has seen under both).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial


def is_double() -> bool:
    """Whether float64 is enabled in the current context, including contexts such as ``jax.enable_x64()``."""
    return user_float() == np.float64


def user_float() -> np.dtype[np.floating]:
    """The dtype of floating-point records and iterates: float32, unless the user has enabled float64 in JAX."""
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))


def in_user_precision(program: Any) -> Any:
    """A traced program whose functions get their numbers in the precision of the current context.

    Noise and clips stay in float64: they belong to releases, which compute in it.
    """

    def narrowed(leaf: Any) -> Any:
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return leaf if dtype == leaf.dtype else jax.lax.convert_element_type(leaf, dtype)

    def convert(part: Any) -> Any:
        if isinstance(part, Partial):
            return jax.tree.map(narrowed, part)
        return narrowed(part) if jnp.issubdtype(part.dtype, jnp.integer) else part

    return jax.tree.map(convert, program, is_leaf=lambda part: isinstance(part, Partial))


@contextlib.contextmanager
def isolated_jax_config() -> Iterator[None]:
    """The JAX settings under which programs run: float64 for noise and sums, and no debugging that inspects values.

    ``jax_debug_nans`` would turn a record's value into an exception, and ``jax_disable_jit`` would show values to the
    losses. Settings that could fail a run after its charge are off too: strict type promotion and transfer guards.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.enable_x64(True))
        stack.enter_context(jax.debug_nans(False))
        stack.enter_context(jax.debug_infs(False))
        stack.enter_context(jax.disable_jit(False))
        stack.enter_context(jax.numpy_dtype_promotion("standard"))
        stack.enter_context(jax.transfer_guard("allow"))
        yield
