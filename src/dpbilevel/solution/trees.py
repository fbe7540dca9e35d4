"""Lossless conversion of pytrees of arrays to JSON and back: floats keep every bit, tuples stay tuples."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Tree = Any


def encoded(tree: Tree) -> Any:
    """A JSON value for a pytree of dicts, lists, tuples, strings, numbers and arrays.

    Standard JSON has no non-finite numbers: they are written as tagged strings. Other containers become a dict from the
    path of each leaf to the leaf.
    """
    if tree is None or isinstance(tree, str | bool | int):
        return tree
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else {"float": str(tree)}
    if isinstance(tree, np.ndarray | np.generic | jax.Array):
        array = np.asarray(tree)
        if array.dtype.kind not in "biu" and not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(
                f"arrays of dtype {array.dtype} cannot be saved; only real numbers, integers and booleans can"
            )
        return {"array": _finite_or_text(array.ravel().tolist()), "shape": list(array.shape), "dtype": str(array.dtype)}
    if isinstance(tree, dict):
        if all(isinstance(key, str) for key in tree):
            return {"dict": {key: encoded(value) for key, value in tree.items()}}
        return {"items": [[encoded(key), encoded(value)] for key, value in tree.items()]}
    if isinstance(tree, list) or type(tree) is tuple:
        return {"tuple" if isinstance(tree, tuple) else "list": [encoded(value) for value in tree]}
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    if any(leaf is tree for _, leaf in paths):
        raise TypeError(f"values of type {type(tree).__name__} cannot be saved; only arrays, numbers and strings can")
    return encoded({jax.tree_util.keystr(path): leaf for path, leaf in paths})


def decoded(value: Any) -> Tree:
    """The inverse of `encoded`; arrays come back as NumPy arrays.

    >>> tree = {"w": (np.float32([0.1, np.inf]), 3), "name": "a"}
    >>> decoded(encoded(tree))
    {'w': (array([0.1, inf], dtype=float32), 3), 'name': 'a'}
    """
    if not isinstance(value, dict):
        return value
    ((kind, content),) = ((key, value[key]) for key in _KINDS if key in value)
    match kind:
        case "float":
            return float(content)
        case "array":
            numbers = [float(item) if isinstance(item, str) else item for item in content]
            return np.array(numbers, dtype=value["dtype"]).reshape(value["shape"])
        case "dict":
            return {key: decoded(item) for key, item in content.items()}
        case "items":
            return {decoded(key): decoded(item) for key, item in content}
        case "tuple":
            return tuple(map(decoded, content))
    return list(map(decoded, content))


_KINDS = ("float", "array", "dict", "items", "tuple", "list")


def _finite_or_text(numbers: list[Any]) -> list[Any]:
    return [str(x) if isinstance(x, float) and not math.isfinite(x) else x for x in numbers]
