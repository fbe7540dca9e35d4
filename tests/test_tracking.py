"""Difference tracking: known solutions, sensitivities, the spend (its error against the penalty: test_penalty)."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import CASES, leak, quadratic, ridge, sources

import dpbilevel as dpb
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.release import Release
from dpbilevel.records import sealed

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
def test_comes_near_the_known_solution_without_privacy(name):
    """Steps are of fixed sizes and hyperparameters share votes: made for noise, not for the last digit."""
    case = CASES[name]()
    assert left(case, solve(case, NO_PRIVACY, penalty=100.0).x) < {"leak": 1e-3, "sources": 0.02}.get(name, 0.2)


@pytest.mark.parametrize("name", list(CASES))
def test_no_record_moves_an_answer_by_more_than_the_sensitivity(name):
    """Every release of tracking and of the final training, at random points, for ordinary, huge and broken records."""
    case = CASES[name]()
    problem = dataclasses.replace(case.problem, upper_trains=True)
    sizes = case.records().sizes
    plan = dpb.plan(problem, sizes, BUDGET, method=dpb.Tracking(steps=4), start=case.start, refit=dpb.Refit(steps=3))
    rng = np.random.default_rng(1)
    keys = jnp.asarray(rng.integers(0, 2**32, size=(2, 2), dtype=np.uint32))
    for release in plan.releases:
        assert isinstance(release, Release)
        for role in release.contributions:
            for value in (-50.0, 1e30, np.nan):
                moved = _movement(case, release, role, value, keys, rng)
                assert moved <= release.sensitivity(role) * (1 + 1e-6)


def _movement(case, release, role, value, keys, rng) -> float:
    arrays = {name: jax.tree.map(np.array, tree) for name, tree in case.data.items()}
    present = {name: np.ones(len(jax.tree.leaves(tree)[0]), bool) for name, tree in arrays.items()}
    changed = {name: jax.tree.map(np.copy, tree) for name, tree in arrays.items()}
    for leaf in jax.tree.leaves(changed[role]):
        if np.issubdtype(leaf.dtype, np.floating):
            leaf[0] = value
    x, y = (jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), part) for part in case.start)
    y, z = (jax.tree.map(lambda leaf: leaf + jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), y) for _ in "yz")
    point = (x, y, jnp.float32(1.5)) if release.name == "training" else (x, y, z, z, y)
    answers = []
    for data in (arrays, changed):
        held = {
            name: (jax.tree.map(lambda leaf: jnp.asarray(leaf, _narrow(leaf)), tree), jnp.asarray(present[name]))
            for name, tree in data.items()
        }
        with sealed():
            answers.append(jax.tree.map(np.asarray, _answer(release, held, point, keys)))
    differences = [a.astype(float) - b for a, b in zip(*map(jax.tree.leaves, answers), strict=True)]
    return math.sqrt(sum(float(np.sum(d**2)) for d in differences))


@functools.partial(jax.jit, static_argnames="release")
def _answer(release, held, point, keys):
    with jax.enable_x64(False):
        return release.answer(held, point, keys)


def _narrow(leaf) -> str:
    return "float32" if np.issubdtype(leaf.dtype, np.floating) else "int32"


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
    assert plan.numbers["hypergradient"][0] == 0


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


def test_the_difference_is_kept_within_its_bound_where_constants_are_known():
    """||d|| <= L0f/mu_g: z then is within L0f/(penalty mu_g) of y, so that the hypergradient of the leak is bounded."""
    case = leak()
    constants = dpb.Constants(
        upper_lipschitz=0.1,
        upper_smoothness=1.0,
        lower_lipschitz=2.0,
        lower_smoothness=1.0,
        lower_hessian_lipschitz=0.0,
        strong_convexity=1.0,
    )
    bound = dataclasses.replace(case, problem=dataclasses.replace(case.problem, constants=constants))
    steps = {"steps": 30, "penalty": 10.0}
    gaps = []
    for posed in (bound, case):
        plan = dpb.plan(
            posed.problem, posed.records().sizes, BUDGET, method=dpb.Tracking(**steps), start=case.start, refit=None
        )
        state = plan.program.start(*(jnp.asarray(part, jnp.float32) for part in case.start))
        answers = {"lower": state["lower"] | {"difference": jnp.full(3, 5.0)}}
        d = plan.program.stages[1].update(state, state | answers, None, 0)["d"]
        gaps.append(float(jnp.linalg.norm(d)))
    assert gaps[0] <= 0.1 * (1 + 1e-6) < gaps[1]


def test_weights_and_clips_do_not_work_against_each_other():
    """Twice the loss with twice the scale is the same run: clips grow with the scale, and noise with the clips."""
    case = sources()
    doubled = dataclasses.replace(
        case.problem,
        lower_loss=lambda x, y, record: 2 * case.problem.lower_loss(x, y, record),
        lower_scale=lambda x: 2.0,
    )
    plain = solve(case, dpb.Budget(5.0, 1e-3), steps=20)
    twice = solve(dataclasses.replace(case, problem=doubled), dpb.Budget(5.0, 1e-3), steps=20)
    np.testing.assert_allclose(plain.y, twice.y, atol=2e-3)


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
        ({"penalty": -1.0}, "penalty=-1.0"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"clip_norm": math.inf}, "clip_norm=inf"),
        ({"split": (1.0, 1.0)}, "split=.*three shares"),
        ({"split": (1.0, 1.0, 0.0)}, "split=0.0"),
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


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_rows_of_any_norm_are_solved_alike(factor):
    """Rows four times as long under four times the clip: the same weights, and a quarter of the model."""
    rng = np.random.default_rng(0)
    rows, source = rng.normal(size=(600, 4)).astype(np.float32), rng.integers(0, 3, 600).astype(np.int32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = np.sign(rows[:, 0] + 0.1).astype(np.float32) * np.where(source == 1, -1, 1).astype(np.float32)
    problem = dpb.BilevelProblem(
        upper_loss=lambda x, y, record: jax.nn.softplus(-record[1] * (record[0] @ y)),
        lower_loss=lambda x, y, record: 3 * x[record[2]] * jax.nn.softplus(-record[1] * (record[0] @ y)),
        domain=dpb.Simplex(),
        upper_trains=True,
    )

    def solved(scale):
        upper, lower = np.arange(600) < 200, np.arange(600) >= 200
        records = dpb.Records(
            upper=(scale * rows[upper], np.abs(labels[upper])),
            lower=(scale * rows[lower], labels[lower], source[lower]),
        )
        return dpb.solve(
            problem,
            records,
            dpb.Budget(20.0, 1e-4),
            method=dpb.Tracking(steps=30, clip_norm=scale),
            start=(np.full(3, 1 / 3), np.zeros(4)),
            refit=dpb.Refit(steps=20, clip_norm=scale),
            seed=0,
            progress=False,
        )

    plain, scaled = solved(1.0), solved(factor)
    np.testing.assert_allclose(scaled.x, plain.x, rtol=1e-3)
    np.testing.assert_allclose(factor * scaled.y, plain.y, rtol=1e-3, atol=1e-4)
