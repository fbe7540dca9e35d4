"""Groups of columns that share a penalty."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.applications.regularization import UNTUNED
from dpbilevel.errors import InvalidArgument
from dpbilevel.evaluation.heldout import labels


def numbered_groups(groups: Any, columns: int) -> tuple[npt.NDArray[Any], tuple[int, ...]]:
    """Sorted labels of groups, and the group index of each column and of the intercept (-1).

    >>> names, numbers = numbered_groups(["size", "size", "age"], 3)
    >>> names.tolist(), numbers
    (['age', 'size'], (1, 1, 0, -1))
    """
    if groups is None:
        return np.array(["all"]), (*([0] * columns), UNTUNED)
    given = labels(groups)
    if given is None or len(given) != columns or given.dtype.kind not in "biuU":
        raise InvalidArgument(
            f"groups: must have one label for each of the {columns} columns, all integers or all strings, so that "
            "every column is in exactly one group"
        )
    names, numbers = np.unique(given, return_inverse=True)
    return names, (*(int(number) for number in numbers), UNTUNED)
