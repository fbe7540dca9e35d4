"""Constants of losses, certified by proof or tested by falsification. The theorems and `DPBilevel` rely on them.

>>> import dpbilevel as dpb
>>> constants = dpb.theory.glm_constants("logistic", row_norm=1.0, penalty=(0.5, 1.0))
>>> constants.strong_convexity
0.5
"""

import importlib
from typing import Any

_HOMES = {
    "check_constants": "falsify",
    "glm_constants": "glm",
    "representation_constants": "representation",
    "weighted_constants": "weighted",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    # Imported lazily, because a user of one family of losses needs none of the others.
    if name not in _HOMES:
        raise AttributeError(f"module 'dpbilevel.theory' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dpbilevel.theory.{_HOMES[name]}"), name)
