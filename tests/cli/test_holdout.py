"""Rows that a run sets aside: no part of training, scored at the end, and charged together with the run."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from support.cli_data import write_people

import dpbilevel as dpb
from dpbilevel.cli import holdout
from dpbilevel.cli import tuning as tuning_module
from dpbilevel.cli.rows import Rows
from dpbilevel.errors import NotCharged
from dpbilevel.evaluation.evaluating import plan_scores
from dpbilevel.evaluation.means import Accuracy
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.report.run_file import read_run

TUNE = ("tune", "people.csv", "--target", "paid", "--schema", "schema.toml", "--epsilon", "2", "--delta", "1e-5")
HELD = (*TUNE, "--holdout", "0.25")


def rows(number, start=0.0):
    cells = start + np.arange(number, dtype=np.float64)
    return Rows(dpb.EncodedRows(cells[:, None], data_norm=1.0), cells.astype(int), {"sources": cells.astype(str)})


@pytest.mark.parametrize("number", [3, 10, 1001])
def test_every_row_is_in_one_part_by_its_position(number):
    remaining, held = holdout.set_aside(rows(number), 0.25)
    assert sorted([*remaining.target, *held.target]) == list(range(number))
    assert len(held.target) == holdout.held_out_rows(number, 0.25) == max(1, round(number / 4))
    for part in (remaining, held):
        np.testing.assert_array_equal(part.features[:, 0].astype(int), part.target)
        assert part.places["sources"].tolist() == [f"{cell:.1f}" for cell in part.target]
        assert (np.diff(part.target) > 0).all()
    others, _ = holdout.set_aside(rows(number, start=500.0), 0.25)  # other cells, the same positions
    np.testing.assert_array_equal(others.target - 500, remaining.target)


def test_units_are_set_aside_with_all_of_their_rows_by_the_set_of_ids_alone():
    ids = np.array([f"person {one}" for one in np.random.default_rng(0).integers(0, 40, size=300)])
    remaining, held = holdout.set_aside(replace(rows(300), units=ids), 0.25)
    assert len(held.target) + len(remaining.target) == 300
    assert not set(held.units) & set(remaining.units)
    assert (held.records, remaining.records) == (10, 30)
    np.testing.assert_array_equal(ids[held.target], held.units)
    # One person has other rows, elsewhere and more of them: everybody has the same role.
    others = np.concatenate([["person 7"] * 11, ids[ids != "person 7"][::-1]])
    _, again = holdout.set_aside(replace(rows(len(others)), units=others), 0.25)
    assert set(again.units) == set(held.units)
    with pytest.raises(dpb.InvalidRecords, match="two roles"):
        holdout.divide(0.25, replace(rows(300), units=ids), replace(rows(300), units=ids))
    with pytest.raises(dpb.InvalidArgument, match="at least 3 units"):
        holdout.set_aside(replace(rows(300), units=np.arange(300) % 2), 0.25)


def test_no_repr_has_a_cell():
    held = holdout.HeldOut(rows(3).features, np.array([0.125]), None, None, None)
    assert "0.125" not in repr(held)
    assert "[" not in repr(rows(3))


@pytest.fixture
def run(folder, command):
    write_people(folder, rows=800)
    return lambda *arguments: command(*arguments)


def test_scores_are_one_charge_with_the_run(run, folder):
    ledger = f"sqlite:///{folder}/ledger.db"
    dpb.Ledger.open(ledger, dataset="people", total=dpb.Budget(2.0, 1e-5))  # there is nothing left for a second charge
    code, stdout, stderr = run(*HELD, "--ledger", ledger)
    assert code == 0, stderr
    (entry,) = dpb.Ledger.open(ledger, dataset="people").entries
    assert entry.epsilon == pytest.approx(2.0, abs=1e-6)
    assert re.search(r"held out\s+200\s+2\n", stdout)
    assert "Scores on 200 held-out rows" in stdout
    content = json.loads((folder / "run" / "run.json").read_text())
    assert {role["role"]: role["records"] for role in content["spend"]} == {"lower": 480, "upper": 120, "heldout": 200}
    assert content["guarantee"]["epsilon"] == pytest.approx(2.0, abs=1e-6)
    assert content["facts"]["rows"] == "600"
    assert content["facts"]["ledger"] == (
        "entry 1 of the ledger of the data set 'people'; after it, epsilon 2 of 2 was spent, and nothing is left (at "
        "delta 1e-05)"
    )
    assert content["facts"]["held out"] == "200 further rows, by position"
    assert set(content["evaluation"]["values"]["dict"]) == {"accuracy", "auc"}
    code, stdout, _ = run("report", "run", "--json")
    assert code == 0
    assert json.loads(stdout)["scores"]["accuracy"]["interval"][0] > 0.5
    for page in ("report.html", "report.md"):
        assert "held-out rows" in (folder / "run" / page).read_text()


def model_of(run, folder, changed=None):
    """The coefficients of a run with fixed noise, after the label and the age of one row were changed."""
    if changed is not None:
        lines = (folder / "people.csv").read_text().splitlines()
        cells = lines[changed + 1].split(",")
        cells[0], cells[4] = "99.9" if cells[0] < "5" else "0.1", "no" if cells[4] == "yes" else "yes"
        lines[changed + 1] = ",".join(cells)
        (folder / "people.csv").write_text("\n".join(lines) + "\n")
    code, _, stderr = run(*HELD, "--seed", 3, "--force", "--quiet")
    write_people(folder, rows=800)
    assert code == 0, stderr
    return json.loads((folder / "run" / "run.json").read_text())["model"]["coefficients"]


def test_a_held_out_row_changes_nothing_of_the_model(run, folder, monkeypatch):
    held, remaining = (int(part.target[0]) for part in reversed(holdout.set_aside(rows(800), 0.25)))
    plain = model_of(run, folder)
    assert model_of(run, folder, changed=held) == plain
    assert model_of(run, folder, changed=remaining) != plain
    # The mutation: held-out rows are a copy, and training reads all rows.
    divide = holdout.set_aside
    monkeypatch.setattr(holdout, "set_aside", lambda given, *how: (given, divide(given, *how)[1]))
    everything = model_of(run, folder)
    assert model_of(run, folder, changed=held) != everything


def test_scores_on_rows_of_another_role_would_not_be_free(run, folder, monkeypatch):
    """The mutation: scores are charged to training rows, whose cost then exceeds the budget of the run."""
    monkeypatch.setattr(holdout, "ROLE", "lower")
    code, _, stderr = run(*HELD)
    assert code == 3
    assert "needs epsilon" in stderr
    assert not (folder / "run").exists()


def test_scores_need_a_receipt_that_paid_for_them():
    planned = plan_scores((Accuracy(),), 50, dpb.Budget(1.0, 1e-5), "float", "heldout")
    with pytest.raises(NotCharged):
        planned.release_scores(dpb.Records(heldout={"accuracy": np.ones(50, bool)}), KeySchedule(), receipt=Receipt([]))
    with pytest.raises(dpb.InvalidRecords, match=r"heldout=\.\.\. must be alone"):
        dpb.Records(heldout=np.ones(3), lower=np.ones(3))


def test_rows_are_set_aside_from_the_rows_that_are_known_to_be_correct(run, folder):
    write_people(folder, rows=400, name="clean.csv", seed=2)
    code, stdout, stderr = run(
        "reweight", *TUNE[1:], "--source", "clinic", "--validation", "clean.csv", "--holdout", "0.5", "--json"
    )
    assert code == 0, stderr
    content = json.loads((folder / "run" / "run.json").read_text())
    assert {role["role"]: role["records"] for role in content["spend"]} == {"lower": 800, "upper": 200, "heldout": 200}
    assert json.loads(stdout)["scores"]["accuracy"]["score"] > 0.6


@pytest.mark.parametrize("fraction", ["0", "1", "-0.5", "nan", "inf"])
def test_a_fraction_that_is_none_is_refused(run, folder, fraction):
    code, stdout, stderr = run(*TUNE, "--holdout", fraction)
    assert (code, stdout) == (2, "")
    assert "--holdout" in stderr
    assert "between 0 and 1" in stderr
    assert not (folder / "run").exists()


def test_a_dry_run_plans_for_the_remaining_rows(run):
    code, stdout, _ = run(*HELD, "--dry-run", "--rows", 800, "--json")
    assert code == 0
    roles = json.loads(stdout)["roles"]
    assert sum(role["records"] for role in roles.values()) == 600


def test_a_run_that_ends_between_its_scores_and_its_file_resumes_with_one_charge(run, folder, monkeypatch):
    seen, ledger = [], f"sqlite:///{folder}/ledger.db"
    dpb.Ledger.open(ledger, dataset="people", total=dpb.Budget(2.0, 1e-5))  # there is nothing left for a second charge

    def ended(solution, evaluation):
        seen.append((np.array(solution.y), evaluation.values["accuracy"]))
        raise RuntimeError("the end of the machine")

    with monkeypatch.context() as patch:
        patch.setattr(tuning_module, "with_scores", ended)
        code, _, stderr = run(*HELD, "--ledger", ledger)
    assert code == 4, stderr
    ((model, score),) = seen
    left = [path.read_bytes() for path in (folder / "run").iterdir()]
    assert not any(repr(score).encode() in content for content in left)  # no score has left the process
    code, _, stderr = run("tune", "--resume", "run")
    assert code == 0, stderr
    content = json.loads((folder / "run" / "run.json").read_text())
    np.testing.assert_array_equal(read_run(folder / "run" / "run.json").solution.y, model)
    assert content["evaluation"]["values"]["dict"]["accuracy"] == score  # the same noise
    assert content["facts"]["ledger"].startswith("entry 1 of the ledger")
    assert len(dpb.Ledger.open(ledger, dataset="people").entries) == 1
