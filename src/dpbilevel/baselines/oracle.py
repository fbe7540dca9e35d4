"""The upper bound of a benchmark: hyperparameters known in advance, and training settings selected by their results.

NOT PRIVATE. The hyperparameters are known in advance. Several trainings are run and only the best one, by its score on
public test data, is kept; none of them is charged. The result only serves as a reference that no private method can
expect to exceed, and it is marked accordingly.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpbilevel.baselines.runs import check_training
from dpbilevel.baselines.untuned import FixedDefault
from dpbilevel.errors import InvalidArgument, NotPrivateWarning
from dpbilevel.foundation.arguments import count, positive
from dpbilevel.methods.refit import Refit
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.problem import BilevelProblem
from dpbilevel.records import Records
from dpbilevel.solution.solution import Solution
from dpbilevel.solving import solve

Tree = Any
Score = Callable[[Tree, Tree], Any]

SETTINGS = tuple(Refit(clip_norm=clip, learning_rate=rate) for clip in (0.5, 1.0, 2.0) for rate in (0.1, 0.3))


@dataclass(frozen=True, kw_only=True, eq=False)
class OracleHyperparameters:
    """Train at the given x with the full budget, in several settings, and keep the best. For benchmarks: NOT private.

    Args:
        x: the hyperparameters, known in advance.
        score: (x, y) -> a number, smaller is better, computed on PUBLIC test data.
        settings: training settings to try.
        weight_scales: factors of the problem's ``lower_scale`` to try with each setting: they weight upper records that
            also train against lower ones. By default 0.5, 1 and 2 if upper records train, otherwise 1.
        repeats: runs of each setting; settings are compared by their mean score.

    >>> import numpy as np, warnings, dpbilevel as dpb
    >>> from dpbilevel.baselines import OracleHyperparameters
    >>> problem = dpb.BilevelProblem(
    ...     upper_term=lambda x, y: (x + y - 1) ** 2, lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2
    ... )
    >>> records = dpb.Records(lower=np.linspace(0, 1, 2000))
    >>> ceiling = OracleHyperparameters(x=0.5, score=lambda x, y: abs(y - 0.5), settings=[dpb.Refit()])
    >>> with warnings.catch_warnings(action="ignore"):
    ...     best = ceiling.solve(problem, records, dpb.Budget(3.0, 1e-5), start=(0.0, 0.0))
    >>> best.privacy.void, float(best.x)
    (True, 0.5)
    """

    x: Tree
    score: Score
    settings: Sequence[Refit] = SETTINGS
    weight_scales: Sequence[float] | None = None
    repeats: int = 1

    def __post_init__(self) -> None:
        if not callable(self.score):
            raise InvalidArgument("score: must be a function (x, y) -> number on public test data")
        scales = (1.0,) if self.weight_scales is None else self.weight_scales
        for name, values in (("settings", self.settings), ("weight_scales", scales)):
            if not isinstance(values, Sequence) or not len(values):
                raise InvalidArgument(f"{name}: must be a list with at least one entry")
        for training in self.settings:
            check_training(training)
        for scale in scales:
            positive("weight_scales", scale, "it multiplies the weight of lower records (try 1.0)")
        count("repeats", self.repeats, "it is the number of runs of each setting")

    def solve(
        self,
        problem: BilevelProblem,
        records: Records,
        budget: Budget,
        *,
        start: tuple[Tree, Tree],
        ledger: Ledger | None = None,
        seed: int | None = None,
        progress: bool = True,
    ) -> Solution:
        """Train at x in all settings and return the best. Each training has the full budget; nothing is charged.

        Only y0 of ``start`` is used.
        """
        if not isinstance(problem, BilevelProblem):
            raise InvalidArgument(f"problem: must be dpb.BilevelProblem(...), not {type(problem).__name__}")
        if ledger is not None:
            raise InvalidArgument("ledger: must be None; an oracle is not private, and no ledger can account for it")
        if not isinstance(start, tuple) or len(start) != 2:
            raise InvalidArgument("start: must be a pair (x0, y0) of pytrees of real arrays")
        KeySchedule(seed)  # raises for an invalid seed
        seeds = [None if seed is None else self.repeats * seed + index for index in range(self.repeats)]
        best: tuple[float, Solution] | None = None
        scales = self.weight_scales or ((0.5, 1.0, 2.0) if problem.upper_trains else (1.0,))
        for scale in scales:
            scaled = problem if scale == 1 else replace(problem, lower_scale=_times(scale, problem.lower_scale))
            for training in self.settings:
                method = FixedDefault(training=training)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", NotPrivateWarning)  # replaced by the single warning below
                    runs = [
                        solve(
                            scaled, records, budget, method=method, start=(self.x, start[1]), seed=s, progress=progress
                        )
                        for s in seeds
                    ]
                score = float(np.mean([np.asarray(self.score(run.x, run.y)) for run in runs]))
                if best is None or score < best[0]:
                    best = score, self._marked(runs[0], scale, len(scales))
        assert best is not None, "there is at least one setting"
        warnings.warn(
            "OracleHyperparameters: knows its hyperparameters and keeps the best of several runs that are not charged; "
            "its result is an upper bound for benchmarks and NOT private",
            NotPrivateWarning,
            stacklevel=2,
        )
        return best[1]

    def _marked(self, solution: Solution, scale: float, scales: int) -> Solution:
        runs = len(self.settings) * scales * self.repeats
        caveat = f"an oracle's: x was known in advance, and this is the best of {runs} runs that no ledger has charged"
        privacy = replace(solution.privacy, caveats=(*solution.privacy.caveats, caveat), void=True)
        parameters = dict(solution.parameters) | {
            "weight scale": (scale, "of the lower records; the best of those tried")
        }
        return replace(
            solution, privacy=privacy, parameters=parameters, method=f"OracleHyperparameters: {solution.method}"
        )


def oracle(
    problem: BilevelProblem,
    records: Records,
    budget: Budget,
    x: Tree,
    start: tuple[Tree, Tree],
    *,
    score: Score,
    settings: Sequence[Refit] = SETTINGS,
    weight_scales: Sequence[float] | None = None,
    repeats: int = 1,
    seed: int | None = None,
) -> Solution:
    """`OracleHyperparameters` in one call: the best training at a known x. For benchmarks only, NOT private."""
    ceiling = OracleHyperparameters(x=x, score=score, settings=settings, weight_scales=weight_scales, repeats=repeats)
    return ceiling.solve(problem, records, budget, start=start, seed=seed, progress=False)


def _times(scale: float, lower_scale: Callable[[Tree], Any]) -> Callable[[Tree], Any]:
    return lambda x: scale * lower_scale(x)
