"""The guarantee in words: everything that a review asks for is in them, and nothing is promised that is not kept."""

import re

import pytest
from support.report_data import KINDS, made, searched, solution

from dpbilevel.report.guarantee import guarantee


def test_the_sentence_has_everything_that_a_lawyer_quotes():
    whole = solution("private")
    sentence = guarantee(whole).sentence
    stated = whole.privacy.stated()
    assert stated.startswith("(")
    for part in (
        stated,
        "replace-one",
        "one row of the data, not a person",
        "exact Gaussian composition",
        "clipped to a bounded norm",
        "no record is in two roles",
        "numbers of records are public",
        "declared ranges, categories and classes",
        "floating-point",
        "no seed was fixed",
        "dpbilevel 0.1.0",
    ):
        assert part in sentence
    assert sentence.count(". ") == 0, "it is one sentence"
    assert sentence.endswith(".")


@pytest.mark.parametrize("kind", KINDS)
def test_status_and_notice_go_together(kind):
    reported = guarantee(solution(kind))
    expected = {"caveats": "private with caveats", "black box": "private with caveats"}
    expected |= {"seeded": "not private", "infinite": "not private"}
    assert reported.status == expected.get(kind, "private")
    assert bool(reported.notice) == (reported.status != "private")
    assert reported.sentence.startswith("NOT PRIVATE") == (reported.status == "not private")
    assert bool(reported.meaning) == (reported.status != "not private")


def test_a_void_run_promises_nothing():
    reported = guarantee(solution("seeded"))
    assert "fixed seed" in reported.sentence
    assert "would, taken together, be" in reported.sentence
    assert "no seed was fixed" not in reported.sentence
    assert "not private" in reported.notice
    nothing = guarantee(solution("infinite"))
    assert (nothing.clipped, nothing.assumptions, nothing.groups) == ((), (), ())
    assert "protect no record" in nothing.sentence


def test_caveats_are_in_the_sentence():
    reported = guarantee(solution("caveats"))
    assert "subject to the caveats that classes were not declared" in reported.sentence
    assert reported.caveats == ("classes were not declared",)


def test_what_a_black_box_declares_is_taken_on_trust_and_said_so():
    reported = guarantee(solution("black box"))
    assert "except that the privacy of “training” is taken as declared" in reported.sentence
    assert any("batch stays secret" in line for line in reported.assumptions)
    assert any("“training” is correct" in line for line in reported.assumptions)
    assert dict(reported.clipped) == {
        "hypergradient": "each record's vector to norm 2",
        "training": "bounded by the black box itself, as it declares",
    }
    assert "no record is in two roles" not in reported.sentence  # there is one role


def test_a_private_search_is_accounted_for_by_the_library():
    reported = guarantee(searched("random"))
    assert "Rényi accountant" in reported.sentence
    assert "taken as declared" not in reported.sentence
    assert dict(reported.clipped)["score"].startswith("from 0 to 1")


def test_clips_come_from_the_plan_and_from_the_charges():
    clipped = dict(guarantee(solution("private")).clipped)
    assert clipped["training pass – model"] == "norm at most 1 (bounds one record's vector)"
    assert clipped["validation pass"] == "each record's vector to norm 1"
    assert dict(guarantee(made(parameters={})).clipped).keys() == {"training pass", "training", "validation pass"}


def test_groups_and_meaning_follow_the_accountant():
    whole = solution("private")
    reported = guarantee(whole)
    assert reported.groups == tuple((rows, whole.privacy.epsilon(group=rows)) for rows in (2, 5, 10))
    noticed = 100 * (1 - whole.privacy.tradeoff(0.05))
    stated = float(re.search(r"at most ([\d.]+)%", reported.meaning)[1])
    assert noticed <= stated <= noticed * 1.01
