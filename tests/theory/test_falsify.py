"""The search for counterexamples: it finds what is there, invents nothing, and never touches private records."""

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.errors import InvalidArgument
from dpbilevel.theory import falsify
from dpbilevel.theory.falsify import ConstantCheck, check_constants

# f = sin(x)/2 + r y and g = y^2/2 + 0.6 r sin(x + y), records r in [-1, 1]: every constant is attained, and every total
# differs from its per-record value.
WAVE = dpb.BilevelProblem(
    upper_term=lambda x, y: jnp.sin(x) / 2,
    upper_loss=lambda x, y, record: record * y,
    lower_term=lambda x, y: y**2 / 2,
    lower_loss=lambda x, y, record: 0.6 * record * jnp.sin(x + y),
    domain=dpb.Box(-2.0, 2.0),
    lower_domain=dpb.Box(-3.0, 3.0),
)
EXACT = dpb.Constants(
    upper_lipschitz=math.hypot(0.5, 1.0),
    upper_smoothness=0.5,
    lower_lipschitz=0.6,
    lower_smoothness=float(np.linalg.norm([[0.6, 0.6], [0.6, 1.6]], 2)),
    lower_hessian_lipschitz=0.6 * 2**1.5,
    strong_convexity=0.4,
    record_upper_lipschitz=1.0,
    record_lower_smoothness=1.2,
)


def wave_sample(rng):
    return rng.uniform(-2, 2), rng.uniform(-3, 3), rng.choice([-1.0, 1.0]), rng.choice([-1.0, 1.0])


@pytest.fixture(scope="module")
def wave_report():
    return check_constants(WAVE, EXACT, wave_sample)


def test_exact_constants_are_attained_and_not_exceeded(wave_report):
    assert wave_report.holds, wave_report
    assert [check.name for check in wave_report.checks] == list(falsify._SYMBOLS)
    assert set(falsify._SYMBOLS) == set(vars(EXACT)), "every constant is tried"
    assert min(check.ratio for check in wave_report.checks) > 0.99, f"\n{wave_report}"


def test_every_constant_is_refuted_when_it_is_a_fiftieth_too_good(wave_report):
    broken = {name: value * 0.98 for name, value in vars(EXACT).items()} | {"strong_convexity": 0.4 * 1.02}
    report = check_constants(WAVE, dpb.Constants(**broken), wave_sample)
    assert not report.holds
    assert not any(check.holds for check in report.checks), f"\n{report}"
    same = [check.found for check in wave_report.checks]
    assert [check.found for check in report.checks] == same, "a search repeats, and never looks at what is declared"


def test_values_of_a_record_taken_for_totals_are_refuted(wave_report):
    mistaken = {
        "upper_lipschitz": EXACT.record_upper_lipschitz,
        "lower_smoothness": EXACT.record_lower_smoothness,
        "strong_convexity": 1.0,  # of g0 alone, as if records could only add
    }
    for name, value in mistaken.items():
        assert not replace(wave_report[name], declared=value).holds


def test_witnesses_can_be_checked_by_hand(wave_report):
    x, y, record = wave_report["strong_convexity"].witness
    assert 1 - 0.6 * record * math.sin(x + y) == pytest.approx(wave_report["strong_convexity"].found, rel=1e-4)
    x, y, record = wave_report["upper_lipschitz"].witness
    assert math.hypot(math.cos(x) / 2, record) == pytest.approx(wave_report["upper_lipschitz"].found, rel=1e-6)


def test_the_report_is_a_table(wave_report):
    lines = repr(wave_report).splitlines()
    assert lines[0].split() == ["constant", "name", "declared", "found", "ratio"]
    assert lines[2].startswith("L0f per record  record_upper_lipschitz")
    assert len(lines) == 9
    assert "REFUTED" not in repr(wave_report)
    bad = replace(wave_report["upper_lipschitz"], declared=0.1)
    assert "REFUTED" in repr(falsify.ConstantsReport((bad,)))
    with pytest.raises(KeyError):
        wave_report["no such constant"]


