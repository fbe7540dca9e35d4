"""Rows that a run sets aside and scores at the end (``--holdout``).

They are chosen by a public permutation of positions, and neither tuning nor training reads them: they are a third role,
disjoint from the other two. Each record is in one role, so that the run as a whole is as private as its most expensive
role (parallel composition), and scores with the whole epsilon cost nothing. Their release is declared before the run
and charged together with it, as one entry of the ledger.

A run that is resumed may compute scores again, after a process that was killed had written them to a file that was not
yet complete. It draws the same noise: their keys follow from the checkpoint and from what is scored.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from dpbilevel.cli.held_rows import chosen_rows
from dpbilevel.cli.rows import Rows
from dpbilevel.cli.schema import Column
from dpbilevel.cli.stored_rows import on_disk
from dpbilevel.encoding.encoded_rows import EncodedRows, Held
from dpbilevel.encoding.streamed_rows import StreamedRows
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.codes import Codes
from dpbilevel.estimators.split import Positions, split, split_by_hash, validation_rows
from dpbilevel.evaluation.evaluating import ScorePlan, plan_scores, warn_if_noisy
from dpbilevel.evaluation.heldout import check_same_kind, checked_pair
from dpbilevel.evaluation.of_units import WithRows, in_places, of_records, selected
from dpbilevel.evaluation.result import Evaluation
from dpbilevel.evaluation.scoring import Declared, chosen_metrics, scored
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.parts import Part
from dpbilevel.privacy.shards import mesh_of
from dpbilevel.privacy.storage import Storage
from dpbilevel.privacy.units import Selection, listed_ids, read_ids, read_units
from dpbilevel.records import Records
from dpbilevel.solution.solution import Solution

ROLE = "heldout"
SEED = 0  # of the public permutation


def check_holdout(holdout: float | None) -> None:
    """Raise unless the option is a fraction."""
    if holdout is not None and not (math.isfinite(holdout) and 0 < holdout < 1):
        raise InvalidArgument(
            f"--holdout {holdout:g}: must lie between 0 and 1; it is a fraction of the rows (try 0.1)"
        )


def held_out_rows(rows: int, holdout: float | None) -> int:
    """How many of so many rows are set aside."""
    return 0 if holdout is None or rows < 2 else validation_rows(rows, holdout)


def divide(
    holdout: float | None, rows: Rows, validation: Rows | None, storage: Storage | None = None
) -> tuple[Rows, Rows | None, Rows | None]:
    """Training rows, separate validation rows, and rows that are set aside, which are on disk if ``storage`` is given.

    They come from the file of validation rows if there is one: those rows are known to be correct. Then no unit may be
    in both files; that no unit of the training rows is set aside, which the estimator cannot see, is checked here.
    """
    if holdout is None:
        return rows, validation, None
    if validation is None:
        remaining, held = set_aside(rows, holdout, storage)
        return remaining, None, held
    remaining, held = set_aside(validation, holdout, storage)
    if rows.units is not None:
        read_units({"lower": rows.units, ROLE: held.units}, {"lower": len(rows.target), ROLE: len(held.target)})
    return rows, remaining, held


def set_aside(rows: Rows, holdout: float, storage: Storage | None = None) -> tuple[Rows, Rows]:
    """The rows that remain for the run, and the rows that are set aside, both in the order of the file.

    Units are set aside with all of their rows, by the rank of a public hash of their ids, as `Owners` does.
    """
    if rows.units is None:
        _check_three(len(rows.target), "rows")
        held, remaining = (np.sort(positions) for positions in split(len(rows.target), holdout, SEED))
        kept = _at(rows, held, storage)
        if storage is not None and isinstance(kept.features, StreamedRows):
            kept = replace(kept, features=on_disk(kept.features, storage))
        return _at(rows, remaining, storage), kept
    ids = read_ids(rows.units, len(rows.target))
    listed = listed_ids(rows.listed, ids)
    names = np.unique(ids) if listed is None else listed
    unit = np.searchsorted(names, ids)
    _check_three(len(names), "units")
    is_held = np.zeros(len(names), bool)
    is_held[split_by_hash(names, holdout, SEED)[0]] = True
    run, scores = (_at(rows, np.flatnonzero(mine[unit])) for mine in (~is_held, is_held))
    if listed is None:
        return run, scores
    return replace(run, listed=names[~is_held]), replace(scores, listed=names[is_held])


def _check_three(number: int, kind: str) -> None:
    if number < 3:
        raise InvalidArgument(f"--holdout: needs at least 3 {kind}, one to validate, one to train and one to score")


@dataclass(frozen=True, eq=False, repr=False)  # a repr would show cells
class HeldOut:
    """Rows that are set aside, and the plan of their scores."""

    features: EncodedRows
    targets: Any
    plan: ScorePlan
    classes: Any
    selection: Selection | None  # of the rows of units; None if rows are protected
    held: Held | None = None  # of a job of several processes: which rows these are

    def score(self, model: Any, receipt: Receipt, schedule_for: Callable[[Records], KeySchedule]) -> Evaluation:
        """Release the scores of a trained model; the charge of the run has paid for them.

        Their keys are those of ``schedule_for`` the records that hold what the model said of the rows.
        """
        with jax.enable_x64(True):
            rows, targets = in_places(self.selection, self.features, self.targets)
            made = scored(self.plan.metrics, model, rows, targets, self.classes, None)
            stored, bundles = of_records(self.selection, made)
            if self.held is not None:
                here, number = len(self.held.places), self.held.number
                stored = jax.tree.map(lambda leaf: Part(leaf[:here], number), stored)
                bundles = {"mesh": mesh_of(None)}
            hidden = Records(heldout=stored, **bundles)
        return self.plan.release_scores(
            hidden, schedule_for(hidden), getattr(self.features, "caveats", ()), receipt=receipt
        )


def planned_scores(
    rows: Rows, column: Column, estimator: Any, budget: Budget, noise: str, rows_per_unit: int | None = None
) -> HeldOut:
    """Declare the scores of rows that are set aside: the default ones of `dpbilevel evaluate`.

    Args:
        rows: the rows that are set aside.
        column: the declaration of the target.
        estimator: the estimator, which is not fitted yet.
        budget, noise, rows_per_unit: of the run.
    """
    number = rows.records
    classes = None if column.kind == "range" else np.array(column.values)
    declared = Declared(target_range=column.values) if classes is None else Declared()
    names = default_metrics(column.kind, len(column.values))
    metrics: Any = chosen_metrics(names, estimator, classes, budget, number, declared)
    metrics = metrics if rows.listed is None else (*metrics, WithRows())
    planned = plan_scores(metrics, number, budget, noise, ROLE)
    warn_if_noisy(planned, stacklevel=3, kind="rows" if rows.units is None else "units")
    target = rows.target.words() if isinstance(rows.target, Codes) else rows.target
    features, held = rows.features[:], rows.features.held
    if held is not None:
        target = target[held.places]
        if not len(target):  # a made-up row, which is left out of what is stored
            features = EncodedRows(np.zeros((1, features.shape[1]), features.dtype), caveats=features.caveats)
            target = np.array([column.values[0]])
    _, targets = checked_pair((features, target))
    if classes is not None:
        check_same_kind(targets, classes)
    units = selected(rows.units, rows_per_unit, len(targets), rows.listed)
    return HeldOut(features, targets, planned, classes, units, held)


def default_metrics(kind: str, labels: int) -> tuple[str, ...]:
    """The metrics for a target of this kind, with this number of classes."""
    return ("r2", "error_quantiles") if kind == "range" else ("accuracy", "auc") if labels == 2 else ("accuracy",)


def with_scores(solution: Solution, evaluation: Evaluation) -> Solution:
    """The solution of a run whose guarantee covers the scores of its third role too."""
    charges: Mapping[str, Any] = {**solution.privacy.charges, **evaluation.privacy.charges}
    return replace(
        solution,
        privacy=replace(solution.privacy, charges=charges),
        sizes={**solution.sizes, ROLE: evaluation.records},
    )


def _at(rows: Rows, positions: Positions, storage: Storage | None = None) -> Rows:
    features = rows.features
    if isinstance(features, StreamedRows):
        chosen: Any = features.at(positions)
    elif features.held is not None:
        here, held = features.held.chosen(positions)
        chosen = chosen_rows(features, np.flatnonzero(here), storage)
        chosen.held = held
    else:
        chosen = EncodedRows(np.asarray(features)[positions], data_norm=features.data_norm, caveats=features.caveats)
        chosen.terms = features.terms
    places = {name: cells[positions] for name, cells in rows.places.items()}
    return Rows(chosen, rows.target[positions], places, None if rows.units is None else rows.units[positions])
