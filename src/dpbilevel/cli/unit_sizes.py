"""The histogram of rows per unit of a file: read one column of ids, charge, release, show.

It is for those who have no public bound on the rows of a unit. Ids are private: no message has one, nor their content.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpbilevel.cli.console import Console
from dpbilevel.cli.ending import RunFailed, describe_unexpected
from dpbilevel.cli.layout import Layout
from dpbilevel.cli.run_folder import HeldLedger
from dpbilevel.cli.table_file import open_table
from dpbilevel.cli.units import ids_of_rows, listed_units
from dpbilevel.cli.wording import for_command_line
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.base import default_delta
from dpbilevel.evaluation.unit_sizes import UnitSizes, unit_sizes
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.privacy.stores.entry import unit_of_column

_SPENT = "The histogram had been charged: its epsilon counts as spent."


@dataclass(frozen=True, kw_only=True)
class WantedSizes:
    """What to release, as options of the command.

    Args:
        unit: the column of ids.
        unit_ids: a public list of all ids that may be in the data, if there is one.
        largest: the end of the last bin but one; public.
        epsilon, delta, adjacency: of the histogram; without delta it is 1/n^1.1, rounded down, for n units.
    """

    unit: str
    unit_ids: Path | None
    largest: int
    epsilon: float
    delta: float | None
    adjacency: str

    def budget(self, units: int) -> Budget:
        """The budget of a histogram of this number of units."""
        if not math.isfinite(self.epsilon):
            raise InvalidArgument("--epsilon inf: must be finite; exact numbers of rows per unit are private")
        delta = default_delta(units) if self.delta is None else self.delta
        return Budget(self.epsilon, delta, self.adjacency)  # type: ignore[arg-type]


def release_sizes(data: Path, wanted: WantedSizes, *, layout: Layout, ledger: Ledger | None) -> UnitSizes:
    """Release how many rows units have. What can be refused is refused before the charge."""
    table = open_table(data, layout)
    if wanted.unit not in table.names:
        raise InvalidArgument(f"--unit {wanted.unit}: {data} has no such column ({table.remedy})")
    ids = ids_of_rows(table, wanted.unit)
    listed = listed_units(wanted.unit_ids)
    budget = wanted.budget(len(np.unique(ids) if listed is None else listed))
    own = HeldLedger(Ledger(budget) if ledger is None else ledger, unit_of_column(wanted.unit), lambda: _SPENT)
    try:
        return unit_sizes(ids, budget, largest=wanted.largest, unit_ids=listed, ledger=own)
    except BaseException as error:
        if own.receipt is None:
            raise
        raise RunFailed(f"the histogram failed ({describe_unexpected(error)}). {_SPENT}") from None


def show_sizes(console: Console, found: UnitSizes) -> None:
    """Print the histogram."""
    ends = [int(end) for end in found.fractions if math.isfinite(end)]
    rows = [
        [f"{end:,}", f"{found.covered(end):.1%}", f"{found.noise_std * math.sqrt(place):.2g}"]
        for place, end in enumerate(ends, 1)
    ]
    console.print(f"\n{for_command_line(found.privacy.sentence())}")
    console.table(f"Rows per unit, of {found.units:,} units", ["rows at most", "units", "noise"], rows)
    console.print("\nA bound for --rows-per-unit that is chosen from this is public.")
    console.result(found.to_json())
