"""The clipped sum: what it adds up, how long a row may get, and how much memory it takes.

Every check is a function, so that a mutation can be run through the same one.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax_privacy.clipping import clipped_grad
from support.compilation_cache import with_names
from support.memory import largest_intermediate

from dpbilevel.privacy import clipping, memory
from dpbilevel.privacy.clipping import clipped, clipped_sum
from dpbilevel.records import isolated_jax_config

EPS = float(np.finfo(np.float32).eps)
NUMBERS = (1, 2, 255, 256, 257, 1000)


@functools.lru_cache
def compiled_sum(vector, clip, elements):
    return jax.jit(lambda records, present: clipped_sum(vector, records, present, clip))


def total(vector, records, present, clip):
    """The clipped sum, compiled as a program compiles it."""
    with isolated_jax_config():
        return np.asarray(compiled_sum(vector, clip, memory._ELEMENTS)(records, present))


def reference(vectors, present, clip):
    """The same in NumPy and float64, from the definition."""
    vectors = np.asarray(vectors, np.float64)
    usable = present & np.isfinite(vectors).all(axis=1)
    vectors = np.where(usable[:, None], vectors, 0.0)
    norms = np.linalg.norm(vectors, axis=1)
    return (vectors * np.minimum(1.0, clip / np.maximum(norms, 1e-300))[:, None]).sum(axis=0)


def tolerance(number, dimension, clip):
    """Float32 accuracy of a sum of vectors of norm ``clip``: the norm is rounded up by ``dimension`` eps."""
    return number * clip * (dimension + 8) * EPS


def identity(record):
    return record


def rows_of_mixed_length(number, dimension, seed=0):
    """Rows whose norms lie on both sides of 1."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(number, dimension)) / np.sqrt(dimension)
    return (rows * 10 ** rng.uniform(-2, 2, size=(number, 1))).astype(np.float32)


def squared_loss(parameters, record):
    features, target = record
    hidden = features @ parameters["matrix"] + parameters["bias"]
    return (jnp.sum(hidden**2) * parameters["scale"] - target) ** 2


def regression_data(number, dimension, seed=0):
    rng = np.random.default_rng(seed)
    records = (rng.normal(size=(number, dimension)).astype(np.float32), rng.normal(size=number).astype(np.float32))
    parameters = {
        "matrix": rng.normal(size=(dimension, 2)).astype(np.float32),
        "bias": rng.normal(size=2).astype(np.float32),
        "scale": np.float32(0.3),
    }
    return records, parameters


# ---- what is added up


@pytest.mark.parametrize(("number", "dimension"), [(1, 5), (2, 1), (255, 5), (256, 1), (257, 5), (1000, 3)])
def test_agrees_with_jax_privacy_on_pytrees_of_gradients(number, dimension):
    records, parameters = regression_data(number, dimension)
    clip = 2.0
    ours = total(lambda record: jax.grad(squared_loss)(parameters, record), records, np.ones(number, bool), clip)
    peer = jax.jit(clipped_grad(squared_loss, batch_argnums=1, keep_batch_dim=False, l2_clip_norm=clip))
    theirs, _ = jax.flatten_util.ravel_pytree(peer(parameters, records))
    norms = np.linalg.norm(np.asarray(theirs)), np.linalg.norm(ours)
    assert min(norms) > 0
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance(number, ours.size, clip))


@pytest.mark.parametrize(("number", "dimension"), [(1, 2000), (257, 1), (256, 3), (1000, 3), (1000, 100), (300, 2000)])
def test_agrees_with_numpy(number, dimension):
    rows = rows_of_mixed_length(number, dimension)
    present = np.random.default_rng(1).random(number) < 0.8
    ours = total(identity, rows, present, 1.0)
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, reference(rows, present, 1.0), atol=tolerance(number, dimension, 1.0))


@pytest.mark.parametrize(
    ("number", "at_once"),
    [(1, 1), (1, 7), (2, 1), (255, 7), (256, 256), (257, 256), (257, 300), (1000, 7), (1000, 300), (1000, 512)],
)
def test_blocks_count_every_record_once(monkeypatch, number, at_once):
    """Small whole numbers add up exactly, so a record that is skipped or counted twice shows."""
    monkeypatch.setattr(memory, "_ELEMENTS", 2 * at_once)
    rows = np.stack([np.arange(number), np.ones(number)], axis=1).astype(np.float32)
    present = np.arange(number) % 3 != 1
    ours = total(identity, rows, present, float("inf"))
    np.testing.assert_array_equal(ours, rows[present].astype(np.float64).sum(axis=0))


