"""The result of an evaluation: scores, their noise and their confidence intervals, all of it released."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dpbilevel.errors import InvalidArgument
from dpbilevel.evaluation.auc import auc_interval
from dpbilevel.evaluation.calibration import bin_names, calibration_interval
from dpbilevel.evaluation.error_quantiles import quantile_interval
from dpbilevel.evaluation.groups import group_interval, group_records
from dpbilevel.evaluation.intervals import Interval, z_score
from dpbilevel.evaluation.means import mean_interval
from dpbilevel.evaluation.of_units import WithRows
from dpbilevel.evaluation.r_squared import r2_interval
from dpbilevel.foundation.arguments import one_of
from dpbilevel.foundation.files import write_atomically
from dpbilevel.foundation.tables import text_table
from dpbilevel.privacy.spend import Privacy
from dpbilevel.solution.trees import decoded, encoded

_FORMAT = "dpbilevel.evaluation/1"
_SHOWN = 0.95  # the level of the intervals in summaries and files


class Line(NamedTuple):
    """One score for display.

    Attributes:
        name: the metric, with the group or the quantile.
        score: the released score.
        noise: the standard deviation of its noise.
        interval: of 95%; None without privacy, if nothing bounds the score.
        meaning: in words.
    """

    name: str
    score: float
    noise: float
    interval: Interval | None
    meaning: str


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Released scores of a model. All of it may be published.

    Attributes:
        values: the score of each metric. "group_accuracy" is a dict with one score for each group, "error_quantiles"
            one with a score for "50%", "75%", "90%" and "95%". "calibration" is a dict of arrays with one entry per
            bin: ``records``, the sum of predicted ``probability``, ``positives``, and the ``edges`` of the bins. The
            expected calibration error is ``abs(probability - positives).sum() / records.sum()``; noise makes it larger
            on average.
        standard_errors: the standard deviation of the privacy noise of each metric, public, before a score is clamped
            to its range, in the form of ``values``. For means and bins it is exact; for the other metrics, which are
            ratios of noisy numbers, it is computed from their derivatives at the released numbers.
        privacy: the privacy spend.
        records: the number of records, rows or units (public). If a list declares all units, scores are those of the
            units that have rows, whose released number is in ``details``, as "units with rows".
        ranges: the largest possible value of each metric, infinite if there is none; the smallest is zero, except for
            "r2", which has none.
        meanings: a description of each metric in words.
        version: the version of the library.
        details: the released numbers that scores were computed from: histograms, moments, numbers of records of
            groups, each with the standard deviation of its noise.
    """

    values: Mapping[str, Any]
    standard_errors: Mapping[str, Any]
    privacy: Privacy
    records: int
    ranges: Mapping[str, float]
    meanings: Mapping[str, str]
    version: str
    details: Mapping[str, Mapping[str, Any]]

    @property
    def counted(self) -> str:
        """The number of records in words: records, or units if these are protected."""
        return f"{self.records:,} {self._kind('records')}{self._having_rows}"

    @property
    def counted_apart(self) -> str:
        """The same for records that were set aside: rows, or units."""
        return f"{self.records:,} held-out {self._kind('rows')}{self._having_rows}"

    @property
    def _having_rows(self) -> str:
        found = self.details.get(WithRows.name)
        return "" if found is None else f", of which {found['number']:,} ± {found['noise']:.2g} have rows"

    @property
    def _sample(self) -> int:
        """The number of records that scores are of."""
        return int(self.details.get(WithRows.name, {"number": self.records})["number"])

    def _kind(self, rows: str) -> str:
        return rows if self.privacy.rows_per_unit is None else "units"

    def interval(self, metric: str, level: float = 0.95, *, part: str | None = None) -> Interval:
        """A confidence interval of level ``level`` for the score on the population (by the normal approximation).

        It covers the privacy noise and, if the records are a random sample, the sampling error; for "auc" and
        "error_quantiles" also the bins. It uses released values and public numbers only. Each interval has its level
        by itself; several together are all right less often.

        For means ("accuracy", "loss", "brier"): a mean m of values between zero and b has a sampling variance of at
        most m (b - m)/n, whatever their distribution. The interval contains every m within
        z sqrt(noise^2 + m (b - m)/n) of the score.

        Args:
            metric: the score.
            level: the probability that the interval holds the score of the population.
            part: the group of "group_accuracy", the quantile of "error_quantiles", or the bin of "calibration", such as
                "0.1 to 0.2", whose interval is for the share of positives.
        """
        one_of("metric", metric, tuple(self.values), "it must be a score with an interval")
        parts = self._parts(metric)
        if parts:
            one_of("part", part, parts, f"it is the part of {metric!r} that the interval is for")
        elif part is not None:
            raise InvalidArgument(f"part={part!r}: must be left out, because {metric!r} is one number")
        z_score(level)
        if math.isinf(self.ranges[metric]) and not parts:
            raise InvalidArgument(
                f"metric={metric!r}: has no interval without privacy; losses were not clipped, so no public number "
                "bounds their variance"
            )
        return self._interval(metric, level, part or "")

    def _parts(self, metric: str) -> tuple[str, ...]:
        if metric == "calibration":
            return bin_names(self.values[metric]["edges"])
        return tuple(self.values[metric]) if isinstance(self.values[metric], Mapping) else ()

    def _interval(self, metric: str, level: float, part: str) -> Interval:
        released = self.details.get(metric, {})
        match metric:
            case "auc":
                return auc_interval(released, level)
            case "group_accuracy":
                return group_interval(released, part, level)
            case "calibration":
                return calibration_interval(released, self._parts(metric).index(part), level)
            case "r2":
                return r2_interval(released, self._sample, level)
            case "error_quantiles":
                return quantile_interval(released, part, self._sample, level)
        score, noise = self.values[metric], self.standard_errors[metric]
        return mean_interval(score, noise, self.ranges[metric], self._sample, level)

    def lines(self) -> Iterator[Line]:
        """All scores except for bins, one after the other, for display."""
        for name, value in self.values.items():
            if name == "calibration":
                continue
            open_ended = math.isinf(self.ranges[name]) and name != "error_quantiles"
            if not isinstance(value, Mapping):
                found = None if open_ended else self.interval(name, _SHOWN)
                yield Line(name, value, self.standard_errors[name], found, self.meanings[name])
                continue
            for part, score in value.items():
                found, meaning = self.interval(name, _SHOWN, part=part), self.meanings[name]
                if name == "group_accuracy":
                    records, noise = group_records(self.details[name], part)
                    meaning += f"; it has {records:,.0f} ± {noise:.2g} {self._kind('records')}"
                yield Line(f"{name}, {part}", score, self.standard_errors[name][part], found, meaning)

    def score_rows(self) -> list[list[str]]:
        """A row of text for every score: metric, score, noise, 95% interval, meaning."""
        return [
            [
                line.name,
                f"{line.score:.4g}",
                f"{line.noise:.2g}",
                "" if line.interval is None else "{:.4g} to {:.4g}".format(*line.interval),
                line.meaning,
            ]
            for line in self.lines()
        ]

    def bin_rows(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of the bins of "calibration", with the share of positives and its interval."""
        bins, noise = self.values["calibration"], self.standard_errors["calibration"]
        rows = []
        for place, name in enumerate(self._parts("calibration")):
            low, high = self.interval("calibration", _SHOWN, part=name)
            share = bins["positives"][place] / bins["records"][place] if bins["records"][place] > 0 else 0.5
            numbers = [f"{bins[part][place]:.1f} ({noise[part][place]:.2g})" for part in noise]
            rows.append([name, *numbers, f"{share:.3g}", f"{low:.3g} to {high:.3g}"])
        return ["bin", *(f"{name} (noise)" for name in noise), "share of positives", "95% interval"], rows

    def summary(self) -> str:
        """The guarantee, and every score with its noise and confidence interval."""
        rows = self.score_rows()
        parts = [f"{self.privacy.sentence()}\n\n{self.counted}"]
        if rows:
            parts.append(text_table(["metric", "score", "noise", "95% interval", "what it is"], rows))
        if "calibration" in self.values:
            parts.append(f"calibration: {self.meanings['calibration']}\n{text_table(*self.bin_rows())}")
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values (released values and public numbers only), with 95% intervals."""
        return {
            "format": _FORMAT,
            "version": self.version,
            "records": self.records,
            "privacy": encoded(self.privacy.to_json()),
            "values": encoded(dict(self.values)),
            "standard_errors": encoded(dict(self.standard_errors)),
            "intervals": encoded({line.name: line.interval for line in self.lines()} | self._bin_intervals()),
            "ranges": encoded(dict(self.ranges)),
            "meanings": dict(self.meanings),
            "details": encoded({name: dict(detail) for name, detail in self.details.items()}),
        }

    def _bin_intervals(self) -> dict[str, Interval]:
        if "calibration" not in self.values:
            return {}
        return {
            f"calibration, {name}": self.interval("calibration", _SHOWN, part=name)
            for name in self._parts("calibration")
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Evaluation":
        """The inverse of `to_json`; intervals are computed again, not read."""
        if content.get("format") != _FORMAT:
            raise InvalidArgument(f"content: is not a {_FORMAT} document; pass the output of Evaluation.to_json")
        parts = ("values", "standard_errors", "ranges", "details")
        return cls(
            privacy=Privacy.from_json(decoded(content["privacy"])),
            records=int(content["records"]),
            meanings=dict(content["meanings"]),
            version=str(content["version"]),
            **{name: decoded(content[name]) for name in parts},
        )

    def save(self, path: str | Path) -> Path:
        """Write `to_json` to a file, atomically."""
        return write_atomically(path, json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")

    def __repr__(self) -> str:
        scores = [f"{line.name} {line.score:.4g} ± {line.noise:.2g}" for line in self.lines()]
        scores += ["calibration in bins"] if "calibration" in self.values else []
        return f"Evaluation({', '.join(scores)} on {self.counted}; {self.privacy.label()})"
