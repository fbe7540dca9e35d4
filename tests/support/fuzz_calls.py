"""Public entry points that take values, called with bad ones. Each target draws an input and returns a call.

`fuzz_targets` makes the calls and sees what became of them; targets of files and of commands are in `fuzz_files`.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from support import unit_neighbours
from support.estimator_cases import CASES, X, fitted
from support.every_method import BUDGET, METHODS, PROBLEM, SHORT, START, data, solved, solver
from support.fuzz_functions import FUNCTIONS
from support.fuzz_inputs import anything, changed, damaged_json, numbers_and_such

import dpbilevel as dpb

Draw = Callable[[st.SearchStrategy[Any]], Any]
Call = Callable[[], Any]


# --- constructors and plain functions ----------------------------------------------------------------------------


def arguments_of_functions(draw: Draw) -> Call:
    """Constructors and functions of public numbers, with one to three arguments replaced by anything."""
    function, valid, more = FUNCTIONS[draw(st.sampled_from(sorted(FUNCTIONS)))]
    return functools.partial(function, **draw(changed(valid, more)))


# --- records, plans, runs ----------------------------------------------------------------------------------------


def records(draw: Draw) -> Call:
    """Trees of anything as records, of rows or of units, and as sizes."""
    kind, units = draw(st.sampled_from([dpb.Records, dpb.RecordShapes])), draw(st.booleans())
    valid: dict[str, Any] = {"lower": np.zeros(3)} | ({"rows_per_unit": 2} if units else {})
    if kind is dpb.Records:
        valid |= {"unit": [1, 2, 1], "unit_ids": [1, 2, 3]} if units else {}
    more = ("upper", "both", "heldout", "rows_per_unit", "mean_rows", "mesh")
    return functools.partial(kind, **draw(changed(valid, more)))


_planned = {"problem": PROBLEM, "budget": BUDGET, "start": START, "method": METHODS["Tracking"], "refit": SHORT}


def plans(draw: Draw) -> Call:
    """plan, with some arguments replaced."""
    return functools.partial(dpb.plan, **draw(changed(_planned | {"sizes": dpb.RecordShapes(**data())})))


@functools.cache
def records_of_the_problem() -> dpb.Records:
    return dpb.Records(**data())


@functools.cache
def units_of_the_problem() -> dpb.Records:
    return unit_neighbours.records()


@dataclass
class Charged:
    """A ledger that must be as it was after a refusal."""

    ledger: dpb.Ledger = field(default_factory=lambda: dpb.Ledger(dpb.Budget(1e6, 0.9), composition="basic"))
    nothing: dpb.Ledger = field(default_factory=lambda: dpb.Ledger(dpb.Budget(1e-9, 1e-12)))  # refuses every run

    @property
    def entries(self) -> tuple[Any, ...]:
        """Of both."""
        return (*self.ledger.entries, *self.nothing.entries)


def runs(draw: Draw, charged: Charged) -> Call:
    """solve, by every method and baseline, with some arguments replaced."""
    name = draw(st.sampled_from([name for name in METHODS if "," not in name]))
    held = records_of_the_problem() if draw(st.booleans()) else units_of_the_problem()
    valid = {"problem": PROBLEM, "records": held, "budget": BUDGET, "start": START}
    given = draw(changed(valid, ("seed", "ledger")))
    ledger = given.pop("ledger", None if name == "OracleHyperparameters" else charged.ledger)
    return functools.partial(solver(name), **given, ledger=ledger, progress=False)


def losses(draw: Draw, charged: Charged) -> Call:
    """solve, with a loss or a term that returns anything."""
    part = draw(st.sampled_from(["lower_loss", "upper_loss", "lower_term", "upper_term", "lower_scale"]))
    returned = draw(anything())
    functions = {"lower_loss": PROBLEM.lower_loss, "upper_loss": PROBLEM.upper_loss, part: lambda *_: returned}
    problem = dpb.BilevelProblem(domain=dpb.Simplex(), **functions)
    return lambda: dpb.solve(
        problem, records_of_the_problem(), BUDGET, start=START, ledger=charged.nothing, refit=SHORT
    )


def evaluations(draw: Draw, charged: Charged) -> Call:
    """evaluate, with some arguments replaced, among them what the model returns."""
    returned = draw(st.one_of(st.just(np.zeros(60)), anything()))
    valid = {"model": lambda rows: returned, "records": (np.zeros((60, 2)), np.arange(60) % 2), "budget": BUDGET}
    more = ("metric", "loss_bound", "target_range", "positive_class", "groups", "group_names", "bins", "edges")
    more = (*more, "units", "rows_per_unit", "unit_ids", "seed", "ledger")
    if draw(st.booleans()):
        valid |= {"units": np.arange(60) // 3, "rows_per_unit": 2}
        valid |= {"unit_ids": range(25)} if draw(st.booleans()) else {}
    given = draw(changed(valid, more))
    if draw(st.booleans()):
        given["records"] = (draw(anything()), draw(anything()))
    return functools.partial(dpb.evaluate, **{"ledger": charged.ledger} | given)


# --- encoders and estimators -------------------------------------------------------------------------------------

_SETTINGS = (
    "epsilon",
    "delta",
    "adjacency",
    "data_norm",
    "bounds",
    "validation_fraction",
    "split_seed",
    "method",
    "invalid",
    "random_state",
    "rows_per_unit",
    "mean_rows",
    "unit_ids",
    "devices",
)


def fits(draw: Draw, charged: Charged) -> Call:
    """fit of every estimator, with settings or data replaced; what is left of it is refused by a ledger of nothing."""
    name = draw(st.sampled_from(sorted(CASES)))
    case = CASES[name]
    weighted = {"logistic": ("largest_weight", "class_weight"), "ridge": ("largest_weight",)}.get(name, ())
    data = {"X": X, "y": case.y, **case.more()} | ({"sample_weight": np.ones(60)} if weighted else {})
    settings: dict[str, Any] = {}
    if draw(st.booleans()):
        data, settings = data | {"units": np.arange(60) // 3}, {"rows_per_unit": 4}
    given = draw(changed(data | settings, (*_SETTINGS, *weighted) if draw(st.booleans()) else ()))
    rows = {part: given.pop(part) for part in data}
    return lambda: case.make(ledger=charged.nothing, **given).fit(**rows)


def plans_of_estimators(draw: Draw) -> Call:
    """plan of every estimator."""
    case = CASES[draw(st.sampled_from(sorted(CASES)))]
    sizes = draw(changed({"rows": 60, "columns": 3}, ("validation_rows",) if case.places == "sources" else ()))
    return lambda: case.make().plan(**sizes)


def predictions(draw: Draw) -> Call:
    """predict and score of fitted models."""
    name = draw(st.sampled_from(sorted(CASES)))
    model = fitted(CASES[name])
    table, targets = draw(st.one_of(st.just(X), anything())), draw(anything())
    extra = {"tasks": draw(anything())} if name == "multitask" and draw(st.booleans()) else {}
    asked = draw(st.booleans())

    def ask() -> None:
        try:
            model.predict(table, **extra) if asked else model.score(table, targets, **extra)
        except ValueError as error:
            if "features as input" not in str(error):  # scikit-learn's own words, which its checks insist on
                raise
            raise dpb.InvalidRecords("another number of columns") from None

    return ask


def encoders(draw: Draw) -> Call:
    """BoundedEncoder, with declarations and tables of any kind."""
    table, other = draw(anything()), draw(anything())
    valid = {"ranges": {0: (0, 1), 1: (0, 1)}, "categories": {2: ["a", "other"]}}
    maps = ("ordinals", "dates", "texts", "scales", "knots", "parts")
    encoder = draw(changed(valid, ("row_norm", "intercept", "invalid", "missing", "crosses", *maps)))
    if draw(st.booleans()):  # the declaration of one column
        encoder[draw(st.sampled_from(maps))] = {draw(st.integers(0, 2)): draw(numbers_and_such())}
    rows = [[0.1, 0.2, "a"]] if draw(st.booleans()) else table
    return lambda: dpb.BoundedEncoder(**encoder).fit(rows).transform(other)


# --- what a run has spent, and how it is drawn ---------------------------------------------------------------------


@functools.cache
def solution() -> dpb.Solution:
    return solved("Tracking", records_of_the_problem(), seed=0)


def accounts(draw: Draw) -> Call:
    """Questions to a spend, and one that was damaged on its way through a file."""
    if draw(st.booleans()):
        content = draw(damaged_json(json.loads(json.dumps(solution().privacy.to_json()))))
        return lambda: dpb.Privacy.from_json(content).sentence()
    privacy, given = solution().privacy, draw(changed({}, ("delta", "group", "role")))
    return functools.partial(privacy.epsilon, **given)


# --- audits ------------------------------------------------------------------------------------------------------


@functools.cache
def _audited() -> dpb.audit.Audit:
    return dpb.audit.audit(dpb.audit.Case(**_case()), BUDGET, runs=40)


def _case() -> dict[str, Any]:
    one, other = data(), data()
    other["upper"][0] = 1.0
    given = {"problem": PROBLEM, "method": METHODS["Tracking"], "start": START, "refit": None}
    return given | {"name": "a case", "records": one, "neighbour": other}


def audits(draw: Draw) -> Call:
    """Cases, audits of many runs and of one, tables; few runs where they are valid."""
    match draw(st.sampled_from(["case", "many runs", "one run", "standard", "table"])):
        case "case":
            return functools.partial(dpb.audit.Case, **draw(changed(_case())))
        case "many runs":
            given = draw(
                changed({"case": dpb.audit.Case(**_case()), "budget": BUDGET, "runs": 40}, ("confidence", "seed"))
            )
            return functools.partial(dpb.audit.audit, **given)
        case "one run":
            valid = {name: _case()[name] for name in ("problem", "method", "start", "refit", "records")}
            valid |= {"alternatives": np.linspace(1, -1, 10), "role": "upper", "budget": BUDGET}
            return functools.partial(dpb.audit.one_run, **draw(changed(valid, ("name", "confidence", "seed"))))
        case "standard":
            return functools.partial(dpb.audit.standard_cases, draw(anything()))
        case _:
            return functools.partial(dpb.audit.table, draw(st.one_of(anything(), st.just([_audited(), 1]))))
