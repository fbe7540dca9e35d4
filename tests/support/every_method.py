"""One small problem that every method of the library can solve, with settings that take a moment.

Three sources of numbers, weights on a simplex, one number to train. The number 987654.25 stands for a private cell.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import dpbilevel as dpb
from dpbilevel import baselines

NUMBER = 987654.25
N = 60
BUDGET = dpb.Budget(2.0, 1e-4)
SHORT = dpb.Refit(steps=2)
START = (np.full(3, 1 / 3), 0.0)


def _squared(y, value):
    return 0.5 * (y - value) ** 2


PROBLEM = dpb.BilevelProblem(
    upper_loss=lambda x, y, record: _squared(y, record),
    lower_loss=lambda x, y, record: 3 * x[record["source"]] * _squared(y, record["value"]),
    lower_term=lambda x, y: 0.05 * y**2,
    domain=dpb.Simplex(),
)


def data() -> dict[str, Any]:
    """Arrays by role, as copies."""
    source = np.arange(N) % 3
    return {"upper": np.linspace(-1, 1, N), "lower": {"source": source, "value": np.linspace(-1, 1, N) - (source == 1)}}


def train(x, lower, upper, upper_weight):
    """A trainer from elsewhere; what it costs is declared, not checked."""
    return np.asarray(np.clip(lower["value"], -1, 1).mean())


_inner = {"strong_convexity": 1.0, "steps": 2, "rounds": 1}
_outer = {"step_size": 0.1, "steps": 2}
_candidates = [np.array([1.0, 0.0, 0.0]), np.array([0.5, 0.0, 0.5])]
_scores = {"score_range": (0.0, 2.0), "training": SHORT}

METHODS: dict[str, Any] = {
    "DPBilevel": dpb.DPBilevel(inner=dpb.DPLocGD(**_inner), **_outer),
    "DPBilevel, without replacement": dpb.DPBilevel(
        inner=dpb.DPLocSGD(**_inner, sampling=dpb.WithoutReplacement(30)), **_outer
    ),
    "DPBilevel, black box": dpb.DPBilevel(inner=dpb.BlackBox(train=train, event=dpb.GaussianDP(0.01)), **_outer),
    "Tracking": dpb.Tracking(steps=2),
    "Tracking, Poisson": dpb.Tracking(steps=2, sampling=dpb.Poisson(0.5)),
    "FixedDefault": baselines.FixedDefault(training=SHORT),
    "UpperRecordsOnly": baselines.UpperRecordsOnly(training=SHORT),
    "NaiveGridSearch": baselines.NaiveGridSearch(candidates=_candidates, **_scores),
    "PrivateRandomSearch": baselines.PrivateRandomSearch(candidates=_candidates, mean_runs=1.5, **_scores),
    "ScreenSources": baselines.ScreenSources(
        source=lambda record: record["source"], loss_range=(0.0, 2.0), training=SHORT
    ),
    "OracleHyperparameters": baselines.OracleHyperparameters(
        x=_candidates[1], score=lambda x, y: 0.0, settings=(SHORT,)
    ),
}


def solver(name: str) -> Callable[..., dpb.Solution]:
    """(problem, records, budget, start=, ledger=, seed=) -> solution, by the method of that name."""
    method = METHODS[name]
    if hasattr(method, "solve"):
        return method.solve
    refit = SHORT if isinstance(method, dpb.Tracking) else None
    return lambda *arguments, **options: dpb.solve(*arguments, method=method, refit=refit, **options)


def solved(name: str, records: Any, **options: Any) -> dpb.Solution:
    """A quick run of a method on records of this problem."""
    options = {"start": START, "progress": False} | options
    return solver(name)(PROBLEM, records, BUDGET, **options)


def spoiled(value: float, **where: Any) -> dpb.Records:
    """Records some of which hold a value that no computation survives."""
    arrays = data()
    arrays["upper"][[0, 7, N - 1]] = value
    arrays["lower"]["value"][[0, 8, N - 1]] = value
    return dpb.Records(**arrays, invalid="zero", **where)
