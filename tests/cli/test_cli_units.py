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
from dpbilevel.evaluation import scoring

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
    code, stdout, _ = command(*TUNE, *UNITS)
    assert code == 0
    assert "replacing all rows of one unit" in " ".join(stdout.split())
    assert re.search(r"role +units +epsilon", stdout)
    text = (place / "run" / "run.json").read_text(encoding="utf-8")
    run = json.loads(text)
    assert run["facts"]["units"] == "400"
    assert "rows" not in run["facts"]
    assert run["facts"]["unit of privacy"] == "all rows with the same id, at most 4 of them used"
    assert run["solution"]["sizes"] == {"upper": 80, "lower": 320}
    assert "at most 4 are used" in run["guarantee"]["sentence"]
    for shown in (text, stdout, (place / "run" / "report.md").read_text(), (place / "run" / "report.html").read_text()):
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
    code, _, stderr = command(*TUNE, *options)
    assert code != 0
    assert words in stderr
    assert not (place / "run").exists()


@pytest.mark.parametrize("missing", ["", "NA", "nan", "NULL", "None"])
def test_a_missing_id_is_refused_before_the_charge(place, command, missing):
    """Such cells are missing everywhere else: as ids they would make one unit of all people without one."""
    lines = (place / "visits.csv").read_text(encoding="utf-8").splitlines()
    (place / "visits.csv").write_text("\n".join([*lines[:5], lines[5].replace("secret-4", missing), *lines[6:]]) + "\n")
    code, _, stderr = command(*TUNE, *UNITS)
    assert code != 0
    assert "none of them missing" in stderr
    assert "secret" not in stderr
    assert not (place / "run").exists()


def test_a_dry_run_plans_for_units(place, command):
    code, stdout, _ = command(*TUNE, *UNITS, "--dry-run", "--rows", str(PEOPLE))
    assert code == 0
    assert "roles hold disjoint units" in stdout
    assert "replacing all rows of one unit" in " ".join(stdout.split())
    assert np.all([number in stdout for number in ("80", "320")])


def knots_of(place):
    return json.loads((place / "run" / "run.json").read_text())["schema"]["columns"]["age"]["knots"]


def write_visits(place, rows):
    """So many rows of the same people."""
    table = people(rows) | {"id": [f"secret-{one % PEOPLE}" for one in range(rows)]}
    lines = [",".join(map(str, row)) for row in [tuple(table), *zip(*table.values(), strict=True)]]
    (place / "visits.csv").write_text("\n".join(lines), encoding="utf-8")


def test_knots_follow_from_the_public_number_of_units_and_their_declared_mean(place, command, monkeypatch):
    (place / "schema.toml").write_text(SCHEMA.replace("schema/1", "schema/2"), encoding="utf-8")
    code, stdout, stderr = command(*TUNE, *UNITS)
    assert code == 0, stderr
    assert knots_of(place) == default_knots(3 * PEOPLE)
    for shown in (stdout, *(path.read_text() for path in place.glob("run/*.*"))):
        check_hidden(shown)
    monkeypatch.setattr("dpbilevel.cli.table_file.TableFile.blocks", None)  # a dry run reads no record
    code, stdout, _ = command(*TUNE, *UNITS, "--dry-run", "--rows", PEOPLE)
    assert code == 0
    assert "training: units needed" in stdout


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
    monkeypatch.setattr(job, "ids_of_rows", lambda table, column: np.arange(table.count_rows()))  # counts rows
    few, many = (encoded_columns(place, command, rows, *unit) for rows in (PEOPLE, 8 * PEOPLE))
    assert few != many


