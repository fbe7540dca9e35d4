"""Programs that tests compile are kept on disk, and those that are read have their own names."""

import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
from support.compilation_cache import ONLY_READ, folder, with_names

HITS = "/jax/compilation_cache/cache_hits"
PROGRAM = f"""
import jax, json
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
text = jax.jit(lambda a: jax.numpy.sin(a @ a) * 0.123 + 4).lower(jax.numpy.ones((3, 3))).compile().as_text()
print(json.dumps([events.count("{HITS}"), text]))
"""


def found(cache, **environment):
    """How many programs a fresh process found on disk, and the instructions of the last one."""
    given = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)} | environment
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=given, capture_output=True, text=True, check=True)
    number, text = json.loads(done.stdout)
    lines = [re.sub(r", metadata={[^}]*}", "", line) for line in text.splitlines() if " = " in line]
    return number, lines


def test_subprocesses_share_programs_and_those_that_only_read_leave_none(tmp_path):
    compiled = found(tmp_path / "first", **ONLY_READ)
    assert (compiled[0], list((tmp_path / "first").glob("*-cache"))) == (0, [])
    assert found(tmp_path / "first") == compiled
    (tmp_path / "first").rename(tmp_path / "second")  # the path is no part of the key
    number = len(list((tmp_path / "second").glob("*-cache")))
    assert found(tmp_path / "second", **ONLY_READ) == (number, compiled[1])
    assert min(number, len(compiled[1])) > 0


def test_this_process_uses_the_folder_of_the_checkout():
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == jax.config.jax_compilation_cache_dir == str(folder())


def test_a_program_that_is_read_has_its_own_names():
    events = []

    def listen(name, **_):
        events.append(name)

    def compiled(name):
        program = {"first": lambda first: jnp.sin(first) * 0.456, "other": lambda other: jnp.sin(other) * 0.456}[name]
        before = events.count(HITS)
        text = jax.jit(program).lower(1.0).compile().as_text()
        return events.count(HITS) - before, name in text

    jax.monitoring.register_event_listener(listen)
    try:
        compiled("first")
        assert compiled("other") == (1, False), "that of the first, which has the same instructions"
        with with_names():
            for name in ("first", "other"):
                compiled(name)
                assert compiled(name) == (1, True)
    finally:
        jax.monitoring.unregister_event_listener(listen)
