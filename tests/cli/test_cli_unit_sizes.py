"""`dpbilevel unit-sizes`: what it charges and prints, and what it refuses before anything is spent."""

import json

import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.cli import unit_sizes as module

SIZES = ("unit-sizes", "visits.csv", "--unit", "patient", "--delta", "1e-5")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    people = np.repeat(np.arange(900), np.arange(900) % 6 + 1)  # 1 to 6 rows
    lines = [f"secret-{one},{at}" for at, one in enumerate(people)]
    (tmp_path / "visits.csv").write_text("\n".join(["patient,cost", *lines]))
    return tmp_path


def test_the_histogram_is_charged_and_shown(place, command):
    ledger = f"sqlite:///{place}/ledger.db"
    dpb.Ledger.open(ledger, dataset="visits", total=dpb.Budget(1.2, 1e-5))
    code, stdout, stderr = command(*SIZES, "--epsilon", "1", "--ledger", ledger, "--largest", "8")
    assert code == 0, stderr
    for words in ("(1, 1e-05)-differentially private", "of 900 units", "rows at most", "one unit"):
        assert words in stdout
    assert "secret" not in stdout + stderr
    (entry,) = dpb.Ledger.open(ledger, dataset="visits").entries
    assert (entry.description, entry.rows_per_unit, round(entry.epsilon, 6)) == ("rows per unit", 1, 1.0)
    code, _, stderr = command(*SIZES, "--epsilon", "1", "--ledger", ledger)
    assert code == 3
    assert "epsilon 1 of 1.2 spent" in stderr


def test_the_released_fractions_are_near_the_true_ones(place, command):
    code, stdout, _ = command(*SIZES, "--epsilon", "4", "--largest", "4", "--json")
    assert code == 0
    found = json.loads(stdout)
    assert list(found["fractions"]) == ["1", "2", "4", "more"]
    truth = np.array([1, 1, 2, 2]) / 6
    assert np.abs(np.array([*found["fractions"].values()]) - truth).max() < 6 * found["noise"] < 0.1
    assert (found["units"], found["private"]) == (900, True)


def test_a_list_of_ids_is_the_number_of_units(place, command):
    (place / "members.txt").write_text("\n".join(f"secret-{one}" for one in range(1000)) + "\n")
    code, stdout, stderr = command(*SIZES, "--epsilon", "4", "--json", "--unit-ids", "members.txt")
    assert code == 0, stderr
    assert json.loads(stdout)["units"] == 1000
    assert "secret" not in stdout + stderr


@pytest.mark.parametrize(
    ("more", "stdout"),
    [
        (("--unit", "doctor"), "--unit doctor: visits.csv has no such column"),
        (("--epsilon", "inf"), "--epsilon inf: must be finite"),
        (("--epsilon", "0"), "--epsilon 0"),
        (("--largest", "0"), "--largest 0"),
        (("--delta", "0.1"), "--delta 0.1"),
        (("--dataset", "visits"), "--dataset: requires --ledger"),
        (("--unit-ids", "visits.csv"), "--unit-ids: must list all ids that may be in the data"),
        (("--unit-ids", "nowhere.txt"), "--unit-ids nowhere.txt: cannot be read"),
        (("--delimiter", "ab"), "--delimiter 'ab'"),
    ],
)
def test_what_is_wrong_ends_before_the_charge(place, command, monkeypatch, more, stdout):
    monkeypatch.setattr(dpb.Ledger, "charge", lambda *_, **__: pytest.fail("charged"))
    code, _, stderr = command(*SIZES, "--epsilon", "1", *more)
    assert code == 2
    assert stdout in stderr


def test_a_row_without_an_id_ends_before_the_charge_and_quotes_none(place, command, monkeypatch):
    monkeypatch.setattr(dpb.Ledger, "charge", lambda *_, **__: pytest.fail("charged"))
    (place / "visits.csv").write_text("patient,cost\nsecret-1,2\n,3\n")
    code, _, stderr = command(*SIZES, "--epsilon", "1")
    assert code == 2
    assert "missing" in stderr
    assert "secret" not in stderr


def test_a_failure_after_the_charge_says_that_epsilon_is_spent(place, command, monkeypatch):
    def failing(*_, ledger, **__):
        ledger.receipt = object()
        raise MemoryError("secret-1")

    monkeypatch.setattr(module, "unit_sizes", failing)
    code, _, stderr = command(*SIZES, "--epsilon", "1")
    assert code == 4
    assert "its epsilon counts as spent" in stderr
    assert "secret" not in stderr