def test_blocks_agree_with_numpy_where_rows_are_clipped(monkeypatch):
    rows = rows_of_mixed_length(1000, 3)
    for at_once in (11, 299):
        monkeypatch.setattr(memory, "_ELEMENTS", 3 * at_once)
        ours = total(identity, rows, np.ones(1000, bool), 1.0)
        np.testing.assert_allclose(ours, reference(rows, np.ones(1000, bool), 1.0), atol=tolerance(1000, 3, 1.0))


def test_whole_vector_is_clipped_not_its_leaves():
    record = {"a": np.full((1, 4), 3.0, np.float32), "b": np.full((1, 9), 3.0, np.float32)}
    ours = total(identity, record, np.ones(1, bool), 1.0)
    assert np.linalg.norm(ours) == pytest.approx(1.0, rel=1e-5)
    np.testing.assert_allclose(ours, 1 / np.sqrt(13), rtol=1e-5)


def test_integer_records_are_read_as_they_are():
    labels = np.array([0, 3, 2, 3])
    ours = total(lambda label: jax.nn.one_hot(label, 4, dtype=jnp.float32), labels, np.ones(4, bool), 1.0)
    np.testing.assert_allclose(ours, [1, 0, 1, 2], rtol=1e-6)


def test_infinite_clip_does_not_clip():
    rows = rows_of_mixed_length(300, 4) * np.float32(1e10)
    ours = total(identity, rows, np.ones(300, bool), float("inf"))
    assert np.linalg.norm(rows, axis=1).max() > 1e11
    np.testing.assert_allclose(ours, rows.astype(np.float64).sum(axis=0), rtol=1e-4)


# ---- what is left out


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 3e38, 1e-45])
def test_absent_records_contribute_nothing(junk):
    rows = rows_of_mixed_length(300, 3)
    present = np.arange(300) % 4 != 0
    spoiled = np.where(present[:, None], rows, np.float32(junk))
    np.testing.assert_array_equal(total(identity, spoiled, present, 1.0), total(identity, rows, present, 1.0))


def test_nobody_present_gives_zero():
    rows = np.full((300, 3), np.nan, np.float32)
    np.testing.assert_array_equal(total(identity, rows, np.zeros(300, bool), 1.0), np.zeros(3))


@pytest.mark.parametrize("clip", [1.0, float("inf")])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_non_finite_entry_removes_the_whole_record(bad, clip):
    """The other leaf of such a record must not get through either."""
    first, second = rows_of_mixed_length(260, 3), rows_of_mixed_length(260, 5, seed=1)
    present = np.ones(260, bool)
    spoiled = first.copy()
    spoiled[[0, 100, 259], [0, 1, 2]] = bad
    left = present.copy()
    left[[0, 100, 259]] = False
    ours = total(identity, {"a": spoiled, "b": second}, present, clip)
    np.testing.assert_array_equal(ours, total(identity, {"a": first, "b": second}, left, clip))


