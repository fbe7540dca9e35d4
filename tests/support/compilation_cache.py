"""Compiled programs on disk, for all tests, their workers and their subprocesses: most of the time of a test is XLA's.

The folder is `.jax_cache/` of the checkout, with one part for every constraints.txt and kind of processor; JAX's own
key has the program, the options and the versions. `make clean` removes it. What reads compiled programs compiles them
`afresh`: the key leaves out names of arguments, so that a cached program may have another one's.
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


def only_read() -> None:
    """The same in a process that has imported JAX."""
    import jax

    jax.config.update("jax_persistent_cache_min_compile_time_secs", float("inf"))


@contextlib.contextmanager
def afresh() -> Iterator[None]:
    """Compile, whatever is on disk."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # it asks once whether it is enabled
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()
