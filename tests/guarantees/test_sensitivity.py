"""The three bounds of one record's part of the hypergradient, attacked by searches over records and points."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.constraints import into_ball
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.dp_bilevel.sensitivity import bounded_hypergradients
from dpbilevel.problem import inspect

BUDGET = dpb.Budget(1.0, 1e-5)
NO_PRIVACY = dpb.Budget(float("inf"))
COUPLING = np.array([[0.6, -0.2, 0.1], [0.3, 0.5, -0.4]], np.float32)  # x in R^2, y in R^3
CURVATURE = 0.5


def pseudo_huber(residual):
    return jnp.sum(jnp.sqrt(1 + residual**2) - 1)


def coupled_problem(constants: bool = True) -> dpb.BilevelProblem:
    """g_i = h(y - x B - r), g0 = (mu/2)|y|^2, f_i = h(y - r) + h(x - r'), h pseudo-Huber: every constant is known.

    Pseudo-Huber of three coordinates has gradient norm at most sqrt(3) and curvature at most 1.
    """
    norm = float(np.linalg.norm(np.vstack([np.eye(3), -COUPLING]), 2))  # of the map (x, y) -> y - x B
    declared = dpb.Constants(
        upper_lipschitz=np.sqrt(3.0) * np.sqrt(2.0),
        upper_smoothness=2.0,
        lower_lipschitz=np.sqrt(3.0),
        lower_smoothness=norm**2 + CURVATURE,
        lower_hessian_lipschitz=norm**3,
        strong_convexity=CURVATURE,
        record_upper_lipschitz=np.sqrt(2.0),  # of grad_x f_i alone: two coordinates
        record_lower_smoothness=float(np.linalg.norm(COUPLING, 2)),  # of y -> grad_x g_i
    )
    return dpb.BilevelProblem(
        upper_loss=lambda x, y, record: pseudo_huber(y - record) + pseudo_huber(x - record[:2]),
        lower_loss=lambda x, y, record: pseudo_huber(y - x @ COUPLING - record),
        lower_term=lambda x, y: 0.5 * CURVATURE * jnp.sum(y**2),
        constants=declared if constants else None,
        public=[COUPLING],
    )


def sizes(both: bool = False) -> dpb.RecordShapes:
    shape = jax.ShapeDtypeStruct((50, 3), "float32")
    return dpb.RecordShapes(both=shape) if both else dpb.RecordShapes(upper=shape, lower=shape)


def facts_of(problem: dpb.BilevelProblem, both: bool = False) -> PublicContext:
    known = sizes(both)
    x, y = jax.ShapeDtypeStruct((2,), "float32"), jax.ShapeDtypeStruct((3,), "float32")
    inspection = inspect(problem, x, y, {level: known.record(level) for level in ("upper", "lower")})
    return PublicContext(problem, inspection, known, BUDGET, (x, y))


def largest_norms(bounded, seed: int = 0, trials: int = 4000) -> dict[str, float]:
    """The largest norm over clip that random search and gradient ascent find, by level, *before* clipping."""
    rng = np.random.default_rng(seed)
    found = {}
    for level, (vector, clip) in bounded.levels.items():

        def relative(x, y, z, record, vector=vector, clip=clip):
            part = vector((x, y, bounded.near(y, z)), record)
            return jnp.sqrt(jnp.sum(part**2) + 1e-30) / clip

        def climbed(*point, relative=relative):
            def step(_, at):
                slopes = jax.grad(relative, argnums=(0, 1, 2, 3))(*at)
                return tuple(
                    p + 0.05 * jnp.nan_to_num(s / (jnp.linalg.norm(s) + 1e-9)) for p, s in zip(at, slopes, strict=True)
                )

            return relative(*jax.lax.fori_loop(0, 200, step, point))

        far = 10.0 ** rng.uniform(-3, 1.5, size=(trials, 1))
        points = [rng.normal(size=(trials, d)) * s for d, s in ((2, 1.0), (3, 1.0), (3, far), (3, 3.0))]
        points = [jnp.asarray(p, jnp.float32) for p in points]
        values = jax.jit(jax.vmap(relative))(*points)
        best = [p[jnp.argsort(-values)[:64]] for p in points]
        found[level] = float(max(jnp.max(values), jnp.max(jax.jit(jax.vmap(climbed))(*best))))
    return found


@pytest.mark.parametrize("penalty", [10.0, 100.0, 1000.0])
@pytest.mark.parametrize("way", ["certified", "released"])
def test_the_bound_holds_in_an_adversarial_search_over_records_and_points(way, penalty):
    """Whatever y and z the private solves return, no record's part exceeds the bound, so clipping changes nothing."""
    found = largest_norms(bounded_hypergradients(facts_of(coupled_problem()), penalty, way, None))
    assert set(found) == {"upper", "lower"}
    # Float32 differences at z close to y carry a rounding error of about penalty * 1e-7.
    assert max(found.values()) <= 1 + 1e-3
    assert min(found.values()) > 0.5, "the search is weak: it does not come near a bound that is nearly tight"


def test_mutant_without_the_projection_breaks_the_certified_bound():
    bounded = bounded_hypergradients(facts_of(coupled_problem()), 100.0, "certified", None)
    broken = dataclasses.replace(bounded, near=lambda y, z: z)
    assert largest_norms(broken)["lower"] > 2


def test_mutant_with_a_scale_that_forgets_the_penalty_breaks_the_released_bound():
    bounded = bounded_hypergradients(facts_of(coupled_problem()), 100.0, "released", None)
    honest = bounded_hypergradients(facts_of(coupled_problem()), 1.0, "released", None)
    vector, clip = bounded_hypergradients(facts_of(coupled_problem()), 100.0, 1.0, None).levels["lower"]

    def wrong(point, record):
        return vector(point, record) / honest.scale(point[1], point[2])

    broken = dataclasses.replace(bounded, levels={"lower": (wrong, clip)})
    assert largest_norms(broken)["lower"] > 2


def test_records_of_both_levels_are_bounded_by_the_sum_of_the_parts():
    for way in ("certified", "released"):
        bounded = bounded_hypergradients(facts_of(coupled_problem(), both=True), 100.0, way, None)
        (lower, lower_clip), (upper, upper_clip) = bounded.levels["lower"], bounded.levels["upper"]

        def summed(point, record, lower=lower, upper=upper):
            return lower(point, record) + upper(point, record)

        joint = dataclasses.replace(bounded, levels={"both": (summed, lower_clip + upper_clip)})
        assert largest_norms(joint)["both"] <= 1 + 1e-3


def test_the_exact_solutions_lie_within_the_certified_radius():
    """So that moving z costs no accuracy: at the exact minimisers of any data set the projection does nothing."""
    problem, penalty = coupled_problem(), 20.0
    radius = problem.constants.upper_lipschitz / (penalty * problem.constants.strong_convexity)
    rng = np.random.default_rng(1)
    for _ in range(20):
        data = jnp.asarray(rng.normal(size=(2, 10, 3)) * 10.0 ** rng.uniform(-1, 1))
        x = jnp.asarray(rng.normal(size=2))
        y, z = (minimiser(problem, weight, x, data) for weight in (0.0, 1 / penalty))
        assert np.linalg.norm(z - y) <= radius
        np.testing.assert_allclose(into_ball(z, y, radius), z, atol=1e-6)


@functools.partial(jax.jit, static_argnums=0)
def minimiser(problem, weight, x, data) -> jax.Array:
    """Of the lower objective plus a weight times the mean upper loss, by Newton's method."""

    def objective(y):
        lower, upper = (
            jnp.mean(jax.vmap(loss, (None, None, 0))(x, y, rows))
            for loss, rows in zip((problem.lower_loss, problem.upper_loss), data, strict=True)
        )
        return lower + problem.lower_term(x, y) + weight * upper

    def step(_, y):
        return y - jnp.linalg.solve(jax.hessian(objective)(y) + 0.5 * jnp.eye(3), jax.grad(objective)(y))

    return jax.lax.fori_loop(0, 100, step, jnp.zeros(3))


def run(clip_norm, budget, **changes):
    rng = np.random.default_rng(3)
    records = dpb.Records(upper=rng.normal(size=(400, 3)) + 0.5, lower=rng.normal(size=(400, 3)))
    inner = dpb.DPLocGD(strong_convexity=CURVATURE, clip_norm=2.0, smoothness=2.5, steps=30, rounds=1, radius=6.0)
    settings = {"penalty_weight": 50.0, "steps": 12, "step_size": 0.5} | changes
    method = dpb.DPBilevel(inner=inner, clip_norm=clip_norm, **settings)
    start = (np.zeros(2), np.zeros(3))
    return dpb.solve(coupled_problem(), records, budget, method=method, start=start, seed=0, progress=False)


def test_without_privacy_all_three_ways_take_the_same_steps():
    plain = run(1.0, NO_PRIVACY)
    for way in ("certified", "released"):
        np.testing.assert_allclose(run(way, NO_PRIVACY).history["x"], plain.history["x"], atol=2e-3)


def test_certified_keeps_solutions_close_under_heavy_noise_and_spends_the_same():
    solution = run("certified", dpb.Budget(0.5, 1e-4))
    constants = coupled_problem().constants
    radius = constants.upper_lipschitz / (50.0 * constants.strong_convexity)
    assert np.all(solution.history["solution_distance"] <= radius * (1 + 1e-5))
    assert run(1.0, dpb.Budget(0.5, 1e-4)).history["solution_distance"].max() > 10 * radius
    assert solution.privacy.epsilon() == pytest.approx(0.5, rel=1e-6)
    assert "certified radius" in solution.parameters["hypergradient: clip (lower)"][1]


def test_released_noise_follows_the_distance():
    """The answer's noise is the declared one times the public scale of the step: Delta over sigma never changes."""
    problem = coupled_problem()
    method = dpb.DPBilevel(
        inner=dpb.DPLocGD(clip_norm=2.0, steps=2, rounds=1),
        penalty_weight=50.0,
        steps=1,
        step_size=1.0,
        clip_norm="released",
    )
    plan = dpb.plan(problem, sizes(), BUDGET, method=method, start=(np.zeros(2), np.zeros(3)))
    assert plan.privacy.epsilon() == pytest.approx(1.0, rel=1e-6)
    assert plan.releases[-1].contributions["lower"].clip == 1.0
    stage = plan.program.stages[-1]
    for distance in (0.0, 0.1, 2.0):
        y, z = jnp.zeros(3), jnp.asarray([distance, 0.0, 0.0])
        state = plan.program.start(jnp.zeros(2), y) | {"z": z}
        moves = [stage.update(state, state, jnp.asarray(answer), 0)["x"] for answer in ([0.0, 0.0], [1.0, 0.0])]
        constants = problem.constants
        bounds = (50.0 * constants.record_lower_smoothness * distance, constants.record_upper_lipschitz)
        assert float((moves[0] - moves[1])[0]) == pytest.approx(max(bounds), rel=1e-4)


def test_errors_name_the_remedy():
    inner = dpb.DPLocGD(strong_convexity=CURVATURE)
    start = (np.zeros(2), np.zeros(3))
    for way in ("certified", "released"):
        method = dpb.DPBilevel(inner=inner, clip_norm=way, step_size=0.1)
        with pytest.raises(dpb.InvalidArgument, match=rf"clip_norm='{way}'.*dpb.Constants"):
            dpb.plan(coupled_problem(constants=False), sizes(), BUDGET, method=method, start=start)
    with pytest.raises(dpb.InvalidArgument, match="clip_norm='clip'"):
        dpb.DPBilevel(inner=inner, clip_norm="clip")
    with pytest.raises(dpb.InvalidArgument, match=r"upper_clip_norm.*computes it"):
        dpb.DPBilevel(inner=inner, clip_norm="certified", upper_clip_norm=1.0)
    problem = coupled_problem()
    nothing = dataclasses.replace(problem.constants, record_lower_smoothness=0.0)
    method = dpb.DPBilevel(inner=inner, clip_norm="certified", penalty_weight=20.0)
    with pytest.raises(dpb.InvalidArgument, match=r"records do not affect.*record_lower_smoothness"):
        dpb.plan(dataclasses.replace(problem, constants=nothing), sizes(), BUDGET, method=method, start=start)
