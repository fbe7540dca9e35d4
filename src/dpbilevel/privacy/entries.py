"""A function of one record, traced once and then evaluated for a block of records inside a kernel, entry by entry.

Kernels know vectors with one entry for each record of a block, and little else: no slices, no stacks, no small
matrices. So a value that has some shape for one record becomes a NumPy array of that shape whose entries are such
vectors. What changes only shapes is then done by NumPy before anything is compiled, and what computes is done entry by
entry.

What does not depend on the record is computed before the kernel, by the same operations. A product of the record's row
with such a matrix is a *score*: the kernel computes all of them while it holds the row. Functions that do anything else
with a row, or with anything at all that is not listed here, raise `NotByEntries`, and are summed without the kernel.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

Tree = Any
Entries = Any  # a NumPy array of objects: numbers, and vectors with an entry for each record of a block

_LARGEST = 64  # entries of a value that is not a row, such as a score of several classes
_INLINED = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
_INLINED |= {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "remat2": "jaxpr", "checkpoint": "jaxpr"}
_NAMES = (
    "abs add add_any and atan atan2 ceil clamp convert_element_type cos cosh div eq exp exp2 expm1 floor ge gt "
    "integer_pow is_finite le log log1p logistic lt max min mul ne neg not or pow rem rsqrt select_n sign sin sinh "
    "sqrt square sub tan tanh xor"
)
_BY_ENTRY = frozenset(_NAMES.split())  # primitives that are computed entry by entry
_REDUCTIONS = {
    "reduce_sum": jax.lax.add,
    "reduce_max": jax.lax.max,
    "reduce_min": jax.lax.min,
    "reduce_prod": jax.lax.mul,
    "reduce_and": jax.lax.bitwise_and,
    "reduce_or": jax.lax.bitwise_or,
}


class NotByEntries(Exception):
    """The function does something that kernels cannot."""


class Value:
    """A value that depends on the record: how to compute its entries from those of others.

    Args:
        shape: for one record.
        operation: from entries of the operands to those of the value.
        operands: values, or arrays that do not depend on the record.
    """

    def __init__(self, shape: tuple[int, ...], operation: Callable[..., Entries], operands: Sequence[Any] = ()) -> None:
        if math.prod(shape) > _LARGEST:
            raise NotByEntries
        self.shape, self.operation, self.operands = shape, operation, operands


class Unread:
    """A leaf with too many entries, which nothing may read."""


class Row(Unread):
    """The record's row, or the row in another format that holds it exactly. Scores may read it."""


