"""Passes over records on a disk: one segment of them after another, the next of which is read while one is summed.

A use of a release is a sum over records, and the sums of segments add up. So memory holds two segments of records,
however many there are. A program is executed step by step, from outside of compiled code: what is compiled is the sum
of a segment, and what follows a pass. Segments have one length, so that all of them run the same code; the last one is
padded with absent records. Lengths and order follow from public sizes. A random batch is drawn first, and then only its
records are read.

**Rounding.** Sums of segments are merged in float64 with compensation, as those of devices are, which the bound on
rounding counts (`clipping.ROUNDING`); with exact noise they are integers. Where all records fit into one segment, the
answer has the bits that it has in memory. Otherwise its last bits differ, because sums are grouped in another way.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from dpbilevel.execution.parts import (
    Observer,
    Opened,
    is_divided,
    places_of_carries,
    run_in_parts,
    stages_of,
    steps_of,
)
from dpbilevel.execution.program import Program, Randomness, Stage, State
from dpbilevel.foundation.compilation import Compiled
from dpbilevel.foundation.precision import in_user_precision
from dpbilevel.foundation.reading_ahead import reading_ahead
from dpbilevel.privacy.bundles import Packed, read_units
from dpbilevel.privacy.memory import Memory, reserved, room
from dpbilevel.privacy.release import Release
from dpbilevel.privacy.storage import read_rows

Tree = Any
Held = Mapping[str, tuple[Memory, npt.NDArray[np.bool_]]]  # by role: records on disk, and which of them are valid

_SEGMENT = 2**25  # bytes


@dataclass(frozen=True, eq=False, repr=False)
class Segments:
    """Records of a role, in the order in which they are summed.

    Args:
        memory: the arrays, which may be on disk.
        present: which records are summed.
        places: positions of the records of a batch, in its order; None for all records.
    """

    memory: Memory
    present: npt.NDArray[np.bool_]
    places: npt.NDArray[np.integer[Any]] | None = None

    @property
    def length(self) -> int:
        """Records of a segment, by public sizes: those of one segment only need not be a whole number of chunks."""
        one = sum(leaf.dtype.itemsize * leaf[:1].size for leaf in jax.tree.leaves(self.memory))
        segments = -(-len(self.present) * one // _SEGMENT)
        return room(-(-len(self.present) // max(1, segments)))

    def __iter__(self) -> Iterator[tuple[Memory, npt.NDArray[np.bool_]]]:
        """The segments, each with a mask of its records; a segment is overwritten by the second one after it."""
        number, length = len(self.present), self.length
        leaves, structure = jax.tree.flatten(self.memory)
        # Aligned, so that processors use them without a copy.
        rooms = [[reserved(length, leaf.shape[1:], leaf.dtype)[:] for leaf in leaves] for _ in range(2)]

        def read(place: int) -> tuple[Memory, npt.NDArray[np.bool_]]:
            first, own = place * length, rooms[place % 2]
            segment = jax.tree.unflatten(structure, own)
            if isinstance(self.memory.arrays, Packed):
                chosen = slice(first, first + length) if self.places is None else self.places[first : first + length]
                read_units(self.memory.arrays, chosen, segment.arrays)
            else:
                for leaf, out in zip(leaves, own, strict=True):
                    self._read(leaf, first, out)
            mask = np.zeros(min(number, length), bool)
            taken = self.present[first : first + length]
            mask[: len(taken)] = taken
            return segment, mask

        return reading_ahead(map(read, range(-(-number // length))))

    def _read(self, leaf: npt.NDArray[Any], first: int, out: npt.NDArray[Any]) -> None:
        if self.places is None:
            number = min(len(out), len(leaf) - first)
            read_rows(leaf, first, out[:number])
        else:
            places = self.places[first : first + len(out)]
            number = len(places)
            np.take(leaf, places, axis=0, out=out[:number], mode="clip")
        out[number:] = 0


def run_on_disk(
    program: Program,
    precise: bool,
    held: Held,
    state: State | Opened,
    randomness: Randomness,
    rounds: int,
    done: int,
    observer: Observer,
) -> tuple[State, Tree]:
    """Run the first rounds for which there is randomness, of which so many steps are done.

    Returns the state, and the history with a row for each round.
    """

    def part(kept: Opened, first: int, last: int, index: int = 0) -> tuple[Opened, Tree]:
        own = jax.tree.map(lambda leaf: leaf[index], randomness)
        return _run_part(program, precise, held, kept, own, (first, last), observer)

    if is_divided(program):
        return run_in_parts(program, precise, part, state, done, observer)
    history = []
    for index in range(rounds):
        kept, row = part(Opened.of(program, state, precise), 0, steps_of(program), index)
        state = kept.state
        history.append(row)
    return state, jax.tree.map(lambda *rows: np.concatenate(rows), *history)


def _run_part(
    program: Program,
    precise: bool,
    held: Held,
    start: Opened,
    randomness: Randomness,
    steps: tuple[int, int],
    observer: Observer,
) -> tuple[Opened, Tree]:
    """What `run_part` does, with the randomness of the round, step by step from outside of compiled code."""
    with jax.enable_x64(precise):
        places = places_of_carries(program, start.state)
    state, carries, (begin, stop), keys = start.state, list(start.carries), steps, 0
    for number, (stage, place) in enumerate(zip(stages_of(program), places, strict=True)):
        own = randomness[number] if program.is_exact else randomness[keys:]
        uses = stage.uses_per_round
        if begin <= 0 < stop:
            carries[place] = _plain(_begin(stage, precise, state))
        for use in range(max(begin, 0), min(stop, uses)):
            carries[place] = _plain(_step(stage, precise, held, (state, carries[place], np.int32(use)), own))
            if stage.release is not None:
                observer.advance(1)
        if begin < uses <= stop:
            state = _plain(_end(stage, precise, state, carries[place]))
        keys, begin, stop = keys + stage.keys_per_round, begin - uses, stop - uses
    with jax.enable_x64(precise):
        row = jax.tree.map(lambda leaf: np.asarray(leaf)[None], program.observe(state))
    return Opened(state, tuple(carries)), row


def _step(stage: Stage, precise: bool, held: Held, at: tuple[State, Tree, Any], keys: npt.NDArray[Any]) -> Tree:
    """The carry after one step, which ``at`` ends with, given the keys of all steps of the stage."""
    if stage.release is None:
        return _update(stage, precise, {}, at, None, None)
    key = keys[at[2]]
    total = sum(_total(stage, precise, at, role, part) for role, part in _parts(stage.release, held, key))
    nobody = {role: (jax.tree.map(lambda leaf: leaf[:0], memory.arrays), None) for role, (memory, _) in held.items()}
    return _update(stage, precise, nobody, at, total, key)


def _plain(kept: Tree) -> Tree:
    """Arrays as a checkpoint restores them: JAX's own may be weakly typed, and then computes other bits with them."""
    return jax.tree.map(np.asarray, kept)


