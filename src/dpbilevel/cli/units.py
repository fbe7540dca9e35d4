"""The unit of privacy of a command: a column of ids, named by an option or declared by the schema (``unit = true``).

Ids are private. They are read as text and never shown; the name of their column and the bound on rows are public.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.cli.cells import unit_ids
from dpbilevel.cli.schema import Schema
from dpbilevel.cli.table_file import TableFile
from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.privacy.units import check_bounds, read_ids
from dpbilevel.report.review import Review

COLUMN = "column of ids"  # the fact of a run that names it


@dataclass(frozen=True)
class Unit:
    """All rows with the same cell in a column.

    Args:
        column: the column of ids.
        rows_per_unit: how many rows of an id are used at most.
        mean_rows: a public guess of the mean number of rows of an id; None if there is none.
    """

    column: str
    rows_per_unit: int
    mean_rows: float | None


def unit_of(schema: Schema, where: str, **given: Any) -> Unit | None:
    """The unit of a command; None if it protects rows.

    Args:
        schema, where: the schema, and what it is called in errors.
        given: the options ``unit``, ``rows_per_unit`` and ``mean_rows``, None where they are left out.
    """
    declared: dict[str, Any] = {"unit": None, "rows_per_unit": None, "mean_rows": None}
    for name, (most, mean) in schema.of_kind("unit").items():
        declared = {"unit": name, "rows_per_unit": most, "mean_rows": mean}
    for name, value in given.items():
        known = declared[name]
        if value is not None and known is not None and value != known:
            raise InvalidArgument(
                f"{_option(name)} {value}: {where} declares {known}; leave the option out, or change the schema"
            )
    found = {name: given.get(name) if known is None else known for name, known in declared.items()}
    if found["unit"] is None:
        for name in ("rows_per_unit", "mean_rows"):
            if found[name] is not None:
                raise InvalidArgument(
                    f"{_option(name)}: is for units; leave it out, or name the column of ids by --unit, or by "
                    f"unit = true in {where}"
                )
        return None
    if found["rows_per_unit"] is None:
        raise InvalidArgument(
            f"--rows-per-unit: must be given for the unit {found['unit']!r}, or declared beside unit = true in {where};"
            " it bounds the rows of an id that are used, and is public (try 8)"
        )
    most, _ = check_bounds(found["rows_per_unit"], found["mean_rows"])
    column = schema.columns.get(found["unit"])
    if column is None:
        raise InvalidArgument(
            f"--unit {found['unit']}: {where} declares no such column; it declares "
            f"{', '.join(map(repr, list(schema.columns)[:20]))}"
        )
    if column.kind not in ("ignore", "unit"):
        raise InvalidArgument(
            f"{where}: the unit {found['unit']!r} must have unit = true or ignore = true; an id is not a feature"
        )
    return Unit(found["unit"], most, found["mean_rows"])


def unit_of_scores(review: Review, schema: Schema, unit: str | None, rows_per_unit: int | None) -> Unit | None:
    """The unit of scores: by default that of the run, also where an option of the run named it and not the schema."""
    most, column = review.solution.privacy.rows_per_unit, review.facts.get(COLUMN, unit)
    if most is not None and not schema.of_kind("unit"):
        if column is None:
            raise InvalidArgument("--unit: must name the column of ids, because the run protects units")
        if unit not in (None, column):
            raise InvalidArgument(f"--unit {unit}: the run protects all rows with the same {column}; leave it out")
        unit, rows_per_unit = column, most if rows_per_unit is None else rows_per_unit
    return unit_of(schema, "the schema of the run", unit=unit, rows_per_unit=rows_per_unit)


def check_list(path: Path | None, unit: Unit | None, validation: Path | None = None) -> None:
    """Raise for a list of ids without units, or with two files of rows."""
    if path is not None and (unit is None or validation is not None):
        remedy = "name the column of ids by --unit" if unit is None else "leave --validation out"
        raise InvalidArgument(f"--unit-ids {path}: lists the units of one file of rows, with units; {remedy}")


def listed_units(path: Path | None) -> npt.NDArray[Any] | None:
    """The ids of a public list, a text file with one on each line; None without a file."""
    if path is None:
        return None
    import pyarrow

    try:
        lines = path.read_text(encoding="utf-8").rstrip("\r\n").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InvalidArgument(
            f"--unit-ids {path}: cannot be read; must be a text file in UTF-8 with one id on each line"
        ) from None
    ids = read_ids(unit_ids(f"--unit-ids {path}", pyarrow.array(lines, pyarrow.string())), name="unit_ids")
    if len(np.unique(ids)) < len(ids):
        raise InvalidArgument(f"--unit-ids {path}: must list every id once; one is listed twice")
    return ids


def ids_of_rows(table: TableFile, column: str) -> npt.NDArray[Any]:
    """The private ids of all rows, as text; raises if one is missing."""
    blocks = [unit_ids(f"column {column!r}", block[column]) for block in table.blocks([column], "Reading units of")]
    if not blocks:
        raise InvalidRecords(f"{table.path}: has no rows, and so no units")
    return read_ids(np.concatenate(blocks))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
