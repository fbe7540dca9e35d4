"""The adversary of releases: changes one record and compares the movement of the answer with the sensitivity.

Random search over extreme records, then gradient ascent, on the real `Release.answer` with the same keys, so that the
noise cancels.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpbilevel.execution.program import Program, Stage
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.outer import Outer
from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.privacy.sampling import FullBatch, Poisson
from dpbilevel.records import isolated_jax_config


def identity(point, record):
    return record


def executed(release, records, size, point=0.0, seed=0):
    """All answers of a release of ``size`` numbers in a compiled program, one row each."""
    stage = Stage(
        release=release,
        uses_per_round=1,
        query=lambda state, carry, step: point,
        update=lambda state, carry, answer, step: ravel_pytree(answer)[0],
        begin=lambda state: state,
        end=lambda state, carry: carry,
    )
    program = Program(
        rounds=release.uses,
        stages=(stage,),
        start=lambda x, y: x,
        observe=lambda state: state,
        finish=lambda state: (state, state),
    )
    start = np.zeros(size, np.float32)
    return np.asarray(records.execute(program, Receipt([release]), KeySchedule(seed), start, program.rounds)[1])


class Unrounded(Release):
    """A release whose answer stays in float64: rounding it to the point's type is post-processing, not sensitivity."""

    def _example(self, records, point):
        example, _ = super()._example(records, point)
        return jax.ShapeDtypeStruct(example.shape, jnp.float64), lambda answer: answer


@dataclass(frozen=True)
class Case:
    """A release and a data set to attack; ``labels`` bounds the integer leaves of a record."""

    contributions: dict[str, Contribution]
    records: dict[str, Any]
    point: Any
    sampling: Any = dataclasses.field(default_factory=FullBatch)
    labels: int = 2
    reachable: float = 0.98  # the share of the sensitivity that the search has to reach: it has teeth
    slot: int = 0

    def release(self, adjacency, kind=Unrounded):
        return kind(
            name="attacked",
            contributions=self.contributions,
            noise_std=0.01,
            uses=1,
            sampling=self.sampling,
            adjacency=adjacency,
        )


def logistic(point, record):
    """The gradient of the logistic loss."""
    features, label = record
    margin = (2 * label - 1) * (features @ point["w"] + point["b"])
    slope = -(2 * label - 1) * jax.nn.sigmoid(-margin)
    return {"w": slope * features, "b": slope}


def squared(point, record):
    """The gradient of the squared loss: unbounded in the record, and cubic in it."""
    return jax.grad(lambda y: (record["a"] @ y - record["b"]) ** 2)(point)


def quadratic(point, record):
    """The gradient of ||y - record||^2 / 2."""
    return point - record


def singular(point, record):
    """NaN or infinite for some records: log, 1/x, sqrt and exp all leave the real line."""
    return {"a": jnp.log(record) + point, "b": 1 / record, "c": jnp.sqrt(record), "d": jnp.exp(record)}


def penalised(point, record):
    """A record of both roles: its upper gradient plus penalty times the difference of two lower gradients."""
    y, z = point
    gradient = jax.grad(lambda v: (record["a"] @ v - record["b"]) ** 2)
    return jax.tree.map(lambda f, g, h: f + 10.0 * (g - h), gradient(z), gradient(z), gradient(y))


def linear(point, record):
    """The gradient of the squared loss again, as an outer product."""
    return Outer(record["a"], 2 * (record["a"] @ point - record["b"]))


def apart(point, record):
    """A row and a coefficient that know nothing of each other: one of them may be finite where the other is not."""
    return Outer(record["a"], record["b"])


def linear_parts(point, record):
    """Several outer products of one row, a matrix among them, and numbers beside them."""
    row, score = record["a"], record["a"] @ point
    matrix = Outer(row, jnp.stack([score, record["b"]]))
    return {"gradient": Outer(row, jnp.tanh(score)), "matrix": matrix, "others": {"a": record["b"] ** 3, "b": point}}


def computed_row(point, record):
    """A row that is no array of the record."""
    row = record["a"] ** 2 - point * record["b"]
    return {"outer": Outer(row, jnp.sin(record["b"]))}


def two_rows(point, record):
    """Outer products of different rows, which have no common matrix product."""
    return [Outer(record["a"], record["b"]), Outer(record["a"] * point, jnp.stack([record["b"], record["a"][0]]))]


def features(count, dimension, seed=0):
    return np.random.default_rng(seed).normal(size=(count, dimension)).astype(np.float32)


