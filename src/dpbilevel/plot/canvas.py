"""Axes for plots. New Axes get their own figure, so no plot changes the state of pyplot."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.extras import needing
from dpbilevel.plot.style import SETTINGS, WIDTH
from dpbilevel.plot.svg import inline_svg
from dpbilevel.solution.solution import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@contextlib.contextmanager
def drawing(ax: "Axes | None", height: float, width: float = WIDTH) -> Iterator["Axes"]:
    """Context with Axes in the library's style: the given ones, or new ones on their own figure."""
    with needing("plot", "plot"):
        import matplotlib
        from matplotlib.axes import Axes
        from matplotlib.figure import Figure

    if not (ax is None or isinstance(ax, Axes)):
        raise InvalidArgument(f"ax: must be Axes of matplotlib or None, not {type(ax).__name__}")
    with matplotlib.rc_context(SETTINGS):
        if ax is None:
            ax = Figure(figsize=(width, height), layout="constrained").subplots()
            made: Any = ax
            show_in_notebooks(made, made.figure, lambda: made.get_title() or _axes_words(made))
        yield ax
        for axis in (ax.xaxis, ax.yaxis):
            for label in axis.get_ticklabels():  # column names may contain dollar signs
                label.set_parse_math(False)


def drawable(solution: Any) -> Solution:
    """Return ``solution``; raise if it is not a Solution."""
    if not isinstance(solution, Solution):
        raise InvalidArgument(f"solution: must be what dpb.solve returns, not {type(solution).__name__}")
    return solution


def powers(axis: "Axis") -> None:
    """Set the ticks of a logarithmic axis, as many as fit, labelled as powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low)
    steps = (1.0,) if decades > 1.3 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=steps) if decades > 0.7 else MaxNLocator(4))
    axis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
    axis.set_minor_formatter(NullFormatter())


def power(value: float) -> str:
    """Format a positive number as a tick label.

    >>> power(0.01), power(1e-5), power(2e-5), power(6.15e-6)
    ('0.01', '10⁻⁵', '2·10⁻⁵', '6.15·10⁻⁶')
    """
    if value <= 0 or 1e-3 <= value < 1e4:
        return f"{value:.3g}"
    digits, exponent = f"{value:.2e}".split("e")
    digits = f"{float(digits):g}"
    return ("" if digits == "1" else f"{digits}·") + "10" + str(int(exponent)).translate(_RAISED)


def show_in_notebooks(made: Any, figure: Any, title: Callable[[], str], width: int = 40) -> None:
    """Let notebooks display what a function returns, with its title for readers who cannot see it."""

    def shown() -> str:
        picture = inline_svg(figure, name=f"plot-{id(made):x}", title=title(), description="")
        return f'<div style="max-width: {width}rem; color: var(--jp-content-font-color1, inherit)">{picture}</div>'

    made._repr_html_ = shown  # notebooks display pyplot figures only


def _axes_words(ax: Any) -> str:
    return f"{ax.get_ylabel()} against {ax.get_xlabel()}"
