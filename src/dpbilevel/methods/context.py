"""The public facts from which a method builds its program."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from dpbilevel.foundation.structure import key_of
from dpbilevel.methods.derivatives import gradient_in_y
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.record_shapes import RecordShapes
from dpbilevel.problem import BilevelProblem, Inspection, free_gradient


class _Dimensions:
    """Numbers of coordinates."""

    point: tuple[Any, Any]

    @property
    def x_dimension(self) -> int:
        """d_x, the number of coordinates of x."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.point[0]))

    @property
    def y_dimension(self) -> int:
        """d_y, the number of coordinates of y."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.point[1]))


@dataclass(frozen=True, eq=False)
class Setting(_Dimensions):
    """What is public about a problem and its records. Equal settings are equal structures, whatever the budget is.

    Functions that build parts of a program are cached by it, so that plans of the same setting share these parts.
    """

    problem: BilevelProblem
    inspection: Inspection
    sizes: RecordShapes
    point: tuple[Any, Any]

    def __hash__(self) -> int:
        return hash(self._key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and self._key() == other._key()

    def _key(self) -> tuple[Any, ...]:
        return self.problem, self.inspection, self.sizes, key_of(self.point)


@dataclass(frozen=True, eq=False)
class PublicContext(_Dimensions):
    """The public facts of a run.

    Attributes:
        problem: the bilevel problem.
        inspection: properties of its losses, found by tracing.
        sizes: number of records in each role, and the shape of one record.
        budget: privacy budget of the run.
        point: shapes and dtypes of x and y.
    """

    problem: BilevelProblem
    inspection: Inspection
    sizes: RecordShapes
    budget: Budget
    point: tuple[Any, Any]

    @property
    def setting(self) -> Setting:
        """All of it but the budget."""
        return Setting(self.problem, self.inspection, self.sizes, self.point)


@functools.lru_cache(maxsize=256)
def gradient(problem: BilevelProblem, name: str, argument: int) -> Callable[..., Any]:
    """The gradient of a loss or term of a problem ("lower_loss", "upper_loss", ...) in x (0) or y (1)."""
    level, kind = name.split("_")
    if kind == "term":
        return jax.grad(problem.term(level), argument)
    loss = problem.loss(level)
    assert loss is not None, "a loss that is not there has no gradient"
    return gradient_in_y(loss) if argument == 1 else jax.grad(loss, argument)


@functools.lru_cache(maxsize=64)
def free_gradients(setting: Setting) -> dict[str, Callable[..., Any]]:
    """By level, the part of its x-gradient that costs no budget."""
    reads = setting.inspection.hypergradient_reads
    return {
        level: free_gradient(setting.problem, level, level in reads, setting.sizes.record(level))
        for level in ("upper", "lower")
    }
