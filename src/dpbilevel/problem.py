"""The bilevel problem: minimise f(x, y*(x)) over x in X, where y*(x) minimises g(x, .).

    f(x, y) = f0(x, y) + (1/n_f) sum over upper records of f_i(x, y)
    g(x, y) = g0(x, y) + (1/n_g) sum over lower records of g_i(x, y)

x and y are pytrees. f0 and g0 are data-free terms, such as a regulariser; no noise is added to their gradients.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.constants import Constants
from dpbilevel.constraints import Domain, Unconstrained, check_domain
from dpbilevel.errors import InvalidProblem
from dpbilevel.foundation.tracing import closed_over_arrays, gradient_reads_record, trace_loss

Tree = Any
Loss = Callable[[Tree, Tree, Tree], Any]  # one record's loss: (x, y, record) -> scalar
Term = Callable[[Tree, Tree], Any]  # a data-free term: (x, y) -> scalar

CLOSES_OVER = "closes over an array that was not declared public"  # a caveat; compiled programs then hold the array


def _one(x: Tree) -> float:
    return 1.0


def _nothing(x: Tree, y: Tree) -> jax.Array:
    return jnp.zeros(())


@dataclass(frozen=True, kw_only=True, eq=False)
class BilevelProblem:
    """A bilevel problem over private records.

    Args:
        lower_loss: g_i(x, y), one record's training loss, written for a single record.
        upper_loss: f_i(x, y), one record's validation loss; None if f does not depend on records.
        upper_term: f0(x, y), data-free.
        lower_term: g0(x, y), data-free; usually the regulariser that makes g strongly convex in y.
        domain: X, a convex set or a pytree of them.
        lower_domain: Y, likewise.
        constants: certified constants, if they are known.
        public: arrays that the losses close over and that hold only public facts, such as a map from columns to groups.
            Any other closed-over array gives the result a caveat, because it may be data outside the accounting.
        lower_scale: x -> the positive factor by which x multiplies the gradient of a lower record of full weight (for
            data weights w(x) with mean one, sum w^2 / sum w). Clips of the lower level are multiplied by it, so that
            they grow with the weights. One by default.
        upper_trains: whether f_i is a training loss for y as well, such as the same loss on cleaner records. The final
            training may then use upper records too.
        start: (x0, y0), public: the default starting point.
        readout: a public matrix with one column per row of y, for a training that knows the noise of its model: the
            standard errors of ``readout @ y`` are then part of the history. Those of differences of coefficients do not
            follow from those of the coefficients.

    >>> import dpbilevel as dpb
    >>> problem = dpb.BilevelProblem(
    ...     upper_loss=lambda x, y, record: (record["b"] - record["a"] @ y) ** 2,
    ...     lower_loss=lambda x, y, record: (record["b"] - record["a"] @ y) ** 2,
    ...     lower_term=lambda x, y: x * (y @ y),
    ...     domain=dpb.Box(0.1, 10.0),
    ... )
    """

    lower_loss: Loss
    upper_loss: Loss | None = None
    upper_term: Term | None = None
    lower_term: Term | None = None
    domain: Domain = field(default_factory=Unconstrained)
    lower_domain: Domain = field(default_factory=Unconstrained)
    constants: Constants | None = None
    public: Sequence[Any] = ()
    lower_scale: Callable[[Tree], Any] = _one
    upper_trains: bool = False
    start: tuple[Tree, Tree] | None = None
    readout: Any = None

    def __post_init__(self) -> None:
        check_domain("domain", self.domain)
        check_domain("lower_domain", self.lower_domain)
        if not callable(self.lower_loss):
            raise InvalidProblem("lower_loss: must be a function (x, y, record) -> scalar")
        if self.upper_loss is None and self.upper_term is None:
            raise InvalidProblem(
                "upper_loss, upper_term: give at least one of them; there is nothing to minimise over x"
            )
        if not callable(self.lower_scale):
            raise InvalidProblem("lower_scale: must be a function from x to a positive number, or left out for one")
        for name in ("upper_loss", "upper_term", "lower_term"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise InvalidProblem(f"{name}: must be a function, or None to leave it out")
        if not isinstance(self.public, list | tuple) or not all(np.ndim(array) > 0 for array in self.public):
            raise InvalidProblem("public: must be a list of arrays, as in public=[group_of_column]")
        if self.readout is not None and np.ndim(self.readout) != 2:
            raise InvalidProblem("readout: must be a public matrix with one column per row of y, or None")
        if self.constants is not None and not isinstance(self.constants, Constants):
            raise InvalidProblem("constants: must be dpb.Constants(...), or None where no certified bounds are known")

    def term(self, level: str) -> Term:
        """The data-free term of a level ("upper" or "lower"); zero if there is none."""
        return getattr(self, f"{level}_term") or _nothing

    def loss(self, level: str) -> Loss | None:
        """The per-record loss of a level; None if the level reads no records."""
        return getattr(self, f"{level}_loss")


@dataclass(frozen=True)
class Inspection:
    """Properties of a problem that tracing on shapes has found."""

    hypergradient_reads: frozenset[str]  # levels whose x-gradient depends on the record
    caveats: tuple[str, ...]


def inspect(problem: BilevelProblem, x: Tree, y: Tree, records: dict[str, Tree]) -> Inspection:
    """Trace every loss and term on the shapes of x, y and one record of each level.

    Raises `InvalidProblem` for losses that are not scalar or have side effects; closed-over arrays become caveats.
    """
    caveats = []
    reads = set()
    for level in ("upper", "lower"):
        loss = problem.loss(level)
        traced = {f"{level}_term": trace_loss(f"{level}_term", problem.term(level), x, y)}
        if level == "lower":
            # It multiplies released values: data in its closure would bypass the accounting, as in that of a loss.
            traced["lower_scale"] = trace_loss("lower_scale", lambda x, y: _scale(problem, x), x, y)
        if loss is not None:
            traced[f"{level}_loss"] = trace_loss(f"{level}_loss", loss, x, y, records[level])
            if gradient_reads_record(loss, x, y, records[level]):
                reads.add(level)
        for name, jaxpr in traced.items():
            if closed_over_arrays(jaxpr, problem.public):
                caveats.append(
                    f"{name} {CLOSES_OVER}: if it holds private data, the stated "
                    "guarantee does not cover it (pass data as records; list public arrays in public=...)"
                )
    return Inspection(frozenset(reads), tuple(caveats))


def _scale(problem: BilevelProblem, x: Tree) -> Any:
    scale = problem.lower_scale(x)
    if isinstance(scale, int | float) and not 0 < scale < math.inf:
        raise InvalidProblem(f"lower_scale: returns {scale!r}; must be a positive number, clips are multiplied by it")
    return scale


def free_gradient(problem: BilevelProblem, level: str, reads_record: bool, record: Tree | None) -> Callable[..., Tree]:
    """The part of a level's x-gradient that costs no budget: of its term, and of its loss if that reads no record.

    The loss is evaluated at a record of zeros, never at a private one.
    """
    loss = problem.loss(level)
    term = problem.term(level)
    if loss is None or reads_record:
        return jax.grad(term)
    dummy = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), record)
    return jax.grad(lambda x, y: term(x, y) + loss(x, y, dummy))
