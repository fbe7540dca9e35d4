"""Checkpoints: an interrupted run resumes and gives the same bits, is charged once, and reuses no noise on other data.

**Content.** A checkpoint holds keys and released values. The state of a program between rounds, and what a part of a
round leaves, depend only on its public start and on noisy answers. This holds by construction for every method: `Stage`
and `Program` pass no record to the functions of a method, only answers of charged releases, and the accountant assumes
that every answer is published. In detail: DP Bilevel keeps iterates and their step lengths; tracking keeps answers,
iterates, averages and the state of its step rules; the final training keeps the model, its preconditioner or Adam's
moments, and a clip that follows a released fraction; grid search and screening keep models and released scores. Three
exceptions: private random search takes no checkpoint, because its guarantee requires that unfinished runs stay unseen;
a loss that closes over data, which has a caveat, puts the data into the state as it does into the solution; and with an
infinite epsilon nothing has noise.

**Why resuming is not a second release.** Keys are fixed before anything else. A chunk of rounds whose result was lost
is recomputed from the same state with the same noise on the same records, and gives the same bits. With *other*
records, losses or settings, the same noise would cancel in the difference of the results: an exact leak. The seal, an
HMAC of all records, and the fingerprint, an HMAC of everything that the compiled program does, prevent this.

**Order.** First the checkpoint is created (keys and fingerprint on disk), then the run is charged under a unique name,
then the records are sealed, then the chunks run. If a run stops between the charge and the seal, the charge is found in
the ledger by its name, within the transaction that would charge it. The last chunk removes the noise secret from the
file.

**Scores.** A run of the command line may release scores of other records once it is finished, in the same charge. Their
noise comes from the key and the seal of what is scored (`following_schedule`): whoever resumes the run releases the
same bits, and other records have noise of their own. So a copy of the file suffices to remove the noise of scores.

**Several processes.** The file is the first one's, which sends its content to the others as it sends noise. All of them
then know the state and seal their own records; the first one alone charges and saves.

**Copies.** The file holds the noise secret from its creation on, before any records are sealed. An early copy can run
the same noise on any records, and a copy from any time before the last chunk can subtract the noise from the released
values. Neither can be detected or undone. The file, and every copy of it, is as secret as the records.
"""

import contextlib
import functools
import hmac
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.checkpoint import file as checkpoint_file
from dpbilevel.checkpoint.fingerprint import code, fingerprint
from dpbilevel.errors import BudgetExceeded, CheckpointRefused, InvalidArgument
from dpbilevel.execution.parts import Opened, is_divided, steps_of
from dpbilevel.execution.program import Program, State
from dpbilevel.foundation.precision import is_double
from dpbilevel.foundation.processes import Job
from dpbilevel.planning import Plan
from dpbilevel.privacy.ledger import Ledger, Receipt
from dpbilevel.privacy.noise import KeySchedule, fresh_key, fresh_name
from dpbilevel.privacy.parts import job_of
from dpbilevel.privacy.record_shapes import RecordShapes
from dpbilevel.records import Records

Tree = Any

_RESTART = "resume with the original one, or delete the checkpoint to start a new run, which is charged again"


