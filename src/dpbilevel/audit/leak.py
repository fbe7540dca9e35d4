"""The paper's introductory example as a membership attack: exact bilevel optimisation reveals a record.

    f(x, y) = ||x + y||^2/2, which reads no record,      g(x, y) = (1/n) sum over records of ||y - record||^2/2

The exact hypergradient at x = 0 is the mean of the data, so that an adversary who knows all other records can compute
the last one. Here the adversary knows all other records and two candidates for the last one, sees all released values
of a run, and decides which candidate was in the data. Its advantage is TPR - FPR, the difference of the rates at which
it decides for the target when the target is in the data and when it is not.

Under (epsilon, delta)-DP, the advantage of any adversary is at most (e^epsilon - 1 + 2 delta)/(e^epsilon + 1). The
entire privacy profile bounds it by delta(0), which is 2 Phi(mu/2) - 1 for mu-GDP and much smaller. If the lower
confidence limit of the advantage exceeds either bound, there is a bug, at that confidence.

The data are synthetic and the noise has a fixed seed: an audit has no privacy to protect.
"""

import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from dpbilevel.audit.attack import Attack, allowed_advantage
from dpbilevel.audit.distinguisher import discriminant
from dpbilevel.audit.runs import batch_size, released_values
from dpbilevel.constants import Constants
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count, positive
from dpbilevel.foundation.precision import user_float
from dpbilevel.planning import Method, plan
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.record_shapes import RecordShapes
from dpbilevel.problem import BilevelProblem

__all__ = ["Attack", "allowed_advantage", "exact_attack", "exact_hypergradient", "private_attack"]

Tree = Any
Array = npt.NDArray[np.floating[Any]]
Arrays = dict[str, tuple[Array, npt.NDArray[np.bool_]]]  # by role: records, and which of them are valid

_FEWEST = 20  # minimum number of trials: half of them choose the threshold


def exact_attack(n: int, dimension: int, trials: int, seed: int = 0, *, confidence: float = 0.99) -> Attack:
    """Attack exact bilevel optimisation: one exact hypergradient at x = 0, without noise.

    Every trial has its own target and replacement, two typical points of the population. The adversary picks the
    candidate whose data set has the hypergradient nearest to the released one.

    Args:
        n: number of records.
        dimension: dimension of a record.
        trials: number of pairs of neighbouring data sets; each is attacked with and without its target.
        seed: seed of the synthetic data.
        confidence: confidence level of the interval.

    >>> exact_attack(n=100, dimension=3, trials=1000)
    Attack(exact bilevel, n=100: advantage 1.000 in [0.988, 1.000] at 99%; not private; 1000 trials)
    """
    n, dimension, trials, seed = _checked(n, dimension, trials, seed, confidence)
    others = _points(seed, n - 1, dimension)
    candidates = _points(seed, trials, 2 * dimension).reshape(trials, 2, dimension) * math.sqrt(2)
    problem = _warm_up(None)

    def released(candidate: jax.Array) -> jax.Array:
        records = jnp.concatenate([candidate[None], jnp.asarray(others)])
        return exact_hypergradient(problem, jnp.zeros(dimension, user_float()), records)

    seen = jax.jit(lambda points: jax.lax.map(released, points, batch_size=batch_size(n * dimension)))
    # The adversary can compute the mean of each data set.
    answers = (candidates.astype(np.float64) + others.sum(0, dtype=np.float64)) / n
    says_target = [
        np.sum((view - answers[:, 1]) ** 2, axis=1) > np.sum((view - answers[:, 0]) ** 2, axis=1)
        for view in (np.asarray(seen(candidates[:, world]), dtype=np.float64) for world in (0, 1))
    ]
    advantage, interval = _advantage(says_target[0], says_target[1], confidence)
    return Attack(
        method="exact bilevel",
        advantage=advantage,
        interval=interval,
        confidence=confidence,
        tight_bound=1.0,
        n=n,
        dimension=dimension,
        budget=Budget(math.inf),
        trials=trials,
    )