def test_the_search_climbs(monkeypatch):
    def inside(rng):
        return rng.uniform(-0.1, 2), rng.uniform(-3, 3), rng.uniform(-1, 1), rng.uniform(-1, 1)

    climbed = check_constants(WAVE, EXACT, inside, trials=8)
    monkeypatch.setattr(falsify, "_ROUNDS", 0)
    drawn = check_constants(WAVE, EXACT, inside, trials=8)
    assert all(a.ratio >= b.ratio for a, b in zip(climbed.checks, drawn.checks, strict=True))
    left, before = (sum(1 - check.ratio for check in report.checks) for report in (climbed, drawn))
    assert left < before / 2, f"what is left to find\n{climbed}\n{drawn}"


def loose(**changes):
    """Constants that nothing here comes near, but for the changes."""
    huge = dict.fromkeys(vars(EXACT), 1e6) | {"strong_convexity": 1e-6}
    return dpb.Constants(**huge | changes)


def test_the_search_stays_between_the_draws():
    """f = y^2/2 on [1, 2]: a step beyond the draws would find a slope above 2."""
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: y @ y / 2, lower_loss=lambda x, y, record: jnp.sum((y - record) ** 2) / 2
    )
    constants = loose(upper_lipschitz=2.0, lower_hessian_lipschitz=0.0, upper_smoothness=1.0, strong_convexity=1.0)
    report = check_constants(problem, constants, lambda rng: (0.0, rng.uniform(1, 2, size=1), None, rng.normal(size=1)))
    assert report.holds, report
    assert report["upper_lipschitz"].ratio > 0.95
    assert report["record_upper_lipschitz"].found == 0.0
    assert report["lower_hessian_lipschitz"].ratio == 0.0, "zero is a legal constant, and rounding does not refute it"


def test_kinks_that_derivatives_step_over_are_found():
    """Huber's loss has no Lipschitz Hessian, and an absolute value no Lipschitz gradient, though both derive to 0."""

    def huber(x, y, record):
        residual = jnp.abs(record * y - 0.5)
        return jnp.where(residual < 0.7, residual**2 / 2, 0.7 * (residual - 0.35))

    problem = dpb.BilevelProblem(
        upper_loss=lambda x, y, record: jnp.abs(y - record), lower_loss=huber, lower_term=lambda x, y: y**2 / 2
    )

    def sample(rng):
        return rng.normal(), rng.normal(), rng.normal(), rng.choice([-1.0, 1.0])

    report = check_constants(problem, loose(upper_smoothness=100.0, lower_hessian_lipschitz=100.0), sample)
    refuted = {check.name for check in report.checks if not check.holds}
    assert refuted == {"upper_smoothness", "lower_hessian_lipschitz"}, f"\n{report}"
    assert report["strong_convexity"].found == pytest.approx(1.0, rel=1e-4), "the flat part of Huber's loss"


def test_derivatives_that_do_not_exist_refute():
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: jnp.sqrt(y @ y), lower_loss=lambda x, y, record: (y - record) @ (y - record)
    )
    report = check_constants(problem, loose(), lambda rng: (0.0, np.zeros(2), None, np.zeros(2)), trials=2)
    assert not report["upper_lipschitz"].holds
    assert report["upper_lipschitz"].found == math.inf


@pytest.mark.parametrize(
    "size", [pytest.param(5, id="whole Hessian"), pytest.param(100, id="power iterations", marks=pytest.mark.slow)]
)
def test_pytrees_labels_and_both_ways_to_the_least_curvature(size):
    """Labels, which no step may blend; x and y as dicts; g = sum of exp(x_k) ||y_k||^2/2 + (row . y)^2/2."""
    constants = loose(strong_convexity=math.exp(-1.0), record_lower_smoothness=1.0, lower_lipschitz=2.0)

    def loss(x, y, record):
        row = record["row"] * jnp.where(record["flag"] & (record["label"] == 1), 1.0, -1.0)
        return (row @ jnp.concatenate([y["a"], y["b"]])) ** 2 / 2

    problem = dpb.BilevelProblem(
        upper_loss=loss,
        lower_loss=loss,
        lower_term=lambda x, y: (jnp.exp(x["w"][0]) * y["a"] @ y["a"] + jnp.exp(x["w"][1]) * y["b"] @ y["b"]) / 2,
        domain={"w": dpb.Box(-1.0, 1.0)},
    )

    def sample(rng):
        row, y = rng.normal(size=(2, size))
        record = {"row": row / np.linalg.norm(row), "label": int(rng.integers(2)), "flag": rng.uniform() < 0.5}
        y *= 2 / np.linalg.norm(y)
        return {"w": rng.choice([-1.0, 1.0], size=2)}, {"a": y[:2], "b": y[2:]}, record, record

    report = check_constants(problem, constants, sample, trials=32)
    assert report.holds, f"\n{report}"
    assert report["strong_convexity"].ratio > 0.97
    assert report["record_lower_smoothness"].ratio > 0.97
    assert not replace(report["strong_convexity"], declared=2 * math.exp(-1.0)).holds


