"""Groups of columns that share a penalty."""

import numpy as np
import pytest
from support.estimator_cases import CASES, X

import dpbilevel as dpb
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.groups import numbered_groups


@pytest.mark.parametrize(
    ("groups", "names", "numbers"),
    [
        (None, ["all"], (0, 0, 0, -1)),
        (range(3), [0, 1, 2], (0, 1, 2, -1)),
        ([7, 5, 7], [5, 7], (1, 0, 1, -1)),
        (("b", "a", "b"), ["a", "b"], (1, 0, 1, -1)),
        (np.array([True, False, True]), [False, True], (1, 0, 1, -1)),
        (np.array(["b", "a", "b"], dtype=object), ["a", "b"], (1, 0, 1, -1)),
    ],
    ids=str,
)
def test_groups_are_numbered_in_order_and_the_intercept_has_none(groups, names, numbers):
    found, group_of = numbered_groups(groups, 3)
    assert (found.tolist(), group_of) == (names, numbers)


@pytest.mark.parametrize(
    "groups",
    [
        5,
        "abc",
        {1, 2, 3},
        {0: 1},
        [0, 1],
        [0, 1, 2, 3],
        [[0, 1, 2]],
        [[0], [1, 2], 3],
        [0, "a", 1],
        [0.5, 1, 2],
        [None] * 3,
    ],
    ids=str,
)
def test_groups_that_do_not_fit_the_columns_are_refused(groups):
    with pytest.raises(InvalidArgument, match="groups: must have one label for each of the 3 columns"):
        numbered_groups(groups, 3)


def test_a_series_of_labels_will_do():
    pandas = pytest.importorskip("pandas")
    assert numbered_groups(pandas.Series(["b", "a", "b"]), 3)[1] == (1, 0, 1, -1)


@pytest.mark.parametrize("name", ["logistic", "ridge"])
@pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning")
def test_estimators_have_a_penalty_for_each_group(name):
    model = CASES[name].fit(groups=["b", "a", "b"])
    assert model.groups_.tolist() == ["a", "b"]
    assert model.penalties_.shape == (2,)
    assert model.coef_.size == 3
    alone = CASES[name].fit()
    assert (alone.groups_.tolist(), alone.penalties_.shape) == (["all"], (1,))
    with pytest.raises(InvalidArgument, match="groups: must have one label for each of the 3 columns"):
        CASES[name].fit(groups=["b", "a"])


def test_groups_of_an_encoder_fit_its_rows():
    encoder = dpb.BoundedEncoder(ranges={0: (-1, 1), 1: (-1, 1)}, categories={2: [0.0, 1.0]})
    rows = encoder.fit_transform(np.column_stack([X[:, :2], X[:, 2] > 0]))
    names, numbers = numbered_groups(encoder.group_of_column_, rows.shape[1])
    assert (names.tolist(), numbers) == ([0, 1, 2], (0, 1, 2, 2, -1))
