"""Audits: membership attacks on the released values of this library, and the lower bounds on epsilon they prove.

>>> import dpbilevel as dpb
>>> budget = dpb.Budget(4.0, 1e-2)
>>> found = [dpb.audit.audit(case, budget, runs=200) for case in dpb.audit.standard_cases(budget)[:2]]
>>> all(audit.passed for audit in found)
True
"""

import importlib
from typing import Any

_HOMES = {
    "Audit": "verdict",
    "Case": "case",
    "audit": "auditing",
    "of_units": "unit_cases",
    "one_run": "canaries",
    "standard_cases": "worst_cases",
    "table": "verdict",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    # Imported on access, because cases import all methods and baselines.
    if name not in _HOMES:
        raise AttributeError(f"module 'dpbilevel.audit' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dpbilevel.audit.{_HOMES[name]}"), name)