class Traced:
    """A function of a record and the norm of its row, traced: what a kernel needs in order to evaluate it.

    Args:
        function: from a record and a norm to a list of arrays.
        record: shapes of a record.
        row: which leaf of it is the row.
        dtype: in which scores are computed; norms are in float64.

    Attributes:
        columns: what multiplies rows, one line for each score.
        constants: arrays that do not depend on the record, raveled.
        leaves: which leaves of a record are read, besides the row.
    """

    def __init__(self, function: Callable[[Tree, Any], list[Any]], record: Tree, row: int, dtype: Any) -> None:
        leaves = jax.tree.leaves(record)
        norm = jax.ShapeDtypeStruct((), jnp.float64)
        traced = jax.make_jaxpr(function)(record, norm)
        self._dtype = dtype
        self._columns: list[jax.Array] = []
        self._scores: dict[int, Value] = {}
        self._shared: dict[Any, Any] = {}
        inputs: list[Any] = [_leaf(leaf.shape) for leaf in leaves]
        self._norm = Value((), lambda: None)
        inputs[row] = Row()
        self._outputs = self._evaluated(traced, [*inputs, self._norm])
        reached = _reached(self._outputs)
        self._inputs = {index: value for index, value in enumerate(inputs) if id(value) in reached}
        self.leaves = tuple(self._inputs)
        self._arrays = [value for value in reached.values() if not isinstance(value, Value) and not _is_literal(value)]
        self.constants = [jnp.ravel(value) for value in self._arrays]
        used = [index for index, score in self._scores.items() if id(score) in reached]
        self._used = {index: place for place, index in enumerate(used)}
        self.columns = [self._columns[index] for index in used]

    def lines(
        self,
        scores: Sequence[Any],
        leaves: Sequence[Entries],
        norm: Any,
        constants: Sequence[Sequence[Any]],
        length: int,
    ) -> list[Any]:
        """The numbers of a block of records, one vector for each number.

        Args:
            scores: one vector for each of `columns`.
            leaves: entries of each of `leaves`.
            norm: of the rows.
            constants: numbers of each of `constants`.
            length: of the block.
        """
        known: dict[int, Entries] = {id(self._norm): _entries([norm], ())}
        known |= {id(self._scores[index]): _entries([scores[place]], ()) for index, place in self._used.items()}
        known |= {id(self._inputs[index]): leaf for index, leaf in zip(self.leaves, leaves, strict=True)}
        for value, numbers in zip(self._arrays, constants, strict=True):
            known[id(value)] = _entries(list(numbers), jnp.shape(value))

        def of(value: Any) -> Entries:
            if _is_literal(value):
                return _entries([value], ())
            if id(value) not in known:
                known[id(value)] = value.operation(*(of(operand) for operand in value.operands))
            return known[id(value)]

        return [_vector(entry, length) for output in self._outputs for entry in of(output).ravel()]

    def _evaluated(self, traced: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
        jaxpr = traced.jaxpr
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, traced.consts, strict=True))
        known |= dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Any:
            if not isinstance(atom, Literal):
                return known[atom]
            described: Any = atom.aval
            return np.asarray(atom.val, described.dtype)

        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            for variable, value in zip(equation.outvars, self._applied(equation, operands), strict=True):
                known[variable] = value
        return [read(atom) for atom in jaxpr.outvars]

    def _applied(self, equation: Any, operands: list[Any]) -> list[Any]:
        """The values of an equation; equal equations have the same values, so that nothing is computed twice."""
        key = (equation.primitive, str(equation.params), tuple(map(_identity, operands)))
        if key not in self._shared:
            # The operands are kept, too: what is collected could give its identity to another.
            self._shared[key] = (self._computed(equation, operands), operands)
        found: list[Any] = self._shared[key][0]
        return found

    def _computed(self, equation: Any, operands: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        if name in _INLINED:
            inner = params[_INLINED[name]]
            return self._evaluated(inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ()), operands)
        if not any(isinstance(operand, Value | Unread) for operand in operands):
            found = equation.primitive.bind(*operands, **params)
            return list(found) if equation.primitive.multiple_results else [found]
        shapes = [variable.aval.shape for variable in equation.outvars]
        if any(isinstance(operand, Unread) for operand in operands):
            return [self._of_row(name, params, operands, shapes[0])]
        if name == "split":
            operation = functools.partial(_part, params["axis"], np.cumsum(params["sizes"]))
            return [Value(shape, functools.partial(operation, index), operands) for index, shape in enumerate(shapes)]
        return [Value(shapes[0], _operation(equation.primitive, params, shapes[0]), operands)]

    def _of_row(self, name: str, params: Any, operands: list[Any], shape: tuple[int, ...]) -> Any:
        if not all(isinstance(operand, Row) or not isinstance(operand, Value | Unread) for operand in operands):
            raise NotByEntries
        if name in ("convert_element_type", "copy", "stop_gradient"):
            if params.get("new_dtype", self._dtype) != self._dtype:
                raise NotByEntries
            return operands[0]
        if name != "dot_general" or all(isinstance(operand, Row) for operand in operands):
            raise NotByEntries
        place = 0 if isinstance(operands[0], Row) else 1
        other, contracted = operands[1 - place], params["dimension_numbers"][0][1 - place]
        if len(contracted) != 1 or jnp.result_type(other) != self._dtype:
            raise NotByEntries
        columns = jnp.moveaxis(other, contracted[0], -1).reshape(-1, other.shape[contracted[0]])
        if columns.shape[0] > _LARGEST:
            raise NotByEntries
        found = []
        for column in columns:
            found.append(Value((), lambda: None))
            self._scores[len(self._columns)] = found[-1]
            self._columns.append(column)
        return Value(shape, lambda *scores: _entries([score[()] for score in scores], shape), found)


def _leaf(shape: tuple[int, ...]) -> Any:
    return Unread() if math.prod(shape) > _LARGEST else Value(shape, lambda: None)


