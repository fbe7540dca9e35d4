"""Plans: made from sizes alone, explained number by number; and every refusal comes before the charge."""

import fractions
import logging
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel import records as records_module
from dpbilevel.errors import InvalidArgument, InvalidProblem, PrivacyLeakWarning
from dpbilevel.planning import checked_start

N = 40
SENTINEL = 987654.0  # what every record of this file holds: no message may contain it
BUDGET = dpb.Budget(2.0, 1e-4)
CONSTANTS = {
    "upper_lipschitz": 1.0,
    "upper_smoothness": 1.0,
    "lower_lipschitz": 1.0,
    "lower_smoothness": 1.5,
    "lower_hessian_lipschitz": 0.0,
    "strong_convexity": 1.0,
}


def squared(x, y, record):
    return 0.5 * (y - record) ** 2


def make_problem(**changes):
    parts = {"upper_term": lambda x, y: 0.5 * (x + y - 1) ** 2, "lower_loss": squared}
    return dpb.BilevelProblem(**{**parts, **changes})


def make_method(inner=None, **changes):
    inner = dpb.DPLocGD(**{"strong_convexity": 1.0, "steps": 2, "rounds": 1, **(inner or {})})
    return dpb.DPBilevel(**{"inner": inner, "step_size": 0.1, "steps": 2, **changes})


def arguments(**changes):
    """Everything `plan` and `solve` take, by name; ``arrays`` are the records by role."""
    return {
        "problem": make_problem(),
        "arrays": {"lower": np.full(N, SENTINEL)},
        "budget": BUDGET,
        "method": make_method(),
        "start": (0.0, 0.0),
        **changes,
    }


def by_plan(ledger, *, problem, arrays, budget, method, start):
    return dpb.plan(problem, dpb.RecordShapes(**arrays), budget, method=method, start=start)


def by_solve(ledger, *, problem, arrays, budget, method, start):
    return dpb.solve(problem, dpb.Records(**arrays), budget, method=method, start=start, ledger=ledger, progress=False)


through_both = pytest.mark.parametrize("run", [by_plan, by_solve], ids=["plan", "solve"])


def messages(error):
    """An error's message with those of everything it was raised from."""
    found = []
    while error is not None:
        found += [str(error), repr(error), *getattr(error, "__notes__", ())]
        error = error.__cause__ or error.__context__
    return "\n".join(found)


# --------------------------------------------------------------------------------------------- what a plan needs


