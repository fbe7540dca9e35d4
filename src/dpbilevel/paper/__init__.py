"""The paper's theory: its theorems with explicit constants, its bounds and its split of a budget.

Nothing here is needed to run a private method, and no privacy guarantee depends on it. `plan` computes the guarantee of
Algorithm 1 for given constants, and the parameters that achieve it; each bound names the lemma that it comes from.

>>> import dpbilevel as dpb
>>> constants = dpb.Constants(
...     upper_lipschitz=1.0,
...     upper_smoothness=0.25,
...     lower_lipschitz=1.0,
...     lower_smoothness=0.35,
...     lower_hessian_lipschitz=0.1,
...     strong_convexity=0.1,
... )
>>> dpb.paper.plan(constants, n=10**4, d_x=1, d_y=10, budget=dpb.Budget(1.0, 1e-8), gamma=0.05, gap=1.0).vacuous
True
"""

import importlib
from typing import Any

_HOMES = {"TheoryPlan": "planner", "curve": "planner", "plan": "planner", "plot": "planner"}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    # Imported lazily, because the split of this package is needed without the planner.
    if name not in _HOMES:
        raise AttributeError(f"module 'dpbilevel.paper' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dpbilevel.paper.{_HOMES[name]}"), name)
