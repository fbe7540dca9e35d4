"""Weights of sources where rows are few: docs/results/few_sources.{json,md}.

    python benchmarks/few_sources.py     (a few minutes on one core; interrupted, it resumes)

8,000 training rows come from eight sources, and 1,000 rows have labels that are known to be right. All labels of half
of the sources are wrong, or none. Defaults of `DPSourceWeightedClassifier` only.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import task_data
from pieces import Cells, options, read_cells, run
from rates import machine
from scipy.stats import t
from sklearn.metrics import log_loss
from survey_problems import synthetic
from task_problems import logistic, weights_problem
from tasks import default_data_directory
from utility import current_commit

import dpbilevel as dpb
from dpbilevel.estimators import DPSourceWeightedClassifier
from dpbilevel.estimators.rows import with_intercept
from dpbilevel.foundation.tables import markdown_table

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "few_sources.json"
EPSILONS, SEEDS, DELTA = (0.5, 1.0, 3.0), tuple(range(810, 820)), 1e-6
ROWS, CLEAN, SOURCES, TEST, RIGHT = 8000, 1000, 8, 4000, 0.1
TUNED, UNTUNED, GOOD, HALF = "tuned", "equal weights", "good sources only", "half of the sources only"

PAGE = """# Sources with few rows

{rows:,} training rows from {sources} sources and {clean:,} rows with right labels, for `DPSourceWeightedClassifier`
with its defaults, δ = {delta:g}, replace-one. Simulated rows have 20 columns and scores with a standard deviation of 3;
rows of Adult have 108 columns. Mean over {seeds} draws with Student's 95% interval.

## All labels of half of the sources are wrong

*Bad weight* is the sum of their weights; without tuning it is 0.5. Models with *equal weights* and with the *good
sources only* have the whole budget for training.

{wrong}

## All sources are equally good

Concentrating weights is pure loss here. *n of weights* is the number of rows that the weights are worth,
$1/\\sum_s K x_s^2$ of all; *half of the sources only* is a model with the whole budget at weights that leave out half
of the rows.

{equal}

## Should tuning account for the noise of training?

Noise grows as weights concentrate. A record's gradient is divided by $K \\sum_s x_s^2$, the weight of a record of full
weight, before it is clipped, and the mean is multiplied by it afterwards. So the noise on the mean gradient of $g$ has
the deviation $K \\sum_s x_s^2 \\cdot sC$: that of a training on as many rows as the weights are worth. Noise of a
training that converges adds

$$N(x) = \\tfrac12 \\Big(\\frac{{sC}}{{n_u/n + n_l/(n K \\sum_s x_s^2)}}\\Big)^2 \\operatorname{{tr}} H^{{-1}}$$

to the loss, with $n_u$ clean rows, which train with full weight, $n_l$ others, and $H$ the Hessian of a mean of rows; a
training that stops early adds less. Leaving out half of the rows costs {least:.4f} to {most:.4f}, sampling included;
the right weights gain {gain:.2f} on average where labels are wrong. The gradient of $N$ is public and free, but
it can only pull weights together. Where sources are equally good there is nothing to correct: weights are worth at
least 99% of all rows in {kept} of {runs} runs. Where labels are wrong and tuning fails, it fails because weights stay
equal or nearly so. So the default has no such term.

