"""Scores of the model of a run on the rows of a file: read, charge, release, write.

Everything that can be refused is refused before the charge: options, names of columns, unlisted labels and groups, and
a file that cannot be written. Space for the released scores is reserved before the charge, as for a run.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpbilevel.cli.ending import RunFailed, describe_unexpected
from dpbilevel.cli.holdout import default_metrics
from dpbilevel.cli.layout import Layout
from dpbilevel.cli.prediction import restore
from dpbilevel.cli.rows import Rows, read_rows
from dpbilevel.cli.run_folder import HeldLedger
from dpbilevel.cli.schema import Schema
from dpbilevel.cli.signals import NOTHING_SPENT, SIGNALS
from dpbilevel.cli.table_file import open_table
from dpbilevel.cli.units import Unit, check_list, listed_units, unit_of_scores
from dpbilevel.errors import DPBilevelError, InvalidArgument
from dpbilevel.estimators.base import default_delta
from dpbilevel.evaluation.evaluating import evaluate
from dpbilevel.evaluation.result import Evaluation
from dpbilevel.evaluation.scoring import CLASSIFIERS, METRICS, REGRESSORS
from dpbilevel.foundation.files import Reserved
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.privacy.stores.entry import unit_of_column
from dpbilevel.report.review import Review

GROUPS = "group_accuracy"
SPACE = 2_000_000  # bytes: a generous bound on the scores with their histograms


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to score, as options of the command.

    Args:
        metrics: names, separated by commas; None for those of the target's kind.
        groups: the column whose categories are groups.
        positive_class: the class of "auc" and "calibration".
        unit, rows_per_unit: the column of ids and the bound on their rows; by default those of the run.
        unit_ids: a public list of all ids that may be in the data, if there is one.
        epsilon, delta, adjacency, noise: of the evaluation; without delta it is 1/n^1.1, rounded down.
        invalid: how rows with missing numbers are treated.
    """

    metrics: str | None
    groups: str | None
    positive_class: str | None
    unit: str | None
    rows_per_unit: int | None
    unit_ids: Path | None
    epsilon: float
    delta: float | None
    adjacency: str
    noise: str
    invalid: str

    def budget(self, records: int) -> Budget:
        """The budget of an evaluation on this number of rows, or of units."""
        delta = default_delta(records) if self.delta is None and self.epsilon < float("inf") else self.delta
        return Budget(self.epsilon, delta, self.adjacency)  # type: ignore[arg-type]

    def names(self, schema: Schema, target: str) -> tuple[str, ...]:
        """The metrics, checked against what the schema declares about the target."""
        is_number, labels = schema.columns[target].kind == "range", len(schema.columns[target].values)
        default = default_metrics(schema.columns[target].kind, labels)
        names = default if self.metrics is None else tuple(name.strip() for name in self.metrics.split(","))
        if self.groups is not None and GROUPS not in names:
            names = (*names, GROUPS)
        others = {*CLASSIFIERS, "accuracy", GROUPS} if is_number else set(REGRESSORS)
        allowed = [name for name in METRICS if name not in others]
        for name in names:
            if name == GROUPS and self.groups is None:
                raise InvalidArgument(f"--metrics {GROUPS}: requires --groups COLUMN")
            if name not in allowed:
                kind = "a range" if is_number else "classes"
                raise InvalidArgument(
                    f"--metrics {name}: must be one of {', '.join(allowed)}, for a target with {kind}"
                    + ("; --groups is for targets with classes" if name == GROUPS else "")
                )
        return names

    def group_names(self, schema: Schema) -> tuple[str, ...] | None:
        """The declared groups."""
        if self.groups is None:
            return None
        column = schema.columns.get(self.groups)
        if column is None or column.kind not in ("categories", "classes"):
            raise InvalidArgument(
                f"--groups {self.groups}: must be a column with categories in the schema of the run, which are the "
                "names of the groups"
            )
        return column.values


@dataclass(frozen=True)
class Scored:
    """A finished evaluation, and the error if its file could not be written."""

    evaluation: Evaluation
    failed: OSError | None


