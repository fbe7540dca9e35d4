"""A training as stages of a larger program, so that searches and screening train exactly as `Refit` does.

A training has one stage in many rounds, or several stages in one round. In a larger program it takes part of a round:
the rounds of the former become uses of its stage, and the latter's stages follow each other. Between them its state is
an entry of the larger program's state.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.execution.program import Program, Stage, State
from dpbilevel.foundation.structure import function
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.refit import Refit
from dpbilevel.privacy.release import Release

Tree = Any
Parameters = dict[str, tuple[Any, str]]
Begin = Callable[[State], tuple[Tree, Tree]]  # state -> the x at which a training trains, and the y at which it starts
End = Callable[[State, Tree, Tree], State]  # (state, x, y of the trained model) -> state

_TRAINING = "training"


@dataclass(frozen=True, eq=False)
class EmbeddedTraining:
    """A training program as part of another program."""

    program: Program

    @classmethod
    def of(cls, training: Refit, context: PublicContext) -> tuple["EmbeddedTraining", Parameters]:
        """The training that `Refit` decides on. With an infinite epsilon it takes its steps without noise."""
        # Exact means, the better way without noise, are for programs of their own.
        program, parameters = training.program(context) if context.budget.is_private else training.descent(context)
        assert program.rounds == 1 or len(program.stages) == 1, "rounds of several stages cannot be part of a round"
        return cls(program), parameters

    @property
    def releases(self) -> tuple[Release, ...]:
        """Its releases, one for each stage."""
        return tuple(stage.release for stage in self._stages if stage.release is not None)

    @property
    def _stages(self) -> tuple[Stage, ...]:
        return tuple(stage for stage in self.program.stages if isinstance(stage, Stage))

    def start(self, start: Callable[[Tree, Tree], State]) -> Callable[[Tree, Tree], State]:
        """The start of the larger program, with room for the training's state between its stages."""
        return start if self.program.rounds > 1 else function(_with_room, function(start), self.program.start)

    def on_role(self, role: str) -> "EmbeddedTraining":
        """The same training of one role, with that role's records in place of those it was planned for."""
        stages = []
        for stage in self._stages:
            assert stage.release is not None, "every stage of a training reads records"
            (contribution,) = stage.release.contributions.values()
            stages.append(replace(stage, release=replace(stage.release, contributions={role: contribution})))
        return EmbeddedTraining(replace(self.program, stages=stages))

    def stages(self, releases: tuple[Release, ...], begin: Begin, end: End) -> list[Stage]:
        """The stages of the larger program, with the releases that it has calibrated."""
        if self.program.rounds > 1:
            ((stage,), (release,)) = self._stages, releases
            return [
                Stage(
                    release=release,
                    uses_per_round=self.program.rounds,
                    begin=function(_begin_training, self.program.start, begin),
                    query=function(_query_training, stage),
                    update=function(_update_training, stage),
                    end=function(_end_training, self.program.finish, end),
                )
            ]
        made = []
        for place, (stage, release) in enumerate(zip(self._stages, releases, strict=True)):
            own = function(_begin_training, self.program.start, begin) if place == 0 else function(_kept)
            last = place == len(self._stages) - 1
            made.append(
                Stage(
                    release=release,
                    uses_per_round=stage.uses_per_round,
                    begin=function(_begin_part, stage, own),
                    query=function(_query_part, stage, own),
                    update=function(_update_part, stage, own),
                    end=function(_end_last_part, stage, own, self.program.finish, end)
                    if last
                    else function(_end_part, stage, own),
                )
            )
        return made


def _with_room(start: Any, training: Any, x: Tree, y: Tree) -> State:
    return start(x, y) | {_TRAINING: training(x, y)}


def _kept(state: State) -> State:
    return state[_TRAINING]


# A stage in many rounds: each round of the training is a use of the stage.


def _begin_training(start: Any, begin: Begin, state: State) -> State:
    return start(*begin(state))


def _query_training(stage: Stage, state: State, carry: State, step: jax.Array) -> Tree:
    return stage.query(carry, stage.begin(carry), jnp.zeros_like(step))


def _update_training(stage: Stage, state: State, carry: State, answer: Tree, step: jax.Array) -> State:
    return stage.end(carry, stage.update(carry, stage.begin(carry), answer, jnp.zeros_like(step)))


def _end_training(finish: Any, end: End, state: State, carry: State) -> State:
    return end(state, *finish(carry))


# Several stages in one round; ``own`` gives the state of the training at the start of a stage.


def _begin_part(stage: Stage, own: Any, state: State) -> Tree:
    return stage.begin(own(state))


def _query_part(stage: Stage, own: Any, state: State, carry: Tree, step: jax.Array) -> Tree:
    return stage.query(own(state), carry, step)


def _update_part(stage: Stage, own: Any, state: State, carry: Tree, answer: Tree, step: jax.Array) -> Tree:
    return stage.update(own(state), carry, answer, step)


def _end_part(stage: Stage, own: Any, state: State, carry: Tree) -> State:
    return state | {_TRAINING: stage.end(own(state), carry)}


def _end_last_part(stage: Stage, own: Any, finish: Any, end: End, state: State, carry: Tree) -> State:
    trained = stage.end(own(state), carry)
    return end(state | {_TRAINING: trained}, *finish(trained))
