"""The command `reweight`: one weight per source of rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from dpbilevel.cli.fit_command import FitCommand


@dataclass(frozen=True, kw_only=True)
class Reweight(FitCommand):
    """Tune the weights of sources of private rows, train a linear model, and write the run with its report."""

    source: Annotated[str, "The column with the source of each row."]
    validation: Annotated[Path | None, "A file of validation rows that are known to be correct."] = None

    command = "reweight"
    example = "dpbilevel reweight visits.csv --target sick --source hospital --schema schema.toml --out run"
    title = "Source weights"
    places = ("source",)

    @classmethod
    def estimators(cls) -> Mapping[str, Any]:
        """Linear models with source weights."""
        from dpbilevel import estimators

        return {"classes": estimators.DPSourceWeightedClassifier, "range": estimators.DPSourceWeightedRegressor}


COMMAND = Reweight
