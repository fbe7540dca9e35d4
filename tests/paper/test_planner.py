"""The theory planner: monotone, optimal, consistent with the paper's rates, and true on a simulated run."""

import builtins
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpbilevel as dpb
from dpbilevel.constants import Constants
from dpbilevel.errors import InvalidArgument
from dpbilevel.paper import bounds, preconditions
from dpbilevel.paper.planner import TheoryPlan, curve, plan, plot

CONSTANTS = Constants(
    upper_lipschitz=1.0,
    upper_smoothness=0.5,
    lower_lipschitz=1.0,
    lower_smoothness=1.0,
    lower_hessian_lipschitz=0.1,
    strong_convexity=0.5,
)
BUDGET = dpb.Budget(1.0, 1e-9)
SOLVER = 1 + 1e-6  # the search over the penalty stops here


def planned(
    n=10**6, d_x=10, d_y=100, budget=BUDGET, gamma=0.05, setting="erm", *, constants=CONSTANTS, gap=1.0, **more
):
    return plan(constants, n, d_x, d_y, budget, gamma, setting, gap=gap, **more)


def powers_of_ten(least, most):
    return st.floats(least, most).map(lambda exponent: 10.0**exponent)


def whole(least, most):
    return powers_of_ten(least, most).map(round)


@st.composite
def all_constants(draw):
    mu = draw(powers_of_ten(-2, 0))
    return Constants(
        upper_lipschitz=draw(powers_of_ten(-1, 1)),
        upper_smoothness=draw(powers_of_ten(-2, 1)),
        lower_lipschitz=draw(powers_of_ten(-2, 1)),
        lower_smoothness=mu * draw(powers_of_ten(0, 2)),
        lower_hessian_lipschitz=draw(powers_of_ten(-2, 1) | st.just(0.0)),
        strong_convexity=mu,
    )


SETTINGS = {
    "erm": {"setting": "erm"},
    "minibatch": {"setting": "minibatch", "batch": 50, "noise_ratio": 1.0},
    "minibatch without amplification": {"setting": "minibatch", "batch": 50},
    "population": {"setting": "population"},
    "population with batches": {"setting": "population", "batch": 50, "noise_ratio": 2.0, "diameter": 3.0},
}
every_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())


# ----------------------------------------------------------------------------------------------------- monotonicity


@every_setting
@settings(max_examples=25)
@given(all_constants(), whole(2, 12), whole(0, 4), whole(0, 4), powers_of_ten(-1, 1), powers_of_ten(0.05, 3))
def test_alpha_falls_with_records_and_budget_and_grows_with_dimensions_and_gap(
    setting, constants, n, d_x, d_y, gap, factor
):
    facts = {"constants": constants, "n": n, "d_x": d_x, "d_y": d_y, "gap": gap} | setting
    alpha = planned(**facts).alpha
    more = math.ceil(n * factor)
    assert planned(**facts | {"n": more}).alpha <= alpha * SOLVER
    assert planned(**facts, budget=replace(BUDGET, epsilon=BUDGET.epsilon * factor)).alpha <= alpha * SOLVER
    assert planned(**facts | {"d_x": math.ceil(d_x * factor)}).alpha * SOLVER >= alpha
    assert planned(**facts | {"d_y": math.ceil(d_y * factor)}).alpha * SOLVER >= alpha
    assert planned(**facts | {"gap": gap * factor}).alpha * SOLVER >= alpha
    assert planned(**facts, gamma=0.05 / factor).alpha * SOLVER >= alpha


def test_zero_out_is_worth_twice_the_records():
    halved = planned(budget=replace(BUDGET, adjacency="zero-out"))
    assert halved.alpha == pytest.approx(planned(n=2 * 10**6).alpha, rel=1e-6)


def test_larger_batches_help_until_they_are_the_whole_data_set():
    alphas = [planned(setting="minibatch", batch=batch).alpha for batch in (10, 10**3, 10**5, 10**6)]
    assert alphas == sorted(alphas, reverse=True)
    assert alphas[-1] > planned().alpha, "the bound on sampling does not know that a whole data set is no sample"
    amplified = planned(setting="minibatch", batch=1000, noise_ratio=1.0)
    assert amplified.alpha < alphas[1]
    assert amplified.noise_std < planned(setting="minibatch", batch=1000).noise_std
    # A ratio above n/batch is never needed.
    assert planned(setting="minibatch", batch=1000, noise_ratio=1e9).alpha == alphas[1]


