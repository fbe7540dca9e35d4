"""The one loop of all runs: charge, execute in chunks, save, show progress, and return what was released.

`solve`, `evaluate`, random search and estimators run through it. The charge precedes every access to a record, and
nothing else in the library executes a program on records (`tests/guarantees/test_house_rules.py`).
"""

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from dpbilevel.checkpoint.checkpoint import Checkpoint
from dpbilevel.errors import InvalidArgument
from dpbilevel.execution.parts import Observer, uses_in
from dpbilevel.execution.program import Program
from dpbilevel.execution.progress import set_display, show_progress
from dpbilevel.foundation.precision import isolated_jax_config
from dpbilevel.foundation.processes import ALONE, Job
from dpbilevel.privacy.accounting import Chargeable
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger, Receipt
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.parts import job_of
from dpbilevel.records import Records

Tree = Any

_NOTHING: Mapping[str, Tree] = {}
_CHUNKS = 20  # approximate number of updates of the progress bar, and of saves


@dataclass(frozen=True, eq=False)
class Released:
    """What a run released.

    Attributes:
        values: (x, y) of the last part.
        history: the history of the first part, one entry per round.
        trained: what a later part, the final training, would enter into a history after its last round; empty if there
            is one part.
    """

    values: tuple[Tree, Tree]
    history: Tree
    trained: Mapping[str, Tree] = field(default_factory=dict)


def run(
    parts: Sequence[Program],
    records: Records,
    start: tuple[Tree, Tree],
    schedule: KeySchedule,
    *,
    budget: Budget,
    ledger: Ledger | None,
    description: str,
    checkpoint: Checkpoint | None = None,
    receipt: Receipt | None = None,
    progress: bool = True,
) -> Released:
    """Charge the releases of all parts, then run the parts one after the other.

    Args:
        parts: programs; each starts at the x of the part before it and at the initial y.
        records: the private records.
        start: (x, y), public.
        schedule: key schedule of the noise; a checkpoint has its own.
        budget: budget of the run.
        ledger: ledger to charge; None for one of this run alone.
        description: description of the charge, and title of the progress bar.
        checkpoint: the opened checkpoint of the run, from which it resumes.
        receipt: of an earlier charge that has paid for these parts too; nothing is charged again, and records refuse
            releases that are not on it.
        progress: whether progress is shown.
    """
    # The charge precedes any access to a record. Whatever happens after it, it is not refunded.
    history: list[Tree] = []
    job = job_of(records.sizes.mesh)
    if receipt is not None:
        if checkpoint is not None:
            raise InvalidArgument("receipt: must be left out with a checkpoint, which charges")
    elif checkpoint is None:
        releases = [release for part in parts for release in part.releases]
        receipt = charge(releases, budget, ledger, description, records.sizes.rows_per_unit, job)
    else:
        schedule = checkpoint.schedule
        receipt = checkpoint.charge(ledger or Ledger(budget), records, description)
        history = checkpoint.history(parts[0], start)
    with contextlib.ExitStack() as stack:
        if not (progress and job.is_first):
            stack.enter_context(set_display("none"))
        uses = sum(part.rounds * part.uses_per_round for part in parts)
        advance = stack.enter_context(show_progress(description, uses))
        values, trained = start, _NOTHING
        for index, part in enumerate(parts):
            state, done, steps = part.start(values[0], start[1]), 0, 0
            if checkpoint is not None:
                state, done, steps = checkpoint.restore(index, part, state)
            if done:
                part.take(receipt, schedule, done)
            advance(done * part.uses_per_round + uses_in(part, 0, steps))
            chunk, observer = chunk_length(part.rounds), Observer(advance)
            if checkpoint is not None:
                observer = Observer(advance, functools.partial(checkpoint.save, index, 0, history))
            for first in range(done, part.rounds, chunk):
                number = min(chunk, part.rounds - first)
                state, observed = records.execute(part, receipt, schedule, _plain(state), number, steps, observer)
                if index == 0:
                    history.append(jax.tree.map(np.asarray, observed))
                if checkpoint is not None:
                    checkpoint.save(index, first + number, history, state)
            values = part.finish(_plain(state))
            # Of the state that a checkpoint keeps, so that a resumed run has it too.
            trained = jax.tree.map(np.asarray, part.observe(_plain(state))) if index else _NOTHING
    whole = jax.tree.map(lambda *chunks: np.concatenate(chunks), *history)
    return Released(jax.tree.map(np.asarray, values), whole, trained)


def charge(
    releases: Sequence[Chargeable],
    budget: Budget,
    ledger: Ledger | None,
    description: str,
    rows_per_unit: int | None = None,
    job: Job = ALONE,
) -> Receipt:
    """Charge releases to a ledger, or to one of their own if there is none; the receipt allows each of them once.

    The first process of a job charges, and the others have their receipts once it has.
    """
    charged = ledger or Ledger(budget)
    return job.by_first(
        "charge",
        lambda: charged.charge(releases, budget, description, rows_per_unit=rows_per_unit),
        lambda: charged.follow(releases),
    )


def check_ledger(ledger: Any) -> None:
    """Raise unless ``ledger`` is a ledger, or None for a run that is accounted for by itself."""
    if ledger is not None and not isinstance(ledger, Ledger):
        raise InvalidArgument(f"ledger: must be dpb.Ledger(total), not {type(ledger).__name__}")


def check_records(records: Any) -> None:
    """Raise unless ``records`` are wrapped, so that they can only be read through charged releases."""
    if not isinstance(records, Records):
        raise InvalidArgument(
            f"records: must be dpb.Records(...), not {type(records).__name__}; wrap your arrays in it"
        )


def chunk_length(rounds: int) -> int:
    """The rounds of a chunk, for at most `_CHUNKS` chunks; the last one may be shorter, which compiles nothing."""
    return -(-rounds // _CHUNKS)


def _plain(state: Tree) -> Tree:
    """Arrays as a checkpoint restores them, so that a resumed run computes the same bits.

    JAX marks some arrays as weakly typed, which changes how it computes with them; a checkpoint does not keep this.
    """
    with isolated_jax_config():
        return jax.tree.map(np.asarray, state)
