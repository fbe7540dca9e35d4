"""Solutions and reviews for tests of reports: made up where that is quick, real where it matters."""

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np

import dpbilevel as dpb
from dpbilevel.baselines import NaiveGridSearch, PrivateRandomSearch
from dpbilevel.privacy.accounting import Charge
from dpbilevel.report.review import LinearModel, Review
from dpbilevel.solution.shapes import shapes_of
from dpbilevel.solution.solution import Legend

NASTY = "<script>alert('x')</script> & \"$b$\" \\ |\x00\x1b"  # the name of a column in a file that nobody has vetted
SIZES = {"upper": 500, "lower": 2000}


def made(names: tuple[str, ...] = ("age", "sex", "job"), **changes: Any) -> dpb.Solution:
    """A solution as `Tracking` leaves it behind, made up: no data, no compilation."""
    draws = np.random.default_rng(0)
    trajectory = np.cumsum(draws.normal(size=(40, len(names))), axis=0) / 4 - 3
    charges = {
        "lower": (_charge("training pass", "lower", 0.006), _charge("training", "lower", 0.015)),
        "upper": (_charge("validation pass", "upper", 0.006), _charge("training", "upper", 0.015)),
    }
    spent = {
        "x": trajectory[-5:].mean(axis=0),
        "y": draws.normal(size=7),
        "privacy": dpb.Privacy(charges, dpb.Budget(1.0, 1e-6)),
        "history": {"x": trajectory, "hypergradient": trajectory / 9},
        "parameters": {
            "steps": (40, "as given"),
            "training pass: clip of the model": (1.0, "bounds one record's vector"),
            "training: noise to signal": (0.0414, "noise of a step relative to the largest mean of records"),
            "training: records": ("lower, upper", "upper records train too"),
            "output": ("average", "the average of the last steps"),
        },
        "sizes": SIZES,
        "method": "Tracking(steps=40)",
        "version": "0.1.0",
        "legend": Legend("penalty", names, logarithmic=True),
    }
    return dpb.Solution(**{**spent, **changes})


def _charge(release: str, role: str, ratio: float) -> Charge:
    return Charge(release, role, ratio, 200, dpb.FullBatch(), SIZES[role], clip=1.0)


def with_privacy(solution: dpb.Solution, **changes: Any) -> dpb.Solution:
    return replace(solution, privacy=replace(solution.privacy, **changes))


def infinite() -> dpb.Solution:
    solution = made()
    charges = {
        role: tuple(replace(charge, ratio=math.inf, clip=math.inf) for charge in charges)
        for role, charges in solution.privacy.charges.items()
    }
    return with_privacy(solution, charges=charges, budget=dpb.Budget(math.inf), void=True)


def black_box() -> dpb.Solution:
    """One role, a sampled release, and one whose privacy is declared; no legend, a pytree for x and no trajectory."""
    charges = (
        Charge("hypergradient", "both", 0.01, 20, dpb.Poisson(0.1), 2500, clip=2.0),
        Charge("training", "both", 0.0, 3, dpb.FullBatch(), 2500, dpb.ApproximateDP(0.1, 1e-7)),
    )
    return made(
        x={"rate": np.float32(0.1), "weights": np.ones((2, 2))},
        y={"layer": np.ones((3, 4)), "bias": np.float32(1.0)},
        privacy=dpb.Privacy({"both": charges}, dpb.Budget(1.0, 1e-6), ("training is a black box",)),
        history={},
        parameters={},
        sizes={"both": 2500},
        legend=None,
        method="DPBilevel(inner=BlackBox(<function train at 0x1>))",
    )


KINDS = {
    "private": made,
    "caveats": lambda: with_privacy(made(), caveats=("classes were not declared",)),
    "seeded": lambda: with_privacy(made(), void=True),
    "infinite": infinite,
    "black box": black_box,
    "many": lambda: made(names=tuple(f"column number {index}" for index in range(30))),
    "one": lambda: made(names=("all",)),
    "nasty": lambda: made(names=(NASTY, "b" * 200, "名前")),
}


@functools.cache
def solution(kind: str) -> dpb.Solution:
    return KINDS[kind]()


