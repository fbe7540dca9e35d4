"""Weights of rows on the command line: a column whose range is declared, which is no feature."""

import csv
import json

import numpy as np
import pytest
from support.cli_data import NUMBER, SCHEMA, people

TUNE = ("tune", "people.csv", "--target", "paid", "--schema", "schema.toml", "--epsilon", "4", "--delta", "1e-5")
ROWS = 801


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A function that writes a file whose second half has wrong labels, with weights."""
    monkeypatch.chdir(tmp_path)

    def write(weights, declared="range = [0, 2]"):
        table = people(ROWS)
        wrong = np.arange(ROWS) >= ROWS // 2
        table["paid"] = np.where(wrong, np.where(table["paid"] == "yes", "no", "yes"), table["paid"])
        columns = {"trust": weights(wrong), **table}
        with (tmp_path / "people.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        (tmp_path / "schema.toml").write_text(f"{SCHEMA}\n[columns.trust]\n{declared}\n", encoding="utf-8")
        return tmp_path

    return write


def test_rows_of_weight_zero_do_not_count_and_weights_are_no_feature(written, command):
    folder = written(lambda wrong: np.where(wrong, 0.0, NUMBER))  # clamped to 2, the declared largest
    code, stdout, errors = command(*TUNE, "--weight", "trust")
    assert code == 0, errors
    run = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["facts"]["weight of rows"] == "trust"
    assert "trust" not in run["facts"]["columns that the model reads"]
    assert str(NUMBER) not in stdout + (folder / "run" / "report.md").read_text(encoding="utf-8")
    with (folder / "new.csv").open("w", encoding="utf-8") as file:  # without the column of weights
        file.write("age,town,id,clinic,cost\n5,Oslo,1,east,5\n95,Rome,2,west,5\n")
    code, _, errors = command("predict", "run", "new.csv", "--out", "predictions.csv")
    assert code == 0, errors
    lines = (folder / "predictions.csv").read_text(encoding="utf-8").replace('"', "").splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["no", "yes"]  # with the wrong labels it knows nothing


@pytest.mark.parametrize(
    "declared",
    ["range = [1, 2]", "range = [0, 2]\nscale = 'log'", "range = [0, 2]\nmissing = true", "categories = ['1']"],
)
def test_weights_without_a_declared_bound_are_refused(written, command, declared):
    folder = written(lambda wrong: np.ones(len(wrong)), declared)
    code, _, stderr = command(*TUNE, "--weight", "trust")
    assert (code, (folder / "run").exists()) == (2, False)
    assert "range = [0, largest]" in stderr


@pytest.mark.parametrize("cell", ["-987654.25", "", "Zanzibar"])
def test_a_weight_that_is_none_is_refused_without_being_quoted(written, command, cell):
    folder = written(lambda wrong: [cell, *["1"] * (len(wrong) - 1)])
    code, _, stderr = command(*TUNE, "--weight", "trust")
    assert (code, (folder / "run").exists()) == (2, False)
    assert "trust" in stderr or "--weight" in stderr
    assert "987654" not in stderr
    assert "Zanzibar" not in stderr


def test_a_dry_run_plans_with_weights(written, command):
    written(lambda wrong: np.ones(len(wrong)))
    assert command(*TUNE, "--weight", "trust", "--dry-run", "--rows", ROWS)[0] == 0
