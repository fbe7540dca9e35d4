"""A round in parts: where a program has only one round, it may take long, and is executed by several calls.

Between two calls progress is shown, signals are handled, and a checkpoint is saved. All calls run one compiled program:
which steps they execute are numbers like others. Each step runs once, in order, and a stage begins before its first
step and ends after its last one. What is kept between two calls depends on answers alone, as the state between rounds.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.execution.program import Answer, Program, Randomness, Stage, State
from dpbilevel.foundation.structure import key_of

Tree = Any

_PARTS = 20  # about as many as a run of many rounds has


class Opened(NamedTuple):
    """What is kept between two parts of a round.

    Args:
        state: the state at the start of the current stage.
        carries: the carries of stages, one for each kind of them; only that of the current stage has a meaning.
    """

    state: State
    carries: tuple[Tree, ...]

    @classmethod
    def of(cls, program: Program, state: State, precise: bool) -> "Opened":
        """What there is before the first step; ``precise`` is whether the user's precision is float64."""
        with jax.enable_x64(precise):
            kinds, _ = _carries(program, state)
        return cls(state, jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), tuple(kinds)))


def nothing(*_: Any) -> None:
    """What is done where nobody follows a run."""


class Observer(NamedTuple):
    """Who follows a run while it is executed.

    Args:
        advance: told how many uses of releases were made, whenever some were; a public number.
        keep: told what a part of a round has left, and how many of its steps are done, for a checkpoint.
    """

    advance: Callable[[int], None] = nothing
    keep: Callable[[Opened, int], None] = nothing


def is_divided(program: Program) -> bool:
    """Whether a program has one round, of several steps; by structure only."""
    return program.has_stages_only and program.rounds == 1 < steps_of(program)


def steps_of(program: Program) -> int:
    """The number of steps of a round, of all stages."""
    return sum(stage.uses_per_round for stage in program.stages)


def run_in_parts(
    program: Program,
    precise: bool,
    call: Callable[[Opened, int, int], tuple[Opened, Tree]],
    state: State | Opened,
    done: int,
    observer: Observer,
) -> tuple[State, Tree]:
    """Run the steps that are left after ``done`` of them, by calls that run those from a first one to before a last.

    Returns the state, and the history of one row.
    """
    kept, history, steps = state if done else Opened.of(program, state, precise), None, steps_of(program)
    length = -(-steps // _PARTS)
    for first in range(done, steps, length):
        last = min(first + length, steps)
        kept, history = call(kept, first, last)
        if last < steps:
            observer.keep(kept, last)
    return kept.state, history


def run_in_memory(
    program: Program,
    precise: bool,
    call: Callable[[Any, Randomness, Any], tuple[Any, Tree]],
    state: State | Opened,
    randomness: Randomness,
    rounds: int,
    done: int,
    observer: Observer,
) -> tuple[State, Tree]:
    """Run the first rounds for which there is randomness, of which so many steps are done, by calls of compiled code.

    Returns the state, and the history with a row for each round. ``call`` runs rounds, or a part of one (`run_part`).
    """
    if is_divided(program):

        def part(kept: Opened, first: int, last: int) -> tuple[Opened, Tree]:
            kept, row = call(kept, randomness, np.array([first, last], np.int32))
            history = jax.tree.map(np.asarray, row)
            observer.advance(uses_in(program, first, last))
            return kept, history

        return run_in_parts(program, precise, part, state, done, observer)
    state, rows = call(state, randomness, np.int32(rounds))
    # By NumPy: JAX would compile a slice for every number of rounds.
    history = jax.tree.map(lambda leaf: np.asarray(leaf)[:rounds], rows)
    observer.advance(rounds * program.uses_per_round)
    return state, history


def uses_in(program: Program, first: int, last: int) -> int:
    """How often steps from the first to before the last one use releases."""
    found = 0
    for stage in program.stages:
        if stage.release is not None:
            found += max(0, min(last, stage.uses_per_round) - max(first, 0))
        first, last = first - stage.uses_per_round, last - stage.uses_per_round
    return found


def run_part(
    program: Program, answer: Answer, start: Opened, randomness: Randomness, steps: jax.Array
) -> tuple[Opened, Tree]:
    """Run steps from the first to before the second of ``steps``, inside compiled code.

    Returns what is kept, and the history of one row, which has a meaning after the last step.
    """
    mine = jax.tree.map(lambda leaf: leaf[0], randomness)
    state, carries, places = start.state, list(start.carries), places_of_carries(program, start.state)
    begin, stop = steps
    keys: Any = 0
    for number, (stage, place) in enumerate(zip(stages_of(program), places, strict=True)):
        own = (mine[number], 0) if program.is_exact else (mine, keys)
        state, carries[place] = _run_stage(stage, answer, (state, carries[place]), own, (begin, stop))
        uses = stage.uses_per_round
        keys, begin, stop = keys + stage.keys_per_round, begin - uses, stop - uses
    return Opened(state, tuple(carries)), jax.tree.map(lambda leaf: leaf[None], program.observe(state))


def _run_stage(
    stage: Stage, answer: Answer, start: tuple[State, Tree], keys: tuple[jax.Array, Any], steps: tuple[Any, Any]
) -> tuple[State, Tree]:
    """Run those of the steps that are of this stage, whose first step is number zero."""
    (state, carry), (begin, stop), uses = start, steps, stage.uses_per_round
    carry = _once((begin <= 0) & (stop > 0), lambda _: stage.begin(state), carry)
    carry = jax.lax.fori_loop(
        jnp.clip(begin, 0, uses), jnp.clip(stop, 0, uses), stage.step(answer, state, *keys), carry
    )
    return _once((begin < uses) & (stop >= uses), lambda state: stage.end(state, carry), state), carry


def _once(wanted: jax.Array, change: Callable[[Tree], Tree], value: Tree) -> Tree:
    """The changed value if it is wanted: by a loop, since compiled programs have no branches (test_side_channels)."""
    return jax.lax.fori_loop(0, wanted.astype(jnp.int32), lambda _, value: change(value), value)


def stages_of(program: Program) -> list[Stage]:
    """All stages of a program that has no others."""
    return [stage for stage in program.stages if isinstance(stage, Stage)]


def places_of_carries(program: Program, state: State) -> list[int]:
    """Where the carry of each stage is."""
    return _carries(program, state)[1]


def _carries(program: Program, state: State) -> tuple[list[Tree], list[int]]:
    """The kinds of carries, as shapes, and the place of each stage's kind."""
    shapes = [jax.eval_shape(stage.begin, state) for stage in stages_of(program)]
    kinds = list(dict.fromkeys(map(key_of, shapes)))
    places = [kinds.index(key_of(shape)) for shape in shapes]
    return [shapes[places.index(kind)] for kind in range(len(kinds))], places
