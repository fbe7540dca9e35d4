"""A command that fits an estimator to a file: what all of them take. An application adds its own, and is a command.

Options are fields with a help text. Nothing heavy is imported here, nor by the modules of `dpbilevel.cli.applications`
before a command is called: `dpbilevel --help` waits for none of it.
"""

import inspect
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

if TYPE_CHECKING:
    from dpbilevel.cli.schema import Schema
    from dpbilevel.encoding.encoder import BoundedEncoder


class Positional(str):
    """The help text of an argument that goes by its place."""


Data = Annotated[Path, Positional("A CSV or Parquet file, one row a record.")]
Target = Annotated[str, "The column to predict."]
SchemaFile = Annotated[Path, "What is declared of the columns (TOML)."]
Out = Annotated[Path, "The folder to write the run to."]
Epsilon = Annotated[float, "Of everything together, tuning and training."]
Delta = Annotated[float | None, "By default 1/n^1.1, rounded down; n is public."]
Adjacency = Annotated[str, "Which data sets are neighbours: replace-one or zero-out."]
Fraction = Annotated[float, "Part of the rows that validates; it trains the final model too."]
Delimiter = Annotated[str | None, "Of a CSV file; a comma by default, a tab for .tsv."]
Decimal = Annotated[str, "The decimal mark of numbers in text: . or ,"]
Columns = Annotated[str | None, "NAME,NAME,...: the columns of a CSV file that has no header."]
Invalid = Annotated[str, "refuse rows with missing numbers (before the charge), or count them zero."]
LedgerAddress = Annotated[str | None, "Where the data set's ledger is: a file or a URL."]
Dataset = Annotated[str | None, "The data set's name in the ledger."]
Noise = Annotated[str, "float, or exact for integer noise, which needs OpenDP."]
Seed = Annotated[int | None, "Fix the noise, for experiments. The run is then NOT private."]
Force = Annotated[bool, "Replace what an earlier run wrote."]
Resume = Annotated[Path | None, "The folder of a run that was interrupted: finish it, at no further cost."]
Json = Annotated[bool, "Print JSON."]
Quiet = Annotated[bool, "Say nothing but warnings and errors."]


@dataclass(frozen=True, kw_only=True)
class FitCommand:
    """What was asked for. Subclasses are applications; their docstring is the help of the command.

    Attributes:
        command: its name. example: of its use. title: of its report, before the name of the target.
        places: options that name a column which is no feature, such as "source": its categories are declared to the
            estimator as ``source_names``, and its cells are given to ``fit`` as ``sources``.
    """

    data: Data
    target: Target
    schema: SchemaFile
    out: Out = Path("run")
    epsilon: Epsilon = 1.0
    delta: Delta = None
    adjacency: Adjacency = "replace-one"
    validation_fraction: Fraction = 0.2
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
    dry_run: Annotated[bool, "Plan and spend only; reads no record."] = False
    rows: Annotated[int | None, "Rows of a CSV, for a dry run, which cannot count them."] = None
    json: Json = False
    quiet: Quiet = False
    validation: Path | None = None  # an option of applications that give it a help text

    command: ClassVar[str]
    example: ClassVar[str]
    title: ClassVar[str]
    places: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def estimators(cls) -> Mapping[str, Any]:
        """The class for a target that has "classes", and for one that has a "range"; either may be missing."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise where options cannot be, before a file is opened."""

    def declared(self, schema: "Schema", encoder: "BoundedEncoder") -> dict[str, Any]:
        """Settings of the estimator that follow from own options and the schema."""
        return {}

    def facts(self) -> dict[str, str]:
        """What the report says of own options."""
        return {}

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that all estimators have."""
        shared = ("epsilon", "delta", "adjacency", "validation_fraction", "invalid", "noise")
        return {name: getattr(self, name) for name in shared} | {"random_state": self.seed}

    @property
    def layout(self) -> dict[str, Any]:
        """How a CSV file is written."""
        return {name: getattr(self, name) for name in ("delimiter", "decimal", "columns")}

    def place_columns(self) -> dict[str, str]:
        """Options that name a place to the column that each names."""
        return {place: getattr(self, place) for place in self.places}


COMMANDS: dict[str, type[FitCommand]] = {}


def options(kind: type[FitCommand]) -> Iterator[inspect.Parameter]:
    """The fields that have a help text."""
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
