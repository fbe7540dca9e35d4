"""The command line from outside: what it writes, what it says, how it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from support.cli_data import NUMBER, SCHEMA, SECRET, people, write_people

import dpbilevel as dpb
from dpbilevel.cli import app
from dpbilevel.cli.wording import for_command_line

TUNE = ("tune", "people.csv", "--target", "paid", "--schema", "schema.toml")
# Two budgets, one for 2,000 people and one for 400; what a run of either compiles serves the others of its size.
LIKE_THE_RUN = ("--epsilon", "2", "--delta", "1e-5", "--groups", "schema")
SMALL = (*TUNE, "--epsilon", "0.8", "--delta", "1e-5")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on 2,000 people, and what it said."""
    place = tmp_path_factory.mktemp("run")
    write_people(place, rows=2000)
    ended = in_shell(*TUNE, *LIKE_THE_RUN, cwd=place)
    assert ended.returncode == 0, ended.stderr
    return place, ended


def in_shell(*arguments, cwd, **options):
    program = [sys.executable, "-m", "dpbilevel.cli", *map(str, arguments)]
    return subprocess.run(program, cwd=cwd, capture_output=True, text=True, timeout=300, check=False, **options)


def test_tune_leaves_a_run_and_says_where(run):
    place, ended = run
    assert sorted(path.name for path in (place / "run").iterdir()) == ["report.html", "report.md", "run.json"]
    assert "(2, 1e-05)-differentially private" in ended.stdout
    assert ended.stdout.rstrip().endswith(f"Report: {Path('run') / 'report.html'}")
    reported = json.loads((place / "run" / "run.json").read_text())
    assert reported["status"] == "finished"
    assert reported["command"].startswith("dpbilevel tune people.csv")
    assert reported["result"]
    assert for_command_line(reported["result"]) in ended.stdout
    assert SECRET not in (place / "run" / "run.json").read_text()


def test_predictions_are_those_of_the_estimator(run, command, monkeypatch):
    place, _ = run
    monkeypatch.chdir(place)
    code, _, stderr = command("predict", "run", "people.csv", "--out", "predictions.csv", "--force")
    assert (code, stderr) == (0, "")
    reported = pyarrow.csv.read_csv(place / "predictions.csv").to_pydict()
    assert list(reported) == ["prediction", "probability of no", "probability of yes"]
    table = people(2000)
    right = np.array(reported["prediction"]) == table["paid"]
    assert right.mean() > 0.85
    model = json.loads((place / "run" / "run.json").read_text())["model"]
    scale = 1 / np.sqrt(4)  # four columns, rows of norm one
    names = model["columns"]
    at_first = dict.fromkeys(names, 0.0)
    at_first["age"] = (table["age"][0] - 50) / 50 * scale
    at_first["cost"] = (table["cost"][0] - 5) / 5 * scale
    town = table["town"][0] if table["town"][0] != SECRET else "other"
    at_first[f"town = {town}"] = at_first[f"clinic = {table['clinic'][0]}"] = scale
    score = sum(weight * at_first[name] for weight, name in zip(model["coefficients"][0], names, strict=True))
    probability = 1 / (1 + np.exp(-score - model["intercepts"][0]))
    assert reported["probability of yes"][0] == pytest.approx(probability, rel=1e-4)


def test_predictions_as_parquet_and_for_unseen_values(run, command, monkeypatch, tmp_path):
    place, _ = run
    (tmp_path / "new.csv").write_text("town,age,clinic,cost,more\nAtlantis,200,nowhere,3,x\n")
    monkeypatch.chdir(place)
    code, stdout, _ = command("predict", "run", tmp_path / "new.csv", "--out", tmp_path / "new.parquet", "--json")
    assert code == 0
    assert json.loads(stdout)["rows"] == 1
    assert pyarrow.parquet.read_table(tmp_path / "new.parquet").num_rows == 1


