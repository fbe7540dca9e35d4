"""Reads the rows of a file that a process of a job holds: encoded as by `read_rows`, in memory or on a disk.

Of all other rows it keeps no more than a place for the label or number, the source and the weight.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpbilevel.cli.cells import numbers
from dpbilevel.cli.rows import Rows, cells_of, listed_cells
from dpbilevel.cli.schema import Schema
from dpbilevel.cli.table_file import TableFile
from dpbilevel.encoding.columns import as_slice
from dpbilevel.encoding.encoded_rows import EncodedRows, Held
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.errors import InvalidRecords
from dpbilevel.estimators.codes import Codes
from dpbilevel.privacy.memory import reserved
from dpbilevel.privacy.storage import Storage


def read_held_rows(
    table: TableFile,
    encoder: BoundedEncoder,
    schema: Schema,
    target: str,
    rows: int,
    storage: Storage | None,
    weight: str | None,
    places: Mapping[str, str],
    held: Held,
) -> Rows:
    """Those rows of a file, which has so many, that are ``held`` here; the other arguments are those of `read_rows`."""
    import pyarrow

    width, decimal, here = len(encoder.group_of_column_), table.layout.decimal, held.places
    # A process without any rows reads one, for what rows have in common.
    within = slice(int(here[0]), int(here[-1]) + 1) if len(here) else slice(0, 1)
    encoded, values = reserved(len(here), (width,), np.float32, storage), schema.columns[target].values
    targets: Any = np.zeros(rows)
    if schema.columns[target].kind != "range":
        targets = Codes(values, np.zeros(rows, np.int32))
    others: dict[str, Any] = {f"{place}s": _first_word(rows, schema, name) for place, name in places.items()}
    others |= {} if weight is None else {"sample_weight": np.zeros(rows)}
    first, part = within.start, None
    columns = [*encoder.feature_names_in_, target, *places.values(), *([weight] if weight else [])]
    for block in table.blocks(list(dict.fromkeys(columns)), within=within):
        part = encoder.transform(cells_of(block, schema, encoder, decimal))
        chosen = slice(first, first + len(part))
        if chosen.stop > within.stop:
            break
        low, high = np.searchsorted(here, [first, chosen.stop])
        encoded[low:high] = np.asarray(part)[as_slice(here[low:high] - first)] if low < high else 0
        labels = listed_cells(target, schema, block, decimal)
        if isinstance(targets, Codes):
            targets.write(first, labels.tolist())
        else:
            targets[chosen] = labels
        for place, name in places.items():
            others[f"{place}s"][chosen] = listed_cells(name, schema, block, decimal)
        if weight is not None:
            others["sample_weight"][chosen] = numbers(weight, block[weight], decimal)
        first = chosen.stop
    if part is None or first != within.stop:
        raise InvalidRecords(f"{table.path}: has another number of rows than when it was counted; it must not change")
    pyarrow.default_memory_pool().release_unused()
    features = EncodedRows(encoded, data_norm=part.data_norm, caveats=part.caveats)
    features.terms, features.held = part.terms, held
    return Rows(features, targets, others)


def _first_word(rows: int, schema: Schema, name: str) -> Any:
    return np.full(rows, schema.columns[name].values[0], object)


def chosen_rows(features: EncodedRows, positions: Any, storage: Storage | None) -> EncodedRows:
    """Some of the rows, in order, as a copy; on the disk if ``storage`` is given."""
    copied = reserved(len(positions), features.shape[1:], np.float32, storage)
    np.take(np.asarray(features), positions, axis=0, out=copied, mode="clip")
    chosen = EncodedRows(copied, data_norm=features.data_norm, caveats=features.caveats)
    chosen.terms = features.terms
    return chosen