def shapes(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_a_plan_needs_sizes_only():
    problem = make_problem(upper_loss=lambda x, y, r: (y - r["a"] @ r["a"]) ** 2 * x)
    sizes = dpb.RecordShapes(upper={"a": shapes(7, 3), "id": shapes(7, dtype="int32")}, lower=shapes(N))
    planned = dpb.plan(problem, sizes, BUDGET, method=make_method(), start=(0.0, 0.0))
    assert planned.privacy.epsilon() == pytest.approx(2.0, abs=1e-6)
    assert sorted(planned.privacy.charges) == ["lower", "upper"]


def test_a_plan_for_more_records_than_fit_in_memory():
    problem = make_problem(lower_loss=lambda x, y, r: jnp.exp(x) * (y - r[0] @ r[0] * r[1]) ** 2)
    sizes = dpb.RecordShapes(lower=(shapes(10**9, 1000), shapes(10**9, dtype="int8")))
    planned = dpb.plan(problem, sizes, dpb.Budget(1.0, 1e-12), method=make_method(), start=(0.0, 0.0))
    assert planned.sizes.count("lower") == 10**9
    assert [release.name for release in planned.releases] == ["lower solve", "penalised solve", "hypergradient"]


def test_sizes_of_records_and_sizes_without_records_plan_the_same():
    problem = make_problem()
    sizes = dpb.Records(lower=np.full(N, SENTINEL)).sizes
    plans = [
        dpb.plan(problem, s, BUDGET, method=make_method(), start=(0.0, 0.0))
        for s in (sizes, dpb.RecordShapes(lower=shapes(N)))
    ]
    assert plans[0].explain() == plans[1].explain()
    assert "987654" not in plans[0].explain() + repr(plans[0])


class Halfspace:
    """A set of the user's own, whose bound is a NumPy number."""

    def project(self, tree):
        return jax.tree.map(lambda leaf: jnp.minimum(leaf, np.float64(1.0)), tree)


# Created for each test: JAX caches the buffer of a NumPy array, and does not notice a change of precision.
SETS = {
    "everything": dpb.Unconstrained,
    "non-negative": dpb.NonNegative,
    "box": lambda: dpb.Box(0, 1),
    "box of arrays": lambda: dpb.Box(np.zeros(2), np.ones(2)),
    "ball": lambda: dpb.Ball(1),
    "ball, NumPy radius": lambda: dpb.Ball(np.float64(1.0)),
    "simplex": dpb.Simplex,
    "halfspace": Halfspace,
}


@pytest.mark.parametrize(
    ("part", "name", "x64"),
    [(part, name, x64) for part in ("domain", "lower_domain") for name in SETS for x64 in (False, True)],
)
def test_every_set_can_be_the_domain_of_either_level(part, name, x64):
    problem = make_problem(
        upper_term=lambda x, y: jnp.sum(x**2) + jnp.sum(y**2),
        lower_loss=lambda x, y, r: jnp.sum((y - r) ** 2),
        **{part: SETS[name]()},
    )
    half = np.full(2, 0.5, np.float32)
    with jax.enable_x64(x64):
        planned = by_plan(None, **arguments(problem=problem, start=(half, half)))
    assert planned.privacy.epsilon() == pytest.approx(2.0)


# -------------------------------------------------------------------------------------------------------- the start


@pytest.fixture(scope="module")
def started():
    """A problem with a start of its own, and a method that returns the x at which it starts."""
    parts = {"upper_term": lambda x, y: jnp.sum(x**2) + y, "lower_loss": squared, "start": (np.full(3, 0.25), 0.5)}
    return dpb.BilevelProblem(**parts), {"method": dpb.Refit(steps=2), "refit": None}


def test_the_start_is_the_problems_own_unless_another_is_given(started):
    problem, _ = started
    x, y = checked_start(problem, None)
    np.testing.assert_array_equal(x, np.full(3, 0.25))
    assert float(y) == 0.5
    x, y = checked_start(problem, (np.ones(2), -1.0))
    np.testing.assert_array_equal(x, np.ones(2))
    assert float(y) == -1.0


def test_plans_and_runs_start_at_the_problems_own_start(started):
    problem, settings = started
    records = dpb.Records(lower=np.full(N, SENTINEL))
    own, same, other = (
        dpb.plan(problem, records.sizes, BUDGET, **settings, **start)
        for start in ({}, {"start": (np.zeros(3), 0.0)}, {"start": (np.zeros(2), 0.0)})
    )
    assert own.program is same.program, "planned for the shapes of the problem's own start"
    assert own.program is not other.program
    for start, expected in (({}, 0.25), ({"start": None}, 0.25), ({"start": (np.full(3, -2.0), 0.0)}, -2.0)):
        solution = dpb.solve(problem, records, BUDGET, **settings, **start, seed=0, progress=False)
        np.testing.assert_array_equal(solution.x, np.full(3, expected))


@pytest.mark.parametrize("run", [dpb.plan, dpb.solve], ids=["plan", "solve"])
def test_without_any_start_there_is_no_run(run):
    records, ledger = dpb.Records(lower=np.full(N, SENTINEL)), dpb.Ledger(dpb.Budget(10.0, 1e-3))
    data, more = (records.sizes, {}) if run is dpb.plan else (records, {"ledger": ledger})
    with pytest.raises(InvalidArgument, match=r"^start: must be a pair \(x0, y0\).*has no start of its own"):
        run(make_problem(), data, BUDGET, method=make_method(), **more)
    assert ledger.entries == ()


def test_an_infinite_epsilon_needs_no_delta_and_is_marked():
    planned = by_plan(None, **arguments(budget=dpb.Budget(math.inf)))
    assert planned.privacy.void
    assert all(release.noise_std == 0 for release in planned.releases)
    assert planned.explain().startswith("NOT PRIVATE")


# -------------------------------------------------------------------------------------------------- bad arguments


@dataclass
class Bad:
    """Arguments that are wrong; the message must contain ``says``: argument, rule and remedy."""

    build: Callable[[], dict[str, Any]]
    says: list[str]
    error: type[Exception] = InvalidArgument


def changed(**changes):
    return lambda: arguments(**changes)


def problem(**parts):
    return lambda: arguments(problem=make_problem(**parts))


def method(**parts):
    return lambda: arguments(method=make_method(**parts))


def start(x0, y0=0.0):
    return lambda: arguments(start=(x0, y0))


FLOATING = "must be floating point"
ONE_NUMBER = "must return one real number for one record"
BAD = {
    # the start
    "x0 integer": Bad(start(0), ["start: x0", "dtype int", FLOATING, "try 0.0 instead of 0"]),
    "y0 integer array": Bad(start(0.0, np.arange(3)), ["start: y0", "dtype int", FLOATING, "try 0.0"]),
    "x0 bool": Bad(start(True), ["start: x0", "dtype bool", FLOATING]),
    "x0 string": Bad(start("zero"), ["start: x0", FLOATING]),
    "x0 complex": Bad(start(1j), ["start: x0", "dtype complex", FLOATING]),
    "x0 object": Bad(start(object()), ["start: x0", "dtype object", FLOATING]),
    "x0 leaf integer": Bad(start({"a": 0.0, "b": 1}), ["start: x0", "dtype int", FLOATING]),
    "x0 None": Bad(start(None), ["start: x0 has no arrays", "give at least one real number"]),
    "y0 empty tree": Bad(start(0.0, {}), ["start: y0 has no arrays", "give at least one real number"]),
    "x0 nan": Bad(start(math.nan), ["start: x0 must be finite", "try zeros"]),
    "y0 infinite": Bad(start(0.0, np.array([0.0, math.inf])), ["start: y0 must be finite", "try zeros"]),
    "start not a pair": Bad(changed(start=0.0), ["start: must be a pair (x0, y0)"]),
    "start of three": Bad(changed(start=(0.0, 0.0, 0.0)), ["start: must be a pair (x0, y0)"]),
    "start None": Bad(changed(start=None), ["start: must be a pair (x0, y0)", "no start of its own"]),
    "own start a list": Bad(
        lambda: arguments(problem=make_problem(start=[0.0, 0.0]), start=None), ["start: must be a pair (x0, y0)"]
    ),
    "own x0 outside": Bad(
        lambda: arguments(problem=make_problem(domain=dpb.Box(1.0, 2.0), start=(0.0, 0.0)), start=None),
        ["start: x0 lies outside domain=Box(lower=1.0, upper=2.0)", "start inside it"],
    ),
    "own y0 integer": Bad(
        lambda: arguments(problem=make_problem(start=(0.0, 0)), start=None), ["start: y0", "dtype int", FLOATING]
    ),
    "explicit x0 outside": Bad(
        lambda: arguments(problem=make_problem(domain=dpb.Box(1.0, 2.0), start=(1.5, 0.0)), start=(0.0, 0.0)),
        ["start: x0 lies outside domain=Box(lower=1.0, upper=2.0)", "start inside it"],
    ),
    "start a list": Bad(changed(start=[0.0, 0.0]), ["start: must be a pair (x0, y0)"]),
    "x0 outside": Bad(
        problem(domain=dpb.Box(1.0, 2.0)),
        ["start: x0 lies outside domain=Box(lower=1.0, upper=2.0)", "start inside it"],
    ),
    "y0 outside": Bad(
        lambda: arguments(problem=make_problem(lower_domain=dpb.Ball(1.0)), start=(0.0, 3.0)),
        ["start: y0 lies outside lower_domain=Ball(radius=1.0)", "start inside it"],
    ),
    # the problem
    "domain does not fit": Bad(
        problem(domain={"a": dpb.Simplex()}), ["domain: its structure does not fit x0", "one set for"], InvalidProblem
    ),
    "lower_domain does not fit": Bad(
        problem(lower_domain=(dpb.Ball(1.0), dpb.Ball(1.0))),
        ["lower_domain: its structure does not fit y0", "pytree of sets"],
        InvalidProblem,
    ),
    "vector loss": Bad(
        problem(lower_loss=lambda x, y, r: y * r * jnp.ones(3)),
        ["lower_loss", ONE_NUMBER, "[3]", "reduce over features"],
        InvalidProblem,
    ),
    "vector term": Bad(problem(lower_term=lambda x, y: y * jnp.ones(3)), ["lower_term", "scalar"], InvalidProblem),
    "loss of nothing": Bad(problem(lower_loss=lambda x, y, r: None), ["lower_loss", ONE_NUMBER], InvalidProblem),
    "printing loss": Bad(
        problem(lower_loss=lambda x, y, r: (jax.debug.print("{}", r), y * r)[1]),
        ["lower_loss", "must have no side effects", "remove jax.debug.print"],
        InvalidProblem,
    ),
    "no records for a loss": Bad(
        problem(upper_loss=squared),
        ["upper_loss: has no records", "Records(upper=...)", "leave the loss out"],
        InvalidProblem,
    ),
    "records without a loss": Bad(
        changed(arrays={"lower": np.full(N, SENTINEL), "upper": np.full(N, SENTINEL)}),
        ["upper_loss: is missing", "upper=...", "drop the records"],
        InvalidProblem,
    ),
    "no lower records": Bad(
        changed(arrays={"upper": np.full(N, SENTINEL)}), ["roles", "lower=..."], dpb.InvalidRecords
    ),
    "penalty below its bound": Bad(
        lambda: arguments(
            problem=make_problem(constants=dpb.Constants(**CONSTANTS)), method=make_method(penalty_weight=1.9)
        ),
        ["penalty_weight=1.9", "must be at least 2.0 ", "2 L1f/mu_g", "raise it"],
    ),
    # the budget
    "epsilon zero": Bad(lambda: arguments(budget=dpb.Budget(0.0, 1e-4)), ["epsilon=0.0", "must be > 0", "try 1.0"]),
    "epsilon negative": Bad(lambda: arguments(budget=dpb.Budget(-1, 1e-4)), ["epsilon=-1", "must be > 0", "try 1.0"]),
    "epsilon nan": Bad(lambda: arguments(budget=dpb.Budget(math.nan, 1e-4)), ["epsilon=nan", "must be a real number"]),
    "delta missing": Bad(lambda: arguments(budget=dpb.Budget(1.0)), ["delta=None", "required", "try 1e-6"]),
    "delta zero": Bad(lambda: arguments(budget=dpb.Budget(1.0, 0.0)), ["delta=0.0", "must be", "try 1e-6"]),
    "delta one": Bad(lambda: arguments(budget=dpb.Budget(1.0, 1.0)), ["delta=1.0", "must be below 1", "try 1e-6"]),
    "delta 1/n": Bad(changed(budget=dpb.Budget(1.0, 1 / N)), ["delta=0.025", "must be below 1/n = 0.025", "try"]),
    "delta above 1/n": Bad(changed(budget=dpb.Budget(1.0, 0.5)), ["delta=0.5", "must be below 1/n = 0.025", "try"]),
    "adjacency unknown": Bad(
        lambda: arguments(budget=dpb.Budget(1.0, 1e-4, "add-remove")), ["adjacency='add-remove'", "must be one of"]
    ),
    # the method
    "step_size missing": Bad(
        method(step_size=None), ["step_size=None", "BilevelProblem(constants=...)", "without constants give a number"]
    ),
    "strong_convexity missing": Bad(
        method(inner={"strong_convexity": None}), ["strong_convexity=None", "needs mu_g", "(w/2)||y||^2"]
    ),
    "clip_norm negative": Bad(method(clip_norm=-1.0), ["clip_norm=-1.0", "must be a finite number > 0", "try 1.0"]),
    "inner clip_norm zero": Bad(method(inner={"clip_norm": 0.0}), ["clip_norm=0.0", "must be a finite number > 0"]),
    "upper_clip_norm infinite": Bad(
        method(upper_clip_norm=math.inf), ["upper_clip_norm=inf", "must be a finite number"]
    ),
    "penalty zero": Bad(method(penalty_weight=0), ["penalty_weight=0", "must be a finite number > 0", "try 10.0"]),
    "steps zero": Bad(method(steps=0), ["steps=0", "must be a whole number >= 1", "try 20"]),
    "steps fractional": Bad(method(steps=2.5), ["steps=2.5", "must be a whole number >= 1"]),
    "inner steps bool": Bad(method(inner={"steps": True}), ["steps=True", "must be a whole number >= 1", "try 50"]),
    "inner rounds zero": Bad(method(inner={"rounds": 0}), ["rounds=0", "must be a whole number >= 1", "try None"]),
    "radius negative": Bad(method(inner={"radius": -1.0}), ["radius=-1.0", "must be a finite number > 0"]),
    "smoothness string": Bad(method(inner={"smoothness": "1"}), ["smoothness='1'", "must be a real number"]),
    "step_size negative": Bad(
        method(step_size=-0.1), ["step_size=-0.1", "must be a finite number > 0", "None for its"]
    ),
    "split of two": Bad(
        method(split=(1.0, 1.0)), ["split=(1.0, 1.0)", "must be a tuple of three shares", "(1.0, 1.0, 1.0)"]
    ),
    "split with zero": Bad(method(split=(1.0, 0.0, 1.0)), ["split=0.0", "must be a finite number > 0"]),
    "inner not a solver": Bad(
        lambda: arguments(method=dpb.DPBilevel(inner="gd")), ["inner='gd'", "must be dpb.DPLocGD(...)"]
    ),
    # wrong types
    "problem None": Bad(changed(problem=None), ["problem: must be dpb.BilevelProblem(...), not NoneType"]),
    "problem a class": Bad(changed(problem=dpb.BilevelProblem), ["problem: must be dpb.BilevelProblem(...), not type"]),
    "budget a number": Bad(changed(budget=1.0), ["budget: must be dpb.Budget(epsilon, delta), not float"]),
    "budget a tuple": Bad(changed(budget=(1.0, 1e-6)), ["budget: must be dpb.Budget(epsilon, delta), not tuple"]),
    "method None": Bad(changed(method=None), ["method: must be a method", "dpb.DPBilevel", "not NoneType"]),
    "method a class": Bad(changed(method=dpb.DPBilevel), ["method: must be a method", "dpb.DPBilevel"]),
    "method an inner solver": Bad(changed(method=dpb.DPLocGD()), ["method: must be a method", "not DPLocGD"]),
    # known faults: each of these ends in an untyped error, or in none, and should be a typed refusal
    "split a list": Bad(method(split=[1.0, 1.0, 1.0]), ["split"]),
    "split a number": Bad(method(split=3.0), ["split"]),
    "penalty a fraction": Bad(method(penalty_weight=fractions.Fraction(10)), ["penalty_weight"]),
    "box bounds do not fit": Bad(
        problem(domain=dpb.Box(-np.ones(3), np.ones(3))),
        ["domain", "x0"],
    ),
    "loss in a dict": Bad(problem(lower_loss=lambda x, y, r: {"loss": y * r}), ["lower_loss"], InvalidProblem),
    "term in a tuple": Bad(problem(lower_term=lambda x, y: (y * y,)), ["lower_term"], InvalidProblem),
    "loss a string": Bad(problem(lower_loss=lambda x, y, r: "low"), ["lower_loss"], InvalidProblem),
    "x0 beyond float32": Bad(start(1e300), ["start: x0 must be finite"]),
    "x0 far outside": Bad(
        lambda: arguments(problem=make_problem(domain=dpb.Box(-1.0, 1.0)), start=(1e20, 0.0)),
        ["start: x0 lies outside domain"],
    ),
    "x0 random key": Bad(lambda: arguments(start=(jax.random.key(0), 0.0)), ["start: x0"]),
    "convexity below L1f/penalty": Bad(
        lambda: arguments(
            problem=make_problem(constants=dpb.Constants(**CONSTANTS)),
            method=make_method(inner={"strong_convexity": 0.05}, penalty_weight=10.0),
        ),
        ["penalty_weight=10.0", "not strongly convex", "= 40.0"],
    ),
    "convexity equal to L1f/penalty": Bad(
        lambda: arguments(
            problem=make_problem(constants=dpb.Constants(**CONSTANTS)),
            method=make_method(inner={"strong_convexity": 0.1}, penalty_weight=10.0),
        ),
        ["penalty_weight=10.0", "not strongly convex", "= 20.0"],
    ),
    "hyperobjective without curvature": Bad(
        lambda: arguments(
            problem=make_problem(constants=dpb.Constants(**CONSTANTS | {"upper_smoothness": 0.0})),
            method=make_method(step_size=None),
        ),
        ["step_size=None"],
    ),
}
BAD_CASES = [pytest.param(case, id=name) for name, case in BAD.items()]


@through_both
@pytest.mark.parametrize("case", BAD_CASES)
def test_bad_arguments_are_refused_before_anything_is_charged(case, run):
    ledger = dpb.Ledger(dpb.Budget(10.0, 1e-3))
    with pytest.raises(case.error) as caught:
        run(ledger, **case.build())
    assert ledger.entries == ()
    for words in case.says:
        assert words in str(caught.value)
    assert "987654" not in messages(caught.value)


def test_wrong_records_ledgers_and_seeds_are_refused_before_anything_is_charged():
    ledger = dpb.Ledger(dpb.Budget(10.0, 1e-3))
    data = np.full(N, SENTINEL)

    def attempt(records, **options):
        dpb.solve(make_problem(), records, BUDGET, **{"method": make_method(), "start": (0.0, 0.0), **options})

    for records, kind in (
        (data, "ndarray"),
        ({"lower": data}, "dict"),
        (dpb.RecordShapes(lower=data), "RecordShapes"),
        (None, "NoneType"),
    ):
        with pytest.raises(InvalidArgument, match=rf"records: must be dpb\.Records\(\.\.\.\), not {kind}") as caught:
            attempt(records, ledger=ledger)
        assert "987654" not in messages(caught.value)
    with pytest.raises(InvalidArgument, match=r"sizes: must be records\.sizes.*not Records") as caught:
        dpb.plan(make_problem(), dpb.Records(lower=data), BUDGET, method=make_method(), start=(0.0, 0.0))
    assert "987654" not in messages(caught.value)
    for wrong in (BUDGET, 10.0, dpb.Ledger):
        with pytest.raises(InvalidArgument, match=r"ledger: must be dpb\.Ledger\(total\)"):
            attempt(dpb.Records(lower=data), ledger=wrong)
    for seed in (-1, 0.5, True, "42"):
        with pytest.raises(InvalidArgument, match=r"seed=.*must be a whole number >= 0"):
            attempt(dpb.Records(lower=data), ledger=ledger, seed=seed)
    with pytest.raises(
        InvalidArgument, match="adjacency='zero-out': must be 'replace-one', the relation of the ledger"
    ):
        by_solve(ledger, **arguments(budget=dpb.Budget(1.0, 1e-4, "zero-out")))
    with pytest.raises(dpb.BudgetExceeded):
        by_solve(ledger, **arguments(budget=dpb.Budget(1e4, 1e-3)))
    assert ledger.entries == ()


def test_refused_records_say_nothing_about_their_values():
    with pytest.raises(dpb.InvalidRecords, match=r'^lower: must hold finite values.*invalid="zero"') as caught:
        dpb.Records(lower=np.array([SENTINEL, math.nan, SENTINEL]))
    assert "987654" not in messages(caught.value)


class Mistake(Exception):
    """An exception of the user's own."""


def mistaken(*arguments):
    raise Mistake("no such column")


def branching(*arguments):
    return arguments[1] if arguments[-1] > 0 else 0.0


def endless(*arguments):
    return jax.lax.while_loop(lambda value: value < 3, lambda value: value + 1, arguments[1])


@through_both
@pytest.mark.parametrize("part", ["upper_term", "upper_loss", "lower_loss", "lower_term"])
@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (mistaken, Mistake, "no such column"),
        (branching, jax.errors.TracerBoolConversionError, "boolean conversion"),
        (lambda: 0.0, TypeError, "positional argument"),
        (endless, ValueError, "Reverse-mode differentiation does not work"),
    ],
    ids=["raises", "branches on a value", "takes no arguments", "has no gradient"],
)
def test_the_users_own_exception_comes_through_before_the_charge(part, function, error, message, run):
    ledger = dpb.Ledger(dpb.Budget(10.0, 1e-3))
    arrays = {role: np.full(N, SENTINEL) for role in (("lower", "upper") if part == "upper_loss" else ("lower",))}
    with pytest.raises(error, match=message) as caught:
        run(ledger, **arguments(problem=make_problem(**{part: function}), arrays=arrays))
    assert ledger.entries == ()
    assert "987654" not in messages(caught.value)


