"""The command `tune`: penalties of a linear model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from dpbilevel.cli.fit_command import WEIGHT, FitCommand
from dpbilevel.errors import InvalidArgument

if TYPE_CHECKING:
    from dpbilevel.cli.schema import Schema
    from dpbilevel.encoding.encoder import BoundedEncoder

_GROUPS = {
    "one": "one for all columns",
    "columns": "one per column",
    "schema": "one per group of the schema",
}


@dataclass(frozen=True, kw_only=True)
class Tune(FitCommand):
    """Tune the penalties of a linear model on private rows, train it, and write the run with its report."""

    groups: Annotated[str, "Penalties: one (for all columns), columns (one per column), or schema (one per group)."] = (
        "one"
    )

    smooth: Annotated[bool, "Penalise wiggles of the curves of numbers and dates, each with a penalty of its own."] = (
        False
    )

    weight: Annotated[str | None, "A column of weights of rows, with range = [0, largest] in the schema."] = None

    command = "tune"
    example = "dpbilevel tune people.csv --target income --schema schema.toml --epsilon 1 --delta 1e-6 --out run"
    title = "A privately trained model"

    @classmethod
    def estimators(cls) -> Mapping[str, Any]:
        """Linear models with penalties."""
        from dpbilevel import estimators

        return {"classes": estimators.DPLogisticRegressionCV, "range": estimators.DPRidgeCV}

    def check(self) -> None:
        """Check the options for groups too."""
        super().check()
        if self.groups not in _GROUPS:
            raise InvalidArgument(f"--groups {self.groups}: must be one of {', '.join(_GROUPS)}")

    def declared(self, schema: "Schema", encoder: "BoundedEncoder") -> dict[str, Any]:
        """The group of each encoded column, smoothness, and the largest weight."""
        from dpbilevel.cli.rows import group_names

        more = {} if self.weight is None else {"largest_weight": schema.columns[self.weight].values[1]}
        more["smooth"] = self.smooth
        if self.groups == "one":
            return {"groups": None} | more
        names = group_names(encoder)
        if self.groups == "schema":
            groups = {name: schema.columns[name].group for name in encoder.feature_names_in_}
            if not any(groups.values()):
                raise InvalidArgument(f'--groups schema: no column of {self.schema} has a group; add group = "name"')
            names = [groups.get(name) or name for name in names]
        return {"groups": [names[at] for at in encoder.group_of_column_]} | more

    def facts(self) -> dict[str, str]:
        """The number of penalties, whether curves are smoothed, and the weights of rows."""
        smooth = {"smoothness": "a penalty for each curve"} if self.smooth else {}
        return {"penalties": _GROUPS[self.groups]} | smooth | ({} if self.weight is None else {WEIGHT: self.weight})


COMMAND = Tune
