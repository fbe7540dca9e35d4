"""A job of which one process is killed loses no charge, does not hang, and resumes. `make trust` kills 100."""

import pytest
from support.killed_jobs import KILLS, MUTANTS, faults, happened


@pytest.mark.slow
def test_a_job_whose_other_process_is_killed_is_resumed(tmp_path):
    (kill,) = happened(tmp_path, 1, ((1, "as the first charges"),), "tune")
    assert faults(kill) == []
    assert kill["codes"] == [4, -9]
    assert (kill["charged"], kill["state"]) == (1, "aborted")
    assert kill["resumed"]["same"]


@pytest.mark.heavy
def test_kills_of_either_process_under_count_nothing_and_mutants_are_noticed(tmp_path):
    *found, mutant, forgetful = happened(tmp_path, len(KILLS) + len(MUTANTS), (*KILLS, *MUTANTS))
    assert [faults(kill) for kill in found] == [[]] * len(found)
    assert any(kill["touched"] for kill in found), "none was killed while it ran"
    assert any(not kill["charged"] for kill in found), "none was killed before its charge"
    assert sum("resumed" in kill for kill in found) >= 4, "few were killed when there was something to resume"
    assert "under-counted budget" in faults(mutant)
    assert faults(forgetful) == ["resumed to other bits"]


END = {"status": 0, "codes": [0, 0], "seconds": 0.1, "charged": 1, "touched": True, "state": "finished", "same": True}
GOOD = {"status": 4, "codes": [4, -9], "seconds": 3.0, "charged": 1, "touched": True, "state": "aborted"}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, []),
        ({"status": 2, "codes": [2, -9], "charged": 0, "touched": False, "state": "nothing"}, []),
        ({"status": 0, "codes": [0, 0], "state": "finished"}, []),
        ({"seconds": 60.0}, ["hang"]),
        ({"charged": None}, ["unreadable ledger"]),
        ({"charged": 0}, ["under-counted budget"]),
        ({"charged": 2}, ["charged more than once"]),
        ({"state": "half a file"}, ["half a file"]),
        ({"status": 2}, ["said that nothing was spent"]),
        ({"status": 0, "codes": [0, 0]}, ["ended with 0 and aborted"]),
        ({"resumed": END}, []),
        ({"resumed": END | {"seconds": 60.0}}, ["hang"]),
        ({"resumed": END | {"status": 2}}, ["resumed, ended with 2"]),
        ({"resumed": END | {"charged": 2}}, ["resumed, not charged once"]),
        ({"resumed": END | {"same": False}}, ["resumed to other bits"]),
    ],
)
def test_faults_are_reported(change, fault):
    assert faults(GOOD | change) == fault
