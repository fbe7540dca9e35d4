"""What protecting units costs against protecting rows, for every k, from public numbers only.

Units of at most k rows are clipped whole. A clip that leaves k rows unchanged is sqrt(k) times that of one row if the
rows of a unit are unrelated, and k times if they are alike. By this factor noise grows over that of a run that protects
rows and uses the same ones: the divisor, units times ``mean_rows``, stands for the number of rows. (Group privacy of k
rows takes k times the noise, whatever rows are.) A larger k keeps more rows. The signal is the number of rows kept:

    signal to noise of k over that of k = 1:    kept(k)/(kept(1) sqrt(k))  to  kept(k)/(kept(1) k),    kept(1) = 1

How many rows k keeps depends on the sizes of units, which are private. Here they are those of a geometric distribution,
the one of largest entropy among those of its mean: with continuation probability q, the mean of min(size, k) is
1 + q + ... + q^(k-1), and q follows from the declared mean of rows that are used, ``mean_rows``. Nothing is measured,
and nothing but this table depends on it.
"""

import math
from typing import Any

from scipy.optimize import brentq

from dpbilevel.privacy.record_shapes import RecordShapes

_BEYOND = 2  # the largest k of the table, as a multiple of the declared one


def unit_costs(sizes: RecordShapes) -> dict[str, tuple[Any, str]]:
    """Parameters of a plan that compare k = 1, 2, 4, ...; none if records are rows, or units of one row.

    >>> import numpy as np
    >>> costs = unit_costs(RecordShapes(lower=np.zeros(1000), rows_per_unit=4, mean_rows=3))
    >>> list(costs)
    ['units: k = 1', 'units: k = 2', 'units: k = 4 (this plan)', 'units: k = 8']
    >>> unrelated, alike = costs["units: k = 4 (this plan)"][0]
    >>> unrelated, alike
    (1.5, 0.75)
    """
    if (sizes.rows_per_unit or 1) == 1 or sizes.mean_rows is None:
        return {}
    most, mean = sizes.rows_per_unit, sizes.mean_rows
    assert most is not None
    probability = continuation(most, mean)
    # Where the mean is not below k, nothing is known of larger ones.
    largest, known = (_BEYOND * most, "if sizes are geometric") if probability < 1 else (most, "since mean_rows is k")
    costs: dict[str, tuple[Any, str]] = {}
    for k in bounds(most, largest):
        kept, plans = rows_kept(probability, k), " (this plan)" if k == most else ""
        costs[f"units: k = {k}{plans}"] = (
            (round(kept / math.sqrt(k), 3), round(kept / k, 3)),
            f"signal to noise against k = 1, if rows of a unit are unrelated, or alike: {kept:.3g} are used ({known}), "
            f"with {math.sqrt(k):.3g} to {k} times the noise of a run that protects rows",
        )
    return costs


def bounds(most: int, largest: int) -> list[int]:
    """1, 2, 4, ..., and the declared k.

    >>> bounds(6, 12)
    [1, 2, 4, 6, 8]
    """
    powers = [2**power for power in range(math.floor(math.log2(largest)) + 1)]
    return sorted({*powers, most})


def rows_kept(probability: float, rows_per_unit: int) -> float:
    """The mean of min(size, k) of geometric sizes.

    >>> rows_kept(0.5, 3)
    1.75
    """
    return math.fsum(probability**row for row in range(rows_per_unit))


def continuation(rows_per_unit: int, mean_rows: float) -> float:
    """The probability with which a unit has another row, from k and the mean of the rows that are used.

    >>> round(continuation(3, 1.75), 6), continuation(3, 3.0), continuation(3, 1.0)
    (0.5, 1.0, 0.0)
    """
    if mean_rows <= 1:
        return 0.0
    if mean_rows >= rows_per_unit:
        return 1.0
    return float(brentq(lambda q: rows_kept(q, rows_per_unit) - mean_rows, 0.0, 1.0))
