"""What a loss reads, found by tracing it on shapes: no record is involved.

Three questions are asked of every loss before anything is charged:

* does it return a real scalar, without side effects (prints and callbacks would carry record values out)?
* does it close over arrays? A closure over the data itself would escape clipping and noise altogether.
* does its x-gradient depend on the record at all? If not, that part of the hypergradient is free (method of
  regularisation tuning: only a term such as ``x * norm(y)**2`` depends on x).

The last verdict is used safely: a gradient judged free is evaluated at a dummy record of zeros, so that a wrong
verdict can cost accuracy but never privacy.
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
    """Trace a loss and its gradients on shapes; refuse it unless it is a real number without side effects.

    Both traces are looked at: rules of custom derivatives run only in gradients, and gradients drop what they do not
    need.
    """

    def returning(*arguments: Tree) -> Tree:
        returned = loss(*arguments)
        if not _is_tree_of_arrays(returned):
            raise InvalidProblem(f"{name}: must return one real number, not an object that is no array")
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
    _refuse_side_channels(name, value)  # before gradients are taken, whose own complaint would be less clear
    gradients = jax.make_jaxpr(jax.grad(loss, (0, 1)))(*shapes)
    _refuse_side_channels(name, gradients)
    return value, gradients


def _is_tree_of_arrays(returned: Any) -> bool:
    """Whether JAX can take it; asked apart, so that errors of the loss itself, which are its author's, come through."""
    try:
        jax.make_jaxpr(lambda: returned)()
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _refuse_side_channels(name: str, traced: ClosedJaxpr) -> None:
    primitives = {equation.primitive.name for jaxpr, _ in _jaxprs(traced) for equation in jaxpr.eqns}
    if traced.effects or any("callback" in primitive for primitive in primitives):
        raise InvalidProblem(
            f"{name}: must have no side effects; a print or a callback would carry record values out of the "
            "accounting (remove jax.debug.print, jax.debug.callback, pure_callback or io_callback)"
        )
    if any("custom_vmap" in primitive for primitive in primitives):
        raise InvalidProblem(
            f"{name}: must not use custom_vmap; its rule sees many records at once, and clipping bounds what one "
            "record can do only where each is seen alone"
        )


def closed_over_arrays(traced: tuple[ClosedJaxpr, ...], public: Sequence[Any]) -> bool:
    """Whether the traced loss closes over an array that has not been declared public."""
    constants = []
    for jaxpr, held in _jaxprs(traced):
        literals = [v.val for equation in jaxpr.eqns for v in equation.invars if isinstance(v, Literal)]
        constants += [*held, *literals]
    declared = [np.asarray(array) for array in public]

    def harmless(constant: Any) -> bool:
        if jnp.issubdtype(getattr(constant, "dtype", np.float64), jax.dtypes.extended):
            return False  # random keys
        # An array of one repeated value tells no more than a scalar does (and JAX makes such masks when indexing).
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
    """All that a traced function does, as bytes: its operations, and every constant that it holds."""
    yield without_addresses(str(traced)).encode()
    for jaxpr, held in _jaxprs(traced):
        literals = [v.val for equation in jaxpr.eqns for v in equation.invars if isinstance(v, Literal)]
        for constant in (*held, *literals):
            if jnp.issubdtype(getattr(constant, "dtype", np.float64), jax.dtypes.extended):
                raise InvalidProblem(
                    "checkpoint: a loss closes over random keys, of which nobody can tell whether they are the same "
                    "when the run resumes; leave checkpoint out"
                )
            array = np.asarray(constant)
            yield f"{array.dtype.str} {array.shape}".encode()
            yield array.tobytes()


def without_addresses(text: str) -> str:
    """A description without addresses in memory, which differ from process to process.

    >>> without_addresses("<function loss at 0x7f31c2>")
    '<function loss>'
    """
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _jaxprs(value: Any) -> Iterator[tuple[Jaxpr, Sequence[Any]]]:
    """A jaxpr and all inside it (of jit, scan, cond, custom derivatives), each with the constants that it holds."""
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
