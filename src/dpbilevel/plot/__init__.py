"""Plots of released values with matplotlib. Every function returns the Axes; `shapes`, which draws several, the figure.

>>> import dpbilevel as dpb
>>> dpb.plot.trajectory(solution).figure.savefig("trajectory.svg")  # doctest: +SKIP
"""

from dpbilevel.plot.calibration_curve import calibration
from dpbilevel.plot.shapes import shape, shapes
from dpbilevel.plot.spending import spend
from dpbilevel.plot.trajectories import trajectory

__all__ = ["calibration", "shape", "shapes", "spend", "trajectory"]
