"""Runs that are killed, at every phase, lose no charge and no ledger. `make trust` kills 200."""

import pytest
from support.killed_runs import PHASES, faults, happened

KILLS = 12


@pytest.mark.slow
def test_kills_at_every_phase_under_count_nothing_and_a_mutant_that_does_not_charge_is_noticed(tmp_path):
    *found, mutant = happened(tmp_path, KILLS + 1, (*PHASES, *list(PHASES)[: KILLS - len(PHASES)], "uncharged"))
    assert {kill["phase"] for kill in found} == set(PHASES)
    assert [faults(kill) for kill in found] == [[]] * KILLS
    assert any(kill["touched"] for kill in found), "none was killed while it ran"
    assert any(not kill["charged"] for kill in found), "none was killed before its charge"
    assert faults(mutant) == ["under-counted budget"]


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
    ],
)
def test_faults_are_reported(change, fault):
    assert faults(GOOD | change) == fault
