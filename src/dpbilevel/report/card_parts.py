"""Building blocks of notebook cards: a frame coloured by status, bars and small tables.

Notebooks may be light or dark and have their own styles. Cards therefore inherit text and background, bring no
stylesheet, and use few colours that are visible on both. Every colour is accompanied by text of the same meaning.
"""

import math
from collections.abc import Iterable, Sequence

from dpbilevel.privacy.spend import Privacy
from dpbilevel.report.elements import text

PRIVATE, CAVEATS, NOT_PRIVATE = "private", "private with caveats", "not private"
TONES = {PRIVATE: "#2a9461", CAVEATS: "#b9770e", NOT_PRIVATE: "#d64545"}
HEADINGS = {PRIVATE: "Private", CAVEATS: "Private, with caveats", NOT_PRIVATE: "NOT PRIVATE"}
BLUE = "#2f86c1"

_LINE = "rgba(128, 128, 128, .35)"
_CELL = (
    f"padding: .15em .9em .15em 0; border: 0; border-bottom: 1px solid {_LINE}; background: none; vertical-align: top"
)


def privacy_status(privacy: Privacy) -> str:
    """Private, private with caveats, or not private."""
    if privacy.void or not privacy.budget.is_private:
        return NOT_PRIVATE
    return CAVEATS if privacy.caveats else PRIVATE


def records_of(role: str, privacy: Privacy) -> str:
    """The records of a role: "lower records", or "lower units" if these are protected."""
    return f"{role} records" if privacy.rows_per_unit is None else f"{role} units"


def framed(tone: str, head: str, label: str, rows: Iterable[str]) -> str:
    """A card: a coloured heading, a one-line label, and rows of HTML below."""
    style = (
        f"border: 1px solid {_LINE}; border-left: 5px solid {tone}; border-radius: 6px; padding: .6em 1em; "
        "margin: .4em 0; max-width: 38em; line-height: 1.45; font-size: 13px; color: inherit"
    )
    inside = "".join(f"<div style='margin-top: .45em'>{row}</div>" for row in rows)
    heading = f"<strong style='color: {tone}'>{text(head)}</strong>"
    return f"<div style='{style}' role='group' aria-label='{text(label)}'>{heading}<br>{text(label)}{inside}</div>"


def bar(words: str, part: float, colour: str) -> str:
    """A bar for a fraction of a whole, with its text."""
    width = 100 * min(max(part, 0.0), 1.0) if math.isfinite(part) else 0.0
    track = f"flex: 0 0 8em; height: .55em; border-radius: 2px; background: {_LINE}; overflow: hidden"
    filled = f"<span style='display: block; height: 100%; width: {width:.1f}%; background: {colour}'></span>"
    return (
        "<div style='display: flex; align-items: center; gap: .8em'>"
        f"<span style='{track}' aria-hidden='true'>{filled}</span><span>{text(words)}</span></div>"
    )


def faint(words: str) -> str:
    """Text of minor importance."""
    return f"<span style='opacity: .75'>{text(words)}</span>"


def small_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int] = ()) -> str:
    """A table of texts. Columns in ``numeric`` are right-aligned; a table that is too wide scrolls."""

    def cell(tag: str, column: int, value: str, scope: str = "") -> str:
        side = "right; white-space: nowrap" if column in numeric else "left"
        return f"<{tag}{scope} style='{_CELL}; font-weight: normal; text-align: {side}'>{text(value)}</{tag}>"

    heads = "".join(cell("th", column, name, " scope='col'") for column, name in enumerate(header))
    lines = "".join(
        "<tr style='background: none'>"
        + "".join(cell("td", column, value) for column, value in enumerate(row))
        + "</tr>"
        for row in rows
    )
    style = (
        "border-collapse: collapse; margin: .2em 0; font-size: 12px; color: inherit; font-variant-numeric: tabular-nums"
    )
    hidden = "position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%)"
    return (
        f"<div style='overflow-x: auto' role='region' tabindex='0' aria-label='{text(caption)}'><table style='{style}'>"
        f"<caption style='{hidden}'>{text(caption)}</caption>"
        f"<thead style='opacity: .75'><tr style='background: none'>{heads}</tr></thead><tbody>{lines}</tbody>"
        "</table></div>"
    )


def folded(summary: str, inside: str) -> str:
    """A section that readers can expand."""
    return f"<details><summary style='cursor: pointer'>{text(summary)}</summary>{inside}</details>"
