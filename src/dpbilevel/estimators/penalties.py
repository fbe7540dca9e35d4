"""Penalties: their range, where they start, and whether tuning them is worth a share of the budget.

All of it follows from public numbers only. For rows of norm one, 1/n is scikit-learn's C = 1, and the smallest penalty
is a hundredth of that. A search starts at the ridge equivalent to the noise of training, which is also the penalty of a
model that is not tuned: where noise is small, a larger one would only keep the model from its minimum. Without privacy
a search starts at 1/n.

*Is tuning worth it?* A search for penalties costs a share of mu^2 that the training then misses. The final training of
a linear model stops where noise outweighs what is left to learn, which does what a penalty would (`preconditioned`): a
search has little left to gain, and none is made. A single penalty of any other model is not searched for either: with
steps that stop before noise is fitted, small penalties make no difference. Several penalties of such a model are tuned
by `Tracking`, unless its validation passes have more noise than signal.

A penalty that is too large shrinks the model to zero, and so do all larger ones, so that the hypergradient vanishes and
tuning cannot recover. If `Tracking` is asked for where its validation passes have more noise than signal, the largest
penalty is therefore the middle of the usual range (test_penalties.py shows why).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from dpbilevel.applications.regularization import PENALTIES, regularization
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.estimators.additive import Additive
from dpbilevel.estimators.groups import numbered_groups
from dpbilevel.estimators.linear import LinearEstimator
from dpbilevel.estimators.owners import Owners
from dpbilevel.estimators.prepared import Prepared, Unread
from dpbilevel.estimators.weights import Weights
from dpbilevel.execution.notices import PASS_LIMIT
from dpbilevel.linear_loss import LinearLoss
from dpbilevel.methods.preconditioned import MOMENTS
from dpbilevel.methods.refit import Refit
from dpbilevel.planning import Plan
from dpbilevel.privacy.record_shapes import RecordShapes
from dpbilevel.problem import BilevelProblem
from dpbilevel.solution.solution import Legend

_MIDDLE = math.sqrt(PENALTIES[0] * PENALTIES[1])  # of logarithms
_SMALLEST = 0.01  # times 1/n
_NOISE = 0.1  # times the deviation of noise on the mean gradient of rows of norm one, for one release of the budget


@dataclass(kw_only=True, eq=False, repr=False)
class PenaltyEstimator(LinearEstimator):
    """An estimator that tunes penalties."""

    groups: Any = None
    smooth: bool | str = False
    largest_weight: float | None = None

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, units: Any = None, checkpoint: str | Path | None = None
    ) -> Self:
        """Tune and train. The total cost is charged before the first step.

        Args:
            X, y: rows and targets.
            sample_weight: one weight >= 0 per row, at most ``largest_weight``; larger ones are clamped to it. With
                units, weights are those of rows within the sum of a unit.
            units: the id of the unit of each row: integers or strings. Needs ``rows_per_unit``. The guarantee is then
                that of all rows of one id, and the numbers of records are numbers of ids.
            checkpoint: path of a file from which an interrupted fit resumes, as in `dpbilevel.solve`. It is as secret
                as the rows; delete it once the model is saved.
        """
        return self._fit(self._prepare(X, y, sample_weight, units), checkpoint)

    def plan(self, rows: int, columns: int | BoundedEncoder) -> Plan:
        """Plan a fit from sizes alone: its privacy spend and its noise. Classes must be declared.

        With ``rows_per_unit``, ``rows`` is the number of units. ``columns`` is a number or, instead, the fitted encoder
        of the rows, whose declarations say what is a curve: ``smooth`` needs it.

        >>> from dpbilevel.estimators import DPLogisticRegressionCV
        >>> DPLogisticRegressionCV(epsilon=1.0, classes=["no", "yes"]).plan(rows=5000, columns=3)
        Plan(Refit, 50 releases on RecordShapes(upper=1000 records, lower=4000 records): (1, 8e-05)-DP, ...)
        """
        return self._plan(self._prepare(Unread.of(rows, columns, self.data_norm)))

    def _prepare(self, X: Any, y: Any = None, sample_weight: Any = None, units: Any = None) -> Prepared:
        table = self._rows(X)
        targets = self._targets(y, table)
        weights = Weights.of(sample_weight, self.largest_weight, getattr(self, "class_weight", None), table, targets)
        groups, group_of = numbered_groups(self.groups, table.shape[1])
        additive, factors = Additive.of(X, self.smooth, table), {}
        rows = table.with_intercept()
        if additive.basis is not None:
            rows = table.in_basis(additive.basis.matrix).with_intercept()
            groups, group_of = additive.basis.groups(groups, group_of)
            factors = {"weights": (*additive.basis.weights, 1.0)}
        columns = rows.values, targets.values, *weights.columns
        levels = self._levels(columns, columns, Owners.of(units, X, table.shape[0], self))
        model = {**targets.model, "columns": rows.shape[1], "groups": group_of, "row_norm": 1.0, **factors}
        units_of_y = additive.units(lambda y: self._model(rows, targets, y)["coef_"])

        def problem_of(**limits: Any) -> BilevelProblem:
            return additive.problem(weights.problem(regularization(**model, **limits)), units_of_y)

        return Prepared(
            planned=self._in_reach(problem_of, levels.sizes, additive),
            records=levels.records,
            units=levels.units,
            caveats=(*rows.caveats, *targets.caveats, *weights.caveats),
            legend=Legend("penalty", tuple(map(str, groups)), logarithmic=True),
            facts={"columns": self._columns(), "rows": rows.scaling, "targets": targets.known, "groups": groups}
            | ({"weights": weights.known} if weights.columns else {}),
            finish=lambda x, y: (
                additive.attributes(self._model(rows, targets, additive.encoded(y)))
                | {"groups_": groups, "penalties_": np.exp(np.asarray(x, np.float64))}
            ),
            errors=lambda made, history: additive.errors(
                made["coef_"], history, lambda errors: self._model(rows, targets, errors)["coef_"]
            ),
        )

    def _in_reach(self, problem_of: Callable[..., BilevelProblem], sizes: RecordShapes, additive: Additive) -> Plan:
        """The plan: penalties as they start where a search for them is not worth its cost, or tuned."""
        rows = sum(map(sizes.count, sizes.roles))
        smallest, first = _SMALLEST / rows, self._first_penalty(rows)
        problem = problem_of(penalties=(smallest, PENALTIES[1]))
        limits = {"first penalty": (first, "what the noise of training is worth, and at least a hundredth of 1/n")}
        start = self._start(problem, first, rows, additive)
        if self.method is None and self._budget(rows).is_private:
            trained = self._planned(problem, sizes, start, Refit())
            reason = self._not_searched(trained, problem, sizes, first)
            if reason is not None:
                return replace(trained, parameters={**trained.parameters, "penalties": (first, reason)})
        planned = self._planned(problem, sizes, start)
        reason = "the end of the range, where the model is close to zero"
        if _is_noisy(planned):
            planned = self._planned(problem_of(penalties=(smallest, max(_MIDDLE, first))), sizes, start)
            reason = (
                "the middle of the range: a validation pass has more noise than signal, so that larger ones are risky"
            )
        largest = math.exp(float(planned.problem.domain.upper))
        return replace(planned, parameters={**planned.parameters, **limits, "largest penalty": (largest, reason)})

    def _not_searched(self, trained: Plan, problem: BilevelProblem, sizes: RecordShapes, first: float) -> str | None:
        """Why penalties are not searched for, from public numbers; None if they are."""
        if any(release.name == MOMENTS for release in trained.releases):
            return "not searched for: training stops where noise outweighs what is left to learn"
        assert problem.start is not None
        if np.size(problem.start[0]) == 1:
            return "not searched for: training stops before noise is fitted, so that one penalty makes no difference"
        if _is_noisy(self._planned(problem, sizes, math.log(first))):
            return "not searched for: a validation pass would have more noise than signal"
        return None

    def _start(self, problem: BilevelProblem, first: float, rows: int, additive: Additive) -> Any:
        """Logarithms of penalties at the start: all of them ``first``, except those of curves."""
        if additive.basis is None:
            return math.log(first)
        budget, loss = self._budget(rows), problem.lower_loss
        assert isinstance(loss, LinearLoss)
        assert loss.bounds is not None
        changed = 2.0 if budget.adjacency == "replace-one" else 1.0
        noise = changed / (budget.mu * rows) if budget.is_private else 0.0
        smooth = additive.basis.first_penalties(noise, rows, loss.bounds.curvature)
        assert problem.start is not None
        others = np.size(problem.start[0]) - len(smooth)
        return np.log(np.clip([*([first] * others), *smooth], _SMALLEST / rows, PENALTIES[1]))

    def _first_penalty(self, rows: int) -> float:
        """The ridge equivalent to the noise of training, and at least the smallest; without privacy 1/n."""
        budget = self._budget(rows)
        changed = 2.0 if budget.adjacency == "replace-one" else 1.0
        worth = _NOISE * changed / budget.mu if budget.is_private else 1.0
        return min(max(_SMALLEST, worth) / rows, PENALTIES[1])


def _is_noisy(planned: Plan) -> bool:
    """Whether a validation pass has more noise than signal."""
    return planned.parameters.get("validation pass: noise to signal", (0.0, ""))[0] > PASS_LIMIT
