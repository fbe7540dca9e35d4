"""Labels of rows as indices of listed words: four bytes for each row, where text takes a multiple of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Codes:
    """Labels of rows.

    >>> codes = Codes(("no", "yes"), np.zeros(3, np.int32))
    >>> codes.write(1, ["yes", "no"])
    >>> len(codes), codes[[0, 1]].words().tolist()
    (3, ['no', 'yes'])
    """

    values: tuple[str, ...]
    indices: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, rows: Any) -> "Codes":
        return Codes(self.values, self.indices[rows])

    def write(self, first: int, words: Sequence[str]) -> None:
        """Set the labels of rows from the first one on; all of them are listed."""
        index = {value: at for at, value in enumerate(self.values)}
        self.indices[first : first + len(words)] = [index[word] for word in words]

    def words(self) -> npt.NDArray[np.object_]:
        """The labels as text; equal ones share one string."""
        return np.array(self.values, dtype=object)[self.indices]