def test_the_remedy_for_delta_works():
    with pytest.raises(InvalidArgument) as caught:
        by_plan(None, **arguments(budget=dpb.Budget(1.0, 0.5)))
    suggested = float(re.search(r"try ([0-9.e-]+)\)", str(caught.value)).group(1))
    by_plan(None, **arguments(budget=dpb.Budget(1.0, suggested)))
    by_plan(None, **arguments(budget=dpb.Budget(1.0, math.nextafter(1 / N, 0.0))))


def test_the_remedy_for_the_penalty_works():
    constants = dpb.Constants(**CONSTANTS | {"upper_smoothness": 2.0, "strong_convexity": 1.2})
    with pytest.raises(InvalidArgument) as caught:
        by_plan(None, **arguments(problem=make_problem(constants=constants), method=make_method(penalty_weight=1.0)))
    suggested = float(re.search(r"at least ([0-9.]+)", str(caught.value)).group(1))
    by_plan(None, **arguments(problem=make_problem(constants=constants), method=make_method(penalty_weight=suggested)))


# ------------------------------------------------------------------------------- side effects and closures in rules


def with_rule(*, forward=lambda record: None, backward=lambda record: None, data=0.0):
    """A squared loss with a derivative rule of the user's own, which may do more than differentiate."""

    @jax.custom_vjp
    def loss(y, record):
        return 0.5 * (y - record) ** 2

    def forward_rule(y, record):
        forward(record)
        return loss(y, record), (y, record)

    def backward_rule(kept, slope):
        y, record = kept
        backward(record)
        return slope * (y - record + jnp.sum(jnp.asarray(data))), slope * (record - y)

    loss.defvjp(forward_rule, backward_rule)
    return lambda x, y, record: loss(y, record)


