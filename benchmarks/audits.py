"""Audits of every method, baseline and estimator: lower bounds on epsilon from attacks on the final output.

    python benchmarks/audits.py                     (methods and one-run audits, then draws; an hour on two cores)
    python benchmarks/audits.py --part methods      (needs only JAX, NumPy, SciPy, optax and dp_accounting)
    python benchmarks/audits.py --part one-run      (likewise)
    python benchmarks/audits.py --part estimators   (needs scikit-learn; with --runs 4000 half an hour on two cores)
    python benchmarks/audits.py --only "units of"   (only audits with these words in their names)
    python benchmarks/audits.py --draw              (writes audits.md and audits.svg from audits.json)
    python benchmarks/audits.py --quick             (400 runs; checks that it works, proves little)

Parts add to docs/results/audits.json, or to the file given by --out: earlier results of the same audits are replaced.
All bounds of all parts hold simultaneously with 99% confidence: they share an error probability of 1%.
"""

import argparse
import importlib.util
import json
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import plot_audits

import dpbilevel as dpb
from dpbilevel.audit.auditing import audit
from dpbilevel.audit.canaries import one_run
from dpbilevel.audit.case import Case
from dpbilevel.audit.unit_cases import of_units
from dpbilevel.audit.verdict import HEADER, Audit
from dpbilevel.audit.worst_cases import standard_cases
from dpbilevel.foundation.tables import markdown_table

TARGET = Path(__file__).parent.parent / "docs" / "results"
EPSILONS, DELTA, RUNS, QUICK = (0.5, 1.0, 4.0), 1e-2, 20_000, 400
CONFIDENCE = 0.99  # of all bounds simultaneously
ROWS = 48  # of the tables of estimators
ESTIMATORS = (
    "DPLogisticRegressionCV",
    "DPRidgeCV",
    "DPSourceWeightedClassifier",
    "DPSourceWeightedRegressor",
    "DPMultiTaskRidge",
)
OF_UNITS = ESTIMATORS[:2]  # attacked once more with a unit of eight rows for each row
WAYS = {"one step": dpb.Refit(steps=1), "defaults": None}  # of fitting
RECORDS, CANARIES, ONE_RUN_DELTA, ONE_RUN_EPSILONS = 2000, 1000, 1e-7, (1.0, 4.0, 10.0)
ONE_RUNS = ("one run, DPBilevel, one step", "one run, Tracking and Refit, 20 steps each")

PAGE = """# Audits

Results of [audits](../audit.md) of every method. For each, two data sets of at most 50 records differ in one record,
chosen to be as visible as possible to an attack: at the clip norm and its opposite, with a flipped label, alone in its
source, removed (zero-out), or a unit of eight rows; in fixed-size batches all others point in the opposite direction.
The method runs {runs} times on each. Half of these runs choose a test on everything that is released, x, y and history;
the other half evaluates it. δ = {delta:g}. All {total} bounds hold simultaneously with {confidence:.1f}% confidence
(exact binomial limits, each with an error probability of {error:.2g} or less). Made by `benchmarks/audits.py` at commit
{commits}, on
{machines}, seed 0.

**{verdict}** {teeth}

- *claimed ε*: the ε of the accountant.
- *proved ε ≥*: the lower bound. A bound above the claim would refute it.
- *at most*: the most that this attack can prove, with any number of runs. A better attack may prove more.
- *attainable*: the bound that the optimal attack would prove on average with this number of runs, if exactly the
  claimed privacy were spent.

![Claimed and proved epsilon, at ε = 4](audits.svg)

## Methods and baselines

{methods}

## With the record removed (zero-out)

{zero_out}

## Estimators

These audits include all preprocessing that `fit` applies to a table of {rows} rows. *One step* trains once at the
starting hyperparameters (`method=dpb.Refit(steps=1)`); *defaults* are 200 steps of tuning and 200 of training.
`DPMultiTaskRidge` trains for 200 steps after either. *Units of 8 rows*: each row is eight equal rows of one person, all
of which change together.

{estimators}

## One run

{records:,} records, {canaries:,} of them orthogonal canaries, δ = {one_run_delta:g}, one run each. *In reach* is the
bound that would be proved if every coin were guessed correctly as often as pure ε allows.

{one_runs}

## What it does not show

Several steps hide more than one: only the final output is attacked, while the accountant charges for every intermediate
release. A low bound does not show that less is spent. `PrivateRandomSearch` (a secret number of runs, which cannot be
compiled as one program), `BlackBox` (an external trainer) and `OracleHyperparameters` (not private) are not audited.
"""


