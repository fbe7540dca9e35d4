"""A shared representation compared with one ridge regression per task: docs/results/multitask.{json,md}.

    python benchmarks/multitask.py [--processes 2]     (half an hour; interrupted, it resumes)

Rows have norm one and many columns. The targets of all tasks depend on one plane of the columns, with noise of 0.1.
`DPMultiTaskRidge(dimension=2)` spends one epsilon for all rows. So do the separate models, each a `DPRidgeCV` with the
same epsilon, because each row is in one of them (parallel composition). Without privacy the separate models are
scikit-learn's `RidgeCV`, with penalties suitable for rows of norm one.
"""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pieces import Cells, options, read_cells, run
from scipy.stats import t
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from utility import current_commit

from dpbilevel.estimators import DPMultiTaskRidge, DPRidgeCV
from dpbilevel.foundation.tables import markdown_table

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "multitask.json"
SHAPES = ((20, 500, 20), (50, 400, 30), (10, 2000, 20))  # tasks, rows per task, columns
EPSILONS, SEEDS = (3.0, 8.0, math.inf), tuple(range(81, 86))
DELTA, TEST_ROWS, RANGE = 1e-6, 200, (-3.0, 3.0)

PAGE = """# Shared representation and separate models

R² on new rows, mean over {seeds} draws of tasks and noise (seeds {first} to {last}). *Ahead by* is the mean
difference on the same draw, with a 95% confidence interval (Student's t). Rows have norm one, and all tasks' targets
depend on one plane of their columns. `DPMultiTaskRidge(dimension=2)` learns the plane and a head for each task within
one ε. Separate models are a `DPRidgeCV` for each task with the same ε (each row is in one of them), and scikit-learn's
`RidgeCV` without privacy.

{table}

Made by `python benchmarks/multitask.py` on two CPU cores (commit {commits}).
"""

Task = tuple[int, float, int]  # shape, epsilon, seed
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


def draw(shape: tuple[int, int, int], seed: int) -> tuple[Rows, Rows]:
    """Rows, targets and tasks, for training and for testing."""
    tasks, rows, columns = shape
    draws = np.random.default_rng(seed)
    plane = np.linalg.qr(draws.normal(size=(columns, 2)))[0]
    heads = 3 * draws.normal(size=(tasks, 2))

    def some(number: int) -> Rows:
        task = draws.permutation(np.repeat(np.arange(tasks), number))
        table = draws.normal(size=(len(task), columns))
        table /= np.linalg.norm(table, axis=1, keepdims=True)
        targets = np.sum((table @ plane) * heads[task], axis=1) + 0.1 * draws.normal(size=len(task))
        return table, np.clip(targets, *RANGE), task

    return some(rows), some(TEST_ROWS)


def shared(train: Rows, test: Rows, tasks: int, epsilon: float, seed: int) -> float:
    """R squared of one model for all tasks."""
    model = DPMultiTaskRidge(
        dimension=2,
        epsilon=epsilon,
        delta=DELTA,
        data_norm=1.0,
        target_range=RANGE,
        task_names=range(tasks),
        random_state=seed,
    )
    return model.fit(train[0], train[1], tasks=train[2]).score(test[0], test[1], tasks=test[2])


def separate(train: Rows, test: Rows, tasks: int, epsilon: float, seed: int) -> float:
    """R squared of separate models, one per task."""
    predicted = np.zeros(len(test[1]))
    for task in range(tasks):
        if math.isinf(epsilon):
            model = RidgeCV(np.logspace(-4, 1, 11))
        else:
            model = DPRidgeCV(epsilon=epsilon, delta=DELTA, data_norm=1.0, target_range=RANGE, random_state=seed)
        mine, asked = train[2] == task, test[2] == task
        predicted[asked] = model.fit(train[0][mine], train[1][mine]).predict(test[0][asked])
    return float(r2_score(test[1], predicted))


def key_of(index: int, epsilon: float, seed: int) -> str:
    """The key of a result."""
    return f"{'x'.join(map(str, SHAPES[index]))} | {epsilon:g} | {seed}"


def measure(task: Task) -> Cells:
    """Measure both on one draw."""
    index, epsilon, seed = task
    train, test = draw(SHAPES[index], seed)
    tasks = SHAPES[index][0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about the fixed seed and about large noise
        scores = {rule.__name__: rule(train, test, tasks, epsilon, seed) for rule in (shared, separate)}
    return {key_of(index, epsilon, seed): scores | {"commit": current_commit()}}


def report(out: Path) -> None:
    """Write the page from the results."""
    cells, rows = read_cells(out), []
    for index, (tasks, number, columns) in enumerate(SHAPES):
        for epsilon in EPSILONS:
            mine = [cells[key_of(index, epsilon, seed)] for seed in SEEDS]
            ahead = np.array([cell["shared"] - cell["separate"] for cell in mine])
            half = t.ppf(0.975, len(ahead) - 1) * ahead.std(ddof=1) / math.sqrt(len(ahead))
            means = [f"{np.mean([cell[name] for cell in mine]):.3f}" for name in ("shared", "separate")]
            shape = f"{tasks} x {number:,} x {columns}"
            rows.append([shape, f"{epsilon:g}", *means, f"{ahead.mean():+.4f} ± {half:.4f}"])
    page = PAGE.format(
        seeds=len(SEEDS),
        first=SEEDS[0],
        last=SEEDS[-1],
        commits=", ".join(sorted({cell["commit"] for cell in cells.values()})),
        table=markdown_table(["tasks x rows x columns", "ε", "shared", "separate", "ahead by"], rows),
    )
    out.with_suffix(".md").write_text(page, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, and report."""
    asked = options(__doc__, RESULTS, arguments)
    there = read_cells(asked.out)
    tasks = [(index, epsilon, seed) for index in range(len(SHAPES)) for epsilon in EPSILONS for seed in SEEDS]
    run(measure, [task for task in tasks if key_of(*task) not in there], asked.out, asked.processes)
    report(asked.out)


if __name__ == "__main__":
    main()
