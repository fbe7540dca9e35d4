"""Docstrings as Markdown: lines that begin with >>> become blocks of code, which they are not by themselves.

An extension of griffe, which reads the docstrings for the reference. It also keeps names together that one line
describes, as in "X, y: rows and labels"; griffe would take the second for a type.
"""

import re
from typing import Any

import griffe

_PROMPT = ">>>"
_SEVERAL_NAMES = re.compile(r"^\s+\w+(?:, \w+)+:", flags=re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrite every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object, before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = together(fenced(obj.docstring.value))


def together(docstring: str) -> str:
    """The docstring with spaces that do not break between names that one line describes."""
    return _SEVERAL_NAMES.sub(lambda match: match[0].replace(", ", ",\N{NO-BREAK SPACE}"), docstring)


def fenced(docstring: str) -> str:
    """The docstring with a fence around each example; "text::" before an indented block becomes "text:"."""
    lines: list[str] = []
    inside = False
    for line in docstring.splitlines():
        begins, ends = line.startswith(_PROMPT), not line.strip()
        if begins and not inside:
            lines.append("```pycon")
        elif inside and ends:
            lines.append("```")
        inside = begins or (inside and not ends)
        lines.append(line.removesuffix(":") if line.endswith("::") and not inside else line)
    return "\n".join([*lines, "```"] if inside else lines)