def check_file(out: Path, *, force: bool) -> None:
    """Raise if scores cannot be written to a file."""
    if out.suffix.lower() != ".json":
        raise InvalidArgument(f"--out {out}: must end in .json")
    if out.exists() and not force:
        raise InvalidArgument(f"--out {out}: already exists; choose another name, or pass --force")


def score(review: Review, data: Path, out: Path, wanted: Wanted, *, layout: Layout, ledger: Ledger | None) -> Scored:
    """Score the model of a run on the rows of a file, and write the scores."""
    model, encoder, schema = restore(review, wanted.invalid)
    target = review.model.target if review.model is not None else ""
    names, groups = wanted.names(schema, target), wanted.group_names(schema)
    unit = unit_of_scores(review, schema, wanted.unit, wanted.rows_per_unit)
    check_list(wanted.unit_ids, unit)
    listed = listed_units(wanted.unit_ids)
    table = open_table(data, layout)
    others = ([] if wanted.groups is None else [wanted.groups], [] if unit is None else [unit.column])
    needed = [*encoder.feature_names_in_, target, *others[0], *others[1]]
    missing = [name for name in needed if name not in table.names]
    if missing:
        raise InvalidArgument(
            f"{data}: has no column {missing[0]!r}, which an evaluation reads: features, the target, --groups "
            f"and the unit ({table.remedy})"
        )
    places = {} if wanted.groups is None else {"group": wanted.groups}
    rows = read_rows(table, encoder, schema, target, places, None if unit is None else unit.column)
    rows = replace(rows, listed=listed)
    paying = Ledger(wanted.budget(rows.records)) if ledger is None else ledger
    reserved = _reserved(out)
    own = HeldLedger(paying, None if unit is None else unit_of_column(unit.column), lambda: _interrupted(out))
    try:
        found = _evaluated(model, rows, names, groups, wanted, schema.columns[target].values, unit, own)
    except BaseException as error:
        reserved.release()
        if own.receipt is None:
            raise
        raise RunFailed(
            f"the evaluation failed ({_reason(error)}); its epsilon is charged and counts as spent"
        ) from None
    with SIGNALS.held():
        try:
            reserved.write(out, json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n")
        except OSError as error:
            reserved.release()
            return Scored(found, error)
        SIGNALS.ending = lambda: f"The evaluation had finished: {out} contains the scores; its epsilon is spent."
    return Scored(found, None)


def _evaluated(
    model: Any,
    rows: Rows,
    names: Sequence[str],
    groups: Sequence[str] | None,
    wanted: Wanted,
    declared: Sequence[Any],
    unit: Unit | None,
    ledger: Ledger,
) -> Evaluation:
    regression = set(names) & set(REGRESSORS) or not hasattr(model, "classes_")
    return evaluate(
        model,
        (rows.features, rows.target),
        wanted.budget(rows.records),
        metric=tuple(names),
        target_range=(declared[0], declared[1]) if regression else None,
        positive_class=wanted.positive_class,
        groups=None if groups is None else rows.places["groups"],
        group_names=None if groups is None else list(groups),
        units=rows.units,
        rows_per_unit=None if unit is None else unit.rows_per_unit,
        unit_ids=rows.listed,
        ledger=ledger,
        noise=wanted.noise,
    )


def _interrupted(out: Path) -> str:
    _space(out).unlink(missing_ok=True)
    return "The evaluation had started: its epsilon is charged and counts as spent."


def _space(out: Path) -> Path:
    return out.with_name(f".{out.name}.space")


def _reserved(out: Path) -> Reserved:
    def ending() -> str:
        _space(out).unlink(missing_ok=True)
        return NOTHING_SPENT

    with SIGNALS.held():
        try:
            reserved = Reserved(_space(out), SPACE)
        except OSError as error:
            raise InvalidArgument(
                f"--out {out}: cannot be written ({error.strerror}); free some space or choose another folder"
            ) from None
        SIGNALS.ending = ending
    return reserved


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, DPBilevelError) else describe_unexpected(error)
