"""Pictures: what they show, that they need no state, and that they can be read on light and on dark pages."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from support.report_data import NASTY, made, searched, solution

import dpbilevel as dpb
from dpbilevel.plot.canvas import power
from dpbilevel.plot.dots import dots
from dpbilevel.plot.style import COLOURS, INK, looks, shorten
from dpbilevel.plot.svg import inline_svg
from dpbilevel.plot.trajectories import _moved_apart
from dpbilevel.solution.hyperparameters import hyperparameters

RESULTS = Path(__file__).parents[2] / "docs" / "results"
DRAWN = {
    "trajectory": lambda ax=None: dpb.plot.trajectory(solution("private"), ax),
    "spend": lambda ax=None: dpb.plot.spend(solution("private"), ax),
}


def words(ax):
    found = ax.figure.findobj(matplotlib.text.Text)
    return [text.get_text() for text in found if text.get_text()]


def test_every_public_plot_is_tested():
    others = ["calibration", "shape", "shapes"]  # test_plot_calibration.py, test_plot_shapes.py
    assert sorted([*DRAWN, *others]) == dpb.plot.__all__


@pytest.mark.parametrize("name", DRAWN)
def test_plots_return_axes_and_leave_no_state(name):
    before = dict(matplotlib.rcParams)
    ax = DRAWN[name]()
    assert isinstance(ax, matplotlib.axes.Axes)
    assert dict(matplotlib.rcParams) == before
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []
    assert ax.get_xlabel()
    own = Figure().subplots()
    assert DRAWN[name](own) is own


@pytest.mark.parametrize("name", DRAWN)
def test_plots_show_in_notebooks(name):
    shown = DRAWN[name]()._repr_html_()
    assert "<svg" in shown
    assert "currentColor" in shown
    assert 'role="img"' in shown


def contrast(first, second):
    def luminance(colour):
        parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
        return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", "#15181d"])
def test_colours_are_seen_on_light_and_dark_pages(page):
    assert all(contrast(colour, page) >= 3 for colour in COLOURS)
    assert contrast(INK, page) >= (4.5 if page == "#ffffff" else 3.8)


def test_sixteen_lines_look_different():
    found = [str(look) for _, look in zip(range(16), looks(), strict=False)]
    assert len(set(found)) == 16


def test_the_trajectory_shows_courses_names_and_what_was_returned():
    whole = solution("private")
    ax = dpb.plot.trajectory(whole)
    lines = [line for line in ax.lines if len(line.get_xdata()) == 40]
    assert len(lines) == 3
    drawn = {tuple(np.round(line.get_ydata(), 9)) for line in lines}
    assert drawn == {tuple(np.round(column, 9)) for column in np.exp(whole.history["x"]).T}
    rings = sorted(line.get_ydata()[0] for line in ax.lines if len(line.get_xdata()) == 1)
    np.testing.assert_allclose(rings, np.sort(np.exp(whole.x)))
    assert {"age", "sex", "job", "penalty", "round", "○ returned"} <= set(words(ax))
    assert ax.get_yscale() == "log"


def test_the_chosen_round_is_marked():
    ax = dpb.plot.trajectory(searched("grid"))
    reported = hyperparameters(searched("grid"))
    assert f"○ returned (round {reported.chosen})" in words(ax)
    assert "candidate" in words(ax)
    assert any(line.get_linestyle() == "None" for line in ax.lines)


def test_of_many_lines_few_have_names_and_the_others_are_grey():
    names = tuple(f"column {index}" for index in range(100))
    ax = dpb.plot.trajectory(made(names=names))
    assert sum(any(name in text for name in names) for text in words(ax)) <= 8
    assert len(ax.lines) < 160
    colours = {line.get_color() for line in ax.lines}
    assert "#a3a3a3" in colours
    assert set(COLOURS) <= colours


def test_names_keep_their_distance():
    assert list(_moved_apart([0.5])) == [0.5]
    places = list(_moved_apart([0.0, 0.01, 0.02, 0.97, 0.99, 1.0]))
    assert np.all(np.diff(places) > 0.06)
    assert places[-1] <= 1.0


def test_a_solution_without_a_course_is_refused():
    with pytest.raises(dpb.InvalidArgument, match=r"^solution: its method released no trajectory"):
        dpb.plot.trajectory(solution("black box"))


def test_the_spend_is_as_long_as_epsilon_and_divided_by_shares():
    whole = solution("private")
    ax = dpb.plot.spend(whole)
    widths = [bar.get_width() for bar in ax.patches if bar.get_height() == 0.55]
    expected = [
        share * whole.privacy.epsilon(role=role) for role in ("lower", "upper") for share in whole.privacy.shares(role)
    ]
    np.testing.assert_allclose(widths, expected)
    assert {"training pass", "training", "validation pass"} <= set(words(ax))
    with pytest.raises(dpb.InvalidArgument, match="epsilon is infinite"):
        dpb.plot.spend(solution("infinite"))


def test_the_spend_of_declared_and_sampled_releases_is_drawn():
    widths = [bar.get_width() for bar in dpb.plot.spend(solution("black box")).patches if bar.get_height() == 0.55]
    assert sum(widths) == pytest.approx(solution("black box").privacy.epsilon())


@pytest.mark.parametrize("function", [dpb.plot.spend, dpb.plot.trajectory])
def test_what_is_no_solution_and_what_are_no_axes_are_refused(function):
    with pytest.raises(dpb.InvalidArgument, match=r"^solution: must be what dpb.solve returns, not dict"):
        function({})
    with pytest.raises(dpb.InvalidArgument, match=r"^ax: must be Axes"):
        function(solution("nasty"), ax=Figure())


def test_names_are_drawn_as_they_are():
    whole = solution("nasty")
    for ax in (dpb.plot.trajectory(whole), dots(hyperparameters(whole))):
        picture = inline_svg(ax.figure, name="p", title=NASTY, description=NASTY)
        root = ElementTree.fromstring(picture)
        assert root.find(".//script") is None
        assert any((text.text or "").startswith("<script>") for text in root.iter("text"))
        ax.figure.canvas.draw()


def test_pictures_of_one_page_share_no_ids_and_are_the_same_twice():
    made_twice = [
        inline_svg(dpb.plot.trajectory(solution("private")).figure, name=name, title="t", description="d")
        for name in ("a", "b", "a")
    ]
    first, second = (
        {element.get("id") for element in ElementTree.fromstring(p).iter()} - {None} for p in made_twice[:2]
    )
    assert first
    assert not first & second
    assert made_twice[0] == made_twice[2]


def test_labels():
    assert shorten("a" * 30, 10) == "a" * 9 + "…"
    assert [power(value) for value in (1.0, 0.02, 1e4, 3e-7)] == ["1", "0.02", "10⁴", "3·10⁻⁷"]
