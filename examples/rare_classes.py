"""Class weights for a rare failure that is expensive to miss, tuned by cost under one privacy budget.

One machine in twenty fails soon. A false alarm costs 1, a missed failure costs 20. A model of the plain loss hardly
ever predicts a failure. Here the weights of the two classes are hyperparameters, and validation records are weighted by
the cost of their mistakes. The baseline needs no tuning: weights in proportion to known costs.

    python examples/rare_classes.py [--out rare_classes.svg]

Data: synthetic.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import dpbilevel as dpb
from dpbilevel.applications import class_weights

COLUMNS, COSTS = 12, (1.0, 20.0)
BUDGET = dpb.Budget(epsilon=1.0, delta=1e-6)


def machines(rows: int, draws: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of norm at most one with a constant column, and whether a machine fails soon."""
    fails = draws.uniform(size=rows) < 0.05
    features = draws.normal(size=(rows, COLUMNS)) / 5 + 0.15 * fails[:, None] * (np.arange(COLUMNS) < 6)
    features[:, -1] = 0.3
    features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1)
    return features.astype(np.float32), fails.astype(np.int32)


def main(rows: int = 40_000, out: str = "rare_classes.svg") -> None:
    draws = np.random.default_rng(0)
    training, validation, test = machines(rows, draws), machines(rows // 4, draws), machines(20_000, draws)
    records = dpb.Records(upper=validation, lower=training)
    weighted = class_weights(columns=COLUMNS, classes=2, costs=COSTS)
    plain = class_weights(columns=COLUMNS, classes=2)
    runs = {
        "plain": dpb.solve(plain, records, BUDGET, method=dpb.Refit(), refit=None),
        "weights by cost, not tuned": dpb.solve(weighted, records, BUDGET, method=dpb.Refit(), refit=None),
        "tuned class weights": dpb.solve(weighted, records, BUDGET),
    }
    table = Table("", "failures seen", "false alarms", "cost per machine", "epsilon", title="Test machines")
    curves = {}
    for name, solution in runs.items():
        scores = test[0] @ solution.y
        seen, alarms = np.mean(scores[test[1] == 1] > 0), np.mean(scores[test[1] == 0] > 0)
        cost = np.mean(np.where(test[1] == 1, COSTS[1] * (scores <= 0), COSTS[0] * (scores > 0)))
        curves[name] = seen, alarms, cost
        table.add_row(name, f"{seen:.1%}", f"{alarms:.1%}", f"{cost:.2f}", f"{solution.privacy.epsilon():.3f}")
    console = Console()
    console.print(table)
    weights = runs["tuned class weights"].x
    console.print(
        f"Released weights: {weights[0]:.2f} for machines that do not fail, {weights[1]:.2f} for those that fail"
    )

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    places, width = np.arange(2), 0.27
    for at, (name, (seen, alarms, _)) in enumerate(curves.items()):
        heights, colour = [100 * seen, 100 * alarms], ("0.8", "0.55", "tab:blue")[at]
        bars = left.bar(places + (at - 1) * width, heights, width, label=name, color=colour)
        left.bar_label(bars, fmt="%.0f%%", padding=2, fontsize="small")
    left.set(xticks=places, xticklabels=["failures seen", "false alarms"], ylabel="% of machines", ylim=(0, 135))
    left.set_title(f"ε = {BUDGET.epsilon:g} for tuning and training")
    left.legend(frameon=False)
    path = runs["tuned class weights"].history["x"]
    right.plot(path[:, 1], color="tab:blue", label="machines that fail")
    right.plot(path[:, 0], color="0.6", label="other machines")
    right.set(xlabel="step", ylabel="weight (released)", ylim=(0, 1), title="Weights of classes during tuning")
    right.legend(frameon=False)
    figure.savefig(out)
    console.print(f"Saved {Path(out)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="rare_classes.svg", help="output figure, .svg or .png")
    main(**vars(parser.parse_args()))
