"""The accountant of a role: which one is chosen, and that dp_accounting's own say the same of the exported event."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import dpbilevel as dpb
from dpbilevel.privacy.accountant import ConcentratedAccountant, GaussianAccountant, LossAccountant, accountant
from dpbilevel.privacy.accounting import Charge
from dpbilevel.privacy.declared import ApproximateDP
from dpbilevel.privacy.sampling import Sampling, sampling_from_json

RELATIONS = {
    "replace-one": dp_accounting.NeighboringRelation.REPLACE_ONE,
    "zero-out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
}
DELTA = 1e-6


def charge(ratio=0.05, uses=20, sampling=None, **more):
    return Charge("release", "lower", ratio, uses, sampling or dpb.FullBatch(), 1000, **more)


def privacy(*charges, adjacency="replace-one", **more):
    return dpb.Privacy({"lower": charges}, dpb.Budget(1.0, DELTA, adjacency), **more)


def test_each_kind_of_charge_has_its_accountant():
    declared = charge(0.0, 1, declared=ApproximateDP(0.1, 1e-9))
    for kind, charges in {
        GaussianAccountant: [charge(), charge(sampling=dpb.Poisson(1.0))],
        ConcentratedAccountant: [charge(exact=True), charge()],
        LossAccountant: [charge(), declared],
    }.items():
        assert type(accountant(charges, "replace-one")) is kind
        assert accountant(charges, "replace-one").adds_up == (kind is not LossAccountant)
    for sampling in (dpb.Poisson(0.1), dpb.WithoutReplacement(10), dpb.WithReplacement(10)):
        assert type(accountant([charge(sampling=sampling)], "zero-out")) is LossAccountant
    assert accountant([charge(), declared], "zero-out").description.endswith("with costs declared by black boxes")


# ------------------------------------------------------------------------------------------------ exported events


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("rate", [1.0, 0.02])
def test_the_pld_accountant_agrees(adjacency, rate):
    ours = privacy(charge(0.05, 40), charge(0.8, 30, dpb.Poisson(rate)), adjacency=adjacency)
    theirs = PLDAccountant(RELATIONS[adjacency]).compose(ours.dp_event())
    assert theirs.get_epsilon(DELTA) == pytest.approx(ours.epsilon(), abs=1e-3)


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("exact", [False, True])
def test_the_rdp_accountant_agrees_as_far_as_divergences_can(adjacency, exact):
    ours = privacy(charge(0.05, 40, exact=exact), charge(0.2, 3, exact=exact), adjacency=adjacency)
    theirs = RdpAccountant(1 + np.geomspace(1e-2, 1e3, 1000), RELATIONS[adjacency]).compose(ours.dp_event("rdp"))
    claimed = theirs.get_epsilon(DELTA)
    assert claimed == pytest.approx(ours.epsilon(), rel=1e-3 if exact else 0.2)
    assert claimed >= ours.epsilon() * (1 - 1e-9)


def test_poisson_batches_under_zero_out_are_known_to_the_rdp_accountant_too():
    ours = privacy(charge(0.8, 100, dpb.Poisson(0.02)), adjacency="zero-out")
    theirs = RdpAccountant(neighboring_relation=RELATIONS["zero-out"]).compose(ours.dp_event("rdp"))
    assert ours.epsilon() <= theirs.get_epsilon(DELTA) <= 1.5 * ours.epsilon()


def test_batches_without_replacement_are_exported_in_units_of_sensitivity():
    """Fixed-size batches of one record's ratio: dp_accounting's bound is another one, neither below the truth."""
    ours = privacy(charge(1.0, 100, dpb.WithoutReplacement(20)))
    theirs = RdpAccountant(neighboring_relation=RELATIONS["replace-one"]).compose(ours.dp_event("rdp"))
    assert 0.8 * ours.epsilon() <= theirs.get_epsilon(DELTA) <= 2 * ours.epsilon()


@pytest.mark.parametrize(
    ("adjacency", "reader", "sampling", "message"),
    [
        ("replace-one", "rdp", dpb.Poisson(0.1), "must be 'pld'"),
        ("replace-one", "pld", dpb.WithoutReplacement(10), "must be 'rdp'"),
        ("zero-out", "rdp", dpb.WithoutReplacement(10), "compose epsilon"),
        ("zero-out", "pld", dpb.WithReplacement(10), "compose epsilon"),
    ],
)
def test_what_dp_accounting_would_read_otherwise_is_not_exported(adjacency, reader, sampling, message):
    with pytest.raises(dpb.InvalidArgument, match=message):
        privacy(charge(sampling=sampling), adjacency=adjacency).dp_event(reader)


def test_events_are_refused_where_there_is_none():
    with pytest.raises(dpb.InvalidArgument, match="accountant='gdp'"):
        privacy(charge()).dp_event("gdp")
    with pytest.raises(dpb.InvalidArgument, match='must be "rdp" for exact noise'):
        privacy(charge(exact=True)).dp_event()
    with pytest.raises(dpb.InvalidArgument, match="dp_accounting has no event"):
        privacy(charge(0.0, 1, declared=ApproximateDP(0.1, 1e-9))).dp_event()
    with pytest.raises(dpb.InvalidArgument, match="not private"):
        privacy(charge(), void=True).dp_event()


def test_roles_compose_by_themselves():
    small, large = charge(0.05), charge(0.1)
    both = dpb.Privacy({"lower": (small,), "upper": (large,)}, dpb.Budget(1.0, DELTA))
    assert both.dp_event() == both.dp_event(role="upper") != both.dp_event(role="lower")
    sampled = dpb.Privacy({"lower": (small,), "upper": (charge(0.1, 5, dpb.Poisson(0.1)),)}, dpb.Budget(1.0, DELTA))
    with pytest.raises(dpb.InvalidArgument, match="role=None: must be one of"):
        sampled.dp_event()
    assert sampled.dp_event(role="lower") == both.dp_event(role="lower")


# ------------------------------------------------------------------------------------------------ schemes


@pytest.mark.parametrize(
    "sampling", [dpb.FullBatch(), dpb.Poisson(0.25), dpb.WithoutReplacement(4), dpb.WithReplacement(4)]
)
def test_a_scheme_comes_back_from_its_json(sampling):
    reported = sampling.to_json()
    assert reported["sampling"] == type(sampling).__name__
    assert sampling_from_json(reported) == sampling


def test_a_scheme_cannot_take_the_name_of_another():
    with pytest.raises(dpb.InvalidArgument, match="is the name of another scheme"):
        type("Poisson", (Sampling,), {"__module__": "elsewhere"})
    assert sampling_from_json({"sampling": "Poisson", "sampling_parameters": {"rate": 0.5}}) == dpb.Poisson(0.5)
    with pytest.raises(dpb.InvalidArgument, match="is not a known scheme"):
        sampling_from_json({"sampling": "NoSuchScheme", "sampling_parameters": {}})
