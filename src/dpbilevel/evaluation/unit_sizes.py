"""How many rows units have: a private histogram, for those who have no public bound on it.

A unit contributes a one to one bin, those of 1, 2, 3 to 4, 5 to 8, ... rows. It is a record with one row here, which
holds its number of rows. The histogram is a release of its own, with its own budget: it is charged before it is made,
and to the same ledger as the runs that use a k chosen from it. A k that was read off the data without a charge would be
a leak.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.errors import InvalidArgument
from dpbilevel.execution.program import Program, Stage
from dpbilevel.execution.running import check_ledger, run
from dpbilevel.foundation.arguments import count
from dpbilevel.foundation.structure import function
from dpbilevel.foundation.tables import text_table
from dpbilevel.planning import check_delta
from dpbilevel.privacy.accounting import all_charges
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.calibration import calibrate
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.privacy.spend import Privacy
from dpbilevel.privacy.units import listed_ids, read_ids
from dpbilevel.records import Records
from dpbilevel.solving import warn_if_not_private

_ROLE = "lower"


@dataclass(frozen=True, eq=False)
class UnitSizes:
    """A released histogram of rows per unit.

    Attributes:
        fractions: largest number of rows of a bin -> noisy fraction of units in it; infinite for the last bin. Noise
            may make a fraction negative.
        noise_std: standard deviation of the noise on each fraction.
        units: number of units, public.
        privacy: the spend of the release.
    """

    fractions: Mapping[float, float]
    noise_std: float
    units: int
    privacy: Privacy

    def covered(self, rows_per_unit: int) -> float:
        """The noisy fraction of units that have at most so many rows, which must be the end of a bin."""
        if rows_per_unit not in self.fractions:
            ends = ", ".join(str(end) for end in self.fractions if math.isfinite(end))
            raise InvalidArgument(f"rows_per_unit={rows_per_unit!r}: must be the end of a bin, one of {ends}")
        return sum(part for end, part in self.fractions.items() if end <= rows_per_unit)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; the last bin, which has no end, is "more"."""
        fractions = {f"{end}" if math.isfinite(end) else "more": part for end, part in self.fractions.items()}
        return {
            "units": self.units,
            "fractions": fractions,
            "noise": self.noise_std,
            "private": not self.privacy.void,
            "guarantee": self.privacy.sentence(),
            "epsilon": self.privacy.epsilon(),
            "delta": self.privacy.budget.delta,
        }

    def __repr__(self) -> str:
        ends = [end for end in self.fractions if math.isfinite(end)]
        rows = [[f"{end}", f"{self.covered(int(end)):.1%}"] for end in ends]
        table = text_table(["rows at most", "units"], rows)
        return (
            f"UnitSizes({self.units:,} units, noise {self.noise_std:.2g} on each bin; {self.privacy.label()})\n{table}"
        )


def unit_sizes(
    units: Any,
    budget: Budget,
    *,
    largest: int = 64,
    unit_ids: Any = None,
    ledger: Ledger | None = None,
    seed: int | None = None,
) -> UnitSizes:
    """Release how many rows units have, within a budget of its own.

    Guarantee: (budget.epsilon, budget.delta)-DP under ``budget.adjacency`` for all rows of one unit.

    Args:
        units: the id of the unit of each row: integers or strings.
        budget: of this release, with a finite epsilon; a small one will do.
        largest: public: bins end at 1, 2, 4, ... up to it, and one more is for all other units.
        unit_ids: a public list of all ids that may be in the data, not read off the rows, as in `dpb.Records`. Units
            without rows are in no bin.
        ledger: the ledger of the data set.
        seed: fixes the noise, for experiments. The result is then NOT private.

    >>> import numpy as np, dpbilevel as dpb
    >>> people = np.repeat(np.arange(3000), np.arange(3000) % 6 + 1)  # 1 to 6 rows
    >>> found = dpb.unit_sizes(people, dpb.Budget(0.5, 1e-5), largest=8)
    >>> bool(abs(found.covered(4) - 4 / 6) < 0.05), found.privacy
    (True, Privacy((0.5, 1e-05)-DP, replace-one, one unit))
    """
    if not isinstance(budget, Budget) or not budget.is_private:
        raise InvalidArgument("budget: must be dpb.Budget(epsilon, delta) with a finite epsilon")
    check_ledger(ledger)
    schedule = KeySchedule(seed)
    last = math.ceil(math.log2(count("largest", largest, "it is the end of the last bin but one (try 64)")))
    ids = read_ids(units)
    listed = listed_ids(unit_ids, ids)
    names = np.unique(ids) if listed is None else listed
    numbers, number = np.bincount(np.searchsorted(names, ids), minlength=len(names)), len(names)
    check_delta(budget, number)
    # Of 1, 2, 3 to 4, ... rows: the exponent of the smallest power of two that is large enough; of no rows, none.
    bins = np.minimum(np.ceil(np.log2(np.maximum(numbers, 1))).astype(np.int32), last + 1)
    bins[numbers == 0] = -1
    release = _release(last + 2, number, budget)
    program = Program(
        rounds=1,
        stages=[Stage(release=release, query=_query, update=_update)],
        start=_start,
        observe=_observe,
        finish=_finish,
    )
    warn_if_not_private(budget, schedule)
    released = run(
        [program],
        Records(lower=bins, unit=np.arange(number), rows_per_unit=1),
        (None, np.zeros(last + 2, np.float32)),
        schedule,
        budget=budget,
        ledger=ledger,
        description="rows per unit",
        progress=False,
    )
    ends = [*(2**power for power in range(last + 1)), math.inf]
    return UnitSizes(
        fractions=dict(zip(ends, np.asarray(released.values[1], float).tolist(), strict=True)),
        noise_std=release.noise_std,
        units=number,
        privacy=Privacy(
            all_charges([release]), budget, void=schedule.reproducible, rows_per_unit=1, uses_all_rows=True
        ),
    )


def _release(bins: int, number: int, budget: Budget) -> Release:
    declared = Release(
        name="rows per unit",
        contributions={_ROLE: Contribution(function(_one_of(bins)), 1.0, number)},
        noise_std=1.0,
        uses=1,
        adjacency=budget.adjacency,
    )
    (release,) = calibrate([declared], budget)
    return release


@functools.lru_cache(maxsize=16)
def _one_of(bins: int) -> Any:
    return lambda point, record: jax.nn.one_hot(record, bins, dtype=jnp.float32)


def _query(state: Any, carry: Any, step: jax.Array) -> None:
    return None


def _update(state: Any, carry: Any, answer: Any, step: jax.Array) -> Any:
    return answer


def _start(x: Any, y: Any) -> Any:
    return y


def _observe(state: Any) -> Any:
    return state


def _finish(state: Any) -> tuple[None, Any]:
    return None, state
