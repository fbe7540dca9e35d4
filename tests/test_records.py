"""Records: nothing gets out but charged answers, and no message tells what is inside.

The sentinel 987654 stands for a private value: it must appear in no representation, message or state.
"""

import copy
import gc
import json
import pickle
import re
import traceback
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import dpbilevel as dpb
from dpbilevel.errors import InvalidArgument, InvalidRecords, NotCharged
from dpbilevel.execution.program import Program, Stage
from dpbilevel.privacy.ledger import Ledger, Receipt
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.record_shapes import RecordShapes
from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.records import Records, check_traceable

SENTINEL = 987654.0
HIDDEN = ("987654", "9.87654", "9.8765")


def identity(point, record):
    return record


def release_of(vector=identity, role="lower", clip=1e15, count=4, steps=1, noise=0.0):
    return Release(name="mean", contributions={role: Contribution(vector, clip, count)}, noise_std=noise, uses=steps)


def program_of(release):
    """One use a round; the history keeps the answers."""
    stage = Stage(
        release=release,
        uses_per_round=1,
        query=lambda state, carry, step: np.float32(0),
        update=lambda state, carry, answer, step: ravel_pytree(answer)[0],
        begin=lambda state: state,
        end=lambda state, carry: carry,
    )
    return Program(
        rounds=release.uses,
        stages=(stage,),
        start=lambda x, y: x,
        observe=lambda state: state,
        finish=lambda state: (state, state),
    )


def executed(records, release, size=1, rounds=None, receipt=None, seed=0):
    program = program_of(release)
    rounds = program.rounds if rounds is None else rounds
    receipt = Receipt([release]) if receipt is None else receipt
    return np.asarray(records.execute(program, receipt, KeySchedule(seed), np.zeros(size, np.float32), rounds)[1])


@pytest.fixture
def records():
    return Records(
        upper=np.full((3, 2), SENTINEL), lower={"a": np.full((4, 2), SENTINEL), "b": np.full(4, int(SENTINEL))}
    )


# ---- what an onlooker sees


def is_array(value):
    return isinstance(value, np.ndarray | np.generic | jax.Array | memoryview)


def reachable(value, depth=4, seen=None):
    """Everything within a few attributes and items of an object, as a debugger or a serialiser would walk it."""
    seen = {} if seen is None else seen
    if depth < 0 or id(value) in seen or isinstance(value, type) or callable(value):
        return seen
    seen[id(value)] = value
    if is_array(value):
        return seen
    if isinstance(value, dict):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        inner = list(value)
    else:
        names = [*dir(value), *(f"_{type(value).__name__}{name}" for name in ("__arrays", "__vault", "__data"))]
        inner = [getattr(value, name, None) for name in names if not (name.startswith("__") and name.endswith("__"))]
        inner.append(getattr(value, "__dict__", None))
    for item in inner:
        reachable(item, depth - 1, seen)
    return seen


def check_hidden(holder):
    """Nothing within reach of the object is an array, and nothing that describes it shows a value."""
    within_reach = list(reachable(holder).values())
    assert not [value for value in within_reach if is_array(value)]
    described = [repr(holder), str(holder), f"{holder}", repr([holder]), repr(dir(holder)), repr(holder.__doc__)]
    described.append(repr(getattr(holder, "__dict__", {})))
    described += [repr(value) for value in within_reach]
    for text in described:
        assert not any(digits in text for digits in HIDDEN)


def test_records_hide_their_arrays(records):
    check_hidden(records)
    assert repr(records) == "Records(upper=3 records, lower=4 records; values hidden)"
    with pytest.raises(TypeError):
        vars(records)


def test_no_attribute_can_be_added(records):
    with pytest.raises(AttributeError):
        records.arrays = np.zeros(3)


class Open:
    """A mutant that keeps its arrays as attributes, even with private names."""

    def __init__(self):
        self.__arrays = {"lower": (np.full(3, SENTINEL), np.ones(3, bool))}


class Talkative:
    """A mutant that shows values."""

    def __repr__(self):
        return f"Records(lower=[{SENTINEL}, ...])"


