"""Plot of the hyperparameters' trajectory over rounds, with the returned values."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument
from dpbilevel.plot.canvas import drawable, drawing, powers
from dpbilevel.plot.style import FAINT, INK, looks, shorten
from dpbilevel.solution.hyperparameters import Hyperparameters, hyperparameters
from dpbilevel.solution.solution import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMED = 8  # bundles of lines that get a colour and a name
_DRAWN = 40  # maximum number of grey lines
_ALIKE = 6  # maximum number of lines drawn of a bundle
_POINTS = 240  # maximum number of points of a line
_TOGETHER = 0.025  # fraction of the height: lines that end closer than this share a label
_APART = 0.068  # fraction of the height: distance between labels


@dataclass(frozen=True)
class _Bundle:
    """Lines that end at visually the same height."""

    members: list[int]
    height: float


def trajectory(solution: Solution, ax: "Axes | None" = None) -> "Axes":
    """Plot the released trajectory of every hyperparameter; rings mark the returned values.

    If there are many, the lines that end farthest from the median are coloured and labelled, and the others are grey.

    Args:
        solution: the solution of a method that releases a trajectory, such as `Tracking` or `DPBilevel`.
        ax: Axes to draw on; new ones by default.
    """
    parameters = hyperparameters(drawable(solution))
    if parameters.trajectory is None:
        raise InvalidArgument("solution: its method released no trajectory of x, so there is nothing to draw")
    unordered = "score" in solution.history  # candidates of a search have no order, so no line connects them
    with drawing(ax, height=3.3) as ax:
        rounds = np.arange(1, len(parameters.trajectory) + 1)
        ax.set_yscale("log" if parameters.logarithmic else "linear")
        ax.set_xlim(min(1, len(rounds) - 1), max(len(rounds), 2))
        ax.set_ylim(*_limits(parameters))
        if parameters.logarithmic:
            powers(ax.yaxis)
        at = len(rounds) if parameters.chosen is None else parameters.chosen
        bundles = _bundles(parameters, ax)
        named = _most_distant(bundles)
        others = [column for bundle in bundles if bundle not in named for column in bundle.members]
        for column in others[:: max(1, -(-len(others) // _DRAWN))]:
            _line(ax, rounds, parameters.trajectory[:, column], unordered, color=FAINT, linewidth=0.8, zorder=1.5)
        for bundle, look in zip(named, looks(), strict=False):
            for column in bundle.members[:_ALIKE]:
                _line(ax, rounds, parameters.trajectory[:, column], unordered, zorder=2.5, **look)
                ax.plot(
                    at, parameters.values[column], "o", color=look["color"], fillstyle="none", clip_on=False, zorder=4
                )
        _names(ax, parameters, named)
        if parameters.chosen is not None:
            ax.axvline(parameters.chosen, color=INK, linewidth=0.8, linestyle=":", zorder=1)
        ax.set_title(f"○ returned{'' if parameters.chosen is None else f' (round {parameters.chosen})'}", loc="left")
        ax.set_xlabel("candidate" if unordered else "round")
        ax.set_ylabel(parameters.quantity)
        ax.grid(axis="y")
    return ax


def _line(ax: "Axes", rounds: npt.NDArray[Any], values: npt.NDArray[Any], unordered: bool, **look: Any) -> None:
    step = max(1, -(-len(rounds) // _POINTS))
    indices = sorted({*range(0, len(rounds), step), len(rounds) - 1})
    if unordered or len(rounds) == 1:
        look |= {"linestyle": "none", "marker": "."}
    ax.plot(rounds[indices], values[indices], **look)


def _limits(parameters: Hyperparameters) -> tuple[float, float]:
    """Limits that include all values, with a margin."""
    shown = np.append([] if parameters.trajectory is None else parameters.trajectory, parameters.values)
    shown = shown[np.isfinite(shown) & ((shown > 0) | (not parameters.logarithmic))]
    if not len(shown):
        return (0.1, 10.0) if parameters.logarithmic else (0.0, 1.0)
    scaled = np.log(shown) if parameters.logarithmic else shown
    low, high = float(scaled.min()), float(scaled.max())
    margin = 0.06 * (high - low) or 0.1 * max(abs(high), 1.0)
    limits = np.array([low - margin, high + margin])
    return tuple((np.exp(limits) if parameters.logarithmic else limits).tolist())


def _bundles(parameters: Hyperparameters, ax: "Axes") -> list[_Bundle]:
    """Group columns by the height at which they end, from bottom to top."""
    points = np.column_stack([np.ones_like(parameters.values), parameters.values])
    with np.errstate(all="ignore"):
        heights = ax.transLimits.transform(ax.transScale.transform(points))[:, 1]
    heights = np.clip(np.nan_to_num(heights, nan=0.0, posinf=1.0, neginf=0.0), 0.0, 1.0)
    bundles: list[_Bundle] = []
    for column in np.argsort(heights, kind="stable").tolist():
        height = float(heights[column])
        if bundles and height - bundles[-1].height <= _TOGETHER:
            bundles[-1].members.append(column)
        else:
            bundles.append(_Bundle([column], height))
    return bundles


def _most_distant(bundles: list[_Bundle]) -> list[_Bundle]:
    """The bundles that end farthest from the median, in their original order."""
    middle = float(np.median([bundle.height for bundle in bundles for _ in bundle.members]))
    far = sorted(bundles, key=lambda bundle: -abs(bundle.height - middle))[:_NAMED]
    return [bundle for bundle in bundles if bundle in far]


def _names(ax: "Axes", parameters: Hyperparameters, named: list[_Bundle]) -> None:
    """Label the ends of lines, moving labels apart where they would overlap."""
    for bundle, height in zip(named, _moved_apart([bundle.height for bundle in named]), strict=True):
        first, *others = (parameters.names[column] for column in bundle.members)
        more = f" +{len(others)}" if others else ""
        ax.annotate(
            shorten(first, 20) + more,
            xy=(1.0, bundle.height),
            xytext=(1.05, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 5},
        )


def _moved_apart(heights: list[float]) -> Iterator[float]:
    """Move ascending heights apart: one pass upwards, then one downwards from the top edge."""
    places = list(heights)
    for index in range(1, len(places)):
        places[index] = max(places[index], places[index - 1] + _APART)
    if places and places[-1] > 1.0:
        places[-1] = 1.0
        for index in range(len(places) - 2, -1, -1):
            places[index] = min(places[index], places[index + 1] - _APART)
    yield from places
