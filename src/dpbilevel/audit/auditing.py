"""Audits by two data sets: many runs on each, and what an adversary who sees all that is released can tell.

The adversary knows both data sets, the method and every public number. It does not know the noise. Half of the runs on
each data set choose its test, the other half judge it, so that the bound holds however the test was chosen.
"""

import numbers
from typing import Any

import numpy as np

from dpbilevel.audit.bounds import epsilon_lower_bound, epsilon_upper_bound
from dpbilevel.audit.case import Case
from dpbilevel.audit.distinguisher import chosen, rows
from dpbilevel.audit.runs import released_values
from dpbilevel.audit.verdict import Audit
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count, positive
from dpbilevel.planning import Plan
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.spend import Privacy

FEWEST = 40  # runs on each data set; fewer prove nothing


def audit(case: Case, budget: Budget, *, runs: int = 4000, confidence: float = 0.99, seed: int = 0) -> Audit:
    """Attack what runs of a method release, and say what that proves about epsilon.

    The plan is that of `dpb.plan`, and all runs happen in one compiled program with the noise of the library. The
    attack sees all of a solution: x, y and the history. The bound is by exact binomial limits, and too large with
    probability 1 - confidence at most, over the noise.

    Args:
        case: method, problem and two neighbouring data sets, which must be synthetic.
        budget: of each run, private.
        runs: on each data set.
        confidence: of the bound. For k audits that are to hold together, give 1 - (1 - confidence)/k.
        seed: of the noise: an audit protects nobody and may be repeated.

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
        raise InvalidArgument(f"runs={runs!r}: must be at least {FEWEST}; half of them choose the attack")
    planned = case.planned(budget)
    one, other = map(rows, released_values(planned, case.data_sets(budget.adjacency), case.starting(), schedule, runs))
    half, delta = runs // 2, float(budget.delta or 0.0)
    rule = chosen(one[:half], other[:half], delta, confidence)
    judged = runs - half
    true, false = rule.counts(one[half:], other[half:])
    return verdict(
        case.name,
        planned,
        lower=float(epsilon_lower_bound(true, false, judged, delta, confidence)),
        upper=epsilon_upper_bound(true, false, judged, delta, confidence),
        reach=reach(planned.privacy, judged, confidence),
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
    """What was found, with what the plan says of itself."""
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


def reach(privacy: Privacy, judged: int, confidence: float) -> float:
    """What the best of all attacks would prove on average, if the trade-off curve of the claim were met exactly."""
    false = np.unique(np.geomspace(1, judged / 2, 60).astype(int)) - 1
    true = np.floor(judged * (1 - privacy.tradeoff(np.maximum(false, 0.5) / judged))).astype(int)
    delta = float(privacy.budget.delta or 0.0)
    return float(np.max(epsilon_lower_bound(true, false, judged, delta, confidence)))


def claim(budget: Any) -> Budget:
    """The budget, or a typed error: what an audit is about must be private."""
    if not isinstance(budget, Budget) or not budget.is_private:
        raise InvalidArgument("budget: must be dpb.Budget(epsilon, delta) with a finite epsilon; it is what is claimed")
    return budget


def checked(budget: Any, confidence: Any, seed: Any) -> KeySchedule:
    """The noise of an audit, or a typed error about what was asked for."""
    claim(budget)
    if positive("confidence", confidence, "it is that of the bound (try 0.99)") >= 1:
        raise InvalidArgument(f"confidence={confidence!r}: must be below 1; it is that of the bound (try 0.99)")
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise InvalidArgument(f"seed={seed!r}: must be a whole number >= 0; it makes the audit repeatable (try 0)")
    return KeySchedule(int(seed))
