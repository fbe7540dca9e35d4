"""Private scores of a model on held-out private records: released once, with noise, and charged like any other run.

An uncharged score on private records is the most common leak of all. Here a score is one Gaussian release with one
bounded contribution per record, charged to the ledger of the data set that the records come from.
"""

import functools
import json
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from scipy.stats import norm

from dpbilevel.encoding.encoded_rows import caveats_of
from dpbilevel.errors import InvalidArgument, PrivacyLeakWarning, UtilityWarning
from dpbilevel.evaluation.heldout import checked_pair, classes_of
from dpbilevel.evaluation.scoring import NORM, Metric, chosen_metrics, scored
from dpbilevel.execution.program import Program, Stage
from dpbilevel.execution.running import check_ledger, run
from dpbilevel.foundation.about import version
from dpbilevel.foundation.arguments import one_of, positive
from dpbilevel.foundation.tables import text_table
from dpbilevel.planning import check_delta
from dpbilevel.privacy.accounting import all_charges
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.calibration import calibrate, for_exact_noise
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.privacy.spend import Privacy
from dpbilevel.records import Records
from dpbilevel.solution.trees import encoded
from dpbilevel.solving import check_noise, warn_if_not_private

Tree = Any

_FORMAT = "dpbilevel.evaluation/1"
_ROLE = "both"  # all records have the same role, neither training nor validation
_NOISY = 0.05  # noise above this fraction of a metric's range makes a score of little use


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Released scores of a model. All of it may be published.

    Attributes:
        values: the score of each metric. "calibration" is a dict of arrays with one entry per bin: ``records``, the sum
            of predicted ``probability``, ``positives``, and the ``edges`` of the bins. The expected calibration error
            is ``abs(probability - positives).sum() / records.sum()``; noise makes it larger on average.
        standard_errors: the standard deviation of the privacy noise of each metric, exact and public, before a score is
            clamped to its range; for "calibration" a dict of arrays.
        privacy: the privacy spend.
        records: the number of records (public).
        ranges: the largest possible value of each metric, infinite if there is none; the smallest is zero.
        meanings: a description of each metric in words.
        version: the version of the library.
    """

    values: Mapping[str, Any]
    standard_errors: Mapping[str, Any]
    privacy: Privacy
    records: int
    ranges: Mapping[str, float]
    meanings: Mapping[str, str]
    version: str

    def interval(self, metric: str, level: float = 0.95) -> tuple[float, float]:
        """A confidence interval of level ``level`` for the score on the population (by the normal approximation).

        It covers the privacy noise and, if the records are a random sample, the sampling error. A mean m of values
        between zero and b has a sampling variance of at most m (b - m)/n, whatever their distribution: the interval
        contains every m within z sqrt(noise^2 + m (b - m)/n) of the score. It uses released values and public numbers
        only. Available for "accuracy", and for the clipped "loss".
        """
        scores = tuple(name for name in self.values if name != "calibration")
        one_of("metric", metric, scores, "it must be a score that was released as one number")
        if not positive("level", level, "it is the probability of the interval (try 0.95)") < 1:
            raise InvalidArgument(f"level={level!r}: must be below 1; it is the probability of the interval (try 0.95)")
        largest = self.ranges[metric]
        if math.isinf(largest):
            raise InvalidArgument(
                f"metric={metric!r}: has no interval without privacy; losses were not clipped, so no public number "
                "bounds their variance"
            )
        score, noise = self.values[metric], self.standard_errors[metric]
        square = float(norm.isf((1 - level) / 2)) ** 2
        # (score - m)^2 <= square (noise^2 + m (largest - m)/n), a quadratic inequality in m; its roots:
        leading = 1 + square / self.records
        middle = (score + square * largest / (2 * self.records)) / leading
        half = math.sqrt(max(0.0, middle**2 - (score**2 - square * noise**2) / leading))
        return max(0.0, middle - half), min(largest, middle + half)

    def summary(self) -> str:
        """The guarantee, and every score with its noise and confidence interval."""
        rows = []
        for name in (name for name in self.values if name != "calibration"):
            bounds = "" if math.isinf(self.ranges[name]) else "{:.4g} to {:.4g}".format(*self.interval(name))
            score, noise = f"{self.values[name]:.4g}", f"{self.standard_errors[name]:.2g}"
            rows.append([name, score, noise, bounds, self.meanings[name]])
        parts = [f"{self.privacy.sentence()}\n\n{self.records:,} records"]
        if rows:
            parts.append(text_table(["metric", "score", "noise", "95% interval", "what it is"], rows))
        if "calibration" in self.values:
            parts.append(f"calibration: {self.meanings['calibration']}\n{self._bins()}")
        return "\n\n".join(parts)

    def save(self, path: str | Path) -> Path:
        """Write everything as JSON (released values and public numbers only)."""
        content = {
            "format": _FORMAT,
            "version": self.version,
            "records": self.records,
            "privacy": encoded(self.privacy.to_json()),
            "values": encoded(dict(self.values)),
            "standard_errors": encoded(dict(self.standard_errors)),
            "ranges": encoded(dict(self.ranges)),
            "meanings": dict(self.meanings),
        }
        target = Path(path)
        target.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        return target

    def __repr__(self) -> str:
        scores = [
            "calibration in bins"
            if name == "calibration"
            else f"{name} {self.values[name]:.4g} ± {self.standard_errors[name]:.2g}"
            for name in self.values
        ]
        return f"Evaluation({', '.join(scores)} on {self.records:,} records; {self.privacy.label()})"

    def _bins(self) -> str:
        bins, noise = self.values["calibration"], self.standard_errors["calibration"]
        header = ["bin", *(f"{name} (noise)" for name in noise)]
        rows = [
            [
                f"{bins['edges'][place]:.3g} to {bins['edges'][place + 1]:.3g}",
                *(f"{bins[name][place]:.1f} ({noise[name][place]:.2g})" for name in noise),
            ]
            for place in range(len(bins["records"]))
        ]
        return text_table(header, rows)


def evaluate(
    model: Any,
    records: tuple[Any, Any],
    budget: Budget,
    *,
    metric: str | tuple[str, ...] = "accuracy",
    loss_bound: float | None = None,
    positive_class: Any = None,
    bins: int = 10,
    ledger: Ledger | None = None,
    seed: int | None = None,
    noise: str = "float",
) -> Evaluation:
    """Score a model on held-out private records within a budget.

    Guarantee: everything in the returned `Evaluation` together satisfies (budget.epsilon, budget.delta)-DP for the
    held-out records under ``budget.adjacency``. It relies on clipping and noise, and on two conditions that code cannot
    check: the model is **public** with respect to these records (released, or trained on others; a model that was
    fitted to them without privacy is itself a leak), and it **predicts each row independently** (not, for example,
    after centring the given rows).

    Arguments are checked and predictions made before the charge, and nothing about them is released. The charge
    precedes the single evaluation of the release and is never refunded. Refusals (missing targets, a model that raises
    on the rows) happen before the charge and lie outside (epsilon, delta), as for `Records`.

    Args:
        model: an object with scikit-learn's ``predict`` ("loss" of a classifier and "calibration" need
            ``predict_proba`` and ``classes_``), or a function from rows to labels or numbers.
        records: a pair (X, y) of private held-out rows and targets. X is passed to the model unchanged. Caveats of
            `EncodedRows` apply to the result too: a range that an encoder took from these rows is not charged.
        budget: the budget of the evaluation; ``Budget(float("inf"))`` gives the exact score, which is not private.
        metric: "accuracy"; "loss", the log-loss of a classifier or the squared error of any other model; "calibration";
            or a tuple of them, which are released jointly and share the budget equally.
        loss_bound: public number to which each record's loss is clipped. By default twice the log-loss of a uniform
            guess, and at least 4; squared errors have no default, because it would have to be estimated from the data.
        positive_class: the class whose probability "calibration" bins; by default the second of two classes.
        bins: number of equal-width bins of "calibration".
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
    """
    if not isinstance(budget, Budget):
        raise InvalidArgument(f"budget: must be dpb.Budget(epsilon, delta), not {type(budget).__name__}")
    check_ledger(ledger)
    schedule = KeySchedule(seed)
    check_noise(noise, seed)
    classes = classes_of(model)
    metrics = chosen_metrics(metric, model, classes, budget.is_private, loss_bound, positive_class, bins)
    rows, targets = checked_pair(records)
    caveats = caveats_of(records)
    number = len(targets)
    check_delta(budget, number)
    # The contributions are the library's own: in float64, whatever the user has set, a score without noise is exact.
    with jax.enable_x64(True):
        program, release = _program(metrics, number, for_exact_noise(budget) if noise == "exact" else budget)
        _warn_if_noisy(release.noise_std * max(chosen.unit for chosen in metrics), number)
        hidden = Records(both=scored(metrics, model, rows, targets, classes))
        for caveat in caveats:
            warnings.warn(caveat, PrivacyLeakWarning, stacklevel=2)
        warn_if_not_private(budget, schedule)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), _answer_shapes(metrics, hidden))
        if noise == "exact":
            program = program.discretized({release: sum(leaf.size for leaf in jax.tree.leaves(zeros))})
        released = run(
            [program],
            hidden,
            (None, zeros),
            schedule,
            budget=budget,
            ledger=ledger,
            description="evaluation",
            progress=False,
        )
    answer = released.values[1]
    return Evaluation(
        values={chosen.name: chosen.value(answer[chosen.name], number) for chosen in metrics},
        standard_errors={chosen.name: chosen.standard_error(release.noise_std, number) for chosen in metrics},
        privacy=Privacy(
            all_charges(program.releases), budget, caveats, void=schedule.reproducible or not budget.is_private
        ),
        records=number,
        ranges={chosen.name: chosen.largest for chosen in metrics},
        meanings={chosen.name: chosen.meaning for chosen in metrics},
        version=version(),
    )


@functools.lru_cache(maxsize=16)
def _program(metrics: tuple[Metric, ...], number: int, budget: Budget) -> tuple[Program, Release]:
    clip = NORM * math.sqrt(len(metrics)) if budget.is_private else math.inf
    declared = Release(
        name="evaluation: " + ", ".join(chosen.name for chosen in metrics),
        contributions={_ROLE: Contribution(_vector_of(metrics), clip, number)},
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
def _vector_of(metrics: tuple[Metric, ...]) -> Callable[[None, Tree], Tree]:
    return functools.partial(_vector, metrics)


def _vector(metrics: tuple[Metric, ...], point: None, record: Tree) -> Tree:
    """One record's contribution to all metrics jointly."""
    return {chosen.name: chosen.contribution(record[chosen.name]) for chosen in metrics}


def _answer_shapes(metrics: tuple[Metric, ...], records: Records) -> Tree:
    return jax.eval_shape(functools.partial(_vector, metrics, None), records.sizes.record("lower"))


def _warn_if_noisy(noise: float, number: int) -> None:
    if noise > _NOISY:
        warnings.warn(
            f"records: with {number:,} rows the noise alone has a standard deviation of {noise:.2g} of the score's "
            f"range; {_NOISY:g} would need {math.ceil(number * noise / _NOISY):,} rows, or a larger epsilon",
            UtilityWarning,
            stacklevel=3,
        )