@pytest.mark.parametrize("twin", [Open, Talkative])
def test_objects_that_show_arrays_are_caught(twin):
    with pytest.raises(AssertionError):
        check_hidden(twin())


def test_sizes_keep_shapes_only(records):
    sizes = RecordShapes(upper=np.full((3, 2), SENTINEL), lower=(jnp.full((4, 2), SENTINEL), np.full(4, int(SENTINEL))))
    for public in (sizes, records.sizes):
        check_hidden(public)
        leaves = jax.tree.leaves((public.upper, public.lower, public.both))
        assert {type(leaf) for leaf in leaves} == {jax.ShapeDtypeStruct}
    assert repr(sizes) == "RecordShapes(upper=3 records, lower=4 records)"
    assert (sizes.roles, sizes.count("lower"), sizes.role_of("upper")) == (("upper", "lower"), 4, "upper")
    assert RecordShapes(both=np.zeros((5, 2))).role_of("upper") == "both"
    assert RecordShapes(lower=np.zeros(5)).role_of("upper") is None


def test_sizes_do_not_keep_arrays_alive():
    array = np.full((4, 2), SENTINEL)
    reference = weakref.ref(array)
    sizes = RecordShapes(lower=array)
    del array
    gc.collect()
    assert reference() is None
    assert sizes.count("lower") == 4


def test_arrays_go_with_the_records():
    """Nothing keeps private arrays once their records are gone."""
    gc.collect()
    before = len(jax.live_arrays())
    held = Records(lower=np.full((400, 2), SENTINEL))
    assert len(jax.live_arrays()) > before
    del held
    gc.collect()
    assert len(jax.live_arrays()) == before


def test_later_changes_of_the_input_change_nothing():
    """Values are checked once: what is executed is what was checked."""
    array = np.ones((4096, 4), np.float32)
    held = Records(lower=array)
    array[:] = np.nan
    np.testing.assert_allclose(executed(held, release_of(count=4096), 4), [[1, 1, 1, 1]], rtol=1e-6)


@pytest.mark.parametrize(
    "carry_away",
    [pickle.dumps, copy.copy, copy.deepcopy, lambda r: r.__reduce_ex__(4), lambda r: r.__reduce__(), json.dumps],
    ids=["pickle", "copy", "deepcopy", "reduce_ex", "reduce", "json"],
)
def test_records_cannot_be_carried_away(records, carry_away):
    with pytest.raises(TypeError) as caught:
        carry_away(records)
    assert_message_hides(caught.value)


def test_the_state_of_records_is_public(records):
    check_hidden(records.__getstate__())


@pytest.mark.parametrize(
    "use",
    [
        lambda r: jax.jit(lambda r: r)(r),
        lambda r: jax.jit(lambda r: 0.0)(r),
        lambda r: jax.jit(lambda r: r, static_argnums=0)(r),
        lambda r: jax.grad(lambda r: 1.0)(r),
        lambda r: jax.vmap(lambda r: r)(r),
        lambda r: jax.eval_shape(lambda r: r, r),
        lambda r: jax.make_jaxpr(lambda r: r)(r),
        lambda r: jnp.asarray(r),
        lambda r: jnp.sum(r),
        lambda r: jax.device_put(r),
        lambda r: jax.lax.scan(lambda c, r: (c, r), 0.0, r),
        lambda r: np.asarray(r, dtype=float),
        lambda r: np.float64(1) + r,
        lambda r: float(r),
        lambda r: list(r),
        lambda r: len(r),
        lambda r: r[0],
        lambda r: r["lower"],
        lambda r: memoryview(r),
        lambda r: r.sizes.lower["a"] + 0,
    ],
)
def test_no_transformation_sees_through_records(records, use):
    with pytest.raises(TypeError) as caught:
        use(records)
    assert_message_hides(caught.value)


def test_containers_hold_the_opaque_object(records):
    assert jax.tree.leaves(records) == [records]
    assert jax.tree.leaves({"data": records}) == [records]
    wrapped = np.asarray(records)
    assert (wrapped.dtype, wrapped.shape) == (object, ())
    assert wrapped.item() is records


