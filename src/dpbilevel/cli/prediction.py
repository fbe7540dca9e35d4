"""Predictions of the model of a run for the rows of a file, streamed from file to file."""

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from dpbilevel.cli.fit_command import WEIGHT, estimator_named
from dpbilevel.cli.layout import Layout
from dpbilevel.cli.rows import encoded_blocks, fitted_encoder
from dpbilevel.cli.schema import parse
from dpbilevel.cli.signals import NOTHING_SPENT
from dpbilevel.cli.table_file import open_table
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.report.review import Review

PARQUET = (".parquet", ".pq")


def check_output(out: Path, *, force: bool) -> None:
    """Raise if predictions cannot be written to a file; its extension selects the format."""
    if out.suffix.lower() not in (".csv", *PARQUET):
        raise InvalidArgument(f"--out {out}: must end in .csv or .parquet; the extension selects the format")
    if out.exists() and not force:
        raise InvalidArgument(f"--out {out}: already exists; choose another name, or pass --force")


def predict(review: Review, data: Path, out: Path, *, layout: Layout, invalid: str) -> int:
    """Write a prediction for every row of a file, and return their number.

    A prediction is a function of the released model and of one row. It spends no budget of the training rows, and must
    be protected like the row itself.
    """
    model, encoder, schema = restore(review, invalid)
    table = open_table(data, layout)
    missing = [name for name in encoder.feature_names_in_ if name not in table.names]
    if missing:
        raise InvalidArgument(
            f"{data}: has no column {missing[0]!r}, which the model reads; it needs all its columns ({table.remedy})"
        )
    blocks = ({**ids, **_predicted(model, rows, ids)} for rows, ids in encoded_blocks(table, encoder, schema))
    try:
        rows = _written(blocks, out)
    except OSError:
        raise InvalidArgument(f"--out {out}: cannot be written; check the folder and permissions") from None
    if not rows:
        raise InvalidRecords(f"{data}: has no rows; there is nothing to predict")
    return rows


def restore(review: Review, invalid: str) -> tuple[Any, BoundedEncoder, Any]:
    """The fitted estimator of a run, with its encoder and schema."""
    model, declared = review.model, review.schema
    if model is None or declared is None:
        raise InvalidArgument("RUN: has no model to predict with; pass the folder of `dpbilevel tune` or `reweight`")
    found = estimator_named(model.estimator)
    if found is None:
        raise InvalidArgument(
            f"RUN: has a model of {model.estimator}, unknown to this version; use the version that wrote it"
        )
    (command, kind), schema = found, parse(declared, "RUN")
    places = (review.facts.get(place) for place in (*command.places, WEIGHT))
    encoder = fitted_encoder(schema.features(model.target, *places), invalid)
    target = schema.columns[model.target]
    if target.kind == "classes":
        # ``outputs`` are the classes of the coefficients: of two classes, the second.
        first = [value for value in target.values if value not in model.outputs]
        weights: Any = model.coefficients, model.intercepts
        known = {"classes": [*first, *model.outputs]}
    else:
        weights, known = (model.coefficients[0], float(model.intercepts[0])), {}
    return kind.restore(review.solution, *weights, data_norm=encoder.row_norm_, **known), encoder, schema


def _predicted(model: Any, rows: Any, ids: Collection[str]) -> dict[str, Any]:
    columns = {"prediction": model.predict(rows)}
    if hasattr(model, "classes_"):
        probabilities = model.predict_proba(rows)
        columns |= {f"probability of {name}": probabilities[:, at] for at, name in enumerate(model.classes_)}
    taken = [name for name in ids if name in columns]
    if taken:
        raise InvalidArgument(f"DATA: its id column {taken[0]!r} has the name of a column of predictions; rename it")
    return columns


def remove_unfinished(out: Path) -> str:
    """Remove the unfinished file if a signal ends the command; returns the message."""
    with contextlib.suppress(OSError):
        _unfinished(out).unlink(missing_ok=True)
    return NOTHING_SPENT


def _unfinished(out: Path) -> Path:
    return out.with_name(out.name + ".unfinished")


def _written(blocks: Iterator[dict[str, Any]], out: Path) -> int:
    """Write blocks to a temporary file, which is renamed once it is complete."""
    import pyarrow
    from pyarrow import csv, parquet

    unfinished = _unfinished(out)
    rows, writer = 0, None
    try:
        for block in blocks:
            table = pyarrow.table({name: pyarrow.array(values) for name, values in block.items()})
            if writer is None:
                kind = parquet.ParquetWriter if out.suffix.lower() in PARQUET else csv.CSVWriter
                writer = kind(unfinished, table.schema)
            writer.write_table(table)
            rows += len(table)
        if writer is not None:
            writer.close()
            unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)
    return rows
