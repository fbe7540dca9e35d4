"""Files that are there whole or not at all: a run that is cut off leaves no half of a result behind."""

import contextlib
import errno
import os
from pathlib import Path


def write_atomically(path: str | Path, text: str, *, owner_only: bool = False) -> Path:
    """Write UTF-8 text to a temporary file beside ``path``, flush it to the disk, and put it in the place of ``path``.

    Lines end as the text has them, on every system, so that the same text is the same bytes. With ``owner_only``, it is
    readable by its owner alone, from its first byte on.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if owner_only:
            part.unlink(missing_ok=True)  # of a process that was killed and had the same number
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
    """Space on the disk for a file that is to be written later and must not fail then.

    The space is a file of its own, filled or allocated to its end. The text is written over it, into blocks that it has
    already, and it is then put in the place of its target.

    Args:
        path: of the file that holds the space, in the folder of the target.
        size: bytes. A longer text needs more space, which the disk may have or not.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        try:
            with open(path, "wb") as file:
                if not _allocated(file.fileno(), size):
                    file.write(bytes(size))
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            raise

    def write(self, target: Path, text: str) -> None:
        """Write UTF-8 text into the space, flush it to the disk, and put it in the place of ``target``."""
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
        """Give the space back."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def _allocated(handle: int, size: int) -> bool:
    """Whether the system has set blocks aside for a file; not every system, and not every disk, can."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return False
        raise
    return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL, 0o600)


def _flush_folder(folder: Path) -> None:
    """Make the new name last through a power cut, where the system can (Windows opens no folders)."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