# ---- what a message tells


def assert_message_hides(error):
    """No sentinel anywhere in the error or what caused it."""
    printed = "".join(traceback.format_exception_only(error))
    for cause in (error.__cause__, error.__context__):
        if cause is not None and not getattr(error, "__suppress_context__", False):
            printed += "".join(traceback.format_exception_only(cause))
    assert not any(digits in printed for digits in HIDDEN), printed


def check_refusal(role, **given):
    """A refusal is typed, names its role, and its only numbers are the widths of numeric types."""
    with pytest.raises(InvalidRecords) as caught:
        Records(**given)
    message = str(caught.value)
    assert_message_hides(caught.value)
    assert role in message
    assert ";" in message  # the rule, then the remedy
    assert set(re.findall(r"\d+", message)) <= {"8", "16", "32", "64", "128"}, message


def spoiled(value, length=37, dtype=float):
    array = np.full(length, SENTINEL, dtype)
    array[23] = value
    return array


BAD_RECORDS = {
    "empty": np.zeros((0, 3)),
    "no leaves": (),
    "no leaves in a dict": {},
    "mismatched lengths": (np.full(37, SENTINEL), np.full(41, SENTINEL)),
    "nan": spoiled(np.nan),
    "inf": spoiled(np.inf),
    "minus inf": spoiled(-np.inf),
    "nan in one leaf": {"a": np.full(37, SENTINEL), "b": spoiled(np.nan)},
    "too large for float32": spoiled(1e300),
    "just too large for float32": spoiled(3.5e38),
    "nan in a jax array": jnp.asarray(spoiled(np.nan)),
    "object": np.array([SENTINEL, None], object),
    "objects that are numbers": np.array([SENTINEL, 2.0], object),
    "dates": np.array(["2020-01-01"], "datetime64[D]"),
    "complex": np.array([SENTINEL + 1j]),
    "scalar leaf": (np.full(37, SENTINEL), SENTINEL),
    "list of numbers": [SENTINEL, SENTINEL],
    "random keys": jax.random.split(jax.random.key(987654), 3),
}


@pytest.mark.parametrize("role", ["upper", "lower", "both"])
@pytest.mark.parametrize("name", BAD_RECORDS)
def test_bad_records_are_refused_without_telling_anything(name, role):
    given = {role: BAD_RECORDS[name]} | ({"lower": np.zeros(3)} if role == "upper" else {})
    check_refusal(role, **given)


@pytest.mark.parametrize(
    "bad",
    [
        np.array(["987654", "987654321"]),
        np.array([b"987654", b"987654321"]),
        "987654321",
        np.array([("987654321",)], [("a", "U9")]),
    ],
    ids=["strings", "bytes", "one string", "structured"],
)
def test_strings_are_refused_without_telling_their_length(bad):
    """NumPy's name of a string type, <U9, is the length of the longest value."""
    check_refusal("lower", lower=bad)


def test_durations_are_refused():
    """NumPy calls a timedelta an integer."""
    check_refusal("lower", lower=np.array([987654], "timedelta64[s]"))


PANDAS_COLUMNS = {
    "category": lambda pd: pd.Series(["987654", "b"], dtype="category"),
    "string": lambda pd: pd.Series(["987654", "b"]),
    "Int64": lambda pd: pd.Series([987654, None], dtype="Int64"),
    "Float64": lambda pd: pd.Series([987654.5, None], dtype="Float64"),
    "boolean": lambda pd: pd.Series([True, None], dtype="boolean"),
    "dates": lambda pd: pd.Series(pd.date_range("2020", periods=3, tz="UTC")),
}


@pytest.mark.parametrize("name", PANDAS_COLUMNS)
def test_columns_of_pandas_types_are_refused_without_telling_anything(name):
    """The name of a categorical type lists its categories: the private values themselves."""
    check_refusal("lower", lower=PANDAS_COLUMNS[name](pytest.importorskip("pandas")))