def with_jvp_rule(effect):
    @jax.custom_jvp
    def loss(y, record):
        return 0.5 * (y - record) ** 2

    @loss.defjvp
    def rule(primals, tangents):
        y, record = primals
        effect(record)
        return loss(y, record), (y - record) * (tangents[0] - tangents[1])

    return lambda x, y, record: loss(y, record)


def carry_out(record):
    jax.debug.callback(lambda value: None, record)


RULES_THAT_LEAK = {
    "custom_vjp, forward": with_rule(forward=carry_out),
    "custom_vjp, backward": with_rule(backward=carry_out),
    "custom_jvp": with_jvp_rule(carry_out),
}


@pytest.mark.parametrize("loss", RULES_THAT_LEAK.values(), ids=RULES_THAT_LEAK.keys())
def test_side_effects_in_a_derivative_rule_are_refused(loss):
    with pytest.raises(InvalidProblem, match="must have no side effects"):
        by_plan(None, **arguments(problem=make_problem(lower_loss=loss)))


def test_an_array_closed_over_by_a_derivative_rule_is_marked():
    with pytest.warns(PrivacyLeakWarning):
        by_plan(None, **arguments(problem=make_problem(lower_loss=with_rule(data=np.arange(3.0)))))


def test_harmless_derivative_rules_are_accepted():
    for loss in (with_rule(), with_jvp_rule(lambda record: None)):
        assert by_plan(None, **arguments(problem=make_problem(lower_loss=loss))).privacy.caveats == ()