# ---------------------------------------------------------------------------------------------------- optimality


@every_setting
@pytest.mark.parametrize("n", [10**3, 10**6, 10**10])
def test_no_other_penalty_does_better(setting, n):
    best = planned(n=n, **setting)
    smallest = CONSTANTS.smallest_penalty_weight()
    for penalty in [
        *np.geomspace(smallest, 1e6 * smallest, 60),
        best.penalty_weight * 0.999,
        best.penalty_weight * 1.001,
    ]:
        if penalty >= smallest:
            assert planned(n=n, penalty_weight=penalty, **setting).alpha >= best.alpha / SOLVER


@every_setting
def test_every_number_of_a_plan_fits_the_others(setting):
    made = planned(n=10**7, **setting)
    assert made.alpha == pytest.approx(sum(made.terms.values()))
    assert made.binds == max(made.terms, key=made.terms.get)
    assert made.penalty_weight >= CONSTANTS.smallest_penalty_weight()
    assert made.step_size == 1 / (2 * CONSTANTS.hyperobjective_smoothness(made.penalty_weight))
    assert made.terms[bounds.BIAS] == bounds.bias_constant(CONSTANTS) / made.penalty_weight
    assert made.clip_norm == CONSTANTS.upper_lipschitz * (1 + 1.0 / 0.5)
    assert made.rounds == len(made.radii)
    assert list(made.radii) == sorted(made.radii, reverse=True)
    spent = (
        (bounds.lower_sensitivity(CONSTANTS, 10**7) / made.lower_noise_std) ** 2
        + (bounds.penalised_sensitivity(CONSTANTS, made.penalty_weight, 10**7) / made.penalised_noise_std) ** 2
    ) * made.steps
    assert spent == pytest.approx(2 / 3 * BUDGET.mu**2)
    sampled = "batch" in setting
    assert (bounds.BATCH in made.terms) == sampled
    assert (bounds.GENERALISATION in made.terms) == (setting["setting"] == "population")


def test_privacy_of_a_plan_is_the_budget_of_the_accountant():
    made = planned(shares=(2.0, 1.0, 1.0))
    ratios = (
        bounds.lower_sensitivity(CONSTANTS, 10**6) / made.lower_noise_std,
        bounds.penalised_sensitivity(CONSTANTS, made.penalty_weight, 10**6) / made.penalised_noise_std,
        2 * made.clip_norm / 10**6 / made.noise_std,
    )
    mu = math.sqrt(made.steps * sum(ratio**2 for ratio in ratios))
    from dpbilevel.privacy.accounting import gaussian_epsilon

    assert gaussian_epsilon(mu, BUDGET.delta) == pytest.approx(BUDGET.epsilon, rel=1e-6)


# ---------------------------------------------------------------------------------------------- the paper's rates


def slope(sizes, **facts):
    alphas = [planned(n=n, **facts).alpha for n in sizes]
    return np.polyfit(np.log([float(n) for n in sizes]), np.log(alphas), 1)[0]


def test_many_lower_variables_give_the_rate_one_third():
    assert slope([10**e for e in range(14, 19)], d_x=1, d_y=10**6) == pytest.approx(-1 / 3, abs=0.005)


def test_many_upper_variables_give_the_rate_one_half_until_the_inner_error_takes_over():
    """n^(-1/3) falls more slowly than n^(-1/2): whatever the dimensions, it is what remains."""
    crowded = {"d_x": 10**12, "d_y": 1}
    assert planned(n=10**10, **crowded).binds == bounds.OUTER
    assert slope([10**e for e in (9, 10, 11)], **crowded) == pytest.approx(-1 / 2, abs=0.005)
    assert planned(n=10**27, **crowded).binds == bounds.INNER
    assert slope([10**e for e in (26, 27, 28)], **crowded) == pytest.approx(-1 / 3, abs=0.005)


