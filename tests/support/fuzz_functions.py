"""Constructors and functions of public numbers: valid arguments, and the names of optional ones to try as well."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from support.every_method import BUDGET

import dpbilevel as dpb
from dpbilevel import applications, baselines, paper, theory
from dpbilevel.evaluation.unit_sizes import unit_sizes

_constants = dict.fromkeys(
    ("upper_lipschitz", "upper_smoothness", "lower_lipschitz", "lower_smoothness", "lower_hessian_lipschitz"), 1.0
) | {"strong_convexity": 0.5}
_gradient = (
    "strong_convexity",
    "radius",
    "clip_norm",
    "upper_clip_norm",
    "smoothness",
    "steps",
    "rounds",
    "radius_factor",
)
_linear = {"columns": 3}
_glm = {"loss": "logistic", "row_norm": 1.0, "penalty": (0.1, 1.0)}
_theory = {
    "constants": dpb.Constants(**_constants),
    "n": 10**4,
    "d_x": 1,
    "d_y": 10,
    "budget": BUDGET,
    "gamma": 0.05,
    "gap": 1.0,
}

jax.devices()  # once JAX has started, no process joins a job

_problem = dpb.BilevelProblem(
    upper_loss=lambda x, y, record: 0.5 * (y - record) ** 2, lower_loss=lambda x, y, record: 0.5 * (y - x * record) ** 2
)

FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[str, ...]]] = {
    "Budget": (dpb.Budget, {"epsilon": 1.0, "delta": 1e-6}, ("adjacency",)),
    "Poisson": (dpb.Poisson, {"rate": 0.1}, ()),
    "WithoutReplacement": (dpb.WithoutReplacement, {"size": 3}, ()),
    "WithReplacement": (dpb.WithReplacement, {"size": 3}, ()),
    "Contribution": (dpb.Contribution, {"per_record": print, "clip": 1.0, "count": 10}, ()),
    "Release": (
        dpb.Release,
        {"name": "a", "contributions": {"lower": dpb.Contribution(len, 1.0, 9)}, "noise_std": 1.0, "uses": 2},
        ("sampling", "adjacency"),
    ),
    "GaussianDP": (dpb.GaussianDP, {"mu": 0.1}, ()),
    "ApproximateDP": (dpb.ApproximateDP, {"epsilon": 0.1}, ("delta",)),
    "Box": (dpb.Box, {"lower": 0.0, "upper": 1.0}, ()),
    "Ball": (dpb.Ball, {"radius": 1.0}, ()),
    "Simplex": (dpb.Simplex, {}, ("total",)),
    "Constants": (dpb.Constants, _constants, ("record_upper_lipschitz", "record_lower_smoothness")),
    "LinearBounds": (dpb.LinearBounds, {"row_norm": 1.0, "curvature": 0.25}, ("first_curvature", "derivative")),
    "LinearLoss": (dpb.LinearLoss, {"row": len, "loss": print}, ("bounds",)),
    "BilevelProblem": (
        dpb.BilevelProblem,
        {"lower_loss": len, "upper_term": len},
        (
            "upper_loss",
            "lower_term",
            "domain",
            "lower_domain",
            "constants",
            "public",
            "lower_scale",
            "upper_trains",
            "start",
        ),
    ),
    "DPLocGD": (dpb.DPLocGD, {}, _gradient),
    "DPLocSGD": (dpb.DPLocSGD, {}, (*_gradient, "sampling")),
    "BlackBox": (dpb.BlackBox, {"train": print, "event": dpb.GaussianDP(0.1)}, ("adjacency", "rows_per_unit")),
    "DPBilevel": (
        dpb.DPBilevel,
        {"inner": dpb.DPLocGD()},
        (
            "penalty_weight",
            "steps",
            "step_size",
            "clip_norm",
            "upper_clip_norm",
            "split",
            "sampling",
            "output",
            "warm_start",
        ),
    ),
    "Tracking": (dpb.Tracking, {}, ("steps", "clip_norm", "sampling")),
    "Refit": (dpb.Refit, {}, ("steps", "learning_rate", "clip_norm", "share")),
    "join_job": (dpb.join_job, {"coordinator": "127.0.0.1:5678", "processes": 2, "process": 0}, ("is_local",)),
    "Ledger": (dpb.Ledger, {"total": BUDGET}, ("composition",)),
    "FixedDefault": (baselines.FixedDefault, {}, ("training",)),
    "UpperRecordsOnly": (baselines.UpperRecordsOnly, {}, ("training",)),
    "NaiveGridSearch": (
        baselines.NaiveGridSearch,
        {"candidates": [0.0, 1.0]},
        ("score", "score_range", "score_share", "training"),
    ),
    "PrivateRandomSearch": (
        baselines.PrivateRandomSearch,
        {"candidates": [0.0]},
        ("mean_runs", "shape", "score", "score_range", "score_share", "training"),
    ),
    "ScreenSources": (baselines.ScreenSources, {"source": len}, ("loss", "loss_range", "training")),
    "ObjectivePerturbation": (baselines.ObjectivePerturbation, {}, ("share",)),
    "AdaSSP": (baselines.AdaSSP, {}, ("target_bound", "failure")),
    "OracleHyperparameters": (
        baselines.OracleHyperparameters,
        {"x": 0.0, "score": len},
        ("settings", "weight_scales", "repeats"),
    ),
    "NumberOfRuns": (baselines.NumberOfRuns, {}, ("mean", "shape")),
    "paper.plan": (
        paper.plan,
        _theory,
        ("setting", "batch", "noise_ratio", "shares", "penalty_weight", "diameter", "radius_factor", "strict"),
    ),
    "theory.glm_constants": (
        theory.glm_constants,
        _glm,
        ("coordinates", "fixed", "target_bound", "threshold", "classes", "radius"),
    ),
    "theory.weighted_constants": (
        theory.weighted_constants,
        {"loss": "logistic", "row_norm": 1.0, "weights": 3, "ridge": 0.1},
        ("target_bound", "threshold", "classes", "radius"),
    ),
    "theory.representation_constants": (
        theory.representation_constants,
        {"row_norm": 1.0, "map_norm": 1.0, "target_bound": 1.0, "ridge": 0.1},
        (),
    ),
    "theory.check_constants": (
        theory.check_constants,
        {"problem": _problem, "constants": _theory["constants"], "sample": lambda key: (0.0, 0.0, 1.0), "trials": 2},
        ("seed",),
    ),
    "paper.curve": (paper.curve, {"planned": paper.plan(**_theory)}, ("against", "values")),
    "selection_epsilon": (
        baselines.selection_epsilon,
        {"mu": 0.1, "runs": baselines.NumberOfRuns(), "delta": 1e-6},
        (),
    ),
    "run_mu": (baselines.run_mu, {"runs": baselines.NumberOfRuns(), "epsilon": 1.0, "delta": 1e-6}, ()),
    "EncodedRows": (dpb.EncodedRows, {"rows": np.zeros((3, 2))}, ("data_norm", "caveats")),
    "regularization": (
        applications.regularization,
        _linear,
        ("loss", "groups", "classes", "row_norm", "target_bound", "threshold", "penalties"),
    ),
    "source_weights": (
        applications.source_weights,
        _linear | {"sources": 2},
        ("loss", "classes", "ridge", "row_norm", "target_bound", "threshold"),
    ),
    "class_weights": (applications.class_weights, _linear, ("classes", "costs", "ridge", "row_norm")),
    "shared_representation": (
        applications.shared_representation,
        _linear | {"dimension": 2, "tasks": 2},
        ("hidden", "ridge", "row_norm", "target_bound"),
    ),
    "unit_sizes": (
        unit_sizes,
        {"units": np.arange(60) // 3, "budget": BUDGET},
        ("largest", "unit_ids", "ledger", "seed"),
    ),
    "label_noise": (applications.label_noise, _linear | {"classes": 2}, ("ridge", "row_norm")),
}
