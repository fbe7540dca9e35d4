"""Algorithm 1 on problems with known solutions, without privacy and with it."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.problems import CASES, leak, quadratic, ridge, sources

import dpbilevel as dpb

NO_PRIVACY = dpb.Budget(math.inf)


def distance(one, other):
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return math.sqrt(sum(float(np.sum((np.asarray(a) - np.asarray(b)) ** 2)) for a, b in leaves))


@pytest.mark.parametrize("name", CASES)
def test_reaches_the_known_solution_without_privacy(name):
    """In float64: float32 rounding, times the penalty, is what limits a flat problem such as ridge."""
    with jax.enable_x64(True):
        case = CASES[name]()
        solution = case.solve(NO_PRIVACY)
    assert distance(solution.x, case.solution) <= 1e-3
    assert case.value(solution.x) <= case.value(case.solution) + 1e-6
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(solution.x))


def test_reaches_the_known_solution_in_float32():
    case = quadratic()
    solution = case.solve(NO_PRIVACY)
    assert solution.x.dtype == np.float32
    assert distance(solution.x, case.solution) <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "factor"), [((50, 1_500), 3), pytest.param((50, 1_500, 50_000), 20, marks=pytest.mark.heavy)]
)
def test_error_falls_with_n(sizes, factor):
    """At epsilon = 1. Noise falls as 1/n; a fixed seed makes the test repeat exactly."""
    budget = dpb.Budget(1.0, 1e-7)
    errors = []
    for n in sizes:
        case = quadratic(n)
        settings = {"penalty_weight": 10.0, "steps": 12, "inner": {"rounds": 1, "steps": 12}}
        reached = [distance(case.solve(budget, seed=seed, **settings).x, case.solution) for seed in range(3)]
        errors.append(np.mean(reached))
    assert all(later < earlier for earlier, later in itertools.pairwise(errors)), errors
    assert errors[-1] < errors[0] / factor, errors


def test_first_hypergradient_is_that_of_the_hyperobjective():
    """One exact outer step against central differences of F."""
    case = quadratic()
    start = (np.array([0.3, -0.2, 0.5]), np.zeros(3))
    method = case.method(steps=1, step_size=1.0, inner={"steps": 100, "rounds": 4})
    solution = dpb.solve(case.problem, case.records(), NO_PRIVACY, method=method, start=start, seed=0)
    taken = start[0] - solution.history["x"][0]
    h = 1e-5
    expected = [(case.value(start[0] + h * e) - case.value(start[0] - h * e)) / (2 * h) for e in np.eye(3)]
    np.testing.assert_allclose(taken, expected, atol=3e-3)


def test_penalty_difference_of_the_regulariser_is_the_hypergradient():
    """Regularisation tuning: penalty * (R(z) - R(y)) is dF/dx, and x moves against it (the paper prints plus)."""
    start = (np.array(-1.5), np.zeros(4))
    with jax.enable_x64(True):
        case = ridge()
        method = case.method(steps=1, step_size=1.0, inner={"steps": 400, "rounds": 3})
        solution = dpb.solve(case.problem, case.records(), NO_PRIVACY, method=method, start=start, seed=0)
    h = 1e-4
    expected = (case.value(-1.5 + h) - case.value(-1.5 - h)) / (2 * h)
    np.testing.assert_allclose(-1.5 - solution.history["x"][0], expected, rtol=0.02)


def test_free_hypergradient_costs_nothing_and_is_not_released():
    case = ridge()
    plan = dpb.plan(case.problem, case.records().sizes, dpb.Budget(1.0, 1e-4), method=case.method(), start=case.start)
    assert [release.name for release in plan.releases] == ["lower solve", "penalised solve"]
    assert "free" in plan.explain()


def test_lower_level_without_x_reduces_to_gradient_descent_on_f():
    """g free of x: y* is constant and the method descends f(., y*) (remark after Theorem 1)."""
    data = np.linspace(-0.5, 0.9, 200)
    problem = dpb.BilevelProblem(
        upper_loss=lambda x, y, record: 0.5 * (x - record) ** 2 + 0.0 * y,
        lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
    )
    method = dpb.DPBilevel(inner=dpb.DPLocGD(strong_convexity=1.0, steps=5), steps=5, step_size=0.3)
    solution = dpb.solve(
        problem, dpb.Records(both=data), NO_PRIVACY, method=method, start=(0.0, 0.0), seed=0, progress=False
    )
    x, expected = 0.0, []
    for _ in range(5):
        x -= 0.3 * (x - data.mean())
        expected.append(x)
    np.testing.assert_allclose(solution.history["x"], expected, atol=1e-5)


def test_output_rule_returns_the_iterate_before_the_smallest_step():
    case = quadratic()
    solution = case.solve(dpb.Budget(1.0, 1e-4), penalty_weight=10.0, steps=10)
    trajectory = np.concatenate([np.zeros((1, 3), np.float32), solution.history["x"]])
    moves = np.linalg.norm(np.diff(trajectory, axis=0), axis=1)
    np.testing.assert_allclose(solution.history["move"], moves, rtol=1e-4)
    np.testing.assert_array_equal(solution.x, trajectory[np.argmin(moves)])
    last = case.solve(dpb.Budget(1.0, 1e-4), penalty_weight=10.0, steps=10, output="last")
    np.testing.assert_array_equal(last.x, trajectory[-2])


def test_iterates_stay_in_the_domain_under_heavy_noise():
    case = sources()
    solution = case.solve(dpb.Budget(0.1, 1e-4), steps=10, penalty_weight=10.0)
    weights = solution.history["x"]["weights"]
    assert np.all(weights >= 0)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-5)


def test_warm_start_beats_restarting_within_a_few_steps():
    """Without privacy, at equal passes over the data: the restart repeats work that the warm start keeps."""
    case = quadratic()
    few = {"inner": {"steps": 4, "rounds": 1}, "steps": 40}
    warm, cold = case.solve(NO_PRIVACY, **few), case.solve(NO_PRIVACY, warm_start=False, **few)
    assert distance(warm.history["x"][-1], case.solution) < 0.2 * distance(cold.history["x"][-1], case.solution)


def test_same_seed_same_run_and_no_seed_new_noise():
    case = leak()
    budget = dpb.Budget(1.0, 1e-4)
    first, again = case.solve(budget, steps=4), case.solve(budget, steps=4)
    np.testing.assert_array_equal(first.history["x"], again.history["x"])
    secret = [case.solve(budget, steps=4, seed=None) for _ in range(2)]
    assert not np.allclose(secret[0].history["x"], secret[1].history["x"])


def test_one_gaussian_covers_both_roles_within_each_share():
    case = quadratic()
    budget = dpb.Budget(1.0, 1e-4)
    plan = dpb.plan(case.problem, case.records().sizes, budget, method=case.method(), start=case.start)
    epsilons = {role: plan.privacy.epsilon(role=role) for role in ("upper", "lower")}
    assert max(epsilons.values()) == pytest.approx(1.0, abs=1e-6)
    assert plan.privacy.epsilon() == max(epsilons.values())
    hypergradient = plan.releases[-1]
    assert set(hypergradient.contributions) == {"upper", "lower"}


def test_records_in_both_roles_are_clipped_as_one_vector():
    case = CASES["quadratic_both"]()
    plan = dpb.plan(case.problem, case.records().sizes, dpb.Budget(1.0, 1e-4), method=case.method(), start=case.start)
    penalised = plan.releases[1]
    assert set(penalised.contributions) == {"both"}
    assert penalised.contributions["both"].clip == pytest.approx(4.0 + 4.0 / 1000.0)


def test_constants_give_step_size_and_bound_the_penalty():
    constants = dpb.Constants(
        upper_lipschitz=1.0,
        upper_smoothness=1.0,
        lower_lipschitz=1.0,
        lower_smoothness=2.0,
        lower_hessian_lipschitz=0.0,
        strong_convexity=0.5,
    )
    case = leak()
    problem = dataclasses.replace(case.problem, constants=constants)
    sizes = case.records().sizes
    budget = dpb.Budget(1.0, 1e-4)
    method = dpb.DPBilevel(inner=dpb.DPLocGD(), penalty_weight=8.0, steps=2)
    plan = dpb.plan(problem, sizes, budget, method=method, start=case.start)
    assert plan.parameters["step size"][0] == pytest.approx(1 / (2 * constants.hyperobjective_smoothness(8.0)))
    assert plan.parameters["penalised solve: strong convexity"][0] == pytest.approx(0.5 - 1 / 8)
    with pytest.raises(dpb.InvalidArgument, match=r"penalty_weight=3.9.*at least 4"):
        dpb.plan(problem, sizes, budget, method=dataclasses.replace(method, penalty_weight=3.9), start=case.start)


def test_a_record_with_an_undefined_gradient_contributes_zero():
    """sqrt has an infinite gradient at zero: that record contributes nothing, and the run continues."""
    data = np.array([0.0, 0.25, 0.25, 0.25])
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: 0.5 * (x - y) ** 2,
        lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2 + jnp.sqrt(record * (1 + y**2)) * 0.0,
    )
    method = dpb.DPBilevel(inner=dpb.DPLocGD(strong_convexity=1.0, steps=20), steps=30, step_size=0.5)
    solution = dpb.solve(problem, dpb.Records(lower=data), NO_PRIVACY, method=method, start=(0.0, 0.0), seed=0)
    assert np.isfinite(solution.x)