def test_numbers_are_predicted_in_their_own_units(folder, command):
    write_people(folder, rows=3000)
    code, _, stderr = command(
        "reweight", "people.csv", *TUNE[2:3], "cost", *TUNE[4:], "--source", "clinic", "--epsilon", 9
    )
    assert code == 0, stderr
    code, _, stderr = command("predict", "run", "people.csv", "--out", "costs.csv")
    assert code == 0, stderr
    predicted = np.array(pyarrow.csv.read_csv(folder / "costs.csv")["prediction"])
    assert np.corrcoef(predicted, people(3000)["cost"])[0, 1] > 0.9
    assert predicted.mean() == pytest.approx(5.0, abs=0.5)


GERMAN = str.maketrans({",": ";", ".": ","})


def test_decimal_commas_semicolons_and_no_header(run, command, monkeypatch, tmp_path):
    """The same predictions for the same people, as another country writes them."""
    place, _ = run
    monkeypatch.chdir(place)
    names, *rows = (place / "people.csv").read_text().splitlines()
    (tmp_path / "german.csv").write_text("\n".join(rows).translate(GERMAN) + "\n")
    for data, out, more in (("people.csv", "here.csv", ()), (tmp_path / "german.csv", "there.csv", (
        "--delimiter", ";", "--decimal", ",", "--columns", names))):  # fmt: skip
        code, _, stderr = command("predict", "run", data, "--out", tmp_path / out, *more)
        assert code == 0, stderr
    assert (tmp_path / "here.csv").read_text() == (tmp_path / "there.csv").read_text()
    code, _, stderr = command(
        "predict", "run", tmp_path / "german.csv", "--out", tmp_path / "no.csv", *more[:2], *more[4:]
    )
    assert code == 2
    assert "pass --decimal , for 2,5" in stderr


def test_coefficients_are_those_of_the_last_class(folder, command):
    write_people(folder, rows=2000)
    (folder / "schema.toml").write_text(SCHEMA.replace('["no", "yes"]', '["yes", "no"]'))
    code, _, stderr = command(*TUNE, *LIKE_THE_RUN)
    assert code == 0, stderr
    model = json.loads((folder / "run" / "run.json").read_text())["model"]
    assert model["outputs"] == ["no"]
    older = dict(zip(model["columns"], model["coefficients"][0], strict=True))["age"]
    assert older < 0  # the old have paid
    code, _, stderr = command("predict", "run", "people.csv")
    assert code == 0, stderr
    reported = pyarrow.csv.read_csv(folder / "predictions.csv").to_pydict()
    assert list(reported) == ["prediction", "probability of yes", "probability of no"]
    assert (np.array(reported["prediction"]) == people(2000)["paid"]).mean() > 0.8


def test_truth_values_of_a_parquet_file_are_classes(folder, command):
    table = people(300)
    columns = {**{name: list(values) for name, values in table.items()}, "paid": (table["paid"] == "yes").tolist()}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "people.parquet")
    for classes in ("[false, true]", '["False", "True"]'):
        (folder / "schema.toml").write_text(SCHEMA.replace('["no", "yes"]', classes))
        ledger = ("--ledger", "nothing.db", "--dataset", "people")  # so that it ends before the run, and after reading
        dpb.Ledger.open("sqlite:///nothing.db", dataset="people", total=dpb.Budget(1e-9, 1e-12))
        code, _, stderr = command("tune", "people.parquet", *TUNE[2:], *ledger, "--out", "none")
        assert code == 3, stderr


def test_report_is_written_again(run, command, monkeypatch):
    place, _ = run
    monkeypatch.chdir(place)
    page = (place / "run" / "report.html").read_bytes()
    (place / "run" / "report.html").unlink()
    code, stdout, _ = command("report", "run", "--json")
    assert code == 0
    assert (place / "run" / "report.html").read_bytes() == page
    reported = json.loads(stdout)
    assert set(reported["hyperparameters"]) == {"age", "cost", "place"}
    assert reported["result"] == json.loads((place / "run" / "run.json").read_text())["result"]
    assert reported["epsilon"] == pytest.approx(2.0, rel=1e-6)


