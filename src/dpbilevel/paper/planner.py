"""The theorems in numbers: the smallest alpha that a budget allows, and the parameters that achieve it.

    alpha = B/lambda  +  (alpha_L / delta) (inner error + outer noise [+ batch])  [+ generalisation]

delta, the sum in the bracket, bounds the error of every hypergradient of Algorithm 1, and alpha_L is the resulting
guarantee of T outer steps (`bounds.gradient_mapping`). All steps share mu^2 = T (mu_in^2 + mu_in,lambda^2 + mu_out^2),
so that delta grows like sqrt(T) while alpha_L decreases with T at a given delta; lambda trades the bias B/lambda
against lambda times the inner error. Any T and lambda give a valid guarantee; the planner minimises alpha over them.

*Proved* (formulas and proofs in `bounds`): every term, for inner solves by output perturbation, with one failure
probability gamma for all, in real arithmetic and with exact minimisers before noise. *Not proved*: the radii of
DP-Loc-GD, whose constant the paper does not state; and, for batches, any ``noise_ratio`` below n/batch, which
represents amplification by sampling: it has no closed form and must come from an accountant.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dpbilevel.constants import Constants
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import one_of, positive
from dpbilevel.foundation.extras import needing
from dpbilevel.paper.bounds import (
    FORMULAS,
    Guarantee,
    bias_constant,
    localisation_radii,
    record_bound,
    solution_distance,
    value_loss,
)
from dpbilevel.paper.preconditions import Precondition, theorem_preconditions
from dpbilevel.paper.question import Question, SpendingLimit

_NUMBERS = (
    *("penalty_weight", "steps", "step_size", "clip_norm", "noise_std", "lower_noise_std", "penalised_noise_std"),
    "rounds",
)
_MOST_RECORDS = 10**30  # far beyond any data set: an alpha that is not reached here is unreachable


@dataclass(frozen=True, kw_only=True, repr=False)
class TheoryPlan:
    """Parameters of Algorithm 1 (with batches: 3) and their guarantee.

    Guarantee: with these parameters, records clipped to ``clip_norm`` and inner solves by output perturbation, the
    algorithm satisfies the budget for its neighbouring relation (with a ``noise_ratio`` below n/batch: if an accountant
    confirms it), and with probability at least 1 - gamma its output has a gradient mapping ||G_F|| (the hypergradient's
    norm if x has no constraints) of at most ``alpha``.

    Attributes:
        question: the arguments of `plan`.
        alpha: the guarantee; the sum of ``terms``.
        terms: alpha by cause: penalty bias, inner error, outer noise, batch, generalisation.
        penalty_weight, steps, step_size, clip_norm: lambda, T, eta, and C, the bound on each record's contribution.
        noise_std: sigma, standard deviation of the Gaussian on the mean of the contributions, in each outer step.
        lower_noise_std, penalised_noise_std: the same on y* and y^lambda, in each solve.
        radii: R_0, ..., R_{M-1} of DP-Loc-GD, for either solve, instead of output perturbation (not proved).
        preconditions: further requirements of the paper's theorems, and whether they hold.
    """

    question: Question
    alpha: float
    terms: dict[str, float] = field(hash=False)
    penalty_weight: float
    steps: int
    step_size: float
    clip_norm: float
    noise_std: float
    lower_noise_std: float
    penalised_noise_std: float
    radii: tuple[float, ...]
    preconditions: tuple[Precondition, ...]

    @property
    def rounds(self) -> int:
        """M, the localisation rounds of DP-Loc-GD."""
        return len(self.radii)

    @property
    def binds(self) -> str:
        """The largest term."""
        return max(self.terms, key=lambda name: self.terms[name])

    @property
    def vacuous(self) -> bool:
        """Whether alpha is a trivial bound: no hypergradient exceeds clip_norm = L0f (1 + L1g/mu_g) anywhere."""
        return self.alpha >= self.clip_norm

    def records_needed(self, alpha: float) -> int:
        """The smallest n whose plan guarantees ``alpha`` with all other arguments unchanged, by bisection.

        delta is unchanged too, even if the result exceeds 1/delta: plan again with a smaller delta in that case.
        """
        positive("alpha", alpha, "it is the desired norm of the hypergradient")
        mu = self.question.budget.mu
        low = self.question.batch or 1

        def reached(n: int) -> bool:
            return _solve(replace(self.question, n=n), mu).alpha <= alpha

        if reached(low):
            return low
        high = max(self.question.n, low + 1)
        while not reached(high):
            if high > _MOST_RECORDS:
                stuck = _solve(replace(self.question, n=high), mu)
                raise InvalidArgument(
                    f"alpha={alpha!r}: no number of records reaches it; {stuck.alpha:.4g} remains, mostly "
                    f"{stuck.binds} (raise batch, lower noise_ratio, or set penalty_weight=None)"
                )
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if reached(middle) else (middle, high)
        return high

    def explain(self) -> str:
        """The meaning of alpha in one sentence, then every number with its formula and its source."""
        asked, budget, line = self.question, self.question.budget, "{:<21}{:<13}{}".format
        worth = f"bounds the gradient mapping but for probability {asked.gamma:g}"
        if self.vacuous:
            worth = f"is vacuous: no hypergradient exceeds {self.clip_norm:.4g} anywhere"
        numbers: dict[str, Any] = self.terms | {name: getattr(self, name) for name in _NUMBERS}
        shown = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in numbers.items()}
        amplified = asked.batch is not None and (asked.noise_ratio or math.inf) < asked.n / asked.batch
        return "\n".join(
            [
                f"alpha = {self.alpha:.4g} {worth}; {self.binds} binds.",
                f"({budget.epsilon:g}, {budget.delta:g})-DP, {budget.adjacency}; mu = {budget.mu:.4g}, "
                "mu^2 = T (mu_in^2 + mu_in,lambda^2 + mu_out^2)."
                + f" NOT PROVED HERE: that sampling amplifies to noise_ratio = {asked.noise_ratio}."
                * amplified,
                *(line(name, value, FORMULAS[name]) for name, value in shown.items()),
                line("radii", ", ".join(f"{radius:.4g}" for radius in self.radii) + "  ", FORMULAS["radii"]),
                *(line("precondition", "", condition) for condition in self.preconditions),
            ]
        )

    def __repr__(self) -> str:
        asked, worth = self.question, ", vacuous" if self.vacuous else ""
        return (
            f"TheoryPlan({asked.setting}, n={asked.n}: alpha={self.alpha:.4g}{worth}, binds={self.binds!r}, "
            f"penalty_weight={self.penalty_weight:.4g}, noise_std={self.noise_std:.4g}, "
            f"step_size={self.step_size:.4g}, steps={self.steps})"
        )


def plan(
    constants: Constants,
    n: int,
    d_x: int,
    d_y: int,
    budget: SpendingLimit,
    gamma: float,
    setting: str = "erm",
    *,
    gap: float,
    batch: int | None = None,
    noise_ratio: float | None = None,
    shares: tuple[float, float, float] = (1.0, 1.0, 1.0),
    penalty_weight: float | None = None,
    diameter: float | None = None,
    radius_factor: float = 1.0,
    strict: bool = False,
) -> TheoryPlan:
    """The smallest alpha that the budget allows on n records, and the parameters that achieve it; reads no record.

    `TheoryPlan` states the guarantee; the module docstring states which parts are proved.

    Args:
        constants: bounds for every possible record and data set (Assumptions 1 and 2 of the paper).
        n, d_x, d_y: the public number of records, the dimensions of x and y.
        budget: a `Budget` with finite epsilon.
        gamma: probability with which alpha may fail.
        setting: "erm" (Theorem 1), "minibatch" (Theorem 2) or "population" (Theorem 3).
        gap: a bound on F(x_0) - inf F for every data set, the paper's Delta_F.
        batch: b_out; required for "minibatch", allowed for "population".
        noise_ratio: outer noise with batches over the noise 2C/(n mu_out) of full batches. The maximum and default is
            n/batch: no amplification, proved for Poisson batches and batches without replacement. Theorem 2 assumes
            1.0, the limit of many steps, batch sqrt(T) >> n mu; an accountant computes values in between.
        shares: how mu^2 is divided between lower solves, penalised solves and outer steps.
        penalty_weight: lambda; the best one by default.
        diameter: diameter of the domain of x, for "population"; by default the distance that T steps can cover.
        radius_factor: c in the radii of DP-Loc-GD, hidden in the paper's Theta(.); alpha does not depend on it.
        strict: raise if a precondition of the paper's theorem fails, instead of reporting it.

    >>> from dpbilevel import Budget, Constants
    >>> constants = Constants(
    ...     upper_lipschitz=1.0,
    ...     upper_smoothness=0.5,
    ...     lower_lipschitz=1.0,
    ...     lower_smoothness=1.0,
    ...     lower_hessian_lipschitz=0.1,
    ...     strong_convexity=0.5,
    ... )
    >>> planned = plan(constants, 10**9, 10, 100, Budget(1.0, 1e-10), gamma=0.05, gap=1.0)
    >>> round(planned.alpha, 3), planned.binds, planned.vacuous
    (0.096, 'inner error', False)
    >>> round(planned.records_needed(0.5), -4)
    7850000
    """
    if not isinstance(strict, bool):
        raise InvalidArgument(f"strict: must be True or False, not {type(strict).__name__}")
    question = Question(
        constants=constants,
        n=n,
        d_x=d_x,
        d_y=d_y,
        budget=budget,
        gamma=gamma,
        setting=setting,
        gap=gap,
        batch=batch,
        noise_ratio=noise_ratio,
        shares=shares,
        penalty_weight=penalty_weight,
        diameter=diameter,
        radius_factor=radius_factor,
    )
    planned = _solve(question, budget.mu)
    broken = [str(condition) for condition in planned.preconditions if not condition.holds]
    if strict and broken:
        raise InvalidArgument(f"plan: {'; '.join(broken)} (more records, or strict=False to report it only)")
    return planned


def curve(planned: TheoryPlan, against: str = "n", values: Sequence[float] | None = None) -> tuple[list[float], ...]:
    """``values`` of "n", "epsilon", "d_x" or "d_y" and the alpha of each, with all other arguments unchanged."""
    if not isinstance(planned, TheoryPlan):
        raise InvalidArgument("planned: must be what dpb.paper.plan returns")
    if values is not None and (isinstance(values, str) or not isinstance(values, Sequence) or not len(values)):
        raise InvalidArgument("values: must be a list of at least one number, or None")
    asked = planned.question
    one_of("against", against, ("n", "epsilon", "d_x", "d_y"), "it is the quantity that varies")
    own = asked.budget.epsilon if against == "epsilon" else getattr(asked, against)
    chosen: list[Any] = [own * 10 ** (step / 8) for step in range(-8, 9)] if values is None else list(values)
    if values is None and against != "epsilon":
        least = asked.batch or 1 if against == "n" else 1
        chosen = sorted({max(least, round(value)) for value in chosen})
    budget: Any = asked.budget
    changes = [{"budget": replace(budget, epsilon=v)} if against == "epsilon" else {against: v} for v in chosen]
    questions = [replace(asked, **change) for change in changes]
    return chosen, [_solve(question, question.budget.mu).alpha for question in questions]


def plot(planned: TheoryPlan, against: str = "n", values: Sequence[float] | None = None, axes: Any = None) -> Any:
    """Plot alpha against "n", "epsilon", "d_x" or "d_y" on log-log axes, and return the axes.

    By default ``values`` lie within a factor 10 of the plan's own value. Above the dotted line alpha is vacuous.
    """
    if axes is None:
        with needing("plot", "plot"):
            axes = importlib.import_module("matplotlib.pyplot").subplots()[1]
    axes.loglog(*curve(planned, against, values), label=planned.question.setting)
    axes.axhline(planned.clip_norm, linestyle=":", label="vacuous above")
    axes.set_xlabel(against)
    axes.set_ylabel("alpha")
    axes.legend()
    return axes


def _solve(question: Question, mu: float) -> TheoryPlan:
    try:
        return _computed(question, mu)
    except (ArithmeticError, ValueError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument("plan: a number is so large or so small that the computation overflows") from error


def _computed(question: Question, mu: float) -> TheoryPlan:
    constants, budget = question.constants, question.budget
    shared = ("constants", "n", "d_x", "d_y", "gamma", "gap", "shares", "batch", "noise_ratio", "diameter")
    facts: dict[str, Any] = {name: getattr(question, name) for name in shared}
    multiple = {"replace-one": 2.0, "zero-out": 1.0}[budget.adjacency]
    facts |= {"mu": mu, "multiple": multiple, "population": question.setting == "population"}
    penalty_weight = question.penalty_weight
    if penalty_weight is None:
        penalty_weight = _best_penalty(question, lambda value: Guarantee(penalty_weight=value, **facts).best()[1])
    guarantee = Guarantee(penalty_weight=penalty_weight, **facts)
    steps, alpha = guarantee.best()
    lower_noise_std, penalised_noise_std, noise_std = guarantee.noises(steps)
    start = 2 * constants.lower_lipschitz / constants.strong_convexity + solution_distance(constants, penalty_weight)
    scale = max(lower_noise_std, penalised_noise_std)
    below = Precondition("delta <= 1/n", budget.delta or 0.0, 1 / question.n, "a larger one may publish a record")
    return TheoryPlan(
        question=question,
        alpha=alpha,
        terms=guarantee.terms(steps),
        penalty_weight=penalty_weight,
        steps=steps,
        step_size=1 / (2 * guarantee.smoothness),
        clip_norm=record_bound(constants),
        noise_std=noise_std,
        lower_noise_std=lower_noise_std,
        penalised_noise_std=penalised_noise_std,
        radii=localisation_radii(start, scale, question.d_y, question.radius_factor),
        preconditions=(*theorem_preconditions(constants, question.gap, alpha), below),
    )


def _best_penalty(question: Question, alpha: Callable[[float], float]) -> float:
    """The lambda with the smallest alpha: a scan over decades, then a bounded search around its best point."""
    from scipy.optimize import minimize_scalar  # imported here, because most users of this module never call it

    constants = question.constants
    bias = bias_constant(constants)
    # Without L1f and L0g nothing bounds lambda from below; this value at most doubles the gap.
    low = constants.smallest_penalty_weight() or value_loss(constants, 1.0) / question.gap
    last, gain, scan = low, 1.0, {low: alpha(low)}
    # Once the bias is a millionth of alpha and alpha no longer decreases, a larger lambda cannot improve it.
    while bias / last > 1e-6 * scan[last] or gain > 1e-7:
        before, last = last, last * 10**0.25
        scan[last] = alpha(last)
        gain = 1 - scan[last] / scan[before]
    best = min(scan, key=lambda penalty_weight: scan[penalty_weight])
    span = (math.log(max(low, best / 2)), math.log(best * 2))
    result = minimize_scalar(lambda log: alpha(math.exp(log)), bounds=span, method="bounded", options={"xatol": 1e-7})
    return math.exp(result.x) if result.fun < scan[best] else best
