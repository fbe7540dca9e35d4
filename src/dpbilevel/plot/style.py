"""The common style of all plots: legible on light and dark pages, and for colour-blind readers.

Four hues of Okabe and Ito's palette have a contrast of three or more on white and on near-black pages. Not every reader
could distinguish a fifth, so the line style changes instead. Text is a grey that is legible on both pages. Backgrounds
are transparent.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from dpbilevel.foundation.tables import visible

INK = "#757575"  # text and axes
FAINT = "#a3a3a3"  # grids and secondary lines
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # blue, vermilion, bluish green, reddish purple
DASHES = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
WIDTH = 5.4  # inches: ten-point text stays legible on a phone

SETTINGS: Any = {
    "axes.edgecolor": FAINT,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "grid.color": FAINT,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.7,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",  # text stays text for screen readers, search and copying
    "svg.hashsalt": "dpbilevel",  # the same plot gives the same bytes
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a column name is literal
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 9,
}


def looks() -> Iterator[dict[str, Any]]:
    """Colours and line styles in order: all colours solid, then all colours dashed."""
    for dashes in itertools.cycle(DASHES):
        for colour in COLOURS:
            yield {"color": colour, "linestyle": dashes}


def on(colour: str) -> str:
    """Black or white, whichever is more legible on a colour of the palette."""
    return "#ffffff" if colour == COLOURS[0] else "#111111"


def shorten(name: str, longest: int = 24) -> str:
    """Shorten a name to fit beside a line; unprintable characters become question marks.

    >>> shorten("a name that is far too long"), shorten("two\\nlines")
    ('a name that is far too…', 'two lines')
    """
    shown = " ".join(visible(name).split())
    return shown if len(shown) <= longest else shown[: longest - 1].rstrip() + "…"
