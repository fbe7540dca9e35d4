"""Audits with one run: many canaries at once, each in one of two versions, selected by independent coins.

These are for data sets on which thousands of runs are too expensive. The adversary sees the released values of one run,
scores every canary by how much better the released model fits one version than the other, and guesses the coins of the
highest and the lowest scores. `dpbilevel.audit.bounds` states the theorem. One run proves less than many runs: the
bound is good if canaries are nearly independent and each has a signal above the noise.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from dpbilevel.audit.auditing import checked, verdict
from dpbilevel.audit.bounds import one_run_lower_bound
from dpbilevel.audit.case import by_role
from dpbilevel.audit.runs import released_values
from dpbilevel.audit.verdict import Audit
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import one_of, printable
from dpbilevel.methods.refit import Refit
from dpbilevel.planning import DEFAULT_METHOD, Method, checked_start, prepare
from dpbilevel.privacy.accounting import ROLES
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.noise import membership
from dpbilevel.privacy.record_shapes import RecordShapes
from dpbilevel.problem import BilevelProblem

Tree = Any

_FRACTIONS = (
    1.0,
    0.5,
    0.25,
    0.125,
    0.0625,
)  # fractions of canaries to guess; all are tried, each with a share of the error probability


def one_run(
    problem: BilevelProblem,
    records: Mapping[str, Tree],
    alternatives: Tree,
    budget: Budget,
    *,
    role: str = "lower",
    start: tuple[Tree, Tree] | None = None,
    method: Method = DEFAULT_METHOD,
    refit: Refit | str | None = "auto",
    name: str = "one run",
    confidence: float = 0.95,
    seed: int = 0,
) -> Audit:
    """Audit a method with a single run on data with many canaries.

    Args:
        problem: as in `dpb.solve`.
        records: a pytree of synthetic arrays by role. The first m records of ``role`` are the canaries.
        alternatives: the other versions of the m canaries. Under "zero-out", a canary with coin zero contributes
            nothing instead, and its alternative is only used for its score.
        budget: the budget of the run, with a finite epsilon.
        role: "upper", "lower" or "both".
        start, method, refit: as in `dpb.solve`.
        name: the name of the audit in tables.
        confidence: confidence level of the bound.
        seed: seed of coins and noise.

    Canaries are most effective if their gradients are orthogonal and reach the clip norm; a model with d parameters has
    room for d of them.

    >>> import numpy as np, dpbilevel as dpb
    >>> problem = dpb.BilevelProblem(upper_term=lambda x, y: 0.5 * x**2, lower_loss=lambda x, y, record: -(y @ record))
    >>> canaries = np.eye(400)
    >>> inner = dpb.DPLocGD(strong_convexity=1.0, steps=1, rounds=1)
    >>> found = dpb.audit.one_run(
    ...     problem,
    ...     {"lower": canaries},
    ...     -canaries,
    ...     dpb.Budget(8.0, 1e-4),
    ...     start=(0.0, np.zeros(400)),
    ...     method=dpb.DPBilevel(inner=inner, steps=1, step_size=0.1),
    ... )
    >>> 0.5 < found.lower_bound <= found.claimed
    True
    """
    schedule = checked(budget, confidence, seed)
    printable("name", name, "it names the audit in tables")
    one_of("role", role, ROLES, "it is the role of the canaries")
    arrays = by_role("records", records)
    versions = by_role("alternatives", {"lower": alternatives})["lower"]
    number = _canaries(arrays.get(role), versions)
    first = jax.tree.map(lambda leaf: leaf[:number], arrays[role])
    # Keys of batches that are beyond all uses of this run: coins must be independent of noise.
    key = schedule.keys("batch", 2**40, 1)[0]
    with jax.enable_x64(True):
        coins = np.asarray(membership(key, 0.5, number))
    planned = prepare(problem, RecordShapes(**arrays), budget, method, start, refit)
    valid = {role: np.ones(planned.sizes.count(role), bool) for role in arrays}
    if budget.adjacency == "zero-out":
        valid[role][:number] = coins
    else:
        arrays[role] = jax.tree.map(lambda kept, other: _mixed(kept, other, coins), arrays[role], versions)
    data_set = {role: (tree, valid[role]) for role, tree in arrays.items()}
    ((x, y, _),) = released_values(planned, [data_set], checked_start(problem, start), schedule, 1)
    level = problem.upper_loss if role == "upper" else problem.lower_loss
    x, y = jax.tree.map(lambda leaf: leaf[0], (x, y))
    losses = jax.jit(jax.vmap(lambda record: level(x, y, record)))  # type: ignore[misc]
    scores = np.asarray(losses(versions), np.float64) - np.asarray(losses(first), np.float64)
    delta = float(budget.delta or 0.0)
    return verdict(
        name,
        planned,
        lower=epsilon_from_guesses(scores, coins, delta, confidence),
        upper=float("inf"),
        reach=_reach(number, planned.privacy.epsilon(), delta, confidence),
        confidence=confidence,
        runs=1,
        canaries=number,
    )


def epsilon_from_guesses(scores: npt.ArrayLike, coins: npt.ArrayLike, delta: float, confidence: float) -> float:
    """Lower bound on epsilon from guessing coins by scores: high scores are heads, low ones tails, others abstain.

    Five numbers of guesses are tried, each with a fifth of the allowed error probability. The choice of guesses depends
    on scores alone, and scores on the output alone.
    """
    order = np.argsort(-np.asarray(scores), kind="stable")
    coins = np.asarray(coins, bool)
    number = len(order)
    each, proved = 1 - (1 - confidence) / len(_FRACTIONS), [0.0]
    for fraction in _FRACTIONS:
        side = int(fraction * number) // 2
        if side:
            right = int(coins[order[:side]].sum() + (~coins[order[-side:]]).sum())
            proved.append(one_run_lower_bound(number, 2 * side, right, delta, each))
    return max(proved)


def _reach(number: int, epsilon: float, delta: float, confidence: float) -> float:
    """The bound if guesses are correct as often as pure epsilon-DP allows."""
    side = number // 2
    right = int(binom.median(2 * side, 1 / (1 + np.exp(-epsilon)))) if side else 0
    return one_run_lower_bound(number, 2 * side, right, delta, 1 - (1 - confidence) / len(_FRACTIONS))


def _canaries(tree: Tree, alternatives: Tree) -> int:
    """The number of canaries; raises unless alternatives match the records of the role."""
    leaves, structure = jax.tree.flatten(tree)
    others, same = jax.tree.flatten(alternatives)
    fits = [structure] == [same] and all(
        other.shape[1:] == leaf.shape[1:] and 1 < len(other) <= len(leaf)
        for leaf, other in zip(leaves, others, strict=True)
    )
    if tree is None or not fits or len({len(other) for other in others}) != 1:
        raise InvalidArgument(
            "alternatives: must hold at least two records, with the structure of records[role] and no more than it has"
        )
    return len(others[0])


def _mixed(kept: Any, other: Any, coins: npt.NDArray[np.bool_]) -> Any:
    shape = (len(coins),) + (1,) * (kept.ndim - 1)
    mixed = np.array(kept)
    mixed[: len(coins)] = np.where(coins.reshape(shape), kept[: len(coins)], other)
    return mixed
