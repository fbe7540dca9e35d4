"""What all tests share."""

import gc
import os
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest
from support import compilation_cache

compilation_cache.share()  # before anything imports JAX, which reads its environment once

TESTS = Path(__file__).parent
# `make test` compiles the programs of these faster and otherwise than users do. They are not about bits, noise or
# sensitivities.
QUICKLY = {
    *("applications", "cli", "datasets", "encoding", "estimators", "methods", "pages", "paper", "plot", "report"),
    *("solution", "theory"),
}
# Files that take long in a first run although none of their tests, or few of them, are marked as slow.
LONG = (
    *("guarantees/test_unit_neighbours.py", "guarantees/test_tracking_neighbours.py", "guarantees/test_audit.py"),
    *("guarantees/test_side_channels.py", "guarantees/test_released_only.py", "guarantees/test_sensitivity.py"),
    *("guarantees/test_mutations.py", "guarantees/test_sampling_truth.py", "baselines/test_embedded_training.py"),
    *("execution/test_numbers.py", "execution/test_notices.py", "checkpoint/test_estimator_checkpoints.py"),
    *("privacy/test_ledger_postgresql.py", "privacy/test_shards.py", "pages/test_extending.py", "test_package.py"),
    *("privacy/test_parts.py", "guarantees/test_killed_jobs.py", "cli/test_launch.py"),
)
# Functions that are compiled, by the module that has them.
COMPILED = {
    "dpbilevel.records": ("_execute", "_execute_stage"),
    "dpbilevel.execution.segments": ("_begin", "_draw", "_sum", "_update", "_end"),
}
QUICK_FLAGS = ("xla_cpu_use_fusion_emitters=false", "xla_backend_optimization_level")
# No compiled program contains code of these, nor of Python's own library.
UNCOMPILED = tuple(
    f"dpbilevel.{name}"
    for name in (
        "checkpoint",
        "cli",
        "datasets",
        "foundation.parquet",
        "foundation.reading_ahead",
        "plot",
        "privacy.ledger",
        "privacy.stores",
        "report",
    )
)


@pytest.hookimpl(trylast=True)  # after tests were deselected
def pytest_collection_modifyitems(items):
    _refuse_other_programs(items)
    # All tests of a file run in one worker. The files that take longest start first, so that workers end together.
    weights = Counter({TESTS / name: 1000 for name in LONG})
    for item in items:
        weights[item.path] += 100 if item.get_closest_marker("slow") else 1
    items.sort(key=lambda item: -weights[item.path])


def pytest_collection_finish():
    """Thousands of collected tests and all imported modules stay until the end. Without this, Python's collector visits
    them again and again while JAX traces, which makes many objects."""
    gc.collect()
    gc.freeze()


def _refuse_other_programs(items):
    """Guarantees hold for the programs that users have, or nothing is shown."""
    if not any(flag in os.environ.get("XLA_FLAGS", "") for flag in QUICK_FLAGS):
        return
    for item in items:
        if item.path.is_relative_to(TESTS) and item.path.relative_to(TESTS).parts[0] not in QUICKLY:
            raise pytest.UsageError(
                f"XLA_FLAGS={os.environ['XLA_FLAGS']}: not for {item.nodeid}; it is about the programs that users have "
                "(`make test` sets the flags for the folders that may have them)"
            )


@pytest.fixture(autouse=True)
def _seeds_are_fine_in_tests():
    """Tests fix seeds so that they repeat; the warning that this voids privacy has a test of its own."""
    import dpbilevel as dpb

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.NotPrivateWarning)
        yield


@pytest.fixture
def monkeypatch(monkeypatch):
    """pytest's own. Code that a test replaces must run: compiled programs are reused for equal structures, and what a
    mutation does to the library, or to one that it uses, is no part of a program's structure."""
    plain, replaced = monkeypatch.setattr, []

    def setattr_and_compile_again(target, *arguments, **options):
        home = str(getattr(target, "__module__", getattr(target, "__name__", target)))
        if home.split(".")[0] not in sys.stdlib_module_names and not home.startswith(UNCOMPILED):
            replaced.append(home)
            _forget_compiled_programs()
        plain(target, *arguments, **options)

    monkeypatch.setattr = setattr_and_compile_again
    yield monkeypatch
    monkeypatch.undo()
    if replaced:
        _forget_compiled_programs()


def _forget_compiled_programs():
    for home, names in COMPILED.items() if "dpbilevel.records" in sys.modules else ():
        for name in names:
            compiled = getattr(sys.modules[home], name)
            if hasattr(compiled, "clear_cache"):  # a test may have replaced it
                compiled.clear_cache()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with people.csv and schema.toml, where commands run."""
    from support.cli_data import write_people

    write_people(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(monkeypatch, capfd):
    """Run a command of the command line in this process; returns its exit code, stdout and stderr."""
    from dpbilevel.cli import app

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["dpbilevel", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            app.main()
        return (ended.value.code, *capfd.readouterr())

    return run


_MAPS = Path("/proc/self/maps")
_MANY = 20_000  # of the 65,530 pieces of memory that Linux grants a process; compiled programs take several each


@pytest.fixture(scope="module", autouse=True)
def _compiled_programs_do_not_pile_up():
    """Thousands of programs in one process run into a limit of the system, and XLA then aborts the process."""
    yield
    if "jax" in sys.modules and _MAPS.exists() and _MAPS.read_bytes().count(b"\n") > _MANY:
        sys.modules["jax"].clear_caches()
        gc.collect()