def test_plan_needs_no_data(command):
    code, stdout, _ = command("plan", "--rows", 50_000, "--columns", 100, "--delta", "1e-6", "--json")
    reported = json.loads(stdout)
    assert code == 0
    assert reported["epsilon"] == pytest.approx(1.0, rel=1e-6)
    assert reported["rows_needed"] < 50_000
    assert reported["theory"]["vacuous"]
    code, stdout, _ = command("plan", "--rows", 2000, "--columns", 10, "--sources", 3, "--validation-rows", 500)
    assert code == 0
    assert "Noise to signal of training" in stdout


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_dry_run_reads_no_record(folder, command, kind, monkeypatch):
    def touched(*_):
        raise AssertionError("a record was read")

    monkeypatch.setattr("dpbilevel.cli.table_file.TableFile.blocks", touched)
    data = folder / "people.csv"
    if kind == "parquet":
        data = folder / "people.parquet"
        pyarrow.parquet.write_table(pyarrow.csv.read_csv(folder / "people.csv"), data)
    more = ["--rows", 400] if kind == "csv" else []  # as many as the other file says: one plan serves both
    code, stdout, _ = command(*TUNE[:1], data, *TUNE[2:], "--dry-run", *more)
    assert code == 0
    assert "A run would be (1," in stdout
    assert not (folder / "run").exists()


def test_noise_may_be_exact(folder, command):
    pytest.importorskip("opendp")
    code, stdout, _ = command(*TUNE, "--dry-run", "--rows", 5000, "--noise", "exact")
    assert code == 0
    assert "discrete Gaussian" in stdout


def test_a_dry_run_cannot_count_a_csv(folder, command):
    code, _, stderr = command(*TUNE, "--dry-run")
    assert code == 2
    assert "add --rows N" in stderr


def bad(arguments, expected, code=2, prepare=None, id=None):
    return pytest.param(arguments, expected, code, prepare, id=id or expected)


def put(name, text):
    return lambda folder: (folder / name).write_text(text)


def full_of(name):
    """A folder that has a file."""
    return lambda folder: ((folder / "full").mkdir(), (folder / "full" / name).write_text("{}"))


def in_column(text, column, row=3):
    """People with one cell replaced."""

    def change(folder):
        lines = (folder / "people.csv").read_text().splitlines()
        cells = lines[row].split(",")
        cells[lines[0].split(",").index(column)] = text
        (folder / "people.csv").write_text("\n".join([*lines[:row], ",".join(cells), *lines[row + 1 :]]) + "\n")

    return change


HEADER = ",".join(people(1))