def private_attack(
    method: Method,
    n: int,
    dimension: int,
    budget: Budget,
    trials: int,
    seed: int = 0,
    *,
    confidence: float = 0.99,
    constants: Constants | None = None,
) -> Attack:
    """Attack a private method on two neighbouring data sets that differ as much as records of norm 1 can.

    The target is a unit vector u, and its replacement is -u (under "zero-out": nothing). The plan is that of
    `dpbilevel.plan`. All runs are part of one compiled program, with the noise of the library. The adversary sees the
    entire solution: x, y and the history. It projects every released vector on u, the direction in which the exact
    answers of the two data sets differ, and combines the projections by Fisher's linear discriminant (the likelihood
    ratio if all values are Gaussian). Weights and threshold are chosen on one half of the runs, and the advantage is
    measured on the other half, so that the interval is valid.

    Args:
        method: the method under attack; give it ``clip_norm=1``, the norm of the target's gradient at the start.
        n: number of records.
        dimension: dimension of a record.
        budget: the budget of each run.
        trials: number of runs on each of the two data sets.
        seed: seed of the noise.
        confidence: confidence level of the interval.
        constants: constants of the problem, for methods that need them.

    >>> import dpbilevel as dpb
    >>> method = dpb.DPBilevel(inner=dpb.DPLocGD(strong_convexity=1.0, steps=2, rounds=1), step_size=0.5, steps=1)
    >>> private_attack(method, n=100, dimension=2, budget=dpb.Budget(1.0, 1e-4), trials=2000).within_bounds
    True
    """
    n, dimension, trials, seed = _checked(n, dimension, trials, seed, confidence)
    if trials < _FEWEST:
        raise InvalidArgument(
            f"trials={trials!r}: must be at least {_FEWEST}; half of them are used to choose the threshold"
        )
    schedule, direction = KeySchedule(seed), np.full(dimension, 1 / math.sqrt(dimension), user_float())
    start = (np.zeros(dimension, user_float()), np.zeros(dimension, user_float()))
    sizes = RecordShapes(lower=jax.ShapeDtypeStruct((n, dimension), user_float()))
    planned = plan(_warm_up(constants), sizes, budget, method=method, start=start)
    with_target, without = neighbours(n, dimension, budget.adjacency)
    views = [
        _projected(run, direction) for run in released_values(planned, [with_target, without], start, schedule, trials)
    ]
    half = trials // 2
    weights = discriminant(views[0][:half], views[1][:half])
    scores = [view @ weights for view in views]
    threshold = _best_threshold(scores[0][:half], scores[1][:half])
    advantage, interval = _advantage(scores[0][half:] > threshold, scores[1][half:] > threshold, confidence)
    return Attack(
        method=type(method).__name__,
        advantage=advantage,
        interval=interval,
        confidence=confidence,
        tight_bound=planned.privacy.delta(0.0),
        n=n,
        dimension=dimension,
        budget=budget,
        trials=trials,
    )


def exact_hypergradient(problem: BilevelProblem, x: jax.Array, records: jax.Array) -> jax.Array:
    """The gradient of F by the implicit function theorem, for lower levels that are quadratic in y. NOT private.

    grad F = grad_x f - (d^2 g/dx dy)^T (d^2 g/dy^2)^-1 grad_y f  at y*(x), which takes one Newton step.
    """

    def lower(x: jax.Array, y: jax.Array) -> jax.Array:
        losses = jax.vmap(lambda record: problem.lower_loss(x, y, record))(records)
        return problem.term("lower")(x, y) + jnp.mean(losses)

    upper, gradient = problem.term("upper"), jax.grad(lower, 1)
    origin = jnp.zeros(records.shape[1:], records.dtype)
    curvature = jax.jacfwd(gradient, 1)(x, origin)
    y = origin - jnp.linalg.solve(curvature, gradient(x, origin))
    adjoint = jnp.linalg.solve(curvature, jax.grad(upper, 1)(x, y))
    return jax.grad(upper)(x, y) - jax.jacfwd(gradient, 0)(x, y).T @ adjoint


