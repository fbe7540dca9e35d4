"""The command `reweight`: a weight for each source of rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from dpbilevel.cli.fit_command import FitCommand


@dataclass(frozen=True, kw_only=True)
class Reweight(FitCommand):
    """Weigh the sources of private rows, train a linear model, and write a run with its report."""

    source: Annotated[str, "The column that says where a row comes from."]
    validation: Annotated[Path | None, "A file of rows that are known to be good."] = None

    command = "reweight"
    example = "dpbilevel reweight visits.csv --target sick --source hospital --schema schema.toml --out run"
    title = "Sources weighed"
    places = ("source",)

    @classmethod
    def estimators(cls) -> Mapping[str, Any]:
        """Linear models with weights of sources."""
        from dpbilevel import estimators

        return {"classes": estimators.DPSourceWeightedClassifier, "range": estimators.DPSourceWeightedRegressor}


COMMAND = Reweight
