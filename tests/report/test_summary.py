"""The first page of a report answers what a privacy review asks, and nothing of it is private."""

from dataclasses import replace

import numpy as np
import pytest
from support.report_data import infinite, made, review, scores, with_privacy

import dpbilevel as dpb
from dpbilevel.report.content import content
from dpbilevel.report.html import html_report
from dpbilevel.report.markdown import markdown_report
from dpbilevel.report.review import Review
from dpbilevel.report.run_file import read_run, write_run
from dpbilevel.report.summary import summary_rows


def answers(**known):
    return dict(summary_rows(content(Review(**{"solution": made(), **known}))))


def test_the_questions_of_a_review_are_answered():
    found = answers(facts={"ledger": "entry 3 of the ledger of the data set 'visits'"})
    assert found["What is protected"].startswith("the content of one row")
    assert "epsilon 0." in found["What is protected"]
    assert found["Which rows were read"].startswith("2,000 training rows, 500 validation rows")
    assert found["Which ledger paid"] == "entry 3 of the ledger of the data set 'visits'"
    assert found["What was released"].startswith("3 numbers (penalty), and all values during tuning; a model of 7")
    assert found["What set the clip norms"] == "declared numbers, chosen without looking at the rows"
    assert found["At the edge of its range"] == "nothing"
    assert "none is recorded" in answers()["Which ledger paid"]


def test_runs_on_units_say_that_a_person_is_protected():
    found = answers(solution=with_privacy(made(), rows_per_unit=4))
    assert found["What is protected"].startswith("all rows of one unit: epsilon")
    assert found["Which rows were read"].startswith("2,000 training units, 500 validation units")
    assert "each of them has one of these uses" in found["Which rows were read"]


def test_clips_that_adapt_and_numbers_at_an_edge_are_named():
    parameters = {"training: clip": (1.0, "initially; it then adapts until 90% are within it")}
    edge = "At the lower end of its range, 1e-05: penalty “age”; the optimum may lie outside"
    found = answers(solution=replace(made(), parameters=parameters, remarks=("Tuning has noise", edge)))
    assert "no other release paid for them" in found["What set the clip norms"]
    assert found["At the edge of its range"] == edge


def test_runs_that_are_not_private_or_have_caveats_say_so_first():
    for solution in (infinite(), with_privacy(made(), void=True)):
        found = answers(solution=solution)
        assert found["What is protected"] == "nothing: this run is not private"
        assert "What the guarantee leaves out" not in found
    assert answers(solution=with_privacy(made(), caveats=("a range was read",)))["What the guarantee leaves out"] == (
        "a range was read"
    )


def test_the_summary_comes_first_on_every_page_and_scores_are_part_of_it():
    made_review = replace(review(), evaluation=scores())
    for page in (html_report(made_review), markdown_report(made_review)):
        places = [
            page.index(words) for words in ("Summary", "held-out rows", "Meaning and assumptions", "Privacy spend")
        ]
        assert places == sorted(places)
        assert "95% interval" in page
        assert "calibration curve" in page.lower()
        assert "0.9 to 1" in page
    assert "held-out" not in html_report(review())


def test_scores_of_a_run_are_kept_bit_by_bit(tmp_path):
    released = scores()
    kept = read_run(write_run(replace(review(), evaluation=released), tmp_path / "run.json")).evaluation
    np.testing.assert_equal(kept.values, released.values)
    assert kept.interval("accuracy") == released.interval("accuracy")
    assert kept.to_json() == released.to_json()
    assert read_run(write_run(review(), tmp_path / "run.json")).evaluation is None
    with pytest.raises(dpb.InvalidArgument, match=r"is not a dpbilevel\.evaluation/1 document"):
        dpb.Evaluation.from_json({"format": "dpbilevel.run/1"})
