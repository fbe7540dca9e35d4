"""Omniglot, the two small background sets: 242 characters of 8 alphabets, each drawn by 20 people."""

import numpy as np

from dpbilevel.datasets.dataset import Dataset, decode
from dpbilevel.datasets.sources import Directory, stored, unavailable
from dpbilevel.foundation.arguments import in_the_form_of

SIDE = 105
ALPHABETS = {  # with their numbers of characters
    "Balinese": 24,
    "Early_Aramaic": 22,
    "Greek": 24,
    "Japanese_(katakana)": 47,
    "Korean": 40,
    "Latin": 26,
    "Sanskrit": 42,
    "Tagalog": 17,
}
CLASSES = tuple(
    f"{alphabet}/character{number:02}" for alphabet, size in ALPHABETS.items() for number in range(1, size + 1)
)


@in_the_form_of("data", "omniglot_small.npz")
def load_omniglot(data: Directory = None) -> Dataset:
    """Omniglot: a matrix with 11,025 pixels (1 is ink) per row, and characters such as "Greek/character01".

    Read from omniglot_small.npz (``X_bits``, rows of packed bits, and ``y``).

    Args:
        data: a directory with omniglot_small.npz; by default DPBILEVEL_DATA is tried.

    >>> load_omniglot("/data")  # doctest: +SKIP
    Dataset('omniglot', 4840 rows, 11025 columns, 242 classes)
    """
    arrays = stored("omniglot_small", data, "X_bits", "y")
    if arrays is None:
        raise unavailable("omniglot_small")
    return Dataset(
        name="omniglot",
        X=np.unpackbits(arrays["X_bits"], axis=-1)[..., :SIDE].reshape(-1, SIDE * SIDE),
        target=decode(arrays["y"], list(CLASSES)),
        ranges=dict.fromkeys(range(SIDE * SIDE), (0.0, 1.0)),
        classes=CLASSES,
        citation="B. Lake, R. Salakhutdinov and J. Tenenbaum, Human-level concept learning through probabilistic "
        "program induction, Science 350, 2015",
        licence="MIT",
    )