def test_a_ledger_of_one_unit_refuses_runs_on_another(place, command):
    """The clinic of a visit is another unit than its person: one row of each would not be all rows of a person."""
    ledger = f"sqlite:///{place}/ledger.db"
    dpb.Ledger.open(ledger, dataset="new", total=dpb.Budget(9.0, 1e-3))
    schema = (place / "schema.toml").read_text(encoding="utf-8")
    (place / "visits.toml").write_text(schema + "[columns.visit]\nignore = true\n", encoding="utf-8")
    lines = (place / "visits.csv").read_text(encoding="utf-8").splitlines()
    rows = [f"{line},{'visit' if at == 0 else at}" for at, line in enumerate(lines)]
    (place / "visits.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    tune = tuple("visits.toml" if word == "schema.toml" else word for word in (*TUNE, "--ledger", ledger))
    assert command(*tune, *UNITS)[0] == 0
    code, _, stderr = command(*tune, "--unit", "visit", "--rows-per-unit", "1", "--force")
    assert code != 0
    stderr = " ".join(stderr.split())
    assert "protects 'all rows with the same visit', and the ledger is for 'all rows with the same id'" in stderr
    (entry,) = dpb.Ledger.open(ledger, dataset="new").entries
    assert entry.unit == "all rows with the same id"


def test_ids_that_are_refused_late_leave_no_file(place, command):
    assert command(*TUNE)[0] == 0
    text = (place / "visits.csv").read_text(encoding="utf-8")
    (place / "visits.csv").write_text(text.replace("secret-4,", "NaT,"), encoding="utf-8")
    code, _, stderr = command("evaluate", "run", "visits.csv", "--epsilon", "2", "--unit", "id", "--rows-per-unit", "2")
    assert code != 0
    assert "none of them missing" in stderr
    assert not [path.name for path in (place / "run").iterdir() if "evaluation" in path.name]


# ---- unit = true in the schema

UNIT = "[columns.id]\nunit = true\n"


def declare(place, *bounds):
    """The schema with the column of ids as the unit."""
    declared = SCHEMA.replace("[columns.id]\nignore = true\n", UNIT + "".join(f"{line}\n" for line in bounds))
    (place / "schema.toml").write_text(declared, encoding="utf-8")


def check_nothing_private(place, output, folder="run"):
    for shown in (output, *(path.read_text(encoding="utf-8") for path in (place / folder).glob("*.*"))):
        check_hidden(shown)


def test_a_unit_of_the_schema_is_that_of_all_commands(place, command, monkeypatch):
    """Also of scores on rows that are set aside, and of those that come later."""
    declare(place, "rows_per_unit = 4", "mean_rows = 3")
    called, predict = [], scoring.predictions
    monkeypatch.setattr(scoring, "predictions", lambda *given: called.append(len(given[1])) or predict(*given))
    code, stdout, stderr = command(*TUNE, "--holdout", "0.25")
    assert code == 0, stderr
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
    assert "100 held-out units" in stdout
    ledger = f"sqlite:///{place}/ledger.db"
    dpb.Ledger.open(ledger, dataset="new", total=dpb.Budget(2.5, 1e-3))
    scored = ("evaluate", "run", "visits.csv", "--epsilon", "2", "--ledger", ledger)
    code, more, stderr = command(*scored)
    assert code == 0, stderr
    assert "Scores on 400 units" in more
    assert called == [4 * 100, 4 * 400]  # the model is called on a public number of rows
    (entry,) = dpb.Ledger.open(ledger, dataset="new").entries
    assert (entry.rows_per_unit, entry.unit) == (4, "all rows with the same id")
    check_nothing_private(place, stdout + more)
    for options, words in (
        (("--unit", "town"), "--unit town: the schema of the run declares id"),
        (("--rows-per-unit", "5"), "--rows-per-unit 5: the schema of the run declares 4"),
    ):
        code, _, stderr = command(*scored, *options, "--out", "other.json")
        assert code != 0
        assert words in stderr
    assert len(dpb.Ledger.open(ledger, dataset="new").entries) == 1


def test_scores_of_a_run_on_rows_may_protect_units(place, command):
    assert command(*TUNE)[0] == 0
    code, stdout, stderr = command(
        "evaluate", "run", "visits.csv", "--epsilon", "2", "--unit", "id", "--rows-per-unit", "2"
    )
    assert code == 0, stderr
    assert "Scores on 400 units" in stdout
    assert "replacing all rows of one unit" in " ".join(stdout.split())
    code, _, stderr = command("evaluate", "run", "visits.csv", "--epsilon", "2", "--unit", "id", "--force")
    assert code != 0
    assert "--rows-per-unit: must be given for the unit 'id'" in stderr


def test_scores_of_a_run_on_units_never_fall_back_to_rows(place, command):
    """Its schema ignores the column of ids, which an option named."""
    assert command(*TUNE, *UNITS)[0] == 0
    scored = ("evaluate", "run", "visits.csv", "--epsilon", "2")
    code, stdout, stderr = command(*scored)
    assert code == 0, stderr
    assert "Scores on 400 units" in stdout
    assert "replacing all rows of one unit" in " ".join(stdout.split())
    assert "at most 4 are used" in " ".join(stdout.split())
    code, stdout, stderr = command(*scored, "--rows-per-unit", "2", "--force")
    assert code == 0, stderr
    assert "at most 2 are used" in " ".join(stdout.split())
    code, _, stderr = command(*scored, "--unit", "town", "--force")
    assert code != 0
    assert "--unit town: the run protects all rows with the same id" in stderr
    run = json.loads((place / "run" / "run.json").read_text(encoding="utf-8"))
    del run["facts"]["column of ids"]
    (place / "run" / "run.json").write_text(json.dumps(run), encoding="utf-8")
    code, _, stderr = command(*scored, "--force")
    assert code != 0
    assert "--unit: must name the column of ids, because the run protects units" in stderr


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
    code, _, stderr = command(*TUNE, *options)
    assert code != 0
    assert words in " ".join(stderr.split())
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
    code, _, stderr = command(*TUNE)
    assert code != 0
    assert words in " ".join(stderr.split())


def test_a_plan_compares_bounds_on_rows(place, command):
    declare(place, "rows_per_unit = 4", "mean_rows = 3")
    code, stdout, _ = command(*TUNE, "--dry-run", "--rows", str(PEOPLE))
    assert code == 0
    assert [name in stdout for name in ("units: k = 1", "units: k = 4 (this plan)", "units: k = 8")] == [True] * 3
    units = ("--rows-per-unit", "4", "--mean-rows", "3")
    code, stdout, _ = command("plan", "--rows", "400", "--columns", "3", "--delta", "1e-4", *units)
    assert code == 0
    assert "units: k = 4 (this plan)" in stdout
    assert "training: units needed" in stdout


# ---- a public list of ids

MEMBERS = ("--unit-ids", "members.txt")
LISTED = 500  # a hundred of whom have no rows


@pytest.fixture
def members(place):
    (place / "members.txt").write_text("".join(f"secret-{one}\n" for one in range(LISTED)), encoding="utf-8")
    return place


def test_a_list_of_ids_is_the_units_of_a_run_and_of_its_scores(members, command):
    code, stdout, stderr = command(*TUNE, *UNITS, *MEMBERS, "--holdout", "0.2")
    assert code == 0, stderr
    run = json.loads((members / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["solution"]["sizes"] == {"upper": 80, "lower": 320, "heldout": 100}
    assert run["facts"]["units"] == "400"
    assert run["facts"]["list of units"] == "members.txt, with 500 ids, is public"
    assert re.search(r"100 held-out units, of which \d+ ± [\d.]+ have rows", stdout)
    code, more, stderr = command("evaluate", "run", "visits.csv", "--epsilon", "2", *MEMBERS)
    assert code == 0, stderr
    assert re.search(r"Scores on 500 units, of which \d+ ± [\d.]+ have rows", more)
    check_nothing_private(members, stdout + more)


def test_whether_somebody_has_rows_changes_no_number_of_a_run(members, command):
    lines = (members / "visits.csv").read_text(encoding="utf-8").splitlines()
    without = [line for line in lines if "secret-4," not in line]
    (members / "without.csv").write_text("\n".join(without) + "\n", encoding="utf-8")
    found = []
    for name in ("visits.csv", "without.csv"):
        code, _, stderr = command("tune", name, *TUNE[2:], *UNITS, *MEMBERS, "--out", name[:-4])
        assert code == 0, stderr
        run = json.loads((members / name[:-4] / "run.json").read_text(encoding="utf-8"))
        found.append((run["solution"]["sizes"], run["guarantee"], run["solution"]["numbers"], run["facts"]["units"]))
    assert found[0] == found[1]


def test_a_dry_run_counts_the_list(members, command):
    code, stdout, stderr = command(*TUNE, *UNITS, *MEMBERS, "--dry-run")
    assert code == 0, stderr
    assert np.all([number in stdout for number in ("100", "400")])


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("secret-1\n", (*UNITS, *MEMBERS), "--unit-ids: must list all ids that may be in the data"),
        ("secret-1\n" * 2, (*UNITS, *MEMBERS), "--unit-ids members.txt: must list every id once"),
        ("secret-1\n\nsecret-2\n", (*UNITS, *MEMBERS), "--unit-ids members.txt: holds ids, none of them missing"),
        ("1.0\n", (*UNITS, *MEMBERS), "look like 1"),
        ("secret-1\n", MEMBERS, "--unit-ids members.txt: lists the units of one file of rows, with units"),
        ("secret-1\n", (*UNITS, "--unit-ids", "nowhere.txt"), "--unit-ids nowhere.txt: cannot be read"),
    ],
)
def test_lists_that_do_not_fit_are_refused_before_the_charge(members, command, text, options, words):
    (members / "members.txt").write_text(text, encoding="utf-8")
    code, _, stderr = command(*TUNE, *options)
    assert code == 2
    assert words in " ".join(stderr.split())
    assert "secret" not in stderr
    assert not (members / "run").exists()


def test_scores_with_a_list_need_units(members, command):
    assert command(*TUNE)[0] == 0
    code, _, stderr = command("evaluate", "run", "visits.csv", "--epsilon", "2", *MEMBERS)
    assert code == 2
    assert "--unit-ids members.txt: lists the units of one file of rows, with units; name the column" in stderr


def test_rows_of_units_may_have_weights(place, command):
    code, _, stderr = command(*TUNE, *UNITS, "--weight", "cost")
    assert code == 0, stderr
    run = json.loads((place / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["facts"]["weight of rows"] == "cost"
    assert run["solution"]["sizes"] == {"upper": 80, "lower": 320}


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
    code, stdout, stderr = command(*REWEIGHT, "--epsilon", "4")
    assert code == 0, stderr
    run = json.loads((place / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["solution"]["sizes"] == {"upper": 80, "lower": 320}
    assert run["facts"]["unit of privacy"] == "all rows with the same id, at most 4 of them used"
    check_nothing_private(place, stdout)


def test_a_unit_in_both_files_is_refused_before_the_charge(place, command):
    declare(place, "rows_per_unit = 4")
    lines = (place / "visits.csv").read_text(encoding="utf-8").splitlines()
    for name, rows in (
        ("floats.csv", [re.sub(r"secret-(\d+)", r"\1.0", line) for line in lines[1:30]]),
        ("known.csv", lines[1:30]),
        ("apart.csv", [line.replace("secret-", "other-") for line in lines[1:30]]),
    ):
        (place / name).write_text("\n".join([lines[0], *rows]) + "\n", encoding="utf-8")
    for more in ((), ("--holdout", "0.3")):
        code, _, stderr = command(*REWEIGHT, "--validation", "known.csv", *more)
        assert code != 0
        assert "an id is in two roles" in stderr
        assert "secret" not in stderr
        assert not (place / "run").exists()
    code, _, stderr = command(*REWEIGHT, "--validation", "floats.csv")
    assert code != 0
    assert "look like 17.0" in stderr
    code, _, stderr = command(*REWEIGHT, "--validation", "apart.csv", "--epsilon", "4")
    assert code == 0, stderr
    run = json.loads((place / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["solution"]["sizes"] == {"upper": 29, "lower": 400}
    assert run["facts"]["validation"] == "apart.csv, 29 units"
