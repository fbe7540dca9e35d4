"""Source weights: twelve hospitals, some of which have wrong labels, weighted under one privacy budget.

A few records were verified by hand. A weight for each hospital is tuned on them, and the model is trained on all
records with these weights; one (epsilon, delta) covers both.

    python examples/hospitals.py [--out hospitals.svg]

Data: synthetic.
"""

import argparse
import textwrap
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich.console import Console
from rich.table import Table

from dpbilevel.estimators import DPLogisticRegressionCV, DPSourceWeightedClassifier

HOSPITALS = [f"hospital {letter}" for letter in "ABCDEFGHIJKL"]
UNRELIABLE = {0, 2, 3, 5, 8, 10, 11}  # unknown to the method
EPSILON, DELTA, COLUMNS = 1.0, 1e-6, 15


def patients(rows: int, draws: np.random.Generator, checked: bool):
    """Rows of norm at most one, diagnoses, hospitals; unreliable hospitals get most diagnoses wrong."""
    features = draws.normal(size=(rows, COLUMNS)) / 4
    features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1)
    ill = features @ np.linspace(-2, 2, COLUMNS) + 0.2 * draws.normal(size=rows) > 0
    hospital = draws.integers(0, len(HOSPITALS), rows)
    if not checked:
        ill ^= np.isin(hospital, list(UNRELIABLE)) & (draws.uniform(size=rows) < 0.7)
    return features, np.where(ill, "ill", "well"), np.array(HOSPITALS)[hospital]


def main(rows: int = 30_000, out: str = "hospitals.svg") -> None:
    draws = np.random.default_rng(0)
    X, y, hospital = patients(rows, draws, checked=False)
    checked_X, checked_y, _ = patients(rows // 15, draws, checked=True)
    test_X, test_y, _ = patients(20_000, draws, checked=True)
    declared = {"epsilon": EPSILON, "delta": DELTA, "data_norm": 1.0, "classes": ["ill", "well"]}

    weighted = DPSourceWeightedClassifier(**declared, source_names=HOSPITALS)
    weighted.fit(X, y, sources=hospital, validation=(checked_X, checked_y))
    everything = np.concatenate([checked_X, X]), np.concatenate([checked_y, y])
    models = {
        "all hospitals, equal weights": DPLogisticRegressionCV(**declared).fit(*everything),
        "checked records alone": DPLogisticRegressionCV(**declared).fit(checked_X, checked_y),
        "weighted hospitals": weighted,
    }
    scores = {name: model.score(test_X, test_y) for name, model in models.items()}
    table = Table("", "accuracy", "epsilon", title=f"Checked test records, delta = {DELTA:g}, replace-one")
    for name, model in models.items():
        table.add_row(name, f"{100 * scores[name]:.1f}%", f"{model.privacy_.epsilon():.3f}")
    console = Console()
    console.print(table)

    figure = Figure(figsize=(9.4, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    colours = ["tab:red" if at in UNRELIABLE else "tab:blue" for at in range(len(HOSPITALS))]
    left.bar([name[-1] for name in weighted.source_names_], weighted.source_weights_, color=colours)
    equal = left.axhline(1 / len(HOSPITALS), color="0.4", linestyle="--", linewidth=1)
    known = [Patch(color="tab:blue"), Patch(color="tab:red"), equal]
    left.set(xlabel="hospital", ylabel="released weight", title=f"Released weights, ε = {EPSILON:g}")
    left.set_ylim(top=1.25 * weighted.source_weights_.max())
    left.legend(known, ["truly reliable", "truly unreliable", "equal weights"], ncols=3, fontsize="small")
    bars = right.barh(
        [textwrap.fill(name, 14) for name in scores],
        [100 * score for score in scores.values()],
        color=["0.75", "0.55", "tab:blue"],
    )
    right.bar_label(bars, fmt="%.1f%%", padding=3)
    right.invert_yaxis()
    right.set(xlabel="accuracy on test records, %", xlim=(50, 106), title=f"ε = {EPSILON:g} each")
    figure.savefig(out)
    console.print(f"Saved {Path(out)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="hospitals.svg", help="output figure, .svg or .png")
    main(**vars(parser.parse_args()))