def single_precision(x, y, record):
    """Works with JAX's usual types; where x64 is enabled, the type of the scan's carry changes."""
    grid = jnp.linspace(0.0, 1.0, 3) * y
    return jax.lax.scan(lambda total, value: (total + value, None), jnp.float32(0.0), grid)[0] + y * record


def test_losses_run_in_the_precision_of_the_user():
    assert single_precision(0.0, jnp.float32(1.0), jnp.float32(1.0)) == 2.5
    by_plan(None, **arguments(problem=make_problem(lower_loss=single_precision)))


def test_a_change_of_precision_between_two_runs_cannot_cost_the_budget():
    same = arguments(
        problem=make_problem(lower_loss=single_precision),
        arrays={"lower": np.arange(N, dtype=np.int32)},
        start=(np.float32(0.0), np.float32(0.0)),
    )
    by_plan(None, **same)
    ledger = dpb.Ledger(dpb.Budget(10.0, 1e-3))
    with jax.enable_x64(True), pytest.raises(TypeError):
        by_solve(ledger, **same)
    assert ledger.entries == ()


# ---------------------------------------------------------------------------------------------------- the numbers


def weighted(x, y, record):
    return jnp.exp(x) * squared(x, y, record)


PLANS = {
    "free hypergradient": {},
    "hypergradient of the lower level": {"problem": make_problem(lower_loss=weighted)},
    "two roles": {
        "problem": make_problem(upper_loss=weighted, lower_loss=weighted),
        "arrays": {"upper": np.full(10, SENTINEL), "lower": np.full(N, SENTINEL)},
    },
    "both roles in one": {
        "problem": make_problem(upper_loss=squared, lower_loss=weighted),
        "arrays": {"both": np.full(N, SENTINEL)},
    },
    "constants": {
        "problem": make_problem(constants=dpb.Constants(**CONSTANTS)),
        "method": dpb.DPBilevel(inner=dpb.DPLocGD(steps=3)),
    },
    "not private": {"budget": dpb.Budget(math.inf)},
    "zero-out": {"budget": dpb.Budget(1.0, 1e-4, "zero-out")},
}
every_plan = pytest.mark.parametrize("changes", PLANS.values(), ids=PLANS.keys())


