"""All estimators on one small table, with everything declared. One shape and few settings, because each compiles.

The number 987654.25 stands for a private cell, "Zanzibar" for a private word.
"""

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.estimators import (
    DPLogisticRegressionCV,
    DPMultiTaskRidge,
    DPRidgeCV,
    DPSourceWeightedClassifier,
    DPSourceWeightedRegressor,
)

NUMBER, WORD = 987654.25, "Zanzibar"
QUICK = dpb.Refit(steps=2)  # where the result does not matter
SETTLED = dpb.Refit(steps=200)  # trains to convergence at the penalties that tuning starts from

_draws = np.random.default_rng(0)
# Numbers of float32, so that tables of either precision hold the same rows. Some are longer than the declared norm.
X = (_draws.normal(size=(60, 3)) / 3).astype(np.float32).astype(np.float64)
LABELS = (X[:, 0] + 0.3 * _draws.normal(size=60) > 0).astype(int)
NUMBERS = 4 + 10 * X[:, 0] + _draws.normal(size=60)
PLACES = _draws.choice(["east", "west"], 60)


@dataclass(frozen=True, eq=False)
class Case:
    """An estimator, the targets that it takes, what is declared of them, and what else fit is given."""

    kind: Callable[..., Any]
    y: np.ndarray
    declared: Mapping[str, Any]
    places: str | None = None  # what fit calls the place of each row

    def make(self, **settings: Any) -> Any:
        return self.kind(**{"method": QUICK, "data_norm": 1.0, **self.declared, **settings})

    def more(self, step: str = "") -> dict[str, Any]:
        return {} if self.places is None else {step + self.places: PLACES}

    def fit(self, rows: Any = X, y: Any = None, **settings: Any) -> Any:
        """A reproducible fit on few rows, which is meant: warnings of that have tests of their own."""
        with warnings.catch_warnings():
            for category in (dpb.UtilityWarning, dpb.NotPrivateWarning):
                warnings.simplefilter("ignore", category)
            model = self.make(**{"random_state": 0, **settings})
            return model.fit(rows, self.y if y is None else y, **self.more())


_classes, _range = {"classes": [0, 1]}, {"target_range": (-6, 14)}
CASES = {
    "logistic": Case(DPLogisticRegressionCV, LABELS, _classes),
    "ridge": Case(DPRidgeCV, NUMBERS, _range),
    "weighted classifier": Case(
        DPSourceWeightedClassifier, LABELS, _classes | {"source_names": ["east", "west"]}, "sources"
    ),
    "weighted regressor": Case(
        DPSourceWeightedRegressor, NUMBERS, _range | {"source_names": ["east", "west"]}, "sources"
    ),
    "multitask": Case(DPMultiTaskRidge, NUMBERS, _range | {"task_names": ["east", "west"]}, "tasks"),
}


every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
ENCODER = dpb.BoundedEncoder(ranges=dict.fromkeys(range(3), (-1, 1)))


@functools.cache
def fitted(case: Case) -> Any:
    """A model that tests may look at and must not change."""
    return case.fit()


def released(model: Any) -> np.ndarray:
    """All numbers that a fit released, in one row."""
    parts = (model.coef_, model.intercept_, model.solution_.x, model.solution_.y)
    return np.concatenate([np.ravel(part) for part in parts])


def said(function: Callable[[], Any]) -> tuple[str, Exception | None]:
    """All that a call says: its warnings, its error, and the errors that a traceback would print along with it."""
    error: Any = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            function()
        except Exception as raised:
            error = raised
    texts, link = [str(warning.message) for warning in caught], error
    while link is not None:
        texts.append(f"{type(link).__name__}: {link} {getattr(link, '__notes__', '')}")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n".join(texts), error


def check_silent(function: Callable[[], Any]) -> Exception | None:
    """Nothing that a call says has the private number or the private word in it. Returns its error."""
    text, error = said(function)
    for secret in ("987654", "9.87654", "9.877", WORD, WORD.lower()):
        assert secret not in text, "a cell is quoted"
    return error


def untrained(records, program, receipt, schedule, state, rounds, *rest):
    """In place of `Records.execute`: redeems what was charged, and leaves the state as it is."""
    program.take(receipt, schedule, rounds)
    seen = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (rounds, *np.shape(leaf))), program.observe(state))
    return state, seen
