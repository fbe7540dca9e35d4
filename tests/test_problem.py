"""The problem: what it refuses, what inspection finds, and why a gradient judged free is safe."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpbilevel as dpb
import dpbilevel.problem as problem_module
from dpbilevel.errors import InvalidArgument, InvalidProblem
from dpbilevel.execution.program import Program
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.problem import Inspection, free_gradient, inspect


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def squared(x, y, record):
    return 0.5 * (y - record) ** 2


def weighted(x, y, record):
    return jnp.exp(x) * squared(x, y, record)


def make(**changes):
    """A small problem; changes replace its parts."""
    return dpb.BilevelProblem(**{"upper_loss": squared, "lower_loss": squared, **changes})


def inspected(problem, record=None):
    record = f32() if record is None else record
    return inspect(problem, f32(), f32(), {"upper": record, "lower": record})


# ------------------------------------------------------------------------------------------------------ constructor

BAD = {
    "lower_loss is a number": (lambda: make(lower_loss=1.0), InvalidProblem, "lower_loss: must be a function"),
    "lower_loss is None": (lambda: make(lower_loss=None), InvalidProblem, "lower_loss: must be a function"),
    "upper_loss is a string": (
        lambda: make(upper_loss="mse"),
        InvalidProblem,
        "upper_loss: must be a function, or None",
    ),
    "upper_term is a number": (lambda: make(upper_term=0.0), InvalidProblem, "upper_term: must be a function, or None"),
    "lower_term is a number": (lambda: make(lower_term=0.0), InvalidProblem, "lower_term: must be a function, or None"),
    "nothing above": (
        lambda: make(upper_loss=None),
        InvalidProblem,
        "upper_loss, upper_term: give at least one of them",
    ),
    "domain is a class": (lambda: make(domain=dpb.Simplex), InvalidArgument, "domain=<class"),
    "domain is None": (lambda: make(domain=None), InvalidArgument, "domain=None: must be Unconstrained()"),
    "lower_domain is a number": (
        lambda: make(lower_domain=1.0),
        InvalidArgument,
        "lower_domain=1.0: must be Unconstrained()",
    ),
    "domain holds a number": (lambda: make(domain={"a": 1.0}), InvalidArgument, "domain={'a': 1.0}: must be"),
    "constants is a dict": (
        lambda: make(constants={"mu": 1.0}),
        InvalidProblem,
        "constants: must be dpb.Constants(...)",
    ),
    "constants is a class": (
        lambda: make(constants=dpb.Constants),
        InvalidProblem,
        "constants: must be dpb.Constants(...)",
    ),
}


@pytest.mark.parametrize(("build", "error", "message"), BAD.values(), ids=BAD.keys())
def test_constructor_refuses(build, error, message):
    with pytest.raises(error) as caught:
        build()
    assert str(caught.value).startswith(message)


def test_arguments_have_names_and_none_is_made_up():
    with pytest.raises(TypeError):
        dpb.BilevelProblem(squared, squared)
    with pytest.raises(TypeError, match="lower_loss"):
        dpb.BilevelProblem(upper_loss=squared)
    with pytest.raises(TypeError, match="upper"):
        dpb.BilevelProblem(lower_loss=squared, upper=squared)


@pytest.mark.parametrize("public", [None, 3.0, "columns", np.ones(3)], ids=["None", "number", "string", "bare array"])
def test_public_must_be_a_sequence_of_arrays(public):
    with pytest.raises(InvalidArgument, match="public"):
        make(public=public)


def test_a_problem_cannot_be_changed():
    problem = make()
    with pytest.raises(AttributeError):
        problem.lower_loss = weighted


def test_a_start_is_kept_as_it_is_given():
    """It is looked at when a run needs it: an explicit one may take its place."""
    assert make().start is None
    start = ({"a": np.zeros(2)}, np.ones(3))
    assert make(start=start).start is start


def test_terms_default_to_zero_and_losses_to_none():
    problem = dpb.BilevelProblem(lower_loss=squared, upper_term=lambda x, y: x + y)
    assert problem.loss("upper") is None
    assert problem.loss("lower") is squared
    assert float(problem.term("lower")(1.0, 2.0)) == 0.0
    assert float(problem.term("upper")(1.0, 2.0)) == 3.0
    assert problem.domain == problem.lower_domain == dpb.Unconstrained()


# ------------------------------------------------------------------------------------------------------- inspection

READS = {
    "neither": (make(), set()),
    "lower": (make(lower_loss=weighted), {"lower"}),
    "upper": (make(upper_loss=weighted), {"upper"}),
    "both": (make(upper_loss=weighted, lower_loss=weighted), {"upper", "lower"}),
    "terms are data-free": (make(lower_term=lambda x, y: x * y, upper_term=lambda x, y: x + y), set()),
    "no upper loss": (make(upper_loss=None, upper_term=lambda x, y: x, lower_loss=weighted), {"lower"}),
}


@pytest.mark.parametrize(("problem", "reads"), READS.values(), ids=READS.keys())
def test_inspection_finds_the_levels_whose_gradient_reads_records(problem, reads):
    assert inspected(problem) == Inspection(frozenset(reads), ())


DATA = np.float32([1.0, 2.0, 3.0])


def closing(*arguments):
    return arguments[1] * jnp.sum(jnp.asarray(DATA))


@pytest.mark.parametrize("part", ["upper_loss", "lower_loss", "upper_term", "lower_term"])
def test_a_closed_over_array_becomes_a_caveat_that_names_where(part):
    (caveat,) = inspected(make(**{part: closing})).caveats
    assert caveat.startswith(f"{part} closes over an array that was not declared public")
    assert "public=..." in caveat
    assert inspected(make(**{part: closing}, public=[DATA])).caveats == ()


def test_every_closure_has_a_caveat_of_its_own():
    caveats = inspected(make(upper_loss=closing, lower_term=closing)).caveats
    assert [caveat.split()[0] for caveat in caveats] == ["upper_loss", "lower_term"]


def test_scalars_close_over_freely():
    rate, zero = 0.1, np.float32(0.0)
    assert inspected(make(lower_loss=lambda x, y, r: rate * (y - r) ** 2 + zero)).caveats == ()


def printing(*arguments):
    jax.debug.print("{}", arguments[-1])
    return arguments[1] ** 2


@pytest.mark.parametrize("part", ["upper_loss", "lower_loss", "upper_term", "lower_term"])
@pytest.mark.parametrize(
    ("function", "rule"),
    [
        (printing, "must have no side effects"),
        (lambda *arguments: arguments[1] * jnp.ones(2), "must return one real number"),
        (lambda *arguments: None, "must return one real number"),
        (lambda *arguments: jnp.int32(0), "must return one real number"),
        (lambda *arguments: 1j * arguments[1], "must return one real number"),
    ],
    ids=["prints", "vector", "None", "integer", "complex"],
)
def test_inspection_refuses_bad_losses_and_names_them(part, function, rule):
    with pytest.raises(InvalidProblem, match=f"^{part}: {rule}"):
        inspected(make(**{part: function}))


def test_the_message_for_a_term_does_not_speak_of_records():
    with pytest.raises(InvalidProblem) as caught:
        inspected(make(lower_term=lambda x, y: y * jnp.ones(2)))
    assert "single record" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------- free gradients


def test_free_gradient_of_a_level_that_reads_records_is_its_terms_alone():
    problem = make(lower_loss=weighted, lower_term=lambda x, y: x**2 * y)
    slope = free_gradient(problem, "lower", True, f32())
    assert float(slope(3.0, 2.0)) == 12.0


def test_free_gradient_of_a_level_without_loss_is_its_terms():
    problem = dpb.BilevelProblem(lower_loss=squared, upper_term=lambda x, y: x**2 * y)
    assert float(free_gradient(problem, "upper", False, None)(3.0, 2.0)) == 12.0


def test_free_gradient_includes_a_loss_that_reads_no_record():
    problem = make(lower_loss=lambda x, y, r: (y - r["a"] @ r["a"]) ** 2 + x * y**2, lower_term=lambda x, y: 5.0 * x)
    record = {"a": f32(3), "id": jax.ShapeDtypeStruct((), "int32")}
    assert float(free_gradient(problem, "lower", False, record)(3.0, 2.0)) == 9.0


def test_free_gradient_is_evaluated_at_zeros():
    """Even where the verdict is wrong: what comes out is the gradient at a record of zeros."""
    seen = []

    def loss(x, y, record):
        seen.append(record)
        return x * (1.0 + record)

    slope = free_gradient(make(lower_loss=loss), "lower", False, f32())
    assert float(slope(3.0, 2.0)) == 1.0
    assert all(not isinstance(record, jax.core.Tracer) and float(record) == 0.0 for record in seen)
    assert len(jax.make_jaxpr(slope)(f32(), f32()).in_avals) == 2, "there is no argument through which data could enter"


SIZE = 20


def _one_outer_step(problem, records, y, z):
    """One x-step of the paper's method on real records, with the answers of both private solves injected."""
    method = dpb.DPBilevel(inner=dpb.DPLocGD(strong_convexity=1.0, steps=1), step_size=0.1, steps=1, penalty_weight=4.0)
    planned = dpb.plan(problem, records.sizes, dpb.Budget(1.0, 1e-3), method=method, start=(0.0, 0.0))
    outer = planned.program.stages[-1]
    program = Program(
        rounds=1,
        stages=[outer],
        start=planned.program.start,
        observe=planned.program.observe,
        finish=planned.program.finish,
    )
    state = program.start(jnp.float32(0.5), jnp.float32(0.0)) | {"y": jnp.float32(y), "z": jnp.float32(z)}
    _, history = records.execute(program, Receipt(program.releases), KeySchedule(0), state, 1)
    return planned, float(history["x"][0])


