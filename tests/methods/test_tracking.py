"""Difference tracking: known solutions, sensitivities, the spend (its error against the penalty: test_penalty)."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from support.problems import CASES, leak, quadratic, ridge

import dpbilevel as dpb
from dpbilevel.privacy.noise import KeySchedule

NO_PRIVACY, BUDGET = dpb.Budget(math.inf), dpb.Budget(1.0, 1e-4)


def solve(case, budget, refit=None, **settings):
    return dpb.solve(
        case.problem,
        case.records(),
        budget,
        method=dpb.Tracking(**settings),
        start=case.start,
        refit=refit,
        seed=0,
        progress=False,
    )


def left(case, x) -> float:
    """The part of the gap to the solution that is left, in the hyperobjective."""
    start, value, best = (case.value(point) for point in (case.start[0], x, case.solution))
    return (value - best) / (start - best)


@pytest.mark.parametrize("name", ["leak", "sources", "quadratic", "quadratic_both"])
def test_finds_the_known_solution_without_privacy(name):
    case = CASES[name]()
    assert left(case, solve(case, NO_PRIVACY).x) < 0.01


@pytest.mark.parametrize("name", ["leak", "sources", "quadratic", "quadratic_both"])
def test_comes_near_the_known_solution_with_little_noise(name):
    """Default settings at an epsilon of 300: what is left is what steps and clips leave."""
    case = CASES[name]()
    # 300 records of three sources differ by chance, which is not followed.
    assert left(case, solve(case, dpb.Budget(300.0, 1e-4)).x) < (0.3 if name == "sources" else 0.2)


@pytest.mark.parametrize("name", list(CASES))
def test_spends_its_budget_and_no_more(name):
    case = CASES[name]()
    for refit in (None, dpb.Refit(steps=5)):
        plan = dpb.plan(
            case.problem, case.records().sizes, BUDGET, method=dpb.Tracking(steps=7), start=case.start, refit=refit
        )
        # A role may end below its share where one Gaussian has to cover another role that needs more noise.
        assert 0.9 < plan.privacy.epsilon() <= 1.0


def test_a_free_hypergradient_is_not_released():
    case = ridge()
    plan = dpb.plan(case.problem, case.records().sizes, BUDGET, method=dpb.Tracking(), start=case.start)
    assert [release.name for release in plan.releases] == ["training pass", "validation pass", "training"]
    assert plan.parameters["hypergradient"][0] == 0


@pytest.mark.slow
def test_batches_are_accounted_for():
    case = quadratic(n=500)
    method = dpb.Tracking(steps=10, sampling=dpb.Poisson(0.2))
    solution = dpb.solve(
        case.problem,
        case.records(),
        dpb.Budget(2.0, 1e-4),
        method=method,
        start=case.start,
        refit=dpb.Refit(steps=5),
        seed=0,
        progress=False,
    )
    assert 0 < solution.privacy.epsilon() <= 2.0
    assert not solution.privacy.is_gaussian
    assert np.isfinite(solution.x).all()


def test_tuning_and_training_never_share_noise(monkeypatch):
    """All keys that a run takes have indices of their own, for noise and for batches."""
    taken: dict[str, list[int]] = {"noise": [], "batch": []}
    true_keys = KeySchedule.keys

    def counted(self, purpose, first, number):
        taken[purpose] += range(first, first + number)
        return true_keys(self, purpose, first, number)

    monkeypatch.setattr(KeySchedule, "keys", counted)
    solve(leak(), BUDGET, refit=dpb.Refit(steps=6), steps=10)
    for indices in taken.values():
        assert len(indices) == len(set(indices)) == 10 + 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps=0"),
        ({"clip_norm": math.inf}, "clip_norm=inf"),
        ({"sampling": 0.1}, "sampling=0.1"),
    ],
)
def test_bad_arguments_are_named(settings, message):
    with pytest.raises(dpb.InvalidArgument, match=message):
        dpb.Tracking(**settings)


def test_is_the_default_method():
    case = CASES["ridge"]()
    sizes = case.records().sizes
    assert isinstance(dpb.plan(case.problem, sizes, BUDGET, start=case.start).method, dpb.Tracking)


@pytest.mark.slow
@pytest.mark.parametrize("units", [{"x": 1e-3}, {"y": 1e3}, {"upper": 1e3, "lower": 1e-3}], ids=str)
def test_other_units_give_the_same_result_in_units(units):
    """x, y and the losses may be multiplied by anything: with noise the result is the same up to the noise."""
    x, y, upper, lower = (units.get(name, 1.0) for name in ("x", "y", "upper", "lower"))
    case = quadratic(n=1000)
    problem = dpb.BilevelProblem(
        upper_loss=lambda a, b, record: upper * case.problem.upper_loss(a / x, b / y, record),
        lower_loss=lambda a, b, record: lower * case.problem.lower_loss(a / x, b / y, record),
    )
    posed = dataclasses.replace(case, problem=problem, start=(case.start[0] * x, case.start[1] * y))
    found = np.asarray(solve(posed, dpb.Budget(200.0, 1e-5)).x) / x
    assert left(case, found) < 0.05


def test_the_start_is_returned_where_the_loss_was_measured_to_be_higher():
    """The last passes judge: what they found decides between the start and where the loop ended."""
    case = leak()
    plan = dpb.plan(case.problem, case.records().sizes, BUDGET, method=dpb.Tracking(steps=40), start=case.start)
    state = plan.program.start(*(jnp.asarray(part, jnp.float32) for part in case.start))
    moved = state | {"average": state["average"] + 1}
    for change, expected in ((-1.0, moved["average"]), (1.0, state["first"][0]), (np.nan, state["first"][0])):
        measured = moved["loss_change"] | {"sum": jnp.float32(change)}
        x, _ = plan.program.finish(moved | {"loss_change": measured})
        np.testing.assert_array_equal(x, expected)
