"""California housing: median house values of census block groups in 1990."""

import numpy as np

from dpbilevel.datasets.dataset import Array, Dataset
from dpbilevel.datasets.sources import Directory, fetched, names_in, stored
from dpbilevel.foundation.arguments import in_the_form_of

# The extent of the state and the census's own caps; averages and populations are clamped by choice.
RANGES = {
    "MedInc": (0.0, 15.0),
    "HouseAge": (0.0, 52.0),
    "AveRooms": (0.0, 20.0),
    "AveBedrms": (0.0, 5.0),
    "Population": (0.0, 10_000.0),
    "AveOccup": (0.0, 10.0),
    "Latitude": (32.0, 42.0),
    "Longitude": (-125.0, -114.0),
}
# Counts and averages of counts span decades; what a place is worth depends on both coordinates.
MAPS = {
    "knots": "auto",
    "scales": dict.fromkeys(("AveRooms", "AveBedrms", "Population", "AveOccup"), "log"),
    "crosses": [("Latitude", "Longitude")],
}
TARGET_RANGE = (0.15, 5.0)  # the census's caps of house values, in 100,000 dollars


@in_the_form_of("data", "california_housing.npz")
def load_california(data: Directory = None) -> Dataset:
    """California housing: the eight columns of scikit-learn's data set, and house values in 100,000 dollars.

    Read from california_housing.npz (``X`` with the totals of each block group, ``y`` in dollars), otherwise from
    scikit-learn's fetcher.

    Args:
        data: a directory with california_housing.npz; by default DPBILEVEL_DATA and then the fetcher are tried.

    >>> load_california("/data")  # doctest: +SKIP
    Dataset('california', 20640 rows, 8 columns, numeric target)
    """
    arrays = stored("california_housing", data, "X", "y", "meta_json")
    if arrays is not None:
        X, target = _averaged(arrays), arrays["y"].astype(np.float64) / 100_000
    else:
        bunch = fetched("california_housing", lambda datasets: datasets.fetch_california_housing())
        named = dict(zip(bunch.feature_names, bunch.data.T, strict=True))
        X, target = {name: named[name] for name in RANGES}, bunch.target
    return Dataset(
        name="california",
        X=X,
        target=target,
        ranges=dict(RANGES),
        maps=dict(MAPS),
        target_range=TARGET_RANGE,
        citation="R. K. Pace and R. Barry, Sparse spatial autoregressions, Statistics and Probability Letters 33, 1997",
        licence="none stated (US census data)",
    )


def _averaged(arrays: dict[str, Array]) -> dict[str, Array]:
    """The columns of scikit-learn's data set, computed from the totals."""
    totals = dict(zip(names_in(arrays)["numeric_columns"], arrays["X"].T.astype(np.float64), strict=True))
    return {
        "MedInc": totals["median_income"],
        "HouseAge": totals["housing_median_age"],
        "AveRooms": totals["total_rooms"] / totals["households"],
        "AveBedrms": totals["total_bedrooms"] / totals["households"],
        "Population": totals["population"],
        "AveOccup": totals["population"] / totals["households"],
        "Latitude": totals["latitude"],
        "Longitude": totals["longitude"],
    }
