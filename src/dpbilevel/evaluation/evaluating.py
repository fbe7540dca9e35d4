"""Private scores of a model on held-out private records: released once, with noise, and charged like any other run.

An uncharged score on private records is the most common leak of all. Here all scores are one Gaussian release with one
bounded contribution per record, charged to the ledger of the data set that the records come from.
"""

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dpbilevel.encoding.encoded_rows import caveats_of
from dpbilevel.errors import InvalidArgument, PrivacyLeakWarning, UtilityWarning
from dpbilevel.evaluation.groups import GroupAccuracy
from dpbilevel.evaluation.heldout import checked_pair, classes_of
from dpbilevel.evaluation.means import NORM
from dpbilevel.evaluation.of_units import (
    MEANING,
    WithRows,
    among_those_with_rows,
    caveats_without_units,
    in_places,
    of_records,
    selected,
)
from dpbilevel.evaluation.result import Evaluation
from dpbilevel.evaluation.scoring import Declared, Metric, chosen_metrics, group_positions, scored
from dpbilevel.execution.program import Program, Stage
from dpbilevel.execution.running import check_ledger, run
from dpbilevel.foundation.about import version
from dpbilevel.methods.unit_losses import mean_over_rows
from dpbilevel.planning import check_delta
from dpbilevel.privacy.accounting import all_charges
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.bundles import Bundle
from dpbilevel.privacy.calibration import calibrate, for_exact_noise
from dpbilevel.privacy.ledger import Ledger, Receipt
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.privacy.spend import Privacy
from dpbilevel.records import Records
from dpbilevel.solving import check_noise, warn_if_not_private

Tree = Any

_NOISY = 0.05  # noise above this fraction of a metric's range makes a score of little use


