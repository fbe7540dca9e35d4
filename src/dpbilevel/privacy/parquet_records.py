"""Records of Parquet files, on disk: a function of the user's makes them, one batch of rows after another.

What the function returns for made-up rows of zeros and empty words tells the shapes of records, before a cell is read.
That it maps every row by itself is assumed: whether it does cannot be seen from outside, and results say so.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.foundation.parquet import batches, footers, parquet_files
from dpbilevel.privacy.arrays import check_leading_axis, usable_dtype
from dpbilevel.privacy.memory import reserved
from dpbilevel.privacy.parts import Part, job_of, own_range
from dpbilevel.privacy.storage import Storage

Tree = Any
Block = dict[str, npt.NDArray[Any]]

CAVEAT = "records were made by a function of blocks of rows, which is assumed to map every row by itself"
_MADE_UP = 3  # rows that are no one's


def read_parquet(
    files: Mapping[str, Any],
    record: Callable[[Block], Tree],
    columns: Sequence[str] | None,
    storage: Storage | None,
    mesh: Mesh | None = None,
) -> dict[str, Tree]:
    """The records of each role, of a file or of a folder of files; arguments are those of `Records.from_parquet`.

    Where a mesh has devices of several processes, they are a `Part`, and only its rows are read.
    """
    if not callable(record):
        raise InvalidArgument("record: must be a function from a block of rows, by column, to arrays of records")
    return {role: _read(role, path, record, columns, storage, mesh) for role, path in files.items() if path is not None}


def _read(
    role: str,
    given: Any,
    record: Callable[[Block], Tree],
    columns: Any,
    storage: Storage | None,
    mesh: Mesh | None,
) -> Tree:
    path = Path(given)
    if not path.exists() or not parquet_files(path):
        raise InvalidArgument(f"{role}: {path} must be a Parquet file, or a folder of Parquet files; check the path")
    schemas, rows = footers(path)
    kinds = _kinds(path, schemas, columns)
    if rows == 0:
        raise InvalidRecords(f"{role}: {path} is empty; every role needs at least one record")
    # Not guarded: these rows are made up, and errors help to write the function.
    described = jax.tree.map(np.asarray, record({name: _made_up(kind) for name, kind in kinds.items()}))
    check_leading_axis(role, described)
    leaves, structure = jax.tree.flatten(described)
    if any(len(leaf) != _MADE_UP for leaf in leaves):
        raise InvalidArgument("record: must return arrays with one line for each row of the block")
    own, several = own_range(rows, mesh), job_of(mesh).is_several
    number = own.stop - own.start
    stored = [_reserved(role, number, leaf, storage) for leaf in leaves]
    first = 0
    for batch in batches(path, list(kinds), own if several else None):
        block = {name: _cells(name, batch.column(at), kind) for at, (name, kind) in enumerate(kinds.items())}
        made = _made(record, block, batch.num_rows, leaves, structure)
        if made is None:
            raise InvalidArgument(
                "record: raised an error, or returned other arrays than for made-up rows of zeros; what it did is "
                "withheld, because it may depend on records. It must return arrays of the same shapes and types for "
                "any cells, with one line for each row; try it on blocks of synthetic rows"
            )
        _check_length(path, first + batch.num_rows <= number)
        for array, leaf in zip(stored, made, strict=True):
            with np.errstate(over="ignore"):  # a NumPy warning would reveal an outlier
                array[first : first + batch.num_rows] = leaf
        first += batch.num_rows
    _check_length(path, first == number)
    parts = [Part(array, rows) for array in stored] if several else stored
    return jax.tree.unflatten(structure, parts)


def _kinds(path: Path, schemas: Sequence[Any], columns: Any) -> dict[str, np.dtype[Any]]:
    """The columns to read, with the dtype of each in a block."""
    fields = [[(field.name, field.type) for field in schema] for schema in schemas]
    if any(other != fields[0] for other in fields):
        raise InvalidArgument(
            f"{path}: its files have different columns; all must have the same names and types, in order"
        )
    known = dict(fields[0])
    if len(known) < len(fields[0]):
        raise InvalidArgument(f"{path}: has columns with the same name; rename them")
    chosen = list(known) if columns is None else list(columns)
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        raise InvalidArgument(f"columns: must be names of columns of {path}; {', '.join(map(repr, unknown))} are not")
    return {name: _dtype(path, name, known[name]) for name in chosen}


def _dtype(path: Path, name: str, kind: Any) -> np.dtype[Any]:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_string(kind) or types.is_large_string(kind):
        return np.dtype(object)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return np.dtype(kind.to_pandas_dtype())
    raise InvalidArgument(
        f"{path}: column {name!r} must have numbers, booleans or text; convert it, or leave it out of columns="
    )


def _made_up(kind: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.full(_MADE_UP, "", object) if kind.kind == "O" else np.zeros(_MADE_UP, kind)


def _cells(name: str, column: Any, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count and kind.kind != "f":
        raise InvalidRecords(
            f"column {name!r}: has missing cells, which only floating-point columns may have; fill or drop them"
        )
    return np.asarray(column.to_numpy(zero_copy_only=False), kind)


def _made(
    record: Callable[[Block], Tree], block: Block, rows: int, described: Sequence[Any], structure: Any
) -> list[Any] | None:
    """The arrays of a block; None if there are none, or others than those that are described."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):  # warnings may quote cells, or count them
            warnings.simplefilter("ignore")
            leaves, found = jax.tree.flatten(jax.tree.map(np.asarray, record(block)))
    except (Exception, SystemExit):
        return None  # the caller raises: an error raised here would have the other one as its context
    fits = found == structure and all(
        leaf.shape == (rows, *known.shape[1:]) and leaf.dtype == known.dtype
        for leaf, known in zip(leaves, described, strict=True)
    )
    return leaves if fits else None


def _reserved(role: str, rows: int, leaf: npt.NDArray[Any], storage: Storage | None) -> Any:
    dtype = usable_dtype(role, leaf)
    # Integers keep their own type: `Records` finds those that do not fit JAX's.
    array = reserved(rows, leaf.shape[1:], dtype if dtype.kind == "f" else leaf.dtype, storage)
    array.caveats = (CAVEAT,)
    return array


def _check_length(path: Path, has_rows: bool) -> None:
    if not has_rows:
        raise InvalidRecords(f"{path}: has another number of rows than its footer says; write it again")
