"""What people use instead of bilevel tuning, with the same accounting: charged before any record is read.

| baseline | what it does | when it is good |
| --- | --- | --- |
| `FixedDefault` | trains at the starting x | the default is right, or the budget is too small to tune at all |
| `UpperRecordsOnly` | trains on the validation records alone | many clean validation records, a large budget |
| `ScreenSources` | one look at every source, keeps the good ones | weights of sources that are either good or bad |
| `PrivateRandomSearch` | best of a secret number of runs | few hyperparameters, of any kind, no gradients needed |
| `NaiveGridSearch` | composition over k runs | two or three candidates |
| `OracleHyperparameters` | knows x, picks its training by results | never: the ceiling of a benchmark, NOT private |

All but the last take part in a ledger. Each is solved with on its own, ``baseline.solve(problem, records, budget,
start=...)``; those that are methods (all but the search and the oracle) also go into `dpb.solve` and `dpb.plan`.
"""

from dpbilevel.baselines.grid_search import NaiveGridSearch
from dpbilevel.baselines.oracle import OracleHyperparameters, oracle
from dpbilevel.baselines.random_search import PrivateRandomSearch
from dpbilevel.baselines.screening import ScreenSources
from dpbilevel.baselines.untuned import FixedDefault, UpperRecordsOnly
from dpbilevel.privacy.selection import NumberOfRuns, run_mu, selection_epsilon

__all__ = [
    "FixedDefault",
    "NaiveGridSearch",
    "NumberOfRuns",
    "OracleHyperparameters",
    "PrivateRandomSearch",
    "ScreenSources",
    "UpperRecordsOnly",
    "oracle",
    "run_mu",
    "selection_epsilon",
]
