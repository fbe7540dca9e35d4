"""The paper's warm-up as an attack: it wins against exact bilevel, loses against privacy, and notices broken privacy.

Every interval that a test rests on has the confidence 1 - 0.01/3. A lower limit lies above the true advantage with
half the remaining probability at most, so each comparison with a bound raises a false alarm with probability at most
0.17% over seeds, and the three of a method together 0.5%. Seeds are fixed: a test that passes goes on passing.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from scipy.stats import norm

import dpbilevel as dpb
from dpbilevel.audit import leak
from dpbilevel.execution.program import Program, Stage
from dpbilevel.privacy import release as release_module
from dpbilevel.privacy.calibration import calibrate
from dpbilevel.privacy.clipping import ROUNDING
from dpbilevel.privacy.noise import KeySchedule

N, DIMENSION, DELTA = 100, 3, 1e-4
EPSILONS = (0.5, 1.0, 3.0)
CONFIDENCE = 1 - 0.01 / len(EPSILONS)


def bilevel(steps: int = 1, inner_steps: int = 2, clip_norm: float = 1.0) -> dpb.DPBilevel:
    """One outer step of two inner ones by default: short, so that one vector carries most of the budget."""
    inner = dpb.DPLocGD(strong_convexity=1.0, steps=inner_steps, rounds=1, clip_norm=clip_norm)
    return dpb.DPBilevel(inner=inner, step_size=0.5, steps=steps)


@dataclass(frozen=True, kw_only=True)
class NoisyMean:
    """One gradient step on the lower level: releases the mean of the records and nothing else, so that the best attack
    is known exactly."""

    rate: float | None = None  # of Poisson sampling, with the noise of sensitivity 1: calibrating it takes long

    def program(self, context):
        vector = jax.grad(context.problem.lower_loss, 1)
        declared = dpb.Release(
            name="mean",
            contributions={
                "lower": dpb.Contribution(lambda point, record: vector(*point, record), 1.0, N),
            },
            noise_std=1.0 if self.rate is None else 2.0 / (self.rate * N),
            uses=1,
            sampling=dpb.FullBatch() if self.rate is None else dpb.Poisson(self.rate),
            adjacency=context.budget.adjacency,
        )
        (release,) = calibrate([declared], context.budget) if self.rate is None else [declared]
        stage = Stage(
            release=release,
            uses_per_round=1,
            begin=lambda state: state,
            query=lambda state, carry, step: (carry["x"], carry["y"]),
            update=lambda state, carry, answer, step: carry | {"y": carry["y"] - answer},
            end=lambda state, carry: carry,
        )
        program = Program(
            rounds=1,
            stages=[stage],
            start=lambda x, y: {"x": x, "y": y},
            observe=lambda state: {},
            finish=lambda state: (state["x"], state["y"]),
        )
        return program, {}


def attack(method: Any, epsilon: float, trials: int = 20_000, adjacency: Any = "replace-one", seed: int = 1):
    budget = dpb.Budget(epsilon, DELTA, adjacency)
    return leak.private_attack(method, N, DIMENSION, budget, trials, seed, confidence=CONFIDENCE)


def weaken_noise(monkeypatch, factor):
    draw = release_module.standard_normal
    monkeypatch.setattr(release_module, "standard_normal", lambda key, size: factor * draw(key, size))


# ------------------------------------------------------------------------------------------------------ exact bilevel


@pytest.mark.parametrize("dimension", [1, 3, 10])
def test_exact_bilevel_gives_membership_away(dimension):
    result = leak.exact_attack(n=100, dimension=dimension, trials=1000)
    assert result.advantage > 0.95
    assert result.interval[0] > 0.95


def test_the_exact_attack_needs_its_signal(monkeypatch):
    """Scrambled, the hypergradient tells the same adversary nothing."""
    exact = leak.exact_hypergradient
    monkeypatch.setattr(
        leak, "exact_hypergradient", lambda problem, x, records: 100 * jax.numpy.sin(1e6 * exact(problem, x, records))
    )
    assert leak.exact_attack(n=100, dimension=3, trials=1000).interval[0] < 0.2


def test_the_exact_hypergradient_at_zero_is_the_mean_of_the_data():
    records, _ = leak.neighbours(N, DIMENSION, "replace-one")[0]["lower"]
    gradient = jax.jit(lambda x, records: leak.exact_hypergradient(leak._warm_up(None), x, records))
    np.testing.assert_allclose(gradient(np.zeros(DIMENSION), records), records.mean(0), atol=1e-6)
    np.testing.assert_allclose(gradient(-records.mean(0), records), 0, atol=1e-6)


def test_the_exact_hypergradient_is_that_of_finite_differences_where_x_moves_the_lower_solution():
    """In the warm-up the implicit term vanishes; here it does not."""
    slope = np.array([[1.0, 0.5], [0.0, 2.0]], np.float32)
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: 0.5 * jax.numpy.sum((x + y) ** 2),
        lower_loss=lambda x, y, record: 0.5 * jax.numpy.sum((y - slope @ x - record) ** 2),
        lower_term=lambda x, y: 0.25 * jax.numpy.sum(y**2),
    )
    records, x = np.array([[0.1, 0.7], [0.5, -0.3]], np.float32), np.array([0.3, -0.2], np.float32)

    def value(x):
        return 0.5 * np.sum((x + (slope @ x + records.mean(0)) / 1.5) ** 2)

    expected = [(value(x + 0.01 * e) - value(x - 0.01 * e)) / 0.02 for e in np.eye(2)]
    gradient = jax.jit(lambda x, records: leak.exact_hypergradient(problem, x, records))
    np.testing.assert_allclose(gradient(x, records), expected, atol=1e-4)


# ---------------------------------------------------------------------------------------------------- private methods


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_dp_bilevel_gives_away_no_more_than_privacy_allows(epsilon):
    result = attack(bilevel(), epsilon)
    assert result.interval[0] <= result.bound
    assert result.interval[0] <= result.tight_bound
    assert result.within_bounds
    # Nearly all that is charged reaches the released values, so that nearly the best attack there is comes of them.
    assert result.interval[1] >= 0.9 * result.tight_bound


@pytest.mark.parametrize("epsilon", EPSILONS[1:])
def test_a_longer_run_gives_away_no_more_than_privacy_allows(epsilon):
    """Several outer steps and the history of all of them."""
    result = attack(bilevel(steps=3, inner_steps=4), epsilon, trials=4000)
    assert result.within_bounds


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_the_attack_is_as_good_as_any_can_be_where_the_best_is_known(adjacency):
    result = attack(NoisyMean(), 3.0, adjacency=adjacency)
    assert result.within_bounds
    low, high = result.interval
    assert low <= 2 * norm.cdf(dpb.Budget(3.0, DELTA).mu / (1 + ROUNDING) / 2) - 1 <= high
    assert result.advantage > 0.9 * result.tight_bound


def test_sampled_releases_are_judged_by_their_own_profile():
    """Poisson sampling: the target is in half of the batches, so at most half the advantage of the full batch."""
    result = attack(NoisyMean(rate=0.5), 5.0)
    assert result.within_bounds
    full_batch = 2 * norm.cdf(0.5 * (1 + ROUNDING)) - 1
    assert result.tight_bound == pytest.approx(full_batch / 2, rel=1e-3)
    assert result.advantage > 0.5 * result.tight_bound


@pytest.mark.parametrize("precise", [False, True])
def test_the_runs_are_those_of_solve(precise):
    """The first of them, up to the order of sums: history and all."""
    with jax.enable_x64(precise):
        start = (np.zeros(DIMENSION), np.zeros(DIMENSION))
        problem, method, budget = leak._warm_up(None), bilevel(steps=3, inner_steps=3), dpb.Budget(1.0, DELTA)
        arrays = leak.neighbours(N, DIMENSION, "replace-one")[0]
        records = dpb.Records(lower=arrays["lower"][0])
        solution = dpb.solve(problem, records, budget, method=method, start=start, seed=7)
        planned = dpb.plan(problem, records.sizes, budget, method=method, start=start)
        start = tuple(value.astype(solution.x.dtype) for value in start)
        ((x, y, history),) = leak.released_values(planned, [arrays], start, KeySchedule(7), 2)
    tolerance = {"rtol": 1e-12 if precise else 1e-5, "atol": 1e-12 if precise else 1e-6}
    assert x.dtype == solution.x.dtype
    np.testing.assert_allclose(x[0], solution.x, **tolerance)
    np.testing.assert_allclose(y[0], solution.y, **tolerance)
    assert set(history) == set(solution.history)
    for name, values in history.items():
        np.testing.assert_allclose(values[0], solution.history[name], **tolerance)
    assert not np.allclose(y[0], y[1])  # another run, other noise


def test_no_two_runs_share_noise():
    planned = dpb.plan(
        leak._warm_up(None),
        dpb.RecordShapes(lower=jax.ShapeDtypeStruct((N, 1), "float32")),
        dpb.Budget(1.0, DELTA),
        method=NoisyMean(),
        start=(np.zeros(1), np.zeros(1)),
    )
    same = leak.neighbours(N, 1, "replace-one")[0]
    start = (np.zeros(1, np.float32), np.zeros(1, np.float32))
    runs = leak.released_values(planned, [same, same], start, KeySchedule(0), 1500)
    assert len(np.unique(np.concatenate([run[1] for run in runs]))) > 2990  # rounding makes a few equal


# ------------------------------------------------------------------------------------------------------ mutations


def test_noise_at_a_tenth_breaks_the_bound_of_epsilon_and_delta(monkeypatch):
    weaken_noise(monkeypatch, 0.1)
    result = attack(bilevel(), 1.0)
    assert result.interval[0] > result.bound
    assert not result.within_bounds


def test_noise_at_a_tenth_breaks_it_in_a_longer_run_as_well(monkeypatch):
    weaken_noise(monkeypatch, 0.1)
    result = attack(bilevel(steps=3, inner_steps=4), 1.0, trials=4000)
    assert result.interval[0] > result.bound


@pytest.mark.parametrize(("method", "epsilon", "factor"), [(bilevel(), 1.0, 0.5), (NoisyMean(), 3.0, 0.8)])
def test_slightly_weak_noise_breaks_the_tight_bound_alone(monkeypatch, method, epsilon, factor):
    weaken_noise(monkeypatch, factor)
    result = attack(method, epsilon)
    assert result.tight_bound < result.interval[0] < result.bound
    assert not result.within_bounds


def test_a_clip_that_does_not_clip_is_caught(monkeypatch):
    real = release_module.clipped_sum
    monkeypatch.setattr(
        release_module, "clipped_sum", lambda vector, records, present, clip: real(vector, records, present, math.inf)
    )
    assert not attack(bilevel(clip_norm=0.1), 1.0, trials=4000).within_bounds


def test_without_privacy_the_same_attack_wins():
    result = leak.private_attack(bilevel(steps=3), N, DIMENSION, dpb.Budget(math.inf), trials=1000)
    assert result.interval[0] > 0.95
    assert (result.bound, result.tight_bound) == (1.0, 1.0)
    assert "not private" in repr(result)


# ------------------------------------------------------------------------------------------------------- the numbers


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-4), (5.0, 0.1)])
def test_the_bounds_are_the_formulas(epsilon, delta):
    allowed = leak.allowed_advantage(dpb.Budget(epsilon, delta))
    assert allowed == pytest.approx((math.exp(epsilon) - 1 + 2 * delta) / (math.exp(epsilon) + 1), rel=1e-12)
    assert leak.allowed_advantage(dpb.Budget(2000.0, delta)) == 1.0
    assert leak.allowed_advantage(dpb.Budget(math.inf)) == 1.0


def test_the_tight_bound_is_that_of_the_gaussian_mechanism():
    result = attack(NoisyMean(), 1.0, trials=20)
    assert result.tight_bound == pytest.approx(2 * norm.cdf(dpb.Budget(1.0, DELTA).mu / 2) - 1, rel=1e-6)
    assert result.tight_bound < result.bound


def test_the_interval_covers_the_advantage_of_coins():
    """Two coins of known bias, 200 times: the interval misses at most as often as it says."""
    rng = np.random.default_rng(0)
    misses = 0
    for _ in range(200):
        _, (low, high) = leak._advantage(rng.random(50) < 0.7, rng.random(50) < 0.4, 0.95)
        misses += not low <= 0.3 <= high
    assert misses <= 10
    assert leak._advantage(np.ones(10, bool), np.zeros(10, bool), 0.95)[0] == 1.0


def test_a_result_says_it_all_in_one_line():
    result = attack(NoisyMean(), 1.0, trials=100)
    assert "\n" not in repr(result)
    for part in ("NoisyMean", "n=100", "(1, 0.0001)-DP", f"{result.bound:.3f}", f"{result.advantage:.3f}"):
        assert part in repr(result)
    with pytest.raises(AttributeError):
        result.advantage = 0.0


def test_attacks_repeat_and_seeds_differ():
    one, again, other = (attack(NoisyMean(), 1.0, trials=1000, seed=seed) for seed in (3, 3, 4))
    assert one == again
    assert one.advantage != other.advantage


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_the_data_sets_differ_in_one_record_and_keep_within_the_unit_ball(adjacency):
    one, other = (data["lower"] for data in leak.neighbours(N, DIMENSION, adjacency))
    np.testing.assert_array_equal(one[0][1:], other[0][1:])
    assert one[1].all()
    assert other[1].sum() == (N - 1 if adjacency == "zero-out" else N)
    assert np.linalg.norm(one[0][0] - other[0][0]) == pytest.approx(2.0)
    assert np.linalg.norm(np.concatenate([one[0], other[0]]), axis=1).max() <= 1 + 1e-6
    assert len(np.unique(one[0], axis=0)) == N


# --------------------------------------------------------------------------------------------------- wrong arguments

GOOD = {"n": 10, "dimension": 2, "trials": 20, "seed": 0}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("n", "dimension", "trials") for value in (0, -1, 1.5, True, "3")),
        *(("seed", value) for value in (-1, 0.5, True, None)),
        *(("confidence", value) for value in (0.0, 1.0, 2.0, math.nan, "high")),
    ],
)
def test_wrong_arguments_are_named(name, value):
    with pytest.raises(dpb.InvalidArgument, match=f"^{name}="):
        leak.exact_attack(**GOOD | {name: value})
    with pytest.raises(dpb.InvalidArgument, match=f"^{name}="):
        leak.private_attack(bilevel(), budget=dpb.Budget(1.0, 1e-3), **GOOD | {name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("trials", 19, "trials=19: must be at least 20"),
        ("method", "DPBilevel", "method: must be"),
        ("budget", 1.0, "budget: must be"),
        ("budget", dpb.Budget(1.0, 0.2), "delta=0.2: must be below 1/n"),
        ("constants", 1.0, "constants: must be"),
    ],
)
def test_wrong_arguments_of_the_private_attack_are_named(name, value, message):
    arguments = GOOD | {"method": bilevel(), "budget": dpb.Budget(1.0, 1e-3)} | {name: value}
    with pytest.raises(dpb.InvalidArgument, match=message):
        leak.private_attack(**arguments)
