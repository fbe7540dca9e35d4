"""The paper's theorems with explicit constants.

>>> import dpbilevel as dpb
>>> constants = dpb.Constants(
...     upper_lipschitz=1.0,
...     upper_smoothness=0.25,
...     lower_lipschitz=1.0,
...     lower_smoothness=0.35,
...     lower_hessian_lipschitz=0.1,
...     strong_convexity=0.1,
... )
>>> dpb.theory.plan(constants, n=10**4, d_x=1, d_y=10, budget=dpb.Budget(1.0, 1e-8), gamma=0.05, gap=1.0).vacuous
True
"""

import importlib
from typing import Any

_HOMES = {
    "TheoryPlan": "planner",
    "check_constants": "falsify",
    "curve": "planner",
    "glm_constants": "glm",
    "plan": "planner",
    "plot": "planner",
    "representation_constants": "representation",
    "weighted_constants": "weighted",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    # Late, because the constants of this package are needed long before (and without) the planner.
    if name not in _HOMES:
        raise AttributeError(f"module 'dpbilevel.theory' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dpbilevel.theory.{_HOMES[name]}"), name)
