"""HTML elements of a report. Every argument is plain text, which is escaped here exactly once."""

import html
import math
from collections.abc import Sequence
from typing import Any

from dpbilevel.foundation.tables import visible
from dpbilevel.privacy.spend import Privacy, rounded_up

# What the rows of each role are for, in the words of a report. Code and papers say lower and upper.
ROWS = {"lower": "training rows", "upper": "validation rows", "both": "rows", "heldout": "held-out rows"}


def of_role(role: str, privacy: Privacy) -> str:
    """What the records of a role are for: "training rows", or "training units"."""
    return ROWS[role] if privacy.rows_per_unit is None else ROWS[role].replace("rows", "units")


def text(value: Any) -> str:
    """Escape any value as HTML text.

    >>> text("<script>")
    '&lt;script&gt;'
    """
    return html.escape(visible(str(value)), quote=True)


def number(value: Any, digits: int = 4) -> str:
    """Format a number for readers; other values are converted to text.

    >>> number(0.000123456), number(48842), number(math.inf), number(None), number("1, 2")
    ('0.0001235', '48,842', 'infinite', '–', '1, 2')
    """
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if math.isnan(value):
        return "–"
    return f"{value:.{digits}g}" if math.isfinite(value) else "infinite" if value > 0 else "-infinite"


def epsilon_text(value: float) -> str:
    """Format an epsilon, rounded up.

    >>> epsilon_text(0.84111), epsilon_text(1.0), epsilon_text(math.inf)
    ('0.8412', '1', 'infinite')
    """
    return rounded_up(value) if math.isfinite(value) else "infinite"


def table(
    caption: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numeric: Sequence[int] = (),
    wide: bool = False,
) -> str:
    """A table of texts; empty if there are no rows. The first cell of each row is the row's header.

    Args:
        caption: what the table shows.
        header: column names.
        rows: cells, as texts.
        numeric: columns that are right-aligned.
        wide: whether the table may be wider than a phone's screen; the table then scrolls instead of the page.
    """

    def cell(tag: str, column: int, value: str, scope: str = "") -> str:
        kind = ' class="number"' if column in numeric else ""
        return f"<{tag}{kind}{scope}>{text(value)}</{tag}>"

    if not rows:
        return ""
    heads = "".join(cell("th", column, name, ' scope="col"') for column, name in enumerate(header))
    lines = []
    for row in rows:
        first, *rest = row
        cells = "".join(cell("td", column, value) for column, value in enumerate(rest, start=1))
        head = cell("th", 0, first, ' scope="row"')
        lines.append(f"<tr>{head}{cells}</tr>")
    made = table_element(caption, heads, lines, narrow=len(header) == 2 and len(numeric) == 1)
    # Keyboard users must be able to focus an element that scrolls.
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{text(caption)}">{made}</div>' if wide else made


def table_element(caption: str, heads: str, lines: Sequence[str], *, narrow: bool = False) -> str:
    """A table of finished cells; ``narrow`` keeps names and numbers close together."""
    body = "\n".join(lines)
    head = f"<caption>{text(caption)}</caption>\n<thead><tr>{heads}</tr></thead>"
    kind = ' class="narrow"' if narrow else ""
    return f"<table{kind}>\n{head}\n<tbody>\n{body}\n</tbody>\n</table>"


def terms(pairs: Sequence[tuple[str, str]]) -> str:
    """A list of terms and their meanings; empty if there are none."""
    if not pairs:
        return ""
    return "<dl>" + "".join(f"<dt>{text(term)}</dt><dd>{text(meaning)}</dd>" for term, meaning in pairs) + "</dl>"


def bullets(lines: Sequence[str]) -> str:
    """A bulleted list."""
    return "<ul>" + "".join(f"<li>{text(line)}</li>" for line in lines) + "</ul>"


def paragraph(line: str) -> str:
    """A paragraph; empty if the line is."""
    return f"<p>{text(line)}</p>" if line else ""


def folded(summary: str, inside: str) -> str:
    """A section that readers can expand; it is printed in full."""
    return f"<details><summary>{text(summary)}</summary>\n{inside}\n</details>"


def section(name: str, title: str, *parts: str) -> str:
    """A section with its heading; empty if all its parts are."""
    inside = "\n".join(filter(None, parts))
    return (
        f'<section aria-labelledby="{name}">\n<h2 id="{name}">{text(title)}</h2>\n{inside}\n</section>'
        if inside
        else ""
    )
