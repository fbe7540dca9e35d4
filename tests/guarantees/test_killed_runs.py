"""Runs that are killed, at every phase, lose no charge and no ledger, and resume. `make trust` kills 200."""

import signal

import pytest
from support.killed_runs import PHASES, faults, happened

MUTANTS = ("uncharged", "forgetful")
EVERY = (*PHASES, *list(PHASES)[:2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "phases", [("within the charge", "mid-loop"), pytest.param(EVERY, marks=pytest.mark.heavy)], ids=len
)
def test_kills_under_count_nothing_and_a_mutant_that_does_not_charge_is_noticed(tmp_path, phases):
    """The command line; test_checkpoint.py kills runs of `solve` in every phase."""
    *found, mutant, forgetful = happened(tmp_path, len(phases) + len(MUTANTS), (*phases, *MUTANTS))
    assert [kill["phase"] for kill in found] == list(phases)
    assert [faults(kill) for kill in found] == [[]] * len(found)
    assert any(kill["touched"] for kill in found), "none was killed while it ran"
    assert {kill["status"] for kill in found if kill["phase"] == "mid-loop"} == {-signal.SIGKILL}
    assert any(not kill["touched"] for kill in found), "none was killed before it ran"
    assert "under-counted budget" in faults(mutant)
    assert faults(forgetful) == ["resumed to other bits"]
    if phases == EVERY:
        assert any(not kill["charged"] for kill in found), "none was killed before its charge"
        assert sum("resumed" in kill for kill in found) >= 4, "few were killed when there was something to resume"


END = {"status": 0, "charged": 1, "touched": True, "state": "finished", "same": True}
GOOD = {"phase": "mid-loop", "status": -9, "charged": 1, "touched": True, "state": "running"}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, []),
        ({"charged": 0, "touched": False, "state": "nothing"}, []),
        ({"charged": None}, ["unreadable ledger"]),
        ({"charged": 0}, ["under-counted budget"]),
        ({"charged": 0, "touched": False, "state": "finished"}, ["under-counted budget"]),
        ({"charged": 2}, ["charged more than once"]),
        ({"state": "half a file"}, ["half a file"]),
        ({"status": 1}, ["ended with 1"]),
        ({"resumed": END}, []),
        ({"resumed": END | {"status": 2}}, ["resumed, ended with 2"]),
        ({"resumed": END | {"state": "aborted"}}, ["resumed, ended with 0"]),
        ({"resumed": END | {"charged": 2}}, ["resumed, not charged once"]),
        ({"resumed": END | {"charged": None}}, ["resumed, not charged once"]),
        ({"resumed": END | {"same": False}}, ["resumed to other bits"]),
    ],
)
def test_faults_are_reported(change, fault):
    assert faults(GOOD | change) == fault
