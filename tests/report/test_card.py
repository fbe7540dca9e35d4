"""Cards for notebooks: what they say, and that names cannot break out of them."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn import config_context
from support.report_data import KINDS, NASTY, additive, infinite, made, searched, solution, with_privacy

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


def test_records_that_are_units_are_said_to_be_units():
    units = with_privacy(made(), rows_per_unit=4)
    assert "2,000 lower units" in solution_card(units)
    assert "2,000 lower units" in units.privacy._repr_html_()
    assert "2,000 lower units" in solution_card(with_privacy(infinite(), rows_per_unit=4))
    for shown in (solution_card(units), units.summary()):
        assert "lower records" not in shown
    assert "epsilon of lower units" in units.summary()
    assert "epsilon of lower records" in made().summary()


def test_an_additive_model_shows_its_largest_shapes(monkeypatch):
    estimator = DPLogisticRegressionCV(epsilon=2.0, data_norm=1.0, classes=["no", "yes"])
    estimator.solution_, estimator.classes_ = solution("private"), np.array(["no", "yes"])
    estimator.shapes_ = additive().shapes
    shown = estimator._repr_html_()
    assert "<svg" in shown
    assert all(f"{own.name}" in shown for own in estimator.shapes_)
    estimator.shapes_ = estimator.shapes_ * 4
    assert f"and {len(estimator.shapes_) - 6} more columns" in estimator._repr_html_()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "<svg" not in estimator._repr_html_().partition("differential")[2]
    assert estimator._repr_html_().endswith(solution_card(estimator.solution_))


def test_a_solution_of_the_library_shows_itself():
    assert callable(dpb.Solution._repr_html_)


# ---- spends, plans and ledgers


class Balanced(HTMLParser):
    """Elements that are closed in the order in which they were opened; every table has a caption and column headers."""

    def __init__(self, page):
        super().__init__()
        self.open, self.seen = [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_card(card, *words):
    seen = Balanced(card).seen
    tags = [tag for tag, _ in seen]
    assert tags[0] == "div"
    assert seen[0][1]["role"] == "group"
    assert seen[0][1]["aria-label"]
    assert not {"style", "script", "link", "img", "a"} & set(tags), "self-contained, and nothing for the whole notebook"
    assert tags.count("caption") == tags.count("table")
    assert all(attributes.get("scope") for tag, attributes in seen if tag == "th")
    for word in words:
        assert word in card, word


@pytest.mark.parametrize("kind", ["private", "caveats", "seeded", "infinite", "black box"])
def test_a_spend_shows_itself(kind):
    privacy = solution(kind).privacy
    card = privacy._repr_html_()
    check_card(card, privacy.label(), *(charge.release for charges in privacy.charges.values() for charge in charges))
    assert ("Caveat:" in card) == bool(privacy.caveats)
    if kind == "private":
        check_card(card, "2,000 lower records", "For a person with 2 rows", "200", "exact Gaussian composition")
    if kind == "infinite":
        assert "exact Gaussian" not in card


def test_a_plan_shows_itself_and_every_number_with_its_reason():
    plan = DPLogisticRegressionCV(epsilon=1.0, classes=[0, 1]).plan(rows=5000, columns=3)
    card = plan._repr_html_()
    check_card(card, "Plan: Private", plan.privacy.label(), "Nothing was read", "4,000 lower records", "Refit")
    assert card.count("<tr") == 2 + len(plan.parameters) + sum(map(len, plan.privacy.charges.values()))
    assert "<details>" in card


def charged(ledger, *runs):
    """A ledger that was charged for runs that never happen."""
    plan = DPLogisticRegressionCV(epsilon=1.0, delta=1e-5, classes=[0, 1]).plan(rows=5000, columns=3)
    for run in runs:
        ledger.charge(plan.releases, plan.budget, run)
    return ledger


def test_a_ledger_shows_itself():
    empty = dpb.Ledger(dpb.Budget(3.0, 1e-5))._repr_html_()
    check_card(empty, "ε 0 of 3 spent at delta 1e-05", "ε 3 remaining", "0 runs")
    card = charged(dpb.Ledger(dpb.Budget(6.0, 1e-5)), *(f"run {number}" for number in range(9)))._repr_html_()
    check_card(card, "9 runs, the last 6 shown", "do not sum to the total", "run 8")
    assert "run 2<" not in card
    full = charged(dpb.Ledger(dpb.Budget(1.0, 1e-5)), "Tracking")._repr_html_()
    check_card(full, "budget exhausted", "1 run<")
    check_card(dpb.Ledger(dpb.Budget(float("inf")))._repr_html_(), "ε 0 of infinite spent")


def test_what_is_left_is_never_shown_too_large():
    ledger = charged(dpb.Ledger(dpb.Budget(1.5, 1e-5)), "one")
    shown = float(re.search(r"ε (\S+) remaining", ledger._repr_html_()).group(1))
    assert 0.999 * ledger.remaining().epsilon < shown <= ledger.remaining().epsilon


def test_a_ledger_in_a_database_shows_its_name_who_and_when(tmp_path):
    pytest.importorskip("sqlalchemy")
    name = NASTY.replace("\x00", "").replace("\x1b", "")
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = charged(dpb.Ledger.open(url, dataset="town", total=dpb.Budget(3.0, 1e-5), who=name), name)
    card = ledger._repr_html_()
    check_card(card, "Ledger of town", "&lt;script&gt;", " UTC")
    assert "<script" not in card
    assert str(tmp_path) not in card
    with (tmp_path / "ledger.db").open("r+b") as file:
        file.write(b"not a database")
    broken = ledger._repr_html_()
    check_card(broken, "cannot be read")
    assert str(tmp_path) not in broken


def test_a_look_at_a_ledger_does_not_load_jax():
    code = "import sys; from dpbilevel.privacy.ledger import Ledger; from dpbilevel.privacy.budget import Budget; "
    code += "assert 'remaining' in Ledger(Budget(1.0, 1e-5))._repr_html_(); assert 'jax' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
