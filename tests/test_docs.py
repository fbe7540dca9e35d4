"""The code that README and CONTRIBUTING show runs as it stands."""

import doctest
import math
import re
from pathlib import Path

import numpy as np
import pytest

import dpbilevel as dpb

ROOT = Path(__file__).parent.parent


def python_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_readme_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in python_blocks("README.md") if not block.startswith(">>>")]
    exec(compile(block, "README.md", "exec"), {})
    assert "(1, 1e-06)-differentially private" in capsys.readouterr().out
    assert (tmp_path / "run.json").exists()
    assert (tmp_path / "run.md").exists()


@pytest.mark.slow
def test_readme_doctests_run():
    names = {}
    blocks = [block for block in python_blocks("README.md") if block.startswith(">>>")]
    for block in blocks:
        test = doctest.DocTestParser().get_doctest(block, names, "README.md", "README.md", 0)
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        runner.run(test, clear_globs=False)
        names = test.globs
        assert not runner.failures, block
    shown = "".join(blocks)
    assert all(name in shown for name in dpb.estimators.__all__)


PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md") if "results" not in path.parts
)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)])
def test_pages_of_the_documentation_run(page, capsys):
    for block in python_blocks(page):
        exec(compile(block, page, "exec"), {})


@pytest.mark.parametrize("page", [*PAGES, "README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [target for target in targets if target and "://" not in target]
    assert [target for target in local if not ((ROOT / page).parent / target).exists()] == []


def test_readme_fits_a_few_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 170


@pytest.mark.parametrize("budget", [dpb.Budget(1.0, 1e-4), dpb.Budget(math.inf)], ids=["private", "not private"])
def test_contributed_method_runs_as_the_page_shows_it(budget):
    (block,) = python_blocks("CONTRIBUTING.md")
    names = {"__name__": "contributed"}
    exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    data = np.linspace(-1, 1, 400)
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: x * y, lower_loss=lambda x, y, record: 0.5 * (y - record - x) ** 2
    )
    solution = dpb.solve(problem, dpb.Records(lower=data), budget, method=names["LowerDescent"](), start=(0.3, 0.0))
    assert solution.privacy.epsilon() == pytest.approx(budget.epsilon, abs=1e-6)
    assert solution.y == pytest.approx(0.3, abs=0.01 if not budget.is_private else 0.5)