def test_a_lower_level_without_records_gives_the_rate_one_half_for_good():
    alone = replace(CONSTANTS, lower_lipschitz=0.0)
    for dimensions in ({"d_x": 10**6, "d_y": 1}, {"d_x": 1, "d_y": 10**6}):
        assert slope([10**e for e in range(14, 19)], constants=alone, **dimensions) == pytest.approx(-1 / 2, abs=0.005)


def test_where_the_inner_error_rules_the_bias_is_half_of_it():
    """The minimum over lambda of B/lambda + c sqrt(lambda)."""
    made = planned(n=10**15, d_x=1, d_y=10**6)
    assert made.terms[bounds.BIAS] / made.terms[bounds.INNER] == pytest.approx(0.5, abs=0.01)


def test_batches_leave_what_more_records_cannot_remove():
    at_most = planned(n=10**18, setting="minibatch", batch=10**4, noise_ratio=1.0)
    assert at_most.binds == bounds.BATCH
    more = planned(n=10**18, setting="minibatch", batch=10**6, noise_ratio=1.0)
    # One over the root of the batch, up to the logarithm of a larger number of steps.
    assert at_most.terms[bounds.BATCH] / more.terms[bounds.BATCH] == pytest.approx(10, rel=0.15)


def test_generalisation_is_of_order_one_over_the_root_of_n():
    sizes = [10**e for e in range(12, 17)]
    terms = [planned(n=n, setting="population", diameter=1.0).terms[bounds.GENERALISATION] for n in sizes]
    rate = np.polyfit(np.log([float(n) for n in sizes]), np.log(terms), 1)[0]
    assert rate == pytest.approx(-1 / 2, abs=0.03)


# ------------------------------------------------------------------------------------------------- records_needed


@every_setting
@pytest.mark.parametrize("wish", [0.7, 0.99])
def test_records_needed_inverts_the_plan(setting, wish):
    made = planned(n=10**6, **setting)
    floor = planned(n=10**15, **setting).alpha
    target = floor + wish * (made.alpha - floor)
    needed = made.records_needed(target)
    assert planned(n=needed, **setting).alpha <= target
    assert needed == setting.get("batch", 1) or planned(n=needed - 1, **setting).alpha > target


@settings(max_examples=15)
@given(all_constants(), powers_of_ten(-2, 1))
def test_records_needed_of_ones_own_alpha_is_at_most_n(constants, gap):
    made = planned(n=5000, constants=constants, gap=gap)
    assert made.records_needed(made.alpha * SOLVER) <= 5000
    assert made.records_needed(made.alpha / 2) > 5000


def test_records_needed_does_not_depend_on_where_it_starts():
    target = 0.3
    assert {planned(n=n).records_needed(target) for n in (1, 10**4, 10**12)} == {planned().records_needed(target)}


def test_records_needed_says_when_no_number_is_enough():
    made = planned(setting="minibatch", batch=100)
    with pytest.raises(InvalidArgument, match=r"alpha=0\.01: no number of records reaches it; .* remains"):
        made.records_needed(0.01)
    with pytest.raises(InvalidArgument, match=r"alpha=0\.0: must be a finite number > 0"):
        made.records_needed(0.0)


# ------------------------------------------------------------------------------------------- vacuous, preconditions


def test_a_plan_says_plainly_when_it_promises_nothing():
    empty, useful = planned(n=1000), planned(n=10**9)
    assert empty.alpha >= 3.0 > useful.alpha  # L0f (1 + L1g/mu_g) = 3
    assert empty.vacuous
    assert not useful.vacuous
    assert "alpha = " in empty.explain()
    assert "is vacuous: no hypergradient exceeds 3 anywhere" in empty.explain()
    assert "vacuous" in repr(empty)
    assert "vacuous" not in repr(useful) + useful.explain()


def test_vacuous_begins_exactly_at_the_trivial_bound():
    edge = planned().records_needed(3.0)
    assert planned(n=edge - 1).vacuous
    on_the_edge = replace(planned(n=edge), alpha=3.0)
    assert on_the_edge.vacuous
    assert not replace(on_the_edge, alpha=math.nextafter(3.0, 0)).vacuous


