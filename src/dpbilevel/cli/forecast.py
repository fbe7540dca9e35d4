"""The cost and noise of a run, from sizes alone: its plan, the bounds of the theorems, the number of rows needed."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dpbilevel import estimators
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.targets import TARGET_BOUND
from dpbilevel.execution.notices import TRAINING_RATIO, records_needed
from dpbilevel.paper.planner import TheoryPlan
from dpbilevel.paper.planner import plan as theory_plan
from dpbilevel.planning import Plan

_FAILURE = 0.05  # failure probability of the bound of the theorems
_TARGET = 0.1  # a useful norm of the hypergradient; losses have gradients of norm about one


@dataclass(frozen=True, eq=False)
class Forecast:
    """A plan, and numbers derived from it.

    Attributes:
        planned: the plan of the run.
        noise_to_signal: noise-to-signal ratio of training, sigma sqrt(d)/(n C).
        rows_needed: number of rows at which that would be acceptable (`records_needed`).
        theory: the guarantee of the paper's theorems for its own algorithm at these sizes.
        theory_rows: number of rows at which they guarantee a hypergradient norm of at most 0.1; None if no number does.
    """

    planned: Plan
    noise_to_signal: float
    rows_needed: int
    theory: TheoryPlan | None
    theory_rows: int | None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        privacy, sizes = self.planned.privacy, self.planned.sizes
        return {
            "guarantee": privacy.sentence(),
            "epsilon": privacy.epsilon(),
            "delta": privacy.budget.delta,
            "adjacency": privacy.budget.adjacency,
            "roles": {
                role: {"records": sizes.count(role), "epsilon": privacy.epsilon(role=role)} for role in privacy.charges
            },
            "noise_to_signal": self.noise_to_signal,
            "rows_needed": self.rows_needed,
            "theory": None
            if self.theory is None
            else {"gradient": self.theory.alpha, "vacuous": self.theory.vacuous, "rows_needed": self.theory_rows},
            "numbers": {name: [_plain(value), why] for name, (value, why) in self.planned.parameters.items()},
        }


def forecast(planned: Plan) -> Forecast:
    """Compute the forecast from a plan."""
    rows = sum(map(planned.sizes.count, planned.sizes.roles))
    ratio = float(planned.parameters.get(TRAINING_RATIO, (0.0, ""))[0])  # absent without noise
    theory = _theory(planned, rows)
    needed = None
    if theory is not None:
        try:
            needed = theory.records_needed(_TARGET)
        except InvalidArgument:  # no number of rows is enough
            needed = None
    return Forecast(planned, ratio, records_needed(rows, ratio), theory, needed)


def planned_for(
    *,
    rows: int,
    columns: int,
    classes: int,
    penalties: int,
    sources: int,
    validation_rows: int | None,
    settings: dict[str, Any],
) -> Plan:
    """The plan of an estimator. Zero classes: a numeric target; zero sources: penalties are tuned."""
    for option, number, least in (("--columns", columns, 1), ("--sources", sources, 0)):
        if number < least:
            raise InvalidArgument(f"{option} {number}: must be a whole number >= {least}")
    if classes and classes < 2:
        raise InvalidArgument(f"--classes {classes}: must be 0, for a numeric target, or at least 2")
    if not 1 <= penalties <= columns:
        raise InvalidArgument(f"--penalties {penalties}: must be between 1 and --columns {columns}")
    known: dict[str, Any] = {"classes": list(range(classes))} if classes else {"target_range": (0.0, 1.0)}
    if sources:
        kind: Any = estimators.DPSourceWeightedClassifier if classes else estimators.DPSourceWeightedRegressor
        return kind(**settings, **known, source_names=list(range(sources))).plan(rows, columns, validation_rows)
    if validation_rows is not None:
        raise InvalidArgument("--validation-rows: requires --sources; penalties are tuned on a fraction of the rows")
    groups = [at * penalties // columns for at in range(columns)]
    kind = estimators.DPLogisticRegressionCV if classes else estimators.DPRidgeCV
    return kind(**settings, **known, groups=groups).plan(rows, columns)


def _theory(planned: Plan, rows: int) -> TheoryPlan | None:
    """The bound of the theorems, for problems with certified constants."""
    problem, budget = planned.problem, planned.budget
    if planned.sizes.rows_per_unit is not None:
        return None  # constants are those of rows
    if problem.constants is None or problem.start is None or not budget.is_private:
        return None
    d_x, d_y = (sum(int(np.size(leaf)) for leaf in jax.tree.leaves(tree)) for tree in problem.start)
    constants = problem.constants
    # With losses of at most ``value`` at y = 0, solutions have norm at most sqrt(2 value/mu). The validation loss at a
    # solution exceeds its minimum, which is at least 0, by at most value + L0 times that norm.
    value = max(math.log(max(2, d_y)), TARGET_BOUND**2 / 2) * d_x
    gap = value + constants.upper_lipschitz * math.sqrt(2 * value / constants.strong_convexity)
    return theory_plan(constants, rows, d_x, d_y, budget, _FAILURE, gap=gap)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    number = value.item() if hasattr(value, "item") else value
    return str(number) if isinstance(number, float) and not math.isfinite(number) else number