def number_of_audits() -> int:
    """The number of audits of all parts, which share the error probability."""
    cases = len(standard_cases(dpb.Budget(1.0, DELTA)))
    return (
        cases * (len(EPSILONS) + 1)
        + (len(ESTIMATORS) * len(WAYS) + len(OF_UNITS)) * len(EPSILONS)
        + len(ONE_RUNS) * len(ONE_RUN_EPSILONS)
    )


def methods(runs: int, confidence: float, only: str) -> Any:
    settings = [dpb.Budget(epsilon, DELTA) for epsilon in EPSILONS] + [dpb.Budget(EPSILONS[-1], DELTA, "zero-out")]
    for budget in settings:
        for case in standard_cases(budget):
            if only in case.name:
                yield audit(case, budget, runs=runs, confidence=confidence)


def estimators(runs: int, confidence: float, only: str) -> Any:
    for epsilon in EPSILONS:
        budget = dpb.Budget(epsilon, DELTA)
        cases = [estimator_case(name, way, method, budget) for name in ESTIMATORS for way, method in WAYS.items()]
        cases += [of_units(estimator_case(name, "one step", WAYS["one step"], budget)) for name in OF_UNITS]
        for case in cases:
            if only in case.name:
                yield audit(case, budget, runs=runs, confidence=confidence)


def estimator_case(name: str, way: str, method: Any, budget: dpb.Budget) -> Case:
    """All rows are equal; the label or number of the target is flipped, and many rows oppose it."""
    crowd = min(round(4.6 / budget.mu), ROWS - 2)  # as in `worst_cases`: one false positive in a hundred runs
    rows, place = np.ones((ROWS, 1)), np.array(["b"] + ["a"] * (ROWS - 1))
    if name in ("DPLogisticRegressionCV", "DPSourceWeightedClassifier"):
        declared: dict[str, Any] = {"classes": [0, 1]}
        ones = (ROWS - 1 - crowd) // 2
        target = np.array([1] + [1] * ones + [0] * (ROWS - 1 - ones))
        opposite = np.append(0, target[1:])
    else:
        declared = {"target_range": (-1.0, 1.0)}
        target = np.append(1.0, np.where(np.arange(ROWS - 1) < crowd, -1.0, 0.0))
        opposite = np.append(-1.0, target[1:])
    more = {}
    for word, kind in (("source", "Source"), ("task", "Task")):
        if kind in name:
            declared[f"{word}_names"], more[f"{word}s"] = ["a", "b"], place
    estimator = getattr(dpb.estimators, name)(method=method, data_norm=1.0, **declared)
    fit = {"X": rows, "y": target} | more
    return Case.of_estimator(f"{name}, {way}", estimator, fit, fit | {"y": opposite})


def one_runs(runs: int, confidence: float, only: str) -> Any:
    """The model has one coordinate per canary."""
    problem = dpb.BilevelProblem(upper_term=lambda x, y: 0.5 * x**2, lower_loss=lambda x, y, record: -(y @ record))
    spikes, others = np.eye(CANARIES), np.zeros((RECORDS - CANARIES, CANARIES))
    inner = dpb.DPLocGD(strong_convexity=1.0, steps=1, rounds=1)
    double = dpb.DPBilevel(
        inner=inner, steps=1, step_size=0.1, split=(0.98, 0.01, 0.01)
    )  # most of the budget is spent on the returned values
    ways = ((double, None), (dpb.Tracking(steps=20), dpb.Refit(steps=20)))
    for epsilon in ONE_RUN_EPSILONS:
        for name, (method, refit) in zip(ONE_RUNS, ways, strict=True):
            if only not in name:
                continue
            yield one_run(
                problem,
                {"lower": np.concatenate([spikes, others])},
                -spikes,
                dpb.Budget(epsilon, ONE_RUN_DELTA),
                start=(0.0, np.zeros(CANARIES)),
                method=method,
                refit=refit,
                name=name,
                confidence=confidence,
            )


PARTS = {"methods": methods, "one-run": one_runs, "estimators": estimators}


