"""Small runs of every method, baseline, application and estimator, with their released values; for `golden`."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import dpbilevel as dpb
from dpbilevel import applications, baselines, estimators

N = 60
BUDGET, ZERO_OUT, FREE = dpb.Budget(2.0, 1e-4), dpb.Budget(2.0, 1e-4, "zero-out"), dpb.Budget(math.inf)
SHORT = dpb.Refit(steps=5)
SEED = 7
Values = dict[str, Any]
CASES: dict[str, Callable[[], Values]] = {}

# ------------------------------------------------------------------------------------------------- what is released


def spend(privacy: dpb.Privacy) -> Values:
    values: Values = {"epsilon": privacy.epsilon(), "delta": privacy.budget.delta, "mu": privacy.mu}
    for role, charges in privacy.charges.items():
        values[f"epsilon of {role}"] = privacy.epsilon(role=role)
        for at, charge in enumerate(charges):
            values[f"charge {role} {at}"] = [charge.ratio, charge.mu, charge.uses, charge.records, charge.clip]
    return values


def released(solution: dpb.Solution) -> Values:
    # Only the numbers of the plan: texts may change.
    plan = {name: value for name, (value, _) in solution.parameters.items() if isinstance(value, int | float)}
    parts = {"x": solution.x, "y": solution.y, "history": dict(solution.history), "plan": plan}
    return parts | {"spend": spend(solution.privacy)}


def fitted(model: Any, *rows: Any, **more: Any) -> Values:
    kept = {name: value for name, value in vars(model).items() if name.endswith("_") and not name.startswith("_")}
    values = {name: value for name, value in kept.items() if name not in ("solution_", "privacy_")}
    asked = [name for name in ("predict", "predict_proba", "decision_function") if hasattr(model, name)]
    predictions = {name: getattr(model, name)(*rows, **more) for name in asked}
    whole = {"solution_": released(model.solution_), "privacy_": spend(model.privacy_)}
    return values | predictions | whole


# ------------------------------------------------------------------------------------------------ problems and data

_draws = np.random.default_rng(0)
_source = np.arange(N) % 3
LINE = np.linspace(-1, 1, N)
ROWS = (_draws.normal(size=(N, 4)) / 4).astype(np.float32)
ROWS /= np.maximum(1, np.linalg.norm(ROWS, axis=1, keepdims=True))
LABELS = (ROWS[:, 0] + 0.2 * _draws.normal(size=N) > 0).astype(np.int32)
THREE = _draws.integers(0, 3, N).astype(np.int32)
NUMBERS = (ROWS[:, 0] + 0.1 * _draws.normal(size=N)).astype(np.float32)
PLACES = np.array(["east", "west", "north"])[_source]
UPPER, LOWER = slice(0, 20), slice(20, N)

# Three sources of numbers, weights on a simplex, a model with one parameter: every method can solve it.
SOURCES = dpb.BilevelProblem(
    upper_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
    lower_loss=lambda x, y, record: 1.5 * x[record["source"]] * (y - record["value"]) ** 2,
    lower_term=lambda x, y: 0.05 * y**2,
    domain=dpb.Simplex(),
)
START = (np.full(3, 1 / 3), 0.0)
BOTH = dpb.BilevelProblem(  # the same records at both levels
    upper_loss=lambda x, y, record: 0.5 * jnp.sum((y - 2 * record) ** 2),
    lower_loss=lambda x, y, record: 0.5 * jnp.sum((y - x - record) ** 2),
)
NO_UPPER = dpb.BilevelProblem(
    upper_term=lambda x, y: 0.5 * jnp.sum((x + y - 1) ** 2),
    lower_loss=lambda x, y, record: 0.5 * jnp.sum((y - record) ** 2),
)


def sources() -> dpb.Records:
    return dpb.Records(upper=LINE, lower={"source": _source, "value": LINE - (_source == 1)})


def train(x: Any, lower: Any, upper: Any, upper_weight: float) -> Any:
    """An external trainer; it adds no noise, and its cost is declared."""
    return np.asarray(np.clip(lower["value"], -1, 1) @ x[lower["source"]] / N)


# ------------------------------------------------------------------------------------------------------------- cases


def solved(name: str, method: Any, budget: dpb.Budget = BUDGET, **options: Any) -> None:
    """A case of a method, or of a baseline with its own ``solve``, on the sources."""
    options = {"start": START, "seed": SEED, "progress": False} | options
    run = method.solve if hasattr(method, "solve") else lambda *given, **more: dpb.solve(*given, method=method, **more)
    CASES[name] = lambda: released(run(SOURCES, sources(), budget, **options))


def posed(
    name: str, problem: dpb.BilevelProblem, records: Callable[[], dpb.Records], budget: dpb.Budget = BUDGET, **more: Any
) -> None:
    """A case of a problem."""
    options = {"method": dpb.Tracking(steps=10), "refit": SHORT, "seed": SEED, "progress": False} | more
    CASES[name] = lambda: released(dpb.solve(problem, records(), budget, **options))


def application(name: str, problem: dpb.BilevelProblem, *columns: Any, upper: int | None = None, **more: Any) -> None:
    """A case of an application, whose upper records have only the first ``upper`` columns."""
    above, below = tuple(c[UPPER] for c in columns[:upper]), tuple(c[LOWER] for c in columns)
    posed(f"application {name}", problem, lambda: dpb.Records(upper=above, lower=below), **more)


def estimator(name: str, kind: Any, y: Any, rows: Any = ROWS, fit: Values | None = None, **settings: Any) -> None:
    """A case of an estimator; ``fit`` has further arguments of its fit."""
    settings = {"epsilon": 2.0, "random_state": SEED, "method": dpb.Tracking(steps=10)} | settings
    asked = {"tasks": PLACES[:5]} if "tasks" in (fit or {}) else {}
    CASES[f"estimator {name}"] = lambda: fitted(kind(**settings).fit(rows, y, **(fit or {})), rows[:5], **asked)


def methods() -> None:
    for name, sampling in {
        "full batch": dpb.FullBatch(),
        "Poisson": dpb.Poisson(0.3),
        "without replacement": dpb.WithoutReplacement(20),
        "with replacement": dpb.WithReplacement(20),
    }.items():
        for budget in (BUDGET, ZERO_OUT):
            case = f"Tracking {name} {budget.adjacency}"
            solved(case, dpb.Tracking(steps=40, sampling=sampling), budget, refit=SHORT)
    solved("Tracking defaults", dpb.Tracking())
    solved("Tracking without refit", dpb.Tracking(steps=40), refit=None)
    solved("Tracking without privacy", dpb.Tracking(steps=5), FREE)
    solved("Refit", dpb.Refit(steps=40), refit=None)
    inner, outer = {"strong_convexity": 0.1, "steps": 5, "rounds": 2}, {"step_size": 0.1, "steps": 4}
    loc = dpb.DPLocGD(**inner)
    for budget in (BUDGET, ZERO_OUT, FREE):
        solved(f"DPBilevel DPLocGD {budget.adjacency} {budget.epsilon:g}", dpb.DPBilevel(inner=loc, **outer), budget)
    solved("DPBilevel with refit", dpb.DPBilevel(inner=loc, **outer), refit=SHORT)
    solved("DPBilevel paper", dpb.DPBilevel(inner=loc, split="paper", output="last", warm_start=False, **outer))
    for name, sampling in {"Poisson": dpb.Poisson(0.3), "without replacement": dpb.WithoutReplacement(20)}.items():
        minibatch = dpb.DPLocSGD(**inner, sampling=sampling)
        solved(f"DPBilevel DPLocSGD {name}", dpb.DPBilevel(inner=minibatch, sampling=sampling, **outer))
    for box in (
        dpb.BlackBox(train=train, event=dpb.GaussianDP(0.01)),
        dpb.BlackBox(train=train, event=dpb.ApproximateDP(0.01, 1e-7)),
    ):
        solved(f"DPBilevel BlackBox {type(box.event).__name__}", dpb.DPBilevel(inner=box, **outer))
    both, origin = lambda: dpb.Records(both=ROWS), (np.zeros(4), np.zeros(4))
    posed("Tracking both roles", BOTH, both, start=origin)
    posed("DPBilevel both roles", BOTH, both, start=origin, method=dpb.DPBilevel(inner=loc, **outer), refit=None)
    posed("Tracking no upper records", NO_UPPER, lambda: dpb.Records(lower=ROWS), start=origin)
    for name, method in {"Tracking": dpb.Tracking(steps=10), "DPBilevel": dpb.DPBilevel(inner=loc, **outer)}.items():
        solved(f"exact noise {name}", method, seed=None, noise="exact", refit=SHORT)


def others() -> None:
    candidates = [np.array([1.0, 0.0, 0.0]), np.array([0.5, 0.0, 0.5]), np.array([0.2, 0.3, 0.5])]
    scored = {"candidates": candidates, "score_range": (0.0, 2.0), "training": SHORT}
    solved("FixedDefault", baselines.FixedDefault(training=SHORT))
    solved("UpperRecordsOnly", baselines.UpperRecordsOnly(training=SHORT))
    solved("NaiveGridSearch", baselines.NaiveGridSearch(**scored))
    for shape in (0.0, 1.0, math.inf):
        search = baselines.PrivateRandomSearch(mean_runs=4.0, shape=shape, **scored)
        solved(f"PrivateRandomSearch shape {shape:g}", search)
    screen = baselines.ScreenSources(source=lambda record: record["source"], loss_range=(0.0, 2.0), training=SHORT)
    solved("ScreenSources", screen)
    best = {"x": candidates[1], "score": lambda x, y: float(abs(y)), "settings": (SHORT, dpb.Refit(steps=8))}
    solved("OracleHyperparameters", baselines.OracleHyperparameters(**best, repeats=2))
    logistic, ridge = applications.regularization(columns=4), {"loss": "squared", "columns": 4, "target_bound": 1.0}
    application("regularization logistic", logistic, ROWS, LABELS)
    grouped = applications.regularization(**ridge, groups=[0, 0, 1, -1])
    application("regularization squared groups", grouped, ROWS, NUMBERS)
    application("regularization softmax", applications.regularization("softmax", columns=4, classes=3), ROWS, THREE)
    alone = {"start": (np.full(1, -8.0), np.zeros(4)), "refit": None}
    perturbed = applications.regularization(columns=4, row_norm=1.0)
    application(
        "logistic ObjectivePerturbation", perturbed, ROWS, LABELS, **alone, method=baselines.ObjectivePerturbation()
    )
    statistics = applications.regularization(**ridge, row_norm=1.0)
    application("squared AdaSSP", statistics, ROWS, NUMBERS, **alone, method=baselines.AdaSSP())
    weights = applications.source_weights(columns=4, sources=3)
    application("source_weights", weights, ROWS, LABELS, _source.astype(np.int32), upper=2)
    application("class_weights", applications.class_weights(columns=4, costs=[1.0, 3.0]), ROWS, LABELS)
    application("label_noise", applications.label_noise(columns=4, classes=3), ROWS, THREE)
    shared = applications.shared_representation(columns=4, dimension=2, tasks=3, hidden=3)
    application("shared_representation hidden", shared, ROWS, NUMBERS, _source.astype(np.int32))
    for way in ("certified", "released"):
        method = dpb.DPBilevel(inner=dpb.DPLocGD(steps=5), penalty_weight=1e5, steps=4, clip_norm=way)
        columns = ROWS, LABELS, _source.astype(np.int32)
        application(f"source_weights DPBilevel {way}", weights, *columns, upper=2, method=method, refit=None)
    held_out = {"metric": ("accuracy", "loss", "calibration"), "bins": 4}
    for noise, seed in (("float", SEED), ("exact", None)):
        CASES[f"evaluate {noise}"] = lambda noise=noise, seed=seed: evaluated(seed=seed, noise=noise, **held_out)


def evaluated(**options: Any) -> Values:
    class Public:
        classes_ = np.array([0, 1])

        def predict_proba(self, rows: Any) -> Any:
            likely = 1 / (1 + np.exp(-4 * np.asarray(rows, np.float64)[:, 0]))
            return np.stack([1 - likely, likely], axis=1)

        def predict(self, rows: Any) -> Any:
            return (np.asarray(rows)[:, 0] > 0).astype(int)

    found = dpb.evaluate(Public(), (ROWS, LABELS), BUDGET, **options)
    return {"values": dict(found.values), "errors": dict(found.standard_errors), "spend": spend(found.privacy)}


def models() -> None:
    classes, numbers = {"data_norm": 1.0, "classes": [0, 1]}, {"data_norm": 1.0, "target_range": (-1.5, 1.5)}
    named, places = {"source_names": ["east", "west", "north"]}, {"sources": PLACES}
    logistic, ridge = estimators.DPLogisticRegressionCV, estimators.DPRidgeCV
    weighted = {"classifier": (estimators.DPSourceWeightedClassifier, LABELS, classes | named),
                "regressor": (estimators.DPSourceWeightedRegressor, NUMBERS, numbers | named)}  # fmt: skip
    estimator("logistic", logistic, LABELS, **classes)
    estimator("logistic defaults", logistic, LABELS, **classes, method=None)
    estimator("logistic three classes", logistic, THREE, data_norm=1.0, classes=[2, 0, 1], method=SHORT)
    estimator("logistic nothing declared", logistic, LABELS, method=SHORT)
    estimator("logistic bounds zero-out", logistic, LABELS, classes=[0, 1], bounds=(-0.5, 0.5), adjacency="zero-out")
    estimator("logistic exact noise", logistic, LABELS, **classes, method=SHORT, random_state=None, noise="exact")
    estimator("logistic without privacy", logistic, LABELS, **classes, method=SHORT, epsilon=math.inf)
    estimator("ridge", ridge, NUMBERS, **numbers)
    estimator("ridge groups", ridge, NUMBERS, **numbers, groups=["a", "b", "a", "b"])
    holes = np.where(np.arange(4 * N).reshape(N, 4) % 31 == 0, np.nan, ROWS)
    estimator("ridge missing cells", ridge, NUMBERS, holes, **numbers, invalid="zero", method=SHORT)
    encoder = dpb.BoundedEncoder(ranges={0: (-1, 1), 1: (-1, 1)}, categories={2: ["east", "west"]})
    table = {0: ROWS[:, 0], 1: ROWS[:, 1], 2: PLACES}
    encoded = encoder.fit_transform(table)
    CASES["encoder"] = lambda: {"rows": np.asarray(encoded), "norm": encoded.data_norm}
    estimator("logistic encoded", logistic, LABELS, encoded, classes=[0, 1], method=SHORT)
    estimator("ridge encoded", ridge, NUMBERS, encoded, target_range=(-1.5, 1.5), method=SHORT)
    for name, (kind, y, declared) in weighted.items():
        estimator(f"weighted {name}", kind, y, fit=places, **declared)
        apart = {"sources": PLACES[LOWER], "validation": (ROWS[UPPER], y[UPPER])}
        estimator(f"weighted {name} validation apart", kind, y[LOWER], ROWS[LOWER], fit=apart, **declared, method=SHORT)
    multitask = numbers | {"task_names": ["east", "west", "north"]}
    estimator("multitask", estimators.DPMultiTaskRidge, NUMBERS, fit={"tasks": PLACES}, **multitask)


methods()
others()
models()
