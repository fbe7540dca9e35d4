"""An attempt to falsify declared constants, on synthetic records only.

Nothing here can prove a constant. A search over points and records that the caller draws from the declared domain
looks for a counterexample to each constant. Every value found is a true lower bound (for mu_g: upper bound) up to
rounding. A ratio above 1 therefore refutes the declaration, and a ratio below 1 only means that the search failed to.

*What is measured.* A data set of copies of one record is a data set, so that f0 + f_i and g0 + g_i represent the totals
f and g. No other data set is worse, because a norm (or a least eigenvalue) of a mean is at most (at least) that of one
of its terms. Derivatives are taken in x and y jointly, along every direction, also where the domain is flat.
Smoothness is measured twice: by derivatives, with power iterations, and by differences between two points, which detect
kinks that derivatives miss.

*How it searches.* x, y and records of different draws are combined freely, because the constants hold for every
combination. The search is a hill climb from the best combination for each constant: x and y move towards those of other
draws (never beyond: the domain is convex, and nothing else is known about it), records are exchanged, and power
iterations continue from the best direction so far. It stays within the span of ``sample``, which should therefore draw
extreme points.
"""

import functools
import math
import numbers
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from dpbilevel.constants import Constants
from dpbilevel.constraints import contains
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count
from dpbilevel.foundation.precision import user_float
from dpbilevel.foundation.tables import text_table
from dpbilevel.theory.extremes import DIRECTIONS, Levels, measured

Tree = Any

_SYMBOLS = {
    "upper_lipschitz": "L0f",
    "record_upper_lipschitz": "L0f per record",
    "upper_smoothness": "L1f",
    "lower_lipschitz": "L0g per record",
    "lower_smoothness": "L1g",
    "record_lower_smoothness": "L1g per record",
    "lower_hessian_lipschitz": "L2g",
    "strong_convexity": "mu_g",
}
_TOLERANCE = 1e-3  # for float32, and for constants declared to a few digits
_ROUNDS = 60
_PARTS = ("x", "y", "upper", "lower")


@dataclass(frozen=True)
class ConstantCheck:
    """The result of the search for one constant.

    Attributes:
        name, symbol: name and symbol of the constant; those without "per record" are totals.
        declared: the constant under test.
        found: the largest value found; for mu_g the smallest.
        ratio: found over declared, for mu_g declared over found: above 1 the constant is refuted.
        witness: the x, y and record (for a difference: with the first of its two points) where it was found.

    >>> check = ConstantCheck("strong_convexity", "mu_g", declared=0.2, found=0.1, witness=())
    >>> check.ratio, check.holds
    (2.0, False)
    """

    name: str
    symbol: str
    declared: float
    found: float
    witness: tuple[Tree, ...] = field(repr=False, compare=False)

    @property
    def ratio(self) -> float:
        """The found value relative to the declared constant; above 1 it is refuted."""
        above, below = self.found, self.declared
        if self.name == "strong_convexity":
            above, below = self.declared, self.found
        if below > 0:
            return above / below
        return math.inf if above > 0 else 0.0

    @property
    def holds(self) -> bool:
        """Whether the search did not refute the constant, with a tolerance of 0.1%."""
        return self.ratio <= 1 + _TOLERANCE


@dataclass(frozen=True, repr=False)
class ConstantsReport:
    """The result of `check_constants`: one `ConstantCheck` per constant, also accessible by name; prints as a table.

    >>> ConstantsReport((ConstantCheck("strong_convexity", "mu_g", declared=0.2, found=0.1, witness=()),))
    constant  name              declared  found  ratio
    mu_g      strong_convexity  0.2       0.1    2      REFUTED
    """

    checks: tuple[ConstantCheck, ...]

    @property
    def holds(self) -> bool:
        """Whether no constant was refuted. This is not a proof, only an unsuccessful search."""
        return all(check.holds for check in self.checks)

    def __getitem__(self, name: str) -> ConstantCheck:
        return {check.name: check for check in self.checks}[name]

    def __repr__(self) -> str:
        rows = [
            [c.symbol, c.name, f"{c.declared:.6g}", f"{c.found:.6g}", f"{c.ratio:.4g}", "" if c.holds else "REFUTED"]
            for c in self.checks
        ]
        return text_table(["constant", "name", "declared", "found", "ratio", ""], rows)


