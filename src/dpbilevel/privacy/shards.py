"""Records that are divided among devices, a `Source`: each device folds its own, and partial sums are merged once.

A device sees its own records and what has been released. What leaves it is the sum of its clipped contributions: a few
numbers for each entry of an answer, whatever the number of records. They are gathered once per sum and merged in the
order of devices, on every device alike. Noise is added after that, as to any other sum, so that it is drawn once.
Between devices sums travel without noise: all of them belong to the party that holds the records. They may be devices
of several processes: an array then has the records of all, and each process only its own.

**The same bits on any number of devices.** Exact noise is added to integers, which add up in any order. So the answer
has the same bits on any mesh if the integers of every record have. They do if a record is always computed at the same
place in a block of the same shape: programs for another shape may round differently. Records are therefore divided into
pieces whose length follows from their number alone. A shard holds whole pieces, the last of them padded with absent
records, and a block is an equal part of a piece. It has at most half of a piece, because compilers unroll a loop over a
single block. In float64, sums of shards are merged in another order for each number of devices, with other last bits.

**Sensitivity.** Another value of one record changes one block on one device. Merging is compensated in float64, which
the bound on rounding counts (`clipping.ROUNDING`).
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count
from dpbilevel.privacy.bundles import contents
from dpbilevel.privacy.memory import Memory, reserved
from dpbilevel.privacy.storage import Storage
from dpbilevel.privacy.sums import Source, Sum, Tree, Vector

_AXIS = "records"
_DIVIDED, _EVERYWHERE = PartitionSpec(_AXIS), PartitionSpec()
# Records of a piece: about 1/256 of all, so that padding is below 1/256 for each device, between two chunks and what
# keeps a block large enough for an accelerator.
_PIECES, _SHORTEST, _LONGEST = 256, 2**8, 2**16


def first_devices(devices: Any) -> Mesh:
    """The first ``devices`` devices; raises if JAX finds fewer. In a job of several processes they must be all.

    >>> first_devices(1).size
    1
    """
    number = count("devices", devices, "it is the number of devices that records are divided among")
    found = jax.devices()
    if jax.process_count() > 1 and number != len(found):
        raise InvalidArgument(
            f"devices={number}: must be {len(found)}, the devices of all {jax.process_count()} processes; leave it out"
        )
    if number > len(found):
        raise InvalidArgument(
            f"devices={number}: must be at most {len(found)}, the number of devices that JAX finds "
            f"({jax.default_backend()}); choose fewer, or leave it out"
        )
    return Mesh(np.array(found[:number]), (_AXIS,))


def mesh_of(devices: Any) -> Mesh | None:
    """The first ``devices`` devices; without a number none, and in a job of several processes those of all of them."""
    if devices is None:
        return first_devices(jax.device_count()) if jax.process_count() > 1 else None
    return first_devices(devices)


def checked_mesh(mesh: Any) -> Mesh:
    """The devices of a mesh along one axis; raises unless they are alike, of this process or of all processes."""
    if not isinstance(mesh, Mesh):
        raise InvalidArgument(
            f"mesh: must be a jax.sharding.Mesh, not {type(mesh).__name__}; "
            "try jax.sharding.Mesh(jax.devices(), ('records',))"
        )
    devices = mesh.devices.flatten()
    if not 0 < len(devices) == len(set(devices)):
        raise InvalidArgument("mesh: must hold at least one device, and each once")
    places = [device.process_index for device in devices]
    if set(places) != {jax.process_index()}:
        each = len(places) // jax.process_count()
        if places != [place // max(1, each) for place in range(each * jax.process_count())]:
            raise InvalidArgument(
                "mesh: must hold devices of this process only, or as many devices of every process, one process after "
                "the other; try jax.sharding.Mesh(jax.devices(), ('records',))"
            )
    if len({(device.platform, device.device_kind) for device in devices}) > 1:
        raise InvalidArgument("mesh: must hold devices of one kind, for all of them to compute the same bits")
    if devices[0].platform != (backend := jax.default_backend()):
        raise InvalidArgument(
            f"mesh: must hold devices of JAX's default backend, {backend}; set JAX_PLATFORMS to that of the mesh"
        )
    return Mesh(devices, (_AXIS,))


def local_devices(mesh: Mesh) -> list[Any]:
    """The devices of a mesh that are of this process."""
    return [device for device in mesh.devices.flat if device.process_index == jax.process_index()]


def piece_of(number: int) -> int:
    """Records of a piece, of which every shard holds a whole number: a power of two, from the number of all records.

    >>> piece_of(1000), piece_of(1_000_000), piece_of(10**11)
    (256, 2048, 65536)
    """
    return max(_SHORTEST, min(_LONGEST, 2 ** (max(1, number // _PIECES).bit_length() - 1)))


def shard_of(number: int, devices: int) -> int:
    """Records of a shard, padding included.

    >>> shard_of(1000, 1), shard_of(1000, 2), shard_of(1000, 8)
    (1024, 512, 256)
    """
    piece = piece_of(number)
    return math.ceil(math.ceil(number / piece) / devices) * piece


@functools.partial(jax.tree_util.register_dataclass, data_fields=["memory"], meta_fields=["mesh", "most"])
@dataclass(frozen=True)
class Shards:
    """Records on the devices of a mesh, a `Source`.

    Args:
        memory: all records; the leading axis of its arrays is divided among the devices.
        mesh: the devices, along one axis.
        most: the largest number of records in a block, on any mesh.
    """

    memory: Memory
    mesh: Mesh
    most: int

    @classmethod
    def stored(
        cls,
        arrays: Tree,
        valid: npt.NDArray[np.bool_],
        mesh: Mesh,
        number: int | None = None,
        storage: Storage | None = None,
    ) -> tuple["Shards", jax.Array]:
        """NumPy's arrays as `Memory.stored` stores them, on the devices, and which of their records are valid.

        Of several processes, each gives its own of so many records.
        """
        number = len(valid) if number is None else number
        length = shard_of(number, mesh.size)
        parts = jax.tree.map(
            lambda leaf: _divided(leaf, length, mesh, storage), (Memory.filled(arrays, valid, storage), valid)
        )
        return cls(parts[0], mesh, piece_of(number) // 2), parts[1]

    @classmethod
    def shapes(cls, records: Tree, mesh: Mesh) -> tuple["Shards", Any]:
        """The shapes of what is `stored`, from those of the records."""
        number = jax.tree.leaves(records)[0].shape[0]
        length = shard_of(number, mesh.size) * mesh.size
        sharding = NamedSharding(mesh, _DIVIDED)

        def described(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((length, *leaf.shape[1:]), leaf.dtype, sharding=sharding)

        parts = jax.tree.map(described, (Memory.shapes(records), jax.ShapeDtypeStruct((number,), bool)))
        return cls(parts[0], mesh, piece_of(number) // 2), parts[1]

    @property
    def arrays(self) -> Tree:
        """The arrays of all devices."""
        return self.memory.arrays

    def records(self, number: int) -> Tree:
        """The shapes of the records, of which there are so many."""
        return self.memory.records(number)

    def as_numpy(self, number: int) -> Tree:
        """The records of this process, of which there are so many, as NumPy's arrays."""
        return jax.tree.map(lambda leaf: gathered(leaf)[:number], self.memory.arrays)

    def contents(self, number: int) -> Iterator[npt.NDArray[Any]]:
        """All that is held of the records, for a seal."""
        return contents(self.as_numpy(number), number)

    def fold(self, vector: Vector, total: Sum, present: jax.Array) -> Any:
        """Fold a sum over the records of each device, and merge the sums of all of them on every device."""

        def local(memory: Memory, present: jax.Array) -> Any:
            own, whole = ravel_pytree(memory.fold(vector, total, present, self.most))
            return _merged(total, jax.lax.all_gather(own, _AXIS), whole)

        # Without the check that the result is the same everywhere, for which JAX would have to know that of the start
        # of every loop. It is: it follows from what was gathered.
        return jax.shard_map(
            local, mesh=self.mesh, in_specs=(_DIVIDED, _DIVIDED), out_specs=_EVERYWHERE, check_vma=False
        )(self.memory, present)