@pytest.mark.parametrize(("number", "dimension"), [(300, 17), (1000, 100), (40, 2000)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_entries_are_found_at_every_place_of_wide_rows(number, dimension, bad):
    """Wide rows are reduced by vector instructions, whose maximum need not keep a NaN."""
    for place in (0, 1, dimension // 2, dimension - 2, dimension - 1):
        rows = np.full((number, dimension), 10.0, np.float32)
        rows[number // 2, place] = bad
        left = np.arange(number) != number // 2
        np.testing.assert_array_equal(
            total(identity, rows, np.ones(number, bool), 1.0), total(identity, rows, left, 1.0)
        )


def test_non_finite_vectors_of_finite_records_are_removed():
    """log(0), log(-1), 1/0 and an overflow: the records are finite, their vectors are not."""
    rows = np.array([1.0, 0.0, -1.0, 2.0, 3e38], np.float32)
    ours = total(lambda record: jnp.stack([jnp.log(record), 10 * record]), rows, np.ones(5, bool), float("inf"))
    np.testing.assert_allclose(ours, [np.log(2), 30.0], rtol=1e-6)


# ---- how long a row may get

SCALES = (1e-45, 1e-38, 1.2e-38, 1e-30, 1e-12, 1.0, 1e10, 1e19, 1.9e19, 1e30, 3e38)


@pytest.fixture(scope="module")
def compiled_clipped():
    """`clipped`, compiled once per shape; the clip stays a Python number to JAX, as it is in a program."""
    compiled = jax.jit(clipped)

    def call(rows, present, clip):
        with isolated_jax_config():
            return np.asarray(compiled(rows, present, float(clip)))

    return call


def check_rows(clip_rows, rows, clip):
    """No row is longer than the clip, rows that are short enough keep every bit, and directions are kept."""
    result = clip_rows(rows, np.ones(len(rows), bool), clip)
    assert np.isfinite(result).all()
    exact, lengths = rows.astype(np.float64), np.linalg.norm(result.astype(np.float64), axis=1)
    assert lengths.max(initial=0.0) <= clip * (1 + 1e-6)
    norms = np.linalg.norm(exact, axis=1)
    slack = (rows.shape[1] + 8) * EPS
    short = norms <= clip * (1 - slack)
    np.testing.assert_array_equal(result[short].view(np.int32), rows[short].view(np.int32))
    expected = exact * np.minimum(1.0, clip / np.maximum(norms, 1e-300))[:, None]
    errors = np.linalg.norm(result - expected, axis=1)
    dropped = (lengths == 0) & (np.abs(rows).max(axis=1) > 2.0**100)  # as good as infinite, and treated like it
    assert errors[~dropped].max(initial=0.0) <= clip * slack + 1e-37


@st.composite
def extreme_rows(draw):
    dimension = draw(st.sampled_from([1, 2, 3, 17, 256, 2000]))
    scales = np.array(draw(st.lists(st.sampled_from(SCALES), min_size=1, max_size=4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    entries = rng.choice(scales, size=(16, dimension)) * rng.uniform(0.3, 1.0, size=(16, dimension))
    entries *= rng.choice([-1.0, 1.0], size=entries.shape) * (rng.random(entries.shape) < draw(st.floats(0.01, 1.0)))
    return entries.astype(np.float32)


@given(rows=extreme_rows(), exponent=st.floats(-6, 6))
@settings(max_examples=300, phases=[Phase.explicit, Phase.generate])
def test_rows_are_never_longer_than_the_clip(compiled_clipped, rows, exponent):
    check_rows(compiled_clipped, rows, 10.0**exponent)


@given(
    rows=st.lists(st.tuples(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * 3), min_size=8, max_size=8),
    exponent=st.floats(-6, 6),
)
@settings(max_examples=150, phases=[Phase.explicit, Phase.generate])
def test_rows_of_any_floats_are_never_longer_than_the_clip(compiled_clipped, rows, exponent):
    check_rows(compiled_clipped, np.array(rows, np.float32), 10.0**exponent)


@pytest.mark.parametrize("entry", [1e29, 1.3e30, 8.6e37, 1e38, 3e38, np.finfo(np.float32).max], ids=str)
def test_rows_of_the_largest_floats_are_clipped(compiled_clipped, entry):
    """XLA divides by multiplying with the reciprocal, which is denormal here, and treated as zero on CPUs."""
    for row in ([entry, 0.0], [entry, -entry], [1.0, entry], [entry] * 2000):
        check_rows(compiled_clipped, np.array([row], np.float32), 1.0)


def test_rows_around_the_clip(compiled_clipped):
    """Lengths within a few units in the last place of the clip, on both sides."""
    rng = np.random.default_rng(0)
    for dimension in (1, 3, 256):
        for clip in (1e-6, 0.1, 1.0, 1 / 3, 1e6):
            rows = rng.normal(size=(16, dimension))
            rows *= clip / np.linalg.norm(rows, axis=1, keepdims=True) * (1 + EPS * rng.integers(-4, 5, size=(16, 1)))
            check_rows(compiled_clipped, rows.astype(np.float32), clip)


def test_signed_zeros_and_denormals_come_back_bit_for_bit(compiled_clipped):
    rows = np.array([[-0.0, 0.0], [1e-45, -1e-45], [1e-40, 0.5], [-0.0, -1e-38]], np.float32)
    result = compiled_clipped(rows, np.ones(4, bool), 1.0)
    np.testing.assert_array_equal(result.view(np.int32), rows.view(np.int32))


def naive_clipped(rows, present, clip):
    """The textbook: a norm of plain squares, which overflows, vanishes and rounds as it likes."""
    rows = jnp.asarray(rows)
    norms = jnp.sqrt(jnp.sum(rows**2, axis=1))
    return np.asarray(rows * jnp.minimum(1.0, clip / norms)[:, None])


def per_entry_clipped(rows, present, clip):
    return np.clip(rows, -clip, clip)


@pytest.mark.parametrize("mutant", [naive_clipped, per_entry_clipped])
def test_the_row_check_rejects_broken_clipping(mutant):
    rows = np.array([[1e30, 1e30, 1e30], [1.0, 2.0, 3.0]], np.float32)
    with pytest.raises(AssertionError):
        check_rows(mutant, rows, 1.0)


def test_a_vector_without_entries_sums_to_nothing():
    assert total(lambda record: {}, np.ones((5, 2), np.float32), np.ones(5, bool), 1.0).shape == (0,)


# ---- which types and clips keep the promise


def movement_of_sum(vector, rows, changed, clip):
    """How far the sum moves when the first record changes, in clips."""
    neighbour = rows.copy()
    neighbour[0] = changed
    present = np.ones(len(rows), bool)
    difference = total(vector, rows, present, clip) - total(vector, neighbour, present, clip)
    movement = float(np.linalg.norm(difference))
    return movement / clip if np.isfinite(movement) else np.inf


def within_the_claim(vector, rows, changed, clip):
    return movement_of_sum(vector, rows, changed, clip) <= 2 * (1 + clipping.ROUNDING)


@pytest.mark.parametrize(
    "dtype",
    [jnp.float32, jnp.float64, jnp.float16, jnp.bfloat16],
    ids=["float32", "float64", "float16", "bfloat16"],
)
def test_narrow_types_keep_the_sensitivity(dtype):
    """A loss at a float16 start has float16 gradients: their chunk must not be rounded to float16."""
    rows = np.full((256, 1), 0.1, np.float32)
    assert within_the_claim(lambda record: record.astype(dtype), rows, -0.1, 0.05)


@pytest.mark.parametrize("clip", [2.0**-60, 1e-12, 1e12, 2.0**60])
def test_extreme_clips_keep_the_sensitivity(clip):
    """The ends of what `Contribution` accepts; with 1e37 the chunk of 256 would overflow."""
    size = np.float32(10 * clip)
    assert within_the_claim(identity, np.full((256, 1), size, np.float32), -size, clip)


# ---- how much memory it takes


def million(*shape):
    return jax.ShapeDtypeStruct((10**6, *shape), jnp.float32), jax.ShapeDtypeStruct((10**6,), bool)


def test_memory_is_bounded_for_a_million_records():
    """n = 10^6, d = 100: 4 MiB of vectors at a time, where all of them would take 400 MB."""
    bound = memory._ELEMENTS
    assert largest_intermediate(lambda r, p: clipped_sum(identity, r, p, 1.0), *million(100)) <= bound


def test_compiled_memory_is_bounded_for_a_million_records():
    with isolated_jax_config():
        lowered = jax.jit(lambda r, p: clipped_sum(identity, r, p, 1.0)).lower(*million(100))
    with with_names():
        analysis = lowered.compile().memory_analysis()
    if analysis is None:
        pytest.skip("this backend reports no memory")
    assert analysis.temp_size_in_bytes <= 32 * 2**20


def test_the_memory_check_rejects_a_sum_of_everything_at_once():
    def everything(rows, present):
        return jnp.sum(clipped(jax.vmap(identity)(rows), present, 1.0), axis=0)

    assert largest_intermediate(everything, *million(100)) == 10**8


def test_memory_is_bounded_where_records_are_wide_and_vectors_short():
    """A scalar x (regularisation tuning) with 100 features: a block is as wide as a record, not as its vector."""
    bound = 4 * memory._ELEMENTS
    assert largest_intermediate(lambda r, p: clipped_sum(lambda v: jnp.sum(v**2), r, p, 1.0), *million(100)) <= bound
