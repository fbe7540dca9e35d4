"""What tracing finds out about a loss: side effects, closed-over arrays, and whether grad_x reads the record."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from dpbilevel.errors import InvalidProblem
from dpbilevel.foundation.tracing import closed_over_arrays, gradient_reads_record, trace_loss


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


X, Y = f32(4), f32(3)
RECORD = {"features": f32(3), "source": jax.ShapeDtypeStruct((), "int32")}  # source: which group the record is from


def fit(y, record):
    """A term that reads the record and not x."""
    return (record["features"] @ y) ** 2


# ------------------------------------------------------------------------------------------ gradient_reads_record


@jax.custom_jvp
def jvp_that_ignores(x, r):
    return x * r


jvp_that_ignores.defjvps(lambda tangent, answer, x, r: tangent, None)


@jax.custom_jvp
def jvp_that_reads(x, r):
    return x + r


jvp_that_reads.defjvps(lambda tangent, answer, x, r: tangent * r, None)


@jax.custom_vjp
def vjp_that_ignores(x, r):
    return x * r


vjp_that_ignores.defvjp(lambda x, r: (x * r, (x, r)), lambda kept, slope: (slope, slope * kept[0]))


@jax.custom_vjp
def vjp_that_reads(x, r):
    return x + r


vjp_that_reads.defvjp(lambda x, r: (x + r, r), lambda r, slope: (slope * r, slope))


@dataclass
class Verdict:
    loss: Any
    reads: bool  # what the tracer says
    cautious: bool = False  # the tracer says True, although the gradient is the same for every record


def first(record):
    return record["features"][0]


VERDICTS = {
    # x only in a regulariser, beside a term that reads the record
    "regulariser": Verdict(lambda x, y, r: fit(y, r) + jnp.sum(x) * (y @ y), False),
    "regulariser in log-coordinates": Verdict(lambda x, y, r: fit(y, r) + jnp.exp(x[0]) * (y @ y), False),
    "regulariser per coordinate": Verdict(lambda x, y, r: fit(y, r) + jnp.sum(x[:3] * y**2), False),
    "sum that reaches the record linearly": Verdict(lambda x, y, r: jnp.sum(x) + first(r), False),
    "no x at all": Verdict(lambda x, y, r: fit(y, r), False),
    "no record at all": Verdict(lambda x, y, r: jnp.sum(x) * (y @ y), False),
    # x multiplies, bends or selects by the record
    "weight": Verdict(lambda x, y, r: x[0] * fit(y, r), True),
    "square of a sum": Verdict(lambda x, y, r: (x[0] + first(r)) ** 2, True),
    "maximum": Verdict(lambda x, y, r: jnp.maximum(x[0], first(r)), True),
    "sign of the record": Verdict(lambda x, y, r: x[0] * jnp.sign(first(r)), True),
    "one of two leaves": Verdict(lambda x, y, r: x[0] * r["source"] + first(r), True),
    "weight by source": Verdict(lambda x, y, r: x[r["source"]] * (y @ y), True),
    "softmax weight by source": Verdict(lambda x, y, r: jax.nn.softmax(x)[r["source"]] * (y @ y), True),
    # gradients that are stopped
    "x behind stop_gradient": Verdict(lambda x, y, r: jax.lax.stop_gradient(x[0]) * fit(y, r) + x[0] * (y @ y), False),
    "record behind stop_gradient": Verdict(lambda x, y, r: x[0] * jax.lax.stop_gradient(fit(y, r)), True),
    "x behind floor": Verdict(lambda x, y, r: jnp.floor(x[0]) * fit(y, r), False),
    # control flow and transformations
    "jit, regulariser": Verdict(lambda x, y, r: jax.jit(lambda x: fit(y, r) + x[0] * (y @ y))(x), False),
    "jit, weight": Verdict(lambda x, y, r: jax.jit(lambda x, r: x[0] * fit(y, r))(x, r), True),
    "checkpoint, regulariser": Verdict(lambda x, y, r: jax.checkpoint(lambda x: fit(y, r) + x[0])(x), False),
    "scan, x and record apart": Verdict(
        lambda x, y, r: sum(
            jax.lax.scan(lambda c, t: ((c[0] + t * first(r), c[1] + x[0] * t), None), (0.0 * y[0], 0.0 * y[0]), y)[0]
        ),
        False,
    ),
    "scan, x and record added": Verdict(
        lambda x, y, r: jax.lax.scan(lambda c, t: (c + t * first(r) + x[0] * t, None), 0.0 * y[0], y)[0], False
    ),
    "scan, x times record": Verdict(
        lambda x, y, r: jax.lax.scan(lambda c, t: (c + t * x[0] * first(r), None), 0.0 * y[0], y)[0], True
    ),
    "fori_loop, x alone": Verdict(
        lambda x, y, r: fit(y, r) + jax.lax.fori_loop(0, 3, lambda i, c: c * x[0], 0 * y[0] + 1), False
    ),
    "cond on y": Verdict(lambda x, y, r: fit(y, r) + jax.lax.cond(y[0] > 0, lambda: x[0], lambda: 2 * x[0]), False),
    "cond on y, record in a branch": Verdict(
        lambda x, y, r: jax.lax.cond(y[0] > 0, lambda: x[0] + first(r), lambda: 2 * x[0]), False
    ),
    "cond on the record": Verdict(lambda x, y, r: jax.lax.cond(first(r) > 0, lambda: x[0], lambda: 2 * x[0]), True),
    "where on the record": Verdict(lambda x, y, r: jnp.where(first(r) > 0, x[0], 0.0), True),
    "where on x, record as value": Verdict(lambda x, y, r: jnp.where(x[0] > 0, x[0], first(r)), False),
    "custom_jvp that ignores the record": Verdict(lambda x, y, r: jvp_that_ignores(x[0], first(r)), False),
    "custom_jvp that reads the record": Verdict(lambda x, y, r: jvp_that_reads(x[0], first(r)), True),
    "custom_vjp that ignores the record": Verdict(lambda x, y, r: vjp_that_ignores(x[0], first(r)), False),
    "custom_vjp that reads the record": Verdict(lambda x, y, r: vjp_that_reads(x[0], first(r)), True),
    # public facts about a record
    "shape of the record": Verdict(lambda x, y, r: x[0] * r["features"].shape[0] + first(r), False),
    "ones_like of the record": Verdict(lambda x, y, r: x[0] * jnp.sum(jnp.ones_like(r["features"])), False),
    # the record cancels, and the tracer does not do algebra: cautious, so privacy costs noise that it need not
    "zero times the record": Verdict(lambda x, y, r: x[0] * (0 * first(r)), True, cautious=True),
    "record minus itself": Verdict(lambda x, y, r: x[0] * (first(r) - first(r)), True, cautious=True),
    "cond with equal branches": Verdict(
        lambda x, y, r: jax.lax.cond(first(r) > 0, lambda: x[0], lambda: x[0]), True, cautious=True
    ),
}


@pytest.mark.parametrize("case", VERDICTS.values(), ids=VERDICTS.keys())
def test_verdict_on_whether_the_gradient_reads_the_record(case):
    assert gradient_reads_record(case.loss, X, Y, RECORD) is case.reads


@pytest.mark.parametrize("case", VERDICTS.values(), ids=VERDICTS.keys())
def test_verdict_agrees_with_gradients_at_different_records(case):
    """Free must mean the same gradient at any record; True may be cautious, and the table says where."""
    x, y = np.float32([0.3, 1.2, -0.4, 0.8]), np.float32([0.5, -0.2, 0.9])
    values = [(1.0, 0), (-2.0, 3), (0.1, 1), (0.7, 2)]
    records = [{"features": np.float32([a, a * a, 1 - a]), "source": np.int32(s)} for a, s in values]
    with jax.disable_jit():  # primitives only: nothing to compile for each of the losses
        slopes = [np.asarray(jax.grad(case.loss)(x, y, record)) for record in records]
    differ = any(not np.array_equal(slope, slopes[0]) for slope in slopes)
    assert differ is (case.reads and not case.cautious)


def test_verdict_where_x_y_and_record_are_trees():
    x = {"weights": f32(4), "penalty": f32()}
    y = (f32(3), {"bias": f32()})

    def penalised(x, y, record):
        return (record["features"] @ y[0] + y[1]["bias"]) ** 2 + x["penalty"] * (y[0] @ y[0])

    def weighted(x, y, record):
        return x["weights"][record["source"]] * penalised(x, y, record)

    assert gradient_reads_record(penalised, x, y, RECORD) is False
    assert gradient_reads_record(weighted, x, y, RECORD) is True


# ---------------------------------------------------------------------------------------------- closed_over_arrays

PRIVATE = np.float32([7.0, 8.0, 9.0])
PRIVATE_ON_DEVICE = jnp.asarray(PRIVATE)


@jax.jit
def compiled_elsewhere(y):
    return y @ PRIVATE_ON_DEVICE


CLOSURES = {
    "NumPy": lambda x, y, r: y @ PRIVATE,
    "JAX": lambda x, y, r: y @ PRIVATE_ON_DEVICE,
    "default argument": lambda x, y, r, data=PRIVATE: y @ data,
    "jit": lambda x, y, r: jax.jit(lambda y: y @ PRIVATE)(y),
    "jit, twice": lambda x, y, r: jax.jit(lambda y: jax.jit(lambda y: y @ PRIVATE_ON_DEVICE)(y))(y),
    "jit, made elsewhere": lambda x, y, r: compiled_elsewhere(y),
    "scan body": lambda x, y, r: jax.lax.scan(lambda c, t: (c + t * (y @ PRIVATE), None), 0 * y[0], y)[0],
    "scan inputs": lambda x, y, r: jax.lax.scan(lambda c, t: (c + t * y[0], None), 0 * y[0], PRIVATE)[0],
    "cond branch": lambda x, y, r: jax.lax.cond(y[0] > 0, lambda: y @ PRIVATE_ON_DEVICE, lambda: 0 * y[0]),
    "loop body": lambda x, y, r: jax.lax.fori_loop(0, 2, lambda i, c: c + y @ PRIVATE, 0 * y[0]),
    "vmap": lambda x, y, r: jnp.sum(jax.vmap(lambda row: row * y[0])(PRIVATE)),
    "checkpoint": lambda x, y, r: jax.checkpoint(lambda y: y @ PRIVATE)(y),
    "indices": lambda x, y, r: jnp.sum(y[np.array([0, 2])]),
    "independent of all arguments": lambda x, y, r: jnp.sum(jnp.asarray(PRIVATE)),
    "a list in the loss": lambda x, y, r: y @ jnp.array([1.0, 2.0, 3.0]),
}
CLEAN = {
    "Python scalar": lambda x, y, r: 3.0 * (y @ r["features"]),
    "NumPy scalar": lambda x, y, r: np.float32(2.0) * (y @ r["features"]) + np.array(1.0),
    "JAX scalar": lambda x, y, r: jnp.float32(2.0) * (y @ r["features"]),
    "array of one number": lambda x, y, r: jnp.sum(np.float32([2.0]) * y),
    "arange": lambda x, y, r: jnp.sum(y * jnp.arange(3)),
    "eye": lambda x, y, r: y @ jnp.eye(3) @ y,
    "one_hot": lambda x, y, r: jnp.sum(x * jax.nn.one_hot(r["source"], 4)),
    "zeros and ones": lambda x, y, r: y @ (jnp.ones(3) + jnp.zeros(3)),
    "softmax cross-entropy": lambda x, y, r: -jax.nn.log_softmax(y)[r["source"]],
    "fixed key": lambda x, y, r: jax.random.normal(jax.random.key(0)) * y[0],
}


def closes_over(loss, public=()):
    return closed_over_arrays(trace_loss("lower_loss", loss, X, Y, RECORD), public)


@pytest.mark.parametrize("loss", CLOSURES.values(), ids=CLOSURES.keys())
def test_closed_over_arrays_are_found(loss):
    assert closes_over(loss) is True


@pytest.mark.parametrize("loss", CLEAN.values(), ids=CLEAN.keys())
def test_scalars_and_arrays_made_from_nothing_are_not_flagged(loss):
    assert closes_over(loss) is False


def test_arrays_declared_public_are_not_flagged():
    matrix = np.arange(6.0).reshape(3, 2)

    def grouped(x, y, r):
        return jnp.sum(x[:2] * ((y @ matrix) ** 2)) + y @ PRIVATE

    assert closes_over(grouped, [matrix, PRIVATE]) is False
    assert closes_over(grouped, [matrix.tolist(), PRIVATE_ON_DEVICE]) is False
    assert closes_over(grouped, [matrix]) is True
    assert closes_over(grouped, [matrix.T, PRIVATE]) is True, "same numbers in another shape"
    assert closes_over(grouped, [matrix, PRIVATE + 1]) is True, "same shape with other numbers"
    for name, loss in CLOSURES.items():
        if name not in ("indices", "a list in the loss"):
            assert closes_over(loss, [PRIVATE]) is False, name


def test_public_arrays_are_recognised_in_either_precision():
    fractions = np.array([0.1, 0.2, 0.3])
    for x64 in (False, True):
        with jax.enable_x64(x64):
            assert closes_over(lambda x, y, r: y @ fractions, [fractions]) is False


def test_an_array_that_is_only_near_a_public_one_is_flagged():
    scaled = np.float32([7e-9, 8e-9, 9e-9])
    assert closes_over(lambda x, y, r: y @ scaled, [np.zeros(3)]) is True


def test_a_public_array_may_hold_nan():
    gaps = np.float32([1.0, np.nan, 3.0])
    assert closes_over(lambda x, y, r: jnp.nansum(y * gaps), [gaps]) is False


def test_closed_over_random_keys_are_flagged_not_a_crash():
    keys = jax.random.split(jax.random.key(0), 3)
    assert closes_over(lambda x, y, r: jnp.sum(jax.vmap(jax.random.normal)(keys)) * y[0]) is True


# ----------------------------------------------------------------------------------------------------- trace_loss


def read(value):
    return np.float32(np.sum(value))


def by_print(x, y, r):
    jax.debug.print("{}", r["features"])
    return y @ r["features"]


def by_debug_callback(x, y, r):
    jax.debug.callback(lambda value: None, r["features"])
    return y @ r["features"]


def by_pure_callback(x, y, r):
    return jax.pure_callback(read, f32(), r["features"], vmap_method="sequential") * y[0]


def by_pure_callback_unused(x, y, r):
    jax.pure_callback(read, f32(), r["features"], vmap_method="sequential")
    return y @ r["features"]


def by_io_callback(x, y, r):
    return io_callback(read, f32(), r["features"]) * y[0]


def by_ordered_io_callback(x, y, r):
    io_callback(lambda value: None, None, r["features"], ordered=True)
    return y @ r["features"]


SIDE_EFFECTS = {
    loss.__name__: loss
    for loss in (
        by_print,
        by_debug_callback,
        by_pure_callback,
        by_pure_callback_unused,
        by_io_callback,
        by_ordered_io_callback,
    )
}


def in_custom_jvp(loss):
    wrapped = jax.custom_jvp(loss)
    wrapped.defjvps(None, None, None)
    return wrapped


NESTINGS = {
    "bare": lambda loss: loss,
    "jit": jax.jit,
    "cond": lambda loss: lambda x, y, r: jax.lax.cond(y[0] > 0, lambda: loss(x, y, r), lambda: 0 * y[0]),
    "scan": lambda loss: lambda x, y, r: jax.lax.scan(lambda c, t: (c + loss(x, y, r), None), 0 * y[0], y)[0],
    "loop": lambda loss: lambda x, y, r: jax.lax.fori_loop(0, 2, lambda i, c: c + loss(x, y, r), 0 * y[0]),
    "checkpoint": jax.checkpoint,
    "custom_jvp": in_custom_jvp,
    "jit in scan": lambda loss: NESTINGS["scan"](jax.jit(loss)),
}


@pytest.mark.parametrize("loss", SIDE_EFFECTS.values(), ids=SIDE_EFFECTS.keys())
@pytest.mark.parametrize("nest", NESTINGS.values(), ids=NESTINGS.keys())
def test_losses_with_side_effects_are_refused(loss, nest):
    with pytest.raises(InvalidProblem, match=r"^lower_loss: must have no side effects.*remove jax\.debug\.print"):
        trace_loss("lower_loss", nest(loss), X, Y, RECORD)


NOT_SCALAR = {
    "vector": (lambda x, y, r: y * r["features"], "float32[3]"),
    "array of one number": (lambda x, y, r: y[:1], "float32[1]"),
    "integer": (lambda x, y, r: r["source"], "int32[]"),
    "Python integer": (lambda x, y, r: 0, "int32[]"),
    "boolean": (lambda x, y, r: y[0] > 0, "bool[]"),
    "complex": (lambda x, y, r: 1j * y[0], "complex64[]"),
    "nothing": (lambda x, y, r: None, "nothing"),
    "two scalars": (lambda x, y, r: (y[0], y[1]), "float32[], float32[]"),
    "empty tuple": (lambda x, y, r: (), "nothing"),
}


@pytest.mark.parametrize(("loss", "described"), NOT_SCALAR.values(), ids=NOT_SCALAR.keys())
def test_losses_that_do_not_return_one_real_number_are_refused(loss, described):
    with pytest.raises(InvalidProblem) as caught:
        trace_loss("upper_loss", loss, X, Y, RECORD)
    message = str(caught.value)
    assert message.startswith("upper_loss: must return one real number for one record, not ")
    assert f"not {described};" in message


def test_a_python_number_is_a_legal_value():
    assert not any(traced.effects for traced in trace_loss("upper_term", lambda x, y: 1.0, X, Y))


def test_tracing_shows_the_loss_no_value():
    shown = []

    def curious(x, y, r):
        shown.append(jax.tree.leaves((x, y, r)))
        return y @ r["features"]

    trace_loss("lower_loss", curious, X, Y, RECORD)
    gradient_reads_record(curious, X, Y, RECORD)
    assert shown
    assert all(isinstance(leaf, jax.core.Tracer) for leaves in shown for leaf in leaves)


def test_the_users_own_exception_comes_through():
    class Mistake(Exception):
        pass

    def broken(x, y, r):
        raise Mistake("column 3 has no name")

    with pytest.raises(Mistake, match="column 3"):
        trace_loss("lower_loss", broken, X, Y, RECORD)
