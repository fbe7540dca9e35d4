"""The trajectory of the hyperparameters, round by round, with what was returned in the end."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument
from dpbilevel.plot.canvas import drawable, drawing, powers
from dpbilevel.plot.style import FAINT, INK, looks, shortened
from dpbilevel.solution.hyperparameters import Hyperparameters, hyperparameters
from dpbilevel.solution.solution import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TOLD = 8  # bundles of lines that get a colour and a name
_DRAWN = 40  # grey lines at most
_ALIKE = 6  # lines of a bundle at most
_POINTS = 240  # of a line at most
_TOGETHER = 0.025  # of the height: lines that end closer than this are named together
_APART = 0.068  # of the height: distance of names


@dataclass(frozen=True)
class _Bundle:
    """Lines that end at the same height, to the eye."""

    members: list[int]
    height: float


def trajectory(solution: Solution, ax: "Axes | None" = None) -> "Axes":
    """The released trajectory of every hyperparameter; rings mark what was returned.

    Where there are many, those that end farthest from the middle have a colour and a name, the others are grey.

    Args:
        solution: of a method that releases a trajectory, as `Tracking` and `DPBilevel` do.
        ax: Axes to draw on; new ones by default.
    """
    told = hyperparameters(drawable(solution))
    if told.trajectory is None:
        raise InvalidArgument("solution: its method released no trajectory of x, so that there is nothing to draw")
    tried = "score" in solution.history  # candidates have no order: no line leads from one to the next
    with drawing(ax, height=3.3) as ax:
        rounds = np.arange(1, len(told.trajectory) + 1)
        ax.set_yscale("log" if told.logarithmic else "linear")
        ax.set_xlim(min(1, len(rounds) - 1), max(len(rounds), 2))
        ax.set_ylim(*_limits(told))
        if told.logarithmic:
            powers(ax.yaxis)
        at = len(rounds) if told.chosen is None else told.chosen
        bundles = _bundles(told, ax)
        named = _most_telling(bundles)
        others = [column for bundle in bundles if bundle not in named for column in bundle.members]
        for column in others[:: max(1, -(-len(others) // _DRAWN))]:
            _line(ax, rounds, told.trajectory[:, column], tried, color=FAINT, linewidth=0.8, zorder=1.5)
        for bundle, look in zip(named, looks(), strict=False):
            for column in bundle.members[:_ALIKE]:
                _line(ax, rounds, told.trajectory[:, column], tried, zorder=2.5, **look)
                ax.plot(at, told.values[column], "o", color=look["color"], fillstyle="none", clip_on=False, zorder=4)
        _names(ax, told, named)
        if told.chosen is not None:
            ax.axvline(told.chosen, color=INK, linewidth=0.8, linestyle=":", zorder=1)
        ax.set_title(f"○ returned{'' if told.chosen is None else f' (round {told.chosen})'}", loc="left")
        ax.set_xlabel("candidate" if tried else "round")
        ax.set_ylabel(told.quantity)
        ax.grid(axis="y")
    return ax


def _line(ax: "Axes", rounds: npt.NDArray[Any], values: npt.NDArray[Any], tried: bool, **look: Any) -> None:
    step = max(1, -(-len(rounds) // _POINTS))
    kept = sorted({*range(0, len(rounds), step), len(rounds) - 1})
    if tried or len(rounds) == 1:
        look |= {"linestyle": "none", "marker": "."}
    ax.plot(rounds[kept], values[kept], **look)


def _limits(told: Hyperparameters) -> tuple[float, float]:
    """All values, with a little air."""
    shown = np.append([] if told.trajectory is None else told.trajectory, told.values)
    shown = shown[np.isfinite(shown) & ((shown > 0) | (not told.logarithmic))]
    if not len(shown):
        return (0.1, 10.0) if told.logarithmic else (0.0, 1.0)
    scaled = np.log(shown) if told.logarithmic else shown
    low, high = float(scaled.min()), float(scaled.max())
    air = 0.06 * (high - low) or 0.1 * max(abs(high), 1.0)
    limits = np.array([low - air, high + air])
    return tuple((np.exp(limits) if told.logarithmic else limits).tolist())


def _bundles(told: Hyperparameters, ax: "Axes") -> list[_Bundle]:
    """Columns by the height at which they end, from the bottom to the top."""
    points = np.column_stack([np.ones_like(told.values), told.values])
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


def _most_telling(bundles: list[_Bundle]) -> list[_Bundle]:
    """Those that end farthest from the middle of all, in their order."""
    middle = float(np.median([bundle.height for bundle in bundles for _ in bundle.members]))
    far = sorted(bundles, key=lambda bundle: -abs(bundle.height - middle))[:_TOLD]
    return [bundle for bundle in bundles if bundle in far]


def _names(ax: "Axes", told: Hyperparameters, named: list[_Bundle]) -> None:
    """Beside the ends of lines, moved apart where they would meet."""
    for bundle, height in zip(named, _moved_apart([bundle.height for bundle in named]), strict=True):
        first, *others = (told.names[column] for column in bundle.members)
        more = f" +{len(others)}" if others else ""
        ax.annotate(
            shortened(first, 20) + more,
            xy=(1.0, bundle.height),
            xytext=(1.05, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 5},
        )


def _moved_apart(heights: list[float]) -> Iterator[float]:
    """Heights in ascending order, moved as little as a push from below and one from above can."""
    places = list(heights)
    for index in range(1, len(places)):
        places[index] = max(places[index], places[index - 1] + _APART)
    if places and places[-1] > 1.0:
        places[-1] = 1.0
        for index in range(len(places) - 2, -1, -1):
            places[index] = min(places[index], places[index + 1] - _APART)
    yield from places
