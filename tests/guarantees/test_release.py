"""Releases: no record changes an answer by more than the charged sensitivity.

The neighbour search plays the adversary. It changes one record (random search over extreme records, then gradient
ascent), evaluates the real `Release.answer` with the same keys, so that the noise cancels, and compares the movement
with ``release.sensitivity(role)``. Mutations go through the same search and have to be caught.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.batch_checks import (
    check_public_division,
    check_rate,
    check_roles_are_sampled_independently,
    check_steps_are_sampled_independently,
    taken_by_role,
)
from support.broken_sums import (
    leafwise_clipped_sum,
    non_finite_sum,
    not_finite_coefficients,
    other_numbers_not_measured,
    realised_batch_sum,
    rows_not_zeroed,
    rows_without_norms,
    unclipped_sum,
)
from support.neighbours import (
    CASES,
    Attack,
    Case,
    Unrounded,
    check_sensitivity,
    executed,
    features,
    identity,
    largest_ratios,
    logistic,
)

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy import noise as noise_module
from dpbilevel.privacy import release as release_module
from dpbilevel.privacy.accounting import all_charges
from dpbilevel.privacy.clipping import ROUNDING, clipped_sum
from dpbilevel.privacy.noise import KeySchedule, membership, standard_normal
from dpbilevel.privacy.release import Contribution, Release, shared_noise
from dpbilevel.privacy.sampling import FullBatch, Poisson
from dpbilevel.records import Records, isolated_jax_config


def mean_release(clip=1.0, count=10, **settings):
    """A release of the clipped mean of lower records."""
    settings = {"name": "mean", "noise_std": 0.0, "uses": 1} | settings
    return Release(contributions={"lower": Contribution(identity, clip, count)}, **settings)


# ---- the neighbour search


@pytest.mark.parametrize("name", CASES)
def test_no_record_moves_the_answer_by_more_than_the_sensitivity(name):
    ratios = check_sensitivity(CASES[name])
    assert min(ratios.values()) >= CASES[name].reachable, ratios


@pytest.mark.parametrize(("name", "reached"), [("singular", 0.4), ("both", 0.85)])
def test_no_ascent_moves_the_answer_by_more_than_the_sensitivity(name, reached):
    ratios = check_sensitivity(CASES[name], search=Attack.gradient_ascent)
    assert ratios["replace-one"] >= reached, ratios


# ---- mutants that the search has to catch


class HalfSensitivity(Unrounded):
    """Claims C where replacing a record costs 2C."""

    def sensitivity(self, role):
        return super().sensitivity(role) / (2 if self.adjacency == "replace-one" else 1)


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("squared", unclipped_sum),
        ("singular", leafwise_clipped_sum),
        ("singular", non_finite_sum),
        ("poisson", realised_batch_sum),
    ],
)
def test_the_search_catches_broken_sums(monkeypatch, name, mutant):
    monkeypatch.setattr(release_module, "clipped_sum", mutant)
    with pytest.raises(AssertionError):
        check_sensitivity(CASES[name])


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("linear", rows_without_norms),
        ("linear, parts", rows_without_norms),
        ("linear, computed row", rows_without_norms),
        ("linear, apart", rows_not_zeroed),
        ("linear", not_finite_coefficients),
        ("linear, parts", other_numbers_not_measured),
    ],
)
def test_the_search_catches_broken_sums_of_outer_products(monkeypatch, name, mutant):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_sensitivity(CASES[name])


def test_ascent_catches_a_missing_clip(monkeypatch):
    monkeypatch.setattr(release_module, "clipped_sum", unclipped_sum)
    with pytest.raises(AssertionError):
        check_sensitivity(CASES["squared"], search=Attack.gradient_ascent)


def test_the_search_catches_half_the_sensitivity():
    ratios = largest_ratios(CASES["both"], HalfSensitivity)
    assert ratios["replace-one"] > 1.9
    assert ratios["zero-out"] <= 1


# ---- vectors that do not fit one answer


def accepted_ratio(case):
    """The largest ratio of a case that may as well be refused when it is traced."""
    try:
        return max(largest_ratios(case).values())
    except (InvalidArgument, TypeError, ValueError):
        return 0.0


def test_roles_of_different_sizes_are_refused():
    """A scalar of one role would be broadcast over the other's vector, and move each of its coordinates."""
    parts = {"lower": Contribution(identity, 1.0, 5), "upper": Contribution(identity, 1.0, 5)}
    case = Case(parts, {"lower": features(5, 4), "upper": features(5, 1)[:, 0]}, np.float32(0))
    assert accepted_ratio(case) <= 1


