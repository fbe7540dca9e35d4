"""The command line with units: ids are read from a column, and neither ids nor numbers of rows are shown."""

import csv
import json
import re

import numpy as np
import pytest
from support.cli_data import SCHEMA, people, write_people

import dpbilevel as dpb
from dpbilevel.cli import job
from dpbilevel.cli.applications.tune import Tune
from dpbilevel.cli.job import prepared
from dpbilevel.encoding.feature_maps import default_knots

TUNE = ("tune", "visits.csv", "--target", "paid", "--schema", "schema.toml", "--epsilon", "4", "--delta", "1e-4")
UNITS = ("--unit", "id", "--rows-per-unit", "4", "--mean-rows", "3")
ROWS, PEOPLE = 1217, 400


def check_hidden(shown):
    """No id, and not the number of rows; its digits may be among those of a fraction."""
    assert "secret-" not in shown
    assert not re.search(r"(?<![\d.])1,?217(?!\d)", shown)


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
    assert re.search(r"role +units +epsilon", said)
    text = (place / "run" / "run.json").read_text(encoding="utf-8")
    run = json.loads(text)
    assert run["facts"]["units"] == "400"
    assert "rows" not in run["facts"]
    assert run["facts"]["unit of privacy"] == "all rows with the same id, at most 4 of them used"
    assert run["solution"]["sizes"] == {"upper": 80, "lower": 320}
    assert "at most 4 are used" in run["guarantee"]["sentence"]
    for shown in (text, said, (place / "run" / "report.md").read_text(), (place / "run" / "report.html").read_text()):
        check_hidden(shown)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--unit", "id"), "--rows-per-unit"),
        (("--rows-per-unit", "4"), "--unit"),
        (("--mean-rows", "4"), "--mean-rows"),
        (("--unit", "town", "--rows-per-unit", "4"), "must have unit = true or ignore = true"),
        (("--unit", "nobody", "--rows-per-unit", "4"), "--unit nobody"),
        (("--unit", "id", "--rows-per-unit", "0"), "--rows-per-unit 0"),
        ((*UNITS, "--dry-run"), "or of units"),
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
    assert "roles hold disjoint units" in said
    assert "replacing all rows of one unit" in " ".join(said.split())
    assert np.all([number in said for number in ("80", "320")])


def knots_of(place):
    return json.loads((place / "run" / "run.json").read_text())["schema"]["columns"]["age"]["knots"]


def write_visits(place, rows):
    """So many rows of the same people."""
    table = people(rows) | {"id": [f"secret-{one % PEOPLE}" for one in range(rows)]}
    lines = [",".join(map(str, row)) for row in [tuple(table), *zip(*table.values(), strict=True)]]
    (place / "visits.csv").write_text("\n".join(lines), encoding="utf-8")


def test_knots_follow_from_the_public_number_of_units_and_their_declared_mean(place, command, monkeypatch):
    (place / "schema.toml").write_text(SCHEMA.replace("schema/1", "schema/2"), encoding="utf-8")
    code, said, heard = command(*TUNE, *UNITS)
    assert code == 0, heard
    assert knots_of(place) == default_knots(3 * PEOPLE)
    for shown in (said, *(path.read_text() for path in place.glob("run/*.*"))):
        check_hidden(shown)
    monkeypatch.setattr("dpbilevel.cli.table_file.TableFile.blocks", None)  # a dry run reads no record
    code, said, _ = command(*TUNE, *UNITS, "--dry-run", "--rows", PEOPLE)
    assert code == 0
    assert "training: units needed" in said


def encoded_columns(place, command, rows, *more):
    """The width of a row, as a run finds it before it is charged."""
    write_visits(place, rows)
    asked = Tune(**{"data": place / "visits.csv", "target": "paid", "schema": place / "schema.toml"} | dict(more))
    return prepared(asked).width


