"""All that a method may know when it writes its program: public facts."""

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
        problem: what to minimise.
        inspection: what tracing found out about its losses.
        sizes: how many records each role has, and what one looks like.
        budget: what the run may spend.
        point: shapes and types of x and y.
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
