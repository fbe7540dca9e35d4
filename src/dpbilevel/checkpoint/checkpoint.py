"""A run that was cut off goes on, to the same bits: charged once, and no noise used on other records.

**What a checkpoint holds**: keys, and released values. What a program keeps between rounds is made of its public start
and of noisy answers alone. This holds by construction, for every method: `Stage` and `Program` hand no record to a
method's functions, only answers of releases that were charged, all of them, and for which the accountant assumes that
each is seen. Looked through, one by one: DP Bilevel keeps iterates and their step lengths; tracking keeps answers,
iterates, averages, Adam's moments and the state of its step rules; the final training keeps the model, its moments and
a clip that follows a released fraction; grid search and screening keep models and released scores. (Private random
search, whose guarantee needs that unfinished runs stay unseen, has a loop of its own and takes no checkpoint. A loss
that closes over data, of which a caveat warns, puts them into the state as it puts them into the solution; and without
a budget nothing is noised, here as there.)

**Why going on is no second release.** Keys are fixed before anything else. A chunk of rounds whose result was lost is
computed again with the same noise on the same records from the same state: the same bits. Whoever saw both saw one.
With *other* records, losses or numbers the same noise would cancel in the difference, and the leak would be exact.
Hence the seal, an HMAC of all records, and the fingerprint, an HMAC of all that the compiled program does.

**In which order.** "begun" (keys and fingerprint on disk), then the charge, under a name that only this run has, then
"charged" (records sealed), then chunks. A charge that is in the ledger and not yet in the checkpoint is found there by
its name, within the transaction that would charge it. The last chunk takes the noise secret out of the file.

**What a copy gives away.** The noise secret is in the file from "begun" on, when no records are sealed yet. A copy from
then runs the same noise on whatever records it is given, and a copy from any time before the last chunk takes the noise
off what is released. Neither can be noticed or undone: the file is as secret as the records, and so is every copy.
"""

import contextlib
import hmac
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
from dpbilevel.execution.program import Program, State
from dpbilevel.planning import Plan
from dpbilevel.privacy.ledger import Ledger, Receipt
from dpbilevel.privacy.noise import KeySchedule, fresh_key, fresh_name
from dpbilevel.records import Records

Tree = Any

_BEGIN_ANEW = "resume with what it was begun with, or delete it to begin a new run, which is charged anew"