def check_constants(
    problem: Levels, constants: Constants, sample: Callable[[Any], tuple], *, trials: int = 96, seed: int = 0
) -> ConstantsReport:
    """Try to falsify the constants of a problem on synthetic records; raises for bad arguments only.

    Args:
        problem: a `BilevelProblem`.
        constants: the declared constants.
        sample: a function of a NumPy ``Generator`` that draws (x, y, upper_record, lower_record) from the declared
            domain, including extremes; upper_record is None if no upper loss reads one. Use synthetic records only:
            results on private records are a leak.
        trials: number of draws, and of candidates in each round of the search.
        seed: the seed of the generator.

    >>> import dpbilevel as dpb
    >>> loss = lambda x, y, record: (y - record) @ (y - record) / 2
    >>> problem = dpb.BilevelProblem(
    ...     upper_loss=loss, lower_loss=loss, lower_term=lambda x, y: x * y @ y / 2, domain=dpb.Box(0.1, 1.0)
    ... )
    >>> declared = dpb.Constants(
    ...     upper_lipschitz=2.0,
    ...     upper_smoothness=1.0,
    ...     lower_lipschitz=2.0,
    ...     lower_smoothness=1 + 2**0.5,
    ...     lower_hessian_lipschitz=2 / 3**0.5,
    ...     strong_convexity=1.2,
    ...     record_lower_smoothness=1.0,
    ... )
    >>> def sample(rng):
    ...     y, record = rng.normal(size=(2, 2))
    ...     return rng.choice([0.1, 1.0]), y / np.hypot(*y), record / np.hypot(*record), record / np.hypot(*record)
    >>> report = check_constants(problem, declared, sample)
    >>> [(check.symbol, round(check.ratio, 2)) for check in report.checks if not check.holds]
    [('mu_g', 1.09)]
    """
    if not isinstance(problem, Levels) or isinstance(problem, type):
        raise InvalidArgument("problem: must be dpb.BilevelProblem(...)")
    if not isinstance(constants, Constants):
        raise InvalidArgument("constants: must be dpb.Constants(...), the bounds to test")
    if not callable(sample) or isinstance(sample, type):
        raise InvalidArgument(
            "sample: must be a function rng -> (x, y, upper_record, lower_record) of synthetic records; never use "
            "private ones (dpb.Records), because results on them are a leak"
        )
    trials = count("trials", trials, "it is the number of draws, and of candidates in each round (try 96)")
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise InvalidArgument(f"seed={seed!r}: must be a whole number >= 0; it makes the search reproducible (try 0)")
    rng = np.random.default_rng(int(seed))
    draws = [_checked_draw(problem, sample(rng)) for _ in range(trials)]
    pool = _stacked(draws)
    search = _Search(pool, jax.jit(jax.vmap(functools.partial(measured, problem))), rng)
    for _ in range(_ROUNDS):
        search.climb()
    return ConstantsReport(
        tuple(
            ConstantCheck(
                name=name,
                symbol=symbol,
                declared=float(getattr(constants, name)),
                found=search.best[name] * (-1 if name == "strong_convexity" else 1),
                witness=search.witness(name),
            )
            for name, symbol in _SYMBOLS.items()
        )
    )


