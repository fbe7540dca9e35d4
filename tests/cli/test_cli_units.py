"""The command line with units: ids are read from a column, and neither ids nor numbers of rows are shown."""

import csv
import json

import numpy as np
import pytest
from support.cli_data import SCHEMA, people, write_people

TUNE = ("tune", "visits.csv", "--target", "paid", "--schema", "schema.toml", "--epsilon", "4", "--delta", "1e-4")
UNITS = ("--unit", "id", "--rows-per-unit", "4", "--mean-rows", "3")
ROWS, PEOPLE = 1217, 400


@pytest.fixture
def place(tmp_path, monkeypatch):
    write_people(tmp_path)
    table = people(ROWS) | {"id": [f"secret-{one % PEOPLE}" for one in range(ROWS)]}
    with (tmp_path / "visits.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tune_protects_units(place, command):
    code, said, _ = command(*TUNE, *UNITS)
    assert code == 0
    assert "replacing all rows of one unit" in " ".join(said.split())
    text = (place / "run" / "run.json").read_text(encoding="utf-8")
    run = json.loads(text)
    assert run["facts"]["units"] == "400"
    assert "rows" not in run["facts"]
    assert run["facts"]["unit of privacy"] == "all rows with the same id, at most 4 of them used"
    assert run["solution"]["sizes"] == {"upper": 80, "lower": 320}
    assert "at most 4 are used" in run["guarantee"]["sentence"]
    for shown in (text, said, (place / "run" / "report.md").read_text(), (place / "run" / "report.html").read_text()):
        assert "secret-" not in shown
        assert str(ROWS) not in shown
        assert f"{ROWS:,}" not in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--unit", "id"), "--rows-per-unit"),
        (("--rows-per-unit", "4"), "--unit"),
        (("--mean-rows", "4"), "--mean-rows"),
        (("--unit", "town", "--rows-per-unit", "4"), "ignore = true"),
        (("--unit", "nobody", "--rows-per-unit", "4"), "--unit nobody"),
        (("--unit", "id", "--rows-per-unit", "0"), "--rows-per-unit 0"),
        ((*UNITS, "--dry-run"), "number of units"),
        ((*UNITS, "--holdout", "0.1"), "--holdout: is not supported together with --unit"),
    ],
)
def test_options_that_do_not_fit_are_refused(place, command, options, words):
    code, _, said = command(*TUNE, *options)
    assert code != 0
    assert words in said
    assert not (place / "run").exists()


def test_a_missing_id_is_refused_before_the_charge(place, command):
    lines = (place / "visits.csv").read_text(encoding="utf-8").splitlines()
    (place / "visits.csv").write_text("\n".join([*lines[:5], lines[5].replace("secret-4,", ","), *lines[6:]]) + "\n")
    code, _, said = command(*TUNE, *UNITS)
    assert code != 0
    assert "none of them missing" in said
    assert "secret" not in said
    assert not (place / "run").exists()


def test_a_dry_run_plans_for_units(place, command):
    code, said, _ = command(*TUNE, *UNITS, "--dry-run", "--rows", str(PEOPLE))
    assert code == 0
    assert "replacing all rows of one unit" in " ".join(said.split())
    assert np.all([number in said for number in ("80", "320")])


@pytest.mark.parametrize("more", [(), ("--dry-run", "--rows", str(PEOPLE))])
def test_knots_that_follow_from_the_private_number_of_rows_are_refused(place, command, monkeypatch, more):
    schema = place / "schema.toml"
    schema.write_text(SCHEMA.replace("schema/1", "schema/2"), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr("dpbilevel.cli.job.open_table", None)  # no file is opened
        code, _, said = command(*TUNE, *UNITS, *more)
    said = " ".join(said.split())
    assert code != 0
    assert "--unit id: needs declared knots" in said
    assert "private with units" in said
    assert "give 'age', 'cost' knots = 12, or knots = \"none\"" in said
    assert not (place / "run").exists()
    schema.write_text(
        SCHEMA.replace("schema/1", "schema/2")
        .replace("range = [0, 100]", "range = [0, 100]\nknots = 5")
        .replace("range = [0, 10]", 'range = [0, 10]\nknots = "none"'),
        encoding="utf-8",
    )
    code, said, _ = command(*TUNE, *UNITS, *more)
    assert code == 0
    for shown in (said, *(path.read_text() for path in place.glob("run/*.*"))):
        assert str(ROWS) not in shown
        assert f"{ROWS:,}" not in shown
