"""`tune --memory`: rows on disk where public sizes say that they do not fit, and the same model."""

import contextlib
import csv
import errno
import gzip
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from support.cli_data import NUMBER, SCHEMA, people, write_people

import dpbilevel as dpb
from dpbilevel.cli import memory, tuning
from dpbilevel.cli.applications.tune import Tune
from dpbilevel.cli.memory import memory_limit, storage_for
from dpbilevel.errors import InvalidArgument
from dpbilevel.report.run_file import read_run

TUNE = ("tune", "people.csv", "--target", "paid", "--schema", "schema.toml", "--epsilon", "4", "--delta", "1e-5")
FIXED = ("--seed", "0", "--force", "--quiet")
ROWS = 800


@pytest.fixture
def little(monkeypatch):
    """A machine on which nothing but rows takes memory: with 1 KB, no row fits."""
    monkeypatch.setattr(memory, "_FIXED", 0)
    monkeypatch.setattr(memory, "_PER_ROW", 0)
    monkeypatch.setattr(memory, "_PER_NUMBER", 0)
    monkeypatch.setattr(memory, "_PER_NAME", 0)


@pytest.fixture
def run(folder, command):
    """A function that tunes: the coefficients, the scores, and whether rows were on disk."""
    write_people(folder, rows=ROWS)
    seen = []
    true = tuning.read_stored_rows

    def tuned(*arguments):
        seen.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tuning, "read_stored_rows", lambda *given: seen.append(given) or true(*given))
            code, _, errors = command(*arguments, *FIXED)
        assert code == 0, errors
        read = read_run(folder / "run" / "run.json")
        model = read.model
        assert sorted(path.name for path in (folder / "run").iterdir()) == ["report.html", "report.md", "run.json"]
        return np.append(model.coefficients, model.intercepts), read.evaluation, bool(seen)

    return tuned


@pytest.mark.usefixtures("little")
def test_a_run_on_disk_releases_what_a_run_in_memory_does(run, folder):
    before = sorted(path.name for path in folder.iterdir())
    disk, scores, was_on_disk = run(*TUNE, "--holdout", "0.25", "--memory", "1KB")
    inside, others, was_not = run(*TUNE, "--holdout", "0.25", "--memory", "1TB")
    assert (was_on_disk, was_not) == (True, False)
    np.testing.assert_allclose(disk, inside, rtol=1e-4, atol=1e-5)  # sums are in another order
    assert scores.values == pytest.approx(others.values, abs=0.02)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*before, "run"])


@pytest.mark.usefixtures("little")
def test_the_kind_of_a_file_makes_no_difference(run, folder):
    table = {name: list(cells) for name, cells in people(ROWS).items()}
    pyarrow.parquet.write_table(pyarrow.table(table), folder / "people.parquet", row_group_size=100)
    with gzip.open(folder / "people.csv.gz", "wb") as file:
        file.write((folder / "people.csv").read_bytes())
    found = [
        run(TUNE[0], name, *TUNE[2:], "--memory", "1KB") for name in ("people.csv", "people.parquet", "people.csv.gz")
    ]
    for coefficients, _, on_disk in found:
        np.testing.assert_array_equal(coefficients, found[0][0])
        assert on_disk


