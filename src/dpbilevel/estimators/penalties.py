"""How far penalties may rise: to the end of their range, or to its middle where validation rows cannot be heard.

A penalty that is too small costs little: noise and the number of steps limit the model as well. One that is too large
leaves no model at all, and all larger ones are as bad, so that tuning that strays there finds no way back. It does
stray, now and then, where the planned noise of a validation pass is louder than what all rows can say
(test_penalties.py shows it). There it starts and stays in the lower half of the range, and the worst that it can
find is the penalty that untuned models have. These are public numbers: sizes and budget decide, never a record.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from dpbilevel.applications.regularization import PENALTIES, regularization
from dpbilevel.estimators.groups import numbered_groups
from dpbilevel.estimators.linear import LinearEstimator
from dpbilevel.estimators.prepared import Prepared, Unread
from dpbilevel.execution.notices import PASS_LIMIT
from dpbilevel.planning import Plan
from dpbilevel.problem import BilevelProblem
from dpbilevel.solution.solution import Legend

Range = tuple[float, float]

_LOWER_HALF: Range = (PENALTIES[0], math.sqrt(PENALTIES[0] * PENALTIES[1]))  # of logarithms


@dataclass(kw_only=True, eq=False, repr=False)
class PenaltyEstimator(LinearEstimator):
    """An estimator that tunes penalties."""

    groups: Any = None

    def fit(self, X: Any, y: Any, *, checkpoint: str | Path | None = None) -> Self:
        """Tune and train. The whole spend is charged before the first step.

        Args:
            X, y: rows and targets.
            checkpoint: path of a file from which an interrupted fit resumes, as in `dpbilevel.solve`. It is as secret
                as the rows; delete it once the model is saved.
        """
        return self._fit(self._prepare(X, y), checkpoint)

    def plan(self, rows: int, columns: int) -> Plan:
        """Plan a fit from sizes alone: what it will spend, and how large its noise will be. Classes must be declared.

        >>> from dpbilevel.estimators import DPLogisticRegressionCV
        >>> DPLogisticRegressionCV(epsilon=1.0, classes=["no", "yes"]).plan(rows=5000, columns=3)
        Plan(Tracking, 600 releases on RecordShapes(upper=1000 records, lower=4000 records): (1, 8e-05)-DP, ...)
        """
        return self._plan(self._prepare(Unread(rows, columns)))

    def _prepare(self, X: Any, y: Any = None) -> Prepared:
        table = self._rows(X)
        targets = self._targets(y, table)
        groups, group_of = numbered_groups(self.groups, table.shape[1])
        rows = table.with_intercept()
        columns = rows.values, targets.values
        records = self._levels(columns, columns)
        model = {**targets.model, "columns": rows.shape[1], "groups": group_of}
        return Prepared(
            planned=self._in_reach(lambda penalties: regularization(**model, penalties=penalties), records),
            records=records,
            caveats=(*rows.caveats, *targets.caveats),
            legend=Legend("penalty", tuple(map(str, groups)), logarithmic=True),
            facts={"columns": self._columns(), "rows": rows.scaling, "targets": targets.known, "groups": groups},
            finish=lambda x, y: (
                self._model(rows, targets, y) | {"groups_": groups, "penalties_": np.exp(np.asarray(x, np.float64))}
            ),
        )

    def _in_reach(self, problem_within: Callable[[Range], BilevelProblem], records: Mapping[str, Any]) -> Plan:
        """The plan of the problem with as large penalties as can be told from too large ones."""
        planned = self._planned(problem_within(PENALTIES), records)
        reason = "a model of next to nothing: the end of the range"
        if planned.parameters.get("validation pass: noise to signal", (0.0, ""))[0] > PASS_LIMIT:
            planned = self._planned(problem_within(_LOWER_HALF), records)
            reason = (
                "the middle of the range: a validation pass has more noise than signal, which may mislead it further"
            )
        largest = math.exp(float(planned.problem.domain.upper))
        return replace(planned, parameters={**planned.parameters, "largest penalty": (largest, reason)})