def test_roles_of_different_structure_are_refused():
    """Vectors of equal size but different leaves would be added across each other's leaves."""
    parts = {
        "lower": Contribution(lambda point, record: {"a": record[:1], "b": record[1:]}, 1.0, 5),
        "upper": Contribution(lambda point, record: {"a": record[:2], "b": record[2:]}, 1.0, 5),
    }
    release = Release(name="mixed", contributions=parts, noise_std=0.0, uses=1)
    records = Records(lower=np.ones((5, 3)), upper=np.ones((5, 3)))
    with pytest.raises((InvalidArgument, TypeError, ValueError)):
        executed(release, records, 3)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16], ids=["float16", "bfloat16"])
def test_narrow_vectors_are_refused_or_bounded(dtype):
    """float16 gradients come with a float16 start; 256 of them do not add up in float16."""
    parts = {"lower": Contribution(lambda point, record: record.astype(dtype), 0.05, 256)}
    assert accepted_ratio(Case(parts, {"lower": np.full(256, 0.1, np.float32)}, np.float32(0))) <= 1


def test_complex_vectors_are_refused_or_bounded():
    parts = {"lower": Contribution(lambda point, record: record * jnp.array([1, 1j], jnp.complex64), 1.0, 5)}
    assert accepted_ratio(Case(parts, {"lower": features(5, 2)}, np.float32(0))) <= 1


# ---- many records: rounding is part of the guarantee


def library_sum(rows, clip):
    with isolated_jax_config():
        return np.asarray(_compiled_sum(rows, clip))


_compiled_sum = jax.jit(lambda rows, clip: clipped_sum(lambda row: row, rows, jnp.ones(len(rows), bool), clip))


def plain_sum(rows, clip):
    """What everybody writes, one float32 sum (in NumPy, where its order is the same on every machine)."""
    return np.add.accumulate(rows, axis=0)[-1].astype(np.float64)