def test_the_private_number_of_rows_decides_no_shape(place, command, monkeypatch):
    (place / "schema.toml").write_text(SCHEMA.replace("schema/1", "schema/2"), encoding="utf-8")
    unit = (("unit", "id"), ("rows_per_unit", 4))
    few, many = (encoded_columns(place, command, rows, *unit) for rows in (PEOPLE, 8 * PEOPLE))
    assert few == many
    assert encoded_columns(place, command, 8 * PEOPLE, *unit, ("mean_rows", 3.0)) > many  # declared, hence public
    monkeypatch.setattr(job, "unit_ids", lambda table, column: np.arange(table.count_rows()))  # counts rows
    few, many = (encoded_columns(place, command, rows, *unit) for rows in (PEOPLE, 8 * PEOPLE))
    assert few != many


# ---- unit = true in the schema

UNIT = "[columns.id]\nunit = true\n"


def declare(place, *bounds):
    """The schema with the column of ids as the unit."""
    declared = SCHEMA.replace("[columns.id]\nignore = true\n", UNIT + "".join(f"{line}\n" for line in bounds))
    (place / "schema.toml").write_text(declared, encoding="utf-8")


def check_nothing_private(place, said, folder="run"):
    for shown in (said, *(path.read_text(encoding="utf-8") for path in (place / folder).glob("*.*"))):
        check_hidden(shown)


