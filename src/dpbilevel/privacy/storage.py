"""Arrays on disk: records that need not fit into memory, in private files without a name.

An array is a mapped file, written like any other array. Passes over it read the file part by part (`read_rows`) into
memory that is used again, so that the system keeps of it what it has room for, and a disk that fails raises.

The file has no name, is readable by nobody else, and is gone with its process, however that ends. Its space is taken
when it is made, because a disk that is full later would end a run that is paid for.
"""

import contextlib
import errno
import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument, StorageFailed
from dpbilevel.foundation.files import allocated

_AT_ONCE = 2**20  # bytes that are copied at once
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Storage:
    """A folder whose disk holds arrays.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = Storage(Path(folder)).zeros(3)
    ...     made.tolist(), list(Path(folder).iterdir())
    ([0, 0, 0], [])
    """

    folder: Path

    @classmethod
    def of(cls, folder: Any) -> "Storage | None":
        """The storage in a folder; None for None. Raises where arrays on disk cannot be used."""
        if folder is None:
            return None
        if not isinstance(folder, str | os.PathLike) or not Path(folder).is_dir():
            raise InvalidArgument(
                f"storage={folder!r}: must be a folder that exists, on a disk with room for the records (/tmp may "
                "be in memory), or None to hold them in memory"
            )
        if os.name != "posix":
            raise InvalidArgument("storage: is for systems like Linux and macOS, which map files; leave it out")
        return cls(Path(folder))

    def zeros(self, size: int, used: int | None = None) -> npt.NDArray[np.uint8]:
        """So many bytes; their file goes with the last array that uses them.

        Space is taken for all of them, or for the first ``used``: the others will not be written.
        """
        try:
            handle = self._nameless()
            try:
                allocated(handle, max(1, size if used is None else used))
                os.truncate(handle, max(1, size))
                return np.frombuffer(_Mapping.of(handle, max(1, size)), np.uint8, size)
            finally:
                os.close(handle)
        except OSError as error:
            full = error.errno in _FULL
        # Without the size, which may follow from a private number of rows.
        problem = "has no room left for the records" if full else "cannot be written to"
        raise InvalidArgument(f"storage='{self.folder}': {problem}; name a folder on another disk")

    def _nameless(self) -> int:
        """The handle of a new file for its owner only."""
        if hasattr(os, "O_TMPFILE"):
            with contextlib.suppress(OSError):  # of file systems that have none
                return os.open(self.folder, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
        handle, name = tempfile.mkstemp(dir=self.folder)
        os.unlink(name)
        return handle


class _Mapping(mmap.mmap):
    """A mapped file that can be read, too."""

    handle: int

    @classmethod
    def of(cls, handle: int, size: int) -> "_Mapping":
        mapping = cls(handle, size)
        mapping.handle = os.dup(handle)
        return mapping

    def __del__(self) -> None:
        os.close(self.handle)


def copy_in_order(array: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Copy an array line by line: a large copy at once reads pages in another order, in which a disk is slow.

    >>> out = np.zeros(3)
    >>> copy_in_order(np.arange(3), out)
    >>> out.tolist()
    [0.0, 1.0, 2.0]
    """
    lines = max(1, _AT_ONCE // max(1, array[:1].nbytes))
    for first in range(0, len(array), lines):
        out[first : first + lines] = array[first : first + lines]


def read_rows(array: npt.NDArray[Any], first: int, out: npt.NDArray[Any]) -> None:
    """Copy lines of an array, from the first one on, to ``out``: from its file, if it is on disk.

    >>> import tempfile
    >>> out = np.zeros(2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = Storage(Path(folder)).zeros(40).view(np.float64)
    ...     made[:] = range(5)
    ...     read_rows(made, 3, out)
    >>> out.tolist()
    [3.0, 4.0]
    """
    mapping = _mapping_of(array)
    if mapping is None:
        out[...] = array[first : first + len(out)]
        return
    begin = array[first:].ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    rest = out.reshape(-1).view(np.uint8).data
    while rest:
        try:
            number = os.preadv(mapping.handle, [rest], begin)
        except OSError:
            number = 0
        if number == 0:
            raise StorageFailed(
                "storage: its disk cannot be read any more; check the disk. What was charged is spent, and a "
                "checkpoint resumes the run"
            )
        rest, begin = rest[number:], begin + number


def _mapping_of(array: Any) -> _Mapping | None:
    """The mapped file that an array is in."""
    while isinstance(array, np.ndarray):
        array = array.base
    found = array.obj if isinstance(array, memoryview) else array
    return found if isinstance(found, _Mapping) else None