def largest_movement_of_crowd(sum_of, count):
    """Everybody at the clip in one direction; one record turns round. Largest movement of the sum, in units of 2C.

    The clip varies because rounding depends on its digits.
    """
    movements = []
    for clip in np.linspace(0.1, 1.9, 13).tolist():
        rows = np.full((count, 4), clip / 2, np.float32)
        before = sum_of(rows, clip)
        rows[count // 2] *= -1
        movements.append(np.linalg.norm(sum_of(rows, clip) - before) / (2 * clip))
    return max(movements)


def test_a_crowd_does_not_round_the_sensitivity_away():
    """What a release adds to the sum, a division by the public n and noise, is in float64."""
    assert 0.999 <= largest_movement_of_crowd(library_sum, 100_000) <= 1 + ROUNDING


def test_a_plain_sum_breaks_the_sensitivity():
    """At n = 10^5 it breaks 2C (1.0045 times), at 10^6 even 2C(1 + 2^-7)."""
    assert largest_movement_of_crowd(plain_sum, 100_000) > 1.004
    assert largest_movement_of_crowd(plain_sum, 1_000_000) > 1 + ROUNDING


# ---- what is declared


@pytest.mark.parametrize(("adjacency", "vectors"), [("replace-one", 2), ("zero-out", 1)])
@pytest.mark.parametrize(("sampling", "rate"), [(FullBatch(), 1.0), (Poisson(0.1), 0.1), (Poisson(1.0), 1.0)])
def test_sensitivity_is_that_of_the_mean(adjacency, vectors, sampling, rate):
    parts = {"upper": Contribution(identity, 0.5, 40), "lower": Contribution(identity, 3.0, 1000)}
    release = Release(name="r", contributions=parts, noise_std=0.2, uses=7, sampling=sampling, adjacency=adjacency)
    assert release.sensitivity("upper") == pytest.approx(vectors * 0.5 * (1 + 2**-7) / (rate * 40), rel=1e-14)
    assert release.sensitivity("lower") == pytest.approx(vectors * 3.0 * (1 + 2**-7) / (rate * 1000), rel=1e-14)
    with pytest.raises(InvalidArgument, match="both"):
        release.sensitivity("both")
    for charge in release.charges():
        assert charge.ratio == release.sensitivity(charge.role) / 0.2
        assert (charge.release, charge.uses, charge.sampling) == ("r", 7, sampling)


def test_no_noise_is_charged_as_infinite():
    assert [charge.ratio for charge in mean_release(noise_std=0.0).charges()] == [math.inf]
    assert [charge.ratio for charge in mean_release(clip=math.inf, noise_std=1.0).charges()] == [math.inf]


def test_scaled_changes_the_noise_alone():
    release = mean_release(noise_std=0.5, uses=3)
    assert release.scaled(2.0).noise_std == 1.0
    assert release.scaled(2.0).sensitivity("lower") == release.sensitivity("lower")
    with pytest.raises(InvalidArgument):
        release.scaled(-1.0)


def test_one_noise_covers_all_roles():
    ratios, sensitivities = {"upper": 0.1, "lower": 0.2}, {"upper": 1.0, "lower": 3.0}
    noise = shared_noise(ratios, sensitivities)
    assert all(sensitivities[role] / noise <= ratios[role] * (1 + 1e-12) for role in ratios)
    assert noise == pytest.approx(15.0)


def test_charges_are_kept_by_role():
    two = Release(
        name="two",
        contributions={"upper": Contribution(identity, 1.0, 5), "lower": Contribution(identity, 1.0, 5)},
        noise_std=1.0,
        uses=2,
    )
    charges = all_charges([two, mean_release(noise_std=1.0)])
    assert {role: [charge.release for charge in parts] for role, parts in charges.items()} == {
        "upper": ["two"],
        "lower": ["two", "mean"],
    }


BAD_CONTRIBUTIONS = [
    {"clip": 0.0},
    {"clip": 1e-40},
    {"clip": 1e37},
    {"clip": 1e300},
    {"clip": -1.0},
    {"clip": math.nan},
    {"clip": True},
    {"clip": "1"},
    {"clip": None},
    {"count": 0},
    {"count": -3},
    {"count": 2.5},
    {"count": True},
]


@pytest.mark.parametrize("bad", BAD_CONTRIBUTIONS, ids=str)
def test_bad_contributions_are_refused(bad):
    with pytest.raises(InvalidArgument, match=next(iter(bad))):
        Contribution(**{"per_record": identity, "clip": 1.0, "count": 10} | bad)


BAD_RELEASES = [
    {"noise_std": -1.0},
    {"noise_std": math.nan},
    {"noise_std": math.inf},
    {"noise_std": None},
    {"uses": 0},
    {"uses": 1.0},
    {"uses": True},
    {"adjacency": "add-remove"},
    {"adjacency": None},
    {"contributions": {}},
    {"contributions": {"middle": Contribution(identity, 1.0, 10)}},
    {"contributions": {"Lower": Contribution(identity, 1.0, 10)}},
]


@pytest.mark.parametrize("bad", BAD_RELEASES, ids=lambda bad: f"{next(iter(bad))}={str(*bad.values())[:20]}")
def test_bad_releases_are_refused(bad):
    good = {"name": "r", "contributions": {"lower": Contribution(identity, 1.0, 10)}, "noise_std": 1.0, "uses": 1}
    with pytest.raises(InvalidArgument):
        Release(**good | bad)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, math.nan, math.inf, True, None])
def test_bad_rates_are_refused(rate):
    with pytest.raises(InvalidArgument, match="rate"):
        Poisson(rate)


@pytest.mark.parametrize(
    "bad",
    [{"sampling": 0.1}, {"sampling": None}, {"contributions": {"lower": identity}}],
    ids=["rate", "none", "function"],
)
def test_parts_of_the_wrong_type_are_refused(bad):
    good = {"name": "r", "contributions": {"lower": Contribution(identity, 1.0, 10)}, "noise_std": 1.0, "uses": 1}
    with pytest.raises(InvalidArgument):
        Release(**good | bad)


def test_a_misspelt_role_has_no_sensitivity_of_zero():
    """Zero reads as free."""
    with pytest.raises((InvalidArgument, KeyError)):
        mean_release().sensitivity("lowr")


