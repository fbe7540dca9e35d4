"""The checkpoint file: written atomically, readable by its owner only, checked for damage, used by one process at once.

The first line names the format and holds an HMAC of the second line, which is the content as JSON. The key of the HMAC
is part of the content, so that it detects damage but not manipulation: an attacker who can write to the file can read
it, and knows the noise of the run anyway. For the same reason, a file that belongs to another user is refused: that
user would know the noise.
"""

import base64
import contextlib
import errno
import hmac
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.errors import CheckpointRefused, InvalidArgument
from dpbilevel.foundation.files import write_atomically

FORMAT = "dpbilevel.checkpoint/2"

_RESTART = "delete it to start a new run, which is charged again"


def checked_path(path: Any) -> Path:
    """The absolute path of a checkpoint, or a typed error if it cannot be one."""
    if not isinstance(path, str | Path) or not str(path).strip() or "\0" in str(path):
        raise InvalidArgument(f"checkpoint: must be the path of a file, not {type(path).__name__}; or left out")
    target = Path(os.path.abspath(path))  # a later chdir must not lead to another file
    if os.path.isdir(target) or not os.path.isdir(target.parent):
        raise InvalidArgument(f"checkpoint={str(path)!r}: must be the path of a file in a folder that exists")
    return target


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Lock the checkpoint against other processes until this one is done with it, or killed.

    Temporary files of a killed process are removed. On systems without ``flock``, such as Windows, there is no lock:
    two processes on one checkpoint compute the same bits, and the ledger charges once. The same holds for file systems
    that have no locks.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    handle = _opened(lock, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = os.path.samestat(os.fstat(handle), os.stat(lock))  # not a lock file that was removed meanwhile
        except OSError as error:
            locked = error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # the file system has no locks
        if not locked:
            raise CheckpointRefused(f"checkpoint={str(path)!r}: another process is using it; wait until it ends")
        for name in os.listdir(path.parent):
            if re.fullmatch(rf"\.{re.escape(path.name)}\.\d+\.part", name):
                (path.parent / name).unlink(missing_ok=True)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
    finally:
        os.close(handle)


def read(path: Path) -> dict[str, Any] | None:
    """The content of a checkpoint, None if there is no file, or a typed error if it cannot be trusted."""
    try:
        # Non-blocking, because reading a pipe of that name could block forever.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointRefused(f"checkpoint={str(path)!r}: cannot be read ({error.strerror})") from error
    with open(handle, "rb") as file:
        _check_owner(path, os.fstat(handle))
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return _content(file.read())
    raise damaged(path)  # without the cause: a decoder's exception holds the text, which contains keys


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace the file by ``content`` atomically and durably, readable by its owner only from the first byte on."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    try:
        write_atomically(path, f"{FORMAT} {_mac(content, text)}\n{text}\n", owner_only=True)
    except OSError as error:
        raise CheckpointRefused(
            f"checkpoint={str(path)!r}: cannot be written ({error.strerror}); the previous checkpoint is intact: fix "
            "the cause and start the same run again to resume from it"
        ) from error


def damaged(path: Path) -> CheckpointRefused:
    """The error for a file that is damaged."""
    return CheckpointRefused(f"checkpoint={str(path)!r}: is damaged, or not a checkpoint; {_RESTART}")


def pack(array: Any) -> list[Any]:
    """An array as JSON without loss: dtype, shape and bytes."""
    plain = np.asarray(array)
    plain = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
    return [str(plain.dtype.name), list(plain.shape), base64.b64encode(plain.tobytes()).decode("ascii")]


def unpack(value: list[Any]) -> npt.NDArray[Any]:
    """The inverse of `packed`.

    >>> unpack(pack(np.float32([[0.1, np.nan]])))
    array([[0.1, nan]], dtype=float32)
    """
    name, shape, text = value
    kind = np.dtype(name)
    array = np.frombuffer(base64.b64decode(text, validate=True), dtype=kind.newbyteorder("<"))
    return array.astype(kind, copy=True).reshape(shape)


def _content(raw: bytes) -> dict[str, Any]:
    first, second = raw.decode("utf-8").removesuffix("\n").split("\n")
    name, mac = first.split(" ")
    content = json.loads(second)
    if name != FORMAT or not hmac.compare_digest(_mac(content, second), mac):
        raise ValueError("another format, or not the content that was written")
    return dict(content)


def _mac(content: dict[str, Any], text: str) -> str:
    key = bytes.fromhex(content["key"])
    if len(key) < 32:
        raise ValueError("no key")
    return hmac.new(key, b"dpbilevel file" + text.encode(), "sha256").hexdigest()


def _check_owner(path: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise CheckpointRefused(f"checkpoint={str(path)!r}: is not a plain file")
    if os.name != "posix":
        return
    if facts.st_uid != os.geteuid():
        raise CheckpointRefused(
            f"checkpoint={str(path)!r}: belongs to another user, who would know the noise of the run; "
            "use a path of your own"
        )
    if facts.st_mode & 0o077:
        raise CheckpointRefused(
            f"checkpoint={str(path)!r}: other users may read or write it, and anyone who has read it can remove the "
            f"noise of the run; if no one has, chmod 600 it; if in doubt, {_RESTART}"
        )


def _opened(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0), 0o600)
    except OSError as error:
        raise InvalidArgument(f"checkpoint: its folder must be writable ({error.strerror}: {path.name!r})") from error
