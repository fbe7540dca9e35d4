"""The page and the figure of the utility benchmark: docs/results/utility.{md,svg}, from its results."""

import math
import statistics
from dataclasses import asdict, replace
from pathlib import Path

from utility_methods import BAD_START, ORACLE, OURS, UNTUNED
from utility_results import DELTA, LEAST_GAP, Results, Table, estimated, verdicts

from dpbilevel.foundation.tables import markdown_table

PAGE = """# Utility: how much of the tuning gap each method closes

Made by `python benchmarks/utility.py`; tasks are in `benchmarks/tasks.py`. Every method spends the same ε in total at
δ = {delta:g}, replace-one, with one set of settings for all tasks, independent of the task. All of them train as the
default does (`Refit`). *Untuned* trains with the whole budget at what people would use: equal weights, or the default
penalty of scikit-learn, C = 1. *Oracle* trains with the whole budget at hyperparameters that are known or were found
without privacy, and to the limit: its training is chosen on test data, among the default's, objective perturbation (the
exact minimiser for one release of noise) and up to 1,500 steps of Adam. It is an upper bound, not a method. Each
repetition draws new splits, corruption and noise; {repetitions} (seeds {first} to {last}). Noise has fixed seeds for
reproducibility, so that none of these runs is itself private.

Gap closed = (untuned − method)/(untuned − oracle). On tasks with a penalty per group or column, tuning starts at
penalties that nobody would choose, such as e⁻³: a **bad start**. There the gap is that from training at this start, and
shows how well a method finds its way back. What users gain is in the tables of gains over untuned.

Cells: mean ± half-width of the 95% interval (worst repetition). Tasks on which the oracle gains less than {least:.0%}
are not counted: their losses are marked †.

## Targets

{targets}

{gaps}

{gains}

![Gap closed by task and method]({figure})

{losses}

## Cost

Median over tasks, repetitions and ε of the passes over the data (each use of a release reads its records once) and of
the wall time in seconds (including compilation, if needed; devices: {devices}).

{costs}

Commits: {commits}.
"""


def report(results: Results, target: Path) -> None:
    """Write the page and the figure from the results."""
    table = Table(results)
    gaps, gains, losses = [], [], []
    for epsilon in table.epsilons:
        gaps += [f"## Gap closed at ε = {epsilon:g}", "", _gap_table(table, epsilon), ""]
        gains += [
            f"## Gain over untuned at ε = {epsilon:g}, in percent of its loss",
            "",
            _gain_table(table, epsilon),
            "",
        ]
        losses += [f"## Test loss and accuracy at ε = {epsilon:g}", "", _loss_table(table, epsilon), ""]
    counts = sorted({len(cell) for cell in table.cells.values()})
    page = PAGE.format(
        delta=DELTA,
        repetitions=f"{counts[0]} per cell" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} per cell",
        first=min(outcome["seed"] for outcome in results.values()),
        last=max(outcome["seed"] for outcome in results.values()),
        least=LEAST_GAP,
        figure=target.with_suffix(".svg").name,
        targets=markdown_table(["target", "measured", ""], verdicts(table)),
        gaps="\n".join(gaps).strip(),
        gains="\n".join(gains).strip(),
        losses="\n".join(losses).strip(),
        costs=_cost_table(table),
        devices=", ".join(sorted({outcome["device"] for outcome in results.values()})),
        commits=", ".join(sorted({outcome["commit"] for outcome in results.values()})),
    )
    target.with_suffix(".md").write_text(page, encoding="utf-8")
    _figure(table, target.with_suffix(".svg"))


def _label(table: Table, task: str, epsilon: float) -> str:
    return task if table.counted(task, epsilon) else f"{task} †"


