"""Plot of measured rates on logarithmic axes, with the exponents of the theorems."""

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from plot_results import Results, parse

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import in_the_form_of, one_of
from dpbilevel.plot.canvas import drawing
from dpbilevel.plot.style import looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EXAMPLE = "docs/results/rates.json"
AGAINST = {"n": "records n", "epsilon": "ε (δ = 1e-6)", "d_": "dimension", "batch": "outer batch b_out"}
_HIDDEN = ("x_out, F_P", "trajectory rms")  # would overlap other lines


@in_the_form_of("results", _EXAMPLE)
def rates(results: Results, ax: "Axes | None" = None, against: str = "n") -> "Axes":
    """Geometric means over seeds with their spread, and fitted lines.

    Dashed: the exponent of the theorem; dotted: that of the paper, if it differs.

    Args:
        results: docs/results/rates.json, or its content.
        ax: Axes to draw on; new ones by default.
        against: the quantity that varies: "n", "epsilon", "d_" (a dimension) or "batch".
    """
    one_of("against", against, tuple(AGAINST), "it is the quantity that varies")
    experiments = parse(results, "experiments", _EXAMPLE)["experiments"]
    shown = [r for r in experiments if r["against"].startswith(against) and r["metric"] not in _HIDDEN]
    if not shown:
        raise InvalidArgument(f"results: have no experiment against {against!r}")
    with drawing(ax, height=3.4 + 0.18 * len(shown)) as ax:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        for result, look in zip(shown, looks(), strict=False):
            colour = look["color"]
            points, logs = np.array(result["grid"]), np.log(result["values"])
            centred, mean = np.log(points) - np.log(points).mean(), logs.mean(axis=1)
            spread = np.exp(mean) * np.abs(np.expm1(np.outer([-1, 1], logs.std(axis=1))))
            ax.errorbar(points, np.exp(mean), spread, fmt="o", markersize=4, capsize=2.5, color=colour)
            slope, bound = result["exponent"][0], result["bound"]
            name = f"{result['name']}, {result['metric']}: {slope:.2f} ({bound})"
            for style, exponent in (("-", slope), ("--", bound), (":", result["printed"] or bound)):
                line, solid = np.exp(mean.mean() + float(Fraction(exponent)) * centred), style == "-"
                ax.plot(points, line, style, color=colour, label=name if solid else None, alpha=1 if solid else 0.6)
        ax.set(xscale="log", yscale="log", xlabel=AGAINST[against], ylabel="projected hypergradient norm")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        ax.grid(True)
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    return ax
