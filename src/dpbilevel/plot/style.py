"""The one style of all pictures: legible on light and on dark pages, and to colour-blind readers.

Four hues of Okabe and Ito's palette have a contrast of three or more on white and on near-black pages; a fifth would
not be told apart by everybody, so that the line style changes instead. Text is one grey that both pages bear.
Backgrounds are transparent.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from dpbilevel.foundation.tables import visible

INK = "#757575"  # text and axes
FAINT = "#a3a3a3"  # grids, and what is drawn for completeness
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # blue, vermilion, bluish green, reddish purple
DASHES = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
WIDTH = 5.4  # inches: text of ten points stays legible on a telephone

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
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and copied
    "svg.hashsalt": "dpbilevel",  # the same picture is the same bytes
    "text.color": INK,
    "text.parse_math": False,  # a dollar in the name of a column is a dollar
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 9,
}


def looks() -> Iterator[dict[str, Any]]:
    """Colour and line style of one line after the other: every colour, then every colour dashed."""
    for dashes in itertools.cycle(DASHES):
        for colour in COLOURS:
            yield {"color": colour, "linestyle": dashes}


def on(colour: str) -> str:
    """Black or white, whichever is read better on a colour of the palette."""
    return "#ffffff" if colour == COLOURS[0] else "#111111"


def shortened(name: str, longest: int = 24) -> str:
    """A name that fits beside a line; characters that no page can show become question marks.

    >>> shortened("a name that goes on and on"), shortened("two\\nlines")
    ('a name that goes on and…', 'two lines')
    """
    shown = " ".join(visible(name).split())
    return shown if len(shown) <= longest else shown[: longest - 1].rstrip() + "…"