@every_plan
def test_every_number_has_a_reason_and_is_explained(changes):
    planned = by_plan(None, **arguments(**changes))
    lines = planned.explain().split("\n")
    assert lines[0] == planned.privacy.sentence()
    assert len(lines) == 1 + len(planned.parameters)
    for line, (name, (value, reason)) in zip(lines[1:], planned.parameters.items(), strict=True):
        assert reason.strip()
        assert line.startswith(name)
        assert line.endswith(reason)
        shown = line.removeprefix(name).removesuffix(reason).strip()
        if isinstance(value, str):
            assert shown == value
            continue
        values = value if isinstance(value, tuple) else (value,)
        assert [float(part) for part in shown.split(",")] == pytest.approx([float(v) for v in values], rel=1e-5)


@every_plan
def test_the_numbers_cover_every_release_and_what_the_program_will_do(changes):
    planned = by_plan(None, **arguments(**changes))
    parameters = planned.parameters
    assert parameters["outer steps"][0] == planned.program.rounds
    for release in planned.releases:
        assert parameters[f"{release.name}: noise"][0] == release.noise_std
        for role, contribution in release.contributions.items():
            assert parameters[f"{release.name}: clip ({role})"][0] == contribution.clip
    for role in planned.privacy.charges:
        shares = [value for name, (value, _) in parameters.items() if name.endswith(f"share of mu^2 ({role})")]
        assert sum(shares) == pytest.approx(1.0)