@pytest.mark.parametrize(
    ("arguments", "expected", "code", "prepare"),
    [
        bad(("tune", "none.csv", *TUNE[2:]), "does not exist"),
        bad((*TUNE[:3], "wage", *TUNE[4:]), "--target wage: schema.toml declares no such column"),
        bad(("reweight", *TUNE[1:], "--source", "hospital"), "--source hospital: schema.toml declares no such column"),
        bad(("reweight", *TUNE[1:], "--source", "cost"), "the source 'cost' must have categories"),
        bad((*TUNE[:3], "clinic", *TUNE[4:]), "must have classes = [...] or range = [low, high]"),
        bad(TUNE, "pass --delimiter ';'", prepare=put("people.csv", HEADER.replace(",", ";") + "\n")),
        bad((*TUNE, "--delimiter", ";"), "pass --delimiter ','"),
        bad(TUNE, "has no rows", prepare=put("people.csv", HEADER + "\n")),
        bad(TUNE, "must have at least 2 rows", prepare=put("people.csv", HEADER + "\n5,Oslo,1,east,yes,3\n")),
        bad(TUNE, "column 3 of the 6 columns", prepare=put("schema.toml", SCHEMA.replace(".id", ".i"))),
        bad(TUNE, "a cell is not a number", prepare=in_column("Zanzibar", "age")),
        bad((*TUNE, "--invalid", "zero"), "cell is not a number", prepare=in_column("2026-01-31", "age"), id="a date"),
        bad(TUNE, "column 'age': must hold finite numbers", prepare=in_column("", "age"), id="a missing number"),
        bad(TUNE, "column 'paid': has a cell that classes", prepare=in_column("987654.25", "paid")),
        bad(TUNE, "as many cells as there are columns", prepare=in_column("Zanzibar,987654.25", "town")),
        bad((*TUNE, "--epsilon", "-1"), "--epsilon -1.0: must be"),
        bad((*TUNE, "--delta", "0.5"), "--delta 0.5: must be below 1/n"),
        bad((*TUNE, "--adjacency", "add"), "adjacency"),
        bad((*TUNE, "--groups", "some"), "--groups some: must be one of one, columns, schema"),
        bad((*TUNE, "--out", "people.csv"), "is a file; name a folder"),
        bad((*TUNE, "--out", "full"), "pass --force", prepare=full_of("run.json")),
        bad((*TUNE, "--out", "full", "--force"), "which is not a file of a run", prepare=full_of("thesis.tex")),
        bad((*TUNE, "--dataset", "x"), "requires --ledger"),
        bad((*TUNE, "--ledger", "no.db", "--dataset", "x"), "dpbilevel ledger create"),
        bad((*TUNE, "--noise", "loud"), "--noise loud: must be one of 'float', 'exact'"),
        bad((*TUNE, "--noise", "exact", "--seed", "1"), "exact noise has no seed"),
        bad(("predict", "run", "people.csv"), "is not a folder"),
        bad(("report", "."), "run.json"),
        bad(("schema", "people.csv", "--target", "wage"), "--target wage"),
        bad(("schema", "people.csv", "--out", "schema.toml"), "pass --force"),
        bad(("plan", "--rows", "1", "--columns", "3"), "at least 2"),
        bad(("plan", "--rows", "100"), "--columns"),
    ],
)  # fmt: skip
def test_bad_input_ends_in_one_line_and_leaves_nothing(folder, command, arguments, expected, code, prepare):
    if prepare is not None:
        prepare(folder)
    before = sorted(folder.rglob("*"))
    ended, spoken, errors = command(*arguments)
    assert ended == code
    assert expected in errors.replace("│", "")
    assert spoken == ""
    assert "Traceback" not in errors
    assert SECRET not in errors
    assert str(NUMBER) not in errors
    assert sorted(folder.rglob("*")) == before, "something was left behind"


def test_a_folder_that_may_not_be_written(folder, command, monkeypatch):
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)  # root may write everywhere
    code, _, stderr = command(*TUNE, "--out", "closed/run")
    assert code == 2
    assert "is not writable" in stderr


def test_a_ledger_keeps_the_charge_and_refuses(folder, command):
    create = ("ledger", "create", "people.db", "--dataset", "people", "--epsilon", "1", "--delta", "1e-5")
    code, stdout, _ = command(*create)
    assert code == 0, stdout
    charged = (*SMALL, "--ledger", "people.db", "--dataset", "people", "--quiet")
    code, stdout, _ = command(*charged)
    assert (code, stdout) == (0, "")
    code, _, stderr = command(*charged, "--out", "more")
    assert code == 3
    assert "0.8" in stderr
    assert not (folder / "more").exists()
    before = {path.name: path.read_bytes() for path in (folder / "run").iterdir()}
    code, _, _ = command(*charged, "--force")
    assert code == 3
    assert {path.name: path.read_bytes() for path in (folder / "run").iterdir()} == before, "a refused run replaced one"
    code, stdout, _ = command("ledger", "show", "people.db", "--json")
    assert code == 0
    assert "0.8" in stdout
    code, _, _ = command("ledger", "export", "people.db", "--dataset", "people", "--out", "people-ledger.csv")
    assert code == 0
    assert (folder / "people-ledger.csv").exists()


def test_a_run_that_fails_after_its_charge_is_marked(folder, command, monkeypatch):
    def broken(*_):
        raise RuntimeError(f"quotes {SECRET}")

    monkeypatch.setattr("dpbilevel.cli.tuning._linear_model", broken)
    code, spoken, stderr = command(*SMALL)
    assert code == 4
    assert "counts as spent" in stderr
    assert SECRET not in stderr + spoken
    assert json.loads((folder / "run" / "run.json").read_text())["status"] == "aborted"
    assert dpb.Solution.load(folder / "run" / "solution.json").privacy.epsilon() == pytest.approx(0.8)
    code, _, stderr = command("report", "run")
    assert code == 2
    assert "released values are in run/solution.json" in stderr


