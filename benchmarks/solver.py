"""Does the default solve its problem without noise? Known solutions, all domains, scales over six decades.

    python benchmarks/solver.py        (a quarter of an hour on two cores; writes docs/results/solver.*)

Each problem is solved with defaults (`dpb.solve(problem, records, budget, start=...)`) and by the reference solver,
dense implicit differentiation in float64. *Left* is the remaining fraction of F(x0) - F*.
"""

import json
import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np
from matplotlib.figure import Figure
from rates import ROOT, machine
from solver_problems import Entry, Posed, Units, quadratic, rescaled, table
from solver_reference import Reference

import dpbilevel as dpb
from dpbilevel.foundation.tables import markdown_table

SEEDS, RECORDS = (31, 32), 1000
UNITS = (Units(x=1e-3), Units(x=1e3), Units(y=1e-3), Units(y=1e3), Units(upper=1e3, lower=1e-3), Units(upper=1e-3))

PAGE = """# Does the default solve the problem it is given?

{number} bilevel problems with known solutions, without noise (`Budget(float("inf"))`), with default settings:
quadratics with condition numbers up to 1,000, penalties of linear models, weights of sources, meta-learning and a
shared representation, in every domain, and with x, y and the losses multiplied by 10⁻³ to 10³. *Left* is the remaining
fraction of $F(x_0) - F^*$, the largest of {seeds} seeds; $F^*$ is the value found by an independent solver from the
same starting point (dense implicit differentiation and SLSQP in float64), so that a negative number means that the
default found a better solution. *Rounds* is the number of rounds in which x moved, the largest over the seeds.

**The largest fraction left is {worst:.1e}**; {solved} of {number} problems are solved to one part in a thousand.

![Fraction left, by problem](solver.svg)

{table}

## The same problem in other units

For a quadratic in a ball, the largest distance between its solution and that of a rescaled problem, in the original
units and relative to the norm of the solution, is {units}.

{made} Seeds {seed_list}, {records:,} lower and half as many upper records, float32.
"""


def solved(posed: Posed) -> dpb.Solution:
    """Solve with defaults; without the final training, which does not affect x."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning about an infinite epsilon
        records = dpb.Records(**posed.data)
        return dpb.solve(posed.problem, records, dpb.Budget(math.inf), start=posed.start, progress=False)


def measured(entry: Entry, seed: int) -> dict[str, float]:
    """Solve one problem with the default and with the reference solver."""
    posed = entry.posed(RECORDS, seed)
    reference = Reference(posed)
    first, best = reference.value(posed.start[0]), reference.best()
    begin = time.perf_counter()
    solution = solved(posed)
    seconds = time.perf_counter() - begin
    moves = np.concatenate(
        [np.diff(leaf.reshape(len(leaf), -1), axis=0) != 0 for leaf in _leaves(solution.history["x"])], axis=1
    )
    left = (reference.value(solution.x) - best) / (first - best)
    return {"left": left, "rounds": 1 + int(moves.any(axis=1).sum()), "seconds": seconds}


def _leaves(tree: Any) -> list[np.ndarray]:
    return [leaf for part in tree.values() for leaf in _leaves(part)] if isinstance(tree, dict) else [np.asarray(tree)]


def in_units(seed: int) -> float:
    """The largest distance between the solutions of rescaled problems and of the original one, relative to its norm."""
    posed = quadratic(RECORDS, seed, domain="ball")
    plain = np.asarray(solved(posed).x)
    others = [np.asarray(solved(rescaled(posed, units)).x) / units.x for units in UNITS]
    return float(max(np.linalg.norm(other - plain) for other in others) / np.linalg.norm(plain))


def draw(rows: list[dict[str, Any]], target: Path) -> None:
    """One dot per problem, in the order of the table."""
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "solver", "font.size": 9})
    figure = Figure(figsize=(8, 0.17 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    floor = 1e-10
    axes.plot([max(row["left"], floor) for row in rows], range(len(rows)), "o", markersize=4)
    axes.axvline(0.01, color="0.4", linewidth=1, linestyle="--")
    axes.set_xscale("log")
    axes.set_xlim(floor / 2, 1)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=6)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("remaining fraction of F(x₀) − F* (dashed: 1%; clipped at 10⁻¹⁰)")
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(target, metadata={"Date": None})


def main(output: Path = ROOT / "docs" / "results", entries: list[Entry] | None = None) -> list[dict[str, Any]]:
    """Solve all problems and write page, figure and results."""
    begin = time.perf_counter()
    rows = []
    for entry in table() if entries is None else entries:
        runs = [measured(entry, seed) for seed in SEEDS]
        jax.clear_caches()  # compiled programs of all problems would exceed the limit of memory maps on Linux
        rows.append({"name": entry.name} | {key: max(run[key] for run in runs) for key in runs[0]})
        print(f"{rows[-1]['left']:10.1e}  {rows[-1]['rounds']:4}  {rows[-1]['name']}", file=sys.stderr, flush=True)
    units = max(in_units(seed) for seed in SEEDS)
    made = (
        f"Made by `python benchmarks/solver.py` from {machine()}, in {(time.perf_counter() - begin) / 60:.0f} minutes."
    )
    content = {"problems": rows, "units": units, "made": made}
    output.mkdir(parents=True, exist_ok=True)
    (output / "solver.json").write_text(json.dumps(content, allow_nan=False, indent=1) + "\n", encoding="utf-8")
    draw(rows, output / "solver.svg")
    page = PAGE.format(
        number=len(rows),
        seeds=len(SEEDS),
        worst=max(row["left"] for row in rows),
        solved=sum(row["left"] < 1e-3 for row in rows),
        table=markdown_table(
            ["problem", "left", "rounds"], [[row["name"], f"{row['left']:.1e}", str(row["rounds"])] for row in rows]
        ),
        units=f"{units:.1e}",
        made=made,
        seed_list=", ".join(map(str, SEEDS)),
        records=RECORDS,
    )
    (output / "solver.md").write_text(page, encoding="utf-8")
    return rows


if __name__ == "__main__":
    main()
