"""A run on a file: read, charge, tune and train, write the released values."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpbilevel.checkpoint.checkpoint import following_schedule
from dpbilevel.cli.compilation_cache import cache_programs
from dpbilevel.cli.evaluation import SPACE as SCORES_SPACE
from dpbilevel.cli.holdout import HeldOut, divide, planned_scores, with_scores
from dpbilevel.cli.job import Job
from dpbilevel.cli.ledger import entry_fact
from dpbilevel.cli.memory import storage_for
from dpbilevel.cli.own_rows import read_own_rows
from dpbilevel.cli.resuming import StoredRun
from dpbilevel.cli.rows import Rows, column_names, read_rows
from dpbilevel.cli.run_folder import FollowingLedger, RunFolder, check_free, finished, now, running
from dpbilevel.cli.stored_rows import read_stored_rows
from dpbilevel.estimators.prepared import Prepared
from dpbilevel.foundation.processes import current
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.storage import Storage
from dpbilevel.privacy.stores.entry import unit_of_column
from dpbilevel.records import Records
from dpbilevel.report.review import LinearModel, Review
from dpbilevel.report.run_file import run_file_space
from dpbilevel.solution.shapes import shapes_of


@dataclass(frozen=True, eq=False)
class Finished:
    """A successful run."""

    review: Review
    folder: Path


def run(job: Job, *, ledger: Ledger | None, command: str, stored: StoredRun | None = None) -> Finished | None:
    """Read the files, charge the ledger, fit, and write the folder; with ``stored``, resume the run that is there.

    All errors in the input are found before the folder is created and anything is charged. Of several processes, the
    first one charges and writes; the others return None.
    """
    asked, declared, is_first = job.asked, job.schema.to_json(), current().is_first
    current().agree(job.facts_of_all())
    if stored is not None:
        stored.check_schema(asked.schema, declared)
    elif is_first:
        check_free(asked.out, force=asked.force)
    storage = None
    if job.rows is not None:
        storage = storage_for(asked, job.rows, job.width, has_number=job.schema.columns[asked.target].kind == "range")
    rows, validation, held = divide(asked.holdout, *_read(job, storage), storage)
    if asked.unit is None:  # with units, their number is checked by the estimator; that of rows is private
        job.check_rows(len(rows.target))
    prepared = _prepared(job.estimator, rows, validation)
    scores = None if held is None else _scores(job, held, prepared.planned.budget)
    if stored is None:
        known = {"facts": _facts(job, rows, validation, held), "schema": declared, "typed": command, "created": now()}
        stored, resumed = StoredRun.of(asked, **known), False
    else:
        resumed = True
    budget = prepared.planned.budget
    folder = RunFolder(
        asked.out,
        budget,
        stored.facts,
        stored.typed,
        stored.created,
        run_file_space(prepared.planned, stored.facts, declared, column_names(job.encoder), stored.typed)
        + (0 if scores is None else SCORES_SPACE),
        options=None if asked.noise == "exact" else stored.text(),  # exact noise has no checkpoint
        resumed=resumed,
    )
    also = () if scores is None else (scores.plan.release,)
    unit = None if asked.unit is None else unit_of_column(asked.unit)
    if not is_first:
        following = FollowingLedger(budget, also)
        model: Any = job.estimator.set_params(ledger=following)
        _fit(model, prepared, folder.checkpoint)
        if scores is not None and following.receipt is not None:
            scores.score(model, following.receipt, partial(_schedule, asked.seed, folder.checkpoint))
        return None
    with running(folder, Ledger(budget) if ledger is None else ledger, also, unit) as charged:
        model = job.estimator.set_params(ledger=charged)
        _fit(model, prepared, folder.checkpoint)
        solution, evaluation = model.solution_, None
        if scores is not None and charged.receipt is not None:
            evaluation = scores.score(model, charged.receipt, partial(_schedule, asked.seed, folder.checkpoint))
            solution = with_scores(solution, evaluation)
        folder.solution = solution
        facts = {**stored.facts, **entry_fact(charged, charged.description)}
        review = finished(
            folder,
            lambda: Review(
                solution=solution,
                evaluation=evaluation,
                title=f"{asked.title} for {asked.target}",
                facts=facts,
                model=_linear_model(job, model),
                schema=declared,
                command=stored.typed,
                created=stored.created,
            ),
        )
    return Finished(review, asked.out)


def _schedule(seed: int | None, checkpoint: Path | None, records: Records) -> KeySchedule:
    """The keys of scores: the same ones if the run is resumed, and fresh ones if it cannot be."""
    if seed is not None or checkpoint is None:
        return KeySchedule(seed)
    return following_schedule(checkpoint, records)


def _fit(model: Any, prepared: Prepared, checkpoint: Path | None) -> None:
    # A disk that is full does not stop a run that is paid for: space for its results has been taken.
    with cache_programs(prepared.planned):
        model._fit(prepared, checkpoint, saves_required=False)


def _read(job: Job, storage: Storage | None) -> tuple[Rows, Rows | None]:
    asked = job.asked
    if current().is_several:
        return read_own_rows(job, storage)
    known, places = (job.table, job.encoder, job.schema, asked.target), asked.place_columns()
    if storage is not None and job.rows is not None:
        job.estimator.set_params(storage=storage.folder)
        rows = read_stored_rows(*known, job.rows, places, asked.weight)
    else:
        rows = replace(read_rows(*known, places, asked.unit, asked.weight), listed=job.listed)
    if job.validation is None:
        return rows, None
    return rows, read_rows(job.validation, job.encoder, job.schema, asked.target, {}, asked.unit)


def _prepared(model: Any, rows: Rows, validation: Rows | None) -> Prepared:
    if rows.listed is not None:
        model.set_params(unit_ids=rows.listed)  # without those that are set aside
    arguments: dict[str, Any] = dict(rows.places) | ({} if rows.units is None else {"units": rows.units})
    if validation is not None:
        more = () if validation.units is None else (validation.units,)
        arguments["validation"] = (validation.features, validation.target, *more)
    prepared: Prepared = model._prepare(rows.features, rows.target, **arguments)
    return prepared


def _scores(job: Job, held: Rows, budget: Budget) -> HeldOut:
    asked = job.asked
    return planned_scores(
        held, job.schema.columns[asked.target], job.estimator, budget, asked.noise, asked.rows_per_unit
    )


def _facts(job: Job, rows: Rows, validation: Rows | None, held: Rows | None) -> dict[str, str]:
    """Public facts about the run, for the report."""
    asked = job.asked
    validated = f"{job.estimator.validation_fraction:g} of the rows, by position"
    kind, how = ("rows", "position") if rows.units is None else ("units", "a hash of their ids")
    validated = f"{job.estimator.validation_fraction:g} of the {kind}, by {how}"
    if validation is not None and asked.validation is not None:
        validated = f"{asked.validation.name}, {validation.records:,} {kind}"
    return {
        "data": asked.data.name,
        kind: f"{rows.records:,}",  # how many rows units have is private
        "target": asked.target,
        "columns that the model reads": ", ".join(map(str, job.encoder.feature_names_in_)),
        "encoded columns": f"{job.width:,}",
        "estimator": type(job.estimator).__name__,
        **asked.place_columns(),
        **asked.facts(),
        **asked.unit_facts(),
        **_list_of_units(job),
        "validation": validated,
        **({} if held is None else {"held out": f"{held.records:,} further {kind}, by {how}"}),
    }


def _list_of_units(job: Job) -> dict[str, str]:
    if job.asked.unit_ids is None or job.listed is None:
        return {}
    return {"list of units": f"{job.asked.unit_ids.name}, with {len(job.listed):,} ids, is public"}


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
        standard_errors=np.atleast_2d(model.coef_noise_) if hasattr(model, "coef_noise_") else None,
        shapes=getattr(model, "shapes_", None) or shapes_of(job.encoder.terms_, model.coef_),
    )
