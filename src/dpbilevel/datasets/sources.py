"""Sources of data sets: a directory, an installed package that contains them, or scikit-learn's fetchers.

A directory contains one ``<name>.npz`` per data set: plain arrays, and ``meta_json``, a text with the names of columns
(``numeric_columns``, ``categorical_columns``) and of category codes (``categories``).
"""

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dpbilevel.datasets.dataset import Array
from dpbilevel.errors import InvalidArgument

VARIABLE = "DPBILEVEL_DATA"
Directory = str | os.PathLike[str] | None


def stored(name: str, data: Directory, *needed: str) -> dict[str, Array] | None:
    """The needed arrays of ``<name>.npz`` in a directory; None if no directory is set or it lacks the file.

    A directory passed as an argument must contain the file: nothing is downloaded instead.
    """
    if data is not None:
        if not isinstance(data, str | os.PathLike) or not os.path.isfile(os.path.join(data, f"{name}.npz")):
            raise InvalidArgument(f"data={data!r:.200}: must be a directory that contains {name}.npz")
        path = Path(data) / f"{name}.npz"
    elif os.environ.get(VARIABLE):
        path = Path(os.environ[VARIABLE]) / f"{name}.npz"
        if not path.is_file():
            return None
    else:
        return None
    with np.load(path, allow_pickle=False) as file:
        missing = [key for key in needed if key not in file.files]
        if missing:
            raise InvalidArgument(
                f"{path.name}: lacks the array {missing[0]!r}; check that it is the file of this data set"
            )
        return {key: file[key] for key in needed}


def names_in(arrays: dict[str, Array]) -> dict[str, Any]:
    """The names of columns and categories stored in a file."""
    names: dict[str, Any] = json.loads(str(arrays["meta_json"]))
    return names


def package_file(package: str, *parts: str) -> Path | None:
    """A file of an installed package. The package is not imported: that may fail on a newer Python."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]).joinpath(*parts)
    return path if path.is_file() else None


def fetched(name: str, fetch: Callable[[Any], Any]) -> Any:
    """Call ``fetch`` with ``sklearn.datasets`` and return its result."""
    try:
        import sklearn.datasets

        return fetch(sklearn.datasets)
    except (ImportError, OSError, ValueError) as error:  # not installed, no internet, or the service is down
        raise unavailable(name, "install scikit-learn and pandas on a machine with internet access") from error


def unavailable(name: str, *ways: str) -> InvalidArgument:
    """The error for data that cannot be found, with all ways to get them."""
    directory = f"give a directory that contains {name}.npz as data=... or in the environment variable {VARIABLE}"
    return InvalidArgument(f"data=None: {name} is not on this machine; {', or '.join([directory, *ways])}")