def labelled(count, dimension, seed=0):
    return features(count, dimension, seed), np.arange(count) % 2


def targets(count, dimension, seed=0):
    return {"a": features(count, dimension, seed), "b": features(count, 1, seed + 1)[:, 0]}


Y3 = np.array([0.3, -1.0, 2.0], np.float32)


CASES = {
    "logistic": Case(
        {"lower": Contribution(logistic, 0.5, 50)},
        {"lower": labelled(50, 4)},
        {"w": features(1, 4)[0], "b": np.float32(0.1)},
    ),
    "squared": Case({"lower": Contribution(squared, 1.0, 20)}, {"lower": targets(20, 3)}, Y3),
    "quadratic, huge records": Case(
        {"lower": Contribution(quadratic, 1e-3, 5)}, {"lower": 1e30 * features(5, 3)}, np.zeros(3, np.float32)
    ),
    "singular": Case(
        {"lower": Contribution(singular, 2.0, 7)},
        {"lower": np.float32([1, 0, -1, 2, 1e-40, 3e38, 5])},
        np.float32(0.5),
        # log, 1/x and exp cannot all change sign, so two records' vectors are never opposite
        reachable=0.6,
    ),
    "two roles": Case(
        {"upper": Contribution(quadratic, 0.3, 6), "lower": Contribution(squared, 7.0, 30)},
        {"upper": features(6, 3), "lower": targets(30, 3)},
        Y3,
    ),
    "both": Case({"both": Contribution(penalised, 1.5, 12)}, {"both": targets(12, 3)}, (Y3, -Y3)),
    "poisson": Case({"lower": Contribution(squared, 1.0, 20)}, {"lower": targets(20, 3)}, Y3, Poisson(0.5)),
    "linear": Case({"lower": Contribution(linear, 1.0, 20)}, {"lower": targets(20, 3)}, Y3),
    "linear, poisson": Case({"lower": Contribution(linear, 1.0, 20)}, {"lower": targets(20, 3)}, Y3, Poisson(0.5)),
    "linear, apart": Case({"lower": Contribution(apart, 1e-3, 300)}, {"lower": targets(300, 3)}, Y3),
    "linear, parts": Case({"lower": Contribution(linear_parts, 0.7, 20)}, {"lower": targets(20, 3)}, Y3),
    "linear, computed row": Case(
        {"lower": Contribution(computed_row, 1.0, 20)}, {"lower": targets(20, 3)}, Y3, reachable=0.95
    ),
    "linear, two rows": Case({"lower": Contribution(two_rows, 1.0, 20)}, {"lower": targets(20, 3)}, Y3),
    "linear and not": Case(
        {"upper": Contribution(quadratic, 0.3, 6), "lower": Contribution(linear, 7.0, 30)},
        {"upper": features(6, 3), "lower": targets(30, 3)},
        Y3,
    ),
}


EXTREMES = np.array([0, 1e-45, 1e-38, 1e-30, 1e-6, 0.1, 1, 10, 1e6, 1e19, 1e30, 3e38, np.inf, np.nan])


def candidates(like, number, labels, rng):
    """Records to try: extreme, mixed, non-finite and plain ones, and each of them with every sign flipped."""

    def leaf(shape):
        if np.issubdtype(shape.dtype, np.integer):
            return rng.integers(0, labels, size=(2 * number, *shape.shape[1:]))
        size = (number, *shape.shape[1:])
        plain = rng.normal(size=size) * 10 ** rng.uniform(-3, 6, size=(number, *[1] * (len(size) - 1)))
        extreme = rng.choice(EXTREMES, size=size) * rng.choice([-1.0, 1.0], size=size)
        chosen = np.where((np.arange(number) % 2 == 0).reshape(-1, *[1] * (len(size) - 1)), plain, extreme)
        with np.errstate(over="ignore"):
            return np.concatenate([chosen, -chosen]).astype(np.float32)

    return jax.tree.map(leaf, like)