class _Search:
    """A hill climb for the worst case of every constant."""

    def __init__(self, pool: dict[str, Tree], measure: Callable[..., Any], rng: Any) -> None:
        self.pool, self.measure, self.rng = pool, measure, rng
        self.trials = len(jax.tree.leaves(pool["x"])[0])
        self.best = dict.fromkeys(_SYMBOLS, -math.inf)
        self.incumbents: dict[str, Tree] = {}
        size = sum(leaf[0].size for leaf in jax.tree.leaves((pool["x"], pool["y"])))
        directions = rng.standard_normal((self.trials, DIRECTIONS, size)).astype(user_float())
        other = jax.tree.map(lambda leaf: np.roll(leaf, 1, 0), {"x": pool["x"], "y": pool["y"]})
        self._weigh({**pool, "other_x": other["x"], "other_y": other["y"], "directions": directions})

    def climb(self) -> None:
        """One round: the same number of children of the best candidate for every constant."""
        order = self.rng.permutation(len(_SYMBOLS))  # so that few trials also cover every constant over the rounds
        incumbents = [self.incumbents[name] for name in _SYMBOLS]
        parents = [incumbents[order[trial % len(order)]] for trial in range(self.trials)]
        children = jax.tree.map(lambda *leaves: np.stack(leaves), *parents)
        for name, source in (("x", "x"), ("y", "y"), ("other_x", "x"), ("other_y", "y")):
            # A third stay, a third move all the way, and a third move part of the way, mostly a small part.
            step = np.clip(self.rng.uniform(-1, 2, self.trials), 0, 1) ** 3
            children[name] = self._mixed(children[name], self._shuffled(source), step)
        for near, point in (("other_x", "x"), ("other_y", "y")):
            # Half of the second points move close to the first: steep regions are small.
            step = np.where(self.rng.uniform(size=self.trials) < 0.5, self.rng.uniform(0.9, 1, self.trials), 0)
            children[near] = self._mixed(children[near], children[point], step)
        for name in ("upper", "lower"):
            changed = np.where(self.rng.uniform(size=self.trials) < 0.5, 1.0, 0.0)
            children[name] = self._mixed(children[name], self._shuffled(name), changed)
        noise = self.rng.standard_normal(children["directions"].shape) * 0.05 / children["directions"].shape[-1] ** 0.5
        children["directions"] = (children["directions"] + noise).astype(user_float())
        self._weigh(children)

    def witness(self, name: str) -> tuple[Tree, ...]:
        """x, y and the record of the best candidate."""
        incumbent = self.incumbents[name]
        return incumbent["x"], incumbent["y"], incumbent["upper" if "upper" in name else "lower"]

    def _weigh(self, candidates: dict[str, Tree]) -> None:
        values, directions = jax.device_get(self.measure(candidates))
        candidates = {**candidates, "directions": directions}
        for name, value in values.items():
            value = np.where(np.isnan(value), np.inf, value)  # no bound holds where a derivative does not exist
            index = int(np.argmax(value))
            if name not in self.incumbents or value[index] > self.best[name]:
                self.best[name] = float(value[index])
                self.incumbents[name] = jax.tree.map(operator.itemgetter(index), candidates)

    def _shuffled(self, name: str) -> Tree:
        order = self.rng.integers(self.trials, size=self.trials)
        return jax.tree.map(lambda leaf: leaf[order], self.pool[name])

    @staticmethod
    def _mixed(start: Tree, end: Tree, step: Any) -> Tree:
        """Interpolate from start to end; shares 0 and 1 are exact, so that records stay records."""

        def mixed(old: Any, new: Any) -> Any:
            share = step.reshape(-1, *[1] * (old.ndim - 1))
            between = old + share * (new - old) if old.dtype.kind == "f" else old
            return np.where(share >= 1, new, np.where(share <= 0, old, between)).astype(old.dtype)

        return jax.tree.map(mixed, start, end)


def _checked_draw(problem: Levels, drawn: Any) -> dict[str, Tree]:
    if not isinstance(drawn, tuple) or len(drawn) != len(_PARTS):
        raise InvalidArgument(
            "sample: must return a tuple (x, y, upper_record, lower_record), one record of each level"
        )
    if drawn[2] is None and problem.loss("upper") is not None:
        raise InvalidArgument("sample: must draw an upper_record, because upper_loss reads one")
    for leaf in jax.tree.leaves(drawn):
        plain = isinstance(leaf, np.ndarray | np.generic | jax.Array | int | float)
        if not plain or np.asarray(leaf).dtype.kind not in "biuf":
            raise InvalidArgument(
                f"sample: must return arrays and numbers, not {type(leaf).__name__}; draw synthetic records "
                "(dpb.Records are private: results on them are a leak)"
            )
        if not np.all(np.isfinite(leaf)):
            raise InvalidArgument("sample: must draw finite numbers only; no constant holds at infinity")
    draw = dict(zip(_PARTS, drawn, strict=True))
    for name, domain in (("x", problem.domain), ("y", problem.lower_domain)):
        draw[name] = jax.tree.map(lambda leaf: np.asarray(leaf, user_float()), draw[name])
        if not contains(domain, draw[name]):
            which = "domain" if name == "x" else "lower_domain"
            raise InvalidArgument(f"sample: must draw {name} from the problem's {which}; constants hold there only")
    return draw


def _stacked(draws: list[dict[str, Tree]]) -> dict[str, Tree]:
    try:
        return jax.tree.map(lambda *leaves: np.stack(leaves), *draws)
    except ValueError as error:
        raise InvalidArgument("sample: must return the same structure and shapes in every draw") from error