@pytest.mark.parametrize("changes", [c for name, c in PLANS.items() if name != "not private"])
def test_a_plan_spends_its_budget_and_no_more(changes):
    planned = by_plan(None, **arguments(**changes))
    assert planned.privacy.epsilon() <= planned.budget.epsilon
    assert planned.privacy.epsilon() == pytest.approx(planned.budget.epsilon, rel=1e-6)


def test_plans_are_deterministic():
    one, other = (by_plan(None, **arguments()) for _ in range(2))
    assert one is not other, "two problems, although alike, are two problems"
    assert one.explain() == other.explain()
    assert dict(one.parameters) == dict(other.parameters)
    same = arguments()
    assert by_plan(None, **same).program is by_plan(None, **same).program, "what compiled programs hang on"
    moved = by_plan(None, **same | {"start": (0.7, -2.0)})
    assert moved.program is by_plan(None, **same).program, "values of the start are not part of the plan"


@pytest.mark.parametrize("part", ["parameters", "charges"])
def test_a_plan_cannot_be_changed_through_another(part):
    same = arguments()
    planned = by_plan(None, **same)
    mapping = planned.parameters if part == "parameters" else planned.privacy.charges
    try:
        mapping.clear()
    except (AttributeError, TypeError):
        return
    again = by_plan(None, **same)
    assert again.parameters
    assert again.privacy.epsilon() == pytest.approx(2.0)


