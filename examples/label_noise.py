"""Label noise: learn how often classes are confused from a few verified records, and correct for it.

Four kinds of animals are labelled by volunteers who mistake the first for the second in two cases of five, and the
third for the fourth in one of four. The confusion matrix is a hyperparameter: the lower level trains a softmax
regression that explains labels by it, the upper level evaluates the model on verified records.

    python examples/label_noise.py [--out label_noise.svg]

Data: synthetic.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import dpbilevel as dpb
from dpbilevel.applications import confusion, label_noise

KINDS, COLUMNS = ["fox", "dog", "owl", "hawk"], 12
BUDGET = dpb.Budget(epsilon=1.0, delta=1e-6)
TRUTH = np.array([[0.6, 0.4, 0, 0], [0, 1, 0, 0], [0, 0, 0.75, 0.25], [0, 0, 0, 1]])


def animals(rows: int, draws: np.random.Generator, checked: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows of norm at most one and labels; those of verified records are right."""
    kind = draws.integers(0, len(KINDS), rows)
    centres = np.repeat(np.eye(len(KINDS)), COLUMNS // len(KINDS), axis=1)
    features = 0.35 * centres[kind] + 0.2 * draws.normal(size=(rows, COLUMNS))
    features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1)
    given = np.array([draws.choice(len(KINDS), p=TRUTH[k]) for k in kind]) if not checked else kind
    return features.astype(np.float32), given.astype(np.int32)


def main(rows: int = 40_000, out: str = "label_noise.svg") -> None:
    draws = np.random.default_rng(0)
    training, checked, test = (
        animals(rows, draws, False),
        animals(rows // 20, draws, True),
        animals(20_000, draws, True),
    )
    records = dpb.Records(upper=checked, lower=training)
    corrected = label_noise(columns=COLUMNS, classes=len(KINDS))
    trusting = dpb.applications.source_weights("softmax", columns=COLUMNS, sources=1, classes=len(KINDS))
    one_source = dpb.Records(upper=checked, lower=(*training, np.zeros(rows, np.int32)))
    runs = {
        "labels taken as they are": dpb.solve(trusting, one_source, BUDGET, method=dpb.Refit(), refit=None),
        "checked records alone": dpb.baselines.UpperRecordsOnly().solve(corrected, records, BUDGET),
        "confusion found and corrected for": dpb.solve(corrected, records, BUDGET),
    }
    table = Table("", "accuracy", "epsilon", title=f"Checked test records, delta = {BUDGET.delta:g}, replace-one")
    for name, solution in runs.items():
        right = np.mean((test[0] @ solution.y).argmax(1) == test[1])
        table.add_row(name, f"{100 * right:.1f}%", f"{solution.privacy.epsilon():.3f}")
    console = Console()
    console.print(table)

    found = np.asarray(confusion(runs["confusion found and corrected for"].x))
    figure = Figure(figsize=(8.4, 3.8), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, matrix, title in zip(panels, (found, TRUTH), ("found, ε = 1", "truth, unknown"), strict=True):
        axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
        for (row, column), value in np.ndenumerate(matrix):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.5 else "black")
        axes.set(xticks=range(4), xticklabels=KINDS, yticks=range(4), yticklabels=KINDS, title=title)
        axes.set(xlabel="labelled as", ylabel="is")
    figure.savefig(out)
    console.print(f"Saved {Path(out)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="label_noise.svg", help="output figure, .svg or .png")
    main(**vars(parser.parse_args()))
