"""Compiled programs that the command line keeps: where, for whom, and never with data in them."""

import os
import stat
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache as of_jax

import dpbilevel as dpb
from dpbilevel.cli import compilation_cache
from dpbilevel.cli.compilation_cache import VARIABLE, cache_programs

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.PrivacyLeakWarning", "ignore::dpbilevel.UtilityWarning")

HITS: list[str] = []
jax.monitoring.register_event_listener(lambda event, **_: HITS.append(event) if event.endswith("cache_hits") else None)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of this test's own, and JAX without one."""
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    jax.config.update("jax_compilation_cache_dir", None)
    of_jax.reset_cache()
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)
    of_jax.reset_cache()


def planned(loss=lambda x, y, record: (y - record) ** 2):
    problem = dpb.BilevelProblem(upper_term=lambda x, y: (x + y) ** 2, lower_loss=loss)
    return dpb.plan(problem, dpb.RecordShapes(lower=np.zeros(50)), dpb.Budget(1.0, 1e-4), start=(0.0, 0.0), refit=None)


def compiled(plan):
    """Compile one program while programs are kept."""
    jax.clear_caches()
    with cache_programs(plan):
        jax.jit(lambda value: jnp.sin(value) * 3 + 1)(jnp.arange(7.0)).block_until_ready()


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_program_is_kept_and_found_again_by_its_owner_alone(cache):
    compiled(planned())
    first = files(cache)
    assert first
    HITS.clear()
    compiled(planned())
    assert HITS
    assert files(cache) == first
    folders = [path for path in cache.rglob("*") if path.is_dir()]
    assert len(folders) == 3, "the folder of a run is gone"
    assert all(stat.S_IMODE(folder.stat().st_mode) == 0o700 for folder in folders)
    assert jax.config.jax_compilation_cache_dir is None


def test_a_folder_that_others_could_read_is_closed(cache):
    (cache / "dpbilevel").mkdir(mode=0o755)
    compiled(planned())
    assert stat.S_IMODE((cache / "dpbilevel").stat().st_mode) == 0o700


def closing_over(data):
    return lambda x, y, record: (y - record) ** 2 + jnp.sum(data * y)


def test_a_plan_whose_loss_closes_over_data_keeps_nothing(cache, monkeypatch):
    plan = planned(closing_over(np.arange(5.0)))
    compiled(plan)
    assert files(cache) == []
    monkeypatch.setattr(compilation_cache, "holds_data", lambda plan: False)  # a mutation
    compiled(plan)
    assert files(cache) != []


def test_it_can_be_switched_off(cache, monkeypatch):
    monkeypatch.setenv(VARIABLE, "off")
    compiled(planned())
    assert files(cache) == []


def test_a_folder_of_jax_own_is_left_alone(cache, tmp_path_factory):
    chosen = tmp_path_factory.mktemp("chosen")
    jax.config.update("jax_compilation_cache_dir", str(chosen))
    of_jax.reset_cache()
    compiled(planned())
    assert jax.config.jax_compilation_cache_dir == str(chosen)
    assert files(cache) == []


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners of files are known on POSIX only")
def test_a_folder_of_somebody_else_is_not_used(cache, monkeypatch):
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    compiled(planned())
    assert files(cache) == []


def test_where_there_is_no_folder_programs_are_compiled_without(cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file" / "below"))
    (cache / "file").write_text("no folder")
    compiled(planned())


def test_a_run_that_fails_leaves_no_part_of_a_file(cache):
    def fail():
        with cache_programs(planned()):
            (own,) = cache.rglob("run-*")
            (own / "half").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert files(cache) == []


def test_old_files_and_remains_are_removed(cache, monkeypatch):
    compiled(planned())
    (folder,) = cache.glob("dpbilevel/compiled/*")
    long_ago = time.time() - 3 * 24 * 3600
    (folder / "run-killed").mkdir()
    os.utime(folder / "run-killed", (long_ago, long_ago))
    (folder / "oldest").write_bytes(b"0" * 1000)
    os.utime(folder / "oldest", (long_ago, long_ago))
    known = set(files(cache)) - {"oldest"}
    monkeypatch.setattr(compilation_cache, "_LARGEST", sum((folder / name).stat().st_size for name in known))
    compiled(planned())
    assert set(files(cache)) == known
    assert not (folder / "run-killed").exists()
