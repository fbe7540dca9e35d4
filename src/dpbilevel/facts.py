"""All that a method may know when it writes its program: public facts."""

from dataclasses import dataclass

from dpbilevel.privacy.budget import Budget
from dpbilevel.problem import BilevelProblem, Inspection
from dpbilevel.records import Sizes


@dataclass(frozen=True, eq=False)
class Facts:
    """The public facts of a run.

    Attributes:
        problem: what to minimise.
        inspection: what tracing found out about its losses.
        sizes: how many records each role has, and what one looks like.
        budget: what the run may spend.
        y_dimension: d_y, the number of coordinates of y.
    """

    problem: BilevelProblem
    inspection: Inspection
    sizes: Sizes
    budget: Budget
    y_dimension: int
