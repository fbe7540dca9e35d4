"""Cards for notebooks: what they say, and that names cannot break out of them."""

import re

import numpy as np
import pytest
from report_data import KINDS, made, searched, solution
from sklearn import config_context

import dpbilevel as dpb
from dpbilevel.estimators import DPLogisticRegressionCV
from dpbilevel.report.card import solution_card


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_says_the_guarantee_and_the_records(kind):
    whole = solution(kind)
    card = whole._repr_html_()
    assert card == solution_card(whole)
    assert whole.privacy.label() in card
    for role, count in whole.sizes.items():
        assert f"{count:,} {role} records" in card
    shout = {"seeded": "NOT PRIVATE", "infinite": "NOT PRIVATE", "caveats": "Private, with caveats"}
    assert shout.get(kind, "Private") in card
    assert card.count("<div") == card.count("</div>")
    assert "<style" not in card, "notebooks would apply it to everything"


def test_names_are_escaped():
    card = solution_card(solution("nasty"))
    assert "<script" not in card
    assert "&lt;script&gt;" in card
    assert "\x00" not in card


def test_the_largest_values_come_first_and_the_others_are_counted():
    whole = solution("many")
    card = solution_card(whole)
    largest = whole.legend.names[int(np.argmax(whole.x))]
    assert card.index(largest) < card.index("and 24 more")
    widths = [float(width) for width in re.findall(r"width: ([\d.]+)%", card)]
    assert max(widths) <= 100


@pytest.mark.parametrize("x", [np.zeros(3), np.full(3, np.nan), np.array([-900.0, 0.0, 900.0])])
def test_odd_values_have_cards(x):
    assert "penalty" in solution_card(made(x=x, history={}))


def test_baselines_have_cards():
    assert "2,000 upper records" in solution_card(searched("random"))


def test_an_estimator_keeps_its_diagram_and_shows_the_card_once_fitted():
    estimator = DPLogisticRegressionCV(epsilon=2.0, data_norm=1.0, classes=[0, 1])
    before = estimator._repr_html_()
    assert "sk-" in before
    assert "differential" not in before
    assert "records" not in before
    estimator.solution_ = solution("private")
    with_card = estimator._repr_html_()
    assert with_card.endswith(solution_card(estimator.solution_))
    assert "sk-" in with_card
    bundle = estimator._repr_mimebundle_()
    assert bundle["text/html"].endswith(solution_card(estimator.solution_))
    assert bundle["text/plain"] == repr(estimator)
    with config_context(display="text"):
        assert "text/html" not in estimator._repr_mimebundle_()


def test_a_solution_of_the_library_shows_itself():
    assert callable(dpb.Solution._repr_html_)