def test_an_error_before_the_charge_leaves_nothing(folder, command, monkeypatch):
    monkeypatch.setattr(dpb.Ledger, "charge", lambda *_, **__: (_ for _ in ()).throw(RuntimeError(SECRET)))
    code, _, stderr = command(*TUNE, "--delta", "1e-4")
    assert code == 1
    assert SECRET not in stderr
    assert not (folder / "run").exists()


def test_a_seed_is_reported_and_voids_the_run(folder, command):
    code, stdout, errors = command(*SMALL, "--seed", "1")
    assert code == 0
    assert "NOT private" in errors
    assert stdout.lstrip().startswith("NOT PRIVATE")


def test_lines_tell_progress_where_there_is_no_terminal(folder, command, monkeypatch):
    monkeypatch.setattr("dpbilevel.execution.progress._INTERVAL", 0.0)
    code, _, errors = command("reweight", *SMALL[1:], "--source", "clinic")
    assert code == 0
    assert re.search(r"Tracking: [\d,]+ of [\d,]+ releases, about \d+ s left", errors)


# The command, with a run that waits in its first chunk, while XLA may still be at work on it.
WAITING = """
import pathlib, time
from dpbilevel.cli import app
from dpbilevel.records import Records
execute, calls = Records.execute, []
def waiting(*arguments):
    result = execute(*arguments)
    calls.append(1)
    if len(calls) == 1:
        pathlib.Path("waiting").touch()
        time.sleep(120)
    return result
Records.execute = waiting
app.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_a_run_leaves_it_aborted(tmp_path, number):
    write_people(tmp_path, rows=20_000)
    program = [sys.executable, "-c", WAITING, *TUNE]
    running = subprocess.Popen(program, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "waiting").exists() and time.monotonic() < deadline and running.poll() is None:
        time.sleep(0.02)
    running.send_signal(number)
    _, stderr = running.communicate(timeout=120)
    assert running.returncode == 130
    assert "counts as spent" in stderr
    assert "Traceback" not in stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "aborted"


def test_a_run_whose_ledger_cannot_be_asked_counts_as_charged(folder, command, monkeypatch):
    def charge(*_, **__):
        monkeypatch.setattr(dpb.Ledger, "entries", property(charge))
        raise dpb.LedgerUnavailable("ledger: is gone")

    monkeypatch.setattr(dpb.Ledger, "charge", charge)
    code, _, stderr = command(*TUNE, "--delta", "1e-4")
    assert code == 4
    assert "counts as spent" in stderr
    assert json.loads((folder / "run" / "run.json").read_text())["status"] == "aborted"


def test_a_ledger_that_cannot_be_used_is_wrong_input(folder, command):
    (folder / "people.db").write_bytes(b"")
    code, _, stderr = command(*TUNE, "--ledger", "people.db", "--dataset", "people")
    assert code == 2
    assert "a ledger never is" in stderr
    assert not (folder / "run").exists()


def test_passwords_do_not_reach_the_report(monkeypatch):
    monkeypatch.setattr(
        "sys.argv", ["dpbilevel", "tune", "--ledger", "postgresql://ann:s3cr:et@host/books", "--out", "r"]
    )
    assert app._command() == "dpbilevel tune --ledger 'postgresql://ann:***@host/books' --out r"


def test_help_is_there_for_every_command_with_an_example(command):
    names = ["demo", "schema", "tune", "reweight", "plan", "predict", "unit-sizes", "report", "audit"]
    for name in [[name] for name in names] + [["ledger", name] for name in ("create", "show", "export")]:
        code, stdout, _ = command(*name, "--help")
        assert code == 0
        assert f"Example: dpbilevel {' '.join(name)}" in " ".join(stdout.split())


def test_help_does_not_wait_for_what_it_does_not_need():
    loaded = (
        "import sys, dpbilevel.cli.app; print([m for m in ('jax', 'sklearn', 'pyarrow', 'numpy') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