def test_ratios_at_the_edges():
    def ratio(name, declared, found):
        return ConstantCheck(name, "", declared, found, ()).ratio

    assert ratio("upper_lipschitz", 0.0, 0.0) == 0.0
    assert ratio("upper_lipschitz", 0.0, 1e-9) == math.inf
    assert ratio("strong_convexity", 0.1, -0.2) == math.inf
    assert ratio("strong_convexity", 0.1, 0.0) == math.inf
    assert ConstantCheck("upper_lipschitz", "", 1.0, 1.0009, ()).holds
    assert not ConstantCheck("upper_lipschitz", "", 1.0, 1.0011, ()).holds


# ------------------------------------------------------------------------------------------------------- bad input

PRIVATE = dpb.Records(upper=np.zeros(3), lower=np.zeros(3))
GOOD = {"problem": WAVE, "constants": EXACT, "sample": wave_sample}
BAD = {
    "records as problem": ({"problem": PRIVATE}, "problem: must be dpb.BilevelProblem"),
    "problem class": ({"problem": dpb.BilevelProblem}, "problem: must be dpb.BilevelProblem"),
    "constants missing": ({"constants": None}, "constants: must be dpb.Constants"),
    "records as constants": ({"constants": PRIVATE}, "constants: must be dpb.Constants"),
    "records as sample": ({"sample": PRIVATE}, "private ones (dpb.Records), because results on them are a leak"),
    "records drawn": ({"sample": lambda rng: (0.0, 0.0, PRIVATE, 0.0)}, "(dpb.Records are private"),
    "records inside": ({"sample": lambda rng: (0.0, 0.0, 0.0, {"a": [PRIVATE]})}, "(dpb.Records are private"),
    "words drawn": ({"sample": lambda rng: (0.0, 0.0, 0.0, "a")}, "must return arrays and numbers, not str"),
    "objects drawn": ({"sample": lambda rng: (0.0, 0.0, 0.0, np.array([None]))}, "must return arrays and numbers"),
    "three drawn": ({"sample": lambda rng: (0.0, 0.0, 0.0)}, "sample: must return a tuple (x, y, upper_record, lower"),
    "no upper record": ({"sample": lambda rng: (0.0, 0.0, None, 0.0)}, "sample: must draw an upper_record"),
    "no number": ({"sample": lambda rng: (0.0, math.nan, 0.0, 0.0)}, "sample: must draw finite numbers only"),
    "x outside": ({"sample": lambda rng: (2.5, 0.0, 0.0, 0.0)}, "sample: must draw x from the problem's domain"),
    "y outside": ({"sample": lambda rng: (0.0, 3.5, 0.0, 0.0)}, "sample: must draw y from the problem's lower_domain"),
    "shapes change": (
        {"sample": lambda rng: (0.0, 0.0, 0.0, np.zeros(rng.integers(1, 9)))},
        "sample: must return the same structure and shapes in every draw",
    ),
    "structure changes": (
        {"sample": lambda rng: (0.0, 0.0, 0.0, [0.0] * rng.integers(1, 9))},
        "sample: must return the same structure and shapes in every draw",
    ),
    "no trials": ({"trials": 0}, "trials=0: must be a whole number >= 1"),
    "seed negative": ({"seed": -1}, "seed=-1: must be a whole number >= 0"),
    "seed a flag": ({"seed": True}, "seed=True: must be a whole number >= 0"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(InvalidArgument) as caught:
        check_constants(**GOOD | change)
    assert message in str(caught.value)


def test_it_is_on_the_face_of_the_package():
    assert dpb.theory.check_constants is check_constants
    assert {"check_constants", "glm_constants"} <= set(dpb.theory.__all__)
    with pytest.raises(AttributeError, match="no attribute 'check'"):
        dpb.theory.check  # noqa: B018
