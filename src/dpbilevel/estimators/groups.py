"""Groups of columns that share a penalty."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.applications.regularization import UNTUNED
from dpbilevel.errors import InvalidArgument


def numbered_groups(groups: Any, columns: int) -> tuple[npt.NDArray[Any], tuple[int, ...]]:
    """Labels of groups in order, and for each column and the intercept the number of its group.

    >>> labels, numbers = numbered_groups(["size", "size", "age"], 3)
    >>> labels.tolist(), numbers
    (['age', 'size'], (1, 1, 0, -1))
    """
    if groups is None:
        return np.array(["all"]), (*([0] * columns), UNTUNED)
    given = np.asarray(list(groups) if isinstance(groups, range) else groups)
    if given.shape != (columns,) or given.dtype.kind not in "biuU":
        raise InvalidArgument(
            f"groups: must give one label (a whole number or a string) for each of the {columns} columns, so that "
            f"every column is in exactly one group; its shape is {given.shape}"
        )
    labels, numbers = np.unique(given, return_inverse=True)
    return labels, (*(int(number) for number in numbers), UNTUNED)