def measure(part: str, runs: int, out: Path, only: str) -> None:
    """Run a part and add its results to a file, audit by audit."""
    confidence, began = 1 - (1 - CONFIDENCE) / number_of_audits(), time.monotonic()
    for found in PARTS[part](runs, confidence, only):
        print(f"{time.monotonic() - began:6.0f} s  {found}", flush=True)
        held = json.loads(out.read_text(encoding="utf-8"))["audits"] if out.exists() else []
        entry = found.to_json() | {"part": part, "commit": commit(), "machine": machine()}
        kept = [other for other in held if key(other) != key(entry)]
        content = {"format": "dpbilevel.audits/1", "confidence": CONFIDENCE, "total": number_of_audits()}
        out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content | {"audits": [*kept, entry]}, allow_nan=False, indent=1)
        out.write_text(text + "\n", encoding="utf-8")


def key(entry: dict[str, Any]) -> tuple[Any, ...]:
    # The claimed epsilon of a sampled run is slightly below the requested one.
    return entry["name"], round(entry["claimed"], 1), entry["delta"], entry["adjacency"]


def commit() -> str:
    asked = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"], cwd=TARGET.parent, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or "unknown"


def machine() -> str:
    import jax

    return f"{jax.devices()[0].device_kind} ({platform.machine()}), JAX {jax.__version__}"


def draw(source: Path) -> None:
    """Write the page and the figure from the results."""
    entries = json.loads(source.read_text(encoding="utf-8"))["audits"]
    found = [(entry, Audit.from_json(entry)) for entry in entries]

    def rows(part: str, adjacency: str = "replace-one") -> str:
        mine = [(key(e), a) for e, a in found if e["part"] == part and a.adjacency == adjacency]
        order = sorted(mine, key=lambda pair: pair[0][1])
        return markdown_table(HEADER, [a.row() for _, a in order]) if mine else "Not measured."

    audits = [a for _, a in found]
    above = [a.name for a in audits if not a.passed]
    one_step = [a for e, a in found if "one step" in a.name and key(e)[1] == 4.0 and e["part"] == "methods"]
    least = min(one_step, key=lambda a: a.lower_bound)
    page = PAGE.format(
        runs=" or ".join(sorted({f"{a.runs:,}" for a in audits if a.runs > 1})),
        delta=DELTA,
        total=len(audits),
        # From the stored confidence of each audit: audits added later have reduced the share of the others.
        confidence=np.floor(1000 * (1 - sum(1 - a.confidence for a in audits))) / 10,
        error=max(1 - a.confidence for a in audits),
        commits=" and ".join(sorted({e["commit"] for e in entries})),
        machines=" and ".join(sorted({e["machine"] for e in entries})),
        verdict="No lower bound exceeds the claim." if not above else f"REFUTED: {'; '.join(above)}.",
        teeth=f"At ε = 4 each audit of one step proves at least {np.floor(100 * least.lower_bound) / 100:.2f}.",
        methods=rows("methods"),
        zero_out=rows("methods", "zero-out"),
        estimators=rows("estimators"),
        one_runs=rows("one-run"),
        rows=ROWS,
        records=RECORDS,
        canaries=CANARIES,
        one_run_delta=ONE_RUN_DELTA,
    )
    (TARGET / "audits.md").write_text(page, encoding="utf-8")
    at_four = [a for e, a in found if key(e)[1] == 4.0 and a.adjacency == "replace-one" and e["part"] != "one-run"]
    plot_audits.audits(at_four).figure.savefig(TARGET / "audits.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="Audit every method; see the top of the file.")
    parser.add_argument("--part", choices=PARTS, help="measure only this part, without drawing")
    parser.add_argument("--draw", action="store_true", help="draw alone")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} runs on each data set")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs on each data set")
    parser.add_argument("--only", default="", help="words in the names of the audits to run")
    parser.add_argument("--out", type=Path, default=TARGET / "audits.json", help="the file to add to")
    chosen = parser.parse_args()
    if not chosen.draw:
        installed = [name for name in PARTS if name != "estimators" or importlib.util.find_spec("sklearn")]
        for part in [chosen.part] if chosen.part else installed:
            measure(part, QUICK if chosen.quick else chosen.runs, chosen.out, chosen.only)
    if chosen.part is None:
        draw(chosen.out)


if __name__ == "__main__":
    main()
