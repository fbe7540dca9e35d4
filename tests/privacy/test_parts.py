"""Records that are divided among processes: what is held, sent and released, and who charges; of support/jobs.py."""

import itertools

import numpy as np
import pytest
from support import devices, jobs

import dpbilevel as dpb
from dpbilevel.errors import InvalidArgument
from dpbilevel.execution import program
from dpbilevel.privacy.parts import ALONE, Part, job_of, own_range, own_records
from dpbilevel.privacy.shards import first_devices, mesh_of, shard_of

MESH = first_devices(1)
RECORD = devices.COLUMNS * 4 + 4 + 8 + 1  # bytes: row, target, norm of the row, mask


HEAVY = [pytest.param(job, marks=pytest.mark.heavy) for job in ((4, 1), (2, 2))]


@pytest.fixture(scope="module", params=[(2, 1), *HEAVY])
def found(request):
    """What a job of two processes finds; of four, and of two with two devices each, where there is time."""
    return {"processes": request.param[0]} | jobs.report(*request.param)


@pytest.fixture(scope="module")
def alone():
    """The same runs in this process."""
    with devices.broken(program, "discrete_gaussian", lambda true: devices.seeded_gaussian):
        exact = devices.hashed(devices.solved(1, noise="exact"))
    return {"exact": exact, "float": devices.solved(1, seed=1, steps=1).y, "seeded": devices.solved(1, seed=1).y}


# ---- what is released


@pytest.mark.slow
def test_runs_with_exact_noise_release_the_same_bits_as_one_process(found, alone):
    assert set(found["exact"]) == {alone["exact"]}


@pytest.mark.slow
def test_records_on_disk_release_the_same_bits(found, alone):
    assert set(found.get("exact, on disk", [alone["exact"]])) == {alone["exact"]}


@pytest.mark.slow
def test_one_pass_with_float_noise_is_that_of_one_process(found, alone):
    for y in found["float"]:
        assert np.linalg.norm(np.array(y) - alone["float"]) <= 1e-6 * np.linalg.norm(alone["float"])


@pytest.mark.slow
def test_secret_noise_is_the_same_on_all_processes_and_another_in_every_run(found):
    one, other = found["secret"]
    assert len(set(one)) == len(set(other)) == 1
    assert one != other


@pytest.mark.slow
def test_the_first_process_alone_warns(found):
    first, *others = found["warned"]
    assert any("seed is fixed" in text for text in first)
    assert others == [[]] * (found["processes"] - 1)


# ---- what is held, read and sent


@pytest.mark.slow
def test_each_process_holds_its_part_alone(found):
    each = found["devices"] // found["processes"]
    assert found["bytes"] == [each * shard_of(devices.NUMBER, found["devices"]) * RECORD] * found["processes"]


@pytest.mark.slow
def test_each_process_reads_its_part_of_an_array_alone(found):
    length = shard_of(devices.NUMBER, found["devices"]) * found["devices"] // found["processes"]
    ends = [min(devices.NUMBER, place * length) for place in range(found["processes"] + 1)]
    assert found["rows read"] == [[[begin, end]] for begin, end in itertools.pairwise(ends)]


@pytest.mark.slow
def test_each_process_reads_its_part_of_a_parquet_file_alone(found):
    length = shard_of(jobs.MADE, found["devices"]) * found["devices"] // found["processes"]
    rows = [[*range(min(jobs.MADE, k * length), min(jobs.MADE, (k + 1) * length))] for k in range(found["processes"])]
    assert [part[:3] for part in found["parquet"]] == [[len(own), float(sum(own)), jobs.MADE] for own in rows]
    assert all("a function of blocks of rows" in caveat for part in found["parquet"] for caveat in part[3])


@pytest.mark.slow
def test_what_is_sent_does_not_grow_with_the_number_of_records(found):
    """Once for each pass: two numbers for each entry of the answer, for every device."""
    sums = [f"f64[{found['devices']},{2 * devices.COLUMNS}]{{1,0}} all-gather("]
    assert found["sent"] == [[[sums, True]] * found["processes"]] * 2


@pytest.mark.slow
def test_all_processes_have_one_seal_which_covers_the_records_of_all(found):
    assert [len(set(seals)) for seals in found["seals"]] == [1, 1, 1]
    assert len({seals[0] for seals in found["seals"]}) == 3


# ---- who charges, and when


@pytest.mark.slow
def test_the_first_process_alone_charges(found):
    assert found["charged"] == [1] + [0] * (found["processes"] - 1)


