"""A method, written out: rounds of stages, each asking one release and digesting the answer.

Methods never see records. A stage says *where* to query (``query``) and *what to do* with the noisy answer
(``update``); the loop belongs to `Program` alone, and its length is that of the keys it is handed, which is the number
of uses that the release declares and the ledger has charged.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument, InvalidProblem
from dpbilevel.privacy.accounting import Chargeable
from dpbilevel.privacy.declared import DeclaredRelease
from dpbilevel.privacy.discrete import discrete_gaussian
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.release import Release

Tree = Any
State = Any
Answer = Callable[[Release, Tree, jax.Array], Tree]
Randomness = Any  # keys, one array for all stages; or exact noise, one array for each
# (level, function of (*arguments, record)) -> the function of the arguments that is its mean over the level's records.
Means = Callable[[str, Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage:
    """``uses_per_round`` uses of one release within a round.

    What is left out is the identity: by default a step carries the state itself, asks at what it carries, and hands on
    what it carried last.

    Args:
        release: what is asked; None for a stage that reads no records and costs nothing.
        update: (state, carry, answer, step) -> carry. ``state`` is what the round started the stage with.
        uses_per_round: of the release.
        query: (state, carry, step) -> point at which the release is evaluated.
        begin: state -> carry.
        end: (state, carry) -> state.
    """

    release: Release | None
    update: Callable[[State, Tree, Tree, jax.Array], Tree]
    uses_per_round: int = 1
    query: Callable[[State, Tree, jax.Array], Tree] = lambda state, carry, step: carry
    begin: Callable[[State], Tree] = lambda state: state
    end: Callable[[State, Tree], State] = lambda state, carry: carry

    @property
    def keys_per_round(self) -> int:
        """Noise keys that a round of it needs: one for each use of the release."""
        return 0 if self.release is None else self.uses_per_round

    def run(self, answer: Answer, state: State, keys: jax.Array) -> State:
        """All steps of the stage; ``keys`` has one row of keys, or of exact noise, for each use."""

        def step(carry: Tree, inputs: tuple[jax.Array, jax.Array]) -> tuple[Tree, None]:
            index, key = inputs
            noisy = None
            if self.release is not None:
                noisy = answer(self.release, self.query(state, carry, index), key)
            return self.update(state, carry, noisy, index), None

        carry = self.begin(state)
        indices = jnp.arange(self.uses_per_round, dtype=jnp.int32)
        if self.release is None:
            keys = jnp.zeros((self.uses_per_round, 0), jnp.uint32)
        carry, _ = jax.lax.scan(step, carry, (indices, keys))
        return self.end(state, carry)


@dataclass(frozen=True, eq=False, kw_only=True)
class Call:
    """One call of a black box within a round, outside of compiled code.

    Args:
        release: what the call was declared to cost.
        run: (state, arrays by role) -> state; the one place where code from elsewhere sees records.
    """

    release: DeclaredRelease
    run: Callable[[State, Mapping[str, Tree]], State]
    uses_per_round: int = 1

    @property
    def keys_per_round(self) -> int:
        """Noise keys that a round of it needs: none, a black box draws its own randomness."""
        return 0


@dataclass(frozen=True, eq=False, kw_only=True)
class NoiselessStage:
    """A round on exact means of records, for runs with an infinite budget alone.

    There a step costs nothing, so that a method may look at the data as often as it likes, compare losses and stop on
    them. A release with noise is refused: nothing that depends on records steers a private run.

    Args:
        release: what is charged: infinite.
        run: (means, state) -> state.
    """

    release: Release
    run: Callable[[Means, State], State]
    uses_per_round: int = 1

    def __post_init__(self) -> None:
        if self.release.noise_std != 0:
            raise InvalidProblem(
                f"release {self.release.name!r}: has noise; exact means are for runs with an infinite epsilon"
            )

    @property
    def keys_per_round(self) -> int:
        """Noise keys that a round of it needs: none."""
        return 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Program:
    """Everything a run executes. Compiled once and reused for every chunk of rounds.

    Args:
        rounds: number of rounds (outer steps).
        stages: what happens in a round, in order.
        start: (x, y) -> state.
        observe: state -> what the history keeps of a round; released values only.
        finish: state -> (x, y).
    """

    rounds: int
    stages: Sequence[Stage | Call | NoiselessStage]
    start: Callable[[Tree, Tree], State]
    observe: Callable[[State], Tree]
    finish: Callable[[State], tuple[Tree, Tree]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))  # what is charged can no longer be changed by the caller
        for stage in self.stages:
            if stage.release is not None and stage.release.uses != self.rounds * stage.uses_per_round:
                raise InvalidProblem(
                    f"release {stage.release.name!r}: declares {stage.release.uses} uses, the program makes "
                    f"{self.rounds * stage.uses_per_round}; declare rounds * uses_per_round"
                )
        discretized = [_is_discretized(stage) for stage in self.stages if stage.release is not None]
        if any(discretized) and not all(discretized):
            raise InvalidProblem(
                "stages: some have exact noise and others have not; `discretized` makes it all or none"
            )

    @property
    def releases(self) -> tuple[Chargeable, ...]:
        """All declared releases."""
        return tuple(stage.release for stage in self.stages if stage.release is not None)

    @property
    def is_compiled(self) -> bool:
        """Whether the whole loop is compiled: it is, unless a stage calls a black box."""
        return not any(isinstance(stage, Call) for stage in self.stages)

    @property
    def keys_per_round(self) -> int:
        """Noise keys of one round, for the uses of all releases: each has an index of its own in the key schedule."""
        return sum(stage.keys_per_round for stage in self.stages)

    def take(self, receipt: Receipt, schedule: KeySchedule, rounds: int) -> int:
        """Take the next rounds off a receipt; returns the index of their first use in the key schedule."""
        for stage in self.stages:
            if stage.release is not None:
                receipt.redeem(stage.release, rounds * stage.uses_per_round)
        return receipt.advance(schedule, rounds * self.keys_per_round)

    @property
    def is_exact(self) -> bool:
        """Whether all noise is exact. A program that reads no records has none."""
        return any(_is_discretized(stage) for stage in self.stages)

    def discretized(self, dimensions: Mapping[Release, int]) -> "Program":
        """The same program with exact noise in every release, given how many numbers an answer of each has."""
        stages = []
        for stage in self.stages:
            if not isinstance(stage, Stage):
                raise InvalidArgument(
                    f'noise="exact": does not reach into {stage.release.name!r}, a black box with noise of its own '
                    '(leave noise="float")'
                )
            release = stage.release
            stages.append(
                stage if release is None else replace(stage, release=release.discretized(dimensions[release]))
            )
        return replace(self, stages=stages)

    def randomness(self, schedule: KeySchedule, first: int, rounds: int) -> Randomness:
        """What some rounds draw, from a first use on: exact noise, or keys of which noise is made."""
        return self.draws(rounds) if self.is_exact else self.keys(schedule, first, rounds)

    def draws(self, rounds: int) -> tuple[npt.NDArray[np.uint32], ...]:
        """Exact noise of some rounds, drawn now: for each stage integers of shape (rounds, uses, numbers).

        Each is given as its two halves, for 64-bit integers would not survive code that is traced in 32 bits.
        """
        drawn = []
        for stage, shape in zip(self.stages, self.draw_shapes(rounds), strict=True):
            integers = np.zeros(0, np.int64)
            if stage.keys_per_round and isinstance(stage.release, Release):
                integers = discrete_gaussian(stage.release.scale, math.prod(shape[:-1]))
            drawn.append(integers.astype("<i8").view("<u4").reshape(shape))
        return tuple(drawn)

    def draw_shapes(self, rounds: int) -> tuple[tuple[int, ...], ...]:
        """The shapes of `draws`."""
        grids = [stage.release.grid if isinstance(stage.release, Release) else None for stage in self.stages]
        numbers = [0 if grid is None else grid.dimension for grid in grids]
        return tuple(
            (rounds, stage.keys_per_round, number, 2) for stage, number in zip(self.stages, numbers, strict=True)
        )

    def keys(self, schedule: KeySchedule, first: int, rounds: int) -> npt.NDArray[np.uint32]:
        """The noise and batch keys of some rounds, from a first use on: shape (rounds, uses per round, 2, 2)."""
        if self.is_exact:
            raise InvalidArgument("program: has exact noise, which is drawn and not made from keys")
        number = rounds * self.keys_per_round
        pairs = [schedule.keys(purpose, first, number) for purpose in ("noise", "batch")]
        return np.stack(pairs, axis=1).reshape(rounds, self.keys_per_round, 2, 2)

    def loop(self, answer: Answer, state: State, keys: Randomness, means: Means | None = None) -> tuple[State, Tree]:
        """Run as many rounds as there are keys; returns the state and the history of these rounds."""

        def one_round(state: State, round_keys: Randomness) -> tuple[State, Tree]:
            first = 0
            for index, stage in enumerate(self.stages):
                if isinstance(stage, NoiselessStage):
                    assert means is not None, "a program without noise needs exact means"
                    state = stage.run(means, state)
                    continue
                assert isinstance(stage, Stage), "a program with calls has no compiled loop"
                mine = round_keys[index] if self.is_exact else round_keys[first : first + stage.keys_per_round]
                state = stage.run(answer, state, mine)
                first += stage.keys_per_round
            return state, self.observe(state)

        return jax.lax.scan(one_round, state, keys)


def _is_discretized(stage: Stage | Call | NoiselessStage) -> bool:
    return isinstance(stage.release, Release) and stage.release.grid is not None