def test_plain_pandas_columns_are_taken_and_strings_refused():
    pd = pytest.importorskip("pandas")
    for column in (pd.Series([1.0, 2.0, 3.0, 4.0]), pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0]})):
        np.testing.assert_allclose(executed(Records(lower=column), release_of()), [[2.5]], rtol=1e-6)
    check_refusal("lower", lower=pd.DataFrame({"a": ["987654", "b"]}))


def test_masked_values_are_not_used():
    """np.asarray drops the mask, and what was marked as missing would count as a value."""
    check_refusal("lower", lower=np.ma.masked_array([1.0, SENTINEL], [False, True]))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"upper": np.full(5, SENTINEL)},
        {"both": np.full(5, SENTINEL), "upper": np.full(5, SENTINEL)},
        {"both": np.full(5, SENTINEL), "lower": np.full(5, SENTINEL)},
        {"both": np.full(5, SENTINEL), "lower": np.full(5, SENTINEL), "upper": np.full(5, SENTINEL)},
    ],
    ids=["nothing", "upper only", "both and upper", "both and lower", "all three"],
)
@pytest.mark.parametrize("kind", [Records, RecordShapes])
def test_roles_that_do_not_fit_are_refused(kind, given):
    with pytest.raises(InvalidRecords, match=r"only both=|both=.* cannot be combined") as caught:
        kind(**given)
    assert_message_hides(caught.value)


def test_an_unknown_treatment_of_invalid_records_is_refused():
    with pytest.raises(InvalidArgument, match="invalid"):
        Records(lower=np.zeros(3), invalid="drop")


def test_refusals_leave_nothing_behind():
    gc.collect()
    before = len(jax.live_arrays())
    with pytest.raises(InvalidRecords):
        Records(upper=np.full(50, SENTINEL), lower=spoiled(np.nan))
    gc.collect()
    assert len(jax.live_arrays()) == before


# ---- what is kept


@pytest.mark.parametrize(
    ("leaf", "kept"),
    [
        (np.array([1, 2, 3, 4]), np.int32),
        (np.array([1, 2, 3, 4], np.int8), np.int8),
        (np.array([1, 2, 3, 4], np.uint32), np.uint32),
        (np.array([True, False, True, True]), np.bool_),
        (np.array([1.0, 2.0, 3.0, 4.0]), np.float32),
        (np.array([1.0, 2.0, 3.0, 4.0], np.float16), np.float32),
        (np.array([1.0, 2.0, 3.0, 4.0], np.longdouble), np.float32),
        (jnp.array([1.0, 2.0, 3.0, 4.0], jnp.bfloat16), np.float32),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value.dtype),
)
def test_types_are_kept_or_narrowed_to_float32(leaf, kept):
    held = Records(lower=leaf)
    assert jax.tree.leaves(held.sizes.lower)[0].dtype == kept
    values = np.asarray(leaf, np.float64).ravel()
    answer = executed(held, release_of(lambda point, record: jnp.asarray(record, jnp.float32)))
    np.testing.assert_allclose(answer, [[values.mean()]], rtol=1e-6)


LABELS = np.array([987654 * 2**20 + 1, 0, 1, 0])  # the first does not fit 32 bits


def odd(point, record):
    return (record % 2 == 1).astype(jnp.float32)


def test_integers_that_do_not_fit_are_refused():
    """Cut to 32 bits they would be other labels."""
    check_refusal("lower", lower=LABELS)
    np.testing.assert_allclose(executed(Records(lower=LABELS, invalid="zero"), release_of(odd)), [[0.25]])


def test_integers_keep_every_digit_where_the_user_has_64_bits():
    with jax.enable_x64(True):
        np.testing.assert_allclose(executed(Records(lower=LABELS), release_of(odd)), [[0.5]])


def test_records_without_features_are_kept():
    assert Records(lower=(np.zeros((5, 0)), np.zeros(5))).sizes.count("lower") == 5


