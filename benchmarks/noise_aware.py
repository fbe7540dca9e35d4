"""Loss against penalty, with and without the noise of private training: docs/results/noise_aware.{json,md,svg}.

    python benchmarks/noise_aware.py     (a few minutes on one core; interrupted, it resumes)

For a grid of ridges: the validation loss of the model without noise; what the noise of converged training adds to it;
what early-stopped training is expected to lose; and the mean test loss of private models. Curves are computed without
privacy, so that their shapes are not hidden by noise.
"""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import task_data
from matplotlib.figure import Figure
from pieces import Cells, options, read_cells, run
from rates import machine
from survey_problems import synthetic
from tasks import default_data_directory
from utility import current_commit

import dpbilevel as dpb
from dpbilevel.applications import regularization
from dpbilevel.foundation.tables import markdown_table
from dpbilevel.methods.preconditioned import Preconditioned
from dpbilevel.methods.preconditioned_steps import LENGTH, MOMENTUM, REACHED
from dpbilevel.methods.standard_errors import averaged_variances
from dpbilevel.plot.style import COLOURS, INK, SETTINGS
from dpbilevel.privacy.metric import Metric

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "noise_aware.json"
EPSILONS, RIDGES, SEEDS, DELTA = (0.5, 1.0, 3.0), tuple(10.0 ** (power / 2) for power in range(-10, 1)), 4, 1e-6
DEV_SEED = 2072  # of no other table
EXACT, CONVERGED, RUNNING = "validation loss", "with the noise of converged training", "of training as it runs"
PERTURBED, TRAINED = "converged, private", "trained, private"
CURVES, MODELS = (EXACT, CONVERGED, RUNNING), (PERTURBED, TRAINED)
LABELS = {RUNNING: "with the noise of early-stopped training"}  # stored under the other name
CHOICES = {EXACT: PERTURBED, CONVERGED: PERTURBED, RUNNING: TRAINED}  # what each curve claims to choose for

PAGE = """# Tuning a penalty that knows the noise of training

A bilevel problem asks for the penalty that is best for a model trained *without* noise; users get a model trained
with it. Private training that converges, on rows of norm R and derivatives of at most one, ends at $y = y^* + (H +
r)^{{-1}} z$, with $H$ the Hessian of the mean loss, $r$ the ridge and $z$ the noise on each coordinate of the mean
gradient. To second order, noise adds half of the mean of $(y - y^*)^\\top H (y - y^*)$ to the loss:

$$F(r) = f(y^*(r)) + \\tfrac12 s^2 \\operatorname{{tr}} \\big( H (H + r)^{{-2}} \\big)$$

The deviation $s = 2R/(\\mu n)$ is that of one exact release under replace-one. Assumed are one ridge on all
coefficients, a Hessian that is the same for training and validation and does not change over the noise, and steps that
have converged. *Early-stopped training* also averages its steps ([how](../methods/training.md)): the noise in
each eigenvector of H follows from step to step, as for standard errors, and it is added to the model of the same steps
without noise, not to $y^*(r)$. Both make the third curve.

![Loss against penalty, by problem and ε]({figure})

Lines are validation losses: without noise (blue), with the noise of converged training (vermilion) and of
early-stopped training (green). Marks are mean test losses of {seeds} private models at each ridge, δ = {delta:g},
replace-one: circles for exact objective perturbation, crosses for early-stopped training, which is the default. What is
outside the frame is drawn at its edge.

The test loss of private models at the ridge that a curve chooses, and the ridge. *Best* is the best of the grid by test
loss. A penalty that was chosen without the noise is in the columns *without*.

{choices}

The least and the largest mean test loss over all ridges from 1e-5 to 1:

{ranges}

- *Training that converges.* The term decides: a ridge that is chosen without it loses up to {converged_gap:.1f}, one
  that is chosen with it at most {converged_left:.4f}.
- *Early-stopped training.* It stops before it fits noise, so that small ridges do little harm: the ridge that is chosen
  without noise loses at most {running_gap:.4f}, the one of the third curve at most {running_left:.4f}. That curve has
  the second moments without their noise, and the second order of the loss only: at the ridge it chooses, private models
  lose up to {below:.4f} more.
- *Without a search.* All ridges of at most 1e-3 differ by at most {small_gap:.4f}: estimators take one from public
  numbers.

Problems are simulated (logistic, rows x columns, scores with a standard deviation of 1.5, seeds of no other table) and
the first 4,000 rows of Adult. Curves are computed without privacy, validation rows do not train.

Made by `make bench-noise-aware` ({commits}; {machine}).
"""


