"""The program of a method: rounds of stages, each of which queries one release and updates the state.

Methods never see records. A stage defines the point to query (``query``) and the update from the noisy answer
(``update``). Only `Program` runs the loop. It makes the rounds that were redeemed on a receipt, and for which keys were
then handed out: what the release declares and the ledger has charged.

A program is compiled once for its structure. The numbers of releases and of methods are passed to it (`structure`), and
so is the number of rounds: randomness and history have room for `Program.capacity` rounds, whatever a run asks for.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument, InvalidProblem, NotCharged
from dpbilevel.foundation.processes import ALONE, Job
from dpbilevel.foundation.structure import function, register
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

_ROUNDS = 50  # largest number of rounds of one call of the compiled loop
_KEYS = 1024  # keys that a round has room for where a stage uses its release several times; then the next power of two
_KEYS_AT_ONCE = 2**16  # and in one call
_DRAWS_AT_ONCE = 2**22  # integers of exact noise in one call
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

    def __post_init__(self) -> None:
        for name in ("update", "query", "begin", "end"):
            object.__setattr__(self, name, function(getattr(self, name)))

    @property
    def keys_per_round(self) -> int:
        """Number of noise keys per round: one for each use of the release."""
        return 0 if self.release is None else self.uses_per_round

    def run(self, answer: Answer, state: State, keys: jax.Array, first: Any = 0) -> State:
        """Run all steps of the stage; ``keys`` has a row of keys, or of exact noise, for each use from ``first`` on."""
        step = self.step(answer, state, keys, first)
        return self.end(state, _repeated(step, self.uses_per_round, self.begin(state)))

    def step(self, answer: Answer, state: State, keys: jax.Array, first: Any) -> Callable[[jax.Array, Tree], Tree]:
        """The function (index, carry) -> carry of one step."""

        def step(index: jax.Array, carry: Tree) -> Tree:
            noisy = None
            if self.release is not None:
                key = jax.lax.dynamic_index_in_dim(keys, first + index, keepdims=False)
                noisy = answer(self.release, self.query(state, carry, index), key)
            return self.update(state, carry, noisy, index)

        return step


@dataclass(frozen=True, eq=False, kw_only=True)
class Call:
    """One call of a black box within a round, outside compiled code.

    Args:
        release: the declared cost of the call.
        run: (state, arrays by role, keys) -> state; the only place where foreign code sees records. It gets a row of
            keys for each of ``keys_per_round``.
        uses_per_round: calls per round.
        keys_per_round: number of noise keys per round; none for foreign code, which draws its own randomness.
    """

    release: DeclaredRelease
    run: Callable[[State, Mapping[str, Tree], npt.NDArray[np.uint32]], State]
    uses_per_round: int = 1
    keys_per_round: int = 0


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

    # It is compiled for every plan: there are no noise and no clips to pass.
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
    """Everything a run executes. Compiled once for all programs of the same structure, and for any number of rounds.

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
        for name in ("start", "observe", "finish"):
            object.__setattr__(self, name, function(getattr(self, name)))
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
    def has_stages_only(self) -> bool:
        """Whether records are read by releases only: by no black box, and by no exact means."""
        return all(isinstance(stage, Stage) for stage in self.stages)

    @property
    def keys_per_round(self) -> int:
        """Number of noise keys per round. Each use of a release has its own index in the key schedule."""
        return sum(stage.keys_per_round for stage in self.stages)

    @property
    def uses_per_round(self) -> int:
        """Number of uses of all releases per round."""
        return sum(stage.uses_per_round for stage in self.stages if stage.release is not None)

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

    @property
    def capacity(self) -> int:
        """Largest number of rounds of one call of the compiled loop; it depends on structure only."""
        if self.rounds == 1:
            return 1
        if self.is_exact:
            return min(_ROUNDS, max(1, _DRAWS_AT_ONCE // sum(map(math.prod, self.draw_shapes(1)))))
        return min(_ROUNDS, max(1, _KEYS_AT_ONCE // max(1, self._room_for_keys)))

    @property
    def _room_for_keys(self) -> int:
        """Keys that a round has room for, whatever number of uses its stages have."""
        if all(_is_one(stage.uses_per_round) for stage in self.stages):
            return self.keys_per_round
        return max(_KEYS, 2 ** math.ceil(math.log2(max(1, self.keys_per_round))))

    def randomness(self, schedule: KeySchedule, first: int, rounds: int, job: Job = ALONE) -> Randomness:
        """The randomness of some rounds, from a first use on: exact noise, or keys from which noise is generated.

        It has the shapes of `randomness_shapes`: what no round and no use reads is zero. It is the same on all
        processes of a job: the first of them draws exact noise, and keys are those of its schedule.
        """
        if job.is_several and not (self.is_exact or schedule.is_common):
            raise NotCharged("schedule: is that of one process, and every process of a job must add the same noise")
        if not self.is_exact:
            return _filled(self.keys(schedule, first, rounds), self.randomness_shapes())
        with job.barrier("exact noise"):
            drawn = self.draws(rounds if job.is_first else 0)
        return job.broadcast_arrays(jax.tree.map(_filled, drawn, self.randomness_shapes()))

    def randomness_shapes(self) -> Any:
        """Shapes and dtype of the randomness of one call of the compiled loop."""
        if self.is_exact:
            return tuple(jax.ShapeDtypeStruct(shape, jnp.uint32) for shape in self.draw_shapes(self.capacity))
        return jax.ShapeDtypeStruct((self.capacity, self._room_for_keys, 2, 2), jnp.uint32)

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

    def loop(
        self, answer: Answer, state: State, randomness: Randomness, rounds: Any, means: Means | None = None
    ) -> tuple[State, Tree]:
        """Run the first ``rounds`` rounds for which there is randomness; returns the state and the history.

        The history has a row for each round that there is room for; rows after the last round are zero.
        """
        room = jax.tree.leaves(randomness)[0].shape[0]
        rows = jax.tree.map(
            lambda leaf: jnp.zeros((room, *leaf.shape), leaf.dtype), jax.eval_shape(self.observe, state)
        )

        def one_round(index: jax.Array, carry: tuple[State, Tree]) -> tuple[State, Tree]:
            state, history = carry
            mine = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), randomness)
            first: Any = 0
            for place, stage in enumerate(self.stages):
                if isinstance(stage, NoiselessStage):
                    assert means is not None, "a program without noise needs exact means"
                    state = stage.run(means, state)
                    continue
                assert isinstance(stage, Stage), "a program with calls has no compiled loop"
                own = (mine[place],) if self.is_exact else (mine, first)
                state = stage.run(answer, state, *own)
                first = first + stage.keys_per_round
            written = jax.tree.map(
                lambda leaf, row: jax.lax.dynamic_update_index_in_dim(leaf, row, index, 0), history, self.observe(state)
            )
            return state, written

        return _repeated(one_round, rounds if room > 1 else 1, (state, rows))


def _split(stage: Stage) -> tuple[dict[str, Any], dict[str, Any]]:
    numbers = {name: getattr(stage, name) for name in ("release", "update", "query", "begin", "end")}
    uses = {"uses_per_round": stage.uses_per_round}
    # The number of uses is a number like others, unless it is one: then there is no loop.
    return (numbers, uses) if _is_one(stage.uses_per_round) else (numbers | uses, {})


register(Stage, _split)
register(NoiselessStage, lambda stage: ({}, {"run": stage.run, "uses_per_round": stage.uses_per_round}))
# The number of rounds is an argument of the loop; start and finish run outside of compiled code.
register(Program, lambda program: ({"stages": program.stages, "observe": program.observe}, {}))


def _repeated(step: Callable[[jax.Array, Tree], Tree], times: Any, carry: Tree) -> Tree:
    """Apply ``step(index, carry)`` a public number of times."""
    zero = jnp.zeros((), jnp.int32)
    if _is_one(times):
        return step(zero, carry)
    if isinstance(times, int):
        return jax.lax.fori_loop(0, times, step, carry)
    return jax.lax.fori_loop(zero, times.astype(jnp.int32), step, carry)


def _is_one(number: Any) -> bool:
    return isinstance(number, int) and number == 1


def _filled(values: npt.NDArray[np.uint32], shape: jax.ShapeDtypeStruct) -> npt.NDArray[np.uint32]:
    """An array of the given shape that begins with the values and continues with zeros."""
    filled = np.zeros(shape.shape, np.uint32)
    filled[tuple(map(slice, values.shape))] = values
    return filled


def _is_discretized(stage: Stage | Call | NoiselessStage) -> bool:
    return isinstance(stage, Stage) and stage.release is not None and stage.release.grid is not None
