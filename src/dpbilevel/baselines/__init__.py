"""Baselines: alternatives to bilevel tuning with the same accounting, charged before any record is read.

| baseline | what it does | when it works well |
| --- | --- | --- |
| `FixedDefault` | trains at the starting x | the default is right, or the budget is too small to tune at all |
| `UpperRecordsOnly` | trains on the validation records only | many clean validation records, a large budget |
| `ScreenSources` | scores every source once, keeps the good ones | sources that are either good or bad |
| `ObjectivePerturbation` | minimises a perturbed training loss at the starting x | a linear model, no tuning |
| `AdaSSP` | ridge regression from noisy sufficient statistics | few columns, a squared loss, no tuning |
| `PrivateRandomSearch` | best of a secret number of runs | few hyperparameters, of any kind, no gradients needed |
| `NaiveGridSearch` | composition over k runs | two or three candidates |
| `OracleHyperparameters` | knows x, selects settings by results | never: a benchmark's upper bound, NOT private |

All but the last can be charged to a ledger. Call each with ``baseline.solve(problem, records, budget, start=...)``;
those that are methods (all but the random search and the oracle) also work with `dpb.solve` and `dpb.plan`.
"""

from dpbilevel.baselines.ada_ssp import AdaSSP
from dpbilevel.baselines.grid_search import NaiveGridSearch
from dpbilevel.baselines.objective_perturbation import ObjectivePerturbation
from dpbilevel.baselines.oracle import OracleHyperparameters, oracle
from dpbilevel.baselines.random_search import PrivateRandomSearch
from dpbilevel.baselines.screening import ScreenSources
from dpbilevel.baselines.untuned import FixedDefault, UpperRecordsOnly
from dpbilevel.privacy.selection import NumberOfRuns, run_mu, selection_epsilon

__all__ = [
    "AdaSSP",
    "FixedDefault",
    "NaiveGridSearch",
    "NumberOfRuns",
    "ObjectivePerturbation",
    "OracleHyperparameters",
    "PrivateRandomSearch",
    "ScreenSources",
    "UpperRecordsOnly",
    "oracle",
    "run_mu",
    "selection_epsilon",
]
