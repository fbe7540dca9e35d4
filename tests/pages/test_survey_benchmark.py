"""The survey of small problems: its statistics on made-up losses, its problems, and a run at toy size."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import pieces
import survey
import survey_problems
import survey_statistics as statistics
from survey import BASELINE, CONSTANT, DEFAULT, REFERENCE, SEARCHED, key_of
from survey_report import report

NAMES, RUNS = [f"problem {index}" for index in range(12)], 20
draws = np.random.default_rng(0)
SPREAD = draws.normal(size=(len(NAMES), RUNS))


def made_up(changes=None, warned=()):
    """Losses of the default are those of a search up to noise, but for what is added to some."""
    cells = {}
    for place, name in enumerate(NAMES):
        for run in range(RUNS):
            shift, other = 0.01 * SPREAD[place, run], 0.01 * SPREAD[place - 1, run]
            added = (changes or {}).get(name, np.zeros(RUNS))[run]
            losses = {DEFAULT: 0.5 + other + added, SEARCHED: 0.5 + shift, CONSTANT: 0.7, REFERENCE: 0.3, BASELINE: 0.6}
            cells[key_of(name, 1.0, run)] = losses | {"warned": name in warned, "seconds": 0.1, "commit": "c"}
    return cells


def compare(cells):
    return statistics.compare(statistics.gathered(cells, NAMES, [1.0]))


def test_equal_methods_are_not_told_apart():
    found = compare(made_up())
    assert found.met
    assert (found.worse, found.better, found.worse_tail, found.baseline_better) == ([], [], [], [])
    assert len(found.baseline_worse) == len(NAMES)


def test_a_cell_in_which_the_default_costs_is_found():
    found = compare(made_up({"problem 3": np.full(RUNS, 0.05)}))
    assert found.worse == ["problem 3 | 1"]
    assert not found.met
    assert compare(made_up({"problem 3": np.full(RUNS, -0.05)})).better == ["problem 3 | 1"]


def test_a_bad_tail_is_found():
    # Exchanges of a few bad runs are likely, so that a tail is only significant if half of the runs are in it.
    bad = np.where(np.arange(RUNS) % 4 > 0, 0.3, -0.35)
    found = compare(made_up({"problem 5": bad}))
    assert found.worse_tail == ["problem 5 | 1"]
    assert found.tail > 1.3


@pytest.mark.parametrize(("warned", "unwarned"), [((), 0.05 * 2 / 12), (("problem 1", "problem 2"), 0.0)])
def test_models_worse_than_a_constant_need_a_warning(warned, unwarned):
    once = np.where(np.arange(RUNS) == 0, 0.5, 0.0)
    found = compare(made_up({"problem 1": once, "problem 2": once}, warned))
    assert found.worse_than_constant == pytest.approx(0.05 * 2 / 12)
    assert found.unwarned == pytest.approx(unwarned)
    assert found.false_alarms == pytest.approx(len(warned) * 19 / (12 * 20 - 2))


def test_exchanges_are_all_of_them_or_a_sample():
    few, many = np.linspace(1.0, 2.0, 6), np.linspace(1.0, 2.0, 18)
    assert statistics.exchange_test(few + 1, few, statistics.mean_difference) == 2**-6
    assert statistics.exchange_test(many + 1, many, statistics.mean_difference) <= 2 / 2**16
    assert statistics.exchange_test(few, few, statistics.mean_difference) == 1.0


def test_problems_for_development_are_not_those_that_are_reported():
    committed, developed = ({problem.name for problem in some} for some in (survey.COMMITTED, survey.DEVELOPMENT))
    assert len(committed) == len(survey.COMMITTED) >= 25
    assert not committed & developed
    assert not {problem.group for problem in survey.COMMITTED} & {problem.group for problem in survey.DEVELOPMENT}
    assert all(" | " not in name for name in committed | developed)


@pytest.mark.parametrize("name", ["breast cancer", "wine", "diabetes", "digits", "linear, 800 x 80, correlated"])
def test_declarations_hold_and_repetitions_differ(name):
    first, second = (survey.PROBLEMS[name].draw(repetition) for repetition in (0, 1))
    assert first.rows.shape == second.rows.shape
    assert not np.array_equal(first.rows, second.rows)
    if "bounds" in first.declared:
        low, high = first.declared["bounds"]
        assert ((first.rows >= low) & (first.rows <= high)).all()
    if first.classifies:
        assert set(first.targets) <= set(first.declared["classes"])
    assert survey.reference_loss(first) < survey.constant_loss(first)


def test_a_correlated_design_is_correlated():
    split = survey_problems.synthetic("linear", 5000, 4, "correlated", 1.0, 3).draw(0)
    assert np.corrcoef(split.rows.T)[0, 1] == pytest.approx(survey_problems.CORRELATION, abs=0.05)


def test_a_quick_run_writes_a_page_and_resumes(tmp_path, capsys):
    out = tmp_path / "quick.json"
    survey.main(["--quick", "--seeds", "2", "--out", str(out)])
    cells = pieces.read_cells(out)
    assert len(cells) == 2 * 2
    assert all({DEFAULT, SEARCHED, BASELINE, CONSTANT, REFERENCE, "warned"} <= set(cell) for cell in cells.values())
    assert all(np.isfinite([cell[name] for name in (DEFAULT, SEARCHED, BASELINE)]).all() for cell in cells.values())
    before = out.read_text()
    capsys.readouterr()
    survey.main(["--quick", "--seeds", "2", "--out", str(out)])
    assert out.read_text() == before
    assert "logistic, 300 x 3, dense |" in out.with_suffix(".md").read_text()
    assert out.with_suffix(".svg").read_text().startswith("<?xml")
    assert "mean loss of the default" in capsys.readouterr().out
    assert report(out, [problem.name for problem in survey.QUICK])