@pytest.mark.usefixtures("little")
def test_numbers_and_weights_are_read_too(run, folder):
    columns = {"trust": np.where(np.arange(ROWS) % 2, NUMBER, 1.0), **people(ROWS)}
    with (folder / "people.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    (folder / "schema.toml").write_text(f"{SCHEMA}\n[columns.trust]\nrange = [0, 2]\n", encoding="utf-8")
    typed = (*TUNE[:3], "cost", *TUNE[4:], "--weight", "trust", "--memory")
    (disk, _, on_disk), (inside, _, was_not) = run(*typed, "1KB"), run(*typed, "1TB")
    assert (on_disk, was_not) == (True, False)
    np.testing.assert_allclose(disk, inside, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("little")
def test_sources_are_read_too(run, folder):
    write_people(folder, rows=100, name="clean.csv", seed=1)
    typed = ("reweight", *TUNE[1:], "--source", "clinic", "--validation", "clean.csv", "--holdout", "0.2", "--memory")
    (disk, _, on_disk), (inside, _, was_not) = run(*typed, "1KB"), run(*typed, "1TB")
    assert (on_disk, was_not) == (True, False)
    np.testing.assert_allclose(disk, inside, rtol=1e-3, atol=1e-3)


def test_rows_that_fit_are_held_in_memory_by_public_sizes_alone(tmp_path):
    asked = Tune(data=tmp_path, target="y", schema=tmp_path, out=tmp_path / "new" / "run", memory="2GB")
    assert storage_for(asked, 10**5, 100, has_number=False) is None
    assert storage_for(asked, 10**7, 100, has_number=False).folder == tmp_path
    with pytest.raises(InvalidArgument, match=r"--memory 2GB: must be at least 3\.2GB for 100,000,000 rows"):
        storage_for(asked, 10**8, 100, has_number=False)
    with pytest.raises(InvalidArgument, match=r"must be at least 6\.4GB"):
        storage_for(asked, 10**8, 100, has_number=True)
    with pytest.raises(InvalidArgument, match="is for private runs"):
        storage_for(replace(asked, epsilon=math.inf), 10**7, 100, has_number=False)
    assert storage_for(replace(asked, epsilon=math.inf), 10**5, 100, has_number=False) is None


@pytest.mark.parametrize("text", ["2", "GB", "2 gigabytes", "-1GB", "", "2GiB"])
def test_sizes_have_units(text):
    with pytest.raises(InvalidArgument, match="must be a number with MB, GB or TB"):
        memory_limit(text)


def test_what_is_refused_leaves_nothing_and_charges_nothing(folder, command, monkeypatch):
    write_people(folder)
    before = sorted(path.name for path in folder.iterdir())
    for options, message in (
        (("--memory", "much"), "must be a number with MB, GB or TB"),
        (("--memory", "1MB"), "--memory 1MB: must be at least 0.8GB for 400 rows"),
        (("--memory", "2GB", "--unit", "id", "--rows-per-unit", "2"), "not supported together with the unit 'id'"),
    ):
        code, _, errors = command(*TUNE, *options)
        assert (code, message in errors) == (2, True), errors
        assert sorted(path.name for path in folder.iterdir()) == before
    monkeypatch.setattr(memory, "_FIXED", 0)
    monkeypatch.setattr(memory, "_PER_ROW", 0)

    def full(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    code, _, errors = command(*TUNE, "--memory", "1KB")
    assert (code, "has no room left for the records" in errors) == (2, True), errors
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("rows", [ROWS - 1, ROWS + 1])
def test_a_file_that_grows_or_shrinks_is_noticed(folder, command, monkeypatch, rows):
    write_people(folder, rows=ROWS)
    monkeypatch.setattr("dpbilevel.cli.table_file.TableFile.count_rows", lambda table: rows)
    code, _, errors = command(*TUNE, "--memory", "1KB")
    assert (code, "has another number of rows than when it was counted" in errors) == (2, True), errors


def anonymous(process):
    """Bytes of memory that a process holds itself, without pages of files."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
    return 0


@pytest.mark.heavy
def test_a_table_larger_than_the_limit_is_tuned_within_it(tmp_path):
    """3,000,000 rows of 100 numbers: 1.2 GB."""
    names, draws = [f"x{at}" for at in range(100)], np.random.default_rng(0)
    declared = "".join(f'[columns.{name}]\nrange = [-1, 1]\nknots = "none"\n' for name in names)
    text = f'format = "dpbilevel.schema/2"\n{declared}[columns.y]\nclasses = ["no", "yes"]\n'
    (tmp_path / "schema.toml").write_text(text, encoding="utf-8")
    (tmp_path / "rows").mkdir()
    for part in range(15):
        X = draws.uniform(-1, 1, (200_000, 100)).astype(np.float32)
        table = dict(zip(names, X.T, strict=True)) | {"y": np.where(X[:, 0] > 0, "yes", "no")}
        pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "rows" / f"{part:02}.parquet")
    typed = ["tune", "rows", "--target", "y", "--schema", "schema.toml", "--epsilon", "0.001", "--delta", "1e-8"]
    peak = 0
    with subprocess.Popen(
        [sys.executable, "-m", "dpbilevel", *typed, "--memory", "0.9GB", "--quiet"],
        cwd=tmp_path,
        env=os.environ | {"DPBILEVEL_COMPILATION_CACHE": "off"},
    ) as process:
        while process.poll() is None:
            peak = max(peak, anonymous(process.pid))
            time.sleep(0.02)
    assert process.returncode == 0
    assert peak < 9e8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows", "run", "schema.toml"]


def test_options_of_a_run_have_the_limit(folder):
    """A run resumes with the limit that it was started with: other rows would be in another order."""
    from dpbilevel.cli.resuming import StoredRun

    asked = Tune(data=folder, target="y", schema=folder, memory="2GB")
    stored = StoredRun.of(asked, facts={}, schema={}, typed="", created="")
    assert json.loads(stored.text())["options"]["memory"] == "2GB"
    with pytest.raises(dpb.InvalidArgument, match="--memory 1GB: the run was started with 2GB"):
        stored.fit_command(Tune, folder, {"memory": "1GB"})
