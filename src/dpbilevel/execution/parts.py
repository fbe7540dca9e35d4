"""Rounds in memory, and one round in parts: it may take long, and is executed by several calls of compiled code.

Between two calls progress is shown, and signals are handled. All calls run one program: which steps they execute are
numbers like others. Each step runs once, in order, and computes what it would compute in one call; a stage begins
before its first step, and ends after its last one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.execution.program import Answer, Program, Randomness, Stage, State
from dpbilevel.execution.progress import Advance
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


def is_divided(program: Program) -> bool:
    """Whether a program has one round, of several steps; by structure only."""
    return program.has_stages_only and program.rounds == 1 < _steps(program)


def opened(program: Program, state: State) -> Opened:
    """What there is before the first step."""
    kinds, _ = _carries(program, state)
    return Opened(state, jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), tuple(kinds)))


def run_in_memory(
    program: Program,
    precise: bool,
    call: Callable[[State | Opened, Randomness, Any], tuple[Any, Tree]],
    state: State,
    randomness: Randomness,
    rounds: int,
    advance: Advance,
) -> tuple[State, Tree]:
    """Run the first rounds for which there is randomness by calls of compiled code, several if a round is divided.

    Returns the state, and the history with a row for each round. ``call`` runs rounds, or a part of one (`run_part`).
    """
    if not is_divided(program):
        state, rows = call(state, randomness, np.int32(rounds))
        # By NumPy: JAX would compile a slice for every number of rounds.
        history = jax.tree.map(lambda leaf: np.asarray(leaf)[:rounds], rows)
        advance(rounds * program.uses_per_round)
        return state, history
    with jax.enable_x64(precise):
        kept, rows = opened(program, state), None
    steps = _steps(program)
    for first in range(0, steps, length := -(-steps // _PARTS)):
        last = min(first + length, steps)
        kept, rows = jax.block_until_ready(call(kept, randomness, np.array([first, last], np.int32)))
        advance(_uses(program, first, last))
    return kept.state, jax.tree.map(np.asarray, rows)


def run_part(
    program: Program, answer: Answer, start: Opened, randomness: Randomness, steps: jax.Array
) -> tuple[Opened, Tree]:
    """Run steps from the first to before the second of ``steps``, inside compiled code.

    Returns what is kept, and the history of one row, which has a meaning after the last step.
    """
    mine = jax.tree.map(lambda leaf: leaf[0], randomness)
    state, carries = start.state, list(start.carries)
    _, places = _carries(program, state)
    begin, stop = steps
    keys: Any = 0
    for number, stage in enumerate(_stages(program)):
        own = (mine[number], 0) if program.is_exact else (mine, keys)
        state, carries[places[number]] = _run_stage(stage, answer, (state, carries[places[number]]), own, (begin, stop))
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


def _stages(program: Program) -> list[Stage]:
    """All stages; a program with another kind of them is not divided."""
    return [stage for stage in program.stages if isinstance(stage, Stage)]


def _carries(program: Program, state: State) -> tuple[list[Tree], list[int]]:
    """The kinds of carries, as shapes, and the place of each stage's kind."""
    shapes = [jax.eval_shape(stage.begin, state) for stage in _stages(program)]
    keys = list(dict.fromkeys(map(key_of, shapes)))
    places = [keys.index(key_of(shape)) for shape in shapes]
    return [shapes[places.index(kind)] for kind in range(len(keys))], places


def _steps(program: Program) -> int:
    return sum(stage.uses_per_round for stage in program.stages)


def _uses(program: Program, first: int, last: int) -> int:
    """Uses of releases in these steps."""
    found = 0
    for stage in program.stages:
        if stage.release is not None:
            found += max(0, min(last, stage.uses_per_round) - max(first, 0))
        first, last = first - stage.uses_per_round, last - stage.uses_per_round
    return found
