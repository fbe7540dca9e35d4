"""What became of a run, in a sentence: whether it tuned anything, whether it is done, and what to try otherwise.

All of it follows from the plan, the starting point and released values: it is post-processing, and costs nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpbilevel.methods.tracking.tracking import Tracking
from dpbilevel.planning import Plan
from dpbilevel.solution.diagnostics import Diagnostics, distance, leaves
from dpbilevel.solution.remarks import result_remarks

Tree = Any

UNMEASURED = "this method does not measure whether it is done"

_EVIDENCE = 0.5  # below it, there is more noise than signal in the model and the difference that steer x
_LITTLE = "more records, a larger epsilon or fewer hyperparameters"


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Args:
        sentence: for people; the ``result`` of a solution.
        usable: whether the result can be used; otherwise `solve` warns.
    """

    sentence: str
    usable: bool = True


def outcome(planned: Plan, start: Tree, x: Tree, history: Mapping[str, Tree]) -> Outcome:
    """What became of a run, from public and released values.

    Args:
        planned: the plan of the run.
        start: where x started.
        x: as returned.
        history: as released.
    """
    with np.errstate(all="ignore"):  # whatever the numbers are: the result has been paid for, and must be returned
        return _outcome(planned, start, x, history)


def _outcome(planned: Plan, start: Tree, x: Tree, history: Mapping[str, Tree]) -> Outcome:
    if not all(np.isfinite(leaf).all() for leaf in leaves(x)):
        return Outcome("Diverged: the returned x is not finite; try smaller steps or a bounded domain.", usable=False)
    moved = distance(start, x) > 0
    if not isinstance(planned.method, Tracking):
        return Outcome(_without_diagnostics(planned, moved))
    if not planned.budget.is_private:
        return Outcome(_without_noise(planned, start, x, history["x"]))
    told = Diagnostics(planned.method, planned.problem.domain, start, history)
    return _tuned(planned, x, told) if moved else Outcome(_untuned(told), usable=False)


def _without_diagnostics(planned: Plan, moved: bool) -> str:
    rounds = planned.program.rounds
    ran = f"Ran all {rounds:,} rounds" if rounds > 1 else "Ran its one round"
    if moved:
        return f"{ran}; {UNMEASURED}."
    if "output" in planned.parameters:
        rule, _ = planned.parameters["output"]
        return f"{ran} and returned the starting point (output rule: {rule}); {UNMEASURED}."
    return "Trained at the starting point of x; nothing was tuned."


def _without_noise(planned: Plan, start: Tree, x: Tree, trajectory: Tree) -> str:
    rounds = planned.program.rounds
    steps = np.zeros(rounds, bool)
    for first, leaf in zip(leaves(start), leaves(trajectory), strict=True):
        steps |= np.diff(leaf.reshape(rounds, -1), axis=0, prepend=first.reshape(1, -1)).any(axis=1)
    last = int(np.flatnonzero(steps)[-1]) + 1 if steps.any() else 0
    if last == 0:
        return f"Solved without noise: the starting point is stationary{_edge(planned, x)}."
    if last == rounds:
        return f"Stopped without noise after all {rounds:,} rounds: x was still moving; try it as the next start."
    count = "1 round" if last == 1 else f"{last:,} rounds"
    return f"Solved without noise: x came to rest after {count} of at most {rounds:,}{_edge(planned, x)}."


def _untuned(told: Diagnostics) -> str:
    advice = _LITTLE
    if not told.finite:
        why = "numbers of the run were not finite"
    elif told.left and told.measured:
        why = f"the {_loss(told)} did not fall ({_changed(told)})"
    else:
        why, advice = "noise explains all of its movement", f"{_LITTLE}, or another starting point"
    return f"Not tuned: the returned x is the starting point, because {why}; try {advice}."


def _tuned(planned: Plan, x: Tree, told: Diagnostics) -> Outcome:
    if not told.measured:
        return Outcome(
            f"Moved: whether it helped is not measured in {told.steps} steps; try 20 or more, as Tracking(steps=200)."
        )
    if not told.fell:
        change = f"the {_loss(told)} did not fall by more than its noise explains ({_changed(told)})"
        return Outcome(f"Not to be relied on: x moved, but {change}; try {_LITTLE}.", usable=False)
    fell = f"the {_loss(told)} fell by {_number(-told.change, told.noise)}"
    if told.evidence < _EVIDENCE:
        little = f"x moved on little evidence ({told.evidence:.2g} of 1)"
        return Outcome(f"Not to be relied on: {fell}, but {little}; try {_LITTLE}.", usable=False)
    edge = _edge(planned, x)
    if told.at_rest and told.settled:
        return Outcome(f"Tuned: {fell}, and x had come to rest at the noise floor{edge}.")
    still = f"x was still on its way, with a hypergradient of {told.gradient_left:.0%} of the largest,"
    still = "the model had not settled" if told.at_rest else still
    advice = f"try Tracking(steps={2 * told.steps})"
    return Outcome(f"Tuned in part: {fell}, and {still} when the steps ran out{edge}; {advice}.")


def _loss(told: Diagnostics) -> str:
    """What was measured: on records and with noise, or neither."""
    return "validation loss" if told.noise else "upper objective"


def _changed(told: Diagnostics) -> str:
    return f"it changed by {_number(told.change, told.noise)}"


def _number(value: float, noise: float) -> str:
    return f"{value:.3g}" + (f" ± {noise:.2g}" if noise else "")


def _edge(planned: Plan, x: Tree) -> str:
    return ", at an edge of its domain (see the remarks)" if result_remarks(planned, x) else ""
