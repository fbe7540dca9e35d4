"""Layers that multiply a record's row by a matrix: their gradients are outer products, found in the traced derivative.

A network whose first layer is ``row @ matrix`` has most of its parameters there. The gradient of one record in the
matrix is its row times the gradient at the layer's output, and so is its derivative along a direction. Written out, it
is the largest part of a record's contribution. As an `Outer` it is a few numbers, which a release clips by the product
of both norms and sums by a matrix product.

Only models of several arrays are searched: a linear model is one array, and is declared (`LinearLoss`). What is found
here decides how a sum is computed, never what bounds it: the release measures what it sums.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from dpbilevel.privacy.outer import Outer

Tree = Any
_NO_CONTRACTION = (((), ()), ((), ()))


def with_outer_products(derivative: Callable[..., Tree]) -> Callable[..., Tree]:
    """The same function of (x, y, ..., record), whose leaves are `Outer` where they are outer products of a row.

    All of them have one row, a leaf of the record: the one with which most entries are outer products.
    """

    def layered(*arguments: Tree) -> Tree:
        if len(jax.tree.leaves(arguments[1])) < 2:
            return derivative(*arguments)
        traced, shapes = jax.make_jaxpr(derivative, return_shape=True)(*arguments)
        found = _products(traced.jaxpr, len(jax.tree.leaves(arguments[-1])))
        leaves, structure = jax.tree.flatten(shapes)
        entries: Counter[Any] = Counter()
        for leaf, product in zip(leaves, found, strict=True):
            if product is not None:
                entries[product[0]] += leaf.size
        if not entries:
            return derivative(*arguments)
        (row, _), *_ = entries.most_common(1)
        return jax.tree.unflatten(structure, _evaluated(traced, row, found, jax.tree.leaves(arguments)))

    return layered


def _products(traced: Any, record_leaves: int) -> list[tuple[Any, Any] | None]:
    """For each output that is an outer product ``row (x) coefficient`` with a leaf of the record: both variables."""
    rows = {variable for variable in traced.invars[len(traced.invars) - record_leaves :] if variable.aval.ndim == 1}
    made_by = {variable: equation for equation in traced.eqns for variable in equation.outvars}
    found: list[tuple[Any, Any] | None] = []
    for output in traced.outvars:
        equation = None if isinstance(output, Literal) else made_by.get(output)
        permutation = None
        if equation is not None and equation.primitive.name == "transpose":
            permutation = tuple(equation.params["permutation"])
            equation = made_by.get(equation.invars[0])
        found.append(None if equation is None else _product(equation, permutation, rows))
    return found


def _product(equation: Any, permutation: tuple[int, ...] | None, rows: set[Any]) -> tuple[Any, Any] | None:
    if equation.primitive.name != "dot_general":
        return None
    contracted = tuple(tuple(map(tuple, pair)) for pair in equation.params["dimension_numbers"])
    (left, right), rank = equation.invars, len(equation.outvars[0].aval.shape)
    if contracted != _NO_CONTRACTION or rank < 2 or any(isinstance(one, Literal) for one in (left, right)):
        return None
    if left in rows and permutation is None:
        return left, right
    # The axis of the row is the last one, and has to become the first.
    if right in rows and permutation == (rank - 1, *range(rank - 1)):
        return right, left
    return None


def _evaluated(traced: ClosedJaxpr, row: Any, found: list[tuple[Any, Any] | None], inputs: list[Any]) -> list[Any]:
    """The outputs, with coefficients in the place of products with ``row``, which nobody computes then."""
    jaxpr = traced.jaxpr
    mine = [product is not None and product[0] is row for product in found]
    outputs = [
        product[1] if product is not None and is_outer else output
        for output, product, is_outer in zip(jaxpr.outvars, found, mine, strict=True)
    ]
    changed = jaxpr.replace(outvars=outputs, debug_info=jaxpr.debug_info.with_unknown_names())
    values = jaxpr_as_fun(ClosedJaxpr(changed, traced.consts))(*inputs)
    # The record's own leaf, so that a release recognises it.
    held = inputs[jaxpr.invars.index(row)]
    return [Outer(held, value) if is_outer else value for value, is_outer in zip(values, mine, strict=True)]
