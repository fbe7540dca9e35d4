"""Plain tables for terminals and Markdown, without rich, which is optional."""

import unicodedata
from collections.abc import Sequence
from typing import Any


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell.

    >>> print(text_table(["role", "uses"], [["lower", "12"]]))
    role   uses
    lower  12
    """
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]]
    return "\n".join(line.rstrip() for line in lines)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def short(value: Any) -> str:
    """A number of a plan, or several, rounded for display.

    >>> short((0.123456789, 3))
    '0.123457, 3'
    """
    if isinstance(value, tuple | list):
        return ", ".join(map(short, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def visible(text: str) -> str:
    """Text that is safe to display: control characters, lone surrogates and bidirectional marks become replacement
    characters. Names of columns and classes come from untrusted files.

    >>> visible("a\\x00b") == "a\N{REPLACEMENT CHARACTER}b", visible("naïve, 名前")
    (True, 'naïve, 名前')
    """
    return "".join(c if c.isprintable() or _is_space(c) else "\N{REPLACEMENT CHARACTER}" for c in text)


def _is_space(character: str) -> bool:
    # The zero-width joiner and non-joiner are needed to write Persian and Hindi.
    return character in "\t\n\u200c\u200d" or unicodedata.category(character) == "Zs"
