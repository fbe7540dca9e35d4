"""Records that are divided among devices: what is summed, sent, held and refused; experiments of support/devices.py."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh
from support import devices
from support.every_method import BUDGET, METHODS, PROBLEM, START, N, data

import dpbilevel as dpb
from dpbilevel.privacy.memory import CHUNK
from dpbilevel.privacy.shards import checked_mesh, first_devices, piece_of, shard_of

MESH = first_devices(1)


@pytest.fixture(scope="module")
def found():
    return devices.report()


# ---- what is summed


@pytest.mark.slow
@pytest.mark.parametrize("kind", devices.FUNCTIONS)
def test_integer_sums_have_the_same_bits_on_any_number_of_devices(found, kind):
    assert len(set(found["bits"][kind])) == 1


@pytest.mark.slow
def test_integers_follow_from_the_shape_of_blocks(found):
    """The mutation that the test above must detect: blocks that are shorter where there are more devices."""
    assert len(set(found["bits in other blocks"])) > 1


@pytest.mark.slow
def test_sums_in_float64_agree_with_those_in_memory(found):
    assert max(found["differences"]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("mutation", ["padding that counts", "a shard left out"])
def test_wrong_sums_are_noticed(found, mutation):
    assert max(found[mutation]) > 1e-6


@pytest.mark.slow
def test_noise_is_drawn_once(found):
    assert max(found["noise"]) < 1e-4


@pytest.mark.slow
def test_noise_of_every_shard_is_noticed(found):
    assert min(found["noise of every shard"][1:]) > 1


@pytest.mark.slow
def test_one_record_moves_a_sum_no_further_than_its_sensitivity(found):
    assert 0.98 < found["movement"] <= 1


@pytest.mark.slow
def test_a_shard_that_counts_twice_is_noticed(found):
    assert found["movement with a shard that counts twice"] > 1


# ---- what is sent and held


@pytest.mark.slow
def test_what_is_measured_on_a_device_is_what_it_sums(found):
    assert [one["measured"] for one in found["compiled"]] == [True] * 4


@pytest.mark.slow
def test_contributions_that_are_computed_twice_are_noticed(found):
    assert not found["computed twice"]["measured"]


@pytest.mark.slow
def test_partial_sums_are_sent_once_whatever_the_number_of_records(found):
    """A compensated sum has two numbers for each entry of the answer, a sum of integers one."""
    columns = devices.COLUMNS
    assert [one["sent"] for one in found["compiled"]] == [
        [f"f64[4,{2 * columns}]{{1,0}} all-gather("],
        [f"f64[4,{2 * (columns + 1)}]{{1,0}} all-gather("],
        [f"f64[4,{2 * columns**2}]{{1,0}} all-gather("],
        [f"s64[4,{columns + 1}]{{1,0}} all-gather("],
    ]
    assert found["of more records"]["sent"] == found["compiled"][0]["sent"]


@pytest.mark.slow
def test_each_device_holds_its_shard_alone(found):
    record = devices.COLUMNS * 4 + 4 + 8 + 1  # row, target, norm of the row, mask
    assert found["bytes"] == [shard_of(1500, 4) * record] * 4


@pytest.mark.parametrize("number", [1, 255, 256, 257, 1500, 10**5, 10**7, 10**11])
def test_shards_hold_whole_pieces_for_all_records(number):
    piece = piece_of(number)
    assert piece % (2 * CHUNK) == 0
    for size in (1, 2, 3, 4, 8, 1000):
        length = shard_of(number, size)
        assert length % piece == 0
        assert number <= length * size < number + size * piece + piece
        assert piece <= max(256, number / 256)


# ---- whole runs


@pytest.mark.slow
def test_runs_with_exact_noise_release_the_same_bits_on_any_number_of_devices(found):
    assert len(set(found["solutions"])) == 1


@pytest.mark.slow
def test_a_run_resumes_on_as_many_devices_only(found):
    refused, resumed, uninterrupted = found["resumed"]
    assert "was created with another set of devices" in refused
    assert resumed == uninterrupted


def test_a_plan_says_how_many_devices_records_are_on():
    records = dpb.Records(**data(), mesh=MESH)
    planned = dpb.plan(PROBLEM, records.sizes, BUDGET, start=START, method=METHODS["Tracking"], refit=None)
    assert planned.parameters["devices"][0] == 1
    assert repr(records).endswith("on 1 device; values hidden)")
    with pytest.raises(dpb.InvalidArgument, match=r"made for.*on 1 device.*these are"):
        dpb.solve(planned, dpb.Records(**data()))


@pytest.mark.parametrize("units", [{}, {"unit": np.arange(N) // 3, "rows_per_unit": 2}], ids=["rows", "units"])
def test_the_seal_is_that_of_the_same_records_in_memory(units):
    key, lower = bytes(32), data()["lower"]
    divided, whole = (dpb.Records(lower=lower, mesh=mesh, **units) for mesh in (MESH, None))
    assert divided.seal(key) == whole.seal(key)
    assert divided.sizes == dataclasses.replace(whole.sizes, mesh=MESH)


# ---- what is refused, before anything is charged


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("Tracking, Poisson", r"must be dpb.FullBatch\(\)"),
        ("DPBilevel, without replacement", r"must be dpb.FullBatch\(\)"),
        ("DPBilevel, black box", "not supported with a black box"),
    ],
)
def test_methods_that_need_all_records_at_once_are_refused(method, words):
    ledger = dpb.Ledger(BUDGET)
    with pytest.raises(dpb.InvalidArgument, match=words):
        dpb.solve(
            PROBLEM,
            dpb.Records(**data(), mesh=MESH),
            BUDGET,
            start=START,
            method=METHODS[method],
            refit=None,
            ledger=ledger,
        )
    assert not ledger.entries


def test_exact_means_are_refused():
    with pytest.raises(dpb.InvalidArgument, match="infinite epsilon"):
        dpb.solve(PROBLEM, dpb.Records(**data(), mesh=MESH), dpb.Budget(float("inf")), start=START)


@pytest.mark.parametrize("mesh", [1, jax.devices(), AbstractMesh((1,), ("records",))])
def test_a_mesh_is_one_of_jax(mesh):
    with pytest.raises(dpb.InvalidArgument, match=r"must be a jax\.sharding\.Mesh"):
        dpb.Records(**data(), mesh=mesh)
    with pytest.raises(dpb.InvalidArgument, match=r"must be a jax\.sharding\.Mesh"):
        dpb.RecordShapes(**data(), mesh=mesh)


class Device:
    """A device of another process or kind."""

    def __init__(self, platform="cpu", device_kind="cpu", process_index=0):
        self.platform, self.device_kind, self.process_index = platform, device_kind, process_index


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([], "at least one device"),
        ([jax.devices()[0]] * 2, "each once"),
        ([Device(process_index=1)], "of this process only"),
        ([Device(), Device(device_kind="another")], "of one kind"),
        ([Device(platform="another")], "default backend"),
    ],
)
def test_devices_of_a_mesh_are_alike(others, words):
    with pytest.raises(dpb.InvalidArgument, match=words):
        checked_mesh(Mesh(np.array(others), ("any",)))


def test_a_mesh_has_one_axis_whatever_it_had():
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
    assert checked_mesh(mesh) == MESH
    assert dpb.RecordShapes(**data(), mesh=mesh) == dpb.Records(**data(), mesh=MESH).sizes
    assert dpb.RecordShapes(**data()) != dpb.RecordShapes(**data(), mesh=mesh)


@pytest.mark.parametrize("number", [0, 1.5, True, len(jax.devices()) + 1])
def test_the_first_devices_are_as_many_as_there_are(number):
    with pytest.raises(dpb.InvalidArgument, match=r"^devices="):
        first_devices(number)


def test_what_the_caller_does_to_its_array_changes_no_record():
    rows = np.ones((600, 3), np.float32)
    records = dpb.Records(lower=rows, mesh=MESH)
    seal = records.seal(bytes(32))
    rows[:] = 2
    assert records.seal(bytes(32)) == seal
