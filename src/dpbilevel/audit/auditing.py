"""Audits with many runs on each of two neighbouring data sets, by an adversary who sees all released values.

The adversary knows both data sets, the method and all public numbers, but not the noise. It chooses its test on one
half of the runs and applies it to the other half, so that the bound holds for any choice of the test.
"""

import numbers
from typing import Any

import numpy as np

from dpbilevel.audit.bounds import epsilon_lower_bound, epsilon_upper_bound
from dpbilevel.audit.case import Case
from dpbilevel.audit.distinguisher import choose_rule, rows
from dpbilevel.audit.runs import released_values
from dpbilevel.audit.verdict import Audit
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count, positive
from dpbilevel.planning import Plan
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.spend import Privacy

FEWEST = 40  # minimum number of runs on each data set; fewer cannot prove anything


def audit(case: Case, budget: Budget, *, runs: int = 4000, confidence: float = 0.99, seed: int = 0) -> Audit:
    """Attack the released values of a method, and compute a lower bound on its epsilon.

    The plan is that of `dpb.plan`. All runs are part of one compiled program, with the noise of the library. The attack
    sees the entire solution: x, y and the history. The bound uses exact binomial confidence limits; it exceeds the true
    epsilon with probability at most 1 - confidence, over the noise.

    Args:
        case: method, problem and two neighbouring data sets, which must be synthetic.
        budget: the budget of each run, with a finite epsilon.
        runs: number of runs on each data set.
        confidence: confidence level of the bound. For k simultaneous audits, pass 1 - (1 - confidence)/k.
        seed: seed of the noise: the data are synthetic, so that an audit may be reproducible.

    >>> import numpy as np, dpbilevel as dpb
    >>> case = dpb.audit.standard_cases(dpb.Budget(4.0, 1e-2))[0]
    >>> found = dpb.audit.audit(case, dpb.Budget(4.0, 1e-2), runs=2000)
    >>> 1.0 < found.lower_bound <= found.claimed, found.passed
    (True, True)
    """
    if not isinstance(case, Case):
        raise InvalidArgument(f"case: must be a dpb.audit.Case(...), not {type(case).__name__}")
    schedule = checked(budget, confidence, seed)
    if count("runs", runs, "it is the number of runs on each data set (try 4000)") < FEWEST:
        raise InvalidArgument(f"runs={runs!r}: must be at least {FEWEST}; half of them are used to choose the attack")
    planned = case.planned(budget)
    one, other = map(rows, released_values(planned, case.data_sets(budget.adjacency), case.starting(), schedule, runs))
    half, delta = runs // 2, float(budget.delta or 0.0)
    rule = choose_rule(one[:half], other[:half], delta, confidence)
    evaluated = runs - half
    true, false = rule.counts(one[half:], other[half:])
    return verdict(
        case.name,
        planned,
        lower=float(epsilon_lower_bound(true, false, evaluated, delta, confidence)),
        upper=epsilon_upper_bound(true, false, evaluated, delta, confidence),
        reach=reach(planned.privacy, evaluated, confidence),
        confidence=confidence,
        runs=runs,
    )


def verdict(
    name: str,
    planned: Plan,
    *,
    lower: float,
    upper: float,
    reach: float,
    confidence: float,
    runs: int,
    canaries: int | None = None,
) -> Audit:
    """The result of an audit, with the claim and the sizes of the plan."""
    return Audit(
        name=name,
        claimed=planned.privacy.epsilon(),
        delta=float(planned.budget.delta or 0.0),
        adjacency=planned.budget.adjacency,
        lower_bound=lower,
        upper_bound=upper,
        reach=reach,
        confidence=confidence,
        runs=runs,
        records=sum(map(planned.sizes.count, planned.sizes.roles)),
        releases=sum(release.uses for release in planned.releases),
        canaries=canaries,
    )


def reach(privacy: Privacy, evaluated: int, confidence: float) -> float:
    """The bound that an optimal attack would prove on average if the claimed trade-off curve were tight."""
    false = np.unique(np.geomspace(1, evaluated / 2, 60).astype(int)) - 1
    true = np.floor(evaluated * (1 - privacy.tradeoff(np.maximum(false, 0.5) / evaluated))).astype(int)
    delta = float(privacy.budget.delta or 0.0)
    return float(np.max(epsilon_lower_bound(true, false, evaluated, delta, confidence)))


def claim(budget: Any) -> Budget:
    """The budget, checked: its epsilon must be finite."""
    if not isinstance(budget, Budget) or not budget.is_private:
        raise InvalidArgument(
            "budget: must be dpb.Budget(epsilon, delta) with a finite epsilon; it is the claim under test"
        )
    return budget


def checked(budget: Any, confidence: Any, seed: Any) -> KeySchedule:
    """Check the arguments of an audit; returns the keys of its noise."""
    claim(budget)
    if positive("confidence", confidence, "it is the confidence level of the bound (try 0.99)") >= 1:
        raise InvalidArgument(
            f"confidence={confidence!r}: must be below 1; it is the confidence level of the bound (try 0.99)"
        )
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise InvalidArgument(f"seed={seed!r}: must be a whole number >= 0; it makes the audit reproducible (try 0)")
    return KeySchedule(int(seed))
