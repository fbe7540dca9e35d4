"""`solve`: execute a plan on private records, and return the released solution."""

import contextlib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import jax

from dpbilevel.checkpoint.agreement import check_alike
from dpbilevel.checkpoint.checkpoint import opened
from dpbilevel.errors import InvalidArgument, NotPrivateWarning
from dpbilevel.execution.notices import warn_afterwards, warn_beforehand
from dpbilevel.execution.running import check_ledger, check_records, chunk_length, run
from dpbilevel.foundation.about import version
from dpbilevel.foundation.arguments import one_of
from dpbilevel.foundation.precision import user_float
from dpbilevel.methods.refit import Refit
from dpbilevel.planning import DEFAULT_METHOD, NOISES, Method, Plan, prepare, with_caveats
from dpbilevel.privacy.accounting import all_charges
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.discrete import check_sampler
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.parts import job_of
from dpbilevel.problem import BilevelProblem
from dpbilevel.records import Records
from dpbilevel.solution.outcome import Outcome, outcome
from dpbilevel.solution.remarks import result_remarks
from dpbilevel.solution.solution import Legend, Solution

Tree = Any


@overload
def solve(
    problem: Plan,
    records: Records,
    *,
    ledger: Ledger | None = None,
    checkpoint: str | Path | None = None,
    seed: int | None = None,
    progress: bool = True,
) -> Solution: ...


@overload
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
) -> Solution: ...


def solve(
    problem: BilevelProblem | Plan,
    records: Records,
    budget: Budget | None = None,
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
    """Solve a bilevel problem on private records within a budget, or execute a plan of that.

    ``solve(problem, records, budget, ...)`` plans and runs. ``solve(plan, records, ...)`` runs what `plan` has planned:
    the plan has the budget, the start, the method, the final training and the noise, which cannot be given again. Each
    call is one run, which draws its own noise and is charged.

    Guarantee: the returned `Solution` as a whole satisfies (budget.epsilon, budget.delta)-DP under
    ``budget.adjacency``, unconditionally: the guarantee rests on clipping and noise, not on constants or convergence.
    The whole spend is charged before the first record is read and is never refunded. The outcome of the run is in the
    ``result`` of the solution; if the solution should not be used, `solve` issues a `UtilityWarning`.

    Args:
        problem: the problem to solve, or a `Plan`.
        records: the private records; for a plan, of the shapes that it was made for.
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

    Plan first, look at the plan, and then execute it:

    >>> records = dpb.Records(lower=points)
    >>> planned = dpb.plan(problem, records.sizes, dpb.Budget(2.0, 1e-4), start=(0.0, 0.0), method=dpb.Refit(steps=5))
    >>> planned
    Plan(Refit, 5 releases on RecordShapes(lower=500 records): (2, 0.0001)-DP, replace-one, one record)
    >>> dpb.solve(planned, records).sizes
    {'lower': 500}
    """
    check_records(records)
    check_ledger(ledger)
    schedule, job = KeySchedule(seed), job_of(records.sizes.mesh)
    with job.telling():
        if isinstance(problem, Plan):
            _check_left_out(budget=budget, start=start, method=method, refit=refit, noise=noise)
            check_noise(problem.noise, seed)
            planned = problem
        else:
            check_noise(noise, seed)
            planned = prepare(problem, records.sizes, budget, method, start, refit, noise)  # type: ignore[arg-type]
        planned = for_records(planned, records)
        if job.is_first:
            warn_beforehand(planned.privacy, planned.remarks, stacklevel=2)
            warn_if_not_private(planned.budget, schedule)
        solution, result = execute(planned, records, schedule, ledger=ledger, checkpoint=checkpoint, progress=progress)
    if not result.usable and job.is_first:
        warn_afterwards(result.sentence, stacklevel=2)
    return solution


def for_records(planned: Plan, records: Records) -> Plan:
    """The plan of a run on these records, whose caveats join; raises if it was not made for such records."""
    if planned.sizes != records.sizes:
        raise InvalidArgument(
            f"records: must have the shapes and dtypes that the plan was made for, {planned.sizes!r}; these are "
            f"{records.sizes!r} (plan again with dpb.plan(problem, records.sizes, budget))"
        )
    if any(leaf.dtype != user_float() for leaf in jax.tree.leaves(planned.start)):
        raise InvalidArgument(
            "plan: was made with another setting of jax_enable_x64, which changes every number; plan again, or restore "
            "the setting"
        )
    if records.is_on_disk and not all(part.is_compiled for part in planned.parts):
        raise InvalidArgument(
            "records: are on disk, and a black box receives its records as arrays in memory; leave storage= out, or "
            "use a method without a black box"
        )
    # What a solution reports is what its releases are charged, even if somebody has edited the plan's own statement.
    privacy = replace(planned.privacy, charges=all_charges(planned.releases), rows_per_unit=records.sizes.rows_per_unit)
    return with_caveats(replace(planned, privacy=privacy), after=records.caveats)


def execute(
    planned: Plan,
    records: Records,
    schedule: KeySchedule,
    *,
    ledger: Ledger | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    legend: Legend | None = None,
    facts: str = "",
    saves_required: bool = True,
) -> tuple[Solution, Outcome]:
    """Charge and run a plan `for_records`, without warnings: the solution, and whether it can be used.

    Args:
        planned, records, ledger, checkpoint, progress: as in `solve`.
        schedule: key schedule of the noise.
        legend: names of the numbers of x, if known.
        facts: facts that were read with the records and that the result is interpreted by, as text; a checkpoint is
            only resumed with the same.
        saves_required: whether the run stops if the checkpoint cannot be written any more, as on a full disk.
    """
    start, name, job = planned.start, type(planned.method).__name__, job_of(records.sizes.mesh)
    chunks = [chunk_length(part.rounds) for part in planned.parts]
    check_alike(job, planned, schedule, chunks, facts)
    with contextlib.ExitStack() as stack:
        saved = None
        if checkpoint is None:
            schedule = schedule.shared(job)
        else:
            saved = stack.enter_context(opened(checkpoint, planned, schedule, chunks, facts, saves_required))
        released = run(
            planned.parts,
            records,
            start,
            schedule,
            budget=planned.budget,
            ledger=ledger,
            description=name,
            checkpoint=saved,
            progress=progress,
        )
    x, y = released.values
    result = outcome(planned, start[0], x, released.history)
    solution = Solution(
        x=x,
        y=y,
        privacy=replace(planned.privacy, void=planned.privacy.void or schedule.reproducible),
        history={**released.history, **{name: tree[None] for name, tree in released.trained.items()}},
        parameters=dict(planned.parameters),
        sizes={role: records.sizes.count(role) for role in records.sizes.roles},
        method=repr(planned.method),
        version=version(),
        remarks=(*planned.remarks, *result_remarks(planned, x, legend)),
        result=result.sentence,
        legend=legend,
    )
    return solution, result


def _check_left_out(**given: Any) -> None:
    """Raise for an argument of `plan` that is given together with a plan."""
    defaults = {"budget": None, "start": None, "method": DEFAULT_METHOD, "refit": "auto", "noise": "float"}
    for name, value in given.items():
        default = defaults[name]
        if value is not default and not (isinstance(value, str) and value == default):
            raise InvalidArgument(
                f"{name}: must be left out, because a plan has its own; plan again with dpb.plan(..., {name}=...), or "
                "pass the problem in place of its plan"
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
