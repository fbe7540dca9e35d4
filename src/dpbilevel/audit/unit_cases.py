"""Cases of units: a person with several rows, all of which change together.

The canary is a unit of k equal rows, so that the sum over its rows is k times that over one: a clip of rows in place of
units, or a sensitivity of one row, is refuted by what works against rows.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from dpbilevel.audit.case import Case
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count
from dpbilevel.methods.unit_losses import problem_of_units
from dpbilevel.privacy.bundles import Bundle

ROWS_PER_UNIT = 8


def of_units(case: Case, rows_per_unit: int = ROWS_PER_UNIT) -> Case:
    """The same case with a unit of k equal rows in place of each record.

    Args:
        case: a case of rows.
        rows_per_unit: k.

    >>> from dpbilevel.audit import standard_cases
    >>> import dpbilevel as dpb
    >>> of_units(standard_cases(dpb.Budget(4.0, 1e-2))[0])
    Case(DPBilevel, DPLocGD, one step, units of 8 rows: DPBilevel, 48 records, one of lower differs)
    """
    if any(isinstance(tree, Bundle) for tree in case.records.values()):
        raise InvalidArgument("case: is one of units already; give a case of rows")
    number = count("rows_per_unit", rows_per_unit, "it is the number of rows of each unit (try 8)")

    def bundled(records: Mapping[str, Any]) -> dict[str, Bundle]:
        return {role: _repeated(tree, number) for role, tree in records.items()}

    return replace(
        case,
        name=f"{case.name}, units of {number} rows",
        problem=problem_of_units(case.problem, 1.0),
        records=bundled(case.records),
        neighbour=bundled(case.neighbour),
    )


def _repeated(tree: Any, number: int) -> Bundle:
    rows = jax.tree.map(lambda leaf: np.repeat(leaf[:, None], number, axis=1), tree)
    return Bundle(rows, np.ones((len(jax.tree.leaves(tree)[0]), number), bool))
