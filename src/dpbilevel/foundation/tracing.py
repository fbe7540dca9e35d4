"""Static analysis of losses, by tracing them on shapes without reading a record.

Three properties of every loss are checked before anything is charged:

* it returns a real scalar and has no side effects (prints and callbacks would disclose values of records).
* whether it closes over arrays. Data in a closure would bypass clipping and noise.
* whether its x-gradient depends on the record. If not, that part of the hypergradient is free (as in tuning a
  regulariser, where only a term such as ``x * norm(y)**2`` depends on x).

An error in the last check cannot affect privacy: a gradient that is found to be free is evaluated at a dummy record of
zeros, so that a wrong result costs accuracy only.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.interpreters.partial_eval import dce_jaxpr

from dpbilevel.errors import InvalidProblem

Tree = Any


def trace_loss(name: str, loss: Callable[..., Any], *shapes: Tree) -> tuple[ClosedJaxpr, ...]:
    """Trace a loss and its gradients on shapes; raise unless it returns a real number without side effects.

    Both traces are checked: custom derivative rules run only in gradients, and gradients drop unused operations.
    """

    def returning(*arguments: Tree) -> Tree:
        returned = loss(*arguments)
        if not _is_tree_of_arrays(returned):
            raise InvalidProblem(f"{name}: must return one real number, not an object that is not an array")
        return returned

    value, out = jax.make_jaxpr(returning, return_shape=True)(*shapes)
    leaves = jax.tree.leaves(out)
    if (
        not jax.tree_util.all_leaves([out])
        or leaves[0].shape != ()
        or not jnp.issubdtype(leaves[0].dtype, jnp.floating)
    ):
        described = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves) or "nothing"
        whose, remedy = "", "reduce it to a scalar"
        if len(shapes) == 3:
            whose = " for one record"
            remedy = "it is called with a single record (no leading axis), so reduce over features and classes"
        raise InvalidProblem(f"{name}: must return one real number{whose}, not {described}; {remedy}")
    _refuse_side_channels(name, value)  # first, because JAX's error in the gradient would be less clear
    gradients = jax.make_jaxpr(jax.grad(loss, (0, 1)))(*shapes)
    _refuse_side_channels(name, gradients)
    return value, gradients


def _is_tree_of_arrays(returned: Any) -> bool:
    """Whether JAX accepts the value; checked separately, so that errors raised by the loss itself are not caught."""
    try:
        jax.make_jaxpr(lambda: returned)()
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _refuse_side_channels(name: str, traced: ClosedJaxpr) -> None:
    primitives = {equation.primitive.name for jaxpr, _ in _jaxprs(traced) for equation in jaxpr.eqns}
    if traced.effects or any("callback" in primitive for primitive in primitives):
        raise InvalidProblem(
            f"{name}: must have no side effects; a print or a callback would disclose values of records outside the "
            "accounting (remove jax.debug.print, jax.debug.callback, pure_callback or io_callback)"
        )
    if any("custom_vmap" in primitive for primitive in primitives):
        raise InvalidProblem(
            f"{name}: must not use custom_vmap; its rule processes many records at once, and clipping bounds the "
            "influence of a record only if each is processed separately"
        )


def closed_over_arrays(traced: tuple[ClosedJaxpr, ...], public: Sequence[Any]) -> bool:
    """Whether the traced loss closes over an array that is not declared public."""
    constants = []
    for jaxpr, held in _jaxprs(traced):
        literals = [v.val for equation in jaxpr.eqns for v in equation.invars if isinstance(v, Literal)]
        constants += [*held, *literals]
    declared = [np.asarray(array) for array in public]

    def harmless(constant: Any) -> bool:
        if jnp.issubdtype(getattr(constant, "dtype", np.float64), jax.dtypes.extended):
            return False  # random keys
        # An array of one repeated value reveals no more than a scalar (and JAX creates such masks when indexing).
        value = np.asarray(constant)
        if value.size <= 1 or np.all(value == value.flat[0]):
            return True
        return any(np.array_equal(value, array.astype(value.dtype), equal_nan=True) for array in declared)

    return not all(map(harmless, constants))


def gradient_reads_record(loss: Callable[..., Any], x: Tree, y: Tree, record: Tree) -> bool:
    """Whether the x-gradient of ``loss(x, y, record)`` depends on the record, by dead-code elimination.

    >>> import jax
    >>> f32 = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")
    >>> penalised = lambda x, y, record: (record @ y) ** 2 + x * (y @ y)
    >>> weighted = lambda x, y, record: x * (record @ y) ** 2
    >>> [gradient_reads_record(loss, f32(), f32(3), f32(3)) for loss in (penalised, weighted)]
    [False, True]
    """
    traced = jax.make_jaxpr(jax.grad(loss))(x, y, record)
    _, live = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    return any(live[-len(jax.tree.leaves(record)) :])


def written_out(traced: ClosedJaxpr) -> Iterator[bytes]:
    """A traced function as bytes: its operations and all of its constants."""
    yield without_addresses(str(traced)).encode()
    for jaxpr, held in _jaxprs(traced):
        literals = [v.val for equation in jaxpr.eqns for v in equation.invars if isinstance(v, Literal)]
        for constant in (*held, *literals):
            if jnp.issubdtype(getattr(constant, "dtype", np.float64), jax.dtypes.extended):
                raise InvalidProblem(
                    "checkpoint: a loss closes over random keys, and it cannot be checked that they are the same when "
                    "the run resumes; leave checkpoint out"
                )
            array = np.asarray(constant)
            yield f"{array.dtype.str} {array.shape}".encode()
            yield array.tobytes()


def without_addresses(text: str) -> str:
    """A description without memory addresses, which differ between processes.

    >>> without_addresses("<function loss at 0x7f31c2>")
    '<function loss>'
    """
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _jaxprs(value: Any) -> Iterator[tuple[Jaxpr, Sequence[Any]]]:
    """A jaxpr and all nested ones (of jit, scan, cond, custom derivatives), each with its constants."""
    if isinstance(value, ClosedJaxpr):
        yield value.jaxpr, value.consts
        value = value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value, ()
    if isinstance(value, Jaxpr):
        value = [parameter for equation in value.eqns for parameter in equation.params.values()]
    if isinstance(value, tuple | list):
        for item in value:
            yield from _jaxprs(item)
