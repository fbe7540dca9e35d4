"""A disk that fails or fills up loses nothing that was paid for. `make trust` fills a real one at every write."""

import pytest
from support.full_disks import charges_on_little_space, filled, injected, reason_to_skip

small_disks = pytest.mark.skipif(reason_to_skip() is not None, reason=reason_to_skip() or "")


@pytest.mark.parametrize("mode", ["once", "broken"])
def test_a_disk_that_fails_at_any_step_loses_nothing_that_was_charged(tmp_path, mode):
    runs, wrong = injected(tmp_path / "runs", mode)
    assert runs > 15
    assert wrong == {}


@pytest.mark.slow
@small_disks
def test_a_disk_that_is_full_from_any_step_on_loses_nothing_that_was_charged(tmp_path):
    runs, wrong = filled(tmp_path / "runs")
    assert runs > 15
    assert wrong == {}


@small_disks
def test_a_ledger_on_a_disk_with_little_space_charges_and_says_so_or_neither(tmp_path):
    outcomes = charges_on_little_space(tmp_path)
    assert {"charged", "refused"} == set(outcomes)
