"""Pupils of thirty schools: a private representation shared by all schools, and a small head for each.

A questionnaire has twenty columns, of which a few directions matter in every school, with different coefficients. One
school has too few pupils to find these directions under a privacy budget; together they have enough.

    python examples/schools.py [--out schools.svg]

Data: synthetic.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import dpbilevel as dpb
from dpbilevel.applications import represented, shared_representation
from dpbilevel.estimators import DPMultiTaskRidge

COLUMNS, DIRECTIONS, SCHOOLS = 20, 2, 30
EPSILON, DELTA = 1.0, 1e-6
TRUTH = np.linalg.qr(np.random.default_rng(7).normal(size=(COLUMNS, DIRECTIONS)))[0]
HEADS = np.random.default_rng(8).normal(size=(SCHOOLS, DIRECTIONS))
LEVELS = np.random.default_rng(9).normal(size=SCHOOLS) / 3


def pupils(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Answers (rows of norm at most one), grades between 0 and 20, schools."""
    draws = np.random.default_rng(seed)
    school = draws.integers(0, SCHOOLS, rows)
    answers = draws.normal(size=(rows, COLUMNS)) / np.sqrt(COLUMNS)
    answers /= np.maximum(np.linalg.norm(answers, axis=1, keepdims=True), 1)
    talent = 3 * np.sum((answers @ TRUTH) * HEADS[school], axis=1) + LEVELS[school]
    grades = np.clip(10 + 3 * (talent + 0.3 * draws.normal(size=rows)), 0, 20)
    return answers.astype(np.float32), grades, school


def separate(answers: np.ndarray, grades: np.ndarray, school: np.ndarray, dimension: int) -> dpb.Solution:
    """Heads alone, with the whole budget, on a data-independent map: all columns, or a few directions."""
    problem = shared_representation(columns=COLUMNS, dimension=dimension, tasks=SCHOOLS, target_bound=3.0)
    scaled = ((grades - 10) / 10 * 3).astype(np.float32)
    records = dpb.Records(lower=(answers, scaled, school), upper=(answers[:1], scaled[:1], school[:1]))
    return dpb.solve(problem, records, dpb.Budget(EPSILON, DELTA), method=dpb.Refit(), refit=None)


def main(rows: int = 50_000, out: str = "schools.svg") -> None:
    train, test = pupils(rows, 0), pupils(20_000, 1)
    model = DPMultiTaskRidge(
        dimension=DIRECTIONS,
        epsilon=EPSILON,
        delta=DELTA,
        data_norm=1.0,
        target_range=(0, 20),
        task_names=range(SCHOOLS),
    )
    model.fit(train[0], train[1], tasks=train[2])

    def explained(guessed: np.ndarray) -> float:
        return 1 - np.mean((guessed - test[1]) ** 2) / np.var(test[1])

    def by_heads(solution: dpb.Solution) -> np.ndarray:
        heads = solution.y[test[2]]
        return 10 + 10 / 3 * (np.sum(np.asarray(represented(solution.x, test[0])) * heads[:, :-1], 1) + heads[:, -1])

    guessed = {
        "shared representation, learnt": model.predict(test[0], tasks=test[2]),
        "each school alone, all columns": by_heads(separate(*train, COLUMNS)),
        "each school alone, two arbitrary directions": by_heads(separate(*train, DIRECTIONS)),
    }
    table = Table(
        "", "R² on test pupils", title=f"epsilon = {EPSILON:g}, delta = {DELTA:g}, replace-one, everything included"
    )
    for name, values in guessed.items():
        table.add_row(name, f"{explained(values):.3f}")
    console = Console()
    console.print(table)
    learnt = np.linalg.qr(model.representation_)[0]
    angles = np.degrees(np.arccos(np.clip(np.linalg.svd(learnt.T @ TRUTH)[1], -1, 1)))
    console.print(f"Angles between learnt and true directions: {', '.join(f'{angle:.0f}°' for angle in angles)}")

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.barh(
        [name.replace(", ", ",\n") for name in guessed],
        [explained(values) for values in guessed.values()],
        color=["tab:blue", "0.6", "0.8"],
    )
    left.invert_yaxis()
    left.set(xlabel="R² on test pupils", title=f"ε = {EPSILON:g}")
    shown = slice(0, 400)
    right.scatter(test[1][shown], guessed["shared representation, learnt"][shown], s=4, alpha=0.4)
    right.plot([0, 20], [0, 20], color="0.5", linewidth=1)
    right.set(xlabel="grade", ylabel="predicted", title="Test pupils of all schools", xlim=(0, 20), ylim=(0, 20))
    figure.savefig(out)
    console.print(f"Saved {Path(out)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="schools.svg", help="output figure, .svg or .png")
    main(**vars(parser.parse_args()))
