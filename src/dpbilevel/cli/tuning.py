"""A run on a file: read, charge, tune and train, write what was released."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpbilevel.cli.job import Job
from dpbilevel.cli.rows import Rows, column_names, read_rows
from dpbilevel.cli.run_folder import RunFolder, check_free, finished, now, running
from dpbilevel.estimators.prepared import Prepared
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.report.review import LinearModel, Review
from dpbilevel.report.run_file import run_file_space


@dataclass(frozen=True, eq=False)
class Finished:
    """A run that ended well."""

    review: Review
    folder: Path


def run(job: Job, out: Path, *, force: bool, ledger: Ledger | None, command: str) -> Finished:
    """Read the files, charge the ledger, fit, and write the folder.

    Everything that can be wrong with the input is found before the folder is made and anything is charged.
    """
    check_free(out, force=force)
    rows = _read(job)
    job.check_rows(len(rows[0].target))
    prepared = _prepared(job.estimator, *rows)
    planned = prepared.planned
    keeper = Ledger(planned.budget) if ledger is None else ledger
    facts, declared = _facts(job, *rows), job.schema.to_json()
    space = run_file_space(planned, facts, declared, column_names(job.encoder), command)
    folder = RunFolder(out, planned.budget, facts, command, now(), space)
    with running(folder, keeper) as charged:
        model = job.estimator.set_params(ledger=charged)._fit(prepared)
        folder.solution = model.solution_
        review = finished(
            folder,
            lambda: Review(
                solution=model.solution_,
                title=f"{job.asked.title} for {job.asked.target}",
                facts=facts,
                model=_linear_model(job, model),
                schema=declared,
                command=command,
                created=folder.created,
            ),
        )
    return Finished(review, out)


def _read(job: Job) -> tuple[Rows, Rows | None]:
    asked = job.asked
    rows = read_rows(job.table, job.encoder, job.schema, asked.target, asked.place_columns())
    if job.validation is None:
        return rows, None
    return rows, read_rows(job.validation, job.encoder, job.schema, asked.target, {})


def _prepared(model: Any, rows: Rows, validation: Rows | None) -> Prepared:
    apart = {} if validation is None else {"validation": (validation.features, validation.target)}
    prepared: Prepared = model._prepare(rows.features, rows.target, **rows.places, **apart)
    return prepared


def _facts(job: Job, rows: Rows, validation: Rows | None) -> dict[str, str]:
    """What is public about the run, in words."""
    asked = job.asked
    validated = f"{job.estimator.validation_fraction:g} of the rows, by position"
    if validation is not None and asked.validation is not None:
        validated = f"{asked.validation.name}, {len(validation.target):,} rows"
    return {
        "data": asked.data.name,
        "rows": f"{len(rows.target):,}",
        "target": asked.target,
        "columns that the model reads": ", ".join(map(str, job.encoder.feature_names_in_)),
        "encoded columns": f"{job.width:,}",
        "estimator": type(job.estimator).__name__,
        **asked.place_columns(),
        **asked.facts(),
        "validation": validated,
    }


def _linear_model(job: Job, model: Any) -> LinearModel:
    outputs: tuple[str, ...] = (job.asked.target,)
    if hasattr(model, "classes_"):
        classes = tuple(map(str, model.classes_))
        outputs = classes[1:] if len(classes) == 2 else classes
    return LinearModel(
        estimator=type(model).__name__,
        target=job.asked.target,
        outputs=outputs,
        columns=column_names(job.encoder),
        coefficients=np.atleast_2d(model.coef_),
        intercepts=np.atleast_1d(model.intercept_),
    )
