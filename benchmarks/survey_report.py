"""The page and the figure of the survey: docs/results/survey.{md,svg}."""

from pathlib import Path

import numpy as np
from pieces import read_cells
from rates import machine
from survey import BASELINE, CONSTANT, DEFAULT, EPSILONS, REFERENCE, SEARCHED
from survey_statistics import CLEARLY, Cell, Comparison, compare, gathered, worst_tenth

from dpbilevel.foundation.tables import markdown_table
from dpbilevel.plot.style import COLOURS, INK, SETTINGS

WORST_DRAWN = 1.25  # of what a constant loses
LOOKS = {
    DEFAULT: ("o", COLOURS[0], "default"),
    SEARCHED: ("|", COLOURS[1], "with a search"),
    BASELINE: ("x", COLOURS[2], "baseline"),
}

PAGE = """# Survey: small data, few and many columns

Estimators with all defaults on {problems} small problems, at ε = {epsilons} with the default δ. Each cell has {seeds}
repetitions: other splits of scikit-learn's data sets, other draws of synthetic problems (rows x columns). What is
declared follows from fixed rules. Losses are test log-losses, or half the squared error over the variance (R² = 1 − 2
loss).

The default spends the whole budget on training, at a penalty that follows from public numbers. *Searched* spends a part
of it on a search for the penalty (`method=dpb.Tracking()`), with the same rows and noise seeds. *Baseline* is
`baselines.ObjectivePerturbation` for two classes and `baselines.AdaSSP` for numbers. *Constant* predicts frequencies or
the mean of the training rows without privacy, *no privacy* is scikit-learn's `LogisticRegressionCV` or `RidgeCV`.

{verdicts}

Tests exchange the losses of default and search within repetitions, at a family-wise error rate of 5% over the
{cells} cells of each test (Holm). A baseline is significantly better than the default in {baseline_better} of
{baselines} cells, and worse in {baseline_worse}.
{listed}
![What is lost of what can be learnt, by problem and ε]({figure})

The figure shows (loss − no privacy)/(constant − no privacy): 0 is scikit-learn without privacy, 1 a constant, and what
is worse than 1.25 is drawn at the edge.

{table}

Mean losses as *default / searched / baseline*; ▼ means that the default is significantly better than a search, ▲
significantly worse, ! that a `UtilityWarning` comes before the charge.

Worst tenths of the runs, *default / searched*:

{tails}

Made by `make bench-survey` (commit {commits}); page from {made}.
Seeds are fixed for reproducibility, so that none of these runs is itself private.
"""


def mean(cell: Cell, method: str) -> str:
    """A mean loss, or nothing."""
    return f"{np.mean(cell.losses[method]):.3f}" if method in cell.losses else "–"


def in_table(key: str, cell: Cell, found: Comparison) -> str:
    """The entry of a cell in the table."""
    sign = " ▲" if key in found.worse else " ▼" if key in found.better else ""
    warned = " !" if cell.warned.any() else ""
    return " / ".join(mean(cell, method) for method in (DEFAULT, SEARCHED, BASELINE)) + sign + warned


def tables(found: Comparison, names: list[str], epsilons: list[float]) -> tuple[str, str]:
    """The table of means, and that of worst tenths."""
    rows, tails = [], []
    for name in names:
        mine = {epsilon: found.cells.get(f"{name} | {epsilon:g}") for epsilon in epsilons}
        there = next(cell for cell in mine.values() if cell is not None)
        entries = ["" if c is None else in_table(f"{name} | {e:g}", c, found) for e, c in mine.items()]
        rows.append([name, mean(there, CONSTANT), mean(there, REFERENCE), *entries])
        worst = [
            "" if c is None else " / ".join(f"{worst_tenth(c.losses[m]):.3f}" for m in (DEFAULT, SEARCHED))
            for c in mine.values()
        ]
        tails.append([name, *worst])
    heads = [f"ε = {epsilon:g}" for epsilon in epsilons]
    return markdown_table(["problem", "constant", "no privacy", *heads], rows), markdown_table(
        ["problem", *heads], tails
    )


