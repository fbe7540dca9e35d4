"""The preparation of a run on a file, from its header and the schema alone: the encoder, the estimator, the groups.

No row is read here. Errors in names and declarations are found here, and a dry run goes no further.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.cli.fit_command import FitCommand
from dpbilevel.cli.holdout import held_out_rows
from dpbilevel.cli.layout import layout
from dpbilevel.cli.resuming import comparable
from dpbilevel.cli.rows import fitted_encoder
from dpbilevel.cli.schema import Schema, check_columns, read_schema
from dpbilevel.cli.table_file import TableFile, open_table
from dpbilevel.cli.units import ids_of_rows, listed_units
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.base import PrivateEstimator
from dpbilevel.planning import Plan

_FEWEST = 2  # rows of a run


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """Everything that is known before a row is read; the number of rows only if something follows from it.

    ``listed`` are all ids of units that may be in the data, if a file lists them.
    """

    asked: FitCommand
    table: TableFile
    validation: TableFile | None
    schema: Schema
    encoder: BoundedEncoder
    estimator: PrivateEstimator
    rows: int | None = None
    listed: npt.NDArray[Any] | None = None

    @property
    def width(self) -> int:
        """The number of columns of an encoded row."""
        return len(self.encoder.group_of_column_)

    def facts_of_all(self) -> dict[str, str]:
        """What all processes of a job must have alike, by its name in the plural. Where files are may differ."""
        tables = [self.table, *([] if self.validation is None else [self.validation])]
        return {
            "options": json.dumps(comparable(self.asked)),
            "schemas": json.dumps(self.schema.to_json(), default=str),
            "columns of files": repr([(table.names, table.kinds) for table in tables]),
            "numbers of rows": repr([table.rows for table in tables]),
        }

    def check_rows(self, rows: int) -> None:
        """Raise for fewer rows than a run needs; their number is public."""
        if rows < _FEWEST:
            raise InvalidArgument(f"{self.table.path}: must have at least 2 rows, one to validate and one to train")

    def plan(self, rows: int, validation_rows: int | None) -> Plan:
        """The plan of a run with this number of rows."""
        if validation_rows is None:
            rows -= held_out_rows(rows, self.asked.holdout)
        else:
            validation_rows -= held_out_rows(validation_rows, self.asked.holdout)
        self.check_rows(rows)
        apart = {} if validation_rows is None else {"validation_rows": validation_rows}
        planned: Plan = self.estimator.plan(rows, self.encoder, **apart)
        return planned


def prepared(asked: FitCommand) -> Job:
    """Check the options against the schema, and then against the header of the data."""
    schema, where, how = read_schema(asked.schema), str(asked.schema), layout(**asked.layout)
    asked = asked.with_unit(schema)
    places = asked.place_columns()
    units = [] if asked.unit is None else [asked.unit]
    weights = {} if asked.weight is None else {"weight": asked.weight}
    for option, name in {"target": asked.target, **places, **weights}.items():
        if name not in schema.columns:
            raise InvalidArgument(
                f"--{option} {name}: {where} declares no such column; it declares "
                f"{', '.join(map(repr, list(schema.columns)[:20]))}"
            )
    if asked.weight is not None:
        _check_weight(where, asked, schema)
    # Declarations are checked before a file is opened; the number of knots may follow from its number of records.
    features = schema.features(asked.target, *asked.columns_apart())
    if asked.unit is not None and asked.memory is not None:
        raise InvalidArgument(
            f"--memory: is not supported together with the unit {asked.unit!r} yet, whose number of rows is private; "
            "leave it out"
        )
    known, listed = schema.resolved(_FEWEST), listed_units(asked.unit_ids)
    encoder = fitted_encoder(known.features(asked.target, *asked.columns_apart()), asked.invalid)
    estimator = _estimator(asked, known, encoder, listed)
    table = open_table(asked.data, how)
    validation = None if asked.validation is None else open_table(asked.validation, how)
    check_columns(schema, where, table, [*features.columns, asked.target, *asked.columns_apart(), *units])
    if validation is not None:
        check_columns(schema, where, validation, [*features.columns, asked.target, *units])
    rows = _count(asked, table, listed) if features.needs_rows or asked.memory is not None else None
    if rows is not None and features.needs_rows:
        known = schema.resolved(max(round(rows * (asked.mean_rows or 1)), _FEWEST))
        encoder = fitted_encoder(known.features(asked.target, *asked.columns_apart()), asked.invalid)
        estimator = _estimator(asked, known, encoder, listed)
    return Job(
        asked=asked,
        table=table,
        validation=validation,
        schema=known,
        encoder=encoder,
        estimator=estimator,
        rows=rows,
        listed=listed,
    )


def _check_weight(where: str, asked: FitCommand, schema: Schema) -> None:
    """Raise unless weights have a declared bound: their range, which starts at zero."""
    declared = schema.columns[str(asked.weight)]
    is_plain = declared.kind == "range" and declared.scale == "linear" and not declared.missing
    if not is_plain or declared.values[0] != 0 or asked.weight == asked.target:
        raise InvalidArgument(
            f"{where}: the weight {asked.weight!r} must have range = [0, largest] and nothing else, and be another "
            "column than the target; larger weights are clamped to the largest"
        )


def _count(asked: FitCommand, table: TableFile, listed: npt.NDArray[Any] | None) -> int | None:
    """The public number of records: rows, or units, whose rows are private. A dry run reads no CSV, and is told it."""
    if listed is not None:
        return len(listed)
    if asked.unit is not None:
        return asked.rows if asked.dry_run else len(np.unique(ids_of_rows(table, asked.unit)))
    if asked.dry_run:
        return table.rows if asked.rows is None else asked.rows
    return table.count_rows()


def _estimator(
    asked: FitCommand, schema: Schema, encoder: BoundedEncoder, listed: npt.NDArray[Any] | None
) -> PrivateEstimator:
    target, kinds = schema.columns[asked.target], asked.estimators()
    if target.kind not in kinds:
        forms = {"classes": "classes = [...]", "range": "range = [low, high]"}
        needed = " or ".join(form for kind, form in forms.items() if kind in kinds)
        raise InvalidArgument(f"{asked.schema}: the target {asked.target!r} must have {needed}")
    if target.scale != "linear" or target.missing:
        raise InvalidArgument(f"{asked.schema}: the target {asked.target!r} must have no scale and no missing = true")
    known: dict[str, Any] = {"data_norm": encoder.row_norm_}
    known |= {} if listed is None else {"unit_ids": listed}
    known |= {"classes": list(target.values)} if target.kind == "classes" else {"target_range": target.values}
    for place, name in asked.place_columns().items():
        if schema.columns[name].kind != "categories":
            raise InvalidArgument(f"{asked.schema}: the {place} {name!r} must have categories = [...]")
        known[f"{place}_names"] = list(schema.columns[name].values)
    estimator: PrivateEstimator = kinds[target.kind](**asked.settings, **known, **asked.declared(schema, encoder))
    return estimator
