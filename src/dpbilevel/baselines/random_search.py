"""Private random search: the best of a random, secret number of runs (Papernot and Steinke 2022).

Each run draws hyperparameters from a public prior, trains at them privately, and scores the model privately. Only the
best run is released: its x, its y and its score. The number of runs K is drawn after the charge, from the distribution
that the accountant assumes, and is never revealed: neither by the solution nor by the progress bar. (The run time of
the search would reveal it too. Do not publish it.)

**How it is charged.** The entire search is one release, (epsilon, delta) by the Rényi accountant of `selection`. It is
charged to the data set's ledger, and redeemed before K is drawn. Every run then has its own ledger, which holds exactly
what the accountant assumes of a run, mu-GDP for each role, so that no run can exceed it.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.baselines.candidates import check_list, fitted, typed
from dpbilevel.baselines.runs import ScoredRuns, with_mu
from dpbilevel.constraints import project
from dpbilevel.errors import InvalidArgument
from dpbilevel.execution.notices import warn_beforehand
from dpbilevel.execution.program import Program, State
from dpbilevel.execution.running import Released, charge, check_ledger, check_records, run
from dpbilevel.foundation.about import version
from dpbilevel.methods.context import PublicContext
from dpbilevel.planning import Plan, prepare
from dpbilevel.privacy.accounting import Chargeable, all_charges
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.declared import BestOfRuns, DeclaredRelease
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.parts import job_of
from dpbilevel.privacy.selection import NumberOfRuns, run_mu
from dpbilevel.privacy.spend import Privacy
from dpbilevel.problem import BilevelProblem
from dpbilevel.records import Records
from dpbilevel.solution.outcome import UNMEASURED
from dpbilevel.solution.solution import Solution
from dpbilevel.solving import for_records, warn_if_not_private

Tree = Any
Parameters = dict[str, tuple[Any, str]]
Prior = Callable[[jax.Array], Tree]

SEARCH = "best of a secret number of runs"
_GRID = 1e-4  # grid of epsilons that a ledger can charge beside others; a search requests a multiple of it


@dataclass(frozen=True, kw_only=True)  # compared by its settings, so that a second search does not compile again
class OneRun(ScoredRuns):
    """One run of the search as a method: train at x, and score."""

    def program(self, context: PublicContext) -> tuple[Program, Parameters]:
        """One round: the training's stages, and the score's."""
        stages, training, parameters = self.stages(context, 1, _finish)
        program = Program(
            rounds=1,
            stages=stages,
            start=training.start(lambda x, y: {"x": x, "y": y, "score": jnp.zeros((), jnp.float32)}),
            observe=_observe,
            finish=_finish,
        )
        return program, parameters


def _observe(state: State) -> Tree:
    return {"score": state["score"]}


def _finish(state: State) -> tuple[Tree, Tree]:
    return state["x"], state["y"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateRandomSearch(ScoredRuns):
    """Train and score hyperparameters from a public prior, a random number of times, and release the best run only.

    Args:
        candidates: the public prior: a list of hyperparameters, each equally likely in each run, or a function from a
            JAX random key to hyperparameters (projected into the problem's domain).
        mean_runs: E[K], the expected number of runs, each of which trains once.
        shape: eta of K's distribution: 1 is geometric, 0 logarithmic, ``float("inf")`` Poisson (K may then be zero, and
            the starting point is returned), any other value above -1 truncated negative binomial.
        training: settings of the training.
        score: (x, y, record) -> the score of an upper record, smaller is better; None uses the upper loss.
        score_range: public range to which the score of one record is clipped.
        score_share: share of mu^2 for scoring, if the scored records also train.

    Full batch only: no Rényi accountant covers Poisson samples under replace-one.

    >>> import numpy as np, dpbilevel as dpb
    >>> from dpbilevel.baselines import PrivateRandomSearch
    >>> problem = dpb.BilevelProblem(
    ...     upper_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
    ...     lower_loss=lambda x, y, record: 0.5 * (y - x * record) ** 2,
    ... )
    >>> records = dpb.Records(upper=np.full(2000, 0.5), lower=np.full(2000, 0.5))
    >>> search = PrivateRandomSearch(candidates=[-1.0, 0.0, 1.0], mean_runs=20, score_range=(0.0, 1.0))
    >>> best = search.solve(problem, records, dpb.Budget(3.0, 1e-5), start=(0.0, 0.0), progress=False)
    >>> float(best.x) in (-1.0, 0.0, 1.0), round(best.privacy.epsilon(), 3)
    (True, 3.0)
    """

    candidates: Sequence[Tree] | Prior
    mean_runs: float = 10.0
    shape: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.candidates):
            object.__setattr__(self, "candidates", check_list(self.candidates))
        NumberOfRuns(self.mean_runs, self.shape)

    @property
    def runs(self) -> NumberOfRuns:
        """The distribution of the number of runs."""
        return NumberOfRuns(self.mean_runs, self.shape)

    def solve(
        self,
        problem: BilevelProblem,
        records: Records,
        budget: Budget,
        *,
        start: tuple[Tree, Tree] | None = None,
        ledger: Ledger | None = None,
        seed: int | None = None,
        progress: bool = True,
    ) -> Solution:
        """Search on private records within a budget; the arguments are those of `dpb.solve`.

        Guarantee: everything in the returned solution is (budget.epsilon, budget.delta)-DP under ``budget.adjacency``,
        as long as the number of runs stays secret. The charge is made before the first record is read.
        """
        check_records(records)
        check_ledger(ledger)
        if not isinstance(budget, Budget):
            raise InvalidArgument(f"budget: must be dpb.Budget(epsilon, delta), not {type(budget).__name__}")
        if job_of(records.sizes.mesh).is_several:
            raise InvalidArgument(
                "records: are on devices of several processes, and each would draw a number of runs of its own; use a "
                "mesh of one process, or another method"
            )
        draws = KeySchedule(seed)
        planned, charged = self._plan(problem, records, budget, start)
        planned = for_records(planned, records)
        most = records.sizes.rows_per_unit
        privacy = Privacy(all_charges(charged), budget, planned.privacy.caveats, rows_per_unit=most)
        warn_beforehand(privacy, planned.remarks, stacklevel=2)
        x, y = planned.start
        draw = self._prior(problem, x)
        draw(draws, 0)  # a prior that does not fit raises here, before the charge
        warn_if_not_private(budget, draws)
        receipt = charge(charged, budget, ledger, type(self).__name__, most)
        for release in charged:
            receipt.redeem(release, release.uses)  # entirely: the search is one release that happens once
        number = self.runs.quantile(_uniform(draws, "noise", 0))
        candidates = [draw(draws, 1 + index) for index in range(number)]
        best = Released(jax.tree.map(np.asarray, (x, y)), {"score": np.full(1, np.inf, np.float32)})
        with _working(progress, type(self).__name__):
            for index, candidate in enumerate(candidates):
                found = _one_run(planned, records, (candidate, y), KeySchedule(_own_seed(draws, index, seed)))
                # Ties in float32 go to the earlier run; runs are exchangeable, so this is as good as a coin flip.
                best = found if found.history["score"][0] < best.history["score"][0] else best
        return self._solution(planned, privacy, records, best, seed)

    def _plan(
        self, problem: BilevelProblem, records: Records, budget: Budget, start: tuple[Tree, Tree] | None
    ) -> tuple[Plan, tuple[Chargeable, ...]]:
        """The plan of one run, and the releases that the ledger charges for all runs."""
        run = OneRun(
            training=self.training, score=self.score, score_range=self.score_range, score_share=self.score_share
        )
        if not budget.is_private or budget.delta is None:
            planned = prepare(problem, records.sizes, budget, run, start, None)
            return planned, planned.releases
        # Slightly below the multiple, which rounding could otherwise lift above it.
        epsilon = math.floor(budget.epsilon / _GRID * (1 + 1e-13)) * _GRID * (1 - 1e-9)
        if epsilon <= 0:
            raise InvalidArgument(
                f"epsilon={budget.epsilon!r}: must be at least {_GRID:g} for a random search (try 1.0)"
            )
        mu = run_mu(self.runs, epsilon, budget.delta)
        planned = prepare(problem, records.sizes, with_mu(budget, mu), run, start, None)
        roles = {role: records.sizes.count(role) for role in planned.privacy.charges}
        event = BestOfRuns(epsilon, budget.delta, mu=mu, mean_runs=self.mean_runs, shape=self.shape)
        whole = DeclaredRelease(name=SEARCH, roles=roles, event=event, uses=1, adjacency=budget.adjacency)
        return planned, (whole,)

    def _prior(self, problem: BilevelProblem, x: Tree) -> Callable[[KeySchedule, int], Tree]:
        """The hyperparameters of each run. Their distribution is public and independent of the records."""
        prior = self.candidates
        if callable(prior):
            return lambda draws, index: project(
                problem.domain, typed(prior(jnp.asarray(draws.keys("batch", index, 1)[0])), x)
            )
        listed = [fitted(candidate, x, problem.domain) for candidate in prior]
        return lambda draws, index: listed[int(_uniform(draws, "batch", index) * len(listed))]

    def _solution(
        self, planned: Plan, privacy: Privacy, records: Records, best: Released, seed: int | None
    ) -> Solution:
        budget = privacy.budget
        parameters: Parameters = {
            "runs": (self.mean_runs, "expected; how many there were is secret"),
            "shape": (self.shape, "of the law of the number of runs"),
            "output": ("best score", "the run with the smallest noisy score, and nothing of the others"),
        }
        if budget.is_private:
            reason = "of each run, so that the best of them costs the budget (Papernot and Steinke 2022)"
            parameters |= {"accountant": ("Rényi", "dp_accounting's, of repeated selection")}
            parameters |= {"mu": (planned.budget.mu, reason)}
        return Solution(
            x=best.values[0],
            y=best.values[1],
            privacy=replace(privacy, void=not budget.is_private or seed is not None),
            history=best.history,
            parameters=parameters | dict(planned.parameters),
            sizes={role: records.sizes.count(role) for role in records.sizes.roles},
            method=repr(self),
            version=version(),
            remarks=planned.remarks,
            result=f"Returned the best of about {self.mean_runs:g} runs, by noisy score; {UNMEASURED}.",
        )


def _one_run(planned: Plan, records: Records, start: tuple[Tree, Tree], schedule: KeySchedule) -> Released:
    """Train and score once, charged to a ledger that holds exactly the budget of one run."""
    return run(
        planned.parts,
        records,
        start,
        schedule,
        budget=planned.budget,
        ledger=None,
        description="one run",
        progress=False,
    )


def _uniform(draws: KeySchedule, purpose: str, index: int) -> float:
    """A number strictly between 0 and 1, from 52 bits of a key."""
    high, low = map(int, draws.keys(purpose, index, 1)[0])
    return (((high << 32 | low) >> 12) + 0.5) / 2**52


def _own_seed(draws: KeySchedule, index: int, seed: int | None) -> int | None:
    """The seed of one run if the search has a fixed seed; otherwise each run gets a secret of the operating system."""
    return None if seed is None else int.from_bytes(draws.keys("noise", 1 + 2 * index, 2).tobytes(), "big")


@contextlib.contextmanager
def _working(wanted: bool, title: str) -> Iterator[None]:
    """A progress bar without counts or times, which would reveal K."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
    except ImportError:  # rich is not installed
        wanted = False
    if not wanted or not Console(stderr=True).is_terminal:
        yield
        return
    with Progress(TextColumn("{task.description}"), BarColumn(), console=Console(stderr=True)) as bar:
        bar.add_task(title, total=None)
        yield