@pytest.mark.parametrize("bad", [np.nan, 1e300])
def test_invalid_records_can_contribute_zero(bad):
    """The whole record, its valid leaf included; and the sum is still divided by all four."""
    tree = {"a": np.array([1.0, 2.0, bad, 4.0]), "b": np.array([10, 20, 30, 40])}
    held = Records(lower=tree, invalid="zero")
    constant = release_of(lambda point, record: jnp.stack([record["b"].astype(jnp.float32), jnp.float32(4)]))
    np.testing.assert_allclose(executed(held, constant, 2), [[70 / 4, 3.0]], rtol=1e-6)


# ---- what may be asked


def test_nothing_is_executed_without_a_receipt():
    held = Records(lower=np.full(4, SENTINEL))
    with pytest.raises(NotCharged) as caught:
        executed(held, release_of(), receipt=Receipt([]))
    assert_message_hides(caught.value)


def test_a_receipt_is_for_the_very_release():
    """An equal declaration is another release; so is the same one with less noise."""
    held, charged = Records(lower=np.ones(4)), release_of(noise=1.0)
    for other in (release_of(noise=1.0), charged.scaled(1.0), charged.scaled(0.0)):
        with pytest.raises(NotCharged):
            executed(held, other, receipt=Receipt([charged]))


def test_no_more_rounds_than_charged():
    held, release = Records(lower=np.ones(4)), release_of(steps=5)
    receipt = Receipt([release])
    with pytest.raises(NotCharged):
        executed(held, release, rounds=6, receipt=receipt)
    executed(held, release, rounds=3, receipt=receipt)
    with pytest.raises(NotCharged):
        executed(held, release, rounds=3, receipt=receipt)
    executed(held, release, rounds=2, receipt=receipt)
    with pytest.raises(NotCharged):
        executed(held, release, rounds=1, receipt=receipt)


def test_a_ledger_gives_the_receipt():
    budget = dpb.Budget(1.0, 1e-6)
    release = release_of(clip=1.0, noise=100.0)
    receipt = Ledger(budget).charge([release], budget, "run")
    assert executed(Records(lower=np.ones(4)), release, receipt=receipt).shape == (1, 1)


@pytest.mark.parametrize("carry_away", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda f: f.__name__)
def test_a_receipt_cannot_be_copied(carry_away):
    with pytest.raises(TypeError):
        carry_away(Receipt([release_of()]))


def test_a_program_that_is_changed_after_it_was_compiled_is_not_free():
    """Dropping the stages of a compiled program must not run it without redeeming anything."""
    held, release = Records(lower=np.ones(4)), release_of(noise=1.0)
    stages = list(program_of(release).stages)
    program = Program(
        rounds=1,
        stages=stages,
        start=lambda x, y: x,
        observe=lambda state: state,
        finish=lambda state: (state, state),
    )
    receipt, schedule, state = Receipt([release]), KeySchedule(0), np.zeros(1, np.float32)
    held.execute(program, receipt, schedule, state, 1)
    stages.clear()
    with pytest.raises(NotCharged):
        held.execute(program, receipt, schedule, state, 1)


def test_noise_cannot_be_drawn_twice():
    """With the same noise at two points, half the difference of the answers would be free of it."""
    held, release = Records(lower=np.full(4, 0.2)), release_of(noise=100.0, steps=2)
    program, schedule, state = program_of(release), KeySchedule(), np.zeros(1, np.float32)
    receipt = Receipt([release])
    first, second = (held.execute(program, receipt, schedule, state, 1)[1] for _ in range(2))
    assert abs(float(first[0, 0]) - float(second[0, 0])) > 1e-3
    with pytest.raises(NotCharged, match="another run"):
        held.execute(program, Receipt([release]), schedule, state, 1)


def test_a_release_that_is_changed_after_the_charge_is_not_executed():
    parts = {"lower": Contribution(identity, 1.0, 4)}
    release = Release(name="mean", contributions=parts, noise_std=0.0, uses=1)
    receipt = Receipt([release])
    parts["lower"] = Contribution(identity, 1e9, 4)
    answer = executed(Records(lower=np.full(4, 1000.0)), release, receipt=receipt)
    assert abs(answer.item()) <= 1 + 1e-6


