"""Settings that estimators share, explained once and shown by the ``help`` of each.

Classes write down what is their own; what they inherit is added to their ``Args`` when they are made.
"""

import inspect
import re

_ENTRY = re.compile(r"    (\w+(?:, \w+)*): ")


def with_inherited_settings(own: str | None, inherited: str | None) -> str | None:
    """The docstring of a class whose Args have, after its own entries, those of its base that it leaves out.

    >>> base = "Base.\\n\\nArgs:\\n    epsilon: of everything\\n        together.\\n    noise: how it is drawn.\\n"
    >>> print(with_inherited_settings("Mine.\\n\\nArgs:\\n    noise: of mine.\\n\\nMore.\\n", base))
    Mine.
    <BLANKLINE>
    Args:
        noise: of mine.
        epsilon: of everything
            together.
    <BLANKLINE>
    More.
    """
    if not own or not inherited:  # python -OO has no docstrings
        return own
    own, inherited = inspect.cleandoc(own), inspect.cleandoc(inherited)
    start, end = _section(own)
    known = set(_entries(own[start:end]))
    more = "".join(text for name, text in _entries(inherited[slice(*_section(inherited))]).items() if name not in known)
    return own[:end] + more + own[end:]


def _section(text: str) -> tuple[int, int]:
    """Where the entries of Args begin and end; an empty stretch before the last line where there are none."""
    begin = re.search(r"^Args:\n", text, re.MULTILINE)
    if begin is None:
        return len(text), len(text)
    rest = re.search(r"^(?! {4})", text[begin.end() :], re.MULTILINE)
    return begin.end(), begin.end() + (rest.start() if rest else len(text))


def _entries(section: str) -> dict[str, str]:
    """Names of settings to their entries, whole."""
    entries: dict[str, str] = {}
    name = ""
    for line in section.splitlines(keepends=True):
        found = _ENTRY.match(line)
        name = found.group(1) if found else name
        entries[name] = entries.get(name, "") + line.rstrip("\n") + "\n"
    return entries