def verdicts(found: Comparison) -> str:
    """What is asked of the default, and whether it holds."""

    def line(ok: bool, text: str) -> str:
        return f"- **{'met' if ok else 'missed'}**: {text}"

    worse, tail, number = len(found.worse), len(found.worse_tail), len(found.cells)
    return "\n".join(
        [
            line(
                not found.worse,
                f"mean loss of the default significantly above that of a search in {worse} of {number} cells (below it "
                f"in {len(found.better)}); in none",
            ),
            line(
                not found.worse_tail,
                f"worst tenth of runs significantly more than 2% above that of a search in {tail} cells (the largest "
                f"ratio of two worst tenths is {found.tail:.3f}); in none",
            ),
            line(
                found.unwarned <= 0.01,
                f"{found.unwarned:.1%} of all runs are more than 1% worse than the constant without a warning before "
                f"the charge ({found.worse_than_constant:.1%} with those warned about); at most 1%",
            ),
            line(
                found.false_alarms <= 0.1,
                f"a warning before {found.false_alarms:.1%} of the runs that are at least {1 - CLEARLY:.0%} better "
                "than the constant; at most 10%",
            ),
        ]
    )


def listed(found: Comparison) -> str:
    """Names of the cells with unwanted results."""
    groups = {
        "Worse than a search": found.worse,
        "Worse worst tenth": found.worse_tail,
        "Baseline better": found.baseline_better,
    }
    words = {title: [key.replace(" | ", " (ε = ") + ")" for key in sorted(keys)] for title, keys in groups.items()}
    lines = [f"- {title}: {'; '.join(keys)}.\n" for title, keys in words.items() if keys]
    return "\n" + "".join(lines) if lines else ""


def draw(found: Comparison, names: list[str], epsilons: list[float], target: Path) -> None:
    """One panel per epsilon, one line per problem."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(2.3 + 1.6 * len(epsilons), 1.0 + 0.22 * len(names)), layout="constrained")
        panels = figure.subplots(1, len(epsilons), sharey=True, squeeze=False)[0]
        for axes, epsilon in zip(panels, epsilons, strict=True):
            for place, name in enumerate(names):
                cell = found.cells.get(f"{name} | {epsilon:g}")
                if cell is None:
                    continue
                best, most = (np.mean(cell.losses[method]) for method in (REFERENCE, CONSTANT))
                for method, (marker, colour, _) in LOOKS.items():
                    if method in cell.losses:
                        lost = (np.mean(cell.losses[method]) - best) / (most - best)
                        axes.plot(
                            min(lost, WORST_DRAWN), place, marker, color=colour, markersize=6 if marker == "|" else 4
                        )
            axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
            axes.set_xlim(-0.08, WORST_DRAWN + 0.05)
            axes.set_ylim(len(names) - 0.4, -0.6)
            axes.set_yticks(range(len(names)), names)
            axes.tick_params(axis="y", length=0)
            axes.set_title(f"ε = {epsilon:g}")
            axes.set_xlabel("0: no privacy, 1: constant", fontsize=8)
            axes.grid(alpha=0.3)
        for marker, colour, label in LOOKS.values():
            panels[-1].plot([], [], marker, color=colour, label=label, linestyle="")
        figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.savefig(target, metadata={"Date": None})


def report(out: Path, known: list[str]) -> str:
    """Write page and figure from the results; returns the verdicts."""
    cells = read_cells(out)
    there = {tuple(key.rsplit(" | ", 2)[:2]) for key in cells}
    names = [name for name in known if any(name == mine for mine, _ in there)]
    epsilons = sorted({float(epsilon) for name, epsilon in there if name in names} or EPSILONS)
    found = compare(gathered(cells, names, epsilons))
    table, tails = tables(found, names, epsilons)
    numbers = sorted({len(cell.warned) for cell in found.cells.values()})
    page = PAGE.format(
        problems=len(names),
        epsilons=", ".join(f"{epsilon:g}" for epsilon in epsilons),
        seeds=" or ".join(map(str, numbers)),
        verdicts=verdicts(found),
        cells=len(found.cells),
        baselines=sum(BASELINE in cell.losses for cell in found.cells.values()),
        baseline_better=len(found.baseline_better),
        baseline_worse=len(found.baseline_worse),
        listed=listed(found),
        figure=out.with_suffix(".svg").name,
        table=table,
        tails=tails,
        commits=", ".join(sorted({cell["commit"] for cell in cells.values()})),
        made=machine(),
    )
    out.with_suffix(".md").write_text(page, encoding="utf-8")
    draw(found, names, epsilons, out.with_suffix(".svg"))
    return verdicts(found)
