"""What `dpbilevel ledger` shows and exports."""

import json

import pytest
from support.ledger_racers import TOTAL, Run, charge

import dpbilevel as dpb
from dpbilevel.cli import ledger as commands
from dpbilevel.privacy.ledger import Ledger


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.db"
    for name, share in (("hospital", 0.5), ("school", 1.0)):
        charge(dpb.Ledger.open(f"sqlite:///{path}", dataset=name, total=TOTAL, who="Ana"), share)
    return str(path)


@pytest.mark.parametrize("suffix", [".db", ".sqlite", ".sqlite3"])
def test_the_path_of_a_file_is_an_address(suffix, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert commands.ledger_url(f"a/b{suffix}") == f"sqlite:///a/b{suffix}"
    assert commands.ledger_url(f"~/b{suffix}") == f"sqlite:///{tmp_path}/b{suffix}"


def test_what_is_neither_a_path_nor_an_address_is_refused():
    with pytest.raises(dpb.InvalidArgument, match=r"ledger ledger\.txt: must be a file that ends in \.db"):
        commands.ledger_url("ledger.txt")


def test_data_sets_are_listed_in_their_order(path):
    assert commands.datasets(path) == ("hospital", "school")


def test_one_data_set_is_shown(path):
    (view,) = commands.show(path, "school")
    facts = dict(view.facts)
    assert facts["data set"] == "school"
    assert facts["spent"] == "epsilon 2 at delta 1e-06"
    assert facts["remaining"] == "nothing"
    ((number, _, who, what, epsilon, delta, mu, rows_per_unit, _),) = view.rows
    assert rows_per_unit == ""
    assert len(commands.HEADERS) == len(view.rows[0])
    assert (number, what, epsilon, delta) == ("1", "a share of 1", "2", "1e-06")
    assert who.startswith("Ana on ")
    assert float(mu) == pytest.approx(TOTAL.mu, abs=1e-3)


def test_the_unit_of_a_ledger_is_shown_and_kept(tmp_path, command):
    path, url = f"{tmp_path}/visits.db", f"sqlite:///{tmp_path}/visits.db"
    create = ("ledger", "create", path, "--dataset", "visits", "--epsilon", "2")
    code, stdout, _ = command(*create, "--unit", "person")
    assert code == 0
    assert "Unit of privacy: all rows with the same person." in stdout
    Ledger.open(url, dataset="visits").charge([Run(0.5)], TOTAL, "run", rows_per_unit=8)
    assert command(*create)[0] == command(*create, "--unit", "person")[0] == 0
    code, _, stderr = command(*create, "--unit", "visit")
    assert code != 0
    assert "--unit visit: the ledger of visits is for all rows with the same person" in stderr
    (view,) = commands.show(path)
    assert dict(view.facts)["unit of privacy"] == "all rows with the same person"
    assert view.rows[0][commands.HEADERS.index("rows per unit")] == "8"


def test_it_is_said_why_spent_and_remaining_do_not_add_up(path):
    (view,) = commands.show(path, "hospital")
    facts = dict(view.facts)
    assert float(facts["spent"].split()[1]) + float(facts["remaining"].split()[1]) > TOTAL.epsilon + 0.1
    assert "do not add up to the total" in facts["note"]
    assert f"{0.5 * TOTAL.mu**2:.4g} of {TOTAL.mu**2:.4g}" in facts["note"]


def test_where_epsilons_add_up_nothing_needs_to_be_said(tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    charge(dpb.Ledger.open(url, dataset="new", total=TOTAL, composition="basic"), 0.5)
    (view,) = commands.show(url)
    assert "note" not in dict(view.facts)


def test_all_data_sets_are_shown_where_none_is_named(path):
    views = commands.show(path, None)
    assert [dict(view.facts)["data set"] for view in views] == ["hospital", "school"]
    assert [view.statement.to_json()["dataset"] for view in views] == ["hospital", "school"]


def test_a_ledger_without_charges_is_shown(tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    dpb.Ledger.open(url, dataset="new", total=dpb.Budget(float("inf")))
    (view,) = commands.show(url)
    assert view.rows == ()
    assert dict(view.facts)["composition"] == "decided by the first run"


def test_a_data_set_is_exported(path, tmp_path):
    written = commands.export(path, "hospital", tmp_path / "out.json")
    assert json.loads(written.read_text("utf-8"))["dataset"] == "hospital"


def test_an_export_needs_a_data_set_where_there_are_several(path, tmp_path):
    with pytest.raises(dpb.InvalidArgument, match="must name one of hospital, school"):
        commands.export(path, None, tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("look", [commands.datasets, commands.show], ids=["datasets", "show"])
def test_looking_makes_no_file(tmp_path, look):
    with pytest.raises(dpb.InvalidArgument, match="does not exist"):
        look(str(tmp_path / "ledger.db"))
    assert list(tmp_path.iterdir()) == []
