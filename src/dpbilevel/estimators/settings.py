"""Documentation of the settings shared by all estimators: written once, shown in the docstring of each.

An estimator documents its own settings. Those that it inherits are appended to its ``Args`` when the class is created.
"""

import inspect
import re

_ENTRY = re.compile(r"    (\w+(?:, \w+)*): ")


def with_inherited_settings(own: str | None, inherited: str | None) -> str | None:
    """The docstring of a class, with those entries of the Args of its base class appended that it does not have.

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
    """Start and end of the entries of Args; an empty range before the last line if there are none."""
    begin = re.search(r"^Args:\n", text, re.MULTILINE)
    if begin is None:
        return len(text), len(text)
    rest = re.search(r"^(?! {4})", text[begin.end() :], re.MULTILINE)
    return begin.end(), begin.end() + (rest.start() if rest else len(text))


def _entries(section: str) -> dict[str, str]:
    """The complete entries by name of the setting."""
    entries: dict[str, str] = {}
    name = ""
    for line in section.splitlines(keepends=True):
        found = _ENTRY.match(line)
        name = found.group(1) if found else name
        entries[name] = entries.get(name, "") + line.rstrip("\n") + "\n"
    return entries
