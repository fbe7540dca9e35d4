"""The outcome of a run in one sentence: whether it tuned anything, whether it converged, and what to try if not.

It follows from the plan, the starting point and released values, and is post-processing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpbilevel.methods.preconditioned_steps import FACTOR
from dpbilevel.methods.tracking.tracking import Tracking
from dpbilevel.planning import Plan
from dpbilevel.solution.diagnostics import Diagnostics, distance, leaves
from dpbilevel.solution.remarks import result_remarks

Tree = Any

UNMEASURED = "this method does not measure convergence"

_EVIDENCE = 0.5  # below it, the model and the difference, which determine the steps of x, are mostly noise
_ADVICE = "more records, a larger epsilon or fewer hyperparameters"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Args:
        sentence: the ``result`` of a solution.
        usable: whether the result can be used; otherwise `solve` warns.
    """

    sentence: str
    usable: bool = True


def outcome(planned: Plan, start: Tree, x: Tree, history: Mapping[str, Tree]) -> Outcome:
    """The outcome of a run, from public and released values.

    Args:
        planned: the plan of the run.
        start: the initial x.
        x: the returned x.
        history: the released history.
    """
    with np.errstate(all="ignore"):  # no numerical error may prevent the return of a result that has been paid for
        return _outcome(planned, start, x, history)


def _outcome(planned: Plan, start: Tree, x: Tree, history: Mapping[str, Tree]) -> Outcome:
    if not all(np.isfinite(leaf).all() for leaf in leaves(x)):
        return Outcome("Diverged: the returned x is not finite; try smaller steps or a bounded domain.", usable=False)
    moved = distance(start, x) > 0
    if not isinstance(planned.method, Tracking):
        scaled = FACTOR in history and not moved
        return Outcome(_scaled(history) if scaled else _without_diagnostics(planned, moved))
    if not planned.budget.is_private:
        return Outcome(_without_noise(planned, start, x, history["x"]))
    diagnostics = Diagnostics(planned.method, planned.problem.domain, start, history)
    return _tuned(planned, x, diagnostics) if moved else Outcome(_untuned(diagnostics), usable=False)


def _without_diagnostics(planned: Plan, moved: bool) -> str:
    rounds = planned.program.rounds
    ran = f"Ran all {rounds:,} rounds" if rounds > 1 else "Ran its one round"
    if moved:
        return f"{ran}; {UNMEASURED}."
    if "output" in planned.parameters:
        rule, _ = planned.parameters["output"]
        return f"{ran} and returned the starting point (output rule: {rule}); {UNMEASURED}."
    return "Trained at the starting point of x; nothing was tuned."


def _scaled(history: Mapping[str, Tree]) -> str:
    factor = float(np.asarray(history[FACTOR])[-1])
    return f"Trained at the starting point of x; then all coefficients were multiplied by a measured {factor:.3g}."


def _without_noise(planned: Plan, start: Tree, x: Tree, trajectory: Tree) -> str:
    rounds = planned.program.rounds
    steps = np.zeros(rounds, bool)
    for first, leaf in zip(leaves(start), leaves(trajectory), strict=True):
        steps |= np.diff(leaf.reshape(rounds, -1), axis=0, prepend=first.reshape(1, -1)).any(axis=1)
    last = int(np.flatnonzero(steps)[-1]) + 1 if steps.any() else 0
    if last == 0:
        return f"Solved without noise: the starting point is stationary{_edge(planned, x)}."
    if last == rounds:
        return (
            f"Stopped without noise after all {rounds:,} rounds: x was still moving; try a new run from the returned x."
        )
    count = "1 round" if last == 1 else f"{last:,} rounds"
    return f"Solved without noise: x converged after {count} of at most {rounds:,}{_edge(planned, x)}."


def _untuned(diagnostics: Diagnostics) -> str:
    advice = _ADVICE
    if not diagnostics.finite:
        why = "values of the run were not finite"
    elif diagnostics.left and diagnostics.measured:
        why = f"the {_loss(diagnostics)} did not fall ({_changed(diagnostics)})"
    else:
        why, advice = "noise explains all of its movement", f"{_ADVICE}, or another starting point"
    return f"Not tuned: the returned x is the starting point, because {why}; try {advice}."


def _tuned(planned: Plan, x: Tree, diagnostics: Diagnostics) -> Outcome:
    if not diagnostics.measured:
        return Outcome(
            f"Moved: a run of {diagnostics.steps} steps does not measure the gain; try 20 or more, as in "
            "Tracking(steps=200)."
        )
    if not diagnostics.fell:
        change = f"the {_loss(diagnostics)} did not fall by more than its noise explains ({_changed(diagnostics)})"
        return Outcome(f"Not to be relied on: x moved, but {change}; try {_ADVICE}.", usable=False)
    fell = f"the {_loss(diagnostics)} fell by {_number(-diagnostics.change, diagnostics.noise)}"
    if diagnostics.evidence < _EVIDENCE:
        evidence = f"x moved on little evidence ({diagnostics.evidence:.2g} of 1)"
        return Outcome(f"Not to be relied on: {fell}, but {evidence}; try {_ADVICE}.", usable=False)
    edge = _edge(planned, x)
    if diagnostics.at_rest and diagnostics.settled:
        return Outcome(f"Tuned: {fell}, and x converged to the noise floor{edge}.")
    gradient = f"x (its hypergradient was {diagnostics.gradient_left:.0%} of the largest)"
    missing = "the model" if diagnostics.at_rest else gradient
    advice = f"try Tracking(steps={2 * diagnostics.steps})"
    return Outcome(f"Tuned in part: {fell}, but {missing} had not converged after all steps{edge}; {advice}.")


def _loss(diagnostics: Diagnostics) -> str:
    """The measured quantity: a loss on records, with noise, or the data-free objective, without."""
    return "validation loss" if diagnostics.noise else "upper objective"


def _changed(diagnostics: Diagnostics) -> str:
    return f"it changed by {_number(diagnostics.change, diagnostics.noise)}"


def _number(value: float, noise: float) -> str:
    return f"{value:.3g}" + (f" ± {noise:.2g}" if noise else "")


def _edge(planned: Plan, x: Tree) -> str:
    return ", at an edge of its domain (see the remarks)" if result_remarks(planned, x) else ""
