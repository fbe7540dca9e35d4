"""Files that are there whole or not at all: a run that is cut off leaves no half of a result behind."""

import contextlib
import os
from pathlib import Path


def write_whole(path: str | Path, text: str, *, owner_only: bool = False) -> Path:
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
