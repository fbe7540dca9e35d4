"""The cost of privacy in ridge regression: R² against epsilon, with scikit-learn's RidgeCV as the reference.

The target is the arrival delay of flights from New York, in minutes, predicted at departure; or house values in
California, if a directory with that data set is given. Ranges and categories are declared by the data sets, so that
every fit is private: each spends its own epsilon on tuning and training together.

    python examples/private_ridge.py [--data DIRECTORY] [--out private_ridge.svg]

Test rows are treated as public here. A score on private rows costs budget too: docs/evaluation.md.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import RidgeCV

import dpbilevel as dpb
from dpbilevel.baselines import FixedDefault
from dpbilevel.datasets import Dataset, load_california, load_flights
from dpbilevel.estimators import DPRidgeCV

EPSILONS = (0.3, 1.0, 3.0, math.inf)
PREDICTED = {"flights": "Delay on arrival", "california": "House values"}


def encoded(data: Dataset, rows: int) -> tuple[dpb.EncodedRows, np.ndarray]:
    """Rows of norm at most one by the declared ranges and categories, and targets within their declared range."""
    chosen = np.random.default_rng(0).permutation(len(data.target))[:rows]
    # Destinations are omitted: a hundred more columns, for a delay that the departure already predicts.
    columns = {name: values[chosen] for name, values in data.X.items() if name != "dest"}
    categories = {name: values for name, values in (data.categories or {}).items() if name != "dest"}
    encoder = dpb.BoundedEncoder(ranges=data.ranges, categories=categories)
    return encoder.fit_transform(columns), np.clip(data.target[chosen], *data.target_range)


def main(rows: int = 20_000, data: str | None = None, out: str = "private_ridge.svg") -> None:
    console = Console()
    dataset = load_flights() if data is None else load_california(data)
    X, y = encoded(dataset, rows)
    test, training = slice(0, len(y) // 5), slice(len(y) // 5, None)

    # Candidate penalties, starting at a billionth of the number of rows.
    reference = RidgeCV(len(y) * np.geomspace(1e-9, 1, 19)).fit(np.asarray(X[training]), y[training])
    to_reach = reference.score(np.asarray(X[test]), y[test])

    def score(epsilon: float, **settings: object) -> float:
        model = DPRidgeCV(epsilon=epsilon, target_range=dataset.target_range, **settings)
        return model.fit(X[training], y[training]).score(X[test], y[test])

    tuned = [score(epsilon) for epsilon in EPSILONS]
    untuned = [score(epsilon, method=FixedDefault()) for epsilon in EPSILONS]

    table = Table("epsilon", "tuned", "untuned", title=f"{dataset.name}, R² on test rows")
    for epsilon, *scores in zip(EPSILONS, tuned, untuned, strict=True):
        table.add_row(f"{epsilon:g}", *(f"{value:.3f}" for value in scores))
    table.add_row("RidgeCV", f"{to_reach:.3f}", "", style="dim")
    console.print(table)

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    places = range(len(EPSILONS))
    axes.axhline(to_reach, color="black", linestyle="--", label="scikit-learn's RidgeCV (not private)")
    axes.plot(places, tuned, "o-", color="tab:blue", label="DPRidgeCV: penalty tuned and model trained within ε")
    axes.plot(places, untuned, "s:", color="tab:orange", label="untuned: penalty at the middle of its range, e⁻⁵")
    axes.set_xticks(places, [f"{epsilon:g}".replace("inf", "∞") for epsilon in EPSILONS])
    axes.set_xlabel("ε of everything together (δ = 1/n^1.1, replace-one)")
    axes.set_ylabel("R² on test rows")
    axes.set_ylim(min(*tuned, *untuned) - 0.05, to_reach + 0.03)
    axes.set_title(f"{PREDICTED[dataset.name]}: {len(y) - len(y) // 5:,} private rows, {X.shape[1]} columns")
    axes.legend(loc="center right")
    axes.grid(alpha=0.3)
    figure.savefig(out)
    console.print(f"Saved {Path(out)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a directory with california_housing.npz; default: flights")
    parser.add_argument("--out", default="private_ridge.svg", help="output figure, .svg or .png")
    main(**vars(parser.parse_args()))