def evaluate(
    model: Any,
    records: tuple[Any, Any],
    budget: Budget,
    *,
    metric: str | tuple[str, ...] = "accuracy",
    loss_bound: float | None = None,
    target_range: tuple[float, float] | None = None,
    positive_class: Any = None,
    groups: Any = None,
    group_names: Any = None,
    bins: int = 10,
    edges: Any = None,
    units: Any = None,
    rows_per_unit: int | None = None,
    unit_ids: Any = None,
    ledger: Ledger | None = None,
    seed: int | None = None,
    noise: str = "float",
) -> Evaluation:
    """Score a model on held-out private records within a budget.

    Guarantee: everything in the returned `Evaluation` together satisfies (budget.epsilon, budget.delta)-DP for the
    held-out records, rows or units, under ``budget.adjacency``. It relies on clipping and noise, and on two conditions
    that code cannot check: the model is **public** with respect to these records (released, or trained on others; a
    model that was fitted to them without privacy is itself a leak), and it **predicts each row independently** (not,
    for example, after centring the given rows).

    Arguments are checked and predictions made before the charge, and nothing about them is released. The charge
    precedes the single evaluation of the release and is never refunded. Refusals (missing targets, a model that raises
    on the rows) happen before the charge and lie outside (epsilon, delta), as for `Records`.

    Args:
        model: an object with scikit-learn's ``predict`` (scores of probabilities need ``predict_proba`` and
            ``classes_``), or a function from rows to labels or numbers.
        records: a pair (X, y) of private held-out rows and targets. X is passed to the model unchanged (with units,
            k of its rows for every unit). Caveats of `EncodedRows` apply to the result too: a range that an encoder
            took from these rows is not charged.
        budget: the budget of the evaluation; ``Budget(float("inf"))`` gives the exact score, which is not private.
        metric: a name, or a tuple of names, which are released jointly and share the budget equally. For any model:
            "accuracy"; "loss", the log-loss of a classifier or the squared error of any other model; "group_accuracy".
            For classifiers: "brier", "auc", "calibration". For models that predict numbers: "r2", "error_quantiles".
        loss_bound: public number to which each record's loss is clipped. By default twice the log-loss of a uniform
            guess, and at least 4; for squared errors the square of the width of ``target_range``.
        target_range: the declared range of targets that are numbers, (low, high), for "r2" and "error_quantiles".
        positive_class: the class whose probability "auc" and "calibration" bin; by default the second of two classes.
        groups: the group of each row, private, for "group_accuracy". Rows of a group without a declared name count in
            no group.
        group_names: the declared names of the groups. The number of rows of each is released, with noise.
        bins: number of equal-width bins of "calibration".
        edges: public edges of the bins of "auc" (from 0 to 1) or of "error_quantiles" (from 0), instead of the default.
        units: the id of the unit of each row: integers or strings, private. The guarantee is then that of all rows of
            one id, and a score is that of a random row of a random unit: every unit counts once, by the mean over its
            rows. The number of records is that of units. Without, scores of a model that protects units have a caveat.
        rows_per_unit: k, public, with ``units``: how many rows of an id are used at most. Of a unit with more, k are
            drawn. It changes no noise.
        unit_ids: with ``units``, a public list of all ids that may be in the data, not read off the rows, as in
            `dpb.Records`. The guarantee then also hides whether a unit has rows at all. Scores are those of the units
            that have rows; their number is released too, which takes a share of the budget.
        ledger: the data set's ledger; without one, the evaluation is accounted for on its own.
        seed: fixes the noise for experiments. The result is then reproducible, hence NOT private, and is marked so.
        noise: "float", or "exact" for integer noise, as in `solve`.

    A label that is unknown to the model counts as a wrong prediction of probability zero, and a non-finite prediction
    as the worst possible one. Neither raises, because an error would reveal something about a record.

    >>> import numpy as np, dpbilevel as dpb
    >>> rows = np.linspace(-1, 1, 4000)
    >>> released = dpb.evaluate(lambda rows: rows > 0.1, (rows, rows > 0), dpb.Budget(1.0, 1e-5))
    >>> bool(abs(released.values["accuracy"] - 0.95) < 0.02), round(released.standard_errors["accuracy"], 5)
    (True, 0.00094)

    Several scores at once, each with a confidence interval:

    >>> chosen = {"metric": ("r2", "error_quantiles"), "target_range": (-1, 1)}
    >>> regression = dpb.evaluate(lambda rows: rows, (rows, rows**3), dpb.Budget(1.0, 1e-5), **chosen)
    >>> low, high = regression.interval("r2", level=0.999999)
    >>> bool(low < 1 - np.mean((rows - rows**3) ** 2) / np.var(rows**3) < high)
    True
    >>> low, high = regression.interval("error_quantiles", level=0.999999, part="90%")
    >>> bool(low < np.quantile(abs(rows - rows**3), 0.9) < high)
    True
    """
    if not isinstance(budget, Budget):
        raise InvalidArgument(f"budget: must be dpb.Budget(epsilon, delta), not {type(budget).__name__}")
    check_ledger(ledger)
    schedule = KeySchedule(seed)
    check_noise(noise, seed)
    classes = classes_of(model)
    declared = Declared(loss_bound, positive_class, bins, edges, target_range, group_names)
    rows, targets = checked_pair(records)
    caveats = (*caveats_of(records), *caveats_without_units(model, units))
    selection = selected(units, rows_per_unit, len(targets), unit_ids)
    number = len(targets) if selection is None else len(selection)
    check_delta(budget, number)
    metrics = chosen_metrics(metric, model, classes, budget, number, declared)
    group = _groups(metrics, groups, len(targets), declared)
    scores = metrics if unit_ids is None else (*metrics, WithRows())
    planned = plan_scores(scores, number, budget, noise)
    warn_if_noisy(planned, stacklevel=3, kind="rows" if units is None else "units")
    # The contributions are the library's own: in float64, whatever the user has set, a score without noise is exact.
    with jax.enable_x64(True):
        rows, targets, group = in_places(selection, rows, targets, group)
        stored, bundles = of_records(selection, scored(scores, model, rows, targets, classes, group))
        hidden = Records(both=stored, **bundles)
    for caveat in caveats:
        warnings.warn(caveat, PrivacyLeakWarning, stacklevel=2)
    warn_if_not_private(budget, schedule)
    return planned.release_scores(hidden, schedule, caveats, ledger=ledger)


@dataclass(frozen=True, eq=False)
class ScorePlan:
    """Scores that are declared, and not yet charged: no record has been read.

    Attributes:
        metrics: the metrics, and how many units have rows if a list declares all ids.
        number: the public number of records.
        budget: the budget of the scores.
        program: the program that releases them.
    """

    metrics: tuple[Metric | WithRows, ...]
    number: int
    budget: Budget
    program: Program

    @property
    def release(self) -> Release:
        """The one release of all scores."""
        (release,) = self.program.releases
        assert isinstance(release, Release)
        return release

    def release_scores(
        self,
        records: Records,
        schedule: KeySchedule,
        caveats: tuple[str, ...] = (),
        *,
        ledger: Ledger | None = None,
        receipt: Receipt | None = None,
    ) -> Evaluation:
        """Charge and release the scores; with a receipt, they have been charged."""
        with jax.enable_x64(True):
            released = run(
                [self.program],
                records,
                (None, _zeros(self.metrics)),
                schedule,
                budget=self.budget,
                ledger=ledger,
                description="evaluation",
                receipt=receipt,
                progress=False,
            )
        void = schedule.reproducible or not self.budget.is_private
        most = records.sizes.rows_per_unit
        privacy = Privacy(all_charges(self.program.releases), self.budget, caveats, void=void, rows_per_unit=most)
        return _result(self.metrics, released.values[1], self.release.noise_std, self.number, privacy)


