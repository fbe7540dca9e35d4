"""The page and the figure of the solver benchmark with noise: docs/results/solver_private.{md,svg}."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from pieces import Cells, read_cells
from rates import machine
from solver_private import (
    DATA_SEED,
    DEFAULT,
    DELTA,
    DOUBLE_LOOP,
    EPSILONS,
    NOISE_SEEDS,
    RECORD_NORM,
    RECORDS,
    REFERENCE_RECORDS,
    key_of,
    plain_name,
)
from solver_private_statistics import Comparison, compare
from solver_problems import table

from dpbilevel.foundation.tables import markdown_table

FLOOR = 1e-5  # smaller fractions are drawn here
POWERS = {10**3: "10³", 10**4: "10⁴", 10**5: "10⁵", 10**6: "10⁶"}

PAGE = """# Does the default solve the problem it is given, with noise?

The {number} problems of [the benchmark without noise](solver.md) at ε = 1 and 3 (δ = {delta:g}), on 10³ to 10⁶ lower
and half as many upper records. *Left* is the remaining fraction of $F(x_0) - F^*$, the mean over {seeds} seeds of the
noise: 1 is the starting point, 0 the solution of the non-private reference on the same records.

**The mean falls from 10³ to 10⁶ records in {falls} of {compared[falls]} cases** (a problem at one ε) and rises in
{rises}. **{above} of {compared[above]} means lie above $F(x_0)$.** Of {compared[differs]} comparisons of a
rescaled problem with the original one, {differs} show a difference. Each count is of significant results, at a
family-wise error rate of 5% over all of its cells, adjusted by Holm's method. Means with few and with many records are
compared by permutation tests over seeds, which are exact for any distribution; Welch's t test, which assumes normal
means, finds that {falls_if_normal} fall. The other comparisons are t tests over seeds. Rescaled problems are compared
by the logarithms of the fraction left, with independent noise.
{listed}
![Fraction left against the number of records](solver_private.svg)

{table}

## The paper's double loop

`DPBilevel` with penalty weight, step size, radii and clip norms from certified constants, on the problems of the table
that have them: quadratics in a ball, whose records are declared to have norm at most {norm:g}. It spends the whole
budget, since it returns the model of its last solve, and uses defaults for all other settings.

{double_loop}

## How it was run

All settings are defaults, but the final training, which does not affect x, is skipped: tuning has exactly the budget
that `dpb.solve` would give it. All sizes use the first records of one draw. $F$ and $F^*$ are evaluated on the records
of the run, or on the first {reference:,} if there are more: then the solution on all records also has a positive
fraction left, about 10⁻⁴, and nearly 10⁻² for weights of sources.

Made by `python benchmarks/solver_private.py` ({devices}); page from {made}.
Data seed {data_seed}, noise seeds from {plain} on, for rescaled problems from {rescaled} on; float32.
"""


def means(cells: Cells, name: str, method: str, records: tuple[int, ...]) -> list[str]:
    """A row of the table: the mean of each cell, by epsilon."""
    found = [cells.get(key_of(name, epsilon, number, method)) for epsilon in EPSILONS for number in records]
    return ["" if cell is None else f"{np.mean(cell['left']):.2g}" for cell in found]


def header(records: tuple[int, ...]) -> list[str]:
    """Of that table."""
    return ["problem", *(f"ε = {epsilon:g}, {POWERS[number]}" for epsilon in EPSILONS for number in records)]


def listed(comparison: Comparison, originals: dict[str, str]) -> str:
    """Names of the cells with unwanted results."""
    changes = [f"{name} | {epsilon:g}" for name in originals for epsilon in EPSILONS]
    still = [change for change in changes if change not in comparison.falls + comparison.rises]
    groups = {
        "No significant change with the number of records": still if comparison.compared["falls"] else [],
        "Increases with the number of records": comparison.rises,
        "Above the start": comparison.above,
        "Different from the original problem": comparison.differs,
    }
    lines = [f"- {title}: {'; '.join(map(_in_words, keys))}.\n" for title, keys in groups.items() if keys]
    return "\n" + "".join(lines) if lines else ""


def _in_words(key: str) -> str:
    name, epsilon, *rest = key.split(" | ")
    return f"{name} (ε = {epsilon}{f', {POWERS[int(rest[0])]} records' if rest else ''})"


def draw(cells: Cells, target: Path) -> None:
    """One line per problem, one panel per family and epsilon; rescaled problems are dashed."""
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "solver", "font.size": 8})
    families: dict[str, list[Any]] = {}
    for entry in table():
        families.setdefault(entry.family.__name__.replace("_", " "), []).append(entry)
    figure = Figure(figsize=(11, 5), layout="constrained")
    panels = figure.subplots(len(EPSILONS), len(families), sharex=True, sharey=True)
    for row, epsilon in zip(panels, EPSILONS, strict=True):
        for axes, (family, entries) in zip(row, families.items(), strict=True):
            for index, entry in enumerate(entries):
                found = {n: cells.get(key_of(entry.name, epsilon, n, DEFAULT)) for n in RECORDS}
                shares = {n: max(np.mean(cell["left"]), FLOOR) for n, cell in found.items() if cell is not None}
                style = "-" if entry.name == plain_name(entry) else "--"
                colour = matplotlib.colormaps["viridis"](0.9 * index / max(len(entries) - 1, 1))
                axes.plot(list(shares), list(shares.values()), style, color=colour, linewidth=1, alpha=0.8)
            axes.axhline(1, color="0.4", linewidth=0.8, linestyle=":")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_ylim(FLOOR / 1.5, 3)
            axes.set_title(f"{family}, ε = {epsilon:g}", fontsize=8)
            axes.grid(alpha=0.3)
    figure.supxlabel("lower records", fontsize=9)
    figure.supylabel("remaining fraction of F(x₀) − F*, mean (clipped at 10⁻⁵)", fontsize=9)
    figure.savefig(target, metadata={"Date": None})


def report(results: Path) -> Comparison:
    """Write page and figure from the results."""
    cells = read_cells(results)
    originals = {entry.name: plain_name(entry) for entry in table()}
    comparison = compare(cells, originals, EPSILONS, RECORDS)
    small = tuple(number for number in RECORDS if number < max(RECORDS))
    certified = [name for name in originals if any(means(cells, name, DOUBLE_LOOP, small))]
    rows = [
        [f"{name}, {method}", *means(cells, name, method, small)]
        for name in certified
        for method in (DEFAULT, DOUBLE_LOOP)
    ]
    draw(cells, results.with_suffix(".svg"))
    page = PAGE.format(
        number=len(originals),
        delta=DELTA,
        seeds=" or ".join(map(str, sorted({len(cell["left"]) for cell in cells.values()}))),
        **{name: len(keys) for name, keys in comparison._asdict().items() if name != "compared"},
        compared=comparison.compared,
        listed=listed(comparison, originals),
        table=markdown_table(header(RECORDS), [[name, *means(cells, name, DEFAULT, RECORDS)] for name in originals]),
        norm=RECORD_NORM,
        double_loop=markdown_table(header(small), rows),
        reference=REFERENCE_RECORDS,
        devices=" and ".join(sorted({cell["device"] for cell in cells.values()})),
        made=machine(),
        data_seed=DATA_SEED,
        **NOISE_SEEDS,
    )
    results.with_suffix(".md").write_text(page, encoding="utf-8")
    return comparison