@functools.cache
def searched(kind: str) -> dpb.Solution:
    """What baselines leave behind, really."""
    problem = dpb.BilevelProblem(
        upper_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
        lower_loss=lambda x, y, record: 0.5 * (y - x * record) ** 2,
    )
    records = dpb.Records(upper=np.full(2000, 0.5), lower=np.full(2000, 0.5))
    settings = {"candidates": [-1.0, 0.0, 1.0], "score_range": (0.0, 1.0), "training": dpb.Refit(steps=5)}
    search = NaiveGridSearch(**settings) if kind == "grid" else PrivateRandomSearch(**settings, mean_runs=3)
    return search.solve(problem, records, dpb.Budget(3.0, 1e-5), start=(0.0, 0.0), progress=False)


def linear(columns: int = 30, outputs: tuple[str, ...] = (">50K",), nasty: bool = False) -> LinearModel:
    draws = np.random.default_rng(1)
    names = [f"column {index}" for index in range(columns)]
    return LinearModel(
        estimator="DPLogisticRegressionCV",
        target=NASTY if nasty else "income",
        outputs=tuple(NASTY for _ in outputs) if nasty else outputs,
        columns=tuple([NASTY, *names[1:]] if nasty else names),
        coefficients=draws.normal(size=(len(outputs), columns)),
        intercepts=draws.normal(size=len(outputs)),
    )


@functools.cache
def additive(outputs: tuple[str, ...] = (">50K",), nasty: bool = False) -> LinearModel:
    """A model of every kind of column before encoding, with shapes and the noise of coefficients."""
    names = [NASTY if nasty else "age", "gain", "day", "occupation", "hours"]
    encoder = dpb.BoundedEncoder(
        ranges={names[0]: (17, 90), "gain": (0, 99_999), "hours": (1, 99)},
        categories={"occupation": [NASTY if nasty else "sales", *(f"occupation number {one}" for one in range(14))]},
        dates={"day": ("2025-01-01", "2026-12-31")},
        scales={"gain": "log"},
        knots={names[0]: 12, "gain": 12, "day": 8},
        parts={"day": ["month"]},
    ).fit({names[0]: [30], "gain": [0], "day": ["2025-06-30"], "occupation": ["sales"], "hours": [40]})
    model = linear(len(encoder.group_of_column_), outputs, nasty)
    points = sum(len(term.points) for term in encoder.terms_)
    shapes = shapes_of(encoder.terms_, model.coefficients, np.linspace(0.05, 0.3, points))
    return replace(model, standard_errors=np.full_like(model.coefficients, 0.1), shapes=shapes)


@functools.cache
class Likely:
    """A made-up model of one column."""

    classes_ = np.array([0, 1])

    def predict_proba(self, rows: Any) -> Any:
        likely = 1 / (1 + np.exp(-3 * rows))
        return np.stack([1 - likely, likely], axis=1)

    def predict(self, rows: Any) -> Any:
        return (rows > 0.1).astype(int)


def scores() -> dpb.Evaluation:
    """Scores of a made-up model, released really."""
    rows = np.linspace(-1, 1, 3000)
    labels = (rows > 0).astype(int)
    return dpb.evaluate(Likely(), (rows, labels), dpb.Budget(1.0, 1e-5), metric=("accuracy", "calibration"))


def review(kind: str = "private", **changes: Any) -> Review:
    """A review of a made-up solution, with everything that a review can have."""
    nasty = kind == "nasty"
    spoken = {
        "solution": solution(kind),
        "title": NASTY if nasty else "Income, tuned privately",
        "facts": {"data": "adult.csv", NASTY if nasty else "target": NASTY if nasty else "income"},
        "model": linear(nasty=nasty),
        "schema": {
            "columns": {"age": {"range": [17, 90]}, "sex": {"categories": ["F", NASTY if nasty else "M"]}},
            "target": {"classes": ["<=50K", ">50K"]},
        },
        "command": NASTY if nasty else "dpbilevel tune adult.csv --target income --out run/",
        "created": "2026-01-15T10:30:00+00:00",
    }
    return Review(**{**spoken, **changes})
