"""The format of a CSV file: its delimiter, its decimal mark, and the names of its columns if it has no header.

A CSV file does not declare whether its first line is a header or a record. A line that cannot be a header is refused,
and no message quotes the first line: names are shown only if they come from a schema or an option.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpbilevel.errors import InvalidArgument

# Remedy in messages about files that may have no header.
NO_HEADER = "if its first line is a record, pass --columns NAME,NAME,..."

_DECIMALS = (".", ",")
# Words that are always values, never names. "NA" is not among them: it may be the name of a column (sodium).
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
    """The format of a CSV file, as stated by options.

    Args:
        delimiter: the delimiter of cells; None takes that of the file extension.
        decimal: the decimal mark of numbers, a point or a comma.
        columns: the names of the columns of a file without a header; None if the first line has them.
    """

    delimiter: str | None = None
    decimal: str = "."
    columns: tuple[str, ...] | None = None


def layout(delimiter: str | None, decimal: str, columns: str | None) -> Layout:
    """The layout that options state.

    >>> layout(";", ",", "age, town")
    Layout(delimiter=';', decimal=',', columns=('age', 'town'))
    """
    if delimiter == r"\t":  # a shell passes '\t' as two characters
        delimiter = "\t"
    if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0'):
        raise InvalidArgument(f"--delimiter {delimiter!r}: must be one character other than a quote (try ',' or ';')")
    if decimal not in _DECIMALS:
        raise InvalidArgument(f"--decimal {decimal!r}: must be '.' or ',', the decimal mark of numbers")
    return Layout(delimiter, decimal, None if columns is None else _named(columns))


def check_header(path: Path, names: Sequence[str]) -> None:
    """Raise if the first line of a file cannot be a header. It may be a record: the message quotes no cell."""
    if len(set(names)) < len(names) or not all(map(is_name, names)):
        raise InvalidArgument(
            f"{path}: its first line cannot be a header: every column needs a unique name, with a letter, that is "
            f"neither a number nor a date. Name the columns there; {NO_HEADER} (check --delimiter)"
        )


def is_name(text: str) -> bool:
    """Whether a cell of the first line can be the name of a column.

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
    """Parse names as a line of a CSV file: a name that contains a comma is quoted."""
    try:
        names = tuple(name.strip() for name in next(csv.reader([columns], strict=True, skipinitialspace=True), []))
    except csv.Error:
        names = ()
    if not names or not all(names) or len(set(names)) < len(names):
        raise InvalidArgument(
            "--columns: must name every column of the file, without duplicates (try --columns age,town,paid)"
        )
    return names