@dataclass(frozen=True)
class Saved:
    """What is on disk.

    Attributes:
        run: the public name of the run.
        key: of seal and fingerprint; secret, for who has it can test guesses of the records.
        secret: of the noise; None once the run is finished, and where a fixed seed has it.
        code: library, JAX and machine, in words.
        fingerprint: name of an argument -> HMAC of what it was.
        records: the seal; None before the charge.
        part: which program is running, 0 for tuning and 1 for the final training.
        rounds: of that part that are done.
        state: after them; leaves in JAX's order.
        history: of tuning so far, likewise.
    """

    run: str
    key: bytes
    secret: bytes | None
    code: str
    fingerprint: dict[str, str]
    records: str | None = None
    part: int = 0
    rounds: int = 0
    state: tuple[Any, ...] = ()
    history: tuple[Any, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a value of JSON."""
        content = dict(vars(self))
        content["key"] = self.key.hex()
        content["secret"] = None if self.secret is None else self.secret.hex()
        content |= {name: [checkpoint_file.packed(leaf) for leaf in content[name]] for name in ("state", "history")}
        return content

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Saved":
        """The inverse of `to_json`."""
        kept = dict(content)
        kept["key"] = bytes.fromhex(kept["key"])
        kept["secret"] = None if kept["secret"] is None else bytes.fromhex(kept["secret"])
        kept |= {name: tuple(map(checkpoint_file.unpacked, kept[name])) for name in ("state", "history")}
        words = [
            kept["run"],
            kept["code"],
            *kept["fingerprint"].values(),
            "" if kept["records"] is None else kept["records"],
        ]
        if not all(isinstance(word, str) and word.isascii() for word in words):
            raise TypeError("a text is none")
        if not all(type(kept[name]) is int for name in ("part", "rounds")):
            raise TypeError("a number is none")
        return cls(**kept)


class Checkpoint:
    """The checkpoint of one run; `opened` makes it."""

    def __init__(self, path: Path, planned: Plan, saved: Saved, schedule: KeySchedule, *, new: bool) -> None:
        self._path, self._planned, self._saved, self._new = path, planned, saved, new
        self.schedule = schedule

    def charge(self, ledger: Ledger, records: Records, description: str) -> Receipt:
        """The receipt of the run, which is charged unless it was. Records are sealed after the first charge.

        Other records are refused before anything is charged.

        A ledger in a database must have the charge of a run that says it was charged. A ledger in memory ended with its
        process: the charge is entered into the new one, once, be the run finished or not, so that later runs on the
        same ledger find it spent.
        """
        saved, planned = self._saved, self._planned
        if saved.records is not None and not hmac.compare_digest(self._seal(records), saved.records):
            raise CheckpointRefused(
                f"records: are not those that {self._name()} was begun with; the same noise on other records would "
                "cancel in the difference of the results, which is an exact leak. Resume with the very same records "
                "(order and invalid= included), or delete the checkpoint to begin a new run, which is charged anew"
            )
        named = f"{description}, run {saved.run}"
        if saved.records is not None and ledger.is_stored and named not in {e.description for e in ledger.entries}:
            raise CheckpointRefused(
                f"ledger: does not hold the charge of {self._name()} ({named}); resume with the ledger that it was "
                "begun with. If it is that one, a backup was put back and has forgotten what was charged since"
            )
        try:
            receipt = ledger.charge(planned.releases, planned.budget, named, once=True)
        except (BudgetExceeded, InvalidArgument):
            if self._new:
                self._path.unlink()  # nothing was charged: the path is free for a run that fits
            raise
        if saved.records is None:
            self._write(replace(saved, records=self._seal(records)))
        return receipt

    def restored(self, index: int, part: Program, start: State) -> tuple[State, int]:
        """The state of a part and how many of its rounds are done.

        Of a part that was left behind all rounds are done, and its state is no longer needed: what it found is in the
        state of the part that runs.
        """
        saved = self._saved
        if index < saved.part:
            return start, part.rounds
        if index > saved.part or not saved.rounds:
            return start, 0
        return jax.tree.unflatten(jax.tree.structure(start), saved.state), saved.rounds

    def history(self, tuning: Program, start: tuple[Tree, Tree]) -> list[Tree]:
        """What was observed so far, as one chunk; nothing before the first."""
        if not (self._saved.part or self._saved.rounds):
            return []
        shapes = jax.eval_shape(tuning.observe, jax.eval_shape(tuning.start, *start))
        return [jax.tree.unflatten(jax.tree.structure(shapes), self._saved.history)]

    def save(self, index: int, rounds: int, state: State, history: Sequence[Tree]) -> None:
        """Note that a chunk of a part is done; with the last one the noise secret goes."""
        seen = jax.tree.map(lambda *chunks: np.concatenate(chunks), *history)
        finished = _is_finished(self._planned, index, rounds)
        self._write(
            replace(
                self._saved,
                secret=None if finished else self._saved.secret,
                part=index,
                rounds=rounds,
                state=tuple(map(np.asarray, jax.tree.leaves(state))),
                history=tuple(jax.tree.leaves(seen)),
            )
        )

    def _seal(self, records: Records) -> str:
        return records.seal(self._saved.key).hex()

    def _write(self, saved: Saved) -> None:
        checkpoint_file.write(self._path, saved.to_json())
        self._saved = saved

    def _name(self) -> str:
        return f"checkpoint={str(self._path)!r}"


@contextlib.contextmanager
def opened(
    path: str | Path, planned: Plan, start: tuple[Tree, Tree], schedule: KeySchedule, chunks: Sequence[int]
) -> Iterator[Checkpoint]:
    """The checkpoint of a run, begun where there is none. Reads no record and charges nothing.

    Args:
        path: of the file.
        planned: the run.
        start: (x, y).
        schedule: of a new run, or of a fixed seed; a run that resumes has its own.
        chunks: rounds between two saves, for each part.
    """
    target = checkpoint_file.checked_path(path)
    parts = [part for part in (planned.program, planned.training) if part is not None]
    if not all(part.is_compiled for part in parts):
        raise InvalidArgument(
            "checkpoint: a black box draws randomness of its own, so that its calls cannot be repeated to the same "
            "bits; leave checkpoint out"
        )
    if any(part.is_exact for part in parts):
        raise InvalidArgument(
            "checkpoint: exact noise comes from a generator that cannot be set back, so that rounds cannot be repeated "
            'to the same bits; leave checkpoint out, or noise="float"'
        )
    _check_types(parts, start)
    with checkpoint_file.alone(target):
        content = checkpoint_file.read(target)
        if content is None:
            key = fresh_key()
            secret = None if schedule.reproducible else schedule.reveal_secret()
            saved = Saved(fresh_name(), key, secret, code(), fingerprint(key, planned, start, schedule, chunks))
            checkpoint_file.write(target, saved.to_json())
        else:
            saved = _parsed(target, content)
            _check_same(target, saved, lambda: fingerprint(saved.key, planned, start, schedule, chunks))
            if not _fits(saved, parts, start):
                raise checkpoint_file.damaged(target)
            if saved.secret is not None:
                schedule = KeySchedule.restored(saved.secret)
            elif not (schedule.reproducible or _is_finished(planned, saved.part, saved.rounds)):
                raise checkpoint_file.damaged(target)
        yield Checkpoint(target, planned, saved, schedule, new=content is None)


def _parsed(path: Path, content: dict[str, Any]) -> Saved:
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        return Saved.from_json(content)
    raise checkpoint_file.damaged(path)


def _is_finished(planned: Plan, index: int, rounds: int) -> bool:
    last = planned.training or planned.program
    return rounds == last.rounds and index == (planned.training is not None)


def _fits(saved: Saved, parts: Sequence[Program], start: tuple[Tree, Tree]) -> bool:
    """Whether the state is one that the run can have after so many rounds of that part."""
    if not (0 <= saved.part < len(parts) and 0 <= saved.rounds <= parts[saved.part].rounds):
        return False
    if not (saved.part or saved.rounds):
        return not (saved.state or saved.history)
    tuning, running = parts[0], parts[saved.part]
    seen = jax.eval_shape(tuning.observe, jax.eval_shape(tuning.start, *start))
    rounds = tuning.rounds if saved.part else saved.rounds
    expected = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(jax.eval_shape(running.start, *start))]
    expected += [((rounds, *leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(seen)]
    return saved.records is not None and [(a.shape, a.dtype) for a in (*saved.state, *saved.history)] == expected


def _check_same(path: Path, saved: Saved, own: Callable[[], dict[str, str]]) -> None:
    """Refuse to resume with other code or another run."""
    if saved.code != code():
        raise CheckpointRefused(
            f"checkpoint={str(path)!r}: was written by {saved.code}, and this is {code()}, which may round or draw "
            f"differently; {_BEGIN_ANEW}"
        )
    for name, value in own().items():
        if not hmac.compare_digest(saved.fingerprint.get(name, ""), value):
            raise CheckpointRefused(f"checkpoint={str(path)!r}: was begun with another {name}; {_BEGIN_ANEW}")


def _check_types(parts: Sequence[Program], start: tuple[Tree, Tree]) -> None:
    """Raise before the charge where a program keeps something that is no array of numbers."""
    for part in parts:
        state = jax.eval_shape(part.start, *start)
        for leaf in jax.tree.leaves((state, jax.eval_shape(part.observe, state))):
            if not any(jnp.issubdtype(leaf.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
                raise InvalidArgument(
                    f"checkpoint: the method keeps values of type {leaf.dtype}, and only real numbers, integers and "
                    "booleans can be saved; leave checkpoint out"
                )
