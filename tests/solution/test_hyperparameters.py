"""The x of a solution as people read it."""

import numpy as np
import pytest
from support.report_data import made, searched, solution

from dpbilevel.solution.hyperparameters import hyperparameters, named_numbers
from dpbilevel.solution.solution import Legend


def test_a_legend_gives_names_and_logarithms_are_undone():
    whole = solution("private")
    reported = hyperparameters(whole)
    assert reported.names == ("age", "sex", "job")
    np.testing.assert_allclose(reported.values, np.exp(whole.x))
    np.testing.assert_allclose(reported.trajectory, np.exp(whole.history["x"]))
    assert (reported.quantity, reported.logarithmic, reported.chosen) == ("penalty", True, None)
    assert reported.returned == "the average of the last steps"


def test_without_a_legend_numbers_go_by_their_place():
    reported = hyperparameters(solution("black box"))
    assert reported.names == ("x['rate']", *(f"x['weights'][{i}, {j}]" for i in range(2) for j in range(2)))
    assert reported.trajectory is None
    assert reported.quantity == "hyperparameter"


def test_a_legend_that_does_not_fit_is_left_alone():
    assert hyperparameters(made(legend=Legend("weight", ("a", "b")))).names == ("x[0]", "x[1]", "x[2]")


def test_a_pytree_has_a_course_in_the_order_of_its_leaves():
    x = {"b": np.array([1.0, 2.0]), "a": np.float64(3.0)}
    history = {"x": {"b": np.array([[0.0, 0.0], [1.0, 2.0]]), "a": np.array([0.0, 3.0])}}
    reported = hyperparameters(made(x=x, history=history, legend=None, parameters={}))
    assert reported.names == ("x['a']", "x['b'][0]", "x['b'][1]")
    assert reported.trajectory.tolist() == [[0.0, 0.0, 0.0], [3.0, 1.0, 2.0]]
    assert reported.chosen == 2


@pytest.mark.parametrize("history", [{}, {"x": np.zeros((0, 3))}, {"x": np.zeros((4, 2))}, {"x": np.float64(1.0)}])
def test_what_is_no_course_is_none(history):
    assert hyperparameters(made(history=history)).trajectory is None


def test_an_average_is_no_iterate_even_where_x_stood_still():
    still = made(x=np.zeros(3), history={"x": np.zeros((5, 3))})
    assert hyperparameters(still).chosen is None
    assert hyperparameters(made(x=np.zeros(3), history={"x": np.zeros((5, 3))}, parameters={})).chosen == 1


def test_a_search_says_which_candidate_it_chose():
    reported = hyperparameters(searched("grid"))
    assert reported.trajectory.ravel().tolist() == [-1.0, 0.0, 1.0]
    assert reported.trajectory[reported.chosen - 1, 0] == reported.values[0]
    assert "smallest released score" in reported.returned


def test_numbers_of_a_scalar():
    assert named_numbers("x", np.float32(2.0)) == [("x", 2.0)]
