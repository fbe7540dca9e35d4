"""Reads the rows of a file onto a disk: encoded as by `read_rows`, but memory holds one block of them.

What is kept in memory are a few bytes for every row: its label or number, and its weight.
"""

from typing import Any

import numpy as np

from dpbilevel.cli.cells import numbers
from dpbilevel.cli.rows import Rows, cells_of, listed_cells
from dpbilevel.cli.schema import Schema
from dpbilevel.cli.table_file import TableFile
from dpbilevel.encoding.encoded_rows import EncodedRows
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.errors import InvalidRecords
from dpbilevel.estimators.codes import Codes
from dpbilevel.privacy.memory import reserved
from dpbilevel.privacy.storage import Storage


def read_stored_rows(
    table: TableFile,
    encoder: BoundedEncoder,
    schema: Schema,
    target: str,
    rows: int,
    storage: Storage,
    weight: str | None = None,
) -> Rows:
    """Read an entire file, which has so many rows; the other arguments are those of `read_rows`."""
    import pyarrow

    width, decimal = len(encoder.group_of_column_), table.layout.decimal
    encoded, values = reserved(rows, (width,), np.float32, storage), schema.columns[target].values
    targets: Any = np.zeros(rows)
    if schema.columns[target].kind != "range":
        targets = Codes(values, np.zeros(rows, np.int32))
    weights = {} if weight is None else {"sample_weight": np.zeros(rows)}
    first, part = 0, None
    for block in table.blocks(list(dict.fromkeys([*encoder.feature_names_in_, target, *([weight] if weight else [])]))):
        part = encoder.transform(cells_of(block, schema, encoder, decimal))
        chosen = slice(first, first + len(part))
        if chosen.stop > rows:
            break
        encoded[chosen] = part
        labels = listed_cells(target, schema, block, decimal)
        if isinstance(targets, Codes):
            targets.write(first, labels.tolist())
        else:
            targets[chosen] = labels
        if weight is not None:
            weights["sample_weight"][chosen] = numbers(weight, block[weight], decimal)
        first = chosen.stop
    if part is None or first != rows:
        raise InvalidRecords(f"{table.path}: has another number of rows than when it was counted; it must not change")
    pyarrow.default_memory_pool().release_unused()
    features = EncodedRows(encoded, data_norm=part.data_norm, caveats=part.caveats)
    features.terms = part.terms
    return Rows(features, targets, weights)


def chosen_rows(features: EncodedRows, positions: Any, storage: Storage) -> EncodedRows:
    """Some of the rows, in order, as a copy on the disk."""
    copied = reserved(len(positions), features.shape[1:], np.float32, storage)
    np.take(np.asarray(features), positions, axis=0, out=copied, mode="clip")
    chosen = EncodedRows(copied, data_norm=features.data_norm, caveats=features.caveats)
    chosen.terms = features.terms
    return chosen
