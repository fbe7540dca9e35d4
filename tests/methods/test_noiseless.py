"""Runs without noise: every domain, every scale, against an independent solver; and nowhere else."""

import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.sparse.linalg import cg
from support.problems import CASES

import dpbilevel as dpb
from dpbilevel.execution.means import mean_over_records
from dpbilevel.execution.program import NoiselessStage
from dpbilevel.methods.noiseless import quasi_newton, spectral
from dpbilevel.methods.noiseless.newton import adjoint, inverse_scales, minimiser
from dpbilevel.privacy.release import Contribution, Release

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from solver_problems import Units, cleaning, meta_learning, penalties, quadratic, rescaled, shared_records
from solver_reference import Reference

NO_PRIVACY = dpb.Budget(math.inf)


def solve(posed, **options):
    options = {"refit": None, "progress": False} | options
    return dpb.solve(posed.problem, dpb.Records(**posed.data), NO_PRIVACY, start=posed.start, **options)


def left(posed, x) -> float:
    reference = Reference(posed)
    first, best = reference.value(posed.start[0]), reference.best()
    return (reference.value(x) - best) / (first - best)


POSED = {
    "quadratic, unconstrained": quadratic(200, 900, condition=1000.0),
    "quadratic, simplex": quadratic(200, 901, domain="simplex"),
    "quadratic, ball": quadratic(200, 902, domain="ball"),
    "records in both roles, pytrees": shared_records(200, 903, domain="box"),
    "penalties of columns, non-negative": penalties(200, 904, loss="logistic", domain="non-negative"),
    "weights of sources": cleaning(200, 905),
    "meta-learning in other units": rescaled(meta_learning(200, 906), Units(x=1e3, y=1e3, upper=1e-3)),
}


@pytest.mark.parametrize("name", list(POSED))
def test_the_default_solves_the_problem_without_noise(name):
    assert left(POSED[name], solve(POSED[name]).x) < 1e-3


@pytest.mark.parametrize("name", list(CASES))
def test_the_known_solutions_are_found(name):
    case = CASES[name]()
    x = dpb.solve(case.problem, case.records(), NO_PRIVACY, start=case.start, refit=None, progress=False).x
    start, value, best = (case.value(point) for point in (case.start[0], x, case.solution))
    assert value - best < 1e-4 * (start - best)


@pytest.mark.slow
@pytest.mark.parametrize("units", [Units(x=1e-3), Units(y=1e3), Units(upper=1e-3, lower=1e3)], ids=["x", "y", "losses"])
def test_other_units_give_the_same_result_in_units(units):
    posed = quadratic(200, 907, domain="ball")
    plain, other = solve(posed), solve(rescaled(posed, units))
    size = np.linalg.norm(plain.x)
    np.testing.assert_allclose(other.x / units.x, plain.x, atol=1e-3 * size)
    np.testing.assert_allclose(other.y / units.y, plain.y, atol=1e-3 * np.linalg.norm(plain.y))


def test_the_final_training_reaches_the_minimiser():
    """On upper records too, where they train: each with the weight of a lower record that counts fully."""
    draws = np.random.default_rng(0)
    upper, lower = draws.normal(1.0, 1.0, 100), draws.normal(-1.0, 1.0, 300)
    problem = dpb.BilevelProblem(
        upper_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
        lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
        lower_term=lambda x, y: 0.5 * jnp.exp(x) * y**2,
        domain=dpb.Box(-3.0, 0.0),
        upper_trains=True,
    )
    records = dpb.Records(upper=upper, lower=lower)
    solution = dpb.solve(problem, records, NO_PRIVACY, start=(-1.0, 0.0), progress=False)
    both = np.concatenate([upper, lower])
    assert float(solution.y) == pytest.approx(both.mean() / (1 + math.exp(float(solution.x))), rel=1e-4)


def test_a_stage_without_noise_refuses_a_release_with_noise():
    """A stopping rule on exact values is refused in private runs."""
    release = Release(
        name="mean", contributions={"lower": Contribution(lambda point, record: record, 1.0, 10)}, noise_std=0.1, uses=1
    )
    with pytest.raises(dpb.InvalidProblem, match="'mean': has noise"):
        NoiselessStage(release=release, run=lambda means, state: state)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 100.0])
def test_private_plans_have_no_stage_without_noise(epsilon):
    case = CASES["ridge"]()
    plan = dpb.plan(case.problem, case.records().sizes, dpb.Budget(epsilon, 1e-4), start=case.start)
    for program in (plan.program, plan.training):
        assert not any(isinstance(stage, NoiselessStage) for stage in program.stages)


def test_a_run_without_noise_is_marked_not_private():
    solution = solve(POSED["quadratic, ball"])
    assert solution.privacy.void
    assert solution.privacy.epsilon() == math.inf


def test_invalid_records_contribute_nothing():
    values = np.linspace(0, 1, 50)
    values[[3, 17]] = np.nan, np.inf
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: 0.5 * (x + y - 1) ** 2, lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2
    )
    records = dpb.Records(lower=values, invalid="zero")
    solution = dpb.solve(problem, records, NO_PRIVACY, start=(0.0, 0.0), refit=None, progress=False)
    # The mean of (y - value)^2/2 over the valid ones, divided by all: its minimiser is their mean.
    assert float(solution.y) == pytest.approx(values[np.isfinite(values)].mean(), rel=1e-4)