@pytest.fixture(scope="module")
def two_data_sets():
    return [dpb.Records(upper=np.full(SIZE, u), lower=np.full(SIZE, v)) for u, v in ((0.0, 1.0), (50.0, -30.0))]


def test_a_wrong_verdict_cannot_carry_records_into_x(monkeypatch, two_data_sets):
    """The tracer is made to lie about a loss that does depend on records: x learns nothing from them."""
    monkeypatch.setattr(problem_module, "gradient_reads_record", lambda *arguments: False)
    problem = make(upper_loss=weighted, lower_loss=weighted)
    steps = [_one_outer_step(problem, records, y=0.2, z=0.7) for records in two_data_sets]
    (planned, one), (_, other) = steps
    assert [release.name for release in planned.releases] == ["lower solve", "penalised solve"]
    assert planned.parameters["hypergradient"][1].startswith("free")
    assert one == other, "identical, to the bit"
    at_zero = np.exp(0.5) * 0.5 * (0.7**2 + 4.0 * (0.7**2 - 0.2**2))
    assert one == pytest.approx(0.5 - 0.1 * at_zero, rel=1e-5), "the gradient at records of zeros"


def test_with_the_true_verdict_the_same_step_reads_records_and_is_charged(two_data_sets):
    """The mutation of the test above: with the honest tracer the two data sets give different steps."""
    problem = make(upper_loss=weighted, lower_loss=weighted)
    steps = [_one_outer_step(problem, records, y=0.2, z=0.7) for records in two_data_sets]
    (planned, one), (_, other) = steps
    assert [release.name for release in planned.releases] == ["lower solve", "penalised solve", "hypergradient"]
    assert one != other


def test_a_scale_that_closes_over_data_is_a_caveat():
    """It multiplies released answers, so data in it would leave through them; a declared public array is fine."""
    weights = np.arange(3.0)
    shapes = jax.ShapeDtypeStruct((3,), "float32")
    record = {"upper": None, "lower": shapes}

    def caveats(**settings):
        problem = dpb.BilevelProblem(
            upper_term=lambda x, y: jnp.sum(x * y),
            lower_loss=lambda x, y, record: jnp.sum((y - record) ** 2),
            **settings,
        )
        return inspect(problem, shapes, shapes, record).caveats

    def scale(x):
        return 1.0 + jnp.sum(weights * x**2)

    (caveat,) = caveats(lower_scale=scale)
    assert caveat.startswith("lower_scale closes over an array")
    assert not caveats(lower_scale=scale, public=[weights])
    assert not caveats()
    with pytest.raises(dpb.InvalidProblem, match="lower_scale: must return one real number"):
        caveats(lower_scale=lambda x: x)
    with pytest.raises(dpb.InvalidProblem, match="lower_scale: must be a function"):
        caveats(lower_scale=2.0)
