"""The program of a method: rounds of stages, each of which queries one release and updates the state.

Methods never see records. A stage defines the point to query (``query``) and the update from the noisy answer
(``update``). Only `Program` runs the loop. Its length is the number of keys, which equals the number of uses that the
release declares and the ledger has charged.
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
Randomness = Any  # keys, one array for all stages; or exact noise, one array per stage
# (level, function of (*arguments, record)) -> its mean over the level's records, a function of the arguments.
Means = Callable[[str, Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage:
    """``uses_per_round`` uses of one release within a round.

    Functions that are not given are the identity: the carry is the state, the release is evaluated at it, and the
    last carry is the new state.

    Args:
        release: the release; None for a stage that reads no records and costs nothing.
        update: (state, carry, answer, step) -> carry. ``state`` is the state at the start of the stage.
        uses_per_round: uses of the release per round.
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
        """Number of noise keys per round: one for each use of the release."""
        return 0 if self.release is None else self.uses_per_round

    def run(self, answer: Answer, state: State, keys: jax.Array) -> State:
        """Run all steps of the stage; ``keys`` has one row of keys, or of exact noise, for each use."""

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
    """One call of a black box within a round, outside compiled code.

    Args:
        release: the declared cost of the call.
        run: (state, arrays by role) -> state; the only place where foreign code sees records.
        uses_per_round: calls per round.
    """

    release: DeclaredRelease
    run: Callable[[State, Mapping[str, Tree]], State]
    uses_per_round: int = 1

    @property
    def keys_per_round(self) -> int:
        """Number of noise keys per round: none, because a black box draws its own randomness."""
        return 0


@dataclass(frozen=True, eq=False, kw_only=True)
class NoiselessStage:
    """A round on exact means of records, only for runs with an infinite epsilon.

    There, access to the data is free: a method may evaluate, compare and stop on exact losses. A release with noise is
    refused, because nothing that depends on records may steer a private run.

    Args:
        release: the release that is charged, with an infinite epsilon.
        run: (means, state) -> state.
        uses_per_round: uses of the release per round.
    """

    release: Release
    run: Callable[[Means, State], State]
    uses_per_round: int = 1

    def __post_init__(self) -> None:
        if self.release.noise_std != 0:
            raise InvalidProblem(
                f"release {self.release.name!r}: has noise; exact means are only for runs with an infinite epsilon"
            )

    @property
    def keys_per_round(self) -> int:
        """Number of noise keys per round: none."""
        return 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Program:
    """Everything a run executes. Compiled once and reused for every chunk of rounds.

    Args:
        rounds: number of rounds (outer steps).
        stages: the stages of a round, in order.
        start: (x, y) -> state.
        observe: state -> the entry of a round in the history; released values only.
        finish: state -> (x, y).
    """

    rounds: int
    stages: Sequence[Stage | Call | NoiselessStage]
    start: Callable[[Tree, Tree], State]
    observe: Callable[[State], Tree]
    finish: Callable[[State], tuple[Tree, Tree]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))  # the caller cannot change it after the charge
        for stage in self.stages:
            if stage.release is not None and stage.release.uses != self.rounds * stage.uses_per_round:
                raise InvalidProblem(
                    f"release {stage.release.name!r}: declares {stage.release.uses} uses, the program makes "
                    f"{self.rounds * stage.uses_per_round}; declare rounds * uses_per_round"
                )
        discretized = [_is_discretized(stage) for stage in self.stages if stage.release is not None]
        if any(discretized) and not all(discretized):
            raise InvalidProblem(
                "stages: some have exact noise and others do not; use `discretized` on the whole program"
            )

    @property
    def releases(self) -> tuple[Chargeable, ...]:
        """All declared releases."""
        return tuple(stage.release for stage in self.stages if stage.release is not None)

    @property
    def is_compiled(self) -> bool:
        """Whether the whole loop is compiled, which it is unless a stage calls a black box."""
        return not any(isinstance(stage, Call) for stage in self.stages)

    @property
    def keys_per_round(self) -> int:
        """Number of noise keys per round. Each use of a release has its own index in the key schedule."""
        return sum(stage.keys_per_round for stage in self.stages)

    def take(self, receipt: Receipt, schedule: KeySchedule, rounds: int) -> int:
        """Redeem the next rounds on a receipt; returns the index of their first use in the key schedule."""
        for stage in self.stages:
            if stage.release is not None:
                receipt.redeem(stage.release, rounds * stage.uses_per_round)
        return receipt.advance(schedule, rounds * self.keys_per_round)

    @property
    def is_exact(self) -> bool:
        """Whether the noise is exact; False for a program that reads no records."""
        return any(_is_discretized(stage) for stage in self.stages)

    def discretized(self, dimensions: Mapping[Release, int]) -> "Program":
        """The same program with exact noise in every release, given the dimension of each release's answer."""
        stages = []
        for stage in self.stages:
            if not isinstance(stage, Stage):
                raise InvalidArgument(
                    f'noise="exact": does not apply to {stage.release.name!r}, a black box that draws its own noise '
                    '(leave noise="float")'
                )
            release = stage.release
            stages.append(
                stage if release is None else replace(stage, release=release.discretized(dimensions[release]))
            )
        return replace(self, stages=stages)

    def randomness(self, schedule: KeySchedule, first: int, rounds: int) -> Randomness:
        """The randomness of some rounds, from a first use on: exact noise, or keys from which noise is generated."""
        return self.draws(rounds) if self.is_exact else self.keys(schedule, first, rounds)

    def draws(self, rounds: int) -> tuple[npt.NDArray[np.uint32], ...]:
        """Draw the exact noise of some rounds: for each stage, integers of shape (rounds, uses, numbers).

        Each integer is given as two 32-bit halves, because code that is traced in 32 bits would truncate it.
        """
        noise = []
        for stage, shape in zip(self.stages, self.draw_shapes(rounds), strict=True):
            integers = np.zeros(0, np.int64)
            if stage.keys_per_round and isinstance(stage.release, Release):
                integers = discrete_gaussian(stage.release.scale, math.prod(shape[:-1]))
            noise.append(integers.astype("<i8").view("<u4").reshape(shape))
        return tuple(noise)

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
            raise InvalidArgument("program: has exact noise, which is not generated from keys; use draws(rounds)")
        number = rounds * self.keys_per_round
        pairs = [schedule.keys(purpose, first, number) for purpose in ("noise", "batch")]
        return np.stack(pairs, axis=1).reshape(rounds, self.keys_per_round, 2, 2)

    def loop(self, answer: Answer, state: State, keys: Randomness, means: Means | None = None) -> tuple[State, Tree]:
        """Run one round per row of keys; returns the state and the history of these rounds."""

        def one_round(state: State, round_keys: Randomness) -> tuple[State, Tree]:
            first = 0
            for index, stage in enumerate(self.stages):
                if isinstance(stage, NoiselessStage):
                    assert means is not None, "a program without noise needs exact means"
                    state = stage.run(means, state)
                    continue
                assert isinstance(stage, Stage), "a program with calls has no compiled loop"
                own_keys = round_keys[index] if self.is_exact else round_keys[first : first + stage.keys_per_round]
                state = stage.run(answer, state, own_keys)
                first += stage.keys_per_round
            return state, self.observe(state)

        return jax.lax.scan(one_round, state, keys)


def _is_discretized(stage: Stage | Call | NoiselessStage) -> bool:
    return isinstance(stage.release, Release) and stage.release.grid is not None
