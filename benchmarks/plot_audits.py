"""Plot of the lower bounds of audits and the claims."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plot_results import Results, parse

from dpbilevel.audit.verdict import Audit
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import in_the_form_of
from dpbilevel.plot.canvas import drawing
from dpbilevel.plot.style import COLOURS, FAINT, INK, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EXAMPLE = "docs/results/audits.json"
_PROVED, _CLAIMED = COLOURS[0], COLOURS[1]


@in_the_form_of("results", _EXAMPLE)
def audits(results: Results | Sequence[Audit], ax: "Axes | None" = None) -> "Axes":
    """For each audit the lower bound on epsilon (a dot), the most that its attack can prove (a line), and the claim.

    A dot to the right of its claim would refute it. If a line ends beyond the claim, more runs could prove more.

    Args:
        results: docs/results/audits.json or its content, or a list of results of `dpbilevel.audit.audit`.
        ax: Axes to draw on; new ones by default.
    """
    shown = _audits(results)
    claims = [audit.claimed for audit in shown]
    farthest = 1.5 * max(claims)
    with drawing(ax, height=1.1 + 0.2 * len(shown)) as ax:
        for place, audit in enumerate(shown):
            end = min(audit.upper_bound, farthest) if math.isfinite(audit.upper_bound) else farthest
            ax.hlines(place, audit.lower_bound, max(end, audit.lower_bound), color=FAINT, linewidth=1.4, zorder=1)
        lower, reach = [audit.lower_bound for audit in shown], [audit.reach for audit in shown]
        look: dict[str, Any] = {"linestyle": "none", "zorder": 2}
        ax.plot(lower, range(len(shown)), marker="o", markersize=5, color=_PROVED, label="lower bound on ε", **look)
        ax.plot(
            reach,
            range(len(shown)),
            marker="|",
            markersize=9,
            color=INK,
            label="attainable with this many runs",
            **look,
        )
        ax.plot(claims, range(len(shown)), marker="D", markersize=4, color=_CLAIMED, label="claimed", **look)
        ax.plot([], [], color=FAINT, linewidth=1.4, label="upper limit of this attack")
        ax.set_yticks(range(len(shown)), [shorten(audit.name, 44) for audit in shown])
        ax.set_ylim(len(shown) - 0.4, -0.6)
        ax.set_xlim(-0.02 * farthest, farthest)
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.grid(axis="x")
        ax.set_xlabel("ε")
        ax.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    return ax


def _audits(results: Results | Sequence[Audit]) -> list[Audit]:
    if isinstance(results, Sequence) and not isinstance(results, str):
        if not results or not all(isinstance(audit, Audit) for audit in results):
            raise InvalidArgument("results: must be a non-empty list of results of dpbilevel.audit.audit")
        return list(results)
    return [Audit.from_json(entry) for entry in parse(results, "audits", _EXAMPLE)["audits"]]
