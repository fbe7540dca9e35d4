"""Text as a bag of words, hashed into a declared number of columns.

The hash is public and the same everywhere: a list of words learnt from the data would be a release that is not charged.
Hashed words are cells of encoded rows, as private as the text.
"""

import re
from typing import Any

import numpy as np
import numpy.typing as npt

_WORD = re.compile(r"\w+")
# FNV-1a with 32 bits (Fowler, Noll, Vo): its offset and its prime.
_OFFSET, _PRIME, _BITS = 0x811C9DC5, 0x01000193, 0xFFFFFFFF
# Rows are made shorter by this factor, so that rounding to float32 cannot make them longer than declared.
_SHORTER = 1 - 2.0**-20


def column_of(word: str, columns: int) -> int:
    """The column of a word, the same on every machine.

    >>> column_of("flour", 64), column_of("butter", 64)
    (39, 31)
    """
    number = _OFFSET
    for byte in word.encode("utf-8", "surrogatepass"):
        number = (number ^ byte) * _PRIME & _BITS
    return number % columns


def write_words(cells: list[Any], out: npt.NDArray[np.float32], scale: Any) -> None:
    """Write the counts of words in each cell, scaled to norm ``scale``, into rows of zeros; letter case is ignored.

    >>> out = np.zeros((2, 5), np.float32)
    >>> write_words(["Flour, butter. FLOUR!", None], out, 1.0)
    >>> out.astype(float).round(2).tolist()
    [[0.0, 0.0, 0.45, 0.0, 0.89], [0.0, 0.0, 0.0, 0.0, 0.0]]
    """
    columns, known = out.shape[1], {}  # type: tuple[int, dict[str, int]]
    rows: list[int] = []
    places: list[int] = []
    for row, cell in enumerate(cells):
        for word in _WORD.findall(cell.lower()) if isinstance(cell, str) else ():
            place = known.get(word)
            if place is None:
                place = known[word] = column_of(word, columns)
            rows.append(row)
            places.append(place)
    np.add.at(out, (np.array(rows, np.intp), np.array(places, np.intp)), np.float32(1.0))
    norms = np.sqrt(np.einsum("ij,ij->i", out, out, dtype=np.float64))
    out *= (np.float64(scale) * _SHORTER / np.where(norms > 0, norms, 1.0))[:, None]