def _is_literal(value: Any) -> bool:
    """Whether it is a number that is known now, and not an array that is computed before the kernel."""
    return isinstance(value, np.ndarray) and value.ndim == 0


def _identity(operand: Any) -> Any:
    return (operand.dtype, operand.tobytes()) if _is_literal(operand) else id(operand)


def _reached(outputs: Sequence[Any]) -> dict[int, Any]:
    """All values on which the outputs depend, and arrays that do not depend on the record, by identity."""
    found: dict[int, Any] = {}
    waiting = list(outputs)
    while waiting:
        value = waiting.pop()
        if id(value) in found:
            continue
        if isinstance(value, Unread) or (not isinstance(value, Value) and np.size(value) > _LARGEST):
            raise NotByEntries
        found[id(value)] = value
        waiting.extend(value.operands if isinstance(value, Value) else ())
    return found


def _operation(primitive: Any, params: Any, shape: tuple[int, ...]) -> Callable[..., Entries]:
    name = primitive.name
    if name in ("copy", "stop_gradient"):
        return lambda entries: entries
    if name in _BY_ENTRY:
        return functools.partial(_by_entry, lambda *entries: primitive.bind(*entries, **params))
    if name in _REDUCTIONS:
        return functools.partial(_reduced, _REDUCTIONS[name], tuple(params["axes"]))
    if name in ("reshape", "squeeze", "expand_dims"):
        return lambda entries: entries.reshape(shape)
    if name == "broadcast_in_dim":
        return functools.partial(_broadcast, shape, params["broadcast_dimensions"])
    if name == "transpose":
        return lambda entries: entries.transpose(params["permutation"])
    if name == "slice":
        strides = params["strides"] or (None,) * len(shape)
        places = tuple(map(slice, params["start_indices"], params["limit_indices"], strides))
        return lambda entries: entries[places]
    if name == "concatenate":
        return lambda *parts: np.concatenate(parts, axis=params["dimension"])
    if name == "stack":
        return lambda *parts: np.stack(parts, axis=params["axis"])
    if name == "dot_general" and not params["dimension_numbers"][1][0]:
        return lambda left, right: np.asarray(
            np.tensordot(left, right, axes=params["dimension_numbers"][0]), dtype=object
        )
    raise NotByEntries


def _entries(values: list[Any], shape: tuple[int, ...]) -> Entries:
    found = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):  # one by one, because NumPy would look into vectors
        found[place] = value
    return found.reshape(shape)


def _by_entry(operation: Callable[..., Any], *operands: Entries) -> Entries:
    """An operation on operands of one shape; scalars among them are for all entries, as of `clamp` and `select_n`."""
    shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    flat = [np.broadcast_to(operand, shape).ravel() for operand in operands]
    return _entries([operation(*_alike(entries)) for entries in zip(*flat, strict=True)], shape)


def _alike(entries: Sequence[Any]) -> list[Any]:
    """Entries of one shape: numbers become vectors where others are vectors."""
    shape = np.broadcast_shapes(*(jnp.shape(entry) for entry in entries))
    return [entry if jnp.shape(entry) == shape else jnp.full(shape, entry) for entry in entries]


def _vector(entry: Any, length: int) -> Any:
    return entry if jnp.ndim(entry) else jnp.full((length,), entry)


def _reduced(operation: Callable[..., Any], axes: tuple[int, ...], entries: Entries) -> Entries:
    if not axes:
        return entries
    kept = [axis for axis in range(entries.ndim) if axis not in axes]
    shape = tuple(entries.shape[axis] for axis in kept)
    lines = entries.transpose(*axes, *kept).reshape(-1, math.prod(shape))
    found = functools.reduce(lambda one, other: _by_entry(operation, one, other), lines)
    return found.reshape(shape)


def _broadcast(shape: tuple[int, ...], dimensions: tuple[int, ...], entries: Entries) -> Entries:
    expanded = [1] * len(shape)
    for axis, size in zip(dimensions, entries.shape, strict=True):
        expanded[axis] = size
    return np.broadcast_to(entries.reshape(expanded), shape)


def _part(axis: int, ends: Any, index: int, entries: Entries) -> Entries:
    return np.split(entries, ends[:-1], axis=axis)[index]
