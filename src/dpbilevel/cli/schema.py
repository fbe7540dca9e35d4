"""Declarations of the columns of a file, as TOML: ranges, categories, classes, columns to ignore.

Declarations are public facts, for example from a form, a law or an instrument. A template contains names (and types if
the file declares them), never values: ranges computed from the data would be a leak that is not charged.
"""

import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbilevel.cli.table_file import TableFile
from dpbilevel.errors import InvalidArgument

FORMAT = "dpbilevel.schema/1"

_KEYS = ("range", "categories", "classes", "ignore", "group")
_LARGEST = sys.float_info.max
_INTRODUCTION = """\
# Public facts about the columns of {name}. Fill in one line for every column, from the form, the law or the
# instrument that the data came from. Do not look at the data: the guarantee does not cover what that reveals.
# {origin}
#
#   range = [0, 120]                  numbers, of a feature or of the target; other values are clamped, silently
#   categories = ["F", "M", "other"]  words; "other" stands for every unlisted value
#   classes = ["no", "yes"]           of the target: every possible label
#   ignore = true                     do not use the column
#   group = "body"                    optional: columns of one group share a penalty with --groups schema

format = "{format}"
"""


@dataclass(frozen=True)
class Column:
    """The declaration of a column.

    Args:
        kind: "range", "categories", "classes" or "ignore".
        values: (low, high), or the possible texts of cells.
        group: the name of its group, if any.
    """

    kind: str
    values: tuple[Any, ...] = ()
    group: str | None = None


@dataclass(frozen=True)
class Schema:
    """Declarations by column, in the order of the file."""

    columns: Mapping[str, Column]

    def of_kind(self, kind: str) -> dict[str, tuple[Any, ...]]:
        """The declared values of all columns of one kind."""
        return {name: column.values for name, column in self.columns.items() if column.kind == kind}

    def features(self, *others: str | None) -> "Schema":
        """The features of a model: all columns except ignored ones and ``others`` (target and source)."""
        return Schema({name: c for name, c in self.columns.items() if c.kind != "ignore" and name not in others})

    def to_json(self) -> dict[str, Any]:
        """As the content of a TOML file; `parsed` reads it."""
        columns: dict[str, dict[str, Any]] = {}
        for name, column in self.columns.items():
            columns[name] = {column.kind: True if column.kind == "ignore" else list(column.values)}
            columns[name] |= {} if column.group is None else {"group": column.group}
        return {"format": FORMAT, "columns": columns}


def template(table: TableFile, target: str | None = None, source: str | None = None) -> str:
    """A schema template, from the header of a file.

    >>> from dpbilevel.cli.layout import Layout
    >>> table = TableFile(Path("people.csv"), ("age", "paid"), ("age", "paid"), None, None, Layout())
    >>> print("\\n".join(template(table, target="paid").splitlines()[-7:]))
    format = "dpbilevel.schema/1"
    <BLANKLINE>
    [columns.age]
    # range = [,]  or  categories = []  or  ignore = true
    <BLANKLINE>
    [columns.paid]  # the target
    # classes = []  or  range = [,]
    """
    kinds = table.kinds or ("unknown",) * len(table.names)
    parts = [_INTRODUCTION.format(name=table.path.name, format=FORMAT, origin=_origin(table))]
    for name, kind in zip(table.names, kinds, strict=True):
        note = "  # the target" if name == target else "  # the source of rows" if name == source else ""
        parts.append(f"[columns.{_key(name)}]{note}\n{_blank(kind, name == target, name == source)}\n")
    return "\n".join(parts)


def _origin(table: TableFile) -> str:
    """A comment on the origin of the names: the first line is assumed to be a header, which only the user can check."""
    if table.layout.columns is not None:
        return "The file has no header; the names are those of --columns."
    if table.kinds is not None:
        return "The names are those of the file."
    return (
        "The names are those of the first line. If that is a record, delete this file and pass --columns NAME,NAME,..."
    )


def _blank(kind: str, target: bool, source: bool) -> str:
    if target:
        return "# classes = []  or  range = [,]"
    if source:
        return "# categories = []"
    blanks = {
        "number": "# range = [,]  (the file has numbers)",
        "text": "# categories = []  (the file has text)",
        "other": "ignore = true  # dates and nested values: convert them to numbers or words to use them",
    }
    return blanks.get(kind, "# range = [,]  or  categories = []  or  ignore = true")


def _key(name: str) -> str:
    """A TOML key: bare if possible, otherwise quoted, as in JSON."""
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else json.dumps(name)


