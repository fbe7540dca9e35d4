"""How far penalties may rise: to the end of their range, or to its middle where validation rows cannot be heard.

A penalty that is too small costs little: noise and the number of steps limit the model as well. One that is too large
leaves no model at all, and all larger ones are as bad, so that tuning that strays there finds no way back. It does
stray, now and then, where the planned noise of a validation pass is louder than what all rows can say
(tests/test_penalties.py shows it). There it starts and stays in the lower half of the range, and the worst that it can
find is the penalty that untuned models have. These are public numbers: sizes and budget decide, never a record.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dpbilevel.applications.regularization import PENALTIES
from dpbilevel.estimators.base import PrivateEstimator
from dpbilevel.execution.notices import PASS_LIMIT
from dpbilevel.planning import Plan
from dpbilevel.problem import BilevelProblem
from dpbilevel.records import RecordShapes

Range = tuple[float, float]

_LOWER_HALF: Range = (PENALTIES[0], math.sqrt(PENALTIES[0] * PENALTIES[1]))  # of logarithms


@dataclass(kw_only=True, eq=False, repr=False)
class PenaltyEstimator(PrivateEstimator):
    """An estimator that tunes penalties."""

    def _in_reach(self, problem_within: Callable[[Range], BilevelProblem], sizes: RecordShapes) -> BilevelProblem:
        """The problem with as large penalties as can be told from too large ones."""
        whole = problem_within(PENALTIES)
        told = super()._planned(whole, sizes).parameters.get("validation pass: noise to signal", (0.0, ""))
        return whole if told[0] <= PASS_LIMIT else problem_within(_LOWER_HALF)

    def _planned(self, problem: BilevelProblem, sizes: RecordShapes) -> Plan:
        planned = super()._planned(problem, sizes)
        largest = math.exp(float(problem.domain.upper))
        reason = "a model of next to nothing: the end of the range"
        if not math.isclose(largest, PENALTIES[1]):
            reason = (
                "the middle of the range: a validation pass has more noise than signal, which may mislead it further"
            )
        return replace(planned, parameters={**planned.parameters, "largest penalty": (largest, reason)})
