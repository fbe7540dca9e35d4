"""One penalty per group of columns, for columns that are predictive in the archive but not at the bedside.

A hospital trains a classifier on its archive. There, the settings of a device reveal who is ill, because ill patients
were sent to one machine. In practice, patients are scanned on any free machine, as a few thousand recent records show.
A single penalty either keeps the device settings or loses the laboratory values. One penalty per group, tuned on the
recent patients, excludes the device settings. Synthetic data; epsilon = 1 in total for each row of the table.

    python examples/grouped_penalties.py [--out grouped_penalties.svg]
"""

import argparse
import textwrap
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import dpbilevel as dpb
from dpbilevel.applications import regularization
from dpbilevel.baselines import FixedDefault, UpperRecordsOnly

WIDTHS = {"vital signs": 10, "laboratory": 60, "device settings": 4}
SEPARATION = {"vital signs": 0.7, "laboratory": 0.8, "device settings": 2.5}  # distance between the class means
BUDGET = dpb.Budget(epsilon=1.0, delta=1e-6)

Patients = tuple[np.ndarray, np.ndarray]


def patients(number: int, draws: np.random.Generator, *, archive: bool) -> Patients:
    """Rows of norm at most one, and who is ill. Device settings are informative in the archive only."""
    ill = draws.random(number) < 0.5
    apart = {name: distance * (archive or name != "device settings") for name, distance in SEPARATION.items()}
    shift = np.concatenate([np.full(width, apart[name] / np.sqrt(width)) for name, width in WIDTHS.items()])
    rows = draws.normal(size=(number, len(shift))) + np.where(ill, 1, -1)[:, None] * shift
    rows /= 1.1 * np.sqrt(len(shift))  # most rows have a smaller norm; the others are scaled down
    return (rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))).astype(np.float32), ill


def accuracy(solution: dpb.Solution, test: Patients) -> float:
    rows, ill = test
    return float(np.mean((rows @ solution.y > 0) == ill))


def main(rows: int = 30_000, out: str = "grouped_penalties.svg") -> None:
    console, draws = Console(), np.random.default_rng(0)
    recent = patients(rows * 3 // 20, draws, archive=False)
    archive = patients(rows - len(recent[1]), draws, archive=True)
    test = patients(10_000, draws, archive=False)
    records = dpb.Records(upper=recent, lower=archive)

    group_of_column = np.repeat(np.arange(len(WIDTHS)), list(WIDTHS.values()))
    grouped = regularization("logistic", columns=len(group_of_column), groups=group_of_column)
    single = regularization("logistic", columns=len(group_of_column))

    solutions = {
        "untuned, every penalty e⁻⁵": FixedDefault().solve(grouped, records, BUDGET),
        "one penalty, tuned": dpb.solve(single, records, BUDGET),
        "recent patients only": UpperRecordsOnly().solve(
            single, records, BUDGET, start=(np.full(1, -12.0), single.start[1])
        ),
        "a penalty for each group": dpb.solve(grouped, records, BUDGET),
    }
    table = Table("", "accuracy", "epsilon", "penalties", title=f"Patients at the bedside, delta = {BUDGET.delta:g}")
    for name, solution in solutions.items():
        penalties = ", ".join(f"{penalty:.1g}" for penalty in np.exp(solution.x))
        table.add_row(name, f"{accuracy(solution, test):.1%}", f"{solution.privacy.epsilon():.3f}", penalties)
    console.print(table)

    figure = Figure(figsize=(8, 3.8), layout="constrained")
    trajectory, bars = figure.subplots(1, 2, width_ratios=(1.25, 1))
    history = np.exp(solutions["a penalty for each group"].history["x"])
    for name, values, style in zip(WIDTHS, history.T, ("-", "--", "-"), strict=True):
        trajectory.plot(np.arange(1, len(values) + 1), values, style, label=f"{name} ({WIDTHS[name]} columns)")
    trajectory.set_yscale("log")
    trajectory.set_xlabel("tuning step")
    trajectory.set_ylabel("released penalty")
    trajectory.set_title("Penalties during tuning")
    trajectory.legend(fontsize=8)
    trajectory.grid(alpha=0.3)
    scores = [100 * accuracy(solution, test) for solution in solutions.values()]
    bars.barh([textwrap.fill(name, 15) for name in solutions], scores, color=["0.7", "0.7", "0.7", "tab:green"])
    for place, score in enumerate(scores):
        bars.text(score - 1, place, f"{score:.1f}%", ha="right", va="center")
    bars.invert_yaxis()
    bars.set_xlim(50, 90)
    bars.set_xlabel("accuracy at the bedside, %")
    bars.set_title("ε = 1 each")
    figure.savefig(out)
    console.print(f"Saved {Path(out)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="grouped_penalties.svg", help="output figure, .svg or .png")
    main(**vars(parser.parse_args()))
