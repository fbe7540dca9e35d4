"""The plot of a calibration curve: a dot and an interval for every bin that noise does not hide."""

import numpy as np
import pytest
from support.report_data import scores

import dpbilevel as dpb
from dpbilevel.errors import InvalidArgument


def test_bins_have_dots_and_intervals():
    released = scores()
    ax = dpb.plot.calibration(released)
    (lines,) = ax.collections
    drawn = [tuple(segment[:, 1]) for segment in lines.get_segments()]
    assert drawn[3] == released.interval("calibration", part="0.3 to 0.4")
    dots = ax.lines[-1]
    place = np.argmin(np.abs(dots.get_xdata() - 0.35))
    bins = released.values["calibration"]
    assert dots.get_ydata()[place] == bins["positives"][3] / bins["records"][3]


def test_bins_that_noise_hides_have_no_dot():
    released = scores()
    hidden = {**released.details["calibration"], "noise": 1e6}
    evaluation = dpb.Evaluation(**{**vars(released), "details": {"calibration": hidden}})
    assert len(dpb.plot.calibration(evaluation).lines[-1].get_xdata()) == 0


def test_only_evaluations_with_a_curve_are_drawn():
    rows = np.linspace(-1, 1, 3000)
    other = dpb.evaluate(lambda rows: rows > 0.1, (rows, rows > 0), dpb.Budget(1.0, 1e-5))
    for wrong in (other, None, "curve"):
        with pytest.raises(InvalidArgument, match="calibration"):
            dpb.plot.calibration(wrong)
