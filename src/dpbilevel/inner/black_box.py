"""An external private trainer as the solver of the lower level (the paper's application: tuning a regulariser).

The paper tunes a penalty around any private training algorithm. Such a trainer is a function that takes records and
returns a model, not a sequence of gradient steps on records. It declares the privacy cost of one call, the ledger
charges all calls before the first one, and the outer step is free if the gradient of the penalty reads no record. With
a regulariser R(theta) of weight omega, the outer step of `DPBilevel` is

    omega <- max{0, omega - step_size * penalty * (R(theta^lambda) - R(theta))}

(the paper prints + for the first -, which would ascend).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.constraints import Domain, project
from dpbilevel.errors import InvalidArgument, TrainerFailed
from dpbilevel.execution.program import Call, State
from dpbilevel.foundation.arguments import count, one_of
from dpbilevel.inner.solver import Declare, InnerProblem, InnerSolver, Parameters
from dpbilevel.privacy.budget import ADJACENCIES, Adjacency
from dpbilevel.privacy.declared import ApproximateDP, DeclaredRelease, Event, GaussianDP

Tree = Any
Train = Callable[[Tree, Tree, Tree, float], Tree]


@dataclass(frozen=True, kw_only=True)
class BlackBox(InnerSolver):
    """A private trainer that declares the privacy cost of one call.

    Args:
        train: (x, lower, upper, upper_weight) -> y. It returns a private, approximate minimiser over y of g(x, y) +
            upper_weight f(x, y), including data-free terms. ``lower`` and ``upper`` are the records of the two levels
            as NumPy arrays (in the solve of g alone, ``upper`` is None and its weight is 0).
        event: the privacy cost of one call to each record that it reads, `GaussianDP(mu)` or
            `ApproximateDP(epsilon, delta)`. The guarantee of the run relies on this declaration.
        adjacency: the neighbouring relation of the event; it must be that of the budget.
        rows_per_unit: k, for records that are units of several rows: the event is then the cost of one call to *all*
            rows of a unit that has at most k, which no call of this library can check. ``lower`` and ``upper`` are
            `Bundle`s: ``rows`` is a pytree of arrays of shape (units, rows per unit, ...), and ``present`` says which
            rows exist. Without it, the event is the cost to a record with one row, and units with more are refused.

    >>> import numpy as np, dpbilevel as dpb
    >>> def train(x, lower, upper, upper_weight):  # output perturbation of a mean that is shrunk by x
    ...     pooled = np.mean(np.clip(lower, -1, 1)) + upper_weight * (0.0 if upper is None else np.mean(upper))
    ...     return pooled / (1 + upper_weight + x) + np.random.default_rng().normal(0, 0.02)
    >>> dpb.BlackBox(train=train, event=dpb.GaussianDP(0.1)).event
    GaussianDP(mu=0.1)
    """

    train: Train
    event: Event
    adjacency: Adjacency = "replace-one"
    rows_per_unit: int | None = None
    calibrated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not callable(self.train):
            raise InvalidArgument("train: must be a function (x, lower, upper, upper_weight) -> y")
        if not isinstance(self.event, GaussianDP | ApproximateDP):
            raise InvalidArgument(
                f"event={self.event!r}: must be dpb.GaussianDP(mu) or dpb.ApproximateDP(epsilon, delta), the privacy "
                "cost of one call of the trainer; without it nothing can be charged"
            )
        one_of("adjacency", self.adjacency, ADJACENCIES, "it defines which data sets are neighbours")
        if self.rows_per_unit is not None:
            count("rows_per_unit", self.rows_per_unit, "it is the most rows of a unit that the event is the cost for")

    def declare(self, problem: InnerProblem, declare: Declare) -> DeclaredRelease:
        """One call per round, at the declared cost, on the records of each level that it reads."""
        context, sizes = problem.context, problem.context.sizes
        roles = {sizes.role_of(level) for level in problem.levels if context.problem.loss(level) is not None}
        counts = {role: sizes.count(role) for role in sizes.roles if role in roles}
        return DeclaredRelease(
            name=problem.name,
            roles=counts,
            event=self.event,
            uses=problem.rounds,
            adjacency=self.adjacency,
            rows_per_unit=self.rows_per_unit,
        )

    def stage(self, problem: InnerProblem, release: DeclaredRelease) -> tuple[Call, Parameters]:
        """The call in each round."""
        sizes, domain = problem.context.sizes, problem.context.problem.lower_domain

        def run(state: State, arrays: Mapping[str, Tree], keys: Any) -> State:
            role_of = {level: sizes.role_of(level) for level in problem.levels}
            records = {level: arrays[role] for level, role in role_of.items() if role is not None and role in arrays}
            return problem.end(state, self.solve(state["x"], state["y"], records, problem.upper_weight, domain))

        reason = "declared by the black box, for each call"
        return Call(release=release, run=run), {f"{problem.name}: event": (repr(self.event), reason)}

    def solve(self, x: Tree, y: Tree, records: Mapping[str, Tree], upper_weight: float, domain: Domain) -> Tree:
        """Call the trainer once; returns a model with the structure and shapes of ``y``, projected to ``domain``.

        Args:
            x: hyperparameters.
            y: any model with the required structure.
            records: the arrays of records by level ("upper", "lower").
            upper_weight: the weight of f relative to g.
            domain: the domain of y.
        """
        model = _guarded(self.train, jax.tree.map(np.array, x), records["lower"], records.get("upper"), upper_weight)
        # The output of a private trainer is released, so that checking it costs nothing.
        if _structure(model) != _structure(y):
            raise TrainerFailed(
                "train: returned another structure than y0; return the same pytree as in start=(x0, y0)"
            )
        model = jax.tree.map(_real_numbers, model)
        for given, expected in zip(jax.tree.leaves(model), jax.tree.leaves(y), strict=True):
            if np.shape(given) != np.shape(expected):
                raise TrainerFailed(
                    f"train: returned a leaf of shape {np.shape(given)} where y0 has {np.shape(expected)}; return the "
                    "same shapes as in start=(x0, y0)"
                )
            if not np.all(np.isfinite(given)):
                raise TrainerFailed("train: returned a value that is not finite; the run stops and remains charged")
        typed = jax.tree.map(lambda given, expected: jnp.asarray(given, dtype=expected.dtype), model, y)
        return project(domain, typed)


def _guarded(train: Train, *arguments: Any) -> Tree:
    """Call a trainer without passing on its exceptions, which may contain values of records."""
    try:
        return train(*arguments)
    except (Exception, SystemExit):
        pass
    # Not raised in the except clause: the exception would carry the original one as its context.
    raise TrainerFailed(
        "train: raised an error; its type and message are withheld, because both may depend on records. Try the "
        "trainer on synthetic records"
    )


def _structure(model: Tree) -> str:
    try:
        return str(jax.tree.structure(model))
    except ValueError:  # keys that cannot be sorted
        return "not a pytree"


def _real_numbers(leaf: Any) -> npt.NDArray[Any]:
    """A leaf of a model as an array. NumPy's own errors may quote its values and are not passed on."""
    try:
        array = np.asarray(leaf)
        if array.dtype.kind in "biuf" or jnp.issubdtype(array.dtype, jnp.floating):
            return array
    except Exception:
        pass
    raise TrainerFailed("train: returned a leaf that is not an array of real numbers; return what start=(x0, y0) has")