def _gap_table(table: Table, epsilon: float) -> str:
    methods = [method for method in table.methods if method not in (UNTUNED, BAD_START, ORACLE)]
    rows = []
    for task in table.tasks:
        if table.counted(task, epsilon):  # a fraction of a tiny gap is meaningless; losses are shown below
            found = [table.gap(task, method, epsilon) for method in methods]
            name = f"{task} (bad start)" if table.before(task, epsilon) == BAD_START else task
            rows.append([name, *("" if gap is None else str(gap) for gap in found)])
    medians = [table.median_gap(method, epsilon) for method in methods]
    rows.append(["median of counted tasks", *("" if median is None else f"{median:.3f}" for median in medians)])
    return markdown_table(["task", *methods], rows)


def _gain_table(table: Table, epsilon: float) -> str:
    methods = [method for method in table.methods if method not in (UNTUNED, BAD_START)]
    rows = []
    for task in table.tasks:
        found = [table.gain(task, method, epsilon) for method in methods]
        percent = [
            None if gain is None else replace(gain, **{k: 100 * v for k, v in asdict(gain).items()}) for gain in found
        ]
        rows.append([task, *("" if gain is None else gain.text(1) for gain in percent)])
    return markdown_table(["task", *methods], rows)


def _loss_table(table: Table, epsilon: float) -> str:
    rows = []
    for task in table.tasks:
        cells = []
        for method in table.methods:
            losses, accuracies = (table.values(task, method, epsilon, field) for field in ("test_loss", "accuracy"))
            cells.append(f"{estimated(losses).text(4)}; {statistics.fmean(accuracies):.3f}" if losses else "")
        rows.append([_label(table, task, epsilon), *cells])
    return markdown_table(["task", *table.methods], rows)


def _cost_table(table: Table) -> str:
    rows = []
    for method in table.methods:
        mine = [o for (_, name, _), cell in table.cells.items() if name == method for o in cell.values()]
        medians = [statistics.median(outcome[field] for outcome in mine) for field in ("passes", "wall_seconds")]
        rows.append([method, f"{medians[0]:,.0f}", f"{medians[1]:.1f}"])
    return markdown_table(["method", "passes", "seconds"], rows)


def _figure(table: Table, target: Path) -> None:
    import matplotlib  # imported only here: running the benchmark does not need it

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    methods = [method for method in table.methods if method not in (UNTUNED, BAD_START, ORACLE)]
    methods = [*(method for method in methods if method != OURS), *(method for method in methods if method == OURS)]
    size = (4.2 * len(table.epsilons) + 1, 0.42 * len(table.tasks) + 1.8)
    with plt.rc_context({"svg.hashsalt": "utility"}):  # identical figures for identical results
        figure, panels = plt.subplots(
            1, len(table.epsilons), figsize=size, sharey=True, squeeze=False, layout="constrained"
        )
        for epsilon, axes in zip(table.epsilons, panels[0], strict=True):
            for at, method in enumerate(methods):
                found = [(row, table.gap(task, method, epsilon)) for row, task in enumerate(table.tasks)]
                shown = [
                    (row, gap) for row, gap in found if gap is not None and table.counted(table.tasks[row], epsilon)
                ]
                heights = [row + 0.6 * ((at + 0.5) / len(methods) - 0.5) for row, _ in shown]
                widths = [0 if math.isnan(gap.half_width) else gap.half_width for _, gap in shown]
                means = [gap.mean for _, gap in shown]
                look = {"color": "black", "markersize": 6, "zorder": 3} if method == OURS else {"markersize": 4}
                axes.errorbar(means, heights, xerr=widths, fmt="o", linewidth=1, label=method, **look)
            for row in range(1, len(table.tasks)):
                axes.axhline(row - 0.5, color="lightgrey", linewidth=0.5)
            axes.axvline(1, color="grey", linewidth=0.8)
            axes.axvline(0, color="grey", linewidth=0.8, linestyle=":")
            axes.set(title=f"ε = {epsilon:g}", xlabel="gap closed (below -0.25: not shown)", xlim=(-0.25, 1.1))
            axes.set_yticks(range(len(table.tasks)), table.tasks)
        panels[0][0].invert_yaxis()
        figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=max(1, len(methods)))
        figure.savefig(target, metadata={"Date": None})
        plt.close(figure)
