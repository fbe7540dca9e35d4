"""The base class of commands that fit an estimator to a file: common options. Each application is a subclass.

Options are fields with a help text. Neither this module nor those of `dpbilevel.cli.applications` import slow modules
before a command is called, so that `dpbilevel --help` is fast.
"""

import inspect
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

if TYPE_CHECKING:
    from dpbilevel.cli.schema import Schema
    from dpbilevel.encoding.encoder import BoundedEncoder


class Positional(str):
    """The help text of a positional argument."""


Data = Annotated[Path, Positional("A CSV or Parquet file, or a folder of Parquet files; one record per row.")]
Target = Annotated[str, "The column to predict."]
SchemaFile = Annotated[Path, "The schema: declarations of the columns (TOML)."]
Out = Annotated[Path, "The folder to write the run to."]
Epsilon = Annotated[float, "The total epsilon of tuning and training."]
Delta = Annotated[float | None, "The total delta; by default 1/n^1.1, rounded down; n is public."]
Adjacency = Annotated[str, "The neighbouring relation: replace-one or zero-out."]
Fraction = Annotated[float, "Fraction of rows (or units) for validation; the final model is trained on them too."]
Holdout = Annotated[
    float | None, "Fraction of rows (or units) to set aside and to score at the end, at no further cost."
]
Delimiter = Annotated[str | None, "Delimiter of a CSV file; a comma by default, a tab for .tsv."]
Decimal = Annotated[str, "The decimal mark of numbers in text: . or ,"]
Columns = Annotated[str | None, "NAME,NAME,...: the columns of a CSV file without a header."]
UnitColumn = Annotated[str | None, "A column of ids: protect all rows of one id; by default that of the schema."]
RowsPerUnit = Annotated[int | None, "With units: how many rows of an id are used at most; public."]
MeanRows = Annotated[float | None, "With units: a public guess of the mean number of rows of an id."]
UnitIds = Annotated[
    Path | None, "With units: a public text file that lists all ids that may be in the data, one on each line."
]
Devices = Annotated[int | None, "On how many devices the rows are divided, the first that JAX finds; by default one."]
Invalid = Annotated[str, "refuse rows with missing numbers (before the charge), or zero them out."]
LedgerAddress = Annotated[str | None, "The ledger of the data set: a file or a URL."]
Dataset = Annotated[str | None, "The name of the data set in the ledger."]
Noise = Annotated[str, "float, or exact for integer noise (requires OpenDP)."]
Seed = Annotated[int | None, "Fix the noise, for experiments. The run is then NOT private."]
Force = Annotated[bool, "Replace the files of an earlier run."]
Memory = Annotated[str | None, "At most so much memory, such as 2GB: rows that do not fit are held on disk."]
Resume = Annotated[Path | None, "The folder of an interrupted run: finish it, at no further cost."]
Json = Annotated[bool, "Print JSON."]
Quiet = Annotated[bool, "Print only warnings and errors."]


WEIGHT = "weight of rows"  # the fact that names the column of --weight


@dataclass(frozen=True, kw_only=True)
class FitCommand:
    """The options of a command. Subclasses are applications; their docstring is the help text of the command.

    Attributes:
        command: its name. example: an example call. title: the title of its report, before the name of the target.
        places: options that name a column which is not a feature, such as "source": its categories are passed to the
            estimator as ``source_names``, and its cells to ``fit`` as ``sources``.
    """

    data: Data
    target: Target
    schema: SchemaFile
    out: Out = Path("run")
    epsilon: Epsilon = 1.0
    delta: Delta = None
    adjacency: Adjacency = "replace-one"
    validation_fraction: Fraction = 0.2
    holdout: Holdout = None
    invalid: Invalid = "refuse"
    delimiter: Delimiter = None
    decimal: Decimal = "."
    columns: Columns = None
    ledger: LedgerAddress = None
    dataset: Dataset = None
    noise: Noise = "float"
    seed: Seed = None
    force: Force = False
    resume: Resume = None
    dry_run: Annotated[bool, "Show plan and spend only; reads no records."] = False
    rows: Annotated[int | None, "Number of rows of a CSV, or of units, for a dry run, which does not count them."] = (
        None
    )
    json: Json = False
    quiet: Quiet = False
    unit: UnitColumn = None
    rows_per_unit: RowsPerUnit = None
    mean_rows: MeanRows = None
    unit_ids: UnitIds = None
    devices: Devices = None
    memory: Memory = None
    # An option only of applications that give it a help text:
    validation: Path | None = None
    weight: str | None = None

    command: ClassVar[str]
    example: ClassVar[str]
    title: ClassVar[str]
    places: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def estimators(cls) -> Mapping[str, Any]:
        """The estimator by kind of target, "classes" or "range"; either may be missing."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise for invalid options, before a file is opened."""
        from dpbilevel.cli.memory_limit import memory_limit

        if self.memory is not None:
            memory_limit(self.memory)

    def with_unit(self, schema: "Schema") -> "FitCommand":
        """The same with the unit that the schema declares; raises for options that do not fit it."""
        from dpbilevel.cli.units import check_list, unit_of

        given = {name: getattr(self, name) for name in ("unit", "rows_per_unit", "mean_rows")}
        found = unit_of(schema, str(self.schema), **given)
        check_list(self.unit_ids, found, self.validation)
        if found is None:
            return self
        return replace(self, unit=found.column, rows_per_unit=found.rows_per_unit, mean_rows=found.mean_rows)

    def declared(self, schema: "Schema", encoder: "BoundedEncoder") -> dict[str, Any]:
        """Settings of the estimator that follow from the application's options and the schema."""
        return {}

    def facts(self) -> dict[str, str]:
        """The application's options as facts for the report."""
        return {}

    def unit_facts(self) -> dict[str, str]:
        """The unit of privacy as facts for the report, if it is not a row."""
        if self.unit is None:
            return {}
        from dpbilevel.cli.units import COLUMN
        from dpbilevel.privacy.stores.entry import unit_of_column

        protected = f"{unit_of_column(self.unit)}, at most {self.rows_per_unit} of them used"
        return {COLUMN: self.unit, "unit of privacy": protected}

    @property
    def settings(self) -> dict[str, Any]:
        """Settings shared by all estimators."""
        shared = ("epsilon", "delta", "adjacency", "validation_fraction", "invalid", "noise", "devices")
        settings = {name: getattr(self, name) for name in shared} | {"random_state": self.seed}
        return settings | ({} if self.unit is None else {n: getattr(self, n) for n in ("rows_per_unit", "mean_rows")})

    @property
    def layout(self) -> dict[str, Any]:
        """The format of a CSV file."""
        return {name: getattr(self, name) for name in ("delimiter", "decimal", "columns")}

    def place_columns(self) -> dict[str, str]:
        """The column of each option in ``places``."""
        return {place: getattr(self, place) for place in self.places}

    def columns_apart(self) -> list[str]:
        """The columns of options, which are not features."""
        return [*self.place_columns().values(), *([] if self.weight is None else [self.weight])]


COMMANDS: dict[str, type[FitCommand]] = {}


def options(kind: type[FitCommand]) -> Iterator[inspect.Parameter]:
    """The fields with a help text."""
    fields = inspect.signature(kind).parameters
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if hasattr(hint, "__metadata__"):
            yield fields[name].replace(annotation=hint)


def estimator_named(name: str) -> tuple[type[FitCommand], Any] | None:
    """The application whose estimator has this name, and the estimator."""
    for kind in COMMANDS.values():
        for estimator in kind.estimators().values():
            if estimator.__name__ == name:
                return kind, estimator
    return None