def neighbours(n: int, dimension: int, adjacency: str) -> tuple[Arrays, Arrays]:
    """The data sets of the private attack, with the target and without it, as arguments of the compiled loop."""
    target = np.full((1, dimension), 1 / math.sqrt(dimension), user_float())
    others, everybody = _points(0, n - 1, dimension), np.ones(n, bool)
    valid = everybody.copy()
    valid[0] = adjacency != "zero-out"  # under zero-out the target is removed, under replace-one it is replaced by -u
    return (
        {"lower": (np.concatenate([target, others]), everybody)},
        {"lower": (np.concatenate([-target, others]), valid)},
    )


def _warm_up(constants: Constants | None) -> BilevelProblem:
    """The paper's example, with g as a mean."""
    return BilevelProblem(
        upper_term=lambda x, y: 0.5 * jnp.sum((x + y) ** 2),
        lower_loss=lambda x, y, record: 0.5 * jnp.sum((y - record) ** 2),
        constants=constants,
    )


def _points(seed: int, number: int, dimension: int) -> Array:
    """Evenly spread points of norm at most 1, from an additive recurrence: no random numbers are needed."""
    base = 1.0
    for _ in range(64):  # the positive root of base^(dimension + 1) = base + 1, whose powers are hard to approximate
        base = (1 + base) ** (1 / (dimension + 1))
    steps = base ** -np.arange(1.0, dimension + 1)
    indices = np.arange(1.0, number + 1)[:, None] + seed % 2**20 * math.pi
    return ((2 * (indices * steps % 1) - 1) / math.sqrt(dimension)).astype(user_float())


def _projected(released: tuple[Tree, Tree, Tree], direction: Array) -> Array:
    """One row per run: the projections of x, of y, and of each vector of the history."""
    x, y, history = released
    vectors = [leaf[:, None] for leaf in jax.tree.leaves((x, y)) if leaf.shape[1:] == direction.shape]
    vectors += [leaf for leaf in jax.tree.leaves(history) if leaf.shape[2:] == direction.shape]
    return np.concatenate([vector.astype(np.float64) @ direction for vector in vectors], axis=1)


def _best_threshold(present: Array, absent: Array) -> float:
    """The threshold with the largest TPR - FPR."""
    candidates = np.concatenate([present, absent])
    above = [1 - np.searchsorted(np.sort(scores), candidates, "right") / len(scores) for scores in (present, absent)]
    return float(candidates[np.argmax(above[0] - above[1])])


def _advantage(
    present: npt.NDArray[np.bool_], absent: npt.NDArray[np.bool_], confidence: float
) -> tuple[float, tuple[float, float]]:
    """TPR - FPR and its interval, from the adversary's decisions on runs with the target and without it."""
    each = 1 - (1 - confidence) / 2  # union bound over two intervals
    true, false = (
        binomtest(int(decisions.sum()), decisions.size).proportion_ci(each, "exact") for decisions in (present, absent)
    )
    return float(present.mean() - absent.mean()), (float(true.low - false.high), float(true.high - false.low))


def _checked(n: Any, dimension: Any, trials: Any, seed: Any, confidence: Any) -> tuple[int, int, int, int]:
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise InvalidArgument(f"seed={seed!r}: must be a whole number >= 0; it makes the attack reproducible (try 0)")
    if positive("confidence", confidence, "it is the confidence level of the interval (try 0.99)") >= 1:
        raise InvalidArgument(
            f"confidence={confidence!r}: must be below 1; it is the confidence level of the interval (try 0.99)"
        )
    return (
        count("n", n, "it is the number of records (try 100)"),
        count("dimension", dimension, "it is the number of coordinates of a record (try 3)"),
        count("trials", trials, "it is the number of runs with the target, and without it (try 1000)"),
        int(seed),
    )
