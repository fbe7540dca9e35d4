"""A ledger in a database travels: as an address without its password, to saved models and to other processes."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.model_selection import KFold, cross_val_score
from support import postgresql_server
from support.ledger_racers import TOTAL, charge

import dpbilevel as dpb
from dpbilevel.errors import LedgerUnavailable

PASSWORD = "s3cret-of-the-server"


@pytest.fixture
def ledger(tmp_path):
    return dpb.Ledger.open(f"sqlite:///{tmp_path}/ledger.db", dataset="hospital", total=TOTAL, who="Ana")


def test_a_pickle_is_the_same_ledger_at_another_place(ledger, tmp_path, monkeypatch):
    charge(ledger, 0.2)
    again = pickle.loads(pickle.dumps(ledger))
    charge(again, 0.3)
    assert again.total == TOTAL
    assert again.entries == ledger.entries
    assert [entry.user for entry in ledger.entries] == ["Ana", "Ana"]
    with pytest.raises(dpb.BudgetExceeded):
        charge(pickle.loads(pickle.dumps(again)), 0.6)
    assert again.is_stored


def test_a_relative_address_and_odd_names_lead_to_the_same_file_from_everywhere(tmp_path, monkeypatch):
    home = tmp_path / "what? 100%20 #1"
    home.mkdir()
    monkeypatch.chdir(home)
    carried = pickle.dumps(dpb.Ledger.open("sqlite:///ledger.db", dataset="hospital", total=TOTAL))
    monkeypatch.chdir(tmp_path)
    charge(pickle.loads(carried), 0.2)
    assert os.listdir(tmp_path) == [home.name]


def test_it_is_opened_when_it_is_first_asked_so_that_models_load_without_it(ledger, tmp_path):
    carried = pickle.dumps(ledger)
    (tmp_path / "ledger.db").rename(tmp_path / "elsewhere.db")
    again = pickle.loads(carried)
    assert pickle.loads(pickle.dumps(again))._address == again._address == ledger._store.address
    assert repr(again) == "Ledger(cannot be read: InvalidArgument)"
    with pytest.raises(dpb.InvalidArgument, match="does not exist"):
        charge(again, 0.1)
    assert not (tmp_path / "ledger.db").exists(), "a pickle never begins a ledger"
    (tmp_path / "elsewhere.db").rename(tmp_path / "ledger.db")
    charge(again, 0.1)


def test_another_ledger_at_the_same_address_is_refused(ledger, tmp_path):
    charge(ledger, 0.2)
    carried = pickle.dumps(ledger)
    for path in tmp_path.iterdir():
        path.unlink()
    other = dpb.Ledger.open(f"sqlite:///{tmp_path}/ledger.db", dataset="hospital", total=TOTAL)
    charge(other, 0.1)
    with pytest.raises(dpb.LedgerCorrupt, match="existed before are missing"):
        charge(pickle.loads(carried), 0.1)


def test_workers_of_joblib_charge_one_ledger(ledger):
    """loky hands pickles to processes of its own."""
    joblib.Parallel(n_jobs=2)(joblib.delayed(charge)(ledger, 0.2) for _ in range(4))
    assert len(ledger.entries) == 4
    assert len({entry.pid for entry in ledger.entries} - {os.getpid()}) in (1, 2)
    with pytest.raises(dpb.BudgetExceeded):
        joblib.Parallel(n_jobs=2)(joblib.delayed(charge)(ledger, 0.3) for _ in range(2))
    assert len(ledger.entries) == 4


@pytest.mark.slow
def test_a_fitted_model_is_saved_and_cross_validation_in_two_processes_charges_truly(tmp_path):
    ledger = dpb.Ledger.open(f"sqlite:///{tmp_path}/ledger.db", dataset="rows", total=dpb.Budget(9.0, 1e-4))
    draws = np.random.default_rng(0)
    rows = draws.uniform(-1, 1, (1200, 3))
    labels = np.where(rows[:, 0] > 0, "yes", "no")
    model = dpb.estimators.DPLogisticRegressionCV(
        epsilon=2.0, delta=1e-5, classes=["no", "yes"], bounds=(-1, 1), ledger=ledger, method=dpb.Refit(steps=4)
    )
    scores = cross_val_score(model, rows, labels, cv=KFold(2, shuffle=True, random_state=0), n_jobs=2)
    assert len(scores) == len(ledger.entries) == 2
    assert os.getpid() not in {entry.pid for entry in ledger.entries}
    model.fit(rows, labels)
    joblib.dump(model, tmp_path / "model")
    again = joblib.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(rows[:20]), model.predict(rows[:20]))
    assert again.ledger.entries == ledger.entries
    assert len(ledger.entries) == 3


# --- passwords ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["password", "sslpassword"])
def test_a_password_among_the_options_of_an_address_is_refused_unseen(name):
    with pytest.raises(dpb.InvalidArgument, match="PGPASSWORD") as refusal:
        dpb.Ledger.open(f"postgresql://ann@127.0.0.1:1/books?{name}={PASSWORD}", dataset="x")
    assert PASSWORD not in str(refusal.value)


reason = postgresql_server.reason_to_skip()

SPENDING = """
import pickle, sys
from support.ledger_racers import charge
charge(pickle.loads(bytes.fromhex(sys.argv[1])), 0.1)
"""


@pytest.mark.skipif(reason is not None, reason=reason or "")
def test_a_password_is_left_behind_and_comes_from_where_postgresql_looks_for_it(tmp_path, monkeypatch):
    with postgresql_server.server(password=PASSWORD) as url:
        ledger = dpb.Ledger.open(url, dataset="hospital", total=TOTAL)
        carried = pickle.dumps(ledger)
        assert PASSWORD.encode() not in carried
        with pytest.raises(LedgerUnavailable, match=r"does not contain the password.*pgpass.*PGPASSWORD") as refusal:
            charge(pickle.loads(carried), 0.1)
        assert PASSWORD not in str(refusal.value)
        sources = [str(Path(dpb.__file__).parents[1]), str(Path(__file__).parents[1]), *sys.path]
        given = os.environ | {"PGPASSWORD": PASSWORD, "PYTHONPATH": os.pathsep.join(sources)}
        subprocess.run([sys.executable, "-c", SPENDING, carried.hex()], env=given, check=True, timeout=120)
        file = tmp_path / "pgpass"
        file.write_text(f"*:*:*:*:{PASSWORD}\n")
        file.chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(file))
        charge(pickle.loads(carried), 0.1)
        assert len(ledger.entries) == 2
        assert PASSWORD not in json.dumps(ledger.statement().to_json())
