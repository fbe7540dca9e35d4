"""Reads rows of a file for an estimator: encoded by the schema, one block at a time.

The encoding of a row depends on that row and the schema alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.cli.schema import Schema
from dpbilevel.cli.table_file import TableFile, listed_words, numbers, words
from dpbilevel.encoding.encoded_rows import EncodedRows
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.errors import InvalidArgument, InvalidRecords

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Rows:
    """All rows of a file.

    Args:
        features: encoded features.
        target: labels as text, or numbers.
        places: further columns by the name of the argument of `fit`, such as "sources".
    """

    features: EncodedRows
    target: Array
    places: Mapping[str, Array]


def fitted_encoder(features: Schema, invalid: str) -> BoundedEncoder:
    """The encoder of declared columns. It is fitted to a made-up row: no file is read."""
    if not features.columns:
        raise InvalidArgument("schema: declares no features; give at least one column a range or categories")
    # Classes of a column that is not the target are treated as categories.
    categories = features.of_kind("categories") | features.of_kind("classes")
    encoder = BoundedEncoder(ranges=features.of_kind("range"), categories=categories, invalid=invalid)
    row = {name: np.array([column.values[0]], dtype=object) for name, column in features.columns.items()}
    return encoder.fit(row)


def column_names(encoder: BoundedEncoder) -> tuple[str, ...]:
    """Readable names of encoded columns: "age", "town = Oslo"."""
    names: list[str] = []
    for name in encoder.feature_names_in_:
        values = encoder.categories_.get(name)
        names += [name] if values is None else [f"{name} = {value}" for value in values]
    return tuple(names)


def read_rows(
    table: TableFile, encoder: BoundedEncoder, schema: Schema, target: str, places: Mapping[str, str]
) -> Rows:
    """Read an entire file; memory holds its encoded rows and one block."""
    features: list[EncodedRows] = []
    listed: dict[str, list[Array]] = {name: [] for name in (target, *places.values())}
    columns = list(dict.fromkeys([*encoder.feature_names_in_, *listed]))  # a feature may also name a group
    decimal = table.layout.decimal
    for block in table.blocks(columns):
        features.append(encoder.transform(cells_of(block, schema, encoder, decimal)))
        for name, cells in listed.items():
            cells.append(_listed(name, schema, block, decimal))
    if not features:
        raise InvalidRecords(f"{table.path}: has no rows; training needs at least 2")
    whole = {name: np.concatenate(cells) for name, cells in listed.items()}
    return Rows(_joined(features), whole[target], {f"{place}s": whole[name] for place, name in places.items()})


def cells_of(block: Mapping[str, Any], schema: Schema, encoder: BoundedEncoder, decimal: str) -> dict[str, Array]:
    """The cells of a block for the encoder: numbers, or words."""
    cells: dict[str, Array] = {}
    for name in encoder.feature_names_in_:
        column = schema.columns[name]
        is_number = column.kind == "range"
        cells[name] = numbers(name, block[name], decimal) if is_number else words(block[name], column.values)
    return cells


def encoded_blocks(table: TableFile, encoder: BoundedEncoder, schema: Schema) -> Iterator[EncodedRows]:
    """The encoded rows of a file, one block at a time."""
    for block in table.blocks(list(encoder.feature_names_in_)):
        yield encoder.transform(cells_of(block, schema, encoder, table.layout.decimal))


def _listed(name: str, schema: Schema, block: Mapping[str, Any], decimal: str) -> Array:
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
    return EncodedRows(rows, data_norm=first.data_norm, caveats=first.caveats)
