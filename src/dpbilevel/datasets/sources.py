"""Where the bytes of a data set come from: a directory, a package that carries them, or scikit-learn's fetchers.

A directory holds one ``<name>.npz`` for each data set: plain arrays, and ``meta_json``, a text with the names of
columns (``numeric_columns``, ``categorical_columns``) and of category codes (``categories``).
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
    """The needed arrays of ``<name>.npz`` in a directory; None where no directory was named that has the file.

    A directory that was given as an argument must have it: nothing is downloaded in its place.
    """
    if data is not None:
        if not isinstance(data, str | os.PathLike) or not os.path.isfile(os.path.join(data, f"{name}.npz")):
            raise InvalidArgument(f"data={data!r:.200}: must be a directory that has {name}.npz")
        path = Path(data) / f"{name}.npz"
    elif os.environ.get(VARIABLE):
        path = Path(os.environ[VARIABLE]) / f"{name}.npz"
        if not path.is_file():
            return None
    else:
        return None
    with np.load(path, allow_pickle=False) as file:
        lacking = [key for key in needed if key not in file.files]
        if lacking:
            raise InvalidArgument(f"{path.name}: lacks the array {lacking[0]!r}; another file of the same name?")
        return {key: file[key] for key in needed}


def names_in(arrays: dict[str, Array]) -> dict[str, Any]:
    """The names of columns and categories that a file carries."""
    names: dict[str, Any] = json.loads(str(arrays["meta_json"]))
    return names


def package_file(package: str, *parts: str) -> Path | None:
    """A file of an installed package, which is found and never imported: an import may fail on a newer Python."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0]).joinpath(*parts)
    return path if path.is_file() else None


def fetched(name: str, fetch: Callable[[Any], Any]) -> Any:
    """What a fetcher of scikit-learn returns; ``fetch`` is given ``sklearn.datasets``."""
    try:
        import sklearn.datasets

        return fetch(sklearn.datasets)
    except (ImportError, OSError, ValueError) as error:  # not installed, no internet, or the service is down
        raise unavailable(name, "install scikit-learn and pandas on a machine with internet access") from error


def unavailable(name: str, *ways: str) -> InvalidArgument:
    """The error for data that are nowhere to be found, with all ways to get them."""
    directory = f"give a directory that has {name}.npz as data=..., or in the environment variable {VARIABLE}"
    return InvalidArgument(f"data=None: {name} is not on this machine; {', or '.join([directory, *ways])}")
