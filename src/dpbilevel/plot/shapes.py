"""Plots of shape functions: the effect of a column with a band of two standard deviations of known noise."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbilevel.encoding.axes import Axis
from dpbilevel.encoding.terms import DATES, NAMES
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.extras import needing
from dpbilevel.plot.canvas import drawing, show_in_notebooks
from dpbilevel.plot.style import FAINT, SETTINGS, looks, shorten
from dpbilevel.solution.shapes import Shape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE, HIGH = 3.2, 2.3  # inches: of one small plot
_BAND = 2.0  # standard deviations
_APART = 0.15  # the least distance of two numbers on an axis, as a part of it
_TICKS = 4  # numbers or dates named on an axis
_MOST_NAMES, _MOST_LINES = 12, 8
_LONGEST = 16  # characters of a category
_ACROSS = 3


def shape(own: Shape, ax: "Axes | None" = None, *, outputs: Sequence[str] = (), unit: str = "effect") -> "Axes":
    """Plot the effect of one column, with a band of two standard deviations by the noise of training.

    Args:
        own: one of ``shapes_`` of a fitted model.
        ax: Axes to draw on; new ones by default.
        outputs: names of the outputs, if there are several.
        unit: the label of the vertical axis, such as "log-odds".
    """
    if not isinstance(own, Shape):
        raise InvalidArgument(f"own: must be one of the shapes_ of a fitted model, not {type(own).__name__}")
    few = own.scale == NAMES and len(own.points) > _MOST_NAMES
    chosen = _largest(own) if few else np.arange(len(own.points))
    with drawing(ax, height=_height(own), width=WIDE) as ax:
        ax.axhline(0.0, color=FAINT, linewidth=0.8, zorder=1) if own.scale != NAMES else ax.axvline(
            0.0, color=FAINT, linewidth=0.8, zorder=1
        )
        several = len(own.effect) > 1
        for number, (effect, look) in enumerate(zip(own.effect[:_MOST_LINES], looks(), strict=False)):
            error = None if own.error is None else _BAND * own.error
            label = shorten(str(outputs[number]), 18) if several and number < len(outputs) else None
            if own.scale == NAMES:
                _categories(ax, effect[chosen], None if error is None else error[chosen], look["color"], label)
            else:
                _curve(ax, own, effect, error, look, label)
        if own.scale == NAMES:
            ax.set_yticks(range(len(chosen)), _different(list(map(str, own.points[chosen]))))
            ax.set_ylim(len(chosen) - 0.5, -0.5)
            ax.tick_params(axis="y", length=0)
            ax.set_xlabel(unit)
            ax.locator_params(axis="x", nbins=_TICKS)
            ax.grid(axis="x")
        else:
            _ticks(ax, own)
            ax.set_ylabel(unit)
            ax.grid(axis="y")
        ax.set_title(shorten(own.name, 34) + (f" ({len(chosen)} of {len(own.points)})" if few else ""), loc="left")
        if several and len(outputs) > 1:
            ax.legend(loc="best", fontsize=8)
    return ax


def shapes(made: Any, *, unit: str | None = None) -> Any:
    """Plot the effects of all columns of a fitted model, those of the largest effect first; returns the figure.

    Args:
        made: a fitted `DPLogisticRegressionCV` or `DPRidgeCV` on rows of a `BoundedEncoder`, or its ``shapes_``.
        unit: the unit of effects; "log-odds" for classes by default.

    >>> dpb.plot.shapes(model).savefig("shapes.svg")  # doctest: +SKIP
    """
    own = getattr(made, "shapes_", made)
    if not isinstance(own, list | tuple) or not own or not all(isinstance(one, Shape) for one in own):
        raise InvalidArgument(
            "made: must be a fitted linear estimator with shapes_, or these; it has them if its rows come from a "
            "BoundedEncoder"
        )
    classes = list(map(str, getattr(made, "classes_", ())))
    return drawn_shapes(own, classes, unit or ("log-odds" if classes else "effect"))


def drawn_shapes(own: Sequence[Shape], outputs: Sequence[str], unit: str) -> Any:
    """A figure with a small plot for each shape, those of the largest effect first."""
    with needing("plot", "plot"):
        import matplotlib
        from matplotlib.figure import Figure
    ordered = sorted(own, key=lambda one: -one.size)
    down = -(-len(ordered) // _ACROSS)
    across = min(len(ordered), _ACROSS)
    rows = [ordered[first : first + across] for first in range(0, len(ordered), across)]
    heights = [max(map(_height, row)) for row in rows]
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDE * across, sum(heights)), layout="constrained")
        axes = figure.subplots(down, across, squeeze=False, height_ratios=heights)
        for place, ax in enumerate(axes.ravel()):
            if place < len(ordered):
                shape(ordered[place], ax, outputs=outputs, unit=unit)
            else:
                ax.set_visible(False)
    show_in_notebooks(figure, figure, lambda: f"Effects of {', '.join(one.name for one in ordered)}", width=60)
    return figure


def _height(own: Shape) -> float:
    return HIGH if own.scale != NAMES else max(1.2, 0.8 + 0.22 * min(len(own.points), _MOST_NAMES))


def _largest(own: Shape) -> Any:
    """The categories of the largest effects, in their order."""
    return np.sort(np.argsort(-np.abs(own.effect).max(axis=0), kind="stable")[:_MOST_NAMES])


def _different(names: list[str]) -> list[str]:
    """Names of at most 16 characters: their beginnings, or beginning and end if beginnings are alike.

    >>> _different(["Master of Arts and Science", "Master of Arts and Letters"])
    ['Master… Science', 'Master… Letters']
    """
    short = [shorten(name, _LONGEST) for name in names]
    if len(set(short)) == len(names):
        return short
    half = _LONGEST // 2
    return [name if len(name) <= _LONGEST else f"{shorten(name, half)}{shorten(name, 200)[-half:]}" for name in names]


def _curve(ax: "Axes", own: Shape, effect: Any, error: Any, look: Any, label: str | None) -> None:
    if error is not None:
        ax.fill_between(own.places, effect - error, effect + error, color=look["color"], alpha=0.22, linewidth=0)
    ax.plot(own.places, effect, label=label, **look)


def _categories(ax: "Axes", effect: Any, error: Any, colour: str, label: str | None) -> None:
    places = np.arange(len(effect))
    ax.plot(effect, places, "o", color=colour, markersize=4, label=label)
    if error is not None:
        ax.hlines(places, effect - error, effect + error, color=colour, alpha=0.5, linewidth=2)


def _ticks(ax: "Axes", own: Shape) -> None:
    """A few of the points on their declared scale, with their values in units of the column."""
    if own.scale == "linear":
        from matplotlib.ticker import MaxNLocator

        low, high = float(own.points[0]), float(own.points[-1])
        start, end = float(own.places[0]), float(own.places[-1])
        whole = bool(np.all(own.points == np.round(own.points)))
        values = [
            value
            for value in MaxNLocator(_TICKS, integer=whole, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
            if low <= value <= high
        ]
        places = [start + (value - low) / (high - low) * (end - start) for value in values]
        ax.set_xticks(places, [_short(value) for value in values])
        return
    if own.scale != DATES and own.places[0] == 0 and own.places[-1] == 1:  # points span the declared range
        axis = Axis(float(own.points[0]), float(own.points[-1]), own.scale)
        values = _round_numbers(axis)
        ax.set_xticks(axis.places(values), [_short(value) for value in values])
        return
    at = np.unique(np.linspace(0, len(own.points) - 1, _TICKS).round().astype(int))
    names = [str(own.points[one].astype("datetime64[D]")) for one in at] if own.scale == DATES else []
    ax.set_xticks(own.places[at], names or [_short(float(own.points[one])) for one in at])
    if own.scale == DATES:
        ax.set_xticks(own.places[at[[0, -1]]], [names[0], names[-1]])


def _round_numbers(axis: Axis) -> list[float]:
    """The ends of a range, and round numbers between, the roundest first, that are far enough apart on its axis.

    >>> _round_numbers(Axis(1.0, 60.0, "log")), _round_numbers(Axis(0.0, 99_999.0, "log"))
    ([1.0, 3.0, 10.0, 30.0, 60.0], [0.0, 200.0, 1000.0, 10000.0, 30000.0, 99999.0])
    """
    kept = [axis.low, axis.high]
    powers = [10.0**power for power in range(-9, 13)]
    for value in [digit * power for digit in (1, 3, 5, 2) for power in powers]:
        distances = np.abs(axis.places(kept) - axis.places(value))
        if axis.low < value < axis.high and distances.min() >= _APART:
            kept.append(value)
    return sorted(kept)


def _short(value: float) -> str:
    """A number as a tick label.

    >>> _short(99_999.0), _short(0.25), _short(2_500_000.0), _short(0.0)
    ('100k', '0.25', '2.5M', '0')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "")):
        if abs(value) >= size and letter:
            return f"{value / size:.3g}{letter}"
    return f"{value / 1e3:.3g}k" if abs(value) >= 1e4 else f"{value:.3g}" if abs(value) < 1e3 else f"{value:.0f}"
