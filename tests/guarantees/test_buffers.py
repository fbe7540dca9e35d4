"""The buffer that is measured is the buffer that is summed, in what the compiler has made of a program."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import buffer_cases
from support.broken_sums import rows_without_norms
from support.buffer_cases import OVERFLOW, SHAPES, VECTORS, Case, behind_a_barrier, broken, direct, in_one_step
from support.compilation_cache import with_names
from support.every_method import BUDGET, METHODS, PROBLEM, START, data
from support.optimised_hlo import UNOPTIMISED_CODE, optimised

import dpbilevel as dpb
from dpbilevel import records as records_module
from dpbilevel.execution import segments
from dpbilevel.planning import checked_start, prepare
from dpbilevel.privacy import clipping, grid, memory, products
from dpbilevel.privacy.buffer import computed_once
from dpbilevel.records import isolated_jax_config

CASES = [
    *(Case(vector, "one block", "full batch") for vector in VECTORS),
    *(Case("elementwise", shape, "full batch") for shape in SHAPES if shape != "one block"),
    *(Case(vector, "one block", kind) for vector in ("gradient", "joint") for kind in ("Poisson", "exact")),
    *(Case("elementwise", shape, "exact") for shape in ("one record", "many blocks")),
    *(Case("gradient", "one block", kind, double=True) for kind in ("full batch", "exact")),
    *(Case("linear", shape, "full batch") for shape in SHAPES if shape != "one block"),
    *(Case(vector, "one block", "Poisson") for vector in ("linear_joint", "computed_row")),
    Case("linear_joint", "many blocks", "full batch"),
    Case("linear_joint", "one block", "exact"),
    Case("linear_joint", "one block", "full batch", double=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_buffer_that_is_measured_is_the_buffer_that_is_summed(case):
    """tests/support/buffer_cases.py has all combinations, for accelerators too."""
    assert case.is_measured_once()


@pytest.mark.parametrize("mutant", [direct, behind_a_barrier, in_one_step])
@pytest.mark.parametrize("vector", ["elementwise", "gradient", "linear", "computed_row"])
def test_vectors_that_are_computed_twice_are_noticed(monkeypatch, vector, mutant):
    broken(monkeypatch, mutant)
    assert not Case(vector, "one block", "full batch").is_measured_once()


@pytest.mark.parametrize("mutant", [direct, behind_a_barrier, in_one_step])
def test_integers_that_are_computed_twice_are_noticed(monkeypatch, mutant):
    broken(monkeypatch, mutant, [grid])
    case = Case("joint", "one block", "exact")
    module = case.module()
    vectors, integers = (module.is_measured_once(limit) for limit in case.limits())
    assert vectors
    assert not integers


@pytest.mark.parametrize(
    "case", [Case("joint", "one block", "Poisson"), Case("linear_joint", "one block", "exact")], ids=str
)
def test_what_is_read_is_what_users_compile(case):
    """How machine code is optimised changes nothing in what is read here."""
    with isolated_jax_config(), with_names():
        users, ours = (case.lowered().compile(compiler_options=given).as_text() for given in (None, UNOPTIMISED_CODE))
    assert users == ours


# ---- outer products


@pytest.mark.parametrize("vector", ["linear", "linear_joint", "computed_row"])
@pytest.mark.parametrize("kind", ["full batch", "Poisson"])
def test_products_sum_in_full_precision(vector, kind):
    assert Case(vector, "one block", kind).module().precisions_of_sums(OVERFLOW) == {"highest"}


def test_a_product_in_less_precision_is_noticed(monkeypatch):
    monkeypatch.setattr(products, "PRECISION", jax.lax.Precision.DEFAULT)
    assert Case("linear", "one block", "full batch").module().precisions_of_sums(OVERFLOW) != {"highest"}


def test_contributions_that_are_no_outer_products_are_no_matrix_products():
    assert Case("gradient", "one block", "full batch").module().precisions_of_sums(OVERFLOW) == set()


@pytest.mark.parametrize(
    "mutant", [lambda rows, usable: jnp.sin(rows), lambda rows, usable: jnp.where(usable[:, None], rows * 1.5, 0)]
)
def test_other_rows_than_those_that_are_measured_are_noticed(monkeypatch, mutant):
    monkeypatch.setattr(products, "_zeroed", mutant)
    assert not Case("linear", "one block", "full batch").is_measured_once()


def test_rows_that_nobody_measures_are_noticed(monkeypatch):
    rows_without_norms(monkeypatch)
    assert not Case("linear", "one block", "full batch").is_measured_once()


def test_what_a_record_adds_is_in_the_program_once(monkeypatch):
    """The same without the reader's logic: a sine for each record, and no other one."""
    case = Case("elementwise", "one block", "full batch")
    assert case.module().opcodes().count("sine") == 1
    broken(monkeypatch, direct)
    assert case.module().opcodes().count("sine") > 1


def test_many_points_at_once_are_measured_as_one_is():
    """Audits run many programs side by side."""
    release = Case("elementwise", "one block", "Poisson").release()
    number, dimension = SHAPES["one block"]
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    rows = {"row": shape((number, dimension)), "target": shape((number,))}

    @jax.jit
    def program(rows, points, keys):
        present = jnp.ones(number, bool)
        return jax.vmap(lambda point, key: release.answer({"lower": (rows, present)}, point, key))(points, keys)

    with isolated_jax_config(), with_names():
        keys = jax.ShapeDtypeStruct((3, 2, 2), jnp.uint32)
        module = optimised(program.lower(rows, shape((3, dimension)), keys), records="rows")
    assert module.is_measured_once(OVERFLOW)


