"""Compiled programs on disk, for all tests, their workers and their subprocesses: most of the time of a test is XLA's.

The folder is `.jax_cache/` of the checkout, with one part for every constraints.txt and kind of processor; JAX's own
key has the program, the options and the versions. `make clean` removes it. What reads compiled programs compiles them
`with_names`: the key leaves out names of arguments otherwise, so that a cached program may have another one's.
"""

import contextlib
import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# For a process that may be killed at any moment: JAX does not write atomically, and half an entry stays.
ONLY_READ = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "inf"}


def processor() -> str:
    """Model and instruction sets: machine code for one processor may not run on another."""
    known = Path("/proc/cpuinfo")
    text = known.read_text(encoding="utf-8") if known.exists() else platform.processor()
    lines = re.findall(r"^(?:model name|flags|Features|CPU part)\s*:.*$", text, flags=re.MULTILINE)
    return "\n".join([platform.machine(), *sorted(set(lines))] if lines else [platform.machine(), text])


def folder() -> Path:
    key = hashlib.sha256((ROOT / "constraints.txt").read_bytes() + processor().encode())
    return ROOT / ".jax_cache" / key.hexdigest()[:16]


def share() -> None:
    """Keep every program of this process and of those that it starts, unless the environment has another wish."""
    assert "jax" not in sys.modules, "JAX has read its environment already"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    # For GPUs only, and it makes the path of the folder a part of the key of every program, on all processors.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none")


def only_read() -> None:
    """The same in a process that has imported JAX."""
    import jax

    jax.config.update("jax_persistent_cache_min_compile_time_secs", float("inf"))


@contextlib.contextmanager
def with_names() -> Iterator[None]:
    """Lower and compile programs whose text is read. Names are part of the key, so that what is found on disk has the
    same ones; places in the source are not. The instructions on disk are those that were compiled.
    """
    import jax

    settings = {"jax_compilation_cache_include_metadata_in_key": True, "jax_traceback_in_locations_limit": 0}
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