def test_a_declaration_cannot_change_after_it_is_made():
    """What is charged and what is executed are read from the same declaration, at different times."""
    parts = {"lower": Contribution(identity, 1.0, 10)}
    release = Release(name="mean", contributions=parts, noise_std=1.0, uses=1)
    charged = release.charges()
    parts["lower"] = Contribution(identity, 1000.0, 10)
    assert release.charges() == charged
    with pytest.raises(TypeError):
        release.contributions["lower"] = Contribution(identity, 1000.0, 10)
    with pytest.raises(dataclasses.FrozenInstanceError):
        release.noise_std = 0.0


# ---- Poisson sampling


@pytest.mark.parametrize("rate", [0.05, 0.6])
def test_a_poisson_sample_is_what_the_accountant_assumes(rate):
    answers = taken_by_role(rate)
    check_public_division(rate, answers)
    check_rate(rate, answers)
    check_roles_are_sampled_independently(rate, answers)
    check_steps_are_sampled_independently(rate, answers)


def test_division_by_the_realised_batch_is_caught(monkeypatch):
    monkeypatch.setattr(release_module, "clipped_sum", realised_batch_sum)
    with pytest.raises(AssertionError):
        check_public_division(0.5, taken_by_role(0.5, steps=5))


def test_a_shared_batch_and_a_repeated_batch_are_caught(monkeypatch):
    def halves_alike(key, rate, size):
        return jnp.tile(membership(key, rate, size // 2), 2)

    def fixed(key, rate, size):
        return membership(jnp.zeros_like(key), rate, size)

    def more(key, rate, size):
        return membership(key, 1.1 * rate, size)

    for mutant, check in (
        (halves_alike, check_roles_are_sampled_independently),
        (fixed, check_steps_are_sampled_independently),
        (more, check_rate),
    ):
        monkeypatch.setattr(noise_module, "membership", mutant)
        answers = taken_by_role(0.3, 60, 60)
        with pytest.raises(AssertionError):
            check(0.3, answers)


def test_an_empty_batch_is_pure_noise():
    """With a rate of 1e-12 no record is ever sampled."""
    release = mean_release(clip=1.0, count=20, noise_std=0.7, uses=5, sampling=Poisson(1e-12))
    answers = executed(release, Records(lower=np.full((20, 3), 1e20)), 3, seed=3)
    with isolated_jax_config():
        keys = KeySchedule(3).keys("noise", 0, 5)
        noise = np.stack([0.7 * np.asarray(standard_normal(jnp.asarray(key), 3)) for key in keys])
    np.testing.assert_array_equal(answers, noise.astype(np.float32))


def test_a_rate_of_one_takes_everybody():
    release = mean_release(clip=10.0, count=4, sampling=Poisson(1.0))
    np.testing.assert_allclose(executed(release, Records(lower=np.float32([1, 2, 3, 6])), 1), [[3.0]], rtol=1e-6)


# ---- the answer


def test_the_answer_has_the_structure_and_type_of_the_vector():
    parts = {"lower": Contribution(logistic, 100.0, 50)}
    release = Release(name="gradient", contributions=parts, noise_std=0.0, uses=1)
    case = CASES["logistic"]
    with isolated_jax_config():
        records = {"lower": (case.records["lower"], np.ones(50, bool))}
        answer = jax.jit(lambda point: release.answer(records, point, jnp.zeros((2, 2), jnp.uint32)))(case.point)
        expected = jax.tree.map(
            lambda leaf: leaf.mean(axis=0), jax.vmap(logistic, (None, 0))(case.point, case.records["lower"])
        )
    assert {name: (leaf.shape, leaf.dtype) for name, leaf in answer.items()} == {
        "w": ((4,), np.float32),
        "b": ((), np.float32),
    }
    for name, leaf in answer.items():
        np.testing.assert_allclose(leaf, expected[name], rtol=1e-5, atol=1e-6)


def test_roles_are_averaged_apart():
    parts = {"upper": Contribution(identity, 100.0, 2), "lower": Contribution(lambda point, record: -record, 100.0, 4)}
    release = Release(name="difference", contributions=parts, noise_std=0.0, uses=1)
    records = Records(upper=np.float32([1, 3]), lower=np.float32([1, 2, 3, 4]))
    np.testing.assert_allclose(executed(release, records, 1), [[2.0 - 2.5]], rtol=1e-5)
