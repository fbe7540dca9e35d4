"""Rows of a file that stay in the file: encoded as by `read_rows`, but only when an estimator reads them.

Labels or numbers, and weights, are read before, in a pass over their columns: they take a few bytes for every row.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dpbilevel.cli.cells import numbers
from dpbilevel.cli.rows import Rows, cells_of, listed_cells
from dpbilevel.cli.schema import Schema
from dpbilevel.cli.table_file import TableFile
from dpbilevel.encoding.encoded_rows import EncodedRows
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.encoding.streamed_rows import StreamedRows
from dpbilevel.errors import InvalidRecords
from dpbilevel.estimators.codes import Codes
from dpbilevel.privacy.memory import reserved
from dpbilevel.privacy.storage import Storage


def read_stored_rows(
    table: TableFile, encoder: BoundedEncoder, schema: Schema, target: str, rows: int, weight: str | None = None
) -> Rows:
    """The rows of a file, which has so many; the other arguments are those of `read_rows`."""
    decimal = table.layout.decimal
    targets: Any = np.zeros(rows)
    if schema.columns[target].kind != "range":
        targets = Codes(schema.columns[target].values, np.zeros(rows, np.int32))
    weights = {} if weight is None else {"sample_weight": np.zeros(rows)}
    first = 0
    for block in table.blocks([target, *([] if weight is None else [weight])], "Reading the target of"):
        labels = listed_cells(target, schema, block, decimal)
        chosen = slice(first, first + len(labels))
        if chosen.stop > rows:
            break
        if isinstance(targets, Codes):
            targets.write(first, labels.tolist())
        else:
            targets[chosen] = labels
        if weight is not None:
            weights["sample_weight"][chosen] = numbers(weight, block[weight], decimal)
        first = chosen.stop
    else:
        if first == rows:
            return Rows(StreamedRows(rows, encoder, lambda: _encoded(table, encoder, schema)), targets, weights)
    raise InvalidRecords(f"{table.path}: has another number of rows than when it was counted; it must not change")


def on_disk(rows: StreamedRows, storage: Storage) -> EncodedRows:
    """The rows as an array on disk, to be read once more after a run."""
    stored, first = reserved(*rows.shape[:1], rows.shape[1:], np.float32, storage), 0
    for block in rows.arrays():
        stored[first : first + len(block)] = block
        first += len(block)
    encoded = EncodedRows(stored, data_norm=rows.data_norm, caveats=rows.caveats)
    encoded.terms = rows.terms
    return encoded


def _encoded(table: TableFile, encoder: BoundedEncoder, schema: Schema) -> Iterator[EncodedRows]:
    import pyarrow

    for block in table.blocks(list(encoder.feature_names_in_)):
        yield encoder.transform(cells_of(block, schema, encoder, table.layout.decimal))
    pyarrow.default_memory_pool().release_unused()
