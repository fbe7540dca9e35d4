"""Compiled programs on disk, so that a second run on the command line does not compile the same program again.

A program has shapes and public constants in it, and no records, unless a loss closes over an array. A plan with that
caveat keeps nothing. The folder is the user's alone (mode 0700): who can write to it can run code.

JAX keeps one file for each program, named by a hash of the program with its constants, the version of XLA, its flags
and options, and the device. There is one folder for each kind of processor, which that hash need not tell apart. JAX
does not write a file at once, and never replaces one. Therefore a run has a folder of its own, with links to all files
that are there, and its new ones join them when it has ended: a run that is killed leaves no half of a file.
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from dpbilevel.planning import Plan
from dpbilevel.problem import CLOSES_OVER

VARIABLE = "DPBILEVEL_COMPILATION_CACHE"  # "off" keeps nothing
_LARGEST = 2**30  # bytes of all files; the oldest are removed first
_OWN = "run-"
_DAY = 24 * 60 * 60.0
_SETTINGS = {  # keep everything: dozens of small programs take as long as a large one
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    "jax_persistent_cache_enable_xla_caches": "none",  # their path would be part of the key, and differs for each run
}


@contextlib.contextmanager
def cache_programs(planned: Plan) -> Iterator[None]:
    """Keep the programs that are compiled inside, and use those of earlier runs.

    Not for a plan whose losses close over arrays, nor where it is switched off, nor where JAX has a folder already. If
    there is no folder to be had, programs are compiled as without it.
    """
    wanted = os.environ.get(VARIABLE) != "off" and _setting("jax_compilation_cache_dir") is None
    folder = _folder() if wanted and not holds_data(planned) else None
    if folder is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_OWN, dir=folder)))
            _remove_remains(folder)
            known = _link(folder, own)
        except OSError:
            yield
            return
        with _used(own):
            yield
        _move(own, folder, known)


def holds_data(planned: Plan) -> bool:
    """Whether compiled programs of a plan may hold data, because a loss closes over an array."""
    return any(CLOSES_OVER in caveat for caveat in planned.privacy.caveats)


@contextlib.contextmanager
def _used(folder: Path) -> Iterator[None]:
    settings: dict[str, Any] = {"jax_compilation_cache_dir": str(folder), **_SETTINGS}
    before = {name: _setting(name) for name in settings}
    with warnings.catch_warnings():
        # A file that cannot be read or written means no more than a compilation.
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
        try:
            _set(settings)
            yield
        finally:
            _set(before)


def _set(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # JAX looks at its settings once


def _setting(name: str) -> Any:
    return getattr(jax.config, name)


def _folder() -> Path | None:
    """The folder of this processor, made if there is none; None where it would not be the user's alone."""
    key = hashlib.sha256(_processor().encode()).hexdigest()[:16]
    folder = _user_folder()
    try:
        for name in ("dpbilevel", "compiled", key):
            folder = folder / name
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or (hasattr(os, "geteuid") and about.st_uid != os.geteuid()):
                return None
            if os.name == "posix" and about.st_mode & 0o077:
                folder.chmod(0o700)
    except OSError:
        return None
    return folder


def _user_folder() -> Path:
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"])
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")


def _processor() -> str:
    """Kind and instruction sets: machine code for one processor may not run on another."""
    described = Path("/proc/cpuinfo")
    text = described.read_text(encoding="utf-8") if described.exists() else platform.processor()
    lines = re.findall(r"^(?:model name|flags|Features|CPU part)\s*:.*$", text, flags=re.MULTILINE)
    return "\n".join([platform.machine(), *(sorted(set(lines)) or [text])])


def _link(folder: Path, own: Path) -> set[str]:
    """Give a run all files that are there; returns their names."""
    files = {path.name: path for path in folder.iterdir() if path.is_file()}
    for name, path in files.items():
        try:
            os.link(path, own / name)
        except OSError:  # a file system without links
            shutil.copy2(path, own / name)
    return set(files)


def _move(own: Path, folder: Path, known: set[str]) -> None:
    """Move new files to the others, and remove the oldest where there are too many."""
    with contextlib.suppress(OSError):
        for path in own.iterdir():
            if path.name not in known:
                os.replace(path, folder / path.name)
        files = sorted((path for path in folder.iterdir() if path.is_file()), key=lambda path: path.stat().st_mtime)
        total = sum(path.stat().st_size for path in files)
        for path in files:
            if total <= _LARGEST:
                break
            total -= path.stat().st_size
            path.unlink()


def _remove_remains(folder: Path) -> None:
    """Remove what killed runs have left."""
    for path in folder.glob(f"{_OWN}*"):
        if time.time() - path.stat().st_mtime > _DAY:
            shutil.rmtree(path, ignore_errors=True)
