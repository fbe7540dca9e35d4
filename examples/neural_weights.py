"""A neural network as hyperparameter: learn the weight of a record from its age, on private records.

For half of the time a faulty instrument was in use, and the date of its repair is unknown. A small network maps the age
of a training record to a weight, the lower level trains a logistic regression with these weights, and the upper level
evaluates that model on verified records. The network learns which ages are unreliable, and one (epsilon, delta) covers
network and model together.

    python examples/neural_weights.py [--out neural_weights.svg]

Data: synthetic.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import dpbilevel as dpb

COLUMNS, HIDDEN = 30, 8
BUDGET = dpb.Budget(epsilon=1.0, delta=1e-6)


def wrong_share(age):
    """The share of wrong labels, unknown to the method: for half of the time, a faulty instrument was in use."""
    return 0.9 / (1 + np.exp(-20 * (age - 0.4)))


def draw(rows: int, draws: np.random.Generator, checked: bool):
    """Rows of norm at most one, labels, ages; labels of verified records are right."""
    truth = 3 * np.cos(np.arange(COLUMNS))
    features = draws.normal(size=(rows, COLUMNS)) / 3
    features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1)
    age = draws.uniform(size=rows)
    label = features @ truth + 0.3 * draws.normal(size=rows) > 0
    if not checked:  # the fault: half of the columns are read with the wrong sign
        faulty = features @ np.where(np.arange(COLUMNS) % 2, -truth, truth) > 0
        label = np.where(draws.uniform(size=rows) < wrong_share(age), faulty, label)
    return features.astype(np.float32), label.astype(np.float32), age.astype(np.float32)


def weight(x, age):
    """A network with one hidden layer, from an age to a weight between zero and one."""
    hidden = jnp.tanh(4 * (age - 0.5) * x["slope"] + x["shift"])
    return jax.nn.sigmoid(hidden @ x["output"] + x["level"])


def loss(y, features, label):
    return jax.nn.softplus(jnp.where(label > 0, -1.0, 1.0) * (features @ y))


PROBLEM = dpb.BilevelProblem(
    upper_loss=lambda x, y, record: loss(y, *record),
    lower_loss=lambda x, y, record: weight(x, record[2]) * loss(y, record[0], record[1]),
    lower_term=lambda x, y: 1e-4 * jnp.sum(y**2),
    domain=dpb.Ball(10.0),  # in a ball, steps follow the gradient instead of single coordinates, as a network needs
    upper_trains=True,
    start=(
        {
            "slope": np.cos(np.arange(HIDDEN)).astype(np.float32),
            "shift": np.sin(np.arange(HIDDEN)).astype(np.float32),
            "output": np.zeros(HIDDEN, np.float32),
            "level": np.zeros((), np.float32),
        },
        np.zeros(COLUMNS, np.float32),
    ),
)


def main(rows: int = 60_000, out: str = "neural_weights.svg") -> None:
    draws = np.random.default_rng(0)
    training, checked, test = draw(rows, draws, False), draw(rows // 20, draws, True), draw(20_000, draws, True)
    records = dpb.Records(upper=checked[:2], lower=training)
    console = Console()
    console.print(f"{records!r}; weighted by a network of {3 * HIDDEN + 1} parameters")

    def accuracy(y) -> str:
        return f"{100 * np.mean((test[0] @ y > 0) == test[1]):.1f}%"

    runs = {
        "equal weights": dpb.solve(PROBLEM, records, BUDGET, method=dpb.Refit(), refit=None),
        "checked records alone": dpb.baselines.UpperRecordsOnly().solve(PROBLEM, records, BUDGET),
        "weighted by a network": dpb.solve(PROBLEM, records, BUDGET),
    }
    table = Table("", "accuracy", "epsilon", title=f"Test records, delta = {BUDGET.delta:g}, replace-one")
    for name, solution in runs.items():
        table.add_row(name, accuracy(solution.y), f"{solution.privacy.epsilon():.3f}")
    console.print(table)

    tuned = runs["weighted by a network"]
    ages = np.linspace(0, 1, 200)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    curves = tuned.history["x"]
    for step in range(0, len(curves["level"]), max(1, len(curves["level"]) // 10)):
        at = {name: values[step] for name, values in curves.items()}
        label = "during tuning" if step == 0 else None
        axes.plot(ages, [weight(at, age) for age in ages], color="tab:blue", alpha=0.2, label=label)
    axes.plot(ages, [weight(tuned.x, age) for age in ages], color="tab:blue", label="weight, released")
    axes.plot(ages, 1 - wrong_share(ages), color="tab:gray", linestyle="--", label="share of right labels, unknown")
    axes.set(
        xlabel="age of the record", ylabel="weight", ylim=(0, 1.02), title="Learned weight by age of a record (ε = 1)"
    )
    axes.legend(frameon=False)
    figure.savefig(out)
    console.print(f"Saved {Path(out)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="neural_weights.svg", help="output figure, .svg or .png")
    main(**vars(parser.parse_args()))
