"""How a CSV file is written: its delimiter, its decimal mark, and the names of its columns where it has no header.

Nothing in a CSV says whether its first line names the columns or is a record. A line that cannot be a header is
refused, and no message quotes one that can: names are shown only where a schema or a person has given them.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpbilevel.errors import InvalidArgument

# What messages say to somebody whose file may have no header.
NO_HEADER = "where its first line is a record, pass --columns NAME,NAME,..."

_DECIMALS = (".", ",")
# Words that stand for a value wherever they stand. "NA" is none of them: sodium is a column too.
_VALUES = frozenset({"nan", "null", "true", "false", "n/a", "#n/a", "<na>"})
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}.*"  # 2026-01-31, with or without a time
    r"|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}.*"
    r"|\d{1,2}:\d{2}.*"
    r"|\d{1,2}[ .\-/]*[^\W\d_]{3,9}[ .,\-/]*\d{2,4}"  # 31 Jan 2026
    r"|[^\W\d_]{3,9}[ .]*\d{1,2}, *\d{4}"  # January 31, 2026
)


@dataclass(frozen=True)
class Layout:
    """What a person says about how a CSV is written.

    Args:
        delimiter: between cells; None takes that of the file's ending.
        decimal: the decimal mark of numbers, a point or a comma.
        columns: the names of the columns of a file without a header; None where the first line has them.
    """

    delimiter: str | None = None
    decimal: str = "."
    columns: tuple[str, ...] | None = None


def layout(delimiter: str | None, decimal: str, columns: str | None) -> Layout:
    """The layout that options state.

    >>> layout(";", ",", "age, town")
    Layout(delimiter=';', decimal=',', columns=('age', 'town'))
    """
    if delimiter == r"\t":  # what a shell makes of '\t'
        delimiter = "\t"
    if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0'):
        raise InvalidArgument(f"--delimiter {delimiter!r}: must be one character, and no quote (try ',' or ';')")
    if decimal not in _DECIMALS:
        raise InvalidArgument(f"--decimal {decimal!r}: must be '.' or ',', the decimal mark of numbers")
    return Layout(delimiter, decimal, None if columns is None else _named(columns))


def check_header(path: Path, names: Sequence[str]) -> None:
    """Raise where the first line of a file cannot be a header. It may be a record: which cell told is not said."""
    if len(set(names)) < len(names) or not all(map(is_name, names)):
        raise InvalidArgument(
            f"{path}: its first line cannot be a header: every column needs a name, with a letter in it, that is no "
            f"number or date, and that no other column has. Name the columns there; {NO_HEADER} (check --delimiter)"
        )


def is_name(text: str) -> bool:
    """Whether a cell of a first line can be the name of a column.

    >>> [is_name(text) for text in ("age", "2nd visit", "größe", "34", "-1,5", "1e5", "2026-01-31", "nan", "")]
    [True, True, True, False, False, False, False, False, False]
    """
    word = text.strip()
    if not any(letter.isalpha() for letter in word) or word.lower() in _VALUES or _DATE.fullmatch(word):
        return False
    try:
        float(word.replace(",", "."))
    except ValueError:
        return True
    return False


def _named(columns: str) -> tuple[str, ...]:
    """Names as a line of a CSV has them: one that has a comma is put in quotes."""
    try:
        names = tuple(name.strip() for name in next(csv.reader([columns], strict=True, skipinitialspace=True), []))
    except csv.Error:
        names = ()
    if not names or not all(names) or len(set(names)) < len(names):
        raise InvalidArgument("--columns: must name every column of the file, each once (try --columns age,town,paid)")
    return names
