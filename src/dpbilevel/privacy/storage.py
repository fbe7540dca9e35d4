"""Arrays on disk: records that need not fit into memory, in private files without a name.

Compiled programs for processors read an array where it is, if it is aligned. So an array may lie in a mapped file: the
system reads pages when they are needed, and drops them when memory is short. Nothing else differs, not in one bit.

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

import jax
import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.files import allocated

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
        if jax.default_backend() != "cpu" or os.name != "posix":
            raise InvalidArgument(
                "storage: is for processors and systems like Linux, where records can be read from a disk; leave it out"
            )
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
                return np.frombuffer(mmap.mmap(handle, max(1, size)), np.uint8, size)
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
