"""A private trainer from elsewhere as the solver of the lower level (the paper's application: tuning a regulariser).

The paper tunes a penalty around any private training algorithm. Such a trainer is not written as gradient steps on
records: it is a function that takes records and returns a model. It declares beforehand what one call costs, the ledger
charges all calls before the first, and the outer step is free wherever the penalty's gradient reads no record. With
R(theta) the regulariser and omega its weight, the outer step of `DPBilevel` then is

    omega <- max{0, omega - step_size * penalty * (R(theta^lambda) - R(theta))}

(the paper prints + for the first -, which climbs).
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
from dpbilevel.foundation.arguments import one_of
from dpbilevel.inner.solver import Declare, InnerProblem, InnerSolver, Parameters
from dpbilevel.privacy.budget import ADJACENCIES, Adjacency
from dpbilevel.privacy.declared import ApproximateDP, DeclaredRelease, Event, GaussianDP

Tree = Any
Train = Callable[[Tree, Tree, Tree, float], Tree]


@dataclass(frozen=True, kw_only=True)
class BlackBox(InnerSolver):
    """A private trainer that declares what one call of it costs.

    Args:
        train: (x, lower, upper, upper_weight) -> y. It returns a private, approximate minimiser over y of g(x, y) +
            upper_weight f(x, y), data-free terms included, with ``lower`` and ``upper`` the records of the levels as
            NumPy arrays (``upper`` is None, and its weight 0, in the plain training run).
        event: what one call costs each record that it reads, `GaussianDP(mu)` or `ApproximateDP(epsilon, delta)`. The
            guarantee of the run rests on this word.
        adjacency: the relation that the event refers to; it must be that of the budget.

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
    calibrated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not callable(self.train):
            raise InvalidArgument("train: must be a function (x, lower, upper, upper_weight) -> y")
        if not isinstance(self.event, GaussianDP | ApproximateDP):
            raise InvalidArgument(
                f"event={self.event!r}: must be dpb.GaussianDP(mu) or dpb.ApproximateDP(epsilon, delta), what one "
                "call of the trainer costs; without it nothing can be charged"
            )
        one_of("adjacency", self.adjacency, ADJACENCIES, "it says which data sets count as neighbours")

    def declare(self, problem: InnerProblem, declare: Declare) -> DeclaredRelease:
        """One call per round, at the declared cost, on the records of the levels that it reads."""
        context, sizes = problem.context, problem.context.sizes
        roles = {sizes.role_of(level) for level in problem.levels if context.problem.loss(level) is not None}
        counts = {role: sizes.count(role) for role in sizes.roles if role in roles}
        return DeclaredRelease(
            name=problem.name, roles=counts, event=self.event, uses=problem.rounds, adjacency=self.adjacency
        )

    def stage(self, problem: InnerProblem, release: DeclaredRelease) -> tuple[Call, Parameters]:
        """The call of a round."""
        sizes, domain = problem.context.sizes, problem.context.problem.lower_domain

        def run(state: State, arrays: Mapping[str, Tree]) -> State:
            role_of = {level: sizes.role_of(level) for level in problem.levels}
            records = {level: arrays[role] for level, role in role_of.items() if role is not None and role in arrays}
            return problem.end(state, self.solve(state["x"], state["y"], records, problem.upper_weight, domain))

        reason = "declared by the black box for each call"
        return Call(release=release, run=run), {f"{problem.name}: event": (repr(self.event), reason)}

    def solve(self, x: Tree, y: Tree, records: Mapping[str, Tree], upper_weight: float, domain: Domain) -> Tree:
        """One call: a model of the structure and shapes of ``y``, in ``domain``.

        Args:
            x: hyperparameters.
            y: any model, for its structure.
            records: level ("upper", "lower") to the arrays of its records.
            upper_weight: of f beside g.
            domain: Y.
        """
        model = _guarded(self.train, jax.tree.map(np.array, x), records["lower"], records.get("upper"), upper_weight)
        # What a private trainer returns is released: to look at it costs nothing.
        if _structure(model) != _structure(y):
            raise TrainerFailed("train: returned another structure than y0; return the pytree that start=(x0, y0) has")
        model = jax.tree.map(_real_numbers, model)
        for given, expected in zip(jax.tree.leaves(model), jax.tree.leaves(y), strict=True):
            if np.shape(given) != np.shape(expected):
                raise TrainerFailed(
                    f"train: returned a leaf of shape {np.shape(given)} where y0 has {np.shape(expected)}; return the "
                    "shapes of start=(x0, y0)"
                )
            if not np.all(np.isfinite(given)):
                raise TrainerFailed("train: returned a value that is not finite; the run stops, its charge stands")
        typed = jax.tree.map(lambda given, expected: jnp.asarray(given, dtype=expected.dtype), model, y)
        return project(domain, typed)


def _guarded(train: Train, *arguments: Any) -> Tree:
    """Call a trainer, and keep what it may say about records out of its errors."""
    try:
        return train(*arguments)
    except (Exception, SystemExit):
        pass
    # Raised here and not above: an exception that is raised while another is handled carries that one along.
    raise TrainerFailed(
        "train: raised an error; its kind and message are withheld, for both may tell of records. Try the trainer on "
        "synthetic records"
    )


def _structure(model: Tree) -> str:
    try:
        return str(jax.tree.structure(model))
    except ValueError:  # keys that cannot be sorted
        return "no pytree"


def _real_numbers(leaf: Any) -> npt.NDArray[Any]:
    """A leaf of a model as an array. What NumPy says of one that is none may quote it, so that it is not passed on."""
    try:
        array = np.asarray(leaf)
        if array.dtype.kind in "biuf" or jnp.issubdtype(array.dtype, jnp.floating):
            return array
    except Exception:
        pass
    raise TrainerFailed("train: returned a leaf that is no real number; return what start=(x0, y0) has")
