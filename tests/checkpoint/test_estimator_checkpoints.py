"""Checkpoints of estimators: a fit that was interrupted resumes to the same bits, charged once, with the same facts."""

import inspect
import random
import warnings

import numpy as np
import pandas
import pytest
from support.estimator_cases import untrained

import dpbilevel as dpb
from dpbilevel import estimators
from dpbilevel.estimators.prepared import Prepared
from dpbilevel.execution.running import chunk_length
from dpbilevel.privacy import noise

SECRET = bytes(range(32))
DRAWS = np.random.default_rng(0)
X = DRAWS.uniform(-0.5, 0.5, (60, 2)).astype(np.float32)
LABELS, NUMBERS, PLACES = (X[:, 0] > 0).astype(int), np.float64(X[:, 0]), np.arange(60) % 2
METHOD = dpb.Refit(steps=4, learning_rate=0.5)  # four chunks, each of one step of Adam
MODELS = {
    "DPLogisticRegressionCV": {"y": LABELS},
    "DPRidgeCV": {"y": NUMBERS},
    "DPSourceWeightedClassifier": {"y": LABELS, "sources": PLACES},
    "DPSourceWeightedRegressor": {"y": NUMBERS, "sources": PLACES},
    "DPMultiTaskRidge": {"y": NUMBERS, "tasks": PLACES},
}


class Cut(BaseException):
    """The end of a process, as far as a test in the same process can have it."""


@pytest.fixture(autouse=True)
def _nothing_is_declared_and_rows_are_few():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.PrivacyLeakWarning)
        warnings.simplefilter("ignore", dpb.UtilityWarning)
        yield


def fitted(name, path=None, X=X, *, ledger=None, fixed=False, settings=(), **changes):
    """A fitted model; with ``fixed``, its noise is that of a first process."""
    model = getattr(estimators, name)(**{"delta": 1e-4, "method": METHOD, "ledger": ledger} | dict(settings))
    others = random.Random(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise.secrets, "token_bytes", lambda size: SECRET[:size] if fixed else others.randbytes(size))
        return model.fit(X, **MODELS[name] | changes, checkpoint=path)


def cut_off(name, path, chunks, **changes):
    """A fit that ends after some chunks."""
    execute, done = dpb.Records.execute, []

    def counted(*arguments):
        if len(done) == chunks:
            raise Cut
        done.append(1)
        return execute(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpb.Records, "execute", counted)
        with pytest.raises(Cut):
            fitted(name, path, fixed=True, **changes)


def bits(model):
    known = {name: np.asarray(value) for name, value in vars(model).items() if name.endswith("_") and name[0] != "_"}
    values = {name: (str(value.dtype), value.tobytes()) for name, value in known.items() if value.dtype != object}
    assert {"coef_", "intercept_"} <= set(values)
    return values, model.solution_.to_json()


def ledger(folder, number=0):
    return dpb.Ledger.open(f"sqlite:///{folder}/ledger-{number}.db", dataset="rows", total=dpb.Budget(3.0, 1e-3))


def test_every_estimator_is_here_and_takes_a_checkpoint_by_keyword_only():
    assert set(MODELS) == set(estimators.__all__)
    for name in MODELS:
        parameter = inspect.signature(getattr(estimators, name).fit).parameters["checkpoint"]
        assert (parameter.kind, parameter.default) == (inspect.Parameter.KEYWORD_ONLY, None)


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_that_was_cut_off_resumes_to_the_same_bits_and_is_charged_once(name, tmp_path):
    path = tmp_path / "fit.checkpoint"
    whole = fitted(name, fixed=True)
    cut_off(name, path, 2, ledger=ledger(tmp_path))
    resumed = fitted(name, path, ledger=ledger(tmp_path))
    assert bits(resumed) == bits(whole)
    assert resumed.privacy_.caveats == whole.privacy_.caveats != ()
    assert len(ledger(tmp_path).entries) == 1
    again = fitted(name, path, ledger=ledger(tmp_path))  # a finished fit is read from its checkpoint
    assert bits(again) == bits(whole)
    assert len(ledger(tmp_path).entries) == 1


PEOPLE = np.arange(60) // 3
UNITS = {"rows_per_unit": 3, "unit_ids": range(25)}


