"""`dpbilevel evaluate`: what it charges, prints and writes, and what it refuses before anything is spent."""

import json
import os

import pytest
from support.cli_data import NUMBER, SECRET, people, write_people

import dpbilevel as dpb
from dpbilevel.cli import evaluation as module
from dpbilevel.solution.trees import decoded

TUNE = ("tune", "people.csv", "--schema", "schema.toml", "--epsilon", "4", "--delta", "1e-5", "--quiet")
EVALUATE = ("evaluate", "run", "new.csv", "--epsilon", "2", "--delta", "1e-5")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run that predicts labels, one that predicts numbers, and rows that neither has seen."""
    folder = tmp_path_factory.mktemp("evaluated")
    write_people(folder, rows=2000)
    write_people(folder, rows=1500, name="new.csv", seed=1)
    return folder


@pytest.fixture
def trained(place, command, monkeypatch):
    monkeypatch.chdir(place)
    for target, out in (("paid", "run"), ("cost", "costs")):
        if not (place / out).exists():
            code, _, stderr = command(*TUNE, "--target", target, "--out", out)
            assert code == 0, stderr
    (place / "run" / "evaluation.json").unlink(missing_ok=True)
    return place


def test_scores_are_charged_printed_and_written(trained, command, tmp_path):
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    dpb.Ledger.open(ledger, dataset="new", total=dpb.Budget(2.5, 1e-5))
    code, stdout, stderr = command(*EVALUATE, "--groups", "clinic", "--ledger", ledger)
    assert code == 0, stderr
    (entry,) = dpb.Ledger.open(ledger, dataset="new").entries
    assert (entry.description, round(entry.epsilon, 6)) == ("evaluation", 2.0)
    for words in ("(2, 1e-05)-differentially private", "accuracy", "auc", "group_accuracy, east", "95% interval"):
        assert words in stdout
    content = json.loads((trained / "run" / "evaluation.json").read_text())
    low, high = decoded(content["intervals"])["accuracy"]
    assert low > 0.7
    assert high <= 1.0
    assert dpb.Privacy.from_json(decoded(content["privacy"])).epsilon() == pytest.approx(2.0, abs=1e-6)
    assert SECRET not in (trained / "run" / "evaluation.json").read_text()
    assert not [path for path in (trained / "run").iterdir() if "space" in path.name]
    code, _, stderr = command(*EVALUATE, "--force", "--ledger", ledger)
    assert code == 3
    assert "epsilon 2 of 2.5 spent" in stderr
    assert json.loads((trained / "run" / "evaluation.json").read_text()) == content  # the earlier scores stand


def test_scores_are_near_those_of_the_predictions(trained, command, tmp_path):
    options = ("--json", "--out", tmp_path / "scores.json", "--metrics", "accuracy,loss,brier")
    code, stdout, _ = command(*EVALUATE, *options)
    assert code == 0
    printed = json.loads(stdout)
    assert (printed["records"], printed["private"], printed["evaluation"]) == (
        *(1500, True),
        str(tmp_path / "scores.json"),
    )
    code, _, _ = command("predict", "run", "new.csv", "--out", tmp_path / "predictions.csv")
    assert code == 0
    rows = (tmp_path / "predictions.csv").read_text().splitlines()[1:]
    right = sum(row.split(",")[0].strip('"') == label for row, label in zip(rows, people(1500, 1)["paid"], strict=True))
    found = printed["scores"]["accuracy"]
    assert abs(found["score"] - right / 1500) < 6 * found["noise"]


def test_numbers_have_scores_of_their_own(trained, command, tmp_path):
    code, stdout, stderr = command(
        "evaluate", "costs", "new.csv", "--epsilon", 4, "--json", "--out", tmp_path / "scores.json"
    )
    assert code == 0, stderr
    scores = json.loads(stdout)["scores"]
    assert set(scores) == {"r2", *(f"error_quantiles, {level}" for level in ("50%", "75%", "90%", "95%"))}
    assert scores["r2"]["interval"][1] > 0.8


def test_rows_of_the_training_file_are_scored_with_a_warning(trained, command, tmp_path):
    code, _, stderr = command(
        "evaluate", "run", "people.csv", "--epsilon", 2, "--out", tmp_path / "scores.json", "--metrics", "accuracy"
    )
    assert code == 0
    assert "scores on training rows are too good" in stderr


REFUSED = {
    "no run": (("evaluate", "nowhere", "new.csv", "--epsilon", 1), "is not a folder"),
    "no file": (("evaluate", "run", "nothing.csv", "--epsilon", 1), "does not exist"),
    "epsilon": (("evaluate", "run", "new.csv", "--epsilon", -1), "--epsilon -1.0: must be > 0"),
    "delta": ((*EVALUATE[:-1], 0.5), "must be below 1/n"),
    "unknown metric": ((*EVALUATE, "--metrics", "accuracy,f1"), "--metrics f1: must be one of accuracy, loss"),
    "metric of numbers": ((*EVALUATE, "--metrics", "r2"), "for a target with classes"),
    "metric of labels": (("evaluate", "costs", *EVALUATE[2:], "--metrics", "auc"), "for a target with a range"),
    "groups of numbers": (("evaluate", "costs", *EVALUATE[2:], "--groups", "town"), "for a target with a range"),
    "groups without a column": ((*EVALUATE, "--metrics", "group_accuracy"), "requires --groups COLUMN"),
    "a group that is a number": ((*EVALUATE, "--groups", "age"), "must be a column with categories"),
    "a group that is not declared": ((*EVALUATE, "--groups", "street"), "must be a column with categories"),
    "a class of no one": ((*EVALUATE, "--positive-class", "maybe"), "--positive-class maybe: must be one of"),
    "an existing file": ((*EVALUATE, "--out", "taken.json"), "already exists; choose another name, or pass --force"),
    "a file of another kind": ((*EVALUATE, "--out", "scores.csv"), "must end in .json"),
    "no folder": ((*EVALUATE, "--out", "missing/scores.json"), "cannot be written"),
    "noise": ((*EVALUATE, "--noise", "loud"), "--noise loud: must be one of"),
    "data set without a ledger": ((*EVALUATE, "--dataset", "new"), "--dataset: requires --ledger"),
    "relation": ((*EVALUATE, "--adjacency", "zero-out", "--ledger", "ledger.db"), "the relation of the ledger"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_input_is_one_line_and_costs_nothing(name, trained, command):
    arguments, words = REFUSED[name]
    (trained / "taken.json").write_text("{}")
    ledger = dpb.Ledger.open(f"sqlite:///{trained}/ledger.db", dataset="new", total=dpb.Budget(9.0, 1e-5))
    if "--ledger" not in arguments and "--dataset" not in arguments:
        arguments = (*arguments, "--ledger", "ledger.db")
    code, stdout, stderr = command(*arguments)
    assert (code, stdout) == (2, "")
    assert len(stderr.splitlines()) == 1
    assert words in stderr
    assert not ledger.entries
    assert not (trained / "run" / "evaluation.json").exists()


HEADER = "age,town,id,clinic,paid,cost"
CELLS = {
    "label": f"30,Oslo,1,east,{SECRET},3",
    "group": f"30,Oslo,1,{SECRET},yes,3",
    "number": f"{SECRET},Oslo,1,east,yes,3",
    "missing number": f",{SECRET},1,east,yes,3",
    "too many cells": f"{NUMBER},Oslo,1,east,yes,3,{SECRET}",
}


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_that_is_refused_is_not_quoted(name, trained, command, tmp_path):
    (tmp_path / "bad.csv").write_text(f"{HEADER}\n" + "30,Oslo,1,east,yes,3\n" * 9 + CELLS[name] + "\n")
    code, stdout, stderr = command("evaluate", "run", tmp_path / "bad.csv", "--epsilon", 1, "--groups", "clinic")
    assert (code, stdout) == (2, "")
    assert len(stderr.splitlines()) == 1
    assert SECRET not in stderr
    assert str(NUMBER) not in stderr
    assert not list((trained / "run").glob("*evaluation*"))


def test_a_missing_column_is_named_and_undeclared_ones_are_not(trained, command, tmp_path):
    (tmp_path / "bad.csv").write_text(f"age,town,{SECRET},clinic,cost\n30,Oslo,1,east,3\n")
    code, _, stderr = command("evaluate", "run", tmp_path / "bad.csv", "--epsilon", 1)
    assert code == 2
    assert "has no column 'paid'" in stderr
    assert SECRET not in stderr


def test_scores_that_cannot_be_written_are_printed(trained, command, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.Reserved, "write", full)
    code, stdout, stderr = command(*EVALUATE, "--metrics", "accuracy")
    assert code == 4
    assert "95% interval" in stdout
    assert "No space left on device" in stderr
    assert "their epsilon is spent" in stderr.lower()
    assert not list((trained / "run").glob("*evaluation*"))


def test_a_failure_after_the_charge_says_that_it_was_spent(trained, command, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError(f"odd row {SECRET}")

    monkeypatch.setattr(dpb.Records, "execute", broken)
    code, _, stderr = command(*EVALUATE)
    assert code == 4
    assert "charged and counts as spent" in stderr
    assert SECRET not in stderr
    assert not list((trained / "run").glob("*evaluation*"))


def test_a_new_run_replaces_the_scores_of_the_earlier_one(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_people(tmp_path, rows=400)
    os.mkdir("run")
    (tmp_path / "run" / "evaluation.json").write_text("{}")
    code, _, stderr = command(*TUNE, "--target", "paid", "--force")
    assert code == 0, stderr
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["report.html", "report.md", "run.json"]