def _merged(total: Sum, parts: jax.Array, whole: Callable[[jax.Array], Any]) -> Any:
    """The merged sums of all devices, in their order: a repeated sum has the same bits. A part is a raveled carry."""
    return jax.lax.scan(lambda one, other: (total.merge(one, whole(other)), None), whole(parts[0]), parts[1:])[0]


def source_of(records: Tree) -> Source:
    """Records as a `Source`: what is one already, or plain arrays with a common leading axis."""
    return records if isinstance(records, Memory | Shards) else Memory(records)


def arrays_of(records: Tree) -> Tree:
    """The arrays of a source, without the norms of their rows."""
    return records.arrays if isinstance(records, Memory | Shards) else records


def gathered(array: jax.Array) -> npt.NDArray[Any]:
    """The shards of an array that are on this process, one after the other, as NumPy's array."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards])


def _divided(array: npt.NDArray[Any], length: int, mesh: Mesh, storage: Storage | None) -> jax.Array:
    """A process's part of an array on its devices, with zeros up to shards of equal length.

    Processors use it without a copy.
    """

    def shard(place: int) -> npt.NDArray[Any]:
        own = array[place * length : (place + 1) * length]
        if len(own) == length:
            return own
        padded = reserved(length, array.shape[1:], array.dtype, storage)
        padded[: len(own)] = own
        return np.asarray(padded)

    places = enumerate(local_devices(mesh))
    parts = [jax.device_put(shard(place), device, may_alias=True) for place, device in places]
    shape = (length * mesh.size, *array.shape[1:])
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, _DIVIDED), parts)