def read_schema(path: Path) -> Schema:
    """Read a schema from a TOML file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidArgument(
            f"{path}: does not exist; `dpbilevel schema DATA --out {path}` writes a template"
        ) from None
    except (OSError, UnicodeDecodeError):
        raise InvalidArgument(f"{path}: cannot be read; a schema is a TOML file in UTF-8") from None
    except tomllib.TOMLDecodeError as error:  # may quote a line of the schema, which is public
        raise InvalidArgument(f"{path}: is not TOML: {error}; fill in the brackets, or delete the line") from None
    return parsed(content, str(path))


def parsed(content: Mapping[str, Any], where: str) -> Schema:
    """Parse the content of a TOML file or of a run file."""
    if content.get("format") != FORMAT:
        raise InvalidArgument(f'{where}: is not a schema of this version; its first entry must be format = "{FORMAT}"')
    unknown = sorted(set(content) - {"format", "columns"})
    columns = content.get("columns")
    if unknown or not isinstance(columns, Mapping) or not columns:
        raise InvalidArgument(f"{where}: must contain only format = ... and one table [columns.NAME] per column")
    return Schema({name: _column(where, name, given) for name, given in columns.items()})


def check_columns(schema: Schema, where: str, table: TableFile, needed: Sequence[str]) -> None:
    """Raise unless the schema declares every column of a file, and the file has every ``needed`` column."""
    # Undeclared names are not shown: in a file without a header they may be cells of a record.
    undeclared = [at for at, name in enumerate(table.names, 1) if name not in schema.columns]
    if len(undeclared) == len(table.names):
        raise InvalidArgument(f"{table.path}: has none of the columns that {where} declares; {table.remedy}")
    missing = [name for name in needed if name not in table.names]
    if missing:
        raise InvalidArgument(f"{table.path}: has no column {missing[0]!r}, which {where} declares; {table.remedy}")
    if undeclared:
        raise InvalidArgument(
            f"{where}: column {undeclared[0]} of the {len(table.names)} columns of {table.path} is not declared; add "
            "[columns.NAME] with range, categories or classes, or with ignore = true (`dpbilevel schema` shows the "
            f"names; {table.remedy})"
        )


def _column(where: str, name: str, given: Any) -> Column:
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"{where}: column {name!r} must be a table, [columns.{_key(name)}]")
    unknown = sorted(set(given) - set(_KEYS))
    if unknown:
        raise InvalidArgument(f"{where}: column {name!r} has {unknown[0]!r}; must be one of {', '.join(_KEYS)}")
    kinds = [key for key in _KEYS if key != "group" and given.get(key, False) is not False]
    if len(kinds) != 1:
        problem = "nothing is declared" if not kinds else f"has {' and '.join(kinds)}"
        raise InvalidArgument(
            f"{where}: column {name!r}: {problem}; must have one of range, categories, classes or ignore = true"
        )
    kind, group = kinds[0], given.get("group")
    if group is not None and (not isinstance(group, str) or not group):
        raise InvalidArgument(f"{where}: column {name!r} has group = {group!r}; must be a name in quotes")
    if kind == "ignore":
        return Column(kind)
    values = _range(where, name, given[kind]) if kind == "range" else _listed(where, name, kind, given[kind])
    return Column(kind, values, group)


def _range(where: str, name: str, given: Any) -> tuple[float, float]:
    numeric = isinstance(given, list) and all(isinstance(n, int | float) and not isinstance(n, bool) for n in given)
    finite = numeric and all(-_LARGEST <= number <= _LARGEST for number in given)  # False for NaN
    if not finite or len(given) != 2 or given[0] >= given[1]:
        raise InvalidArgument(
            f"{where}: column {name!r} has range = {given!r}; must be two numbers, the smaller first (try [0, 100])"
        )
    return float(given[0]), float(given[1])


def _listed(where: str, name: str, kind: str, given: Any) -> tuple[str, ...]:
    """Values as text, as in the file: 1 as "1", true as "true"."""
    listed = given if isinstance(given, list) else []
    usable = bool(listed) and all(isinstance(value, str | int | float) for value in listed)
    texts = tuple(str(value).lower() if isinstance(value, bool) else str(value).strip() for value in listed)
    if not usable or len(set(texts)) < len(texts) or (kind == "classes" and len(texts) < 2):
        least = "two or more labels" if kind == "classes" else "one or more values"
        raise InvalidArgument(
            f'{where}: column {name!r}: {kind} must list {least}, without duplicates (try ["no", "yes"])'
        )
    return texts
