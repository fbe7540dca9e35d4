"""The report in Markdown: the content of the page as text."""

import re

import pytest
from support.report_data import KINDS, linear, review, searched, solution

from dpbilevel.report.markdown import markdown_report
from dpbilevel.report.review import Review


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_says_the_guarantee_and_every_number(kind):
    whole, text = solution(kind), markdown_report(review(kind))
    if whole.privacy.budget.is_private:
        assert whole.privacy.stated() in text
    assert ("**NOT PRIVATE.**" in text) == whole.privacy.void
    assert ("**With caveats.**" in text) == (bool(whole.privacy.caveats) and not whole.privacy.void)
    for name, (_, reason) in whole.parameters.items():
        assert name in text
        assert reason in text


def test_sections_are_those_of_the_page():
    titles = re.findall(r"^## (.*)$", markdown_report(review()), flags=re.MULTILINE)
    assert titles == [
        "The guarantee",
        "Summary",
        "Meaning and assumptions",
        "Privacy spend",
        "Hyperparameters",
        "Model",
        "Planned noise-to-signal ratios",
        "Every number of the plan and its reason",
        "Other released values",
        "Public facts",
        "Column declarations",
        "How to reproduce",
    ]


def test_names_cannot_break_out_of_the_text():
    text = markdown_report(review("nasty"))
    outside = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "\\<script" in outside
    assert not re.search(r"(?<!\\)<", outside)
    assert "\x00" not in text
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in outside.splitlines() if line.startswith("| \\<")}
    assert widths == {3}, "tables of names and values have two columns, whatever the names"


def test_code_is_fenced_whatever_is_in_it():
    text = markdown_report(review(command="echo ```` $(date)"))
    assert "`````text\necho ```` $(date)\n`````" in text


def test_names_with_underscores_stay_as_they_are():
    text = markdown_report(review(model=None, facts={"hours_per_week": "_x_"}))
    assert "- hours_per_week: \\_x\\_" in text


def test_long_tables_are_cut_and_say_so():
    text = markdown_report(review(model=linear(300)))
    assert "100 more are in run.json." in text


@pytest.mark.parametrize("kind", ["grid", "random"])
def test_baselines_have_reports(kind):
    assert "## The guarantee" in markdown_report(Review(solution=searched(kind)))
    assert markdown_report(Review(solution=searched(kind))) == markdown_report(Review(solution=searched(kind)))
