"""The way through the house: plan, charge, run, release."""

import contextlib
import warnings
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from dpbilevel.about import version
from dpbilevel.errors import InvalidArgument, NotPrivateWarning
from dpbilevel.methods.refit import Refit
from dpbilevel.planning import DEFAULT_METHOD, Method, Plan, checked_start, prepare, warn_of_caveats
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.problem import BilevelProblem
from dpbilevel.program import Program
from dpbilevel.progress import counted, displayed
from dpbilevel.records import Records
from dpbilevel.solution import Solution

Tree = Any

_CHUNKS = 20  # how often, about, the progress bar moves


def solve(
    problem: BilevelProblem,
    records: Records,
    budget: Budget,
    *,
    start: tuple[Tree, Tree] | None = None,
    method: Method = DEFAULT_METHOD,
    refit: Refit | str | None = "auto",
    ledger: Ledger | None = None,
    seed: int | None = None,
    progress: bool = True,
) -> Solution:
    """Solve a bilevel problem on private records within a budget.

    Guarantee: everything in the returned `Solution` together satisfies (budget.epsilon, budget.delta)-DP under
    ``budget.adjacency``, unconditionally: it rests on clipping and noise, not on constants or convergence. The whole
    spend is charged before the first record is read and is never refunded.

    Args:
        problem: what to minimise.
        records: the private records.
        budget: what the run may spend; ``Budget(float("inf"))`` runs without noise or clipping.
        start: (x0, y0), public; the problem's own by default.
        method: `Tracking` unless told otherwise, `DPBilevel` for the paper's algorithm.
        refit: how the model is trained at the final x with the larger part of the budget, `Refit`; "auto" takes the
            method's own (`Tracking` has one, `DPBilevel` returns the model of its last solve), None returns the tuned
            y as it is.
        ledger: the data set's ledger; without one, the run stands alone and spends its budget.
        seed: fixes the noise for experiments. The solution is then reproducible, hence NOT private, and says so.
        progress: show a progress bar where the output is a terminal.

    >>> import numpy as np, dpbilevel as dpb
    >>> points = np.linspace(-1, 1, 500)
    >>> problem = dpb.BilevelProblem(
    ...     upper_term=lambda x, y: 0.5 * (x + y - 1) ** 2,
    ...     lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
    ... )
    >>> solution = dpb.solve(
    ...     problem,
    ...     dpb.Records(lower=points),
    ...     dpb.Budget(epsilon=2.0, delta=1e-4),
    ...     method=dpb.DPBilevel(inner=dpb.DPLocGD(strong_convexity=1.0, steps=10), step_size=0.3),
    ...     start=(0.0, 0.0),
    ... )
    >>> round(solution.privacy.epsilon(), 6)
    2.0
    """
    if not isinstance(records, Records):
        raise InvalidArgument(
            f"records: must be dpb.Records(...), not {type(records).__name__}; wrap your arrays in it"
        )
    if ledger is not None and not isinstance(ledger, Ledger):
        raise InvalidArgument(f"ledger: must be dpb.Ledger(total), not {type(ledger).__name__}")
    schedule = KeySchedule(seed)
    planned = prepare(problem, records.sizes, budget, method, start, refit)
    warn_of_caveats(planned, stacklevel=3)
    x, y = checked_start(problem, start)
    warn_if_not_private(budget, schedule)
    # Charged before a record is touched; whatever happens after this line, the charge stands.
    receipt = (ledger or Ledger(budget)).charge(planned.releases, budget, type(method).__name__)
    program, training = planned.program, planned.training
    rounds = program.rounds + (0 if training is None else training.rounds)

    def executed(part: Program, x: Tree, y: Tree) -> tuple[tuple[Tree, Tree], list[Tree]]:
        state, history, chunk = part.start(x, y), [], _chunk(part.rounds)
        for _ in range(0, part.rounds, chunk):
            state, seen = records.execute(part, receipt, schedule, state, chunk)
            history.append(jax.tree.map(np.asarray, seen))
            advance(chunk)
        return part.finish(state), history

    shown = contextlib.nullcontext() if progress else displayed("none")
    with shown, counted(type(method).__name__, rounds) as advance:
        values, history = executed(program, x, y)
        if training is not None:
            values, _ = executed(training, values[0], y)
    return _released(planned, schedule, records, jax.tree.map(np.asarray, values), history)


def _released(
    planned: Plan, schedule: KeySchedule, records: Records, values: tuple[Tree, Tree], history: list[Tree]
) -> Solution:
    return Solution(
        x=values[0],
        y=values[1],
        privacy=replace(planned.privacy, void=planned.privacy.void or schedule.reproducible),
        history=jax.tree.map(lambda *chunks: np.concatenate(chunks), *history),
        numbers=planned.numbers,
        sizes={role: records.sizes.count(role) for role in records.sizes.roles},
        method=repr(planned.method),
        version=version(),
    )


def warn_if_not_private(budget: Budget, schedule: KeySchedule, name: str = "seed", stacklevel: int = 3) -> None:
    """Warn, at the line that called the caller, of a seed that voids privacy; before the charge, so none is lost."""
    if schedule.reproducible and budget.is_private:
        warnings.warn(
            f"{name} is fixed: the noise can be recomputed, so this result is reproducible and NOT private; leave "
            f"{name} out for a private run",
            NotPrivateWarning,
            stacklevel=stacklevel,
        )


def _chunk(rounds: int) -> int:
    """The largest divisor of ``rounds`` that gives at least `_CHUNKS` chunks: equal chunks compile once."""
    return next(size for size in range(max(1, rounds // _CHUNKS), 0, -1) if rounds % size == 0)
