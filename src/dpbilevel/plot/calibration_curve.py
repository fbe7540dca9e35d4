"""The calibration curve of an evaluation: share of positives by predicted probability, with intervals."""

from typing import TYPE_CHECKING, Any

import numpy as np

from dpbilevel.errors import InvalidArgument
from dpbilevel.evaluation.calibration import bin_names
from dpbilevel.evaluation.result import Evaluation
from dpbilevel.plot.canvas import drawing
from dpbilevel.plot.style import COLOURS, FAINT

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def calibration(evaluation: Any, ax: "Axes | None" = None) -> "Axes":
    """Plot the share of positives in every bin of the predicted probability, with 95% intervals.

    Intervals cover the privacy noise and the sampling error. A bin whose interval is everything between 0 and 1 has no
    dot: noise hides its share. On the diagonal, predicted probabilities are right.

    Args:
        evaluation: released by `dpb.evaluate` with "calibration" among its metrics.
        ax: Axes to draw on; new ones by default.
    """
    if not isinstance(evaluation, Evaluation) or "calibration" not in evaluation.values:
        raise InvalidArgument('evaluation: must be the result of dpb.evaluate(..., metric="calibration")')
    bins = evaluation.values["calibration"]
    found = [evaluation.interval("calibration", part=name) for name in bin_names(bins["edges"])]
    low, high = np.array(found).T
    middles = (bins["edges"][:-1] + bins["edges"][1:]) / 2
    known = (bins["records"] > 0) & (high - low < 1)
    shares = bins["positives"][known] / bins["records"][known]
    with drawing(ax, height=3.4) as ax:
        ax.plot([0, 1], [0, 1], color=FAINT, linewidth=1)
        ax.vlines(middles, low, high, color=COLOURS[0], alpha=0.5, linewidth=2)
        ax.plot(middles[known], shares, "o", color=COLOURS[0], markersize=5)
        ax.set(xlabel="predicted probability", ylabel="share of positives", xlim=(0, 1), ylim=(0, 1))
        ax.grid(axis="y")
    return ax
