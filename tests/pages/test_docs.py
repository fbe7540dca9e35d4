"""Code that README, CONTRIBUTING and the documentation show runs as it stands; pages, links and names are complete."""

import doctest
import importlib
import inspect
import math
import pkgutil
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import dpbilevel as dpb

ROOT = Path(__file__).parents[2]


def python_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_readme_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in python_blocks("README.md") if not block.startswith(">>>")]
    exec(compile(block, "README.md", "exec"), {})
    assert "(1, 1e-06)-differentially private" in capsys.readouterr().out
    assert (tmp_path / "run.json").exists()
    assert (tmp_path / "run.html").exists()


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


def test_every_estimator_is_on_the_page_of_estimators():
    shown = (ROOT / "docs/estimators.md").read_text(encoding="utf-8")
    assert [name for name in dpb.estimators.__all__ if f"`{name}`" not in shown] == []


PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)])
def test_pages_of_the_documentation_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}  # of the whole page: a later block continues where an earlier one ended
    for block in python_blocks(page):
        if not block.startswith(">>>"):
            exec(compile(block, page, "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(block, names, page, page, 0)
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        runner.run(test, out=(reported := []).append, clear_globs=False)
        assert not runner.failures, "".join(reported)
        names = test.globs
    for picture in tmp_path.glob("*.svg"):
        committed = (ROOT / page).parent / picture.name
        assert f"]({picture.name})" in (ROOT / page).read_text(encoding="utf-8")
        assert words(picture) == words(committed), f"python benchmarks/gallery.py draws {committed.name} again"


def words(picture):
    """Text of a picture. Its lines may differ in the last bits between machines."""
    return re.findall(r"<text[^>]*>(.*?)</text>", picture.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_every_page_of_the_gallery_draws_the_picture_that_it_shows():
    for page in (ROOT / "docs/gallery").glob("*.md"):
        shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
        drawn = re.findall(r'savefig\("([^"]+)"', page.read_text(encoding="utf-8"))
        assert shown == drawn == [f"{page.stem}.svg"] or page.stem == "index"


@pytest.mark.parametrize("page", [*PAGES, "README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [target for target in targets if target and "://" not in target]
    assert [target for target in local if not ((ROOT / page).parent / target).exists()] == []


def test_the_site_has_every_page_and_loads_nothing_from_elsewhere():
    pytest.importorskip("properdocs.replacement")  # theme and plugins import what they know as mkdocs
    config = importlib.import_module("properdocs.config").load_config(str(ROOT / "properdocs.yml"))

    def pages(entry):
        if isinstance(entry, str):
            return [f"docs/{entry}"]
        return [page for item in (entry.values() if isinstance(entry, dict) else entry) for page in pages(item)]

    assert sorted(pages(config.nav)) == PAGES
    assert config.theme["font"] is False
    assert config.extra_javascript == []
    assert all("://" not in str(file) for file in [*config.extra_css, *config.extra["polyfills"]])


def public_names():
    """Dotted names to what they stand for: of the library, and of every public package and module in it."""
    modules = [dpb, *(getattr(dpb, name) for name in dpb.__all__ if hasattr(getattr(dpb, name), "__path__"))]
    for package in modules[1:]:
        inside = pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
        found = [importlib.import_module(name) for _, name, _ in inside]
        modules += [module for module in found if hasattr(module, "__all__")]
    named = [(module, name) for module in modules for name in getattr(module, "__all__", ())]
    return {f"{module.__name__}.{name}": getattr(module, name) for module, name in named}


def test_every_public_name_is_on_a_page_of_the_reference():
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES if "reference" in page)
    described = []
    for path, shown in re.findall(r"^::: (\S+)$(?:\n    options: (.*))?", text, flags=re.MULTILINE):
        home, _, name = path.rpartition(".")
        described.append(getattr(importlib.import_module(home), name))
        if inspect.ismodule(described[-1]) and "members: false" not in shown:  # all of its public names are shown
            described += [getattr(described[-1], one) for one in getattr(described[-1], "__all__", ())]
    names = public_names()
    assert len(names) > 60
    assert [name for name, value in names.items() if not any(value is one for one in described)] == []


@pytest.mark.parametrize("page", PAGES)
def test_formulas_of_a_page_become_mathml(page):
    markdown = pytest.importorskip("markdown")
    mathml = runpy.run_path(str(ROOT / "site_hooks" / "mathematics.py"))["MathML"]
    wraps = {"tex_inline_wrap": ["", ""], "tex_block_wrap": ["", ""]}
    options = {"generic": True, "inline_syntax": ["dollar"], "block_syntax": ["dollar"], **wraps}
    extensions = ["tables", "pymdownx.superfences", "pymdownx.arithmatex", mathml()]
    text = (ROOT / page).read_text(encoding="utf-8")
    html = markdown.markdown(text, extensions=extensions, extension_configs={"pymdownx.arithmatex": options})
    # A formula that was torn apart, by the columns of a table, say, leaves its dollars behind.
    outside_of_code = re.sub(r"<(pre|code|math)\b.*?</\1>", "", html, flags=re.DOTALL)
    assert "$" not in outside_of_code
    written = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    assert html.count("<math") == len(re.findall(r"\$\$.*?\$\$|\$[^$]+\$", written, flags=re.DOTALL))


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
