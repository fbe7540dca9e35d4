"""Tests are where their modules are, and share what they share through tests/support/."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpbilevel

TESTS = Path(__file__).parent
ROOT = TESTS.parent
SOURCE = Path(dpbilevel.__file__).parent
OTHERS = {"guarantees", "pages", "support"}
FILES = [path for path in TESTS.rglob("*.py") if "__pycache__" not in path.parts]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_folders_are_those_of_the_library_and_three_more():
    folders = {path.relative_to(TESTS).parts[0] for path in FILES if path.parent != TESTS}
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders == packages | OTHERS


def test_no_test_imports_the_module_of_another():
    found = [(path.name, name) for path in FILES for name in imported(path) if re.search(r"(^|\.)test_", name)]
    assert [one for one in found if not one[1].startswith(("jax.", "numpy."))] == []


def test_support_has_no_tests_and_everything_else_is_one():
    for path in FILES:
        is_support = path.parent.name == "support" or path.name == "conftest.py"
        assert path.name.startswith("test_") != is_support, path


def test_files_have_names_of_their_own():
    """Folders of tests are no packages: two files of one name would be one module."""
    names = [path.stem for path in FILES if path.name != "conftest.py"]
    assert len(names) == len(set(names))


@pytest.fixture
def shared(request):
    """tests/conftest.py."""
    plugins = request.config.pluginmanager.get_plugins()
    (found,) = [one for one in plugins if getattr(one, "__file__", None) == str(TESTS / "conftest.py")]
    return found


def test_files_that_start_first_are_there(shared):
    assert [name for name in shared.LONG if not (TESTS / name).is_file()] == []


def test_make_and_the_guard_agree_on_what_is_compiled_quickly(shared):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    written = re.search(r"^QUICKLY := \$\(addprefix tests/,(.*)\)$", makefile, re.MULTILINE)
    guard = shared.QUICKLY
    assert guard == {*written[1].split(), "pages"}
    assert not guard & {"guarantees", "privacy", "checkpoint", "evaluation", "baselines", "audit", "inner", "execution"}


def test_guarantees_are_not_compiled_quickly():
    program = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    flags = re.search(r'^QUICK := XLA_FLAGS="(.*)"$', makefile, re.MULTILINE)[1].split()
    assert len(flags) == 2
    for folder, flag, allowed in (
        ("guarantees/test_words.py", flags[0], False),
        ("guarantees/test_words.py", flags[1], False),
        ("theory/test_forms.py", " ".join(flags), True),
    ):
        done = subprocess.run(
            [*program, f"tests/{folder}"],
            cwd=ROOT,
            env=os.environ | {"XLA_FLAGS": flag},
            capture_output=True,
            text=True,
        )
        assert (done.returncode == 0) == allowed
        assert ("not for tests/guarantees" in done.stdout + done.stderr) != allowed
