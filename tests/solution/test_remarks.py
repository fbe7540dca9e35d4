"""Remarks on results: an x at the edge of its range."""

import json
import types
from dataclasses import replace

import numpy as np
import pytest
from support.report_data import made, review

import dpbilevel as dpb
from dpbilevel import estimators, solving
from dpbilevel.report.html import html_report
from dpbilevel.report.markdown import markdown_report
from dpbilevel.report.run_file import read_run, write_run
from dpbilevel.solution.remarks import result_remarks
from dpbilevel.solution.solution import Legend

HALF, FULL = np.array([0.5]), np.array([1.0])


def remarks(domain, x, legend=None):
    return result_remarks(types.SimpleNamespace(problem=types.SimpleNamespace(domain=domain)), x, legend)


@pytest.mark.parametrize(
    ("domain", "x", "words"),
    [
        (dpb.Box(-1.0, 1.0), np.float32(1.0), "At the upper end of its range, 1: x;"),
        (dpb.Box(-1.0, 1.0), np.array([0.0, -1.0]), "At the lower end of its range, -1: x[1];"),
        (dpb.Box(-1.0, 1.0), np.array([0.0, 0.9985]), "At the upper end of its range, 1: x[1];"),
        (dpb.Box(0.0, np.inf), np.array([0.0, 3.0]), "At the lower end of its range, 0: x[0];"),
        (dpb.Box(np.array([0.0, 5.0]), 9.0), np.array([5.0, 5.0]), "At the lower end of its range, 5: x[1];"),
        (dpb.Box(0, 1), np.ones(7), "At the upper end of their range: 7 of 7 numbers of x (x[0], x[1], x[2] and 4"),
        (dpb.NonNegative(), np.array([3.0, 0.0]), "At the lower end of its range, 0: x[1];"),
        (dpb.NonNegative(), np.zeros(2), "At the lower end of their range: 2 of 2"),
        (dpb.Ball(5.0), {"a": np.array(3.0), "b": np.array([4.0])}, "At the edge of its ball, of radius 5: x"),
        (dpb.Simplex(2.0), np.array([0.0, 2.0]), "At a corner of its simplex: x; all weights but x[1] are zero"),
        ({"a": dpb.Box(0, 1), "b": dpb.NonNegative()}, {"a": FULL, "b": HALF}, "At the upper end of its range, 1"),
    ],
)  # fmt: skip
def test_what_is_at_an_edge_is_said_to_be_there(domain, x, words):
    (remark,) = remarks(domain, x)
    assert remark.startswith(words)


@pytest.mark.parametrize(
    ("domain", "x"),
    [
        (dpb.Box(-1.0, 1.0), np.array([0.0, 0.99])),
        (dpb.Box(2.0, 2.0), np.array([2.0])),  # there is no other place
        (dpb.Box(-np.inf, np.inf), np.array([1e30])),
        (dpb.Box(0.0, 1.0), np.array([np.nan])),
        (dpb.NonNegative(), np.array([0.1, 3.0])),
        (dpb.Ball(5.0), np.array([3.0, 3.0])),
        (dpb.Simplex(), np.array([0.0, 0.5, 0.5])),  # to have no weight is what bad sources are for
        (dpb.Simplex(), np.array([1.0])),
        (dpb.Unconstrained(), np.array([0.0])),
    ],
)
def test_what_is_inside_is_not(domain, x):
    assert remarks(domain, x) == ()


def test_remarks_have_the_words_of_the_legend():
    legend = Legend("penalty", ("age", "sex"), logarithmic=True)
    (remark,) = remarks(dpb.Box(-3.0, np.log(2.0)), np.array([0.0, np.log(2.0)]), legend)
    assert remark.startswith("At the upper end of its range, 2: penalty “sex”")


def run_away(output, edge):
    """The paper's method on an upper level without a minimum: every step is larger than the one before."""
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: -(x**2) + 0 * y,
        lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
        domain=dpb.Box(-edge, edge),
    )
    method = dpb.DPBilevel(inner=dpb.DPLocGD(strong_convexity=1.0, steps=2), steps=12, step_size=0.3, output=output)
    points = dpb.Records(lower=np.linspace(-1, 1, 400))
    return dpb.solve(problem, points, dpb.Budget(2.0, 1e-4), method=method, start=(0.1, 0.0), progress=False)


@pytest.fixture(scope="module")
def at_the_edge():
    return run_away("last", 1.0)


def test_an_output_rule_that_returns_the_start_says_so(at_the_edge):
    solution = run_away("smallest-step", 100.0)
    assert solution.x == np.float32(0.1)
    assert "returned the starting point (output rule: smallest-step)" in solution.result
    assert "starting point" not in at_the_edge.result


def test_a_run_says_it_in_its_summary_its_file_and_its_reports(at_the_edge, tmp_path):
    solution = at_the_edge
    (remark,) = [remark for remark in solution.remarks if "upper end" in remark]
    assert f"Remark: {remark}." in solution.summary()
    again = dpb.Solution.load(solution.save(tmp_path / "solution.json"))
    assert again.remarks == solution.remarks
    assert remark in solution._repr_html_()
    whole = review(solution=solution)
    path = write_run(whole, tmp_path / "run.json")
    assert json.loads(path.read_text())["remarks"] == list(solution.remarks)
    assert read_run(path).solution.remarks == solution.remarks
    assert remark in html_report(whole)
    assert "## Remarks" in markdown_report(whole)
    assert "Remarks" not in html_report(review(solution=made()))


def test_files_of_earlier_versions_have_no_remarks(tmp_path):
    content = made().to_json()
    del content["remarks"]
    assert dpb.Solution.from_json(content).remarks == ()


def test_estimators_say_it_in_their_own_words(monkeypatch):
    run = solving.run

    def too_far(*arguments, **options):
        released = run(*arguments, **options)
        return replace(released, values=(np.array([0.0, 9.0]), released.values[1]))

    monkeypatch.setattr(solving, "run", too_far)
    X = np.random.default_rng(0).uniform(-0.5, 0.5, (300, 2))
    known = {"data_norm": 1.0, "target_range": (-1, 1), "groups": ["age", "sex"]}
    model = estimators.DPRidgeCV(epsilon=3.0, method=dpb.Refit(steps=2), **known).fit(X, X[:, 0])
    *planned, found = model.solution_.remarks
    assert tuple(planned) == model.plan(300, 2).remarks
    assert found.startswith("At the upper end of its range")
    assert "penalty “sex”" in found


def from_public_values(solution, planned):
    """Whether remarks follow from the plan and what was released."""
    return solution.remarks == (*planned.remarks, *result_remarks(planned, solution.x, solution.legend))


def test_remarks_follow_from_released_values_alone(monkeypatch):
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: (x - 5) ** 2 + y,
        lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
        domain=dpb.Box(-1.0, 1.0),
    )
    points, budget = dpb.Records(lower=np.linspace(-1, 1, 400)), dpb.Budget(2.0, 1e-4)
    settings = {"method": dpb.Tracking(steps=3), "refit": None, "start": (0.0, 0.0)}
    planned = dpb.plan(problem, points.sizes, budget, **settings)
    assert from_public_values(dpb.solve(problem, points, budget, **settings), planned)
    # A twin that tells what only the records know.
    monkeypatch.setattr(solving, "result_remarks", lambda *_: ("the largest record is 1",))
    assert not from_public_values(dpb.solve(problem, points, budget, **settings), planned)