def plan_scores(
    metrics: tuple[Metric | WithRows, ...], number: int, budget: Budget, noise: str, role: str = "both"
) -> ScorePlan:
    """Declare scores on records of a role, with the noise that spends the budget."""
    with jax.enable_x64(True):
        program, release = _program(metrics, number, for_exact_noise(budget) if noise == "exact" else budget, role)
        if noise == "exact":
            program = program.discretized({release: sum(leaf.size for leaf in jax.tree.leaves(_zeros(metrics)))})
    return ScorePlan(metrics, number, budget, program)


def _result(
    metrics: tuple[Metric | WithRows, ...], answer: Tree, noise: float, records: int, privacy: Privacy
) -> Evaluation:
    """Scores from the answer of a release."""
    number, counted = records, {}
    if WithRows.name in answer:
        counted = {WithRows.name: WithRows().detail(answer[WithRows.name], noise, records)}
        answer, noise, number = among_those_with_rows(answer, noise, records)
    mine = {chosen.name: (chosen, answer[chosen.name]) for chosen in metrics if not isinstance(chosen, WithRows)}
    of_units = "" if privacy.rows_per_unit is None else MEANING
    details = {name: chosen.detail(part, noise, number) for name, (chosen, part) in mine.items()} | counted
    return Evaluation(
        values={name: chosen.value(part, number) for name, (chosen, part) in mine.items()},
        standard_errors={name: chosen.standard_error(part, noise, number) for name, (chosen, part) in mine.items()},
        privacy=privacy,
        records=records,
        ranges={name: chosen.largest for name, (chosen, _) in mine.items()},
        meanings={name: chosen.meaning + of_units for name, (chosen, _) in mine.items()},
        version=version(),
        details={name: detail for name, detail in details.items() if detail},
    )


def _groups(metrics: tuple[Metric | WithRows, ...], groups: Any, number: int, declared: Declared) -> Any:
    """The group of each row, if a metric needs it."""
    wanted = any(isinstance(chosen, GroupAccuracy) for chosen in metrics)
    if not wanted and (groups is not None or declared.group_names is not None):
        raise InvalidArgument('groups: are only for metric="group_accuracy"; add it, or leave groups out')
    return group_positions(groups, number, declared) if wanted else None


@functools.lru_cache(maxsize=16)
def _program(
    metrics: tuple[Metric | WithRows, ...], number: int, budget: Budget, role: str = "both"
) -> tuple[Program, Release]:
    clip = NORM * math.sqrt(len(metrics)) if budget.is_private else math.inf
    declared = Release(
        name="evaluation: " + ", ".join(chosen.name for chosen in metrics),
        contributions={role: Contribution(_vector_of(metrics), clip, number)},
        noise_std=1.0,
        uses=1,
        adjacency=budget.adjacency,
    )
    (release,) = calibrate([declared], budget)
    program = Program(
        rounds=1,
        stages=[Stage(release=release, query=_query, update=_update)],
        start=lambda x, y: y,
        observe=_observe,
        finish=lambda state: (None, state),
    )
    return program, release


def _query(state: Tree, carry: Tree, step: jax.Array) -> None:
    return None


def _update(state: Tree, carry: Tree, answer: Tree, step: jax.Array) -> Tree:
    return answer


def _observe(state: Tree) -> Tree:
    return state


@functools.lru_cache(maxsize=16)
def _vector_of(metrics: tuple[Metric | WithRows, ...]) -> Callable[[None, Tree], Tree]:
    return functools.partial(_vector, metrics)


def _vector(metrics: tuple[Metric | WithRows, ...], point: None, record: Tree) -> Tree:
    """One record's contribution to all metrics jointly; of a unit, the mean over its rows."""
    if isinstance(record, Bundle):
        return mean_over_rows(lambda row: _vector(metrics, point, row), record)
    return {chosen.name: chosen.contribution(record[chosen.name]) for chosen in metrics}


def _zeros(metrics: tuple[Metric | WithRows, ...]) -> Tree:
    """An answer of zeros, in float64."""
    return jax.tree.map(np.zeros, {chosen.name: chosen.shape for chosen in metrics}, is_leaf=_is_shape)


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple)


def warn_if_noisy(planned: ScorePlan, stacklevel: int, kind: str = "rows") -> None:
    """Warn, before the charge, if noise makes scores of little use."""
    units = [chosen.unit for chosen in planned.metrics if not isinstance(chosen, WithRows)]
    number, noise = planned.number, planned.release.noise_std * max(units)
    if noise > _NOISY:
        warnings.warn(
            f"records: with {number:,} {kind} the noise alone has a standard deviation of {noise:.2g} of the score's "
            f"range; {_NOISY:g} would need {math.ceil(number * noise / _NOISY):,} {kind}, or a larger epsilon",
            UtilityWarning,
            stacklevel=stacklevel,
        )
