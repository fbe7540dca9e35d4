"""The public facts from which a method builds its program."""

from dataclasses import dataclass
from typing import Any

import jax

from dpbilevel.privacy.budget import Budget
from dpbilevel.problem import BilevelProblem, Inspection
from dpbilevel.records import RecordShapes


@dataclass(frozen=True, eq=False)
class PublicContext:
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
    def x_dimension(self) -> int:
        """d_x, the number of coordinates of x."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.point[0]))

    @property
    def y_dimension(self) -> int:
        """d_y, the number of coordinates of y."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.point[1]))
