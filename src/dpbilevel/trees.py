"""Pytrees of arrays as JSON and back, exactly: floats keep every bit, tuples stay tuples."""

import math
from typing import Any

import jax
import numpy as np

Tree = Any


def encoded(tree: Tree) -> Any:
    """A JSON value for a pytree of dicts, lists, tuples, strings, numbers and arrays.

    Non-finite numbers become the strings "inf", "-inf" and "nan", which standard JSON has no other word for. Other
    containers become a dict from the path of each leaf to the leaf.
    """
    if tree is None or isinstance(tree, str | bool):
        return tree
    if isinstance(tree, int | float):
        return _number(tree)
    if isinstance(tree, np.ndarray | np.generic | jax.Array):
        array = np.asarray(tree)
        return {"array": _nested(array.tolist()), "dtype": str(array.dtype)}
    if isinstance(tree, dict):
        return {"dict": {str(key): encoded(value) for key, value in tree.items()}}
    if isinstance(tree, list) or type(tree) is tuple:
        return {"tuple" if isinstance(tree, tuple) else "list": [encoded(value) for value in tree]}
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return encoded({jax.tree_util.keystr(path): leaf for path, leaf in paths})


def decoded(value: Any) -> Tree:
    """The inverse of `encoded`; arrays come back as NumPy arrays.

    >>> tree = {"w": (np.float32([0.1, np.inf]), 3), "name": "a"}
    >>> decoded(encoded(tree))
    {'w': (array([0.1, inf], dtype=float32), 3), 'name': 'a'}
    """
    if not isinstance(value, dict):
        return value if value not in ("inf", "-inf", "nan") else float(value)
    if "array" in value:
        return np.array(_floats(value["array"]), dtype=value["dtype"])
    if "dict" in value:
        return {key: decoded(item) for key, item in value["dict"].items()}
    if "tuple" in value:
        return tuple(decoded(item) for item in value["tuple"])
    return [decoded(item) for item in value["list"]]


def _number(number: float) -> Any:
    return number if isinstance(number, int) or math.isfinite(number) else str(float(number))


def _nested(value: Any) -> Any:
    return [_nested(item) for item in value] if isinstance(value, list) else _number(value)


def _floats(value: Any) -> Any:
    return [_floats(item) for item in value] if isinstance(value, list) else decoded(value)