def _parts(release: Release, held: Held, key: npt.NDArray[Any]) -> Iterator[tuple[str, Segments]]:
    """The records that a use of a release reads, by role."""
    batches = [None] * len(release.contributions) if release.sampling.is_full_batch else _draw(release, key[1])
    for role, batch in zip(release.contributions, batches, strict=True):
        memory, present = held[role]
        if batch is None:
            yield role, Segments(memory, present)
            continue
        places, taken = map(np.asarray, batch)
        yield role, Segments(memory, present[places] & taken, places)


def _total(stage: Stage, precise: bool, at: tuple[State, Tree, Any], role: str, segments: Segments) -> Any:
    """The sum over segments: compensated where it is not one of integers, for which nothing is left to compensate."""
    total: Any = 0
    excess: Any = 0
    for memory, mask in segments:
        # Once the sum is here, its segment is not used any more.
        part = np.asarray(_sum(stage, role, precise, jax.device_put(memory, may_alias=True), mask, at))
        addend = part - excess
        larger = total + addend
        total, excess = larger, (larger - total) - addend
    return total


@functools.partial(Compiled, static_argnames=("precise",))
def _begin(stage: Stage, precise: bool, state: State) -> Tree:
    with jax.enable_x64(precise):
        return in_user_precision(stage).begin(state)


@Compiled
def _draw(release: Release, key: jax.Array) -> Any:
    with jax.enable_x64(True):
        return release.sampling.draw(key, [part.count for part in release.contributions.values()])


@functools.partial(Compiled, static_argnames=("role", "precise"))
def _sum(
    stage: Stage, role: str, precise: bool, memory: Memory, present: jax.Array, at: tuple[State, Tree, jax.Array]
) -> jax.Array:
    with jax.enable_x64(precise):
        own = in_user_precision(stage)
        return own.release.total_of(role, memory, present, own.query(*at))


@functools.partial(Compiled, static_argnames=("precise",))
def _update(stage: Stage, precise: bool, nobody: Any, at: tuple[State, Tree, jax.Array], total: Any, key: Any) -> Tree:
    with jax.enable_x64(precise):
        own, noisy = in_user_precision(stage), None
        if own.release is not None:
            noisy = own.release.noisy(nobody, own.query(*at), total, key)
        state, carry, index = at
        return own.update(state, carry, noisy, index)


@functools.partial(Compiled, static_argnames=("precise",))
def _end(stage: Stage, precise: bool, state: State, carry: Tree) -> State:
    with jax.enable_x64(precise):
        return in_user_precision(stage).end(state, carry)
