"""Cross-validation, searches and splits of scikit-learn: clones are counted, and splits by content are reported."""

import pickle
import re
import warnings
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import VotingClassifier
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from support.estimator_cases import CASES, ENCODER, LABELS, X

import dpbilevel as dpb
from dpbilevel.errors import PrivacyLeakWarning
from dpbilevel.estimators import copies
from dpbilevel.estimators.split import split

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning", "ignore::dpbilevel.PrivacyLeakWarning")
EVERYTHING = [(np.arange(60), np.arange(60))] * 3  # folds that keep the shape of the table
DOCS = Path(__file__).parents[2] / "docs"


def big_ledger():
    return dpb.Ledger(dpb.Budget(99.0, 0.1))


def numbers(caught):
    """Of which copies was warned."""
    found = (re.search(r"clone number (\d+)", str(warning.message)) for warning in caught)
    return [int(match.group(1)) for match in found if match]


# ---- in one process


@pytest.mark.parametrize("with_ledger", [False, True], ids=["alone", "ledger"])
@pytest.mark.parametrize("name", ["logistic", "ridge"])
def test_the_second_copy_warns_ledger_or_not(name, with_ledger):
    case = CASES[name]
    ledger = big_ledger() if with_ledger else None
    with pytest.warns(PrivacyLeakWarning) as caught:
        cross_val_score(case.make(ledger=ledger), X, case.y, cv=EVERYTHING)
    assert numbers(caught) == [2, 3]
    pipeline = make_pipeline(clone(ENCODER), case.make(data_norm=None, ledger=ledger))
    with pytest.warns(PrivacyLeakWarning, match="clone number 2") as caught:
        cross_val_score(pipeline, X, case.y, cv=EVERYTHING)
    assert numbers(caught) == [2, 3]


def test_a_search_marks_what_it_selects():
    ledger = big_ledger()
    search = GridSearchCV(CASES["logistic"].make(ledger=ledger), {"epsilon": [1.0, 2.0]}, cv=EVERYTHING)
    with pytest.warns(PrivacyLeakWarning) as caught:
        search.fit(X, LABELS)
    assert numbers(caught) == [2, 3, 4, 5, 6, 7]  # two candidates on three folds, then the best once more
    best = search.best_estimator_.privacy_
    assert len(best.caveats) == 1
    assert "clone number 7" in best.caveats[0]
    assert best.sentence().startswith("With caveats")
    assert len(ledger.entries) == 7


def test_the_warning_names_the_private_way_and_what_a_split_must_be():
    with pytest.warns(PrivacyLeakWarning, match="clone number 2") as caught:
        cross_val_score(CASES["logistic"].make(), X, LABELS, cv=EVERYTHING[:2])
    (text,) = [str(warning.message) for warning in caught if numbers([warning])]
    for words in (
        "fit tunes by itself",
        "dpb.evaluate",
        "KFold(shuffle=True, random_state=...)",
        "never stratify",
    ):
        assert words in text


@pytest.mark.parametrize("name", ["logistic", "ridge"])
def test_one_copy_is_a_model_like_any_other(name):
    case = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyLeakWarning)
        model = clone(clone(case.make())).fit(X, case.y, **case.more())
    assert model.privacy_.caveats == ()


def test_an_ensemble_of_one_fit_each_is_not_accused():
    voters = [("one", CASES["logistic"].make()), ("two", CASES["logistic"].make(epsilon=2.0))]
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyLeakWarning)
        VotingClassifier(voters).fit(X, LABELS)


def test_copies_of_a_copy_are_as_late_as_it_is():
    model = CASES["logistic"].make()
    third = [clone(model) for _ in range(3)][-1]
    assert "clone number 3" in clone(third)._copies_caveat()
    assert "clone number 4" in [clone(third) for _ in range(3)][-1]._copies_caveat()


def test_results_that_are_not_private_anyway_say_only_that():
    second = [clone(CASES["logistic"].make(random_state=0)) for _ in range(2)][-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyLeakWarning)
        warnings.simplefilter("ignore", dpb.NotPrivateWarning)
        assert second.fit(X, LABELS).privacy_.void


# ---- in other processes


def moved(monkeypatch, model):
    """The same estimator after it was pickled, in what it takes for another process."""
    content = pickle.dumps(model)
    monkeypatch.setattr(copies, "_STARTED", copies._STARTED + 1)
    return pickle.loads(content)


def test_a_copy_is_still_one_in_another_process_and_warns_when_it_leaves(monkeypatch):
    _, second = clone(model := CASES["logistic"].make()), clone(model)
    with pytest.warns(PrivacyLeakWarning, match="clone number 2"):
        elsewhere = moved(monkeypatch, second)
    with pytest.warns(PrivacyLeakWarning, match="clone number 2"):
        elsewhere.fit(X, LABELS)
    assert "clone number 2" in elsewhere.privacy_.caveats[0]
    with warnings.catch_warnings():  # a fitted one has said it, and carries it
        warnings.simplefilter("error", PrivacyLeakWarning)
        assert pickle.loads(pickle.dumps(elsewhere)).privacy_.caveats == elsewhere.privacy_.caveats


