"""No record moves an answer of tracking or of the final training by more than is charged for."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.broken_sums import rows_not_in_metric, rows_not_zeroed, rows_without_norms
from support.metrics import random_metric
from support.problems import CASES

import dpbilevel as dpb
from dpbilevel.methods.preconditioned import MOMENTS
from dpbilevel.methods.scale import SCALE
from dpbilevel.privacy.release import Release
from dpbilevel.records import isolated_jax_config

BUDGET = dpb.Budget(1.0, 1e-4)
SCALES = (1.0, (1.0, 1.0)), (0.5, (1e-3, 1e-6)), (2.0, (50.0, 10.0))  # factors of a model, and clips of derivatives


@dataclasses.dataclass(frozen=True)
class Linear:
    """A problem of a linear model, and rows for it: its releases are sums of outer products."""

    problem: dpb.BilevelProblem
    data: dict[str, Any]

    @property
    def start(self):
        return self.problem.start

    def records(self):
        return dpb.Records(**self.data)


def _rows(*roles):
    """Rows, labels of three classes and three sources, as many of these as the role has."""
    rng = np.random.default_rng(0)
    leaves = (rng.normal(size=(150, 4)).astype(np.float32), np.arange(150) % 3, np.arange(150) // 3 % 3)
    return {role: leaves[:number] for role, number in roles}


LINEAR = {
    "penalties": lambda: Linear(
        dpb.applications.regularization("softmax", columns=4, classes=3), _rows(("lower", 2), ("upper", 2))
    ),
    "weights": lambda: Linear(
        dpb.applications.source_weights("squared", columns=4, sources=3), _rows(("lower", 3), ("upper", 2))
    ),
    "bounded penalties": lambda: Linear(
        dpb.applications.regularization("softmax", columns=4, classes=3, row_norm=1.0),
        _rows(("lower", 2), ("upper", 2)),
    ),
    "bounded weights": lambda: Linear(
        dpb.applications.source_weights("squared", columns=4, sources=3, row_norm=1.0),
        _rows(("lower", 3), ("upper", 2)),
    ),
    "label noise": lambda: Linear(dpb.applications.label_noise(columns=4, classes=3), _rows(("both", 2))),
}


@pytest.mark.parametrize("name", [*CASES, *LINEAR])
def test_no_record_moves_an_answer_by_more_than_the_sensitivity(name):
    """Every release of tracking and of the final training, at random points, for ordinary, huge and broken records."""
    check_answers((CASES | LINEAR)[name]())


@pytest.mark.parametrize(
    ("mutant", "name"),
    [(rows_without_norms, "penalties"), (rows_not_zeroed, "penalties"), (rows_not_in_metric, "bounded penalties")],
)
def test_broken_sums_of_outer_products_are_noticed(monkeypatch, mutant, name):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_answers(LINEAR[name]())


def check_answers(case):
    problem = dataclasses.replace(case.problem, upper_trains=True)
    sizes = case.records().sizes
    plan = dpb.plan(problem, sizes, BUDGET, method=dpb.Tracking(steps=40), start=case.start, refit=dpb.Refit(steps=3))
    rng = np.random.default_rng(1)
    keys = jnp.asarray(rng.integers(0, 2**32, size=(2, 2), dtype=np.uint32))
    for release in plan.releases:
        assert isinstance(release, Release)
        for role in release.contributions:
            for value in (-50.0, 1e30, np.nan):
                for point in _points(plan, case, release, rng):
                    moved = _movement(case, release, role, value, keys, point)
                    assert moved <= release.sensitivity(role) * (1 + 1e-6)


def _points(plan, case, release, rng):
    """Random points: of passes that search, look for the largest curvature, work and judge, or of the training."""
    x, y = (jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), part) for part in case.start)
    if release.name == "training":
        y = jax.tree.map(lambda leaf: leaf + jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), y)
        metrics = [random_metric(rng, y.shape[0]) for _ in range(3)] if _has_metric(plan) else [None]
        return [(x, y, jnp.float32(1.5), metric) for metric in metrics]
    if release.name == MOMENTS:
        return [(x, y)]
    if release.name == SCALE:
        y = jnp.asarray(rng.normal(size=y.shape), y.dtype)
        return [(x, y, jnp.float32(factor), jnp.array(clips, jnp.float32)) for factor, clips in SCALES]
    points = []
    for step in (0, 3, 20, 39):
        state = plan.program.start(x, y) | {"step": jnp.int32(step)}
        y_state, d_state = (
            state[name] | {"point": jnp.asarray(rng.normal(size=state[name]["point"].shape), jnp.float32)}
            for name in ("y", "d")
        )
        state = state | {"y": y_state, "d": d_state}
        points.append(plan.program.stages[0].query(state, state, 0))
    return points


def _has_metric(plan):
    return any(release.name == MOMENTS for release in plan.releases)


def _movement(case, release, role, value, keys, point) -> float:
    arrays = {name: jax.tree.map(np.array, tree) for name, tree in case.data.items()}
    present = {name: np.ones(len(jax.tree.leaves(tree)[0]), bool) for name, tree in arrays.items()}
    changed = {name: jax.tree.map(np.copy, tree) for name, tree in arrays.items()}
    for leaf in jax.tree.leaves(changed[role]):
        if np.issubdtype(leaf.dtype, np.floating):
            leaf[0] = value
    answers = []
    for data in (arrays, changed):
        held = {
            name: (jax.tree.map(lambda leaf: jnp.asarray(leaf, _narrow(leaf)), tree), jnp.asarray(present[name]))
            for name, tree in data.items()
        }
        with isolated_jax_config():
            answers.append(jax.tree.map(np.asarray, _answer(release, held, point, keys)))
    differences = [a.astype(float) - b for a, b in zip(*map(jax.tree.leaves, answers), strict=True)]
    return math.sqrt(sum(float(np.sum(d**2)) for d in differences))


@functools.partial(jax.jit, static_argnames="release")
def _answer(release, held, point, keys):
    with jax.enable_x64(False):
        return release.answer(held, point, keys)


def _narrow(leaf) -> str:
    return "float32" if np.issubdtype(leaf.dtype, np.floating) else "int32"
