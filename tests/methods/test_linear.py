"""Linear models: matrix products give what the generic path gives, up to rounding, in every release of every method."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel import applications, planning
from dpbilevel.methods.derivatives import gradient_in_y
from dpbilevel.privacy import clipping
from dpbilevel.privacy.outer import Outer
from dpbilevel.privacy.release import Release
from dpbilevel.records import isolated_jax_config

COLUMNS, CLASSES, N = 5, 3, 300
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(N, COLUMNS)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, size=N).astype(np.int32)
TARGETS = {
    "logistic": LABELS % 2,
    "softmax": LABELS,
    "squared": ROWS[:, 0] + RNG.normal(size=N).astype(np.float32),
    "poisson": RNG.poisson(1.5, size=N).astype(np.float32),
    "pseudo-huber": ROWS[:, 0] + RNG.normal(size=N).astype(np.float32),
}


def _declared(loss):
    return {"columns": COLUMNS} | ({"classes": CLASSES} if loss == "softmax" else {})


# name -> the problem, and a record's arrays at both levels
PROBLEMS = {
    **{
        f"penalties, {loss}": (applications.regularization(loss, **_declared(loss)), (ROWS, TARGETS[loss]))
        for loss in applications.LOSSES
    },
    **{
        f"weights by source, {loss}": (
            applications.source_weights(loss, sources=CLASSES, **_declared(loss)),
            (ROWS, TARGETS[loss], LABELS),
        )
        for loss in ("logistic", "softmax")
    },
    "weights by class": (applications.class_weights(columns=COLUMNS, classes=CLASSES), (ROWS, LABELS)),
    "costs": (applications.class_weights(columns=COLUMNS, costs=[1.0, 5.0]), (ROWS, LABELS % 2)),
    "label noise": (applications.label_noise(columns=COLUMNS, classes=CLASSES), (ROWS, LABELS)),
}
SAME_CODE = ("penalties, squared", "penalties, poisson", "penalties, pseudo-huber", "weights by source, logistic")
TRACKING = dpb.Tracking(steps=40)
DP_BILEVEL = dpb.DPBilevel(
    inner=dpb.DPLocGD(strong_convexity=0.1, steps=3, rounds=1, clip_norm=0.5),
    penalty_weight=10.0,
    steps=2,
    step_size=0.1,
)


@functools.cache
def problem_of(name, generic):
    """The problem, or the same with losses that are plain functions."""
    problem = PROBLEMS[name][0]

    def plain(loss):
        return lambda x, y, record: loss(x, y, record)

    written_out = {"lower_loss": plain(problem.lower_loss), "upper_loss": plain(problem.upper_loss)}
    return dataclasses.replace(problem, **written_out) if generic else problem


def roles(name, both):
    """Records by role; the upper level of weights by source knows no sources."""
    arrays = PROBLEMS[name][1]
    if both:
        return {"both": arrays}
    return {"lower": tuple(leaf[100:] for leaf in arrays), "upper": tuple(leaf[:100] for leaf in arrays[:2])}


def in_memory(held):
    return {role: (jax.tree.map(jnp.asarray, tree), jnp.ones(len(tree[0]), bool)) for role, tree in held.items()}


@functools.cache
def planned(name, generic, method, adjacency, both):
    refit = dpb.Refit(steps=3) if isinstance(method, dpb.Tracking) else None
    sizes, budget = dpb.RecordShapes(**roles(name, both)), dpb.Budget(1.0, 1e-4, adjacency)
    with pytest.MonkeyPatch.context() as patch:  # releases are asked one by one: no program runs, and none is traced
        patch.setattr(planning, "check_traceable", lambda *program: None)
        return dpb.plan(problem_of(name, generic), sizes, budget, method=method, refit=refit)


def answers(name, generic, method, adjacency, both):
    """Answers of all releases of a plan at points that are drawn."""
    problem, plan = problem_of(name, generic), planned(name, generic, method, adjacency, both)
    rng = np.random.default_rng(1)
    keys = jnp.asarray(rng.integers(0, 2**32, size=(2, 2), dtype=np.uint32))
    arrays = in_memory(roles(name, both))
    found = {}
    for release in plan.releases:
        assert isinstance(release, Release)
        for index, point in enumerate(_points(problem, plan, release, rng)):
            with isolated_jax_config():
                found[release.name, index] = jax.tree.map(np.asarray, _answer(release, arrays, point, keys))
    return found


def _points(problem, plan, release, rng):
    x, y = (jax.tree.map(jnp.asarray, part) for part in problem.start)
    y, z = (y + jnp.asarray(rng.normal(size=y.shape), y.dtype) for _ in "yz")
    if release.name == "training":
        return [(x, y, jnp.float32(1.5), None)]
    if "pass" not in release.name:
        return [(x, y, z)] if release.name == "hypergradient" else [(x, y)]
    points = []
    for step in (0, 3, 20, 39):
        state = plan.program.start(x, y) | {"step": jnp.int32(step)}
        state |= {"d": state["d"] | {"point": z.ravel()}, "first": (x.ravel(), z.ravel())}
        points.append(plan.program.stages[0].query(state, state, 0))
    return points


@functools.partial(jax.jit, static_argnames="release")
def _answer(release, arrays, point, keys):
    with jax.enable_x64(False):
        return release.answer(arrays, point, keys)


def check_equal(name, method, adjacency="replace-one", both=False):
    linear, generic = (answers(name, generic, method, adjacency, both) for generic in (False, True))
    assert linear.keys() == generic.keys()
    for key in linear:
        for one, other in zip(*map(jax.tree.leaves, (linear[key], generic[key])), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-6, err_msg=str(key))


def heavy(*values):
    """Another combination of what the fast tests have."""
    return pytest.param(*values, marks=pytest.mark.heavy)


@pytest.mark.parametrize("name", [heavy(name) if name in SAME_CODE else name for name in PROBLEMS])
def test_products_give_what_vectors_give(name):
    check_equal(name, TRACKING)


@pytest.mark.parametrize(
    ("name", "adjacency"),
    [
        ("penalties, logistic", "replace-one"),
        ("label noise", "zero-out"),
        heavy("penalties, logistic", "zero-out"),
        heavy("label noise", "replace-one"),
        *(heavy("weights by class", adjacency) for adjacency in ("replace-one", "zero-out")),
    ],
)
def test_products_give_what_vectors_give_where_records_feed_both_levels(name, adjacency):
    check_equal(name, TRACKING, adjacency, both=True)


@pytest.mark.parametrize(
    ("both", "adjacency"),
    [(False, "replace-one"), (True, "zero-out"), heavy(False, "zero-out"), heavy(True, "replace-one")],
)
def test_products_give_what_vectors_give_in_the_paper_s_method(both, adjacency):
    check_equal("label noise", DP_BILEVEL, adjacency, both)


@pytest.mark.parametrize(
    "sampling", [dpb.Poisson(0.5), dpb.WithoutReplacement(40), heavy(dpb.WithReplacement(40))], ids=repr
)
def test_products_give_what_vectors_give_on_batches(sampling):
    check_equal("weights by source, softmax", dpb.Tracking(steps=40, sampling=sampling))


def test_every_application_of_linear_models_takes_matrix_products(monkeypatch):
    """All but representation learning; a loss that is written as a function takes none."""
    taken = []
    true = clipping.products_total
    monkeypatch.setattr(clipping, "products_total", lambda block, *rest: taken.append(1) or true(block, *rest))

    def releases_with_products(name, generic):
        problem, plan = problem_of(name, generic), planned(name, generic, TRACKING, "replace-one", False)
        taken.clear()
        arrays, keys = in_memory(roles(name, both=False)), jnp.zeros((2, 2), jnp.uint32)
        for release in plan.releases:
            point = _points(problem, plan, release, np.random.default_rng(0))[-1]
            with isolated_jax_config():
                jax.eval_shape(functools.partial(Release.answer, release, arrays), point, keys)
        return len(taken), sum(len(release.contributions) for release in plan.releases)

    for name in PROBLEMS:
        with_products, all_of_them = releases_with_products(name, generic=False)
        assert with_products == all_of_them, name
        if name not in SAME_CODE:
            assert releases_with_products(name, generic=True)[0] == 0


def test_a_solution_is_that_of_the_generic_path():
    name = "weights by source, softmax"
    records, budget = dpb.Records(**roles(name, both=False)), dpb.Budget(4.0, 1e-4)
    solutions = [
        dpb.solve(problem_of(name, generic), records, budget, method=TRACKING, seed=3, progress=False)
        for generic in (False, True)
    ]
    np.testing.assert_allclose(solutions[0].x, solutions[1].x, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(solutions[0].y, solutions[1].y, rtol=1e-3, atol=1e-3)


# ---- the declaration


def squared(row=lambda record: record["a"], loss=lambda x, score, record: 0.5 * (score - record["b"]) ** 2):
    return dpb.LinearLoss(row=row, loss=loss)


RECORD = {"a": np.array([1.0, 2.0, 3.0], np.float32), "b": np.float32(0.5)}


def test_a_linear_loss_is_a_loss():
    y = jnp.array([0.5, -1.0, 2.0])
    assert float(squared()(0.0, y, RECORD)) == pytest.approx(0.5 * (4.5 - 0.5) ** 2)
    np.testing.assert_allclose(jax.grad(squared(), 1)(0.0, y, RECORD), 4.0 * RECORD["a"])


def test_scores_of_several_models_are_one_product():
    models = jnp.ones(3), jnp.arange(6.0).reshape(3, 2), jnp.zeros(3)
    _, scores = squared().scores(RECORD, *models)
    assert [score.shape for score in scores] == [(), (2,), ()]
    np.testing.assert_allclose(scores[0], 6.0)
    np.testing.assert_allclose(scores[1], RECORD["a"] @ np.asarray(models[1]))
    traced = jax.make_jaxpr(lambda: squared().scores(RECORD, *models)[1])()
    assert str(traced).count("dot_general") == 1


@pytest.mark.parametrize(
    ("loss", "y", "message"),
    [
        (lambda: dpb.LinearLoss(row=None, loss=print), None, "row: must be a function"),
        (lambda: dpb.LinearLoss(row=print, loss=3), None, "loss: must be a function"),
        (lambda: squared(row=lambda record: record["b"]), np.zeros(3), "row: must return one vector"),
        (lambda: squared(row=lambda record: np.array([1, 2, 3])), np.zeros(3), "row: must return one vector"),
        (squared, np.zeros(4), "LinearLoss: y must be one array whose first axis has the length of a row, 3"),
        (squared, {"w": np.zeros(3)}, "LinearLoss: y must be one array"),
        (squared, 0.0, "LinearLoss: y must be one array"),
    ],
)
def test_declarations_that_do_not_fit_are_refused(loss, y, message):
    with pytest.raises(dpb.InvalidProblem, match=message):
        loss()(0.0, y, RECORD)


def test_a_user_s_linear_loss_is_solved_like_the_function():
    data = {"upper": {"a": ROWS[:100], "b": TARGETS["squared"][:100]}, "lower": {"a": ROWS, "b": TARGETS["squared"]}}

    def solution(loss):
        problem = dpb.BilevelProblem(
            upper_loss=loss,
            lower_loss=loss,
            lower_term=lambda x, y: 0.5 * jnp.exp(x) * jnp.sum(y**2),
            domain=dpb.Box(-4.0, 1.0),
        )
        start = (np.float32(0.0), np.zeros(COLUMNS, np.float32))
        return dpb.solve(
            problem, dpb.Records(**data), dpb.Budget(4.0, 1e-4), method=dpb.Tracking(steps=20), start=start, seed=0
        )

    declared, written = solution(squared()), solution(lambda x, y, record: 0.5 * (record["a"] @ y - record["b"]) ** 2)
    np.testing.assert_allclose(declared.y, written.y, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(declared.x, written.x, rtol=1e-3, atol=1e-3)


def test_gradients_of_linear_losses_are_outer_products():
    gradient = gradient_in_y(squared())(0.0, jnp.ones(3), RECORD)
    assert isinstance(gradient, Outer)
    np.testing.assert_allclose(gradient.dense(), jax.grad(squared(), 1)(0.0, jnp.ones(3), RECORD))