def test_preconditions_are_reported_and_refused_on_request():
    narrow = replace(CONSTANTS, lower_lipschitz=1e-3)
    made = planned(n=50, constants=narrow, gap=0.1, budget=dpb.Budget(1.0, 0.04))
    assert made.preconditions == (
        *preconditions.theorem_preconditions(narrow, 0.1, made.alpha),
        preconditions.Precondition("delta <= 1/n", 0.04, 1 / 50, "a larger one may publish a record"),
    )
    broken = [condition for condition in made.preconditions if not condition.holds]
    assert broken
    for condition in made.preconditions:
        assert str(condition) in made.explain()
    with pytest.raises(InvalidArgument) as caught:
        planned(n=50, constants=narrow, gap=0.1, budget=dpb.Budget(1.0, 0.04), strict=True)
    for condition in broken:
        assert f"{condition.left:.4g} > {condition.right:.4g}, by a factor {condition.factor:.4g}" in str(caught.value)
    assert planned(n=10**7, strict=True).alpha == planned(n=10**7).alpha


# ------------------------------------------------------------------------------------------------------ bad input

BAD = {
    "no records": ({"n": 0}, "n=0: must be a whole number >= 1"),
    "half a record": ({"n": 10.5}, "n=10.5: must be a whole number >= 1"),
    "no upper variable": ({"d_x": 0}, "d_x=0: must be a whole number >= 1"),
    "lower variables as text": ({"d_y": "3"}, "d_y='3': must be a whole number >= 1"),
    "gamma zero": ({"gamma": 0.0}, "gamma=0.0: must be a finite number > 0"),
    "gamma one": ({"gamma": 1.0}, "gamma=1.0: must be below 1"),
    "gap zero": ({"gap": 0.0}, "gap=0.0: must be a finite number > 0; it bounds F(x_0) - inf F"),
    "gap nan": ({"gap": math.nan}, "gap=nan: must be a real number"),
    "setting": ({"setting": "sgd"}, "setting='sgd': must be one of 'erm', 'minibatch', 'population'"),
    "constants": ({"constants": {}}, "constants: must be dpb.Constants(...)"),
    "budget": ({"budget": 1.0}, "budget: must be dpb.Budget(epsilon, delta)"),
    "budget class": ({"budget": dpb.Budget}, "budget: must be dpb.Budget(epsilon, delta)"),
    "no privacy": ({"budget": dpb.Budget(math.inf)}, "budget: epsilon must be finite"),
    "no batch": ({"setting": "minibatch"}, "batch=None: required with setting='minibatch'"),
    "batch of nothing": ({"setting": "minibatch", "batch": 0}, "batch=0: must be a whole number >= 1"),
    "batch too large": ({"setting": "minibatch", "batch": 10**7}, "batch=10000000: must be at most n=1000000"),
    "batch without sampling": ({"batch": 10}, "batch=10: must be None with setting='erm'"),
    "ratio below one": (
        {"setting": "minibatch", "batch": 10, "noise_ratio": 0.5},
        "noise_ratio=0.5: must be at least 1",
    ),
    "ratio without batch": ({"noise_ratio": 1.0}, "noise_ratio=1.0: must be at least 1"),
    "penalty too small": (
        {"penalty_weight": 1.0},
        "penalty_weight=1.0: must be at least max{2 L1f/mu_g, L0f/L0g, L1f/L1g} = 2;",
    ),
    "by how much": ({"penalty_weight": 0.8}, "it is too small by a factor 2.5"),
    "penalty negative": ({"penalty_weight": -1.0}, "penalty_weight=-1.0: must be a finite number > 0"),
    "diameter": ({"setting": "population", "diameter": 0.0}, "diameter=0.0: must be a finite number > 0"),
    "radius factor": ({"radius_factor": -2.0}, "radius_factor=-2.0: must be a finite number > 0"),
    "two shares": ({"shares": (1.0, 1.0)}, "shares=(1.0, 1.0): must be a tuple of three shares"),
    "a share of zero": ({"shares": (1.0, 0.0, 1.0)}, "shares=0.0: must be a finite number > 0"),
    "F constant": ({"constants": replace(CONSTANTS, upper_lipschitz=0.0)}, "upper_lipschitz=0.0 makes F constant"),
    "F affine": (
        {"constants": replace(CONSTANTS, upper_smoothness=0.0, lower_hessian_lipschitz=0.0)},
        "makes F affine and the step 1/(2L) infinite",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(InvalidArgument) as caught:
        planned(**change)
    assert message in str(caught.value)


def test_gap_has_no_default():
    with pytest.raises(TypeError, match="gap"):
        plan(CONSTANTS, 10**6, 10, 100, BUDGET, 0.05)


@pytest.mark.parametrize(
    "constants",
    [
        Constants(
            upper_lipschitz=scale,
            upper_smoothness=scale,
            lower_lipschitz=lower,
            lower_smoothness=scale,
            lower_hessian_lipschitz=scale,
            strong_convexity=scale * mu,
        )
        for scale in (1e-8, 1.0, 1e8)
        for lower in (0.0, 1e-8, 1e8)
        for mu in (1e-6, 1.0)
    ],
    ids=str,
)
@pytest.mark.parametrize("n", [1, 10**20])
def test_extreme_constants_give_finite_plans(constants, n):
    made = planned(n=n, constants=constants, setting="population")
    assert all(0 < value < math.inf for value in (made.alpha, made.penalty_weight, made.noise_std, made.step_size))
    assert all(0 <= value < math.inf for value in (*made.terms.values(), *made.radii))
    assert made.explain()


def test_numpy_numbers_are_as_good_as_pythons():
    made = planned(n=np.int64(10**6), d_x=np.int32(10), gamma=np.float32(0.05), gap=np.float64(1.0))
    assert made.alpha == pytest.approx(planned().alpha, rel=1e-6)
    assert type(made.question.n) is int
    assert made.records_needed(1e-3) > 2**40


# ---------------------------------------------------------------------------------------------- words and pictures


@every_setting
def test_explanation_names_every_number_with_formula_and_lemma(setting):
    made = planned(**setting)
    lines = made.explain().splitlines()
    assert made.binds in lines[0]
    assert "(1, 1e-09)-DP, replace-one" in lines[1]
    numbers = [
        *made.terms,
        "penalty_weight",
        "steps",
        "step_size",
        "clip_norm",
        "noise_std",
        "lower_noise_std",
        "penalised_noise_std",
    ]
    for name in [*numbers, "rounds", "radii"]:
        (line,) = [line for line in lines if line.startswith(f"{name:<21}")]
        assert bounds.FORMULAS[name] in line
    for name, value in made.terms.items():
        assert f"{value:.6g}" in next(line for line in lines if line.startswith(name))
    assert "c not proved" in lines[-1 - len(made.preconditions)], "the radii's constant"
    assert ("NOT PROVED HERE: that sampling amplifies" in lines[1]) == ("noise_ratio" in setting)


def test_repr_is_short_and_complete():
    assert repr(planned()).startswith("TheoryPlan(erm, n=1000000: alpha=")
    assert len(repr(planned())) < 200
    assert isinstance(planned(), TheoryPlan)
    assert hash(planned()) == hash(planned())


@dataclass
class Canvas:
    """As much of matplotlib's Axes as `plot` uses, so that its calls can be read back."""

    calls: dict

    def __getattr__(self, name):
        return lambda *arguments, **more: self.calls.update({name: (arguments, more)})


QUANTITIES = {"n": False, "epsilon": False, "d_x": True, "d_y": True}


@pytest.mark.parametrize(("against", "grows"), QUANTITIES.items())
def test_curves_run_through_the_plan(against, grows):
    made = planned()
    values, alphas = curve(made, against)
    assert 15 <= len(values) == len(alphas) <= 17  # whole numbers around a small one coincide
    assert all(np.diff(values) > 0)
    assert all(np.diff(alphas) * (1 if grows else -1) >= 0)
    own = 1.0 if against == "epsilon" else getattr(made.question, against)
    assert alphas[values.index(own)] == pytest.approx(made.alpha)
    assert curve(made, against, [own])[1] == [made.alpha]


@pytest.mark.parametrize("against", QUANTITIES)
def test_plot_draws_the_curve_on_given_axes(against):
    made, canvas = planned(), Canvas({})
    assert plot(made, against, [1, 2, 3], axes=canvas) is canvas
    drawn, _ = canvas.calls["loglog"]
    assert drawn == curve(made, against, [1, 2, 3])
    assert canvas.calls["set_xlabel"] == ((against,), {})
    assert canvas.calls["axhline"][0] == (made.clip_norm,)


def test_curve_starts_at_the_batch_and_refuses_what_it_does_not_know():
    small = planned(n=60, setting="minibatch", batch=50)
    assert curve(small, "n")[0][0] == 50
    assert curve(planned(n=3), "n")[0][0] == 1
    with pytest.raises(InvalidArgument, match="against='gamma': must be one of 'n', 'epsilon', 'd_x', 'd_y'"):
        curve(planned(), "gamma")


@pytest.mark.parametrize("against", QUANTITIES)
def test_plot_with_matplotlib(against):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = plot(planned(), against)
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert axes.get_xlabel() == against
    matplotlib.pyplot.close(axes.figure)


def test_plot_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(builtins.ImportError, match=r'plot: needs matplotlib.*pip install "dpbilevel\[plot\]"'):
        plot(planned())


# ---------------------------------------------------------------------------------------------------- a simulated run


def test_algorithm_1_with_the_numbers_of_a_plan_keeps_its_promise():
    """f = sin(p.x + q.y), g = |y - Mx - m|^2/2 on records that differ only in m: y* = Mx + mean(m).

    Records enter through their mean, and the noise of a plan is drawn as it says; 20 runs side by side. A correct plan
    fails a run with probability gamma = 1e-6 at most, so this test with 2e-5 over seeds.
    """
    generator, runs, d_x, d_y = np.random.default_rng(6), 20, 3, 2
    p, q, matrix, mean = (generator.normal(size=size) * 0.4 for size in (d_x, d_y, (d_y, d_x), d_y))
    norm, coupling = math.hypot(*p, *q), np.block([[matrix.T @ matrix, -matrix.T], [-matrix, np.eye(d_y)]])
    constants = Constants(
        upper_lipschitz=norm,
        upper_smoothness=norm**2,
        lower_lipschitz=2.0,  # |m_i - mean| <= 2
        lower_smoothness=np.linalg.norm(coupling, 2),
        lower_hessian_lipschitz=0.0,
        strong_convexity=1.0,
    )
    made = planned(n=2 * 10**7, d_x=d_x, d_y=d_y, gamma=1e-6, constants=constants, gap=2.0)
    assert not made.vacuous

    def slopes(x, y):
        return np.cos(x @ p + y @ q)[:, None]

    def solve(x, penalty):
        """argmin of f/penalty + g: a fixed point, a contraction for penalties of at least 2 L1f/mu_g."""
        y = x @ matrix.T + mean
        for _ in range(60 if math.isfinite(penalty) else 0):
            y = x @ matrix.T + mean - slopes(x, y) * q / penalty
        return y

    def hypergradients(x):
        return np.linalg.norm(slopes(x, solve(x, math.inf)) * (p + q @ matrix), axis=1)

    x = generator.normal(size=(runs, d_x)) * 3
    first, best, shortest = hypergradients(x), x, np.full(runs, math.inf)
    for _ in range(made.steps):
        y = solve(x, math.inf) + made.lower_noise_std * generator.normal(size=(runs, d_y))
        z = solve(x, made.penalty_weight) + made.penalised_noise_std * generator.normal(size=(runs, d_y))
        estimate = slopes(x, z) * p - made.penalty_weight * (z - y) @ matrix
        moved = x - made.step_size * (estimate + made.noise_std * generator.normal(size=(runs, d_x)))
        lengths = np.linalg.norm(moved - x, axis=1)
        best = np.where((lengths < shortest)[:, None], x, best)
        shortest, x = np.minimum(shortest, lengths), moved
    assert np.max(hypergradients(best)) <= made.alpha
    assert np.max(first) > made.alpha, "the promise is not empty: not every start keeps it"