@dataclass(frozen=True)
class Saved:
    """The content of a checkpoint.

    Attributes:
        run: the public name of the run.
        key: key of the seal and the fingerprint. It is secret, because it allows testing guesses of the records.
        secret: noise secret; None once the run is finished, or if a fixed seed determines it.
        code: library, JAX and machine, as text.
        fingerprint: name of an argument -> HMAC of its value.
        records: the seal; None before the charge.
        part: the current program, 0 for tuning and 1 for the final training.
        rounds: completed rounds of that part.
        steps: completed steps of its only round, if it is executed in parts and not complete.
        state: state after these rounds, or what these steps have left (`Opened`); leaves in JAX's order.
        history: history of tuning so far, likewise.
    """

    run: str
    key: bytes
    secret: bytes | None
    code: str
    fingerprint: dict[str, str]
    records: str | None = None
    part: int = 0
    rounds: int = 0
    steps: int = 0
    state: tuple[Any, ...] = ()
    history: tuple[Any, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a value of JSON."""
        content = dict(vars(self))
        content["key"] = self.key.hex()
        content["secret"] = None if self.secret is None else self.secret.hex()
        content |= {name: [checkpoint_file.pack(leaf) for leaf in content[name]] for name in ("state", "history")}
        return content

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Saved":
        """The inverse of `to_json`."""
        values = dict(content)
        values["key"] = bytes.fromhex(values["key"])
        values["secret"] = None if values["secret"] is None else bytes.fromhex(values["secret"])
        values |= {name: tuple(map(checkpoint_file.unpack, values[name])) for name in ("state", "history")}
        texts = [
            values["run"],
            values["code"],
            *values["fingerprint"].values(),
            "" if values["records"] is None else values["records"],
        ]
        if not all(isinstance(text, str) and text.isascii() for text in texts):
            raise TypeError("a field that must be text is not")
        if not all(type(values[name]) is int for name in ("part", "rounds", "steps")):
            raise TypeError("a field that must be an integer is not")
        return cls(**values)


class Checkpoint:
    """The checkpoint of one run; `opened` creates it."""

    def __init__(
        self, path: Path, planned: Plan, saved: Saved, schedule: KeySchedule, *, new: bool, required: bool = True
    ) -> None:
        self._path, self._planned, self._saved, self._new, self._required = path, planned, saved, new, required
        self._job = job_of(planned.sizes.mesh)
        self.schedule = schedule

    def charge(self, ledger: Ledger, records: Records, description: str) -> Receipt:
        """The receipt of the run, which is charged unless it has been. Records are sealed after the first charge.

        Other records are refused before anything is charged. Processes of a job seal before it, because they do so
        together, and the first of them charges.

        A ledger in a database must hold the charge of a run whose records are sealed. A ledger in memory ends with its
        process: the charge is entered into the new ledger once, whether or not the run is finished, so that later runs
        on this ledger account for it.
        """
        seal = functools.cache(lambda: records.seal(self._saved.key).hex())
        if self._job.is_several:
            seal()
        return self._job.by_first(
            "charge",
            lambda: self._charge(ledger, records.sizes, description, seal),
            lambda: ledger.follow(self._planned.releases),
        )

    def _charge(self, ledger: Ledger, sizes: RecordShapes, description: str, seal: Callable[[], str]) -> Receipt:
        saved, planned = self._saved, self._planned
        if saved.records is not None and not hmac.compare_digest(seal(), saved.records):
            raise CheckpointRefused(
                f"records: are not those that {self._name()} was created with; the same noise on other records would "
                "cancel in the difference of the results, which is an exact leak. Resume with the very same records "
                "(order and invalid= included), or delete the checkpoint to start a new run, which is charged again"
            )
        named = f"{description}, run {saved.run}"
        if saved.records is not None and ledger.is_stored and named not in {e.description for e in ledger.entries}:
            raise CheckpointRefused(
                f"ledger: does not hold the charge of {self._name()} ({named}); resume with the ledger that was "
                "charged. If this is that ledger, it was restored from a backup and lacks all later charges"
            )
        try:
            receipt = ledger.charge(
                planned.releases, planned.budget, named, once=True, rows_per_unit=sizes.rows_per_unit
            )
        except (BudgetExceeded, InvalidArgument):
            if self._new:
                self._path.unlink()  # nothing was charged: the path is free for a run within the budget
            raise
        if saved.records is None:
            self._write(replace(saved, records=seal()))
        return receipt

    def restore(self, index: int, part: Program, start: State) -> tuple[State, int, int]:
        """The state of a part, the number of its completed rounds, and that of the steps of a round that is not.

        All rounds of an earlier part are complete. Its state is not needed any more, because the state of the current
        part includes its result.
        """
        saved = self._saved
        if index < saved.part:
            return start, part.rounds, 0
        if index > saved.part or not (saved.rounds or saved.steps):
            return start, 0, 0
        kept = Opened.of(part, start, is_double()) if saved.steps else start
        return jax.tree.unflatten(jax.tree.structure(kept), saved.state), saved.rounds, saved.steps

    def history(self, tuning: Program, start: tuple[Tree, Tree]) -> list[Tree]:
        """The history so far, as one chunk; empty before the first chunk."""
        if not (self._saved.part or self._saved.rounds):
            return []
        shapes = jax.eval_shape(tuning.observe, jax.eval_shape(tuning.start, *start))
        return [jax.tree.unflatten(jax.tree.structure(shapes), self._saved.history)]

    def save(self, index: int, rounds: int, history: Sequence[Tree], state: State | Opened, steps: int = 0) -> None:
        """Save the state after a chunk of a part, or after some steps of its only round.

        The last chunk removes the noise secret.
        """
        finished = _is_finished(self._planned, index, rounds)
        observed = jax.tree.map(lambda *chunks: np.concatenate(chunks), *history) if history else ()
        saved = replace(
            self._saved,
            secret=None if finished else self._saved.secret,
            part=index,
            rounds=rounds,
            steps=steps,
            state=tuple(map(np.asarray, jax.tree.leaves(state))),
            history=tuple(jax.tree.leaves(observed)),
        )
        # Without this save, the run can be resumed from the one before it: the seal of the records is in both.
        refused = () if self._required else (CheckpointRefused,)
        with self._job.barrier("checkpoint"), contextlib.suppress(*refused):
            if self._job.is_first:
                self._write(saved)

    def _write(self, saved: Saved) -> None:
        checkpoint_file.write(self._path, saved.to_json())
        self._saved = saved

    def _name(self) -> str:
        return f"checkpoint={str(self._path)!r}"


@contextlib.contextmanager
def opened(
    path: str | Path,
    planned: Plan,
    schedule: KeySchedule,
    chunks: Sequence[int],
    facts: str = "",
    required: bool = True,
) -> Iterator[Checkpoint]:
    """The checkpoint of a run, created if there is none. Reads no record and charges nothing.

    Args:
        path: path of the file.
        planned: plan of the run.
        schedule: key schedule of a new run, or of a fixed seed; a resumed run restores its own.
        chunks: rounds between two saves, for each part.
        facts: facts that were read with the records, as text.
        required: whether a run stops if a chunk cannot be saved.
    """
    job, parts = job_of(planned.sizes.mesh), planned.parts
    target = checkpoint_file.checked_path(path) if job.is_first else Path(path)
    if not all(part.is_compiled for part in parts):
        raise InvalidArgument(
            "checkpoint: a black box draws its own randomness, so that its calls cannot be repeated with the same "
            "bits; leave checkpoint out"
        )
    if any(part.is_exact for part in parts):
        raise InvalidArgument(
            "checkpoint: exact noise comes from a generator that cannot be reset, so that rounds cannot be repeated "
            'with the same bits; leave checkpoint out, or use noise="float"'
        )
    _check_types(parts, planned.start)
    found = None
    with contextlib.ExitStack() as stack:
        with job.barrier("checkpoint"):
            if job.is_first:
                stack.enter_context(checkpoint_file.exclusive(target))
                found = _found(target, planned, schedule, chunks, facts)
        saved, new = _shared(job, found)
        if saved.secret is not None:
            schedule = KeySchedule.restore(saved.secret)
        yield Checkpoint(target, planned, saved, schedule.shared(job), new=new, required=required)


def _found(target: Path, planned: Plan, schedule: KeySchedule, chunks: Sequence[int], facts: str) -> tuple[Saved, bool]:
    """What is in the file, which is created if there is none, and whether it was."""
    content = checkpoint_file.read(target)
    if content is None:
        key = fresh_key()
        secret = None if schedule.reproducible else schedule.reveal_secret()
        saved = Saved(fresh_name(), key, secret, code(), fingerprint(key, planned, schedule, chunks, facts))
        checkpoint_file.write(target, saved.to_json())
        return saved, True
    saved = _parsed(target, content)
    _check_same(target, saved, lambda: fingerprint(saved.key, planned, schedule, chunks, facts))
    is_over = schedule.reproducible or _is_finished(planned, saved.part, saved.rounds)
    if not _fits(saved, planned.parts, planned.start) or (saved.secret is None and not is_over):
        raise checkpoint_file.damaged(target)
    return saved, False


def _shared(job: Job, found: tuple[Saved, bool] | None) -> tuple[Saved, bool]:
    """What the first process has found, on all processes of a job."""
    text = b"" if found is None else json.dumps([found[0].to_json(), found[1]]).encode()
    content, new = json.loads(job.broadcast(text))
    return found or (Saved.from_json(content), new)


def following_schedule(path: Path, records: Records) -> KeySchedule:
    """The keys of a release on other records that follows the run of a checkpoint: the same ones if it is repeated.

    A run without a checkpoint, or with one that cannot be read, cannot be resumed; its keys are new ones.
    """
    content, key, job = None, b"", job_of(records.sizes.mesh)
    if job.is_first:
        with contextlib.suppress(CheckpointRefused):
            content = checkpoint_file.read(path)
    if content is not None:
        key = hmac.new(bytes.fromhex(content["key"]), b"dpbilevel release after a run", "sha256").digest()
    key = job.broadcast(key)
    return (KeySchedule.restore(records.seal(key)) if key else KeySchedule()).shared(job)


def _parsed(path: Path, content: dict[str, Any]) -> Saved:
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        return Saved.from_json(content)
    raise checkpoint_file.damaged(path)


def _is_finished(planned: Plan, index: int, rounds: int) -> bool:
    return index == len(planned.parts) - 1 and rounds == planned.parts[index].rounds


def _fits(saved: Saved, parts: Sequence[Program], start: tuple[Tree, Tree]) -> bool:
    """Whether the saved state has the shapes and dtypes of the run at that point."""
    if not (0 <= saved.part < len(parts) and 0 <= saved.rounds <= parts[saved.part].rounds):
        return False
    if not (saved.part or saved.rounds or saved.steps):
        return not (saved.state or saved.history)
    tuning, running = parts[0], parts[saved.part]
    state = jax.eval_shape(running.start, *start)
    if saved.steps:
        if saved.rounds or not (is_divided(running) and 0 < saved.steps < steps_of(running)):
            return False
        state = Opened.of(running, state, is_double())
    observed = jax.eval_shape(tuning.observe, jax.eval_shape(tuning.start, *start))
    rounds = tuning.rounds if saved.part else saved.rounds
    expected = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]
    if rounds:
        expected += [((rounds, *leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(observed)]
    return saved.records is not None and [(a.shape, a.dtype) for a in (*saved.state, *saved.history)] == expected


def _check_same(path: Path, saved: Saved, own: Callable[[], dict[str, str]]) -> None:
    """Refuse to resume with different code or a different run."""
    if saved.code != code():
        raise CheckpointRefused(
            f"checkpoint={str(path)!r}: was written by {saved.code}, and this is {code()}, which may round or sample "
            f"differently; {_RESTART}"
        )
    for name, value in own().items():
        if not hmac.compare_digest(saved.fingerprint.get(name, ""), value):
            raise CheckpointRefused(f"checkpoint={str(path)!r}: was created with another {name}; {_RESTART}")


def _check_types(parts: Sequence[Program], start: tuple[Tree, Tree]) -> None:
    """Raise before the charge if the state of a program holds anything but arrays of numbers."""
    for part in parts:
        state = jax.eval_shape(part.start, *start)
        for leaf in jax.tree.leaves((state, jax.eval_shape(part.observe, state))):
            if not any(jnp.issubdtype(leaf.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
                raise InvalidArgument(
                    f"checkpoint: the state of the method has dtype {leaf.dtype}, and only real numbers, integers and "
                    "booleans can be saved; leave checkpoint out"
                )
