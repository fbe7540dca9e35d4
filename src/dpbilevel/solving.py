"""`solve`: plan, charge, run, and return the released solution."""

import contextlib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.checkpoint.checkpoint import opened
from dpbilevel.errors import InvalidArgument, NotPrivateWarning
from dpbilevel.execution.notices import warn_afterwards, warn_beforehand
from dpbilevel.execution.progress import counted, displayed
from dpbilevel.foundation.about import version
from dpbilevel.foundation.arguments import one_of
from dpbilevel.methods.refit import Refit
from dpbilevel.planning import DEFAULT_METHOD, NOISES, Method, Plan, checked_start, prepare, with_caveats
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.discrete import check_sampler
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.problem import BilevelProblem
from dpbilevel.records import Records, isolated_jax_config
from dpbilevel.solution.outcome import outcome
from dpbilevel.solution.remarks import result_remarks
from dpbilevel.solution.solution import Solution

Tree = Any

_CHUNKS = 20  # approximate number of updates of the progress bar


def solve(
    problem: BilevelProblem,
    records: Records,
    budget: Budget,
    *,
    start: tuple[Tree, Tree] | None = None,
    method: Method = DEFAULT_METHOD,
    refit: Refit | str | None = "auto",
    ledger: Ledger | None = None,
    checkpoint: str | Path | None = None,
    seed: int | None = None,
    noise: str = "float",
    progress: bool = True,
) -> Solution:
    """Solve a bilevel problem on private records within a budget.

    Guarantee: the returned `Solution` as a whole satisfies (budget.epsilon, budget.delta)-DP under
    ``budget.adjacency``, unconditionally: the guarantee rests on clipping and noise, not on constants or convergence.
    The whole spend is charged before the first record is read and is never refunded. The outcome of the run is in the
    ``result`` of the solution; if the solution should not be used, `solve` issues a `UtilityWarning`.

    Args:
        problem: the problem to solve.
        records: the private records.
        budget: the privacy budget of the run; ``Budget(float("inf"))`` runs without noise or clipping.
        start: (x0, y0), public; the problem's own by default.
        method: `Tracking` by default, `DPBilevel` for the paper's algorithm.
        refit: a `Refit`, which trains the model at the final x with the larger part of the budget; "auto" for the
            default of the method (`Tracking` has one, `DPBilevel` returns the model of its last solve); None to return
            the tuned y.
        ledger: the ledger of the data set; without one, the run is accounted for by itself.
        checkpoint: path of a file from which an interrupted run resumes, with the same bits and without a second
            charge. The file and every copy of it are as secret as the records: until the last round it holds the noise
            secret. Delete it once the solution is saved. Resuming with other records, another run or other code raises
            `CheckpointRefused`.
        seed: fixes the noise for experiments. The solution is then reproducible, hence NOT private, and marked as such.
        noise: "float" for Gaussian noise in float64, or "exact" for integer noise on integer sums, whose low bits leak
            nothing. Exact noise needs OpenDP (``pip install "dpbilevel[exact]"``) and slightly more noise for the same
            epsilon, and supports neither a seed, nor random batches, nor black boxes.
        progress: show a progress bar if the output is a terminal.

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
    check_noise(noise, seed)
    planned = with_caveats(prepare(problem, records.sizes, budget, method, start, refit, noise), records.caveats)
    x, y = checked_start(problem, start)
    warn_beforehand(planned.privacy, planned.remarks, stacklevel=2)
    warn_if_not_private(budget, schedule)
    name, ledger = type(method).__name__, ledger or Ledger(budget)
    parts = [part for part in (planned.program, planned.training) if part is not None]
    chunks = [_chunk(part.rounds) for part in parts]
    with contextlib.ExitStack() as stack:
        saved = None
        if checkpoint is not None:
            saved = stack.enter_context(opened(checkpoint, planned, (x, y), schedule, chunks))
            schedule = saved.schedule
        # The charge precedes any access to a record. Whatever happens after this line, it is not refunded.
        receipt = (
            ledger.charge(planned.releases, budget, name) if saved is None else saved.charge(ledger, records, name)
        )
        if not progress:
            stack.enter_context(displayed("none"))
        advance = stack.enter_context(counted(name, sum(part.rounds for part in parts)))
        history = [] if saved is None else saved.history(planned.program, (x, y))
        values = (x, y)
        for index, (part, chunk) in enumerate(zip(parts, chunks, strict=True)):
            state, done = part.start(values[0], y), 0
            if saved is not None:
                state, done = saved.restored(index, part, state)
            if done:
                part.take(receipt, schedule, done)
                advance(done)
            for first in range(done, part.rounds, chunk):
                state, observed = records.execute(part, receipt, schedule, _plain(state), chunk)
                if index == 0:
                    history.append(jax.tree.map(np.asarray, observed))
                if saved is not None:
                    saved.save(index, first + chunk, state, history)
                advance(chunk)
            values = part.finish(_plain(state))
    values = jax.tree.map(np.asarray, values)
    trajectory = jax.tree.map(lambda *chunks: np.concatenate(chunks), *history)
    result = outcome(planned, x, values[0], trajectory)
    if not result.usable:
        warn_afterwards(result.sentence, stacklevel=2)
    return _solution(planned, schedule, records, values, trajectory, result.sentence)


def _solution(
    planned: Plan, schedule: KeySchedule, records: Records, values: tuple[Tree, Tree], history: Tree, result: str
) -> Solution:
    return Solution(
        x=values[0],
        y=values[1],
        privacy=replace(planned.privacy, void=planned.privacy.void or schedule.reproducible),
        history=history,
        parameters=planned.parameters,
        sizes={role: records.sizes.count(role) for role in records.sizes.roles},
        method=repr(planned.method),
        version=version(),
        remarks=(*planned.remarks, *result_remarks(planned, values[0])),
        result=result,
    )


def check_noise(noise: str, seed: int | None, name: str = "seed") -> None:
    """Raise, before any charge, if exact noise is requested and cannot be drawn."""
    if one_of("noise", noise, NOISES, "it selects how noise is drawn") == "exact":
        if seed is not None:
            raise InvalidArgument(
                f'{name}={seed!r}: exact noise has no seed; leave {name} out, or experiment with noise="float"'
            )
        check_sampler()


def warn_if_not_private(budget: Budget, schedule: KeySchedule, name: str = "seed", stacklevel: int = 3) -> None:
    """Warn, at the line that called the caller, about a seed that voids privacy; before the charge."""
    if schedule.reproducible and budget.is_private:
        warnings.warn(
            f"{name} is fixed: the noise can be recomputed, so this result is reproducible and NOT private; leave "
            f"{name} out for a private run",
            NotPrivateWarning,
            stacklevel=stacklevel,
        )


def _plain(state: Tree) -> Tree:
    """Arrays as a checkpoint restores them, so that a resumed run computes the same bits.

    JAX marks some arrays as weakly typed, which changes how it computes with them; a checkpoint does not keep this.
    """
    with isolated_jax_config():
        return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), state)


def _chunk(rounds: int) -> int:
    """The largest divisor of ``rounds`` that gives at least `_CHUNKS` chunks; equal chunks are compiled once."""
    return next(size for size in range(max(1, rounds // _CHUNKS), 0, -1) if rounds % size == 0)
