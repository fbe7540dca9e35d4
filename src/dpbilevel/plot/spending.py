"""Bar chart of the epsilon of every role, divided among its releases."""

from typing import TYPE_CHECKING

from dpbilevel.errors import InvalidArgument
from dpbilevel.plot.canvas import drawable, drawing
from dpbilevel.plot.style import INK, looks, on, shorten
from dpbilevel.solution.solution import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE = 0.09  # fraction of the budget: bars wider than this have room for a percentage


def spend(solution: Solution, ax: "Axes | None" = None) -> "Axes":
    """Plot one bar per role with the length of its epsilon, divided by the cost of its releases (`Privacy.shares`).

    Args:
        solution: the solution of a run with a finite epsilon.
        ax: Axes to draw on; new ones by default.
    """
    privacy = drawable(solution).privacy
    if not privacy.budget.is_private or not privacy.charges:
        raise InvalidArgument("solution: there is no spend to draw: epsilon is infinite, or no record was read")
    roles = list(privacy.charges)
    names = list(dict.fromkeys(charge.release for charges in privacy.charges.values() for charge in charges))
    colours = {name: look["color"] for name, look in zip(names, looks(), strict=False)}
    longest = max(privacy.budget.epsilon, privacy.epsilon())
    with drawing(ax, height=0.95 + 0.5 * len(roles) + 0.2 * -(-len(names) // 2)) as ax:
        for place, role in enumerate(roles):
            left, total = 0.0, privacy.epsilon(role=role)
            for charge, share in zip(privacy.charges[role], privacy.shares(role), strict=True):
                width, colour = share * total, colours[charge.release]
                ax.barh(place, width, left=left, height=0.55, color=colour, linewidth=0)
                if width > _WIDE * longest:
                    ax.text(left + width / 2, place, f"{share:.0%}", color=on(colour), ha="center", va="center")
                left += width
        ax.axvline(privacy.budget.epsilon, color=INK, linewidth=1, linestyle=":")
        for name, colour in colours.items():
            ax.bar(0, 0, color=colour, label=shorten(name, 34))
        ax.set_yticks(range(len(roles)), [f"{role}\n({solution.sizes[role]:,})" for role in roles])
        ax.set_ylim(len(roles) - 0.5, -0.5)
        ax.set_xlim(0, 1.04 * longest)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("ε (dotted: the budget)")
        ax.spines["left"].set_visible(False)
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, borderpad=0)
    return ax