def test_the_first_copy_that_a_worker_makes_is_one_of_several(monkeypatch):
    """Where each worker makes its own, all of them would be the first."""
    elsewhere = moved(monkeypatch, CASES["logistic"].make())
    assert elsewhere._copies_caveat() is None
    assert "clone number 2" in clone(elsewhere)._copies_caveat()
    assert "clone number 3" in clone(clone(elsewhere))._copies_caveat()


def test_saving_and_loading_in_one_process_makes_no_copies():
    model = pickle.loads(pickle.dumps(CASES["logistic"].make()))
    assert clone(model)._copies_caveat() is None
    assert clone(model)._copies_caveat() is not None


def test_a_model_that_was_fitted_may_be_fitted_again_elsewhere(monkeypatch):
    model = CASES["logistic"].fit(random_state=None)
    assert clone(moved(monkeypatch, model))._copies_caveat() is None


BROKEN = {
    "a pickle forgets the number": ("__getstate__", lambda self: self.get_params(deep=False)),
    "counted in each process": ("__getstate__", lambda self: dict(vars(self))),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_copies_that_are_counted_by_a_process_are_noticed(monkeypatch, broken):
    monkeypatch.setattr(copies.CountedCopies, *BROKEN[broken])
    _, second = clone(model := CASES["logistic"].make()), clone(model)
    elsewhere = moved(monkeypatch, second), clone(moved(monkeypatch, CASES["logistic"].make()))
    assert None in [copy._copies_caveat() for copy in elsewhere]


def caveat_in_a_worker(model):
    """What a copy says that the worker makes, as ensembles and feature selection make them."""
    return clone(model)._copies_caveat()


@pytest.mark.slow
def test_workers_do_not_escape():
    reported = joblib.Parallel(n_jobs=2)(joblib.delayed(caveat_in_a_worker)(CASES["ridge"].make()) for _ in range(2))
    assert all("clone number 2" in caveat for caveat in reported)
    search = GridSearchCV(CASES["ridge"].make(), {"epsilon": [1.0]}, cv=EVERYTHING, n_jobs=2)
    with pytest.warns(PrivacyLeakWarning) as caught:  # here, where people look, and not in the workers alone
        search.fit(X, CASES["ridge"].y)
    assert {2, 3} <= set(numbers(caught))
    assert search.best_estimator_.privacy_.caveats


# ---- splits and orders


def changed_rows(train_sets, labels):
    """How many rows enter or leave a training set at most when one label changes."""
    worst = 0
    before = [set(rows.tolist()) for rows in train_sets(labels)]
    for place in range(0, len(labels), 7):
        other = labels.copy()
        other[place] = 1 - other[place]
        worst = max(worst, *(len(one ^ set(two.tolist())) for one, two in zip(before, train_sets(other), strict=True)))
    return worst


def folds(splitter):
    return lambda labels: [train for train, _ in splitter.split(labels, labels)]


def parts(**options):
    return lambda labels: train_test_split(np.arange(len(labels)), random_state=0, **options)[:1]


SPLITS = {
    "KFold(3, shuffle=True, random_state=0)": folds(KFold(3, shuffle=True, random_state=0)),
    "train_test_split(random_state=0)": parts(),
    "StratifiedKFold(3)": folds(StratifiedKFold(3)),
    "StratifiedKFold(3, shuffle=True, random_state=0)": folds(StratifiedKFold(3, shuffle=True, random_state=0)),
    "train_test_split(stratify=y, random_state=0)": lambda labels: parts(stratify=labels)(labels),
}


def test_the_guarantees_page_says_what_one_label_does_to_splits():
    labels = np.random.default_rng(0).integers(0, 2, 600)
    counted = {name: changed_rows(train_sets, labels) for name, train_sets in SPLITS.items()}
    page = (DOCS / "guarantee.md").read_text()
    assert [name for name, count in counted.items() if count == 0] == [*SPLITS][:2]
    for name, count in counted.items():
        assert f"| `{name}` | {count} |" in page, f"{name}: {count}"


def test_the_guarantees_page_says_what_a_sort_does_to_roles():
    values = np.random.default_rng(0).normal(size=1000)
    validating, _ = split(1000, 0.2, split_seed=0)

    def roles(cells):
        chosen = np.zeros(1000, bool)
        chosen[np.argsort(cells)[validating]] = True
        return chosen

    worst = 0
    for place in range(1000):
        other = values.copy()
        other[place] = -9 if values[place] > 0 else 9
        worst = max(worst, int((roles(values) != roles(other)).sum()))
    assert f"changes the role of {worst} of 1,000 rows" in (DOCS / "guarantee.md").read_text()


@pytest.mark.parametrize("page", ["guarantee.md", "estimators.md"])
def test_pages_say_what_a_split_must_be_what_fitted_steps_do_and_what_to_do_instead(page):
    text = (DOCS / page).read_text()
    for words in ("KFold(shuffle=True, random_state=", "stratified", "sort", "StandardScaler", "evaluate"):
        assert words in text, words
