"""Reads rows of a file for an estimator: encoded by the schema, one block at a time.

The encoding of a row depends on that row and the schema alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.cli.cells import dates, listed_words, numbers, unit_ids, words
from dpbilevel.cli.schema import Schema
from dpbilevel.cli.table_file import TableFile
from dpbilevel.encoding.encoded_rows import EncodedRows
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.privacy.units import read_ids

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)  # a repr would show cells
class Rows:
    """All rows of a file.

    Args:
        features: encoded features: `EncodedRows`, or `StreamedRows` where they do not fit into memory.
        target: labels as text or as `Codes`, or numbers.
        places: further columns by the name of the argument of `fit`, such as "sources".
        units: the id of the unit of each row; None if rows are protected.
        listed: a public list of all ids that may be in the data; None without one.
    """

    features: Any
    target: Any
    places: Mapping[str, Array]
    units: Array | None = None
    listed: Array | None = None

    @property
    def records(self) -> int:
        """The public number of records: of rows, or of units."""
        if self.listed is not None:
            return len(self.listed)
        return len(self.target) if self.units is None else len(np.unique(read_ids(self.units)))


def fitted_encoder(features: Schema, invalid: str) -> BoundedEncoder:
    """The encoder of declared columns. It is fitted to a made-up row: no file is read."""
    if not features.columns:
        raise InvalidArgument("schema: declares no features; give at least one column a range or categories")
    columns = features.columns

    def values(*kinds: str) -> dict[str, Any]:
        return {name: column.values for name, column in columns.items() if column.kind in kinds}

    encoder = BoundedEncoder(
        ranges=values("range"),
        categories=values("categories", "classes"),  # classes of a column that is not the target are categories
        ordinals=values("ordinal"),
        dates=values("date"),
        texts={name: width for name, (width,) in values("text").items()},
        scales={name: column.scale for name, column in columns.items() if column.kind == "range"},
        knots={name: column.knots for name, column in columns.items() if column.kind in ("range", "date")},
        parts={name: column.parts for name, column in columns.items() if column.parts},
        missing=[name for name, column in columns.items() if column.missing],
        crosses=features.crosses,
        invalid=invalid,
    )
    return encoder.fit({name: np.array([column.values[0]], dtype=object) for name, column in columns.items()})


def column_names(encoder: BoundedEncoder) -> tuple[str, ...]:
    """Readable names of encoded columns: "age", "town = Oslo"."""
    return tuple(encoder._column_names(list(encoder.feature_names_in_), " = "))


def group_names(encoder: BoundedEncoder) -> list[str]:
    """Names of the columns before encoding, then of crosses: `BoundedEncoder.group_of_column_` refers to these."""
    return [*encoder.feature_names_in_, *(f"{one} x {other}" for one, other in encoder.crosses)]


def read_rows(
    table: TableFile,
    encoder: BoundedEncoder,
    schema: Schema,
    target: str,
    places: Mapping[str, str],
    unit: str | None = None,
    weight: str | None = None,
) -> Rows:
    """Read an entire file; memory holds its encoded rows and one block.

    ``unit`` is the column of ids and ``weight`` that of weights, if any.
    """
    features: list[EncodedRows] = []
    listed: dict[str, list[Array]] = {name: [] for name in (target, *places.values())}
    ids: list[Array] = []
    weights: list[Array] = []
    # A feature may also name a group.
    others = [name for name in (unit, weight) if name is not None]
    columns = list(dict.fromkeys([*encoder.feature_names_in_, *listed, *others]))
    decimal = table.layout.decimal
    for block in table.blocks(columns):
        features.append(encoder.transform(cells_of(block, schema, encoder, decimal)))
        for name, cells in listed.items():
            cells.append(listed_cells(name, schema, block, decimal))
        if unit is not None:
            ids.append(unit_ids(f"column {unit!r}", block[unit]))
        if weight is not None:
            weights.append(numbers(weight, block[weight], decimal))
    if not features:
        raise InvalidRecords(f"{table.path}: has no rows; training needs at least 2")
    whole = {name: np.concatenate(cells) for name, cells in listed.items()}
    arguments = {f"{place}s": whole[name] for place, name in places.items()}
    arguments |= {} if weight is None else {"sample_weight": np.concatenate(weights)}
    return Rows(_joined(features), whole[target], arguments, None if unit is None else np.concatenate(ids))


def cells_of(block: Mapping[str, Any], schema: Schema, encoder: BoundedEncoder, decimal: str) -> dict[str, Array]:
    """The cells of a block for the encoder: numbers, dates, or words."""
    cells: dict[str, Array] = {}
    for name in encoder.feature_names_in_:
        column = schema.columns[name]
        if column.kind in ("range", "ordinal"):
            cells[name] = numbers(name, block[name], decimal)
        elif column.kind == "date":
            cells[name] = dates(name, block[name])
        else:
            cells[name] = words(block[name], () if column.kind == "text" else column.values)
    return cells


def encoded_blocks(
    table: TableFile, encoder: BoundedEncoder, schema: Schema
) -> Iterator[tuple[EncodedRows, dict[str, Any]]]:
    """The encoded rows of a file with the ids that it has, one block at a time."""
    features = list(encoder.feature_names_in_)
    ids = [name for name in schema.of_kind("id") if name in table.names]
    for block in table.blocks([*features, *ids]):
        rows = encoder.transform(cells_of(block, schema, encoder, table.layout.decimal))
        yield rows, {name: block[name] for name in ids}


def listed_cells(name: str, schema: Schema, block: Mapping[str, Any], decimal: str) -> Array:
    """Cells of a target or a source: numbers, or values that the schema lists."""
    column = schema.columns[name]
    if column.kind == "range":
        return numbers(name, block[name], decimal)
    listed = listed_words(block[name], column.values, other=column.kind == "categories")
    if listed is None:
        hint = 'or list "other", which stands for every unlisted value' if column.kind == "categories" else ""
        raise InvalidRecords(
            f"column {name!r}: has a cell that {column.kind} in the schema does not list; list all possible values"
            + (f", {hint}" if hint else "")
        )
    return listed


def _joined(blocks: list[EncodedRows]) -> EncodedRows:
    """Concatenate all blocks. Each block is freed once it is copied, so that only one is in memory twice."""
    first = blocks[0]
    rows = np.empty((sum(map(len, blocks)), first.shape[1]), first.dtype)
    start = 0
    blocks.reverse()
    while blocks:
        block = blocks.pop()
        rows[start : start + len(block)] = block
        start += len(block)
    joined = EncodedRows(rows, data_norm=first.data_norm, caveats=first.caveats)
    joined.terms = first.terms
    return joined
