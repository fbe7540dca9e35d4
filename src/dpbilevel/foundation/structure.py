"""What of a program is compiled, and what is passed to it: structure and numbers.

Objects that make up a program are pytrees. Their leaves are *numbers*: noise, clips, learning rates, numbers of steps.
Everything else is *structure*: functions, shapes, names. Compiled code is reused for equal structures. It cannot hold a
number of another plan, because a number is a tracer wherever code is traced: to branch on it, or to convert it to a
Python number, raises before anything is charged.

Structures are compared by value where values can be compared, and otherwise by identity, so that in doubt a program is
compiled again. Functions are compared by identity. A function of a program is therefore defined once (in a module, or
by a cached builder that sees nothing but structure), and gets its numbers as arguments by `function`. Another one, such
as a closure that a method makes for each plan, is as right, but compiled for every plan.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.tree_util import Partial

T = TypeVar("T")


def function(called: Callable[..., Any], *numbers: Any) -> Callable[..., Any]:
    """A function as part of a program: ``called`` is structure, its first arguments are numbers (pytrees of them).

    An argument that is itself a function becomes one of these, without numbers.

    >>> double = function(lambda factor, value: factor * value, 2.0)
    >>> double(3.0), jax.tree.leaves(double)
    (6.0, [2.0])
    """
    if isinstance(called, Partial) and not numbers:
        return called
    arguments = (function(number) if callable(number) else number for number in numbers)
    return Partial(called if _is_hashable(called) else _ByIdentity(called), *arguments)


def passing(*numbers: str, structure: tuple[str, ...] = ()) -> Callable[[type[T]], type[T]]:
    """Class decorator: an object as part of a program, with these attributes as numbers and those as structure.

    Compiled code sees an object that has these attributes only: to read another one raises. A mapping keeps its order.
    """

    def split(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {name: getattr(value, name) for name in numbers}, {name: getattr(value, name) for name in structure}

    return lambda cls: register(cls, split)


def register(cls: type[T], split: Callable[[T], tuple[dict[str, Any], dict[str, Any]]]) -> type[T]:
    """Make a class a pytree; ``split`` returns the attributes that are numbers, and those that are structure."""

    def flatten(value: T) -> tuple[tuple[Any, ...], _Structure]:
        numbers, structure = split(value)
        children = tuple(OrderedDict(part) if isinstance(part, Mapping) else part for part in numbers.values())
        return children, _Structure(tuple(numbers), structure)

    def unflatten(structure: _Structure, children: Any) -> T:
        # Without the checks of the constructor, which are of numbers.
        made = object.__new__(cls)
        for name, value in (*zip(structure.numbers, children, strict=True), *structure.values.items()):
            object.__setattr__(made, name, value)
        return made

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    return cls


class _Structure:
    """Attributes that are part of compiled code."""

    __slots__ = ("_key", "numbers", "values")

    def __init__(self, numbers: tuple[str, ...], values: Mapping[str, Any]) -> None:
        self.numbers, self.values = numbers, values
        self._key = (numbers, _key(values))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Structure) and self._key == other._key

    def __repr__(self) -> str:
        return f"structure({', '.join(self.values)})"


class _ByIdentity:
    """A value that has no hash, compared by identity; it can be called if the value can."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __call__(self, *arguments: Any) -> Any:
        return self._value(*arguments)

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self._value is other._value


def _key(value: Any) -> Any:
    """A value by which structures are compared. Equal numbers of different types, such as 1 and True, differ."""
    if isinstance(value, Mapping):
        return type(value), tuple((name, _key(part)) for name, part in value.items())
    if type(value) in (tuple, list):
        return type(value), tuple(map(_key, value))
    if isinstance(value, slice):
        return slice, value.start, value.stop, value.step
    if isinstance(value, float):
        return float, value.hex()  # zero and minus zero differ
    return (type(value), value) if _is_hashable(value) else _ByIdentity(value)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def key_of(tree: Any) -> Any:
    """A hashable value by which pytrees of shapes, or of other structure, are compared."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(map(_key, leaves))


def numbers_as_bytes(tree: Any) -> bytes:
    """All numbers of an object, with their types: what its structure leaves out."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return b"".join(f"{array.dtype.str} {array.shape} ".encode() + array.tobytes() for array in arrays)