# ---- switches and losses that look


SWITCHES = {
    "debug_nans": lambda: jax.debug_nans(True),
    "debug_infs": lambda: jax.debug_infs(True),
    "disable_jit": lambda: jax.disable_jit(True),
    "checking_leaks": lambda: jax.checking_leaks(),
    "debug_key_reuse": lambda: jax.debug_key_reuse(True),
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "rank promotion": lambda: jax.numpy_rank_promotion("raise"),
    "enable_x64": lambda: jax.enable_x64(True),
}


def singular(seen):
    """A vector that is NaN or infinite for some records, and notes whether it was shown a value."""

    def vector(point, record):
        seen.append(isinstance(record, jax.core.Tracer))
        return jnp.stack([jnp.log(record), 1 / record])

    return vector


def answer_of_singular(held):
    seen = []
    answer = executed(held, release_of(singular(seen)), 2)
    assert seen
    assert all(seen)
    return answer


SINGULAR = np.array([-SENTINEL, 0.0, 2.0, 4.0], np.float32)


@pytest.fixture(scope="module")
def singular_records():
    """Records with singular vectors, and the answer without any switch."""
    held = Records(lower=SINGULAR)
    expected = answer_of_singular(held)
    np.testing.assert_allclose(expected, [[np.log(8) / 4, 0.75 / 4]], rtol=1e-6)
    return held, expected


@pytest.mark.parametrize("name", SWITCHES)
def test_debugging_switches_show_nothing_and_change_nothing(name, singular_records, capfd):
    held, expected = singular_records
    with SWITCHES[name](), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = answer_of_singular(held)
    np.testing.assert_array_equal(answer, expected)
    out, err = capfd.readouterr()
    printed = out + err + "".join(str(warning.message) for warning in caught)
    assert not any(digits in printed for digits in HIDDEN)


def test_debugging_switches_show_no_invalid_record():
    with jax.debug_nans(True), jax.debug_infs(True), jax.disable_jit(True):
        held = Records(lower=spoiled(np.nan, 30), invalid="zero")
        answer = executed(held, release_of(count=30))
        with pytest.raises(InvalidRecords) as caught:
            Records(lower=spoiled(np.nan))
    assert_message_hides(caught.value)
    np.testing.assert_allclose(answer, [[SENTINEL * 29 / 30]], rtol=1e-6)


def test_a_nan_gradient_does_not_break_a_run():
    """One record's gradient is NaN from the start, another's overflows on the way."""
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: 0.5 * (x + y - 1) ** 2,
        lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2 + 0 * jnp.sqrt(record) + 0 * jnp.exp(record * y),
    )
    points = np.full(200, 0.5)
    points[:2] = -1.0, 1e30
    with jax.debug_nans(True):
        solution = dpb.solve(
            problem,
            Records(lower=points),
            dpb.Budget(epsilon=50.0, delta=1e-4),
            method=dpb.DPBilevel(inner=dpb.DPLocGD(strong_convexity=1.0, steps=5), steps=2, step_size=0.3),
            start=(0.0, 0.0),
            progress=False,
        )
    assert np.isfinite(solution.x)
    assert abs(float(solution.y) - 0.5) < 0.2


def test_tracing_needs_no_records():
    """A program is checked on shapes, before anything is charged."""
    release = release_of(lambda point, record: record["missing"])
    with pytest.raises(KeyError):
        check_traceable(program_of(release), RecordShapes(lower={"a": np.zeros(4)}), np.zeros(1, np.float32))


def test_an_error_in_a_vector_tells_nothing(records):
    def fails(point, record):
        raise RuntimeError(f"cannot use {record}")

    with pytest.raises(RuntimeError) as caught:
        executed(records, release_of(fails))
    assert_message_hides(caught.value)


def test_changing_the_callers_array_does_not_change_the_records():
    values = np.zeros(64, np.float32)  # aligned float32: what JAX would share without a copy
    held, release = Records(lower=values), release_of(count=64)
    values[:] = 1.0
    assert executed(held, release)[0, 0] == 0.0