def test_a_unit_of_the_schema_is_that_of_all_commands(place, command):
    """Also of scores on rows that are set aside, and of those that come later."""
    declare(place, "rows_per_unit = 4", "mean_rows = 3")
    code, said, heard = command(*TUNE, "--holdout", "0.25")
    assert code == 0, heard
    run = json.loads((place / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["solution"]["sizes"] == {"upper": 60, "lower": 240, "heldout": 100}
    assert run["facts"]["units"] == "300"
    page = (place / "run" / "report.md").read_text(encoding="utf-8")
    for words in (
        "240 training units",
        "60 validation units",
        "scores on 100 held-out units",
        "all rows of one unit: eps",
    ):
        assert words in page
    assert "not of a person with several" not in page
    assert "to replace one may change three units" in page
    assert run["facts"]["held out"] == "100 further units, by a hash of their ids"
    assert run["facts"]["unit of privacy"] == "all rows with the same id, at most 4 of them used"
    assert "100 held-out units" in said
    ledger = f"sqlite:///{place}/ledger.db"
    dpb.Ledger.open(ledger, dataset="new", total=dpb.Budget(2.5, 1e-3))
    scored = ("evaluate", "run", "visits.csv", "--epsilon", "2", "--ledger", ledger)
    code, more, heard = command(*scored)
    assert code == 0, heard
    assert "Scores on 400 units" in more
    (entry,) = dpb.Ledger.open(ledger, dataset="new").entries
    assert entry.rows_per_unit == 4
    check_nothing_private(place, said + more)
    for options, words in (
        (("--unit", "town"), "--unit town: the schema of the run declares id"),
        (("--rows-per-unit", "5"), "--rows-per-unit 5: the schema of the run declares 4"),
    ):
        code, _, heard = command(*scored, *options, "--out", "other.json")
        assert code != 0
        assert words in heard
    assert len(dpb.Ledger.open(ledger, dataset="new").entries) == 1


def test_scores_of_a_run_on_rows_may_protect_units(place, command):
    assert command(*TUNE)[0] == 0
    code, said, heard = command(
        "evaluate", "run", "visits.csv", "--epsilon", "2", "--unit", "id", "--rows-per-unit", "2"
    )
    assert code == 0, heard
    assert "Scores on 400 units" in said
    assert "replacing all rows of one unit" in " ".join(said.split())
    code, _, heard = command("evaluate", "run", "visits.csv", "--epsilon", "2", "--unit", "id", "--force")
    assert code != 0
    assert "--rows-per-unit: must be given for the unit 'id'" in heard


@pytest.mark.parametrize(
    ("bounds", "options", "words"),
    [
        ((), (), "--rows-per-unit: must be given for the unit 'id', or declared beside unit = true in schema.toml"),
        (("rows_per_unit = 4",), ("--rows-per-unit", "8"), "--rows-per-unit 8: schema.toml declares 4"),
        (("rows_per_unit = 4",), ("--unit", "town"), "--unit town: schema.toml declares id"),
        (("rows_per_unit = 0",), (), "column 'id': --rows-per-unit 0: must be"),
        (("rows_per_unit = 4", "mean_rows = 5"), (), "column 'id': --mean-rows 5: must be at most --rows-per-unit 4"),
        (("mean_rows = 5",), (), "column 'id': --rows-per-unit: must be"),
    ],
)
def test_a_unit_of_the_schema_that_does_not_fit_is_refused(place, command, bounds, options, words):
    declare(place, *bounds)
    code, _, said = command(*TUNE, *options)
    assert code != 0
    assert words in " ".join(said.split())
    assert not (place / "run").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[columns.town]\n", "[columns.town]\nunit = true\n", "has categories and unit"),
        ("[columns.id]\nunit = true", '[columns.id]\nunit = "yes"', "has unit = 'yes'; must be one of true"),
        ("[columns.cost]\nrange = [0, 10]", "[columns.cost]\nunit = true", "columns 'id' and 'cost' have unit = true"),
        ("[columns.cost]\n", "[columns.cost]\nrows_per_unit = 3\n", "has --rows-per-unit, which is for unit only"),
    ],
)
def test_a_schema_has_one_column_of_ids(place, command, old, new, words):
    declare(place, "rows_per_unit = 4")
    schema = place / "schema.toml"
    schema.write_text(schema.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    code, _, said = command(*TUNE)
    assert code != 0
    assert words in " ".join(said.split())


def test_a_plan_compares_bounds_on_rows(place, command):
    declare(place, "rows_per_unit = 4", "mean_rows = 3")
    code, said, _ = command(*TUNE, "--dry-run", "--rows", str(PEOPLE))
    assert code == 0
    assert [name in said for name in ("units: k = 1", "units: k = 4 (this plan)", "units: k = 8")] == [True] * 3
    units = ("--rows-per-unit", "4", "--mean-rows", "3")
    code, said, _ = command("plan", "--rows", "400", "--columns", "3", "--delta", "1e-4", *units)
    assert code == 0
    assert "units: k = 4 (this plan)" in said
    assert "training: units needed" in said
    assert "the memory of their rows" not in said
    code, _, heard = command("plan", "--rows", "400", "--columns", "3", "--delta", "1e-4", *units[:3], "1.5")
    assert code == 0
    assert "2.7 times the memory of their rows" in heard


# ---- reweight

REWEIGHT = (
    "reweight",
    "visits.csv",
    "--target",
    "paid",
    "--source",
    "clinic",
    "--schema",
    "schema.toml",
    "--delta",
    "1e-4",
)


def test_reweight_protects_units_whose_rows_are_in_several_sources(place, command):
    declare(place, "rows_per_unit = 4", "mean_rows = 3")
    code, said, heard = command(*REWEIGHT, "--epsilon", "4")
    assert code == 0, heard
    run = json.loads((place / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["solution"]["sizes"] == {"upper": 80, "lower": 320}
    assert run["facts"]["unit of privacy"] == "all rows with the same id, at most 4 of them used"
    check_nothing_private(place, said)


def test_a_unit_in_both_files_is_refused_before_the_charge(place, command):
    declare(place, "rows_per_unit = 4")
    lines = (place / "visits.csv").read_text(encoding="utf-8").splitlines()
    for name, rows in (
        ("known.csv", lines[1:30]),
        ("apart.csv", [line.replace("secret-", "other-") for line in lines[1:30]]),
    ):
        (place / name).write_text("\n".join([lines[0], *rows]) + "\n", encoding="utf-8")
    for more in ((), ("--holdout", "0.3")):
        code, _, said = command(*REWEIGHT, "--validation", "known.csv", *more)
        assert code != 0
        assert "an id is in two roles" in said
        assert "secret" not in said
        assert not (place / "run").exists()
    code, said, heard = command(*REWEIGHT, "--validation", "apart.csv", "--epsilon", "4")
    assert code == 0, heard
    run = json.loads((place / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["solution"]["sizes"] == {"upper": 29, "lower": 400}
    assert run["facts"]["validation"] == "apart.csv, 29 units"
