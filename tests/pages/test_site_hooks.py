"""What builds the site: formulas, examples of docstrings, and links that leave the documentation."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("properdocs")
HOOKS = Path(__file__).parents[2] / "site_hooks"
mathml = runpy.run_path(str(HOOKS / "mathematics.py"))["mathml"]
docstrings = runpy.run_path(str(HOOKS / "docstrings.py"))
fenced, together = docstrings["fenced"], docstrings["together"]
outside = runpy.run_path(str(HOOKS / "sources.py"))["outside"]


def tags(element):
    return [part.tag for part in element.iter()]


def test_limits_are_below_in_displays_and_beside_in_the_line():
    assert "munder" in tags(mathml(r"\min_y f", display=True))
    assert "munder" not in tags(mathml(r"\min_y f", display=False))


def test_display_and_source_are_kept():
    element = mathml(r"\frac{a}{b}", display=True)
    assert element.get("display") == "block"
    assert element.get("alttext") == r"\frac{a}{b}"
    assert mathml("a", display=False).get("display") == "inline"


def test_words_that_the_converter_does_not_know_are_operators():
    assert [part.text for part in mathml(r"\arg\min_y f", display=True).iter("mo")] == ["arg", "min"]


@pytest.mark.parametrize("formula", [r"\nosuchcommand x", r"\begin{aligned} a &= b \end{aligned}"])
def test_what_cannot_be_converted_fails(formula):
    with pytest.raises(ValueError, match="write it in another way"):
        mathml(formula, display=True)


def test_examples_are_fenced_each_by_itself():
    given = "One.\n\n>>> 1\n1\n\nTwo::\n\n    code\n\n>>> 2\n2"
    expected = "One.\n\n```pycon\n>>> 1\n1\n```\n\nTwo:\n\n    code\n\n```pycon\n>>> 2\n2\n```"
    assert fenced(given) == expected
    assert fenced("No example.") == "No example."


def test_names_that_one_line_describes_stay_together():
    assert together("Args:\n    X, y: rows.\n    z: other, more") == "Args:\n    X,\u00a0y: rows.\n    z: other, more"


def test_links_that_leave_the_documentation_are_distinguished():
    config = SimpleNamespace(docs_dir="/anywhere/docs")
    assert outside("../src/dpbilevel/problem.py", "paper.md", config) == "src/dpbilevel/problem.py"
    assert outside("../../src/dpbilevel/problem.py", "methods/tracking.md", config) == "src/dpbilevel/problem.py"
    assert outside("../results/leak.md", "methods/tracking.md", config) is None
