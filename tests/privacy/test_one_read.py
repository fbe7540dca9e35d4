"""The kernel that reads every row once, run by JAX's interpreter: the same sums, clips and refusals as without it."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from dpbilevel.applications import regularization
from dpbilevel.methods.derivatives import gradient_in_y
from dpbilevel.privacy import clipping, one_read
from dpbilevel.privacy.clipping import clipped_sum
from dpbilevel.privacy.memory import Memory
from dpbilevel.privacy.metric import Metric
from dpbilevel.privacy.outer import Outer
from dpbilevel.records import isolated_jax_config

NUMBER, COLUMNS, CLIP = 1000, 37, 0.5
METRIC = Metric(np.eye(COLUMNS, 2, dtype=np.float32), np.array([0.1, 0.6], np.float32))


def contribution(record):
    """A vector, a matrix and two numbers, with a score."""
    row, target = record
    score = row @ jnp.linspace(-1, 1, row.size, dtype=jnp.float32)
    matrix = jnp.stack([target**2, jnp.tanh(score)])
    return {"w": Outer(row, score * target), "m": Outer(row, matrix), "z": target * jnp.ones(2, jnp.float32)}


def in_metric(record):
    row, target = record
    return {
        "w": Outer(row, jnp.tanh(row @ jnp.linspace(-1, 1, row.size, dtype=jnp.float32)) * target).within(METRIC),
        "z": target,
    }


def data(number=NUMBER, columns=COLUMNS, seed=0):
    draws = np.random.default_rng(seed)
    rows = draws.normal(size=(number, columns)) * 10 ** draws.uniform(-2, 1, size=(number, 1))
    return rows.astype(np.float32), draws.normal(size=number).astype(np.float32)


@pytest.fixture
def sums(monkeypatch):
    """(vector, records, present, clip) -> the sum by the kernel, or without it; `None` where it does not apply."""

    def summed(vector, records, present, clip=CLIP, kernel=True, valid=None):
        monkeypatch.setattr(one_read, "INTERPRETED", kernel)
        used = []
        total = one_read.OneRead.fold
        monkeypatch.setattr(one_read.OneRead, "fold", lambda *given: used.append(1) or total(*given))
        with isolated_jax_config():
            stored = Memory.stored(records, np.ones(len(records[0]), bool) if valid is None else valid)
            with jax.enable_x64(True):
                found = np.asarray(jax.jit(lambda *given: clipped_sum(vector, *given, clip))(stored, present))
        monkeypatch.setattr(one_read.OneRead, "fold", total)
        assert kernel or not used
        return found if used or not kernel else None

    return summed


def assert_close(found, expected, number=NUMBER, clip=CLIP):
    """Within the rounding of both: a few units in the last place of every record, whose norms are at most the clip."""
    assert found is not None
    assert np.linalg.norm(found - expected) <= 2.0**-16 * number**0.5 * clip
    assert np.linalg.norm(expected) > number**0.5 * clip / 10


@pytest.mark.parametrize("vector", [contribution, in_metric])
def test_sums_are_those_without_the_kernel(sums, vector):
    records, present = data(), np.random.default_rng(1).random(NUMBER) < 0.8
    assert_close(sums(vector, records, present), sums(vector, records, present, kernel=False))


def test_blocks_of_programs_count_every_record_once(sums, monkeypatch):
    records, present = data(), np.ones(NUMBER, bool)
    expected = sums(contribution, records, present, kernel=False)
    monkeypatch.setattr(one_read, "_CHUNK", 16)
    monkeypatch.setattr(one_read, "_PROGRAMS", 3)
    assert_close(sums(contribution, records, present), expected)


@pytest.mark.parametrize("application", ["logistic", "squared"])
def test_losses_of_the_library_are_summed_by_the_kernel(sums, application):
    problem = regularization(columns=COLUMNS, row_norm=10.0, loss=application)
    gradient = gradient_in_y(problem.lower_loss)
    x, y = jax.tree.map(jnp.asarray, problem.start)
    rows, targets = data()
    records = rows, np.sign(targets)
    assert_close(
        sums(lambda record: gradient(x, y + 0.1, record), records, np.ones(NUMBER, bool)),
        sums(lambda record: gradient(x, y + 0.1, record), records, np.ones(NUMBER, bool), kernel=False),
    )


def test_rows_in_half_precision_are_summed_as_they_are(sums):
    rows, targets = data()
    half = rows.astype(ml_dtypes.bfloat16)
    expected = sums(contribution, (half.astype(np.float32), targets), np.ones(NUMBER, bool), kernel=False)
    for kernel in (True, False):
        assert_close(sums(contribution, (half, targets), np.ones(NUMBER, bool), kernel=kernel), expected)


@pytest.mark.parametrize("junk", [np.nan, np.inf, 3e38])
def test_records_that_are_not_finite_contribute_nothing(sums, junk):
    rows, targets = data()
    valid = np.arange(NUMBER) != 5
    expected = sums(contribution, (rows, targets), valid)
    targets[5] = junk  # a coefficient that is not finite, of a row that is
    np.testing.assert_array_equal(sums(contribution, (rows, targets), np.ones(NUMBER, bool)), expected)
    rows[5] = junk  # and a row, which is stored as zeros
    np.testing.assert_array_equal(sums(contribution, (rows, targets), valid, valid=valid), expected)


# ---- how far a record moves a sum


def furthest(sums, vector, columns=COLUMNS):
    """How far the sum moves when a record leaves, over the clip, for records of very different lengths."""
    rows, targets = data(128, columns)
    rows[:8] *= np.float32(10.0) ** np.arange(-20, 20, 5, dtype=np.float32)[:, None]
    whole, moves = sums(vector, (rows, targets), np.ones(128, bool)), []
    for left in (0, 3, 4, 5, 6, 7, 50):
        moves.append(np.linalg.norm(whole - sums(vector, (rows, targets), np.arange(128) != left)))
    return max(moves) / CLIP


@pytest.mark.parametrize("vector", [contribution, in_metric])
def test_no_record_moves_a_sum_further_than_the_clip(sums, vector):
    assert furthest(sums, vector) <= 1 + clipping.ROUNDING


def unclipped(lines, count, norms, taken, limit):
    return [jnp.where(taken, line, 0) for line in lines]


def of_other_rows(lines, count, norms, taken, limit):
    return CLIPPED(lines, count, jnp.full_like(norms, 1.0), taken, limit)


def without_other_numbers(lines, count, norms, taken, limit):
    scaled = CLIPPED(lines[:count], count, norms, taken, limit)
    return [*scaled, *(jnp.where(taken, line, 0) for line in lines[count:])]


CLIPPED = one_read._clipped


@pytest.mark.parametrize("mutant", [unclipped, of_other_rows, without_other_numbers])
def test_the_search_finds_kernels_that_clip_wrongly(sums, monkeypatch, mutant):
    monkeypatch.setattr(one_read, "_clipped", mutant)
    assert furthest(sums, contribution) > 1.5


def test_numbers_leave_a_loop_whose_end_is_read_from_memory():
    """A loop with a known end, or a `for`, might be computed again, in another way, where its result is used."""
    record = jax.ShapeDtypeStruct((COLUMNS,), jnp.float32), jax.ShapeDtypeStruct((), jnp.float32)
    with isolated_jax_config(), jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_read, "INTERPRETED", True)
        shapes = Memory.shapes(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((256, *leaf.shape), leaf.dtype), record))
        present = jax.ShapeDtypeStruct((256,), bool)
        traced = jax.make_jaxpr(lambda *given: clipped_sum(contribution, *given, CLIP))(shapes, present)
    (call,) = equations(traced.jaxpr, "pallas_call")
    (loop,) = [loop for loop in equations(call.params["jaxpr"], "while") if not equations(loop_body(loop), "while")]
    (end,) = loop.params["cond_jaxpr"].jaxpr.eqns
    assert end.primitive.name == "gt"  # "lt" would make a `for` of it
    assert equations(loop_body(loop), "tanh")
    assert not equations(loop_body(loop), "sqrt")


def loop_body(loop):
    return loop.params["body_jaxpr"].jaxpr


def equations(jaxpr, name):
    """All equations of this name, in inner programs too."""
    found = []
    for equation in jaxpr.eqns:
        found += [equation] if equation.primitive.name == name else []
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += equations(inner, name)
    return found


# ---- where it does not apply


@pytest.mark.parametrize(
    ("vector", "columns"),
    [
        (contribution, 2000),  # rows that are too long
        (lambda record: Outer(record[0], jnp.sort(jnp.stack([record[1], record[0] @ record[0]]))), COLUMNS),
        (lambda record: Outer(record[0], record[1] * jnp.ones(9, jnp.float32)), COLUMNS),  # too many coefficients
    ],
)
def test_other_sums_do_without(sums, vector, columns):
    assert sums(vector, data(256, columns), np.ones(256, bool)) is None


class Device:
    def __init__(self, version):
        self.compute_capability = version


@pytest.mark.parametrize(("version", "supported"), [("9.0", True), ("8.6", True), ("7.5", False), ("gfx90a", False)])
def test_other_devices_do_without_the_kernel(monkeypatch, version, supported):
    """What Triton cannot compile would fail after the charge."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [Device(version)])
    assert one_read._is_supported() == supported


def test_shards_do_without_the_kernel(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    mesh, found = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("records",)), []
    spec = jax.sharding.PartitionSpec("records")
    monkeypatch.setattr(jax, "devices", lambda: [Device("9.0")])

    def part(rows):
        found.append(one_read._is_supported())
        return rows

    jax.eval_shape(jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=spec), np.zeros(2))
    assert set(found) == {False}
