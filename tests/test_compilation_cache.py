"""Programs that tests compile are kept on disk, and those that are read are compiled nevertheless."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
from support.compilation_cache import ONLY_READ, afresh, folder

HITS = "/jax/compilation_cache/cache_hits"
PROGRAM = f"""
import jax
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
jax.jit(lambda a: a * 0.123 + 4)(1.0)
print(events.count("{HITS}"))
"""


def found(cache, **environment):
    """How many programs a fresh process found on disk."""
    given = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)} | environment
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=given, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_subprocesses_share_programs_and_those_that_only_read_leave_none(tmp_path):
    assert (found(tmp_path, **ONLY_READ), list(tmp_path.glob("*-cache"))) == (0, [])
    assert found(tmp_path) == 0
    assert found(tmp_path, **ONLY_READ) == len(list(tmp_path.glob("*-cache"))) > 0


def test_this_process_uses_the_folder_of_the_checkout():
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == jax.config.jax_compilation_cache_dir == str(folder())


def test_a_program_that_is_read_is_compiled_even_if_it_is_on_disk():
    events = []

    def listen(name, **_):
        events.append(name)

    def compiled():
        jax.jit(lambda a: jnp.sin(a) * 0.456).lower(1.0).compile()
        return events.count(HITS)

    jax.monitoring.register_event_listener(listen)
    try:
        compiled()
        before = compiled()
        assert before > 0, "the second time it is on disk"
        with afresh():
            assert compiled() == before
        assert compiled() > before
    finally:
        jax.monitoring.unregister_event_listener(listen)