def test_a_fit_of_units_resumes_with_the_same_rows_of_the_same_units(tmp_path):
    name, given = "DPLogisticRegressionCV", {"settings": UNITS, "units": PEOPLE}
    whole = fitted(name, fixed=True, **given)
    for number, changes in enumerate(({"X": np.where(PEOPLE[:, None] == 7, 0.25, X)}, {"units": np.roll(PEOPLE, 1)})):
        path = tmp_path / f"fit-{number}"
        cut_off(name, path, 2, ledger=ledger(tmp_path, number), **given)
        with pytest.raises(dpb.CheckpointRefused):
            fitted(name, path, **given | changes)
        resumed = fitted(name, path, ledger=ledger(tmp_path, number), **given)
        assert bits(resumed) == bits(whole)
        assert [entry.rows_per_unit for entry in ledger(tmp_path, number).entries] == [3]


def test_standard_errors_of_a_training_that_follows_tuning_are_resumed(tmp_path):
    """Those of a process that ended before, within or after the training are the bits of an uninterrupted run."""
    draws = np.random.default_rng(0)
    rows = draws.uniform(-0.5, 0.5, (3000, 2)).astype(np.float32)
    settings = {"method": dpb.Tracking(steps=2), "epsilon": 8.0, "data_norm": 1.0, "target_range": (-1, 1)}
    given = {"X": rows, "y": np.float64(rows[:, 0]), "sources": np.arange(3000) % 2}
    name = "DPSourceWeightedRegressor"
    whole = fitted(name, fixed=True, settings=settings, **given)
    assert whole.coef_noise_.shape == whole.coef_.shape
    assert (whole.coef_noise_ > 0).all()
    parts = whole._prepare(rows, given["y"], sources=given["sources"]).planned.parts
    chunks = sum(-(-part.rounds // chunk_length(part.rounds)) for part in parts)
    for done in range(1, chunks + 1):
        path = tmp_path / f"fit-{done}"
        if done < chunks:
            cut_off(name, path, done, settings=settings, **given)
        else:
            fitted(name, path, fixed=True, settings=settings, **given)
        assert bits(fitted(name, path, settings=settings, **given)) == bits(whole)


# Other facts, with which the encoded records are the same to the bit.
OTHERS = {
    "classes": ("DPLogisticRegressionCV", {"y": np.where(LABELS, "yes", "no")}),
    "range": ("DPRidgeCV", {"y": 2 * NUMBERS}),
    "norm": ("DPRidgeCV", {"X": 2 * X}),
    "columns": ("DPRidgeCV", {"X": pandas.DataFrame(X, columns=["age", "height"])}),
    "groups": ("DPRidgeCV", {"settings": {"groups": ["b", "b"]}}),
    "sources": ("DPSourceWeightedClassifier", {"sources": PLACES + 1}),
    "tasks": ("DPMultiTaskRidge", {"tasks": PLACES + 1}),
}


def refused(path, other):
    name, changes = OTHERS[other]
    cut_off(name, path, 2)
    before = path.read_bytes()
    try:
        fitted(name, path, **changes)
    except dpb.CheckpointRefused as error:
        assert path.read_bytes() == before
        return str(error)
    return ""


@pytest.mark.parametrize("other", OTHERS)
def test_other_facts_are_refused(other, tmp_path):
    assert "was created with another set of columns, classes, ranges or names" in refused(tmp_path / "fit", other)


@pytest.mark.parametrize("other", ["classes", "range", "columns"])
def test_a_twin_whose_fingerprint_has_no_facts_is_noticed(other, tmp_path, monkeypatch):
    monkeypatch.setattr(Prepared, "facts_as_text", lambda self: "")
    assert refused(tmp_path / "fit", other) == ""


def test_other_rows_and_other_caveats_are_refused(tmp_path):
    changed = X.copy()
    changed[0] = -changed[0]
    for number, (changes, said) in enumerate(
        [
            ({"X": changed}, "records: are not those"),
            ({"settings": {"target_range": (NUMBERS.min(), NUMBERS.max())}}, "plan"),
        ]
    ):
        path = tmp_path / f"fit-{number}"
        cut_off("DPRidgeCV", path, 2)
        with pytest.raises(dpb.CheckpointRefused, match=said):
            fitted("DPRidgeCV", path, **changes)


def test_a_fit_plans_once(monkeypatch):
    """A plan that is made is the plan that runs; penalties may need a second one, of a smaller range."""
    from dpbilevel.estimators import base

    monkeypatch.setattr(dpb.Records, "execute", untrained)
    made, run = [], []
    prepare, execute = base.prepare, base.execute
    monkeypatch.setattr(base, "prepare", lambda *arguments: made.append(prepare(*arguments)) or made[-1])
    monkeypatch.setattr(
        base, "execute", lambda planned, *rest, **more: run.append(planned) or execute(planned, *rest, **more)
    )
    for name in MODELS:
        made.clear()
        run.clear()
        fitted(name, settings={"epsilon": 100.0})
        assert len(made) == len(run) == 1
        assert run[0].program is made[0].program
