"""Dot plot of many named numbers, in descending order."""

from typing import TYPE_CHECKING

import numpy as np

from dpbilevel.plot.canvas import drawing, powers
from dpbilevel.plot.style import COLOURS, FAINT, shorten
from dpbilevel.solution.hyperparameters import Hyperparameters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 30  # dots; if there are more values, only the largest and the smallest are drawn


def dots(parameters: Hyperparameters, ax: "Axes | None" = None) -> "Axes":
    """Plot the returned hyperparameters, largest on top; of more than thirty, the fifteen largest and smallest."""
    order = [
        int(column)
        for column in np.argsort(-parameters.values, kind="stable")
        if np.isfinite(parameters.values[column])
    ]
    if len(order) > _MOST:
        order = [*order[: _MOST // 2], *order[-_MOST // 2 :]]
    with drawing(ax, height=0.75 + 0.21 * max(len(order), 2)) as ax:
        values = parameters.values[order]
        base = 0.0
        if parameters.logarithmic:
            ax.set_xscale("log")
            base = float(values.min()) / 1.5 if len(values) and values.min() > 0 else 1e-12
        ax.hlines(range(len(order)), base, values, color=FAINT, linewidth=1, zorder=1)
        ax.plot(values, range(len(order)), "o", color=COLOURS[0], markersize=5, zorder=2)
        ax.set_yticks(range(len(order)), [shorten(parameters.names[column]) for column in order])
        ax.set_ylim(len(order) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.grid(axis="x")
        ax.set_xlabel(parameters.quantity)
        if parameters.logarithmic:
            powers(ax.xaxis)
    return ax
