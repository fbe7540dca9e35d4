"""Rows of a file that stay in the file: encoded as by `read_rows`, but only when an estimator reads them.

Labels or numbers, sources and weights are read before, in a pass over their columns: a few bytes for every row.
"""

from collections.abc import Iterator, Mapping
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
    table: TableFile,
    encoder: BoundedEncoder,
    schema: Schema,
    target: str,
    rows: int,
    places: Mapping[str, str],
    weight: str | None = None,
) -> Rows:
    """The rows of a file, which has so many; the other arguments are those of `read_rows`."""
    decimal, listed = table.layout.decimal, [target, *places.values()]
    kept: dict[str, Any] = {name: np.zeros(rows) for name in (*listed, *([] if weight is None else [weight]))}
    for name in listed:
        if schema.columns[name].kind != "range":
            kept[name] = Codes(schema.columns[name].values, np.zeros(rows, np.int32))
    first = 0
    for block in table.blocks(list(kept), "Reading the target of"):
        stop = first + len(block[target])
        if stop > rows:
            break
        for name, cells in kept.items():
            if isinstance(cells, Codes):
                cells.write(first, listed_cells(name, schema, block, decimal).tolist())
            else:
                cells[first:stop] = numbers(name, block[name], decimal)
        first = stop
    else:
        if first == rows:
            more = {f"{place}s": kept[name] for place, name in places.items()}
            more |= {} if weight is None else {"sample_weight": kept[weight]}
            return Rows(StreamedRows(rows, encoder, lambda: _encoded(table, encoder, schema)), kept[target], more)
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
