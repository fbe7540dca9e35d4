"""What a run on a file will be, from its header and the schema alone: the encoder, the estimator, the groups.

No row is read here. A dry run ends here, and so does everything that is wrong with names and declarations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbilevel import estimators
from dpbilevel.cli.layout import Layout
from dpbilevel.cli.rows import fitted_encoder
from dpbilevel.cli.schema import Schema, check_columns, read_schema
from dpbilevel.cli.table_file import TableFile, open_table
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.base import PrivateEstimator
from dpbilevel.planning import Plan


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a person asks for: columns of files, what is declared, and settings of the estimator by name."""

    data: Path
    schema: Path
    target: str
    source: str | None = None
    validation: Path | None = None
    layout: Layout
    groups: str = "one"
    settings: Mapping[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """Everything that is settled before a row is read."""

    question: Question
    table: TableFile
    validation: TableFile | None
    schema: Schema
    encoder: BoundedEncoder
    estimator: PrivateEstimator

    @property
    def width(self) -> int:
        """Columns of an encoded row."""
        return len(self.encoder.group_of_column_)

    def plan(self, rows: int, validation_rows: int | None) -> Plan:
        """The plan of a run on so many rows."""
        if rows < 2:  # of the public number of rows
            raise InvalidArgument(f"{self.table.path}: must have at least 2 rows, one to validate and one to train")
        apart = {} if validation_rows is None else {"validation_rows": validation_rows}
        planned: Plan = self.estimator.plan(rows, self.width, **apart)
        return planned


def prepared(question: Question) -> Job:
    """Check what is asked against the schema, and then against the header of the data."""
    schema = read_schema(question.schema)
    for role, name in (("--target", question.target), ("--source", question.source)):
        if name is not None and name not in schema.columns:
            raise InvalidArgument(
                f"{role} {name}: {question.schema} declares no such column; it declares "
                f"{', '.join(map(repr, list(schema.columns)[:20]))}"
            )
    features = schema.features(question.target, question.source)
    encoder = fitted_encoder(features, question.settings.get("invalid", "refuse"))
    estimator = _estimator(question, schema, encoder)
    tables = [open_table(question.data, question.layout)]
    tables += [] if question.validation is None else [open_table(question.validation, question.layout)]
    own = [question.target, *([] if question.source is None else [question.source])]
    for table, more in zip(tables, ([*own], [question.target]), strict=False):
        check_columns(schema, str(question.schema), table, [*features.columns, *more])
    return Job(
        question=question,
        table=tables[0],
        validation=None if question.validation is None else tables[1],
        schema=schema,
        encoder=encoder,
        estimator=estimator,
    )


def _estimator(question: Question, schema: Schema, encoder: BoundedEncoder) -> PrivateEstimator:
    target = schema.columns[question.target]
    if target.kind not in ("classes", "range"):
        raise InvalidArgument(
            f"{question.schema}: the target {question.target!r} must have classes = [...] or range = [low, high]"
        )
    labelled = target.kind == "classes"
    known = {"classes": list(target.values)} if labelled else {"target_range": target.values}
    settings = {**question.settings, **known, "data_norm": encoder.row_norm_}
    if question.source is None:
        settings["groups"] = _groups(question, schema, encoder)
        return (estimators.DPLogisticRegressionCV if labelled else estimators.DPRidgeCV)(**settings)
    source = schema.columns[question.source]
    if source.kind != "categories":
        raise InvalidArgument(f"{question.schema}: the source {question.source!r} must have categories = [...]")
    settings["source_names"] = list(source.values)
    kinds = (estimators.DPSourceWeightedClassifier, estimators.DPSourceWeightedRegressor)
    return kinds[0 if labelled else 1](**settings)


def _groups(question: Question, schema: Schema, encoder: BoundedEncoder) -> list[str] | None:
    if question.groups == "one":
        return None
    names = list(encoder.feature_names_in_)
    if question.groups == "schema":
        if all(schema.columns[name].group is None for name in names):
            raise InvalidArgument(f'--groups schema: no column of {question.schema} has a group; add group = "name"')
        names = [schema.columns[name].group or name for name in names]
    return [names[at] for at in encoder.group_of_column_]
