"""Pictures of solutions and of the project's results, with matplotlib; every function returns the Axes.

>>> import dpbilevel as dpb
>>> dpb.plot.trajectory(solution).figure.savefig("trajectory.svg")  # doctest: +SKIP
"""

from dpbilevel.plot.attacks import leak
from dpbilevel.plot.auditing import audits
from dpbilevel.plot.courses import trajectory
from dpbilevel.plot.exponents import rates
from dpbilevel.plot.spending import spend
from dpbilevel.plot.utility import epsilon_utility

__all__ = ["audits", "epsilon_utility", "leak", "rates", "spend", "trajectory"]
