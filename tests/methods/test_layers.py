"""Networks: gradients of a layer that multiplies a record's row are outer products, and sums stay what they were."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.broken_sums import rows_without_norms
from support.compilation_cache import with_names
from support.optimised_hlo import optimised

import dpbilevel as dpb
from dpbilevel import records as records_module
from dpbilevel.methods import derivatives
from dpbilevel.methods.layers import with_outer_products
from dpbilevel.privacy import clipping, memory
from dpbilevel.privacy.outer import Outer, dense
from dpbilevel.privacy.release import Release
from dpbilevel.records import isolated_jax_config

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.errors.UtilityWarning")
COLUMNS, UNITS, N = 6, 4, 300
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(N, COLUMNS)).astype(np.float32)
LABELS = np.where(RNG.random(N) < 0.5, 1.0, -1.0).astype(np.float32)
OVERFLOW = 2.0**100


def drawn(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def output(y, hidden, label):
    return jax.nn.softplus(-label * (jnp.tanh(hidden + y["bias"]) @ y["out"]))


def one_layer(x, y, record):
    return output(y, record[0] @ y["in"], record[1])


def two_layers(x, y, record):
    return output(y, jnp.tanh(record[0] @ y["in"]) @ y["between"], record[1])


def two_rows(x, y, record):
    return output(y, record[0] @ y["in"] + record[0][:2] @ y["short"] + record[2] @ y["other"], record[1])


def weighted(x, y, record):
    return x * one_layer(x, y, record)


def matrix_first(x, y, record):
    return output(y, y["wide"] @ record[0], record[1])


def computed_row(x, y, record):
    return output(y, jnp.tanh(record[0]) @ y["in"], record[1])


def alone(x, y, record):
    return jnp.sum(jnp.tanh(record[0] @ y))


Y = {"in": drawn(COLUMNS, UNITS), "bias": drawn(UNITS), "out": drawn(UNITS)}
RECORD = (ROWS[0], LABELS[0], drawn(3))
MORE = {"between": drawn(UNITS, UNITS)}
ROWS_OF_TWO = {"other": drawn(3, UNITS), "short": drawn(2, UNITS)}
# loss -> model, and the arrays whose gradients are outer products with the row
LOSSES = {
    one_layer: (Y, {"in"}),
    two_layers: (Y | MORE, {"in"}),
    two_rows: (Y | ROWS_OF_TWO, {"in"}),
    weighted: (Y, {"in"}),
    matrix_first: (Y | {"wide": drawn(UNITS, COLUMNS)}, set()),
    computed_row: (Y, set()),
}


def along(loss):
    gradients = jax.grad(loss, (0, 1))

    def derivative(x, y, u, record):
        return jax.jvp(lambda y: gradients(x, y, record), (y,), (u,))

    return derivative


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_derivatives_are_what_they_were_and_layers_are_outer_products(loss):
    y, layers = LOSSES[loss]
    u = jax.tree.map(lambda leaf: drawn(*leaf.shape), y)
    arguments = (jnp.float32(0.7), y, u, RECORD)
    found = with_outer_products(along(loss))(*arguments)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), dense(found), along(loss)(*arguments)
    )
    for _, in_y in found:
        assert {name for name, leaf in in_y.items() if isinstance(leaf, Outer)} == layers
        assert all(in_y[name].row is RECORD[0] for name in layers)


def test_a_model_of_one_array_is_left_to_its_declaration():
    gradient = with_outer_products(jax.grad(alone, 1))(0.0, Y["in"], RECORD)
    assert not isinstance(gradient, Outer)


# ---- sums over records


def network(loss=one_layer):
    return dpb.BilevelProblem(
        upper_loss=lambda x, y, record: loss(x, y, record),
        lower_loss=lambda x, y, record: jnp.exp(x) * loss(x, y, record),
        lower_term=lambda x, y: 0.05 * sum(jnp.sum(leaf**2) for leaf in y.values()),
        domain=dpb.Box(-3.0, 1.0),
        start=(np.float32(-0.5), Y),
    )


def held():
    return {"lower": (ROWS[100:], LABELS[100:]), "upper": (ROWS[:100], LABELS[:100])}


METHODS = {
    "Tracking": dpb.Tracking(steps=40),
    "Tracking, Poisson": dpb.Tracking(steps=40, sampling=dpb.Poisson(0.5)),
    "DPBilevel": dpb.DPBilevel(
        inner=dpb.DPLocGD(strong_convexity=0.1, steps=3, rounds=1, clip_norm=0.5),
        penalty_weight=10.0,
        steps=2,
        step_size=0.1,
    ),
}


def solution(method, noise="float"):
    given = {} if noise == "exact" else {"seed": 3}
    refit = dpb.Refit(steps=3) if isinstance(method, dpb.Tracking) else None
    return dpb.solve(
        network(), dpb.Records(**held()), dpb.Budget(8.0, 1e-4), method=method, refit=refit, progress=False, **given
    )


# Batches are compared for linear models in every run (test_linear.py), for networks by `make test-heavy`.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.heavy) if "Poisson" in name else name for name in METHODS]
)
def test_a_solution_is_that_of_written_out_gradients(monkeypatch, name):
    taken, true = [], clipping.products_total
    monkeypatch.setattr(clipping, "products_total", lambda block, *rest: taken.append(1) or true(block, *rest))
    layered = solution(METHODS[name])
    assert taken
    taken.clear()
    monkeypatch.setattr(derivatives, "with_outer_products", lambda derivative: derivative)
    written_out = solution(METHODS[name])
    assert not taken
    np.testing.assert_allclose(layered.x, written_out.x, rtol=1e-3, atol=1e-4)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3), layered.y, written_out.y)


def largest_sums(loss, scale):
    """Norms of the sums of single records, at gradients of any size, over the clip of their release."""
    problem, records = network(loss), {"lower": (ROWS * np.float32(scale), LABELS)}
    sizes = dpb.RecordShapes(lower=records["lower"], upper=(ROWS, LABELS))
    plan = dpb.plan(problem, sizes, dpb.Budget(1.0, 1e-4), method=dpb.Tracking(steps=40), refit=None)
    state = plan.program.start(*problem.start) | {"step": jnp.int32(20)}
    point = plan.program.stages[0].query(state, state, 0)
    (release,) = (release for release in plan.releases if "lower" in release.contributions)
    contribution = release.contributions["lower"]

    @jax.jit
    def total(row, label):
        def vector(record):
            with jax.enable_x64(False):
                # Ten times the contribution, because a pass clips its vectors by itself.
                return jax.tree.map(lambda leaf: 10.0 * leaf, contribution.per_record(point, record))

        # Twice the same record, one of them absent: a single record is written out.
        both = (jnp.stack([row, row]), jnp.stack([label, label]))
        return clipping.clipped_sum(vector, both, jnp.array([True, False]), contribution.clip)

    with isolated_jax_config():
        sums = [total(row, label) for row, label in zip(records["lower"][0][:20], LABELS[:20], strict=True)]
    return np.array([np.linalg.norm(one) for one in sums]) / contribution.clip


@pytest.mark.parametrize("scale", [1e-6, 3.0, 1e6])
def test_no_record_adds_more_than_its_clip(scale):
    sums = largest_sums(one_layer, scale)
    assert sums.max() <= 1 + clipping.ROUNDING
    assert sums.max() > 0.5


def test_a_norm_without_the_row_is_noticed(monkeypatch):
    """A mutation: coefficients are measured as if every row had norm one."""
    rows_without_norms(monkeypatch)
    assert largest_sums(one_layer, 3.0).max() > 1 + clipping.ROUNDING


def executed():
    """The compiled program of tracking on a network, on shapes."""
    records = dpb.Records(**held())
    plan = dpb.plan(network(), records.sizes, dpb.Budget(1.0, 1e-4), method=dpb.Tracking(steps=40), refit=None)
    state = plan.program.start(*network().start)
    execute = jax.jit(functools.partial(records_module._execute.__wrapped__), static_argnums=1)
    with isolated_jax_config(), with_names():
        lowered = execute.lower(
            plan.program,
            False,
            records_module._shapes(records.sizes),
            state,
            plan.program.randomness_shapes(),
            np.int32(1),
        )
        return optimised(lowered, records="arrays")


def test_programs_of_networks_sum_what_they_measure():
    module = executed()
    assert module.is_measured_once(OVERFLOW)
    assert module.precisions_of_sums(OVERFLOW) == {"highest"}


def test_a_network_that_sums_other_rows_than_it_measures_is_noticed(monkeypatch):
    true = memory.Memory._rows
    monkeypatch.setattr(memory.Memory, "_rows", lambda *given: (true(*given)[0] * 1.5, true(*given)[1]))
    assert not executed().is_measured_once(OVERFLOW)


def test_exact_noise_writes_gradients_out():
    assert np.isfinite(solution(dpb.Tracking(steps=40), noise="exact").x)


def test_releases_of_a_network_hold_the_arrays_of_its_model():
    """The parts of a vector come back in the order of the model's leaves."""
    plan = dpb.plan(network(), dpb.RecordShapes(**held()), dpb.Budget(1.0, 1e-4), method=dpb.Tracking(steps=40))
    state = plan.program.start(*network().start)
    arrays = {role: (jax.tree.map(jnp.asarray, tree), jnp.ones(len(tree[0]), bool)) for role, tree in held().items()}
    release = plan.program.stages[0].release
    with isolated_jax_config():
        answer = jax.eval_shape(
            lambda keys: Release.answer(release, arrays, plan.program.stages[0].query(state, state, 0), keys),
            jax.ShapeDtypeStruct((2, 2), jnp.uint32),
        )
    sizes = [leaf.size for leaf in jax.tree.leaves(Y)]
    assert [part.size for part in answer["model gradient"]] == sizes
    assert derivatives.joined(tuple(jnp.zeros(size) for size in sizes)).size == sum(sizes)
