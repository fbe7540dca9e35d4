"""Rows of norm one with an intercept, and runs of an application on them: what tests of applications share."""

import math
import warnings
from typing import Any

import numpy as np

import dpbilevel as dpb

COLUMNS = 7
NO_PRIVACY = dpb.Budget(math.inf)


def unit_rows(rng: np.random.Generator, number: int, *, intercept: bool = True) -> np.ndarray:
    """Rows whose last column is the intercept's, unless the model has one of its own."""
    rows = rng.normal(size=(number, COLUMNS))
    if intercept:
        rows[:, -1] = 1.0
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def logistic_labels(rng: np.random.Generator, scores: np.ndarray) -> np.ndarray:
    return (scores + rng.logistic(size=len(scores)) > 0).astype(np.int32)


def softmax_labels(rng: np.random.Generator, scores: np.ndarray) -> np.ndarray:
    return (scores + rng.gumbel(size=scores.shape)).argmax(axis=1).astype(np.int32)


def parts(number: int, *columns: np.ndarray) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """The first rows, and the others."""
    return tuple(column[:number] for column in columns), tuple(column[number:] for column in columns)


def solved(problem: dpb.BilevelProblem, lower: Any, upper: Any, budget: dpb.Budget, **settings: Any) -> dpb.Solution:
    """A run with a fixed seed; without privacy it returns the tuned model as it is, which saves a compilation."""
    settings = {"refit": "auto" if budget.is_private else None, "seed": 0, "progress": False} | settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.NotPrivateWarning)
        return dpb.solve(problem, dpb.Records(lower=lower, upper=upper), budget, **settings)


def planned(problem: dpb.BilevelProblem, lower: Any, upper: Any) -> dpb.Plan:
    """A plan in which every warning of a leak is an error: what an application closes over is declared public."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", dpb.UtilityWarning)  # small on purpose
        return dpb.plan(problem, dpb.RecordShapes(lower=lower, upper=upper), dpb.Budget(1.0, 1e-6))