Made by `make bench-few-sources` ({commits}; {machine}).
"""

Rows = tuple[np.ndarray, np.ndarray]


def simulated(seed: int) -> tuple[Rows, Rows]:
    """Rows of norm at most one, and labels: for training, and for testing."""
    drawn = synthetic("logistic", ROWS + CLEAN, 20, "dense", 3.0, seed).draw(0)

    def scaled(rows: np.ndarray) -> np.ndarray:
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)

    return (scaled(drawn.rows), drawn.targets), (scaled(drawn.test_rows), drawn.test_targets)


def adult(seed: int) -> tuple[Rows, Rows]:
    """Rows of Adult, drawn at random."""
    rows, labels, test_rows, test_labels = task_data.adult(default_data_directory())
    chosen = np.random.default_rng([5, seed]).permutation(len(rows))[: ROWS + CLEAN]
    return (rows[chosen], labels[chosen]), (test_rows, test_labels)


TABLES: dict[str, Callable[[int], tuple[Rows, Rows]]] = {"simulated": simulated, "Adult": adult}
KINDS = ("half wrong", "equal")


def measure(task: tuple[str, str, int]) -> Cells:
    """All models on one draw, at every epsilon."""
    name, kind, seed = task
    (rows, labels), (test_rows, test_labels) = TABLES[name](seed)
    source = np.random.default_rng([6, seed]).integers(0, SOURCES, ROWS).astype(np.int32)
    labels, test_labels = labels.astype(np.int32), test_labels.astype(np.int32)
    given = np.where((source < SOURCES // 2) & (kind != "equal"), 1 - labels[:ROWS], labels[:ROWS])
    designed, tested = (with_intercept(part.astype(np.float32)) for part in (rows, test_rows))
    problem = weights_problem(logistic, SOURCES)
    lower = designed[:ROWS], given, source
    records = dpb.Records(upper=(designed[ROWS:], labels[ROWS:]), lower=lower)
    equal = np.full(SOURCES, 1 / SOURCES, np.float32)
    half = np.where(np.arange(SOURCES) < SOURCES // 2, 0, 2 / SOURCES).astype(np.float32)

    def trained(x: np.ndarray, epsilon: float) -> float:
        start = x, np.zeros(designed.shape[1], np.float32)
        budget = dpb.Budget(epsilon, DELTA)
        y = dpb.solve(problem, records, budget, start=start, method=dpb.Refit(), refit=None, seed=seed).y
        return float(np.mean(np.logaddexp(0, np.where(test_labels > 0, -1, 1) * (tested @ np.asarray(y)))))

    cells = {"commit": current_commit()}
    for epsilon in EPSILONS:
        model = DPSourceWeightedClassifier(
            epsilon=epsilon,
            delta=DELTA,
            data_norm=1.0,
            classes=[0, 1],
            source_names=range(SOURCES),
            random_state=seed,
        ).fit(rows[:ROWS], given, sources=source, validation=(rows[ROWS:], labels[ROWS:]))
        cells[f"{epsilon:g}"] = {
            "weights": model.source_weights_.tolist(),
            TUNED: log_loss(test_labels, model.predict_proba(test_rows)),
            UNTUNED: trained(equal, epsilon),
            GOOD if kind != "equal" else HALF: trained(half, epsilon),
        }
    return {f"{name} | {kind} | {seed}": cells}


def interval(values: Sequence[float]) -> str:
    """Mean and half the width of its interval."""
    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return f"{np.mean(values):.4f} ± {half:.4f}"


def report(out: Path) -> None:
    """Write the page from the results."""
    stored = read_cells(out)
    lines: dict[str, list[list[str]]] = {kind: [] for kind in KINDS}
    costs, gains, kept = [], [], []
    for kind in KINDS:
        for name in TABLES:
            cells = [stored[f"{name} | {kind} | {seed}"] for seed in SEEDS]
            for epsilon in map("{:g}".format, EPSILONS):
                runs = [cell[epsilon] for cell in cells]
                weights = np.array([one["weights"] for one in runs])
                bad = weights[:, : SOURCES // 2].sum(axis=1)
                worth = 1 / (SOURCES * np.sum(weights**2, axis=1))
                last = HALF if kind == "equal" else GOOD
                losses = [[one[model] for one in runs] for model in (TUNED, UNTUNED, last)]
                difference = float(np.mean(losses[2]) - np.mean(losses[1]))
                kept.extend(worth > 0.99 if kind == "equal" else [])
                (costs if kind == "equal" else gains).append(difference)
                shown = (
                    [f"{worth.mean():.2f}, at least {worth.min():.2f}"]
                    if kind == "equal"
                    else [f"{bad.mean():.3f}", f"{np.sum(bad < RIGHT)} of {len(bad)}"]
                )
                lines[kind].append([name, epsilon, *shown, *map(interval, losses)])
    heads = {
        "half wrong": ["bad weight", f"below {RIGHT:g}", TUNED, UNTUNED, GOOD],
        "equal": ["n of weights", TUNED, UNTUNED, HALF],
    }
    tables = {kind: markdown_table(["rows", "ε", *heads[kind]], lines[kind]) for kind in KINDS}
    page = PAGE.format(
        rows=ROWS,
        clean=CLEAN,
        sources=SOURCES,
        seeds=len(SEEDS),
        delta=DELTA,
        wrong=tables["half wrong"],
        equal=tables["equal"],
        least=min(costs),
        most=max(costs),
        gain=-np.mean(gains),
        kept=np.sum(kept),
        runs=len(kept),
        commits="commit " + ", ".join(sorted({cell["commit"] for cell in stored.values()})),
        machine=machine().split(" on ", 1)[1],
    )
    out.with_suffix(".md").write_text(page, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, and report."""
    asked = options(__doc__, RESULTS, arguments)
    there = read_cells(asked.out)
    tasks = [(name, kind, seed) for name in TABLES for kind in KINDS for seed in SEEDS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about fixed seeds and large noise
        run(measure, [task for task in tasks if " | ".join(map(str, task)) not in there], asked.out, asked.processes)
    report(asked.out)


if __name__ == "__main__":
    main()
