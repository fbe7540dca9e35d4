"""Plots of shapes: one per column, with bands, in units of the column."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dpbilevel as dpb
from dpbilevel.encoding.axes import Axis
from dpbilevel.errors import InvalidArgument
from dpbilevel.solution.shapes import Shape


def made(scale="linear", points=(0.0, 5.0, 10.0), error=True, outputs=1):
    kinds = {"dates": "datetime64[s]", "names": str}
    values = np.array(points, kinds.get(scale, float))
    places = np.linspace(0, 1, len(points))
    effect = np.outer(np.arange(1, outputs + 1), np.linspace(-1, 1, len(points)))
    return Shape("col$umn", values, places, scale, effect, np.full(len(points), 0.1) if error else None)


def test_a_curve_has_a_band_and_ticks_in_units_of_its_column():
    ax = dpb.plot.shape(made(), unit="log-odds")
    assert isinstance(ax, Axes)
    assert ax.get_ylabel() == "log-odds"
    assert ax.get_title(loc="left") == "col$umn"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "5", "10"]  # whole numbers of whole points
    halves = dpb.plot.shape(made(points=(0.0, 0.5, 1.0)))
    assert [label.get_text() for label in halves.get_xticklabels()] == ["0", "0.25", "0.5", "0.75", "1"]
    assert len(ax.collections) == 1
    assert len(dpb.plot.shape(made(error=False)).collections) == 0
    own = Figure().subplots()
    assert dpb.plot.shape(made(), own) is own


def test_categories_dates_and_scales_name_their_points():
    ax = dpb.plot.shape(made("names", ("Oslo", "Rome")))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["Oslo", "Rome"]
    many = dpb.plot.shape(made("names", tuple(f"town {at}" for at in range(40))))
    assert len(many.get_yticks()) == 12
    dates = dpb.plot.shape(made("dates", ("2026-01-01", "2026-01-15", "2026-01-31")))
    assert [label.get_text() for label in dates.get_xticklabels()] == ["2026-01-01", "2026-01-31"]
    money = dpb.plot.shape(made("log", (0.0, 500.0, 99_999.0)))
    assert [label.get_text() for label in money.get_xticklabels()] == ["0", "200", "1000", "10k", "30k", "100k"]
    np.testing.assert_allclose(money.get_xticks(), Axis(0.0, 99_999.0, "log").places([0, 200, 1e3, 1e4, 3e4, 99_999]))
    alike = dpb.plot.shape(made("names", ("Master of Arts and Science", "Master of Arts and Letters")))
    assert [label.get_text() for label in alike.get_yticklabels()] == ["Master… Science", "Master… Letters"]


def test_all_shapes_make_one_figure():
    several = [made(outputs=3), made("names", ("a", "b"), outputs=3), made("sqrt"), made("log", (1.0, 2.0))]
    figure = dpb.plot.shapes(several)
    assert sum(ax.get_visible() for ax in figure.axes) == 4
    shown = figure._repr_html_()
    assert "<svg" in shown
    assert "Effects of col$umn" in shown
    for wrong in ([], "model", [1], object()):
        with pytest.raises(InvalidArgument, match="shapes_"):
            dpb.plot.shapes(wrong)
    with pytest.raises(InvalidArgument, match="shapes_"):
        dpb.plot.shape("age")
