"""Bilevel problems with known solutions, at any scale, which the default must solve.

A problem is drawn from a family by a seed, and stated in units: x, y and the losses may be multiplied by any number,
together with domain and start. The reference solution is computed in float64 by an independent solver
(`solver_reference`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpbilevel as dpb
from dpbilevel.constraints import ConvexSet


@dataclass(frozen=True, kw_only=True)
class Posed:
    """A problem, its data and its start."""

    name: str
    problem: dpb.BilevelProblem
    data: dict[str, Any]
    start: tuple[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Units:
    """The factors of x, y and the losses."""

    x: float = 1.0
    y: float = 1.0
    upper: float = 1.0
    lower: float = 1.0


PLAIN = Units()


def rescaled(posed: Posed, units: Units) -> Posed:
    """The same problem in other units: its solution is that of the original one, times ``units.x``."""
    problem = posed.problem

    def scaled(loss: Callable[..., Any] | None, by: float) -> Callable[..., Any] | None:
        if loss is None:
            return None

        def in_units(x: Any, y: Any, *record: Any) -> Any:
            return by * loss(_times(x, 1 / units.x), _times(y, 1 / units.y), *record)

        return in_units

    return Posed(
        name=posed.name,
        problem=dpb.BilevelProblem(
            upper_loss=scaled(problem.upper_loss, units.upper),
            upper_term=scaled(problem.upper_term, units.upper),
            lower_loss=scaled(problem.lower_loss, units.lower),
            lower_term=scaled(problem.lower_term, units.lower),
            domain=jax.tree.map(lambda one: _grown(one, units.x), problem.domain),
            public=problem.public,
            lower_scale=lambda x: problem.lower_scale(_times(x, 1 / units.x)),
            upper_trains=problem.upper_trains,
        ),
        data=posed.data,
        start=(_times(posed.start[0], units.x), _times(posed.start[1], units.y)),
    )


def _times(tree: Any, by: float) -> Any:
    return jax.tree.map(lambda leaf: leaf * by, tree)


def _grown(convex_set: ConvexSet, by: float) -> ConvexSet:
    match convex_set:
        case dpb.Box(lower=lower, upper=upper):
            return dpb.Box(by * np.asarray(lower), by * np.asarray(upper))
        case dpb.Ball(radius=radius):
            return dpb.Ball(by * radius)
        case dpb.Simplex(total=total):
            return dpb.Simplex(by * total)
    return convex_set


# ------------------------------------------------------------------------------------------------------------ families

DOMAINS: dict[str, Callable[[int], tuple[Any, Any]]] = {  # dimension -> domain and start
    "unconstrained": lambda d: (dpb.Unconstrained(), np.zeros(d)),
    "non-negative": lambda d: (dpb.NonNegative(), np.ones(d)),
    "box": lambda d: (dpb.Box(-0.6, 0.6), np.zeros(d)),
    "ball": lambda d: (dpb.Ball(0.8), np.zeros(d)),
    "simplex": lambda d: (dpb.Simplex(), np.full(d, 1 / d)),
}


def quadratic(
    n: int, seed: int, *, domain: str = "unconstrained", condition: float = 10.0, dimension: int = 3, reads: bool = True
) -> Posed:
    """g = |y - Bx - b_i|_A^2/2, f = |y - a_i|^2/2, with A of a given condition; ``reads``: B is in the lower loss."""
    draws = np.random.default_rng([seed, 1])
    turn = np.linalg.qr(draws.normal(size=(dimension, dimension)))[0]
    curvature = (turn * np.geomspace(1 / condition, 1.0, dimension)) @ turn.T
    stretch = np.linalg.qr(draws.normal(size=(dimension, dimension)))[0] * np.linspace(0.5, 1.5, dimension)
    coupling = (stretch @ np.linalg.qr(draws.normal(size=(dimension, dimension)))[0]).astype(np.float32)
    curvature = curvature.astype(np.float32)
    upper = draws.normal(size=dimension) + 0.3 * draws.normal(size=(n // 2, dimension))
    lower = draws.normal(size=dimension) + 0.3 * draws.normal(size=(n, dimension))
    convex_set, x = DOMAINS[domain](dimension)

    def lower_loss(x: Any, y: Any, record: Any) -> Any:
        residual = y - record - (coupling @ x if reads else 0)
        return 0.5 * residual @ curvature @ residual

    settings = f"{domain}, condition {condition:g}" + (f", {dimension} numbers" if dimension != 3 else "")
    return Posed(
        name=f"quadratic, {settings}{'' if reads else ', free'}",
        problem=dpb.BilevelProblem(
            upper_loss=lambda x, y, record: 0.5 * jnp.sum((y - record) ** 2),
            upper_term=None if reads else lambda x, y: 0.05 * jnp.sum((x + y) ** 2),
            lower_loss=lower_loss,
            lower_term=None if reads else lambda x, y: 0.5 * jnp.sum((y - coupling @ x) ** 2),
            domain=convex_set,
            public=[curvature, coupling],
        ),
        data={"upper": upper.astype(np.float32), "lower": lower.astype(np.float32)},
        start=(x, np.zeros(dimension)),
    )


def shared_records(n: int, seed: int, *, domain: str = "unconstrained") -> Posed:
    """The same records at both levels; x and y are pytrees, and the domain has two sets."""
    draws = np.random.default_rng([seed, 2])
    convex_set, first = DOMAINS[domain](2)
    records = np.array([0.8, -0.6]) + 0.3 * draws.normal(size=(n, 2))

    def lower_loss(x: Any, y: Any, record: Any) -> Any:
        return 0.5 * jnp.sum((y["a"] - x["part"] - record) ** 2) + (y["b"] - x["rest"] * record[0]) ** 2

    return Posed(
        name=f"shared records, {domain}",
        problem=dpb.BilevelProblem(
            upper_loss=lambda x, y, record: 0.5 * jnp.sum((y["a"] - 2 * record) ** 2) + (y["b"] - record[1]) ** 2,
            lower_loss=lower_loss,
            domain={"part": convex_set, "rest": dpb.Box(-3.0, 3.0)},
        ),
        data={"both": records.astype(np.float32)},
        start=({"part": first, "rest": 0.0}, {"a": np.zeros(2), "b": 0.0}),
    )


def _rows(n: int, seed: int, columns: int, decay: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Rows of norm at most one with decreasing importance of columns, and the coefficients of a linear model."""
    draws = np.random.default_rng([seed, 3])
    rows = draws.normal(size=(n, columns)) * np.geomspace(1, decay, columns)
    rows /= np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))
    coefficients = draws.normal(size=columns) * (np.arange(columns) < columns // 2)
    return rows.astype(np.float32), 4 * coefficients, draws


def penalties(
    n: int, seed: int, *, loss: str = "squared", each: bool = True, domain: str = "box", columns: int = 8
) -> Posed:
    """Ridge penalties of a linear model, one in total or one per column; as logarithms, or non-negative."""
    rows, coefficients, draws = _rows(n + n // 2, seed, columns, decay=0.3)
    scores = rows @ coefficients
    if loss == "squared":
        targets = scores + draws.normal(size=len(scores)) * 2
    else:
        targets = np.where(draws.uniform(size=len(scores)) < 1 / (1 + np.exp(-scores)), 1.0, -1.0)
    logarithmic = domain == "box"

    def point_loss(x: Any, y: Any, record: Any) -> Any:
        score = record[0] @ y
        return 0.5 * (score - record[1]) ** 2 if loss == "squared" else jax.nn.softplus(-record[1] * score)

    def penalty(x: Any, y: Any) -> Any:
        return 0.5 * jnp.sum((jnp.exp(x) if logarithmic else x + 1e-3) * y**2)

    number = columns if each else 1
    return Posed(
        name=f"{loss} penalties, {'each' if each else 'one'}, {domain}",
        problem=dpb.BilevelProblem(
            upper_loss=point_loss,
            lower_loss=point_loss,
            lower_term=penalty,
            domain=dpb.Box(-8.0, 2.0) if logarithmic else dpb.NonNegative(),
        ),
        data={
            "upper": (rows[n:], targets[n:].astype(np.float32)),
            "lower": (rows[:n], targets[:n].astype(np.float32)),
        },
        start=(np.zeros(number) if logarithmic else np.ones(number), np.zeros(columns)),
    )


def cleaning(
    n: int, seed: int, *, loss: str = "logistic", sources: int = 6, bad: int = 3, domain: str = "simplex"
) -> Posed:
    """Weights of sources, some of which have flipped targets; on a simplex, or as separate logits."""
    rows, coefficients, draws = _rows(n + n // 2, seed, 6)
    source = draws.integers(0, sources, n).astype(np.int32)
    scores = rows @ coefficients
    targets = np.sign(scores + draws.normal(size=len(scores))) if loss == "logistic" else scores
    targets[:n] *= np.where(source < bad, -1, 1)

    def point_loss(y: Any, row: Any, target: Any) -> Any:
        return jax.nn.softplus(-target * (row @ y)) if loss == "logistic" else 0.5 * (row @ y - target) ** 2

    def weight(x: Any, at: Any) -> Any:
        return sources * x[at] if domain == "simplex" else jax.nn.sigmoid(x[at])

    return Posed(
        name=f"cleaning, {loss}, {domain}",
        problem=dpb.BilevelProblem(
            upper_loss=lambda x, y, record: point_loss(y, *record),
            lower_loss=lambda x, y, record: weight(x, record[2]) * point_loss(y, record[0], record[1]),
            lower_term=lambda x, y: 0.005 * jnp.sum(y**2),
            domain=dpb.Simplex() if domain == "simplex" else dpb.Box(-6.0, 6.0),
        ),
        data={
            "upper": (rows[n:], targets[n:].astype(np.float32)),
            "lower": (rows[:n], targets[:n].astype(np.float32), source),
        },
        start=(np.full(sources, 1 / sources) if domain == "simplex" else np.zeros(sources), np.zeros(6)),
    )


def meta_learning(n: int, seed: int, *, tasks: int = 5, columns: int = 4) -> Posed:
    """A common centre of the coefficients of many tasks, towards which each is regularised (implicit MAML)."""
    rows, centre, draws = _rows(n + n // 2, seed, columns)
    task = draws.integers(0, tasks, n + n // 2).astype(np.int32)
    own = centre + 0.3 * draws.normal(size=(tasks, columns))
    targets = np.sum(rows * own[task], axis=1) + 0.3 * draws.normal(size=len(rows))

    def point_loss(x: Any, y: Any, record: Any) -> Any:
        return 0.5 * (record[0] @ y[record[2]] - record[1]) ** 2

    parts = (rows, targets.astype(np.float32), task)
    return Posed(
        name="meta-learning",
        problem=dpb.BilevelProblem(
            upper_loss=point_loss,
            lower_loss=point_loss,
            lower_term=lambda x, y: 0.1 / tasks * jnp.sum((y - x) ** 2),
        ),
        data={"upper": tuple(part[n:] for part in parts), "lower": tuple(part[:n] for part in parts)},
        start=(np.zeros(columns), np.zeros((tasks, columns))),
    )


def representation(n: int, seed: int, *, tasks: int = 5, columns: int = 6, dimension: int = 2) -> Posed:
    """A linear map shared by all tasks, with one head per task: not convex."""
    draws = np.random.default_rng([seed, 4])
    rows, _, _ = _rows(n + n // 2, seed, columns)
    task = draws.integers(0, tasks, n + n // 2).astype(np.int32)
    plane = np.linalg.qr(draws.normal(size=(columns, dimension)))[0]
    heads = 2 * draws.normal(size=(tasks, dimension))
    targets = np.sum((rows @ plane) * heads[task], axis=1) + 0.1 * draws.normal(size=len(rows))
    parts = (rows, np.clip(targets, -3, 3).astype(np.float32), task)
    problem = dpb.applications.shared_representation(columns=columns, dimension=dimension, tasks=tasks)
    return Posed(
        name="representation",
        problem=problem,
        data={"upper": tuple(part[n:] for part in parts), "lower": tuple(part[:n] for part in parts)},
        start=problem.start,
    )


@dataclass(frozen=True)
class Entry:
    """A row of the table: a family, its settings, and units."""

    family: Callable[..., Posed]
    settings: dict[str, Any] = field(default_factory=dict)
    units: Units = PLAIN

    def posed(self, n: int, seed: int) -> Posed:
        """The problem with n lower records."""
        return rescaled(self.family(n, seed, **self.settings), self.units)

    @property
    def name(self) -> str:
        """Its name in the table."""
        changed = [f"{key} x {value:g}" for key, value in vars(self.units).items() if value != 1]
        return ", ".join([self.family(4, 0, **self.settings).name, *changed])


def table() -> list[Entry]:
    """All problems of the benchmark."""
    entries = [
        Entry(quadratic, {"domain": domain, "condition": condition})
        for domain in DOMAINS
        for condition in (1.0, 10.0, 1000.0)
    ]
    scales = [Units(x=s) for s in (1e-3, 1e3)] + [Units(y=s) for s in (1e-3, 1e3)]
    scales += [Units(upper=1e3), Units(lower=1e3), Units(upper=1e-3, lower=1e-3), Units(x=1e-3, y=1e3, lower=1e-3)]
    entries += [Entry(quadratic, {"domain": domain}, units) for domain in ("unconstrained", "ball") for units in scales]
    entries += [Entry(quadratic, {"domain": domain, "reads": False}) for domain in DOMAINS]
    entries += [Entry(quadratic, {"domain": "simplex", "dimension": 12}), Entry(quadratic, {"dimension": 20})]
    entries += [Entry(shared_records, {"domain": domain}) for domain in DOMAINS]
    entries += [
        Entry(penalties, {"loss": loss, "each": each, "domain": domain})
        for loss in ("squared", "logistic")
        for each in (True, False)
        for domain in ("box", "non-negative")
    ]
    entries += [Entry(penalties, {"loss": "squared"}, Units(y=1e3, upper=1e-3, lower=1e-3))]
    entries += [
        Entry(cleaning, {"loss": loss, "domain": domain})
        for loss in ("logistic", "squared")
        for domain in ("simplex", "logits")
    ]
    entries += [
        Entry(cleaning, {"loss": "logistic"}, units) for units in (Units(y=1e-3), Units(x=1e3), Units(lower=1e3))
    ]
    entries += [Entry(meta_learning, {}, units) for units in (PLAIN, Units(x=1e3, y=1e3), Units(upper=1e3, lower=1e-3))]
    entries += [Entry(representation, {}, units) for units in (PLAIN, Units(x=1e-2), Units(upper=1e3, lower=1e3))]
    return entries
