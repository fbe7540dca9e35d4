"""Grid search in which every run is charged.

k candidates share mu^2 equally. Every run trains and releases its score, all runs are charged, and the best released
score wins. This is the properly charged version of common practice. It works well with two or three candidates; each
further candidate takes budget from all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.baselines.baseline import Baseline
from dpbilevel.baselines.candidates import check_list, fitted
from dpbilevel.baselines.runs import ScoredRuns
from dpbilevel.execution.program import Program, Stage, State
from dpbilevel.foundation.structure import function
from dpbilevel.methods.context import PublicContext

Tree = Any
Parameters = dict[str, tuple[Any, str]]


@dataclass(frozen=True, kw_only=True, eq=False)
class NaiveGridSearch(Baseline, ScoredRuns):
    """Train and score every candidate with its share of the budget; the best score wins.

    Args:
        candidates: hyperparameters to try, public, each with the structure of x0.
        training: settings of the training.
        score: (x, y, record) -> the score of an upper record, smaller is better; None uses the upper loss.
        score_range: public range to which the score of one record is clipped.
        score_share: share of mu^2 for scoring, if the scored records also train.

    The solution's history contains the score of every candidate, in order.

    >>> import numpy as np, dpbilevel as dpb
    >>> from dpbilevel.baselines import NaiveGridSearch
    >>> squared = lambda x, y, record: 0.5 * (y - x * record) ** 2
    >>> problem = dpb.BilevelProblem(upper_loss=lambda x, y, record: 0.5 * (y - record) ** 2, lower_loss=squared)
    >>> records = dpb.Records(upper=np.full(2000, 0.5), lower=np.full(2000, 0.5))
    >>> search = NaiveGridSearch(candidates=[-1.0, 1.0], score_range=(0.0, 1.0))
    >>> best = search.solve(problem, records, dpb.Budget(3.0, 1e-5), start=(0.0, 0.0))
    >>> float(best.x), best.history["score"].shape
    (1.0, (2,))
    """

    candidates: Sequence[Tree]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "candidates", check_list(self.candidates))

    def program(self, context: PublicContext) -> tuple[Program, Parameters]:
        """One round per candidate: train, score, keep the better one."""
        number = len(self.candidates)
        points = [fitted(candidate, context.point[0], context.problem.domain) for candidate in self.candidates]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *points)
        stages, training, parameters = self.stages(context, number, function(_candidate, stacked))
        program = Program(
            rounds=number,
            stages=[*stages, Stage(release=None, update=_keep_the_best)],
            start=training.start(_start),
            observe=_observe,
            finish=_finish,
        )
        reason = "each trains and is scored with an equal share of mu^2"
        chosen = ("best score", "the candidate with the smallest released score")
        return program, {"candidates": (number, reason), "output": chosen} | parameters


def _start(x: Tree, y: Tree) -> State:
    worst = jnp.full((), jnp.inf, jnp.float32)
    return {
        "index": jnp.zeros((), jnp.int32),
        "start": y,
        "x": x,
        "y": y,
        "score": worst,
        "best": {"x": x, "y": y, "score": worst},
    }


def _candidate(candidates: Tree, state: State) -> tuple[Tree, Tree]:
    return jax.tree.map(lambda leaf: leaf[state["index"]], candidates), state["start"]


def _keep_the_best(state: State, carry: State, answer: Tree, step: jax.Array) -> State:
    current = {name: carry[name] for name in ("x", "y", "score")}
    better = current["score"] < carry["best"]["score"]
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), current, carry["best"])
    return carry | {"best": best, "index": carry["index"] + 1}


def _observe(state: State) -> Tree:
    return {"x": state["x"], "score": state["score"]}


def _finish(state: State) -> tuple[Tree, Tree]:
    return state["best"]["x"], state["best"]["y"]