@dataclass(frozen=True)
class Split:
    """Rows and labels for training, validation and testing."""

    train: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def simulated(rows: int, columns: int) -> Split:
    """A problem of the survey, with other seeds, and a quarter as many rows for validation."""
    drawn = synthetic("logistic", rows + rows // 4, columns, "dense", 1.5, DEV_SEED).draw(0)

    def scaled(part: np.ndarray) -> np.ndarray:
        return part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1.0)

    whole = scaled(drawn.rows)
    parts = ((whole[part], drawn.targets[part]) for part in (slice(rows), slice(rows, None)))
    return Split(*parts, (scaled(drawn.test_rows), drawn.test_targets))


def adult(rows: int) -> Split:
    """The first rows of Adult."""
    given, labels, test_rows, test_labels = task_data.adult(default_data_directory())
    train, validation = slice(rows), slice(rows, rows + rows // 4)
    parts = ((given[part].astype(float), labels[part]) for part in (train, validation))
    return Split(*parts, (test_rows.astype(float), test_labels))


PROBLEMS: dict[str, Callable[[], Split]] = {
    "6,000 x 60": functools.partial(simulated, 6000, 60),
    "3,000 x 120": functools.partial(simulated, 3000, 120),
    "Adult, 4,000 x 108": functools.partial(adult, 4000),
}


def mean_loss(y: np.ndarray, part: tuple[np.ndarray, np.ndarray]) -> float:
    """Mean logistic loss."""
    return float(np.mean(np.logaddexp(0, np.where(part[1] > 0, -1, 1) * (part[0] @ y))))


def slopes_at(y: np.ndarray, part: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Derivatives of all records' losses in their scores."""
    return 1 / (1 + np.exp(-(part[0] @ y))) - part[1]


def hessian_at(y: np.ndarray, part: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The Hessian of the mean loss."""
    probability = 1 / (1 + np.exp(-(part[0] @ y)))
    return (part[0].T * (probability * (1 - probability) / len(part[0]))) @ part[0]


def minimiser(part: tuple[np.ndarray, np.ndarray], ridge: float, push: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the mean loss with a ridge and a linear term, by Newton's method from y."""
    for _ in range(60):
        gradient = part[0].T @ slopes_at(y, part) / len(part[1]) + ridge * y + push
        if np.linalg.norm(gradient) < 1e-7:
            break
        step = np.linalg.solve(hessian_at(y, part) + ridge * np.eye(len(y)), gradient)
        y = y - step * min(1.0, 20 / np.linalg.norm(step))
    return y


def as_it_runs(split: Split, ridge: float, training: Preconditioned, noises: tuple[float, float]) -> float:
    """The expected validation loss of preconditioned training: that of its steps without noise, and of their noise.

    ``noises``: of second moments, and of steps for gradients of norm one.
    """
    rows, curvature = split.train[0], training.bounds.curvature
    moments, directions = np.linalg.eigh(rows.T @ rows / len(rows))
    edge = math.sqrt(2 * len(moments)) * noises[0]
    metric = Metric.of(np.maximum(moments, 0), directions, noises[0])
    factors = np.asarray(metric.by_direction(len(moments)), float)
    typical = math.sqrt(np.sum(factors**2 * moments))
    worth = training.ridge * (typical / LENGTH) ** 1.5 * np.sum(moments) ** 0.25
    damping = max(REACHED * training.number_of_steps * worth, curvature * edge / (1 + MOMENTUM))
    rates = 1 / (curvature * np.maximum(moments, 0) + damping + ridge)
    steps, y = training.number_of_steps, np.zeros(rows.shape[1])
    velocity, average = np.zeros_like(y), np.zeros_like(y)
    for step in range(steps):
        gradient = rows.T @ slopes_at(y, split.train) / len(rows) + ridge * y
        velocity = MOMENTUM * velocity + directions @ (rates * (directions.T @ gradient))
        y = y - velocity
        average += y * 2 * (step + 1) / (steps * (steps + 1))
    slopes, hessian = slopes_at(average, split.train), hessian_at(average, split.train)
    lengths = np.linalg.norm((rows @ directions) * factors, axis=1)
    clip = np.quantile(np.abs(slopes) * lengths, training.within)  # what clips adapt to
    curvatures = np.einsum("ij,ik,kj->j", directions, hessian, directions)
    variances = averaged_variances(rates, curvatures + ridge, (noises[1] * clip / factors) ** 2, steps, MOMENTUM)
    return mean_loss(average, split.validation) + 0.5 * float(curvatures @ np.asarray(variances))


def measure(task: tuple[str, float]) -> Cells:
    """All curves and models of one problem at one epsilon."""
    name, epsilon = task
    split, budget = PROBLEMS[name](), dpb.Budget(epsilon, DELTA)
    rows, labels = split.train[0].astype(np.float32), split.train[1].astype(np.int32)
    columns, part = rows.shape[1], len(rows) // 5
    problem = regularization(columns=columns, penalties=(1e-7, 10.0), row_norm=1.0)
    training = Preconditioned(
        bounds=problem.lower_loss.bounds, records=len(rows), columns=columns, mu=budget.mu, replaced=True, outputs=1
    )
    records = dpb.Records(upper=(rows[:part], labels[:part]), lower=(rows[part:], labels[part:]))
    draws, deviation = np.random.default_rng(DEV_SEED), 2 / (len(rows) * budget.mu)
    pushes = deviation * draws.normal(size=(SEEDS, columns))
    cell: dict[str, Any] = {"commit": current_commit()} | {kind: [] for kind in (*CURVES, *MODELS)}
    for ridge in RIDGES:
        exact = minimiser(split.train, ridge, np.zeros(columns), np.zeros(columns))
        hessian = np.linalg.eigvalsh(hessian_at(exact, split.train))
        validated = mean_loss(exact, split.validation)
        cell[EXACT].append(validated)
        cell[CONVERGED].append(validated + deviation**2 / 2 * float(np.sum(hessian / (hessian + ridge) ** 2)))
        noisy = [minimiser(split.train, ridge, push, exact) for push in pushes]
        cell[PERTURBED].append([mean_loss(y, split.test) for y in noisy])
        start = np.array([math.log(ridge)], np.float32), np.zeros(columns, np.float32)
        solutions = [
            dpb.solve(problem, records, budget, start=start, method=dpb.Refit(), refit=None, seed=seed)
            for seed in range(SEEDS)
        ]
        cell[TRAINED].append([mean_loss(np.asarray(one.y, float), split.test) for one in solutions])
        noises = (solutions[0].parameters[f"{kind}: noise"][0] for kind in ("second moments", "training"))
        cell[RUNNING].append(as_it_runs(split, ridge, training, tuple(noises)))
    return {f"{name} | {epsilon:g}": cell}


def lost(cells: Cells, curve: str, models: str) -> dict[str, float]:
    """What private models lose at the ridge that a curve chooses, against the best ridge of the grid."""
    means = {key: np.mean(cell[models], axis=1) for key, cell in cells.items()}
    return {key: float(means[key][np.argmin(cell[curve])] - means[key].min()) for key, cell in cells.items()}


def below(cell: dict[str, Any]) -> float:
    """How far the third curve is below what private models lose, at the ridge it chooses."""
    at = int(np.argmin(cell[RUNNING]))
    return float(np.mean(cell[TRAINED][at]) - cell[RUNNING][at])


def choices(cells: Cells) -> str:
    """The chosen ridges, and the losses of private models there."""
    lines = []
    for key, cell in cells.items():
        line = key.split(" | ")
        for models, curves in ((PERTURBED, (EXACT, CONVERGED)), (TRAINED, (EXACT, RUNNING))):
            means = np.mean(cell[models], axis=1)
            for at in (*(int(np.argmin(cell[curve])) for curve in curves), int(np.argmin(means))):
                line.append(f"{means[at]:.4f} ({RIDGES[at]:.0e})")
        lines.append(line)
    heads = ["without noise", "with its noise", "best"]
    return markdown_table(
        ["problem", "ε", *(f"{kind}: {head}" for kind in ("converged", "early-stopped") for head in heads)], lines
    )


def ranges(cells: Cells) -> str:
    """The least and the largest mean loss of private models over all ridges."""
    lines = []
    for key, cell in cells.items():
        means = [np.mean(cell[models], axis=1) for models in MODELS]
        lines.append([*key.split(" | "), *(f"{values.min():.4f} to {values.max():.4f}" for values in means)])
    return markdown_table(["problem", "ε", *MODELS], lines)


def draw(cells: Cells, target: Path) -> None:
    """A panel for each problem and epsilon."""
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(8.5, 2.3 * len(PROBLEMS)), layout="constrained")
        panels = figure.subplots(len(PROBLEMS), len(EPSILONS), sharex=True, sharey="row")
        for row, name in zip(panels, PROBLEMS, strict=True):
            mine = [cells[f"{name} | {epsilon:g}"] for epsilon in EPSILONS]
            low = min(np.min(cell[kind]) for cell in mine for kind in (*CURVES, *MODELS))
            high = max(np.max(np.mean(cell[TRAINED], axis=1)) for cell in mine)
            high = high + 0.3 * (high - low)
            for panel, epsilon, cell in zip(row, EPSILONS, mine, strict=True):
                for kind, colour in zip(CURVES, COLOURS, strict=False):
                    panel.plot(RIDGES, np.clip(cell[kind], low, high), color=colour, label=LABELS.get(kind, kind))
                for kind, marker in zip(MODELS, ("o", "x"), strict=True):
                    means = np.clip(np.mean(cell[kind], axis=1), low, high)
                    hollow = {"markerfacecolor": "none"} if marker == "o" else {}
                    panel.plot(RIDGES, means, marker, color=INK, markersize=5, label=kind, **hollow)
                panel.set(xscale="log", title=f"{name}, ε = {epsilon:g}")
                panel.title.set_fontsize(8.5)
                panel.grid(True)
            row[0].set_ylabel("log-loss")
        for panel in panels[-1]:
            panel.set_xticks([1e-5, 1e-3, 1e-1], ["1e-05", "1e-03", "0.1"])
            panel.set_xlabel("ridge")
        figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
        figure.savefig(target, metadata={"Date": None})


def report(out: Path) -> None:
    """The page and the figure."""
    stored = read_cells(out)
    cells = {key: stored[key] for key in (f"{name} | {epsilon:g}" for name in PROBLEMS for epsilon in EPSILONS)}
    small = [at for at, ridge in enumerate(RIDGES) if ridge < 1.1e-3]
    trained = [np.mean(cell[TRAINED], axis=1)[small] for cell in cells.values()]
    draw(cells, out.with_suffix(".svg"))
    page = PAGE.format(
        figure=out.with_suffix(".svg").name,
        seeds=SEEDS,
        delta=DELTA,
        choices=choices(cells),
        ranges=ranges(cells),
        converged_gap=max(lost(cells, EXACT, PERTURBED).values()),
        converged_left=max(lost(cells, CONVERGED, PERTURBED).values()),
        running_gap=max(lost(cells, EXACT, TRAINED).values()),
        running_left=max(lost(cells, RUNNING, TRAINED).values()),
        below=max(below(cell) for cell in cells.values()),
        small_gap=max(float(np.ptp(values)) for values in trained),
        commits="commit " + ", ".join(sorted({cell["commit"] for cell in cells.values()})),
        machine=machine().split(" on ", 1)[1],
    )
    out.with_suffix(".md").write_text(page, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, and report."""
    asked = options(__doc__, RESULTS, arguments)
    there, tasks = read_cells(asked.out), [(name, epsilon) for name in PROBLEMS for epsilon in EPSILONS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about fixed seeds and large noise
        run(measure, [(n, e) for n, e in tasks if f"{n} | {e:g}" not in there], asked.out, asked.processes)
    report(asked.out)


if __name__ == "__main__":
    main()
