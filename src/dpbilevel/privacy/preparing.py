"""Arrays of a role as records hold them: checked, in usable types, by units, in memory, on a disk or on devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpbilevel.errors import InvalidRecords
from dpbilevel.foundation.precision import isolated_jax_config
from dpbilevel.privacy.arrays import check_leading_axis, drop_unusable, narrowed, shape_of, usable_dtype
from dpbilevel.privacy.bundles import is_packed
from dpbilevel.privacy.memory import Memory
from dpbilevel.privacy.parts import job_of, own_records
from dpbilevel.privacy.shards import Shards, local_devices
from dpbilevel.privacy.storage import Storage
from dpbilevel.privacy.units import Selection

Tree = Any


def prepared(
    role: str, tree: Tree, invalid: str, selection: Selection | None, mesh: Mesh | None, storage: Storage | None
) -> tuple[Memory | Shards, Any, int]:
    """Arrays in the form that the compiled loop needs, a mask of valid records, and the number of records."""
    whole, several = jax.tree.map(lambda leaf: shape_of(role, leaf), tree), job_of(mesh).is_several
    check_leading_axis(role, whole)
    if several:
        tree = jax.tree.map(lambda leaf: own_records(leaf, mesh), tree)
    with np.errstate(over="ignore"):  # a float64 too large for float32 becomes infinite, hence invalid
        # In two steps, because NumPy's error quotes an integer that does not fit the requested dtype.
        arrays = jax.tree.map(lambda leaf: narrowed(leaf, usable_dtype(role, leaf), storage), tree)
    leaves = jax.tree.leaves(arrays)
    valid = np.ones(leaves[0].shape[0], dtype=bool)
    for leaf, given in zip(leaves, jax.tree.leaves(tree), strict=True):
        drop_unusable(valid, leaf, np.asarray(given))
    if invalid == "refuse" and not valid.all():
        raise InvalidRecords(
            f"{role}: must hold finite values that fit JAX's types (float32 and int32, unless jax_enable_x64 is on); "
            'clean them, or pass invalid="zero" to let such records contribute nothing'
        )
    if selection is not None:
        valid = selection.usable(valid)
        if is_packed(selection.rows_per_unit, mesh):
            arrays = selection.packed(arrays, valid, storage)
        else:
            arrays = selection.bundled(arrays, storage)
    # Copies, because the caller could change an array during a run. Under isolated settings, because with
    # jax_debug_nans even a copy to the device raises on a record's value.
    with isolated_jax_config():
        if mesh is not None:
            number = jax.tree.leaves(whole)[0].shape[0] if several else len(valid)  # of units, if there are
            return *Shards.stored(arrays, valid, mesh, number, storage), number
        if storage is not None:
            return Memory.filled(arrays, valid, storage), valid, len(valid)
        return Memory.stored(arrays, valid), jnp.array(valid), len(valid)


def can_be_on_disk(mesh: Mesh) -> bool:
    """Whether devices read records where they are: processors, each of a process of its own."""
    return len(local_devices(mesh)) == 1 and jax.default_backend() == "cpu"