class Attack:
    """Changes one record of one role of a case and watches the answer, all in compiled code."""

    def __init__(self, case, role, kind=Unrounded, seed=0):
        self.case, self.role = case, role
        self.release = case.release("replace-one", kind)  # the answer is the same under both relations
        self.rng = np.random.default_rng(seed)
        with isolated_jax_config():
            schedule = KeySchedule(seed)
            self.keys = jnp.stack([jnp.asarray(schedule.keys(purpose, 0, 1)[0]) for purpose in ("noise", "batch")])

    def answer(self, record, present=True):
        """The answer with ``record`` in the slot; the same keys, so that the noise is the same."""
        slot, arrays = self.case.slot, self.case.records
        records = {role: (tree, jnp.ones(len(jax.tree.leaves(tree)[0]), bool)) for role, tree in arrays.items()}
        tree, everyone = records[self.role]
        tree = jax.tree.map(lambda leaf, new: jnp.asarray(leaf).at[slot].set(new), tree, record)
        records[self.role] = tree, everyone.at[slot].set(present)
        return self.release.answer(records, self.case.point, self.keys)

    def random_search(self, number=150):
        """The largest movement between any two of many records, and between any one and none."""
        tried = candidates(self.case.records[self.role], number, self.case.labels, self.rng)
        present = np.arange(2 * number) > 0
        with isolated_jax_config():
            answers = np.asarray(jax.jit(jax.vmap(self.answer))(tried, present))
        movements = np.linalg.norm(answers[:, None] - answers[None], axis=2)
        movements = np.where(np.isfinite(movements), movements, np.inf)
        return {"replace-one": float(movements[1:, 1:].max()), "zero-out": float(movements[0].max())}

    def gradient_ascent(self, restarts=6, steps=25):
        """The largest movement that normalised ascent on a pair of records finds, from several starts."""
        pairs = [
            jax.tree.map(lambda leaf: np.nan_to_num(np.clip(leaf[:restarts], -1e6, 1e6)), tree)
            for tree in (candidates(self.case.records[self.role], restarts, self.case.labels, self.rng) for _ in "ab")
        ]

        def movement(floats, whole):
            first, second = (_merged(f, w) for f, w in zip(floats, whole, strict=True))
            difference = self.answer(first) - self.answer(second)
            return jnp.sum(difference**2)

        def climb(floats, whole):
            def step(carry, _):
                floats, best = carry
                value, slope = jax.value_and_grad(movement)(floats, whole)
                slope = jax.tree.map(jnp.nan_to_num, slope)
                length = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(slope)))
                size = 1.0 + jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(floats)))
                scale = 0.3 * size / jnp.maximum(length, 1e-30)
                moved = jax.tree.map(lambda leaf, g: (leaf + scale * g).astype(leaf.dtype), floats, slope)
                return (moved, jnp.fmax(best, jnp.where(jnp.isfinite(value), value, jnp.inf))), None

            return jax.lax.scan(step, (floats, jnp.zeros((), jnp.float64)), length=steps)[0][1]

        floats, whole = zip(*(_separated(pair) for pair in pairs), strict=True)
        with isolated_jax_config():
            return {"replace-one": math.sqrt(float(jnp.max(jax.jit(jax.vmap(climb))(floats, whole))))}


def _separated(tree):
    """The floating leaves of a tree, which ascent moves, and the others, which it leaves alone."""
    leaves, structure = jax.tree.flatten(tree)
    is_float = [np.issubdtype(leaf.dtype, np.floating) for leaf in leaves]
    return (
        [leaf for leaf, floating in zip(leaves, is_float, strict=True) if floating],
        _Rest([leaf for leaf, floating in zip(leaves, is_float, strict=True) if not floating], structure, is_float),
    )


def _merged(floats, rest):
    floats, others = iter(floats), iter(rest.leaves)
    return jax.tree.unflatten(rest.structure, [next(floats if floating else others) for floating in rest.is_float])


@jax.tree_util.register_pytree_node_class
@dataclass
class _Rest:
    leaves: list
    structure: Any
    is_float: list

    def tree_flatten(self):
        return (self.leaves,), (self.structure, tuple(self.is_float))

    @classmethod
    def tree_unflatten(cls, static, children):
        return cls(children[0], static[0], list(static[1]))


def largest_ratios(case, kind=Unrounded, search=Attack.random_search):
    """Relation to the largest movement found over all roles, as a share of the claimed sensitivity.

    A release that keeps its word stays at or below 1.
    """
    ratios: dict[str, float] = {}
    for role in case.contributions:
        for adjacency, movement in search(Attack(case, role, kind)).items():
            claimed = case.release(adjacency, kind).sensitivity(role)
            ratios[adjacency] = max(ratios.get(adjacency, 0.0), movement / claimed)
    return ratios


def check_sensitivity(case, kind=Unrounded, search=Attack.random_search):
    """The property itself, for the release and for its mutants. 1e-9: the norm of the difference is rounded as well."""
    ratios = largest_ratios(case, kind, search)
    assert max(ratios.values()) <= 1 + 1e-9, ratios
    return ratios
