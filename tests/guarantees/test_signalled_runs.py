"""Ctrl-C and SIGTERM are never lost, and the message is true. `make trust` sends 200 at random moments."""

import pytest
from support.signalled_runs import ABORTED, MOMENTS, faults, happened

ONE_OF_EACH_OUTCOME = ("before the charge", "at the first round", "while results are written")


@pytest.mark.slow
@pytest.mark.parametrize(
    "moments", [ONE_OF_EACH_OUTCOME, pytest.param(tuple(MOMENTS), marks=pytest.mark.heavy)], ids=len
)
def test_signals_at_chosen_moments_are_answered_and_a_mutant_that_raises_is_noticed(tmp_path, moments):
    *found, mutant = happened(tmp_path, moments=(*moments, "mutant"))
    assert {one["moment"]: one["faults"] for one in found} == {moment: [] for moment in moments}
    assert mutant["faults"] == ["lost signal", "another message", "a traceback"]


def test_the_chosen_moments_have_all_outcomes():
    assert {MOMENTS[moment][0] for moment in ONE_OF_EACH_OUTCOME} == {outcome for outcome, _ in MOMENTS.values()}


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, pytest.param(8, marks=pytest.mark.heavy)])
def test_signals_at_random_moments_are_answered(tmp_path, signals):
    found = happened(tmp_path, random=signals)
    assert [one["faults"] for one in found] == [[]] * len(found)
    assert sum(not one["late"] for one in found) == signals


GOOD = {
    "status": 130,
    "said": "dpbilevel: interrupted. The run had started: its epsilon is charged and counts as spent; aborted.\n",
    "charged": ABORTED[0],
    "state": ABORTED[1],
}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, []),
        ({"charged": 0, "state": "nothing"}, ["another message"]),
        ({"charged": 0, "state": "nothing", "said": "dpbilevel: interrupted. Nothing was spent."}, []),
        ({"status": 0}, ["lost signal"]),
        ({"status": -2}, ["ended with -2"]),
        ({"state": "running"}, ["left (1, 'running')"]),
        ({"charged": 0}, ["left (0, 'aborted')"]),
        ({"said": "Traceback\n" + GOOD["said"]}, ["a traceback"]),
    ],
)
def test_faults_are_named(tmp_path, change, fault):
    assert faults(GOOD | change, tmp_path / "run") == fault
