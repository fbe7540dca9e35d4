"""Rows of a file that one process of a job reads: together they are all rows, each once, encoded as by one process."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from pyarrow import csv, parquet

from dpbilevel.cli import own_rows
from dpbilevel.cli.applications.reweight import Reweight
from dpbilevel.cli.applications.tune import Tune
from dpbilevel.cli.holdout import set_aside
from dpbilevel.cli.job import prepared
from dpbilevel.cli.own_rows import read_own_rows
from dpbilevel.cli.rows import read_rows
from dpbilevel.encoding.columns import read_table
from dpbilevel.encoding.encoded_rows import EncodedRows, Held
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators import scaled_rows
from dpbilevel.estimators.prepared import split_levels
from dpbilevel.estimators.rows import norm_scaling
from dpbilevel.estimators.scaled_rows import ScaledRows
from dpbilevel.privacy.parts import Part
from dpbilevel.privacy.storage import Storage

COUNT = 3


def be(monkeypatch, index):
    """Be a process of three, each of which holds a third of every role."""
    part = lambda number, mesh: slice(number * index // COUNT, number * (index + 1) // COUNT)  # noqa: E731
    monkeypatch.setattr(own_rows, "own_range", part)
    monkeypatch.setattr(scaled_rows, "own_range", part)
    job = SimpleNamespace(is_several=index >= 0, barrier=lambda place: contextlib.nullcontext())
    monkeypatch.setattr(scaled_rows, "job_of", lambda mesh: job)


@pytest.fixture(params=["csv", "parquet", "folder"])
def data(request, folder):
    if request.param == "csv":
        return folder / "people.csv"
    table = csv.read_csv(folder / "people.csv")
    if request.param == "parquet":
        parquet.write_table(table, folder / "people.parquet", row_group_size=70)
        return folder / "people.parquet"
    (folder / "parts").mkdir()
    for place, rows in enumerate((150, 100, 150)):
        first = sum((150, 100, 150)[:place])
        parquet.write_table(table.slice(first, rows), folder / "parts" / f"{place}.parquet", row_group_size=60)
    return folder / "parts"


def job_of(data, kind=Tune, **options):
    return prepared(kind(data=data, target="paid", schema=data.parent / "schema.toml", delta=1e-6, **options))


@pytest.mark.parametrize("share", [None, 0.2])
@pytest.mark.parametrize("on_disk", [False, True])
def test_processes_read_all_rows_once_as_one_process_encodes_them(data, monkeypatch, share, on_disk):
    job = job_of(data, holdout=share)
    whole = read_rows(job.table, job.encoder, job.schema, "paid", {})
    found = np.zeros(whole.records, int)
    for index in range(COUNT):
        be(monkeypatch, index)
        rows, apart = read_own_rows(job, Storage.of(data.parent) if on_disk else None)
        held = rows.features.held
        assert apart is None
        assert (held.number, rows.records) == (400, 400)
        assert abs(len(held.places) - 400 / COUNT) < 3
        assert np.array_equal(np.asarray(rows.features), np.asarray(whole.features)[held.places])
        assert np.array_equal(rows.target.words()[held.places], whole.target[held.places])
        assert (rows.features.data_norm, rows.features.terms) == (whole.features.data_norm, whole.features.terms)
        found[held.places] += 1
    assert (found == 1).all()


def test_a_process_reads_one_stretch_of_a_parquet_file(folder, monkeypatch):
    table = csv.read_csv(folder / "people.csv")
    parquet.write_table(table, folder / "people.parquet", row_group_size=20)
    be(monkeypatch, 1)
    job, read = job_of(folder / "people.parquet"), []
    true = own_rows.read_held_rows
    monkeypatch.setattr(own_rows, "read_held_rows", lambda *given: read.append(given[-1].places) or true(*given))
    read_own_rows(job, None)
    assert read[0][-1] - read[0][0] < 200


def test_rows_that_are_set_aside_and_those_that_are_not_are_those_of_one_process(data, monkeypatch):
    job = job_of(data, holdout=0.2)
    whole = set_aside(read_rows(job.table, job.encoder, job.schema, "paid", {}), 0.2)
    for index in range(COUNT):
        be(monkeypatch, index)
        rows, _ = read_own_rows(job, None)
        for mine, all_of_them in zip(set_aside(rows, 0.2), whole, strict=True):
            held = mine.features.held
            assert held.number == mine.records == all_of_them.records
            assert np.array_equal(np.asarray(mine.features), np.asarray(all_of_them.features)[held.places])
            assert np.array_equal(mine.target.words()[held.places], all_of_them.target[held.places])


def test_records_of_processes_are_those_of_one_process(data, monkeypatch):
    job = job_of(data)
    whole = read_rows(job.table, job.encoder, job.schema, "paid", {})
    width = whole.features.shape[1]

    def levels(features, mesh):
        values = ScaledRows(norm_scaling(width, 1.3), read_table(features), intercept=True, mesh=mesh)
        return split_levels([values], [values], 0.2, 0)

    be(monkeypatch, -1)
    monkeypatch.setattr(scaled_rows, "own_range", lambda number, mesh: slice(0, number))
    alone = levels(whole.features, "a mesh")
    gathered = {"upper": [], "lower": []}
    for index in range(COUNT):
        be(monkeypatch, index)
        rows, _ = read_own_rows(job, None)
        for role, (part,) in levels(rows.features, "a mesh").items():
            assert isinstance(part, Part)
            assert part.shape == alone[role][0].shape
            gathered[role].append(part.own)
    for role, parts in gathered.items():
        assert np.array_equal(np.concatenate(parts), alone[role][0])


def test_a_process_without_rows_holds_none(data, monkeypatch):
    be(monkeypatch, 1)
    monkeypatch.setattr(own_rows, "own_range", lambda number, mesh: slice(number, number))
    job = job_of(data)
    rows, _ = read_own_rows(job, None)
    assert rows.features.shape == (0, job.width)
    assert rows.features.data_norm is not None


def test_sources_and_separate_validation_rows_are_read(folder, monkeypatch):
    options = {"source": "clinic", "validation": folder / "people.csv", "holdout": 0.2}
    job = job_of(folder / "people.csv", Reweight, **options)
    whole = read_rows(job.table, job.encoder, job.schema, "paid", {"source": "clinic"})
    places, apart_places = [], []
    for index in range(COUNT):
        be(monkeypatch, index)
        rows, apart = read_own_rows(job, None)
        held = rows.features.held.places
        assert np.array_equal(rows.places["sources"][held], whole.places["sources"][held])
        assert apart.places == {}
        places, apart_places = [*places, *held], [*apart_places, *apart.features.held.places]
    assert places == list(range(400))
    assert sorted(apart_places) == list(range(400))


def test_units_are_refused(folder, monkeypatch):
    be(monkeypatch, 0)
    with pytest.raises(InvalidArgument, match="--unit: is not supported with several processes yet"):
        read_own_rows(job_of(folder / "people.csv", unit="id", rows_per_unit=2), None)


def test_what_is_done_to_rows_forgets_which_they_are():
    rows = EncodedRows(np.ones((2, 3)))
    rows.held = Held(np.array([1, 4]), 9)
    assert read_table(rows).shape == (9, 3)
    assert [places.tolist() for places, _ in read_table(rows).chunks()] == [[1, 4]]
    for other in (rows[:], rows.copy(), rows * 1, np.asarray(rows)):
        assert getattr(other, "held", None) is None
    here, held = rows.held.chosen(np.array([0, 4, 8]))
    assert (here.tolist(), held.places.tolist(), held.number) == ([False, True], [1], 3)
