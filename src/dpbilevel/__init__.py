"""Differentially private bilevel optimisation: tune on private data, with one (epsilon, delta) for the whole run.

problem -> plan -> solve -> solution -> report. Names are imported on first use.
"""

import importlib

TYPE_CHECKING = False  # type checkers treat it as true; importing `typing` would slow down the import

_HOMES = {
    "Ball": "constraints",
    "Box": "constraints",
    "Unconstrained": "constraints",
    "NonNegative": "constraints",
    "Simplex": "constraints",
    "BilevelProblem": "problem",
    "LinearBounds": "linear_loss",
    "LinearLoss": "linear_loss",
    "Constants": "constants",
    "Records": "records",
    "RecordShapes": "privacy.record_shapes",
    "BoundedEncoder": "encoding.encoder",
    "EncodedRows": "encoding.encoded_rows",
    "Budget": "privacy.budget",
    "FullBatch": "privacy.sampling",
    "Poisson": "privacy.sampling",
    "Sampling": "privacy.sampling",
    "WithReplacement": "privacy.sampling",
    "WithoutReplacement": "privacy.sampling",
    "Contribution": "privacy.release",
    "Release": "privacy.release",
    "Ledger": "privacy.ledger",
    "Privacy": "privacy.spend",
    "ApproximateDP": "privacy.declared",
    "GaussianDP": "privacy.declared",
    "BlackBox": "inner.black_box",
    "DPLocGD": "inner.loc_gd",
    "DPLocSGD": "inner.loc_gd",
    "InnerSolver": "inner.solver",
    "DPBilevel": "methods.dp_bilevel.dp_bilevel",
    "Refit": "methods.refit",
    "Tracking": "methods.tracking.tracking",
    "Plan": "planning",
    "plan": "planning",
    "Solution": "solution.solution",
    "solve": "solving",
    "Evaluation": "evaluation.result",
    "join_job": "foundation.joining",
    "evaluate": "evaluation.evaluating",
    "UnitSizes": "evaluation.unit_sizes",
    "unit_sizes": "evaluation.unit_sizes",
    "BudgetExceeded": "errors",
    "CheckpointRefused": "errors",
    "DPBilevelError": "errors",
    "InvalidArgument": "errors",
    "InvalidProblem": "errors",
    "InvalidRecords": "errors",
    "JobFailed": "errors",
    "LedgerCorrupt": "errors",
    "LedgerUnavailable": "errors",
    "MissingExtra": "errors",
    "NotPrivateWarning": "errors",
    "PrivacyLeakWarning": "errors",
    "StorageFailed": "errors",
    "TrainerFailed": "errors",
    "UtilityWarning": "errors",
}

_PACKAGES = ("applications", "audit", "baselines", "datasets", "estimators", "paper", "plot", "theory")

__all__ = sorted([*_HOMES, *_PACKAGES])


def __getattr__(name: str) -> object:
    if name == "__version__":
        return importlib.import_module("dpbilevel.foundation.about").version()
    if name in _PACKAGES:
        return importlib.import_module(f"dpbilevel.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'dpbilevel' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dpbilevel.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    __version__: str
    from dpbilevel import applications, audit, baselines, datasets, estimators, paper, plot, theory
    from dpbilevel.constants import Constants
    from dpbilevel.constraints import Ball, Box, NonNegative, Simplex, Unconstrained
    from dpbilevel.encoding.encoded_rows import EncodedRows
    from dpbilevel.encoding.encoder import BoundedEncoder
    from dpbilevel.errors import (
        BudgetExceeded,
        CheckpointRefused,
        DPBilevelError,
        InvalidArgument,
        InvalidProblem,
        InvalidRecords,
        JobFailed,
        LedgerCorrupt,
        LedgerUnavailable,
        MissingExtra,
        NotPrivateWarning,
        PrivacyLeakWarning,
        StorageFailed,
        TrainerFailed,
        UtilityWarning,
    )
    from dpbilevel.evaluation.evaluating import evaluate
    from dpbilevel.evaluation.result import Evaluation
    from dpbilevel.evaluation.unit_sizes import UnitSizes, unit_sizes
    from dpbilevel.foundation.joining import join_job
    from dpbilevel.inner.black_box import BlackBox
    from dpbilevel.inner.loc_gd import DPLocGD, DPLocSGD
    from dpbilevel.inner.solver import InnerSolver
    from dpbilevel.linear_loss import LinearBounds, LinearLoss
    from dpbilevel.methods.dp_bilevel.dp_bilevel import DPBilevel
    from dpbilevel.methods.refit import Refit
    from dpbilevel.methods.tracking.tracking import Tracking
    from dpbilevel.planning import Plan, plan
    from dpbilevel.privacy.budget import Budget
    from dpbilevel.privacy.declared import ApproximateDP, GaussianDP
    from dpbilevel.privacy.ledger import Ledger
    from dpbilevel.privacy.record_shapes import RecordShapes
    from dpbilevel.privacy.release import Contribution, Release
    from dpbilevel.privacy.sampling import FullBatch, Poisson, Sampling, WithoutReplacement, WithReplacement
    from dpbilevel.privacy.spend import Privacy
    from dpbilevel.problem import BilevelProblem
    from dpbilevel.records import Records
    from dpbilevel.solution.solution import Solution
    from dpbilevel.solving import solve
