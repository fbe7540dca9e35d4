"""Several encoders side by side, as scikit-learn joins them: norms add up as squares, and no caveat gets lost."""

import warnings

import numpy as np
import pytest
import scipy.sparse
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from support.estimator_cases import CASES, X

import dpbilevel as dpb

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning")
FIRST = dpb.BoundedEncoder(ranges={0: (-1, 1)}, row_norm=3.0)
REST = dpb.BoundedEncoder(ranges={0: (-1, 1), 1: (-1, 1)}, row_norm=4.0)
UNTOLD = dpb.BoundedEncoder(ranges={0: (-1, 1)}, row_norm=4.0)  # of two columns
TOLD = "column 1 was not declared"


def columns(second=REST, **options):
    return ColumnTransformer([("first", FIRST, [0]), ("rest", second, [1, 2])], **options)


def quietly(function, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.PrivacyLeakWarning)
        return function(*arguments)


JOINED = {
    "plain": {},
    "dropped remainder": {"remainder": "drop"},
    "other names": {"verbose_feature_names_out": False},
    "never sparse": {"sparse_threshold": 0},
    "always sparse": {"sparse_threshold": 1.0},  # which is about mixtures: encoders are dense
}


@pytest.mark.parametrize("options", JOINED.values(), ids=JOINED)
def test_a_column_transformer_keeps_norm_and_caveats(options):
    rows = columns(**options).fit_transform(X)
    assert (rows.data_norm, rows.caveats) == (5.0, ())
    assert np.linalg.norm(np.asarray(rows), axis=1).max() <= 5.0
    joined = columns(UNTOLD, **options)
    with pytest.warns(dpb.PrivacyLeakWarning, match=TOLD):
        rows = joined.fit_transform(X)
    for given in (rows, joined.transform(X)):
        assert given.data_norm == 5.0
        assert given.caveats == joined.named_transformers_["rest"].caveats_


def test_weights_drop_the_norm_and_keep_the_caveats():
    rows = quietly(columns(UNTOLD, transformer_weights={"rest": 9.0}).fit_transform, X)
    assert rows.data_norm is None
    assert len(rows.caveats) == 1


def test_a_feature_union_keeps_norm_and_caveats():
    whole = dpb.BoundedEncoder(ranges=dict.fromkeys(range(3), (-1, 1)), row_norm=3.0)
    union = FeatureUnion([("one", whole), ("two", dpb.BoundedEncoder(row_norm=4.0, ranges={0: (-1, 1), 1: (-1, 1)}))])
    rows = quietly(union.fit_transform, X)
    assert rows.data_norm == 5.0
    assert len(rows.caveats) == 1
    assert "column 2 was not declared" in rows.caveats[0]


@pytest.mark.parametrize("second", [REST, UNTOLD], ids=["declared", "discovered"])
def test_a_model_after_it_needs_no_declared_norm_and_has_the_caveats(second):
    case = CASES["ridge"]
    pipeline = make_pipeline(columns(second), case.make(data_norm=None))
    quietly(pipeline.fit, X, case.y)
    model = pipeline[-1]
    assert model.privacy_.caveats == pipeline[0].named_transformers_["rest"].caveats_
    np.testing.assert_array_equal(model._scaling_.size, np.full(3, 5.0))


LOST = {
    "passthrough": ColumnTransformer([("rest", UNTOLD, [0, 1])], remainder="passthrough"),
    "another transformer": ColumnTransformer([("rest", UNTOLD, [0, 1]), ("log", FunctionTransformer(np.tanh), [2])]),
}


@pytest.mark.parametrize("joined", LOST.values(), ids=LOST)
def test_columns_of_unknown_norm_drop_the_norm_alone(joined):
    rows = quietly(joined.fit_transform, X)
    assert (rows.data_norm, len(rows.caveats)) == (None, 1)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_have_lost_the_norm_and_it_is_said(library):
    pytest.importorskip(library)
    case = CASES["ridge"]
    joined = columns().set_output(transform=library)
    with pytest.warns(dpb.PrivacyLeakWarning, match="data_norm was not declared"):
        make_pipeline(joined, case.make(data_norm=None)).fit(X, case.y)
    with pytest.warns(dpb.PrivacyLeakWarning, match=TOLD):
        columns(UNTOLD).set_output(transform=library).fit(X)


def test_frames_may_be_encoded_by_name():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "town": ["Oslo", "Rome"] * 30})
    numbers = dpb.BoundedEncoder(ranges={"a": (-1, 1), "b": (-1, 1)}, row_norm=3.0)
    towns = dpb.BoundedEncoder(categories={"town": ["Oslo", "Rome"]}, row_norm=4.0)
    joined = ColumnTransformer([("n", numbers, make_column_selector(dtype_include="number")), ("t", towns, ["town"])])
    rows = joined.fit_transform(frame)
    assert rows.data_norm == 5.0
    assert joined.get_feature_names_out().tolist() == ["n__a", "n__b", "t__town_Oslo", "t__town_Rome"]


def test_sparse_matrices_have_lost_the_norm_and_it_is_said():
    case = CASES["ridge"]
    many = OneHotEncoder(categories=[list(range(60))])
    table = np.column_stack([X[:, 0], np.arange(60)])
    joined = ColumnTransformer([("first", FIRST, [0]), ("many", many, [1])])
    assert scipy.sparse.issparse(joined.fit_transform(table))
    with pytest.warns(dpb.PrivacyLeakWarning, match="data_norm was not declared"):
        make_pipeline(joined, case.make(data_norm=None)).fit(table, case.y)