@pytest.mark.slow
def test_a_run_beyond_the_budget_is_refused_by_all_before_any_record_is_read(found):
    for name, text, executed, entries in found["refused"]:
        assert (name, executed, entries) == ("BudgetExceeded", 0, 0)
        assert text == found["refused"][0][1]
        assert "epsilon 0 of 0.5 spent" in text


@pytest.mark.slow
def test_no_process_reads_a_record_before_the_charge(found):
    (charged, own), *others = found["order"]
    assert charged < own
    assert all(charged < read[0] for read in others)


@pytest.mark.slow
def test_processes_that_do_not_wait_for_the_charge_are_noticed(found):
    assert all(executed < found["mutant charged"] for executed in found["mutant executed"][1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", jobs.Experiments.UNLIKE)
def test_processes_that_are_not_alike_are_refused_before_the_charge(found, name):
    expected = {
        "epsilon": "arguments (budget)",
        "loss": "arguments (problem)",
        "number of records": "numbers, shapes or types of records",
        "seed": "arguments (seed)",
        "type of records": "numbers, shapes or types of records",
        "version": "versions, settings or machines",
    }.get(name, "arguments (method)")
    for kind, text, executed, entries in found["unlike"][name]:
        assert (kind, executed, entries) == ("JobFailed", 0, 0)
        assert f"have other {expected}; all must run the same code" in text


@pytest.mark.slow
def test_a_record_that_cannot_be_used_is_refused_by_all(found):
    assert [kind for kind, *_ in found["invalid"]] == ["InvalidRecords"] * found["processes"]
    assert len({text for _, text, _ in found["invalid"]}) == 1


@pytest.mark.slow
def test_a_run_resumes_on_as_many_processes_only(found, alone):
    assert all(resumed == uninterrupted for resumed, uninterrupted in found["resumed"])
    assert len({resumed for resumed, _ in found["resumed"]}) == 1
    assert "was created with another set of devices" in found["resumed elsewhere"]


@pytest.mark.slow
def test_what_is_not_supported_is_refused_by_all(found):
    for search, units in found["unsupported"]:
        assert search[0] == units[0] == "InvalidArgument"
        assert "each would draw a number of runs of its own" in search[1]
        assert "not supported with devices of several processes" in units[1]


@pytest.mark.slow
def test_a_plan_says_how_many_processes_there_are(found):
    assert found["planned"] == [[found["devices"], found["processes"]]] * found["processes"]


# ---- in one process


def test_one_process_holds_all_records():
    assert job_of(None) is job_of(MESH) is ALONE
    assert own_range(1000, None) == own_range(1000, MESH) == slice(0, 1000)
    assert mesh_of(None) is None
    assert mesh_of(1) == MESH


class Device:
    """A device of one of some processes."""

    platform, device_kind = "cpu", "cpu"

    def __init__(self, process_index):
        self.process_index = process_index


@pytest.mark.parametrize("number", [1, 255, 256, 1500, 10**5, 10**9])
@pytest.mark.parametrize("devices_each", [1, 2])
def test_parts_of_processes_are_all_records_once(monkeypatch, number, devices_each):
    mesh = type("Mesh", (), {})()
    mesh.devices = np.array([Device(place // devices_each) for place in range(3 * devices_each)])
    mesh.size, ends = len(mesh.devices), [0]
    for process in range(3):
        monkeypatch.setattr("jax.process_index", lambda process=process: process)
        own = own_range(number, mesh)
        assert own.start == ends[-1]
        ends.append(own.stop)
    assert ends[-1] == number


def test_a_part_has_the_shape_of_all_records_and_shows_none():
    part = Part(np.full((2, 3), 987654.25), 10)
    assert (part.shape, part.dtype) == ((10, 3), np.dtype(float))
    assert "987654" not in repr(part)
    with pytest.raises(InvalidArgument, match="must be the one that these records were read for"):
        own_records(part, MESH)


def test_a_schedule_of_one_process_is_refused_by_a_job():
    from dpbilevel.foundation.processes import Job
    from dpbilevel.privacy.noise import KeySchedule

    planned = dpb.plan(
        devices.PROBLEM,
        dpb.RecordShapes(lower=devices.ROWS),
        devices.BUDGET,
        start=(0.0, np.zeros(devices.COLUMNS)),
        method=dpb.Refit(steps=6),
    )
    with pytest.raises(dpb.errors.NotCharged, match="every process of a job must add the same noise"):
        planned.program.randomness(KeySchedule(), 0, 1, Job(2, 0))
    assert KeySchedule(1).is_common
    assert not KeySchedule().is_common
