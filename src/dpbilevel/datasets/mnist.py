"""MNIST: handwritten digits, 28 by 28 grey pixels."""

import numpy as np

from dpbilevel.datasets.dataset import Dataset
from dpbilevel.datasets.sources import Directory, fetched, stored
from dpbilevel.foundation.arguments import in_the_form_of

PIXELS = 28 * 28
TRAINING = 60_000  # OpenML has the training rows first, then those for testing


@in_the_form_of("data", "mnist.npz")
def load_mnist(data: Directory = None) -> Dataset:
    """MNIST: a matrix with 784 pixels (0 to 255) per row, and digits 0 to 9.

    Read from mnist.npz (``X_train``, ``y_train``, ``X_test``, ``y_test``), otherwise from OpenML.

    Args:
        data: a directory with mnist.npz; by default DPBILEVEL_DATA and then scikit-learn's fetcher are tried.

    >>> load_mnist("/data")  # doctest: +SKIP
    Dataset('mnist', 60000 rows, 784 columns, 10 classes, 10000 test rows)
    """
    arrays = stored("mnist", data, "X_train", "y_train", "X_test", "y_test")
    if arrays is None:
        bunch = fetched("mnist", lambda datasets: datasets.fetch_openml("mnist_784", version=1, as_frame=False))
        arrays = {"X_train": bunch.data[:TRAINING], "X_test": bunch.data[TRAINING:]}
        arrays |= {"y_train": bunch.target[:TRAINING], "y_test": bunch.target[TRAINING:]}
    return Dataset(
        name="mnist",
        X=arrays["X_train"].reshape(-1, PIXELS).astype(np.uint8),
        target=arrays["y_train"].astype(np.int64),
        test_X=arrays["X_test"].reshape(-1, PIXELS).astype(np.uint8),
        test_target=arrays["y_test"].astype(np.int64),
        ranges=dict.fromkeys(range(PIXELS), (0.0, 255.0)),
        classes=tuple(range(10)),
        citation="Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, Gradient-based learning applied to document "
        "recognition, Proceedings of the IEEE 86(11), 1998",
        licence="CC BY-SA 3.0",
    )
