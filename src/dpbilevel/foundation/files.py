"""Atomic writes: an interrupted run leaves no incomplete file behind."""

import contextlib
import errno
import os
from pathlib import Path

_ZEROS = 2**20  # bytes that are written at a time


def write_atomically(path: str | Path, text: str, *, owner_only: bool = False) -> Path:
    """Write UTF-8 text to a temporary file beside ``path``, flush it to disk, and replace ``path`` by it.

    Line endings are written unchanged on every system, so that the same text gives the same bytes. With ``owner_only``,
    the file is readable by its owner only, from the first byte on.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if owner_only:
            part.unlink(missing_ok=True)  # left by a killed process with the same process id
        with open(part, "w", encoding="utf-8", newline="", opener=_private if owner_only else None) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    _flush_folder(target.parent)
    return target


class Reserved:
    """Reserved disk space for a file whose later write must not fail.

    The space is held by a separate file, allocated or filled to its full size. `write` overwrites its allocated blocks
    and then moves it to the target.

    Args:
        path: path of the file that holds the space, in the folder of the target.
        size: size in bytes. A longer text needs more space, which the disk may not have.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        try:
            with open(path, "wb") as file:
                allocated(file.fileno(), size)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            raise

    def write(self, target: Path, text: str) -> None:
        """Write UTF-8 text into the space, flush it to disk, and replace ``target`` by it."""
        content = text.encode()
        with open(self.path, "r+b", buffering=0) as file:
            written = 0
            while written < len(content):
                written += file.write(content[written:])
            file.truncate(len(content))
            os.fsync(file.fileno())
        os.replace(self.path, target)
        _flush_folder(target.parent)

    def release(self) -> None:
        """Free the space."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def allocated(handle: int, size: int) -> None:
    """Take so much space on the disk for an empty file, which then holds zeros."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(handle, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    # Where the system or the file system cannot allocate.
    with open(handle, "wb", closefd=False) as file:
        for first in range(0, size, _ZEROS):
            file.write(bytes(min(_ZEROS, size - first)))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL, 0o600)


def _flush_folder(folder: Path) -> None:
    """Make a rename durable against power loss, where the system allows it (Windows cannot open folders)."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
