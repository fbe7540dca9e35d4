"""The arrays of records: the types in which they are stored, and which records are usable.

Errors name a role and a rule, never a value: NumPy's own messages may quote one.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidRecords
from dpbilevel.foundation.precision import user_float
from dpbilevel.privacy.memory import Reserved, reserved
from dpbilevel.privacy.parts import Part
from dpbilevel.privacy.storage import Storage, copy_in_order

Tree = Any


def drop_unusable(valid: npt.NDArray[np.bool_], leaf: npt.NDArray[Any], given: npt.NDArray[Any]) -> None:
    """Mark records with values that are not finite, or that wrapped around when an integer was narrowed."""
    # In blocks, because all results at once would take a quarter of the records' memory.
    for block in (slice(first, first + 2**14) for first in range(0, len(valid), 2**14)):
        usable = np.isfinite(leaf[block]) if leaf.dtype.kind == "f" else leaf[block] == given[block]
        valid[block] &= usable.reshape(len(usable), -1).all(axis=1)


def narrowed(leaf: Any, dtype: np.dtype[Any], storage: Storage | None = None) -> npt.NDArray[Any]:
    """A leaf as an array of that dtype; what was `reserved` stays so. A copy is on disk if ``storage`` is given."""
    array = leaf if isinstance(leaf, Reserved) else np.asarray(leaf)
    if storage is None or array.dtype == dtype or array.ndim == 0:
        return array.astype(dtype, copy=False)
    copied = reserved(len(array), array.shape[1:], dtype, storage)
    copy_in_order(array, copied)
    return copied


def shape_of(role: str, leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape of a leaf, with the dtype in which it is stored."""
    dtype = usable_dtype(role, leaf)  # first, because it refuses values without a shape
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype)


def usable_dtype(role: str, leaf: Any) -> np.dtype[Any]:
    """The dtype in which a leaf is stored: JAX's float, or JAX's form of the leaf's integer or boolean dtype."""
    if isinstance(leaf, np.ma.MaskedArray):
        raise InvalidRecords(f"{role}: has a masked array; fill masked values, or drop their rows")
    dtype = leaf.dtype if isinstance(leaf, np.ndarray | jax.Array | jax.ShapeDtypeStruct | Part) else _dtype(leaf)
    if jnp.issubdtype(dtype, jnp.floating):
        return user_float()
    if getattr(dtype, "kind", None) in ("i", "u", "b"):
        return np.dtype(jax.dtypes.canonicalize_dtype(dtype))
    # Only the kind is named: the length of a string dtype, for example, depends on the values.
    kind = {"U": "strings", "S": "bytes", "O": "objects", "M": "dates", "m": "time differences", "c": "complex numbers"}
    raise InvalidRecords(
        f"{role}: has a leaf of {kind.get(getattr(dtype, 'kind', ''), 'a type that JAX does not support')}; must be "
        "real numbers, integers or booleans (encode categories and labels as integers, dates as numbers)"
    )


def _dtype(leaf: Any) -> np.dtype[Any]:
    """The dtype that NumPy gives a leaf, or object if NumPy raises: its message may quote a value."""
    try:
        return np.asarray(leaf).dtype
    except Exception:
        return np.dtype(object)


def check_leading_axis(role: str, tree: Tree) -> None:
    """Raise unless all leaves have the same number of records, at least one."""
    leaves = jax.tree.leaves(tree)
    if tree is None:
        return
    if not leaves or any(len(leaf.shape) == 0 for leaf in leaves):
        raise InvalidRecords(
            f"{role}: must be arrays whose first axis is over records; a leaf has no axis (or there is no leaf)"
        )
    if len({leaf.shape[0] for leaf in leaves}) > 1:
        raise InvalidRecords(f"{role}: leaves disagree on the number of records; every array needs the same first axis")
    if leaves[0].shape[0] == 0:
        raise InvalidRecords(f"{role}: is empty; every role needs at least one record")