# --------------------------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("number", [1, 5, 300])
def test_a_mean_in_blocks_is_the_mean_and_so_are_its_derivatives(number, monkeypatch):
    monkeypatch.setattr("dpbilevel.execution.means._ELEMENTS", 150)
    draws = np.random.default_rng(0)
    rows, present = draws.normal(size=(number, 3)).astype(np.float32), draws.uniform(size=number) < 0.8

    def function(y, record):
        return jnp.tanh(record @ y) ** 2

    mean = mean_over_records(function, jnp.asarray(rows), jnp.asarray(present))
    whole = lambda y: jnp.sum(jax.vmap(lambda row: function(y, row))(rows) * present) / number  # noqa: E731
    y = jnp.asarray([0.3, -0.2, 0.5])
    for of in (lambda f: f, jax.grad, jax.hessian):
        np.testing.assert_allclose(jax.jit(of(mean))(y), jax.jit(of(whole))(y), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("domain", [dpb.Unconstrained(), dpb.Box(-0.5, 0.5), dpb.Ball(0.6)], ids=str)
def test_the_adjoint_is_the_derivative_of_the_minimiser(domain):
    """Against finite differences, where the set binds as well: d/dx of pull . y*(x) = - u . (cross derivative)."""
    draws = np.random.default_rng(1)
    root = draws.normal(size=(3, 3))
    curvature = jnp.asarray(root @ root.T + np.eye(3), jnp.float32)
    pull = jnp.asarray(draws.normal(size=3), jnp.float32)

    def loss(x, y):
        residual = y - jnp.asarray([1.0, -0.3, 0.2]) * x
        return 0.5 * residual @ curvature @ residual + 0.1 * jnp.sum(y**4)

    def best(x):
        return minimiser(lambda y: loss(x, y), domain, jnp.zeros(3), jnp.ones(3))

    x = jnp.asarray(1.3)
    y = best(x)
    u = adjoint(lambda point: loss(x, point), domain, y, pull, jnp.zeros(3), jnp.ones(3))
    cross = jax.grad(lambda point: jnp.vdot(jax.grad(loss, 1)(point, y), u))(x)
    step = 0.02
    measured = pull @ (best(x + step) - best(x - step)) / (2 * step)
    assert float(-cross) == pytest.approx(float(measured), rel=0.02)


def test_steps_go_nowhere_where_the_loss_is_not_finite():
    def evaluate(x, memory):
        value = jnp.where(x[0] < 1.0, jnp.sum((x - 2.0) ** 2), jnp.nan)
        return value, jax.grad(lambda p: jnp.sum((p - 2.0) ** 2))(x), memory

    search = spectral.minimise(evaluate, dpb.Unconstrained(), jnp.zeros(2), (), 100)
    assert jnp.isfinite(search.best[1])
    assert search.best[0][0] < 1.0


def test_quasi_newton_directions_solve_a_quadratic_after_as_many_moves_as_it_has_coordinates():
    draws = np.random.default_rng(2)
    root = draws.normal(size=(4, 4))
    hessian = jnp.asarray(root @ root.T + np.eye(4), jnp.float32)
    pairs = quasi_newton.none(4, jnp.float32)
    # Moves that are conjugate to each other: the recursion then has the whole inverse.
    for column in np.linalg.inv(np.linalg.cholesky(np.asarray(hessian, np.float64))):
        pairs = quasi_newton.remember(
            pairs, jnp.asarray(column, jnp.float32), hessian @ jnp.asarray(column, jnp.float32)
        )
    gradient = jnp.asarray(draws.normal(size=4), jnp.float32)
    found = quasi_newton.direction(pairs, gradient, jnp.ones(4, bool))
    np.testing.assert_allclose(found, -np.linalg.solve(hessian, gradient), rtol=1e-3)
    masked = quasi_newton.direction(pairs, gradient, jnp.asarray([True, True, False, True]))
    assert masked[2] == 0


def poorly_scaled():
    """A quadratic loss, its term, and the curvatures of the term, which cover eight decades."""
    draws = np.random.default_rng(3)
    rows = jnp.asarray(draws.normal(size=(400, 30)), jnp.float32)
    weights = jnp.asarray(10.0 ** np.linspace(-4, 4, 30), jnp.float32)
    term = lambda y: 0.5 * jnp.sum(weights * y**2)  # noqa: E731
    return lambda y: 0.5 * jnp.mean((rows @ y - 1 - rows[:, 0]) ** 2) + term(y), term, weights


def test_penalties_of_any_size_precondition():
    loss, term, weights = poorly_scaled()
    scales = inverse_scales(loss, term, jnp.zeros(30))
    np.testing.assert_allclose((1 / scales - 1)[10:] / (1 / scales - 1)[-1], weights[10:] / weights[-1], rtol=1e-2)
    # As many products as would not be enough without them.
    along = jax.vmap(jax.grad(lambda y: loss(y) - jax.grad(loss)(jnp.zeros(30)) @ y))(jnp.eye(30))
    residuals = [
        jnp.linalg.norm(along @ cg(along, jnp.ones(30), maxiter=12, tol=1e-6, M=lambda v, by=by: by * v)[0] - 1)
        for by in (scales, jnp.ones(30))
    ]
    assert residuals[0] < 1e-3
    assert residuals[1] > 1e-1


@pytest.mark.parametrize("term", [lambda y: 0.0, lambda y: jnp.sum(y) ** 2], ids=["no term", "no diagonal"])
def test_without_a_diagonal_nothing_is_scaled(term):
    loss, _, _ = poorly_scaled()
    np.testing.assert_array_equal(inverse_scales(lambda y: loss(y) + term(y), term, jnp.zeros(30)), np.ones(30))