def test_numbers_that_were_given_say_so():
    planned = by_plan(None, **arguments(method=make_method(inner={"rounds": 3})))
    assert "as given" in planned.parameters["lower solve: rounds"][1]


# -------------------------------------------------------------------------------------- one run, from plan to solution

CLOSED_OVER = np.float32([1.0, 2.0])


@pytest.fixture(scope="module")
def three_runs():
    """Three solves of one problem whose loss closes over an array: with what each compiled, and its warnings."""
    problem = make_problem(lower_loss=lambda x, y, r: squared(x, y, r) + 0.0 * y * jnp.sum(jnp.asarray(CLOSED_OVER)))
    ledger = dpb.Ledger(dpb.Budget(10.0, 1e-3))
    finished, logged = [], []
    handler = logging.Handler()
    handler.emit = lambda entry: logged.append(entry.getMessage())
    logging.getLogger("jax").addHandler(handler)
    try:
        for start in ((0.0, 0.0), (0.0, 0.0), (0.5, -1.0)):
            logged.clear()
            before = records_module._execute._cache_size()
            with warnings.catch_warnings(record=True) as caught, jax.log_compiles():
                warnings.simplefilter("always")
                solution = by_solve(ledger, **arguments(problem=problem, start=start))
            compiled = [message for message in logged if "Finished XLA compilation" in message]
            finished.append((solution, compiled, records_module._execute._cache_size() - before, caught))
    finally:
        logging.getLogger("jax").removeHandler(handler)
    return problem, ledger, finished


def test_the_same_problem_compiles_once(three_runs):
    _, _, ((_, first, new_programs, _), *later) = three_runs
    assert new_programs == 1
    assert any("_execute" in message for message in first), "the log is read"
    for _, compiled, new_programs, _ in later:
        assert new_programs == 0
        assert compiled == []


def test_every_run_is_charged_once(three_runs):
    _, ledger, finished = three_runs
    assert len(ledger.entries) == len(finished)
    assert all(entry.epsilon == pytest.approx(2.0) for entry in ledger.entries)


def test_the_solution_carries_the_numbers_and_the_spend_of_the_plan(three_runs):
    problem, _, ((solution, *_), *_) = three_runs
    with pytest.warns(PrivacyLeakWarning):
        planned = by_plan(None, **arguments(problem=problem))
    assert dict(solution.parameters) == dict(planned.parameters)
    assert solution.privacy.charges == planned.privacy.charges
    assert solution.sizes == {"lower": N}


def test_closed_over_data_warns_in_plan_and_solve_and_stays_with_the_result(three_runs, tmp_path):
    problem, _, finished = three_runs
    with pytest.warns(PrivacyLeakWarning, match="lower_loss closes over an array") as caught:
        planned = by_plan(None, **arguments(problem=problem))
    assert len(caught) == 1
    (caveat,) = planned.privacy.caveats
    assert planned.privacy.sentence().startswith("With caveats, ")
    for solution, _, _, warned in finished:
        assert [str(w.message) for w in warned if w.category is PrivacyLeakWarning] == [caveat], (
            "every time, not only once"
        )
        assert solution.privacy.caveats == (caveat,)
        assert f"CAVEAT: {caveat}" in solution.summary()
    saved = dpb.Solution.load(finished[0][0].save(tmp_path / "run.json"))
    assert saved.privacy.caveats == (caveat,)


def test_arrays_declared_public_do_not_warn():
    problem = make_problem(lower_loss=lambda x, y, r: squared(x, y, r) + y * jnp.sum(jnp.asarray(CLOSED_OVER)))
    declared = dpb.BilevelProblem(
        upper_term=problem.upper_term, lower_loss=problem.lower_loss, public=[CLOSED_OVER.tolist()]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert by_plan(None, **arguments(problem=declared)).privacy.caveats == ()


def test_the_warning_of_plan_points_at_the_caller(three_runs):
    with pytest.warns(PrivacyLeakWarning) as caught:
        by_plan(None, **arguments(problem=three_runs[0]))
    assert caught[0].filename == __file__


def test_the_warning_of_solve_points_at_the_caller(three_runs):
    _, _, ((_, _, _, caught), *_) = three_runs
    assert [w.filename for w in caught if w.category is PrivacyLeakWarning] == [__file__]
