"""Every method and every baseline on worst-case data, where one record has the largest possible effect.

The target is at the clip norm and its replacement opposite. The adversary chooses the other records as well. Adam's
first step reveals only the *sign* of a noisy gradient: a crowd of records opposite to the target shifts the gradient so
far that the sign rarely indicates the target unless it is in the data.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.applications.regularization import regularization
from dpbilevel.applications.reweighting import source_weights
from dpbilevel.audit.auditing import claim
from dpbilevel.audit.case import Case
from dpbilevel.audit.unit_cases import of_units
from dpbilevel.baselines.grid_search import NaiveGridSearch
from dpbilevel.baselines.screening import ScreenSources
from dpbilevel.baselines.untuned import FixedDefault, UpperRecordsOnly
from dpbilevel.constraints import Simplex
from dpbilevel.inner.loc_gd import DPLocGD, DPLocSGD
from dpbilevel.methods.dp_bilevel.dp_bilevel import DPBilevel
from dpbilevel.methods.refit import Refit
from dpbilevel.methods.tracking.tracking import Tracking
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.sampling import Poisson, WithoutReplacement, WithReplacement
from dpbilevel.problem import BilevelProblem

Array = npt.NDArray[np.float32]

_NUMBER = 48  # number of records
_MANY = 90  # number of records for second moments, which must be worth their share
_RARE = 2.3  # standard deviations: one false positive in a hundred runs
_BATCH = Poisson(0.5)
_FIXED_SIZE = {"without replacement": WithoutReplacement(2), "with replacement": WithReplacement(2)}
_WITH_UNITS = ("DPBilevel, DPLocGD, one step", "Tracking, validation record, one step", "Refit, one step")
_FEW = 20  # number of records for these schemes: about one in ten is in a batch


def standard_cases(budget: Budget) -> list[Case]:
    """The cases of `dpbilevel audit`: all methods in one step and in several, baselines that are methods, and units.

    The cases of units are those of rows, with eight equal rows of one person in place of each record (`of_units`).

    Not included: `PrivateRandomSearch`, whose number of runs is secret and cannot be compiled, `BlackBox`, which runs
    an external trainer, and `OracleHyperparameters`, which is not private.

    Args:
        budget: the budget under audit; the number of opposite records depends on it.

    >>> [case.name for case in standard_cases(Budget(1.0, 1e-2))][:3]
    ['DPBilevel, DPLocGD, one step', 'DPBilevel, DPLocGD, 5 rounds', 'DPBilevel, DPLocSGD, one step']
    """
    claim(budget)
    rows = [*_double_loops(budget), *_trackings(budget), *_trainings(budget), *_baselines(budget)]
    return [*rows, *(of_units(case) for case in rows if case.name in _WITH_UNITS)]


def _double_loops(budget: Budget) -> list[Case]:
    def method(kind: type[DPLocGD], steps: int, inner: int, **more: Any) -> DPBilevel:
        solver = kind(strong_convexity=1.0, steps=inner, rounds=1, **more)
        return DPBilevel(inner=solver, steps=steps, step_size=0.5)

    target = _points(0, 1.0)
    mean: dict[str, Any] = {
        "problem": _MEAN,
        "start": (0.0, 0.0),
        "records": {"lower": target},
        "neighbour": {"lower": -target},
    }
    sampled: dict[str, Any] = {"sampling": _BATCH}
    # In a batch of fixed size another record replaces the target: all others are opposite to it.
    against = _points(_FEW, 1.0, _FEW)
    fixed = mean | {"records": {"lower": against}, "neighbour": {"lower": _opposite(against)}}
    aligned, opposite = _validation(_NUMBER)
    return [
        Case(name="DPBilevel, DPLocGD, one step", method=method(DPLocGD, 1, 1), **mean),
        Case(name="DPBilevel, DPLocGD, 5 rounds", method=method(DPLocGD, 5, 4), **mean),
        Case(name="DPBilevel, DPLocSGD, one step", method=method(DPLocSGD, 1, 1, **sampled), **mean),
        Case(name="DPBilevel, DPLocSGD, 3 rounds", method=method(DPLocSGD, 3, 2, **sampled), **mean),
        *(
            Case(name=f"DPBilevel, DPLocSGD {words}, one step", method=method(DPLocSGD, 1, 1, sampling=s), **fixed)
            for words, s in _FIXED_SIZE.items()
        ),
        Case(
            name="DPBilevel, validation record, one step",
            problem=_DIRECT,
            start=(0.0, 0.0),
            method=method(DPLocGD, 1, 1),
            records=aligned,
            neighbour=opposite,
        ),
    ]


def _trackings(budget: Budget) -> list[Case]:
    aligned, opposite = _validation(_NUMBER)
    direct: dict[str, Any] = {"problem": _DIRECT, "start": (0.0, 0.0)}
    validation = direct | {"records": aligned, "neighbour": opposite}
    crowd = _crowd(budget, share=0.5, number=_NUMBER // 2)
    upper = np.zeros(_NUMBER // 2, np.float32)
    training = direct | {"records": {"upper": upper, "lower": crowd}}
    training["neighbour"] = {"upper": upper, "lower": _opposite(crowd)}
    later = Refit(steps=20)
    return [
        Case(name="Tracking, validation record, one step", method=Tracking(steps=1), refit=None, **validation),
        Case(name="Tracking, training record, one step", method=Tracking(steps=1), refit=None, **training),
        Case(
            name="Tracking, Poisson batches, one step",
            method=Tracking(steps=1, sampling=_BATCH),
            refit=None,
            **validation,
        ),
        Case(name="Tracking, validation record, 20 steps", method=Tracking(steps=20), refit=later, **validation),
        Case(name="Tracking, training record, 20 steps", method=Tracking(steps=20), refit=later, **training),
        _opposite_label(later),
        _alone_in_its_source(later),
    ]


def _trainings(budget: Budget) -> list[Case]:
    crowd = _crowd(budget, share=0.99)
    mean: dict[str, Any] = {
        "problem": _MEAN,
        "start": (0.0, 0.0),
        "records": {"lower": crowd},
        "neighbour": {"lower": _opposite(crowd)},
    }
    return [
        Case(name="Refit, one step", method=Refit(steps=1), **mean),
        Case(name="Refit, 20 steps", method=Refit(steps=20), **mean),
        *(_second_moments(steps) for steps in (1, 20)),
    ]


def _second_moments(steps: int) -> Case:
    """The only row that is not zero: second moments, and the sign of the model, depend on it alone."""
    rows, targets = np.zeros((_MANY, 1), np.float32), np.zeros(_MANY, np.float32)
    rows[0], targets[0] = 1.0, 1.0
    return Case(
        name=f"Refit, second moments, {'one step' if steps == 1 else f'{steps} steps'}",
        problem=regularization("squared", columns=1, row_norm=1.0),
        method=Refit(steps=steps),
        records={"upper": (rows[1:3], targets[1:3]), "lower": (rows, targets)},
        neighbour={"upper": (rows[1:3], targets[1:3]), "lower": (rows, -targets)},
    )


def _baselines(budget: Budget) -> list[Case]:
    once = Refit(steps=1)
    crowd = _crowd(budget, share=0.99, number=_NUMBER // 2)
    other = np.zeros(_NUMBER // 2, np.float32)
    two: dict[str, Any] = {"problem": _TWO_MEANS, "start": (0.0, 0.0)}
    lower: dict[str, Any] = {
        "records": {"upper": other, "lower": crowd},
        "neighbour": {"upper": other, "lower": _opposite(crowd)},
    }
    upper: dict[str, Any] = {
        "records": {"upper": crowd, "lower": other},
        "neighbour": {"upper": _opposite(crowd), "lower": other},
    }
    scored = {"upper": _points(0, 2.0, _NUMBER // 2), "lower": other}
    search = NaiveGridSearch(candidates=[0.0, 1.0], training=once, score_range=(0.0, 2.0))
    return [
        Case(name="FixedDefault, one step", method=FixedDefault(training=once), **two, **lower),
        Case(name="UpperRecordsOnly, one step", method=UpperRecordsOnly(training=once), **two, **upper),
        Case(
            name="NaiveGridSearch, two candidates",
            method=search,
            records=scored,
            neighbour=scored | {"upper": _points(0, 0.0, _NUMBER // 2)},
            **two,
        ),
        _screening(once),
    ]


def _opposite_label(later: Refit) -> Case:
    """Logistic regression in which the label of the target is flipped."""
    rows, labels = np.ones((_NUMBER // 2, 1), np.float32), np.arange(_NUMBER // 2, dtype=np.int32) % 2
    turned = labels.copy()
    turned[0] = 1 - turned[0]
    return Case(
        name="Tracking, opposite label, 20 steps",
        problem=regularization("logistic", columns=1),
        method=Tracking(steps=20),
        refit=later,
        records={"upper": (rows, labels), "lower": (rows, labels)},
        neighbour={"upper": (rows, labels), "lower": (rows, turned)},
    )


def _alone_in_its_source(later: Refit) -> Case:
    """The only record of a source, on which the weight of the source depends."""
    rows, labels = np.ones((_NUMBER // 2, 1), np.float32), np.arange(_NUMBER // 2, dtype=np.int32) % 2
    sources, turned = np.zeros(_NUMBER // 2, np.int32), labels.copy()
    sources[0], turned[0] = 1, 1 - labels[0]
    return Case(
        name="Tracking, alone in its source, 20 steps",
        problem=source_weights("logistic", columns=1, sources=2),
        method=Tracking(steps=20),
        refit=later,
        records={"upper": (rows, labels), "lower": (rows, labels, sources)},
        neighbour={"upper": (rows, labels), "lower": (rows, turned, sources)},
    )


def _screening(once: Refit) -> Case:
    """The only record of a source, with the largest loss or with zero loss."""
    values, sources = np.zeros(_NUMBER // 2, np.float32), np.zeros(_NUMBER // 2, np.int32)
    sources[0] = 1
    far = values.copy()
    far[0] = 2.0
    upper = np.zeros(_NUMBER // 2, np.float32)
    return Case(
        name="ScreenSources, alone in its source",
        problem=_SOURCES,
        start=(np.full(2, 0.5), 0.0),
        method=ScreenSources(source=_source, loss_range=(0.0, 2.0), training=once),
        records={"upper": upper, "lower": (far, sources)},
        neighbour={"upper": upper, "lower": (values, sources)},
    )


def _source(record: Any) -> Any:
    return record[1]


_MEAN = BilevelProblem(
    upper_term=lambda x, y: 0.5 * jnp.sum((x + y) ** 2),
    lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
)
# Validation records act on x directly: the hypergradient, which is in the history, is their noisy mean.
_DIRECT = BilevelProblem(
    upper_loss=lambda x, y, record: x * record,
    lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
)
_SOURCES = BilevelProblem(
    upper_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
    lower_loss=lambda x, y, record: 2 * x[record[1]] * 0.5 * (y - record[0]) ** 2,
    domain=Simplex(),
)
_TWO_MEANS = BilevelProblem(
    upper_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
    lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2 + 0.0 * x,
)


def _points(crowd: int, target: float, number: int = _NUMBER) -> Array:
    """The target, a crowd at -1, and zeros."""
    points = np.zeros(number, np.float32)
    points[1 : crowd + 1] = -1.0
    points[0] = target
    return points


def _opposite(points: Array) -> Array:
    replaced = points.copy()
    replaced[0] = -points[0]
    return replaced


def _crowd(budget: Budget, share: float, number: int = _NUMBER) -> Array:
    """The target with as many opposite records as make the sign of the sum rarely indicate it if it is absent.

    With sensitivity 2/n (1/n under "zero-out") the noise on the sum is 2/mu (1/mu); with a share of mu^2 the signal of
    the target is smaller by sqrt(share).
    """
    away = _RARE / (math.sqrt(share) * budget.mu)
    crowd = round(2 * away - 1) if budget.adjacency == "replace-one" else round(away)
    return _points(min(max(crowd, 0), number - 2), 1.0, number)


def _validation(number: int) -> tuple[dict[str, Array], dict[str, Array]]:
    target, other = _points(0, 1.0, number // 2), np.zeros(number // 2, np.float32)
    return {"upper": target, "lower": other}, {"upper": -target, "lower": other}
