"""Declarations of the columns of a file, as TOML: ranges, categories, classes, feature maps, columns to ignore.

Declarations are public facts, for example from a form, a law or an instrument. A template contains names (and types if
the file declares them), never values: ranges computed from the data would be a leak that is not charged.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpbilevel.cli.declared_column import Column, declared_column
from dpbilevel.cli.table_file import TableFile
from dpbilevel.errors import InvalidArgument

FORMAT = "dpbilevel.schema/2"
# The knots of numbers that declare none, by format: in the first, numbers were plain columns.
_KNOTS = {"dpbilevel.schema/1": None, FORMAT: "auto"}
_INTRODUCTION = """\
# Public facts about the columns of {name}. Fill in one line for every column, from the form, the law or the
# instrument that the data came from. Do not look at the data: the guarantee does not cover what that reveals.
# {origin}
#
#   range = [0, 120]                  numbers, of a feature or of the target; other values are clamped, silently
#   categories = ["F", "M", "other"]  words; "other" stands for every unlisted value
#   classes = ["no", "yes"]           of the target: every possible label
#   kind = "ordinal"                  with range = [1, 5]: integers with one coefficient each
#   kind = "date"                     with range = [2020-01-01, 2026-12-31]; parts = ["month", "weekday"] adds these
#   kind = "text"                     with columns = 64: words, hashed into so many columns
#   unit = true                       with rows_per_unit = 8: ids of people, each with all of its rows protected
#   kind = "id"                       not used, but copied into predictions
#   ignore = true                     do not use the column
#
# Optional: scale = "log" for money and counts, knots = 8 (or "none": a straight line), missing = true for an indicator
# of empty cells, group = "body" for columns that share a penalty with --groups schema; before the first column,
# crosses = [["latitude", "longitude"]] for columns whose effect depends on another.

format = "{format}"
"""


@dataclass(frozen=True)
class Schema:
    """Declarations by column, in the order of the file, and pairs of columns to cross."""

    columns: Mapping[str, Column]
    crosses: tuple[tuple[str, str], ...] = ()

    def of_kind(self, kind: str) -> dict[str, tuple[Any, ...]]:
        """The declared values of all columns of one kind."""
        return {name: column.values for name, column in self.columns.items() if column.kind == kind}

    def features(self, *others: str | None) -> "Schema":
        """The features of a model: all columns except ids, units, ignored ones and ``others`` (target and source)."""
        columns = {name: c for name, c in self.columns.items() if c.is_feature and name not in others}
        for pair in self.crosses:
            unknown = [name for name in pair if name not in columns]
            if unknown:
                raise InvalidArgument(
                    f"schema: crosses has {unknown[0]!r}, which is no feature; cross declared features"
                )
        return Schema(columns, self.crosses)

    @property
    def needs_rows(self) -> bool:
        """Whether the number of knots of a column follows from the number of rows."""
        return any(column.knots == "auto" for column in self.columns.values())

    def resolved(self, rows: int) -> "Schema":
        """The same with these numbers of knots."""
        return replace(self, columns={name: column.resolved(rows) for name, column in self.columns.items()})

    def to_json(self) -> dict[str, Any]:
        """As the content of a TOML file; `parse` reads it."""
        crosses = {"crosses": [list(pair) for pair in self.crosses]} if self.crosses else {}
        return {"format": FORMAT, **crosses, "columns": {name: c.to_json() for name, c in self.columns.items()}}


def template(table: TableFile, target: str | None = None, source: str | None = None) -> str:
    """A schema template, from the header of a file.

    >>> from dpbilevel.cli.layout import Layout
    >>> table = TableFile(Path("people.csv"), ("age", "paid"), ("age", "paid"), None, None, Layout())
    >>> print("\\n".join(template(table, target="paid").splitlines()[-7:]))
    format = "dpbilevel.schema/2"
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
        "date": '# kind = "date"\n# range = [,]  (the file has dates)',
        "other": "ignore = true  # nested values: convert them to numbers or words to use them",
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
    return parse(content, str(path))


def parse(content: Mapping[str, Any], where: str) -> Schema:
    """Parse the content of a TOML file or of a run file."""
    written = content.get("format")
    if not isinstance(written, str) or written not in _KNOTS:
        raise InvalidArgument(f'{where}: is not a schema of this version; its first entry must be format = "{FORMAT}"')
    unknown = sorted(set(content) - {"format", "columns", "crosses"})
    columns = content.get("columns")
    if unknown or not isinstance(columns, Mapping) or not columns:
        raise InvalidArgument(
            f"{where}: must contain only format = ..., one table [columns.NAME] per column, and crosses = [...] if any"
        )
    declared = {name: declared_column(where, name, given, _KNOTS[written]) for name, given in columns.items()}
    units = [name for name, column in declared.items() if column.kind == "unit"]
    if len(units) > 1:
        raise InvalidArgument(f"{where}: columns {units[0]!r} and {units[1]!r} have unit = true; must be one column")
    return Schema(declared, _crosses(where, content.get("crosses", []), declared))


def _crosses(where: str, given: Any, columns: Mapping[str, Column]) -> tuple[tuple[str, str], ...]:
    pairs: list[Any] = given if isinstance(given, list) else [given]
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or any(name not in columns for name in map(str, pair)):
            raise InvalidArgument(
                f'{where}: crosses must be a list of pairs of declared columns (try [["latitude", "longitude"]])'
            )
    return tuple((str(one), str(other)) for one, other in pairs)


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
