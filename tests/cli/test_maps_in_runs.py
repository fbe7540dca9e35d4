"""A run whose schema declares feature maps: from a compressed file to predictions with ids."""

import gzip
import json
from types import SimpleNamespace

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from support.cli_data import SCHEMA, people, write_people

import dpbilevel as dpb
from dpbilevel.cli.prediction import _predicted

MAPPED = (
    SCHEMA.replace("dpbilevel.schema/1", "dpbilevel.schema/2")
    .replace("\n\n[columns.age]", '\ncrosses = [["age", "town"]]\n\n[columns.age]', 1)
    .replace("ignore = true", 'kind = "id"')
    .replace("range = [0, 10]", 'range = [0, 10]\nscale = "log"\nknots = 3')
)
TUNE = ("tune", "people.csv.gz", "--target", "paid", "--schema", "schema.toml", "--epsilon", "8", "--delta", "1e-5")


@pytest.fixture
def compressed(folder):
    data, schema = write_people(folder, rows=400)
    (folder / "people.csv.gz").write_bytes(gzip.compress(data.read_bytes()))
    schema.write_text(MAPPED)
    return folder


def test_from_a_compressed_file_to_predictions_with_ids(compressed, command):
    code, _, stderr = command(*TUNE, "--groups", "columns")
    assert code == 0, stderr
    run = json.loads((compressed / "run" / "run.json").read_text())
    knots = run["schema"]["columns"]["age"]["knots"]
    assert knots == 6  # of 400 rows
    widths = {"age": 6, "town": 3, "clinic": 2, "cost": 3, "age x town": 18}
    assert len(run["model"]["columns"]) == sum(widths.values())
    assert {entry["name"] for entry in run["hyperparameters"]["values"]} == {*widths}
    assert "id" not in run["facts"]["columns that the model reads"].split(", ")
    code, _, stderr = command("predict", "run", "people.csv.gz", "--out", "with_ids.csv")
    assert code == 0, stderr
    predicted = pyarrow.csv.read_csv(compressed / "with_ids.csv").to_pydict()
    assert list(predicted) == ["id", "prediction", "probability of no", "probability of yes"]
    assert predicted["id"] == list(range(400))
    assert (np.array(predicted["prediction"]) == people(400)["paid"]).mean() > 0.8
    # The same rows in a folder of Parquet files, without ids.
    table = pyarrow.csv.read_csv(compressed / "people.csv").drop_columns(["id"])
    (compressed / "parts").mkdir()
    for part in range(2):
        pyarrow.parquet.write_table(table.slice(200 * part, 200), compressed / "parts" / f"{part}.parquet")
    code, _, stderr = command("predict", "run", "parts", "--out", "without.parquet")
    assert code == 0, stderr
    again = pyarrow.parquet.read_table(compressed / "without.parquet").to_pydict()
    assert list(again) == list(predicted)[1:]
    np.testing.assert_allclose(again["probability of yes"], predicted["probability of yes"], rtol=1e-6)


def test_a_dry_run_with_curves_needs_the_number_of_rows_only(compressed, command, monkeypatch):
    def touched(*_):
        raise AssertionError("a record was read")

    monkeypatch.setattr("dpbilevel.cli.table_file.TableFile.blocks", touched)
    code, stdout, _ = command(*TUNE, "--dry-run", "--rows", 5000)
    assert code == 0
    assert "A run would be (8," in stdout
    code, _, stderr = command(*TUNE, "--dry-run")
    assert code == 2
    assert "add --rows N" in stderr


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('classes = ["no", "yes"]', 'range = [0, 1]\nscale = "log"', "the target 'paid' must have no scale"),
        ('scale = "log"', 'scale = "loud"', "must be one of linear, log, sqrt"),
        ('[["age", "town"]]', '[["age", "paid"]]', "no feature"),
        (
            'range = [0, 10]\nscale = "log"\nknots',
            'kind = "date"\nrange = [2020-01-01, 2026-01-01]\nknots',
            "declares a date",
        ),
    ],
)
def test_what_is_wrong_ends_before_the_charge(compressed, command, old, new, expected):
    (compressed / "schema.toml").write_text(MAPPED.replace(old, new))
    code, _, message = command(*TUNE)
    assert code == 2
    assert expected in message
    assert not (compressed / "run").exists()


def test_an_id_may_not_have_the_name_of_a_prediction():
    model = SimpleNamespace(predict=lambda rows: rows[:, 0])
    assert list(_predicted(model, np.ones((2, 1)), ["id"])) == ["prediction"]
    with pytest.raises(dpb.InvalidArgument, match="its id column 'prediction' has the name"):
        _predicted(model, np.ones((2, 1)), ["prediction"])


@pytest.mark.parametrize(
    ("declared", "cell", "expected"),
    [
        ("range = [0, 10]", "Zanzibar", "a cell is not a number"),
        ('kind = "ordinal"\nrange = [0, 10]', "Zanzibar", "a cell is not a number"),
        ('kind = "date"\nrange = [2020-01-01, 2026-01-01]', "2025-02-30", "date"),
        ('kind = "date"\nrange = [2020-01-01, 2026-01-01]', "987654.25", "date"),
    ],
)
def test_a_cell_that_is_no_number_or_date_ends_before_the_charge_without_being_quoted(
    folder, command, declared, cell, expected
):
    write_people(folder, rows=50)
    text = (folder / "people.csv").read_text(encoding="utf-8").splitlines()
    lines = [f"{line},{'seen' if not at else cell}" for at, line in enumerate(text)]
    (folder / "people.csv").write_text("\n".join(lines), encoding="utf-8")
    (folder / "schema.toml").write_text(f"{SCHEMA}\n[columns.seen]\n{declared}\n".replace("schema/1", "schema/2"))
    code, _, message = command("tune", "people.csv", *TUNE[2:])
    assert (code, (folder / "run").exists()) == (2, False)
    assert "'seen'" in message
    assert expected in message
    assert cell not in message


def test_curves_are_smoothed_on_request(compressed, command):
    code, stdout, _ = command(*TUNE, "--smooth", "--dry-run", "--rows", 5000)
    assert code == 0, stdout
    code, _, stderr = command(*TUNE, "--smooth")
    assert code == 0, stderr
    run = json.loads((compressed / "run" / "run.json").read_text())
    names = {entry["name"] for entry in run["hyperparameters"]["values"]}
    assert names == {"all", "age, smoothness", "cost, smoothness"}
    assert run["facts"]["smoothness"] == "a penalty for each curve"
    code, _, stderr = command("predict", "run", "people.csv.gz", "--out", "with_ids.csv")
    assert code == 0, stderr


def test_a_schema_without_curves_cannot_be_smoothed(folder, command):
    data, schema = write_people(folder, rows=400)
    schema.write_text(SCHEMA)
    code, _, stderr = command("tune", data, *TUNE[2:], "--smooth")
    assert (code, (folder / "run").exists()) == (2, False)
    assert "--smooth: the schema must declare a curve" in stderr
