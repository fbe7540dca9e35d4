"""Plot of the fraction of the tuning gap that methods close, as a function of epsilon."""

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plot_results import Results, parse

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import in_the_form_of
from dpbilevel.plot.canvas import drawing
from dpbilevel.plot.style import INK, looks, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EXAMPLE = "docs/results/utility.json"
UNTUNED, BAD_START, ORACLE, OURS = "untuned", "bad start", "oracle", "tracking"
_LEAST_GAP = 0.02  # relative to the untuned loss: tasks with a smaller gap are not counted
_LOWEST = -0.25  # lower end of the axis

Losses = dict[str, list[float]]  # losses of repetitions by task


@in_the_form_of("results", _EXAMPLE)
def epsilon_utility(results: Results, ax: "Axes | None" = None) -> "Axes":
    """The median over tasks of (untuned - method)/(untuned - oracle), from mean losses, as a function of epsilon.

    Where tuning starts badly, training at that start takes the place of untuned.

    Only repetitions that all three have are used, and only tasks on which the oracle gains at least 2%. Not all methods
    ran on all tasks; each curve is the median over the tasks on which its method ran.

    Args:
        results: docs/results/utility.json, or its content.
        ax: Axes to draw on; new ones by default.
    """
    outcomes = list(parse(results, "results", _EXAMPLE)["results"].values())
    epsilons = sorted({outcome["epsilon"] for outcome in outcomes})
    ran = {outcome["method"] for outcome in outcomes} - {UNTUNED, BAD_START, ORACLE}
    methods = sorted(ran, key=lambda name: (name != OURS, name))
    curves = {method: _curve(outcomes, method, epsilons) for method in methods}
    curves = {method: curve for method, curve in curves.items() if curve}
    if not curves:
        raise InvalidArgument("results: must have at least one task with untuned, oracle and another method")
    with drawing(ax, height=4.2) as ax:
        for (method, curve), look in zip(curves.items(), looks(), strict=False):
            look |= {"marker": "o", "markersize": 4, "linewidth": 2.6 if method == OURS else 1.4}
            ax.plot(list(curve), list(curve.values()), label=shorten(method), **look)
        ax.axhline(1.0, color=INK, linewidth=0.8)
        ax.axhline(0.0, color=INK, linewidth=0.8, linestyle=":")
        ax.set_xscale("log")
        ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        ax.minorticks_off()
        ax.set_ylim(_LOWEST, 1.1)
        ax.set_xlabel("ε in total")
        ax.set_ylabel("gap closed, median over tasks")
        ax.grid(axis="y")
        ax.legend(loc="upper left", bbox_to_anchor=(0.0, -0.16), ncols=2)
    return ax


def _curve(outcomes: list[Mapping[str, Any]], method: str, epsilons: list[float]) -> dict[float, float]:
    found = {}
    for epsilon in epsilons:
        cells: dict[str, dict[str, dict[int, float]]] = {}
        for outcome in outcomes:
            if outcome["epsilon"] == epsilon and outcome["method"] in (UNTUNED, BAD_START, method, ORACLE):
                cell = cells.setdefault(outcome["task"], {}).setdefault(outcome["method"], {})
                cell[outcome["seed"]] = outcome["test_loss"]
        gaps = [_gap(cell, method) for cell in cells.values()]
        counted = [gap for gap in gaps if gap is not None]
        if counted:
            found[epsilon] = statistics.median(counted)
    return found


def _gap(cell: Mapping[str, Mapping[int, float]], method: str) -> float | None:
    first = BAD_START if BAD_START in cell else UNTUNED
    if not {first, method, ORACLE} <= set(cell):
        return None
    everywhere = set(cell[first]) & set(cell[ORACLE])
    before, best = (statistics.fmean(cell[name].values()) for name in (first, ORACLE))
    seeds = sorted(everywhere & set(cell[method]))
    if not seeds or before - best < _LEAST_GAP * before:
        return None
    untuned, ours, oracle = (statistics.fmean(cell[name][seed] for seed in seeds) for name in (first, method, ORACLE))
    return (untuned - ours) / (untuned - oracle)