# ---- programs of methods, as records execute them


def executed(method, noise="float", problem=PROBLEM, start=START, arrays=None):
    """The compiled program of a method's first part, on shapes."""
    records = dpb.Records(**(arrays or data()))
    plan = prepare(problem, records.sizes, BUDGET, METHODS[method], start, "auto", noise)
    state = plan.program.start(*checked_start(problem, start))
    arrays = records_module._shapes(records.sizes)
    keys, rounds = plan.program.randomness_shapes(), np.int32(1)
    # The function that records compile, compiled again: a mutation must not find the program of the true code.
    execute = jax.jit(functools.partial(records_module._execute.__wrapped__), static_argnums=1)
    with isolated_jax_config(), with_names():
        lowered = execute.lower(plan.program, False, arrays, state, keys, rounds)
        return optimised(lowered, records="arrays")


@pytest.mark.parametrize(
    "method",
    ["Tracking", "DPBilevel", pytest.param("Tracking, Poisson", marks=pytest.mark.heavy)],
)
def test_programs_of_methods_sum_what_they_measure(method):
    assert executed(method).is_measured_once(OVERFLOW)


def test_programs_with_exact_noise_sum_what_they_measure():
    assert executed("Tracking", noise="exact").is_measured_once(OVERFLOW)


def executed_linearly(method="Tracking"):
    """The program of a method on a linear model with weights by source."""
    problem = dpb.applications.source_weights("logistic", columns=5, sources=3)
    rows, whole = np.zeros((60, 5), np.float32), np.zeros(60, np.int32)
    return executed(method, problem=problem, start=None, arrays={"upper": (rows, whole), "lower": (rows, whole, whole)})


def test_programs_of_linear_models_sum_what_they_measure():
    module = executed_linearly()
    assert module.is_measured_once(OVERFLOW)
    assert module.precisions_of_sums(OVERFLOW) == {"highest"}


def test_a_linear_model_that_sums_other_rows_than_it_measures_is_noticed(monkeypatch):
    true = memory.Memory._rows
    monkeypatch.setattr(memory.Memory, "_rows", lambda *given: (true(*given)[0] * 1.5, true(*given)[1]))
    assert not executed_linearly("FixedDefault").is_measured_once(OVERFLOW)


def test_a_method_that_computes_vectors_twice_is_noticed(monkeypatch):
    broken(monkeypatch, direct)
    assert not executed("DPBilevel").is_measured_once(OVERFLOW)


def of_segments(method, problem=PROBLEM, start=START, arrays=None):
    """The compiled sums of a segment of records on disk, for all releases of a method and their roles."""
    records = dpb.Records(**(arrays or data()))
    plan = prepare(problem, records.sizes, BUDGET, METHODS[method], start, "auto", "float")
    state = plan.program.start(*checked_start(problem, start))
    held = records_module._shapes(records.sizes)
    compiled = jax.jit(functools.partial(segments._sum.__wrapped__), static_argnums=(1, 2))
    with isolated_jax_config(), with_names():
        for stage in plan.program.stages:
            at = (state, segments._begin(stage, False, state), np.int32(0))
            for role in () if stage.release is None else stage.release.contributions:
                yield optimised(compiled.lower(stage, role, False, *held[role], at), records="memory")


def test_sums_of_segments_sum_what_they_measure(monkeypatch):
    for method in ("Tracking", "DPBilevel"):
        found = list(of_segments(method))
        assert len(found) >= 2
        assert all(module.is_measured_once(OVERFLOW) for module in found)
    rows, whole = np.zeros((60, 5), np.float32), np.zeros(60, np.int32)
    problem = dpb.applications.source_weights("logistic", columns=5, sources=3)
    for module in of_segments("Tracking", problem, None, {"upper": (rows, whole), "lower": (rows, whole, whole)}):
        assert module.is_measured_once(OVERFLOW)
        assert module.precisions_of_sums(OVERFLOW) <= {"highest"}
    broken(monkeypatch, direct)
    assert not all(module.is_measured_once(OVERFLOW) for module in of_segments("DPBilevel"))


# ---- the buffer itself


@pytest.mark.parametrize("number", [1, 2, 7, 8])
def test_rows_are_those_of_the_function_in_their_order(number):
    def rows(first, size):
        part = first + jnp.arange(size)
        return [part[:, None, None] * jnp.ones((2, 2)), jnp.zeros((size, 0)), -part]

    whole = np.asarray(jax.jit(lambda: computed_once(rows, (number, 5), jnp.float32))())
    np.testing.assert_array_equal(whole, np.arange(number)[:, None] * np.array([1.0, 1, 1, 1, -1]))


def test_no_record_of_a_wide_vector_is_computed_twice(monkeypatch):
    """A block of one record would be computed in both steps: blocks have two at least, where there are two."""
    seen = []
    monkeypatch.setattr(memory, "computed_once", lambda rows, shape, dtype: seen.append(shape) or jnp.zeros(shape))
    with isolated_jax_config():
        rows = jax.ShapeDtypeStruct((3, memory._ELEMENTS), jnp.float32)
        jax.eval_shape(lambda rows: clipping.clipped_sum(lambda row: row, rows, jnp.ones(3, bool), 1.0), rows)
    assert seen == [(2, memory._ELEMENTS)]


def test_all_combinations_are_on_the_list_of_the_script():
    assert set(CASES) <= set(buffer_cases.CASES)
