"""Which records a process holds, where a job has several: by public numbers alone, and no process reads the others'.

The records of a role are in order, and so are the devices of a mesh, process by process. So a process holds an
unbroken range of the records of each role. It is given all of them, as arrays of which it copies that range, or its own
records as a `Part`.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.processes import ALONE, Job, current
from dpbilevel.privacy.shards import local_devices, shard_of


@dataclass(frozen=True, eq=False, repr=False)  # a repr would show records
class Part:
    """The records of this process, in the place of an array of all of them.

    Args:
        own: the array of these records.
        number: the number of all records.
    """

    own: npt.NDArray[Any]
    number: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of all records."""
        return (self.number, *self.own.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its entries."""
        return self.own.dtype


def job_of(mesh: Mesh | None) -> Job:
    """The processes whose devices a mesh has."""
    return ALONE if mesh is None or len(local_devices(mesh)) == mesh.size else current()


def own_range(number: int, mesh: Mesh | None) -> slice:
    """Which of so many records of a role this process holds; all of them without a mesh.

    >>> from dpbilevel.privacy.shards import first_devices
    >>> own_range(1000, first_devices(1))
    slice(0, 1000, None)
    """
    if mesh is None:
        return slice(0, number)
    length, devices = shard_of(number, mesh.size), local_devices(mesh)
    first = list(mesh.devices).index(devices[0])
    begin, end = (min(number, place * length) for place in (first, first + len(devices)))
    return slice(begin, end)


def own_records(leaf: Any, mesh: Mesh | None) -> Any:
    """Those of an array's records that this process holds. An array on disk is read there only."""
    if not isinstance(leaf, Part):
        array = leaf if isinstance(leaf, np.ndarray | jax.Array) else np.asarray(leaf)
        return array[own_range(len(array), mesh)]
    own = own_range(leaf.number, mesh)
    if len(leaf.own) != own.stop - own.start:
        raise InvalidArgument("mesh: must be the one that these records were read for; of another one they are others")
    return leaf.own
