"""What a report is made from."""

import numpy as np
import pytest
from support.report_data import linear, review, solution

import dpbilevel as dpb
from dpbilevel.report.review import LinearModel, Review


def test_a_review_of_a_solution_alone_has_everything_else_empty():
    bare = Review(solution=solution("private"))
    assert (bare.facts, bare.model, bare.schema, bare.command, bare.created) == ({}, None, None, None, None)
    assert bare.title


def test_a_review_is_of_a_solution():
    with pytest.raises(dpb.InvalidArgument, match=r"^solution: must be a dpb\.Solution, not str"):
        Review(solution="run.json")
    with pytest.raises(dpb.InvalidArgument, match=r"^model: must be a LinearModel"):
        review(model=np.zeros(3))


def test_a_linear_model_keeps_lists_as_arrays():
    model = LinearModel(
        estimator="E", target="t", outputs=["t"], columns=["a", "b"], coefficients=[[1, 2]], intercepts=[3]
    )
    assert model.coefficients.dtype == np.float64
    assert (model.outputs, model.columns) == (("t",), ("a", "b"))


@pytest.mark.parametrize(
    ("name", "wrong"), [("coefficients", np.zeros((2, 30))), ("coefficients", np.zeros(30)), ("intercepts", [1.0, 2.0])]
)
def test_a_linear_model_of_the_wrong_shape_is_refused(name, wrong):
    fields = {field: getattr(linear(), field) for field in LinearModel.__dataclass_fields__}
    with pytest.raises(dpb.InvalidArgument, match=f"^{name}: have shape"):
        LinearModel(**{**fields, name: wrong})
