"""Contributions that are outer products: row (x) coefficient, kept apart until they are summed.

In a linear model a record's gradient is its row times a few numbers. Nobody needs the product of a single record: its
norm is |coefficient| |row|, and the sum over records is a matrix product. An `Outer` stands for such a leaf of a
contribution. It can be scaled and added like an array. JAX does not know the class, so that any other operation raises
an error instead of changing the row, too.

A contribution may be B times an outer product, with B a `Metric`: then its norm is |coefficient| |B row|, and B is
applied to the sum.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpbilevel.privacy.metric import Metric
from dpbilevel.privacy.sums import Tree, Vector

# Rows of the record that is being traced, with their norms. Without them an `Outer` computes the norm of its row. They
# shape contributions only: the release measures rows by itself.
_KNOWN_NORMS: ContextVar[tuple[tuple[jax.Array, jax.Array], ...]] = ContextVar("known norms", default=())


class Outer:
    """A leaf ``row (x) coefficient`` of a record's contribution, or B times it.

    Args:
        row: a vector.
        coefficient: an array of any shape.
        shape: of the leaf that it stands for, by default that of the outer product.
        metric: B; None for the product itself.
    """

    __array_ufunc__ = None  # NumPy's numbers leave multiplication to this class
    __slots__ = ("coefficient", "metric", "row", "shape")

    def __init__(
        self,
        row: jax.Array,
        coefficient: jax.Array,
        shape: tuple[int, ...] | None = None,
        metric: Metric | None = None,
    ) -> None:
        self.row, self.coefficient, self.metric = row, coefficient, metric
        self.shape = (*row.shape, *coefficient.shape) if shape is None else shape

    @property
    def dtype(self) -> Any:
        """The dtype of the coefficient."""
        return self.coefficient.dtype

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    def __mul__(self, factor: Any) -> "Outer":
        if jnp.ndim(factor) > 0:
            return NotImplemented
        return Outer(self.row, factor * self.coefficient, self.shape, self.metric)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Outer) and self.is_like(other) and other.shape == self.shape:
            return Outer(self.row, self.coefficient + other.coefficient, self.shape, self.metric)
        return self.dense() + dense(other)

    __radd__ = __add__

    def is_like(self, other: "Outer") -> bool:
        """Whether both have the same row, in the same metric."""
        return other.row is self.row and other.metric is self.metric

    def astype(self, dtype: Any) -> "Outer":
        """With a coefficient of that dtype."""
        return Outer(self.row, self.coefficient.astype(dtype), self.shape, self.metric)

    def flat(self) -> "Outer":
        """As one vector."""
        return Outer(self.row, self.coefficient, (self.size,), self.metric)

    def within(self, metric: Metric) -> "Outer":
        """B times the product."""
        assert self.metric is None, "a contribution has one metric"
        return Outer(self.row, self.coefficient, self.shape, metric)

    def dense(self) -> jax.Array:
        """The product, an array."""
        return jnp.multiply.outer(self._row_in_metric(), self.coefficient).reshape(self.shape).astype(self.dtype)

    def _row_in_metric(self) -> jax.Array:
        return self.row if self.metric is None else self.metric.times(self.row[:, None])[:, 0]

    def norm(self) -> jax.Array:
        """|coefficient| |row|, with the norm of the row in the metric."""
        known = next((norm for row, norm in _KNOWN_NORMS.get() if row is self.row), None)
        row_norm = jnp.sqrt(jnp.sum(self._row_in_metric() ** 2)) if known is None else known
        return jnp.sqrt(jnp.sum(self.coefficient**2)) * row_norm


@contextlib.contextmanager
def known_norms(pairs: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    """Rows with their norms, for contributions that are traced inside."""
    token = _KNOWN_NORMS.set(tuple(pairs))
    try:
        yield
    finally:
        _KNOWN_NORMS.reset(token)


def dense(tree: Tree) -> Tree:
    """A contribution as arrays only."""
    return jax.tree.map(lambda leaf: leaf.dense() if isinstance(leaf, Outer) else leaf, tree)


def norm(tree: Tree) -> jax.Array:
    """The norm of a contribution, over all leaves jointly."""
    leaves = jax.tree.leaves(tree)
    outers = [leaf for leaf in leaves if isinstance(leaf, Outer)]
    if not outers:
        return optax.tree.norm(tree)
    arrays = [leaf for leaf in leaves if not isinstance(leaf, Outer)]
    squares = [leaf.norm() ** 2 for leaf in outers] + [jnp.sum(leaf**2) for leaf in arrays]
    return jnp.sqrt(sum(squares[1:], start=squares[0]))


@dataclass(frozen=True)
class Layout:
    """Where the numbers of a contribution with outer products are: coefficients first, then entries of other leaves.

    Args:
        leaves: for each leaf its number of entries, and the number of its coefficients if it is an `Outer`.
        columns: length of the row, the same for all outer products.
        record_leaf: which leaf of a record the row is; None if it is computed from the record.
        dtype: in which numbers are stored and summed.
        metric: of all outer products; None for rows as they are.
    """

    leaves: tuple[tuple[int, int | None], ...]
    columns: int
    record_leaf: int | None
    dtype: Any
    metric: Metric | None = None

    @property
    def coefficients(self) -> int:
        """How many coefficients a record has."""
        return sum(number for _, number in self.leaves if number is not None)

    @property
    def numbers(self) -> int:
        """How many numbers describe a contribution, without its row."""
        return self.coefficients + sum(size for size, number in self.leaves if number is None)

    def numbers_of(self, contribution: Tree) -> list[jax.Array]:
        """The numbers of a contribution in this order; a row that is no leaf of the record comes last."""
        leaves = jax.tree.leaves(contribution)
        outers = [leaf for leaf in leaves if isinstance(leaf, Outer)]
        parts = [leaf.coefficient for leaf in outers] + [leaf for leaf in leaves if not isinstance(leaf, Outer)]
        return parts if self.record_leaf is not None else [*parts, outers[0].row]

    def assemble(self, products: jax.Array, others: jax.Array) -> jax.Array:
        """A raveled sum of contributions: from (coefficients, columns) sums of products, and sums of other entries."""
        if self.metric is not None:
            products = self.metric.sound().times(products.T).T
        parts, product, other = [], 0, 0
        for size, number in self.leaves:
            if number is None:
                parts.append(others[other : other + size])
                other += size
            else:
                parts.append(products[product : product + number].T.reshape(size))
                product += number
        return jnp.concatenate(parts)


def layout(vector: Vector, record: Tree) -> Layout | None:
    """The layout of contributions at shapes of a record; None if they are no outer products with one common row."""
    found: list[Layout | None] = []

    def traced(record: Tree) -> Tree:
        contribution = vector(record)
        leaves = jax.tree.leaves(contribution)
        outers = [leaf for leaf in leaves if isinstance(leaf, Outer)]
        same = bool(outers) and all(leaf.is_like(outers[0]) for leaf in outers)
        found.append(_described(leaves, jax.tree.leaves(record)) if same else None)
        return dense(contribution)

    jax.eval_shape(traced, record)
    return found[0]


def _described(leaves: Sequence[Any], inputs: Sequence[Any]) -> Layout:
    first = next(leaf for leaf in leaves if isinstance(leaf, Outer))
    row = first.row
    return Layout(
        leaves=tuple((leaf.size, leaf.coefficient.size if isinstance(leaf, Outer) else None) for leaf in leaves),
        columns=row.size,
        record_leaf=next((index for index, leaf in enumerate(inputs) if leaf is row), None),
        # Half precision is too coarse for sums.
        dtype=jnp.result_type(jnp.float32, row.dtype, *(leaf.dtype for leaf in leaves)),
        metric=first.metric,
    )
