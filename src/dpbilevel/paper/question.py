"""The input of a theory plan: public facts, checked before anything is computed."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dpbilevel.constants import Constants
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count, one_of, positive

SETTINGS = ("erm", "minibatch", "population")


@runtime_checkable
class SpendingLimit(Protocol):
    """The part of a `Budget` that the planner reads: theorems need no accountant."""

    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float | None: ...
    @property
    def adjacency(self) -> str: ...
    @property
    def mu(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Question:
    """The arguments of `plan`, checked."""

    constants: Constants
    n: int
    d_x: int
    d_y: int
    budget: SpendingLimit
    gamma: float
    setting: str
    gap: float
    batch: int | None
    noise_ratio: float | None
    shares: tuple[float, float, float]
    penalty_weight: float | None
    diameter: float | None
    radius_factor: float

    def __post_init__(self) -> None:
        if not isinstance(self.constants, Constants):
            raise InvalidArgument("constants: must be dpb.Constants(...), bounds for every possible record")
        if not isinstance(self.budget, SpendingLimit) or isinstance(self.budget, type):
            raise InvalidArgument("budget: must be dpb.Budget(epsilon, delta)")
        if not math.isfinite(self.budget.epsilon):
            raise InvalidArgument("budget: epsilon must be finite; without noise enough steps reach every alpha")
        one_of("setting", self.setting, SETTINGS, "it selects the theorem to plan with (1, 2 or 3)")
        for name, why in {
            "n": "it is the number of records",
            "d_x": "it is the number of upper variables",
            "d_y": "it is the number of lower variables",
            "batch": "it is b_out, the expected number of records of an outer step",
        }.items():
            if name != "batch" or self.batch is not None:
                object.__setattr__(self, name, count(name, getattr(self, name), why))
        for name, why in {
            "gamma": "it is the probability that alpha may fail (try 0.05)",
            "gap": "it bounds F(x_0) - inf F for every data set",
            "radius_factor": "it scales the radii of DP-Loc-GD (try 1.0)",
            "penalty_weight": "it is lambda, the weight of the lower level (try None for the best one)",
            "diameter": "it bounds the diameter of the domain of x (try None for the distance of all steps)",
            "noise_ratio": "it is the outer noise over full batch's (try None for no amplification)",
        }.items():
            if getattr(self, name) is not None or name in ("gamma", "gap", "radius_factor"):
                object.__setattr__(self, name, positive(name, getattr(self, name), why))
        if not isinstance(self.shares, tuple) or len(self.shares) != 3:
            raise InvalidArgument(f"shares={self.shares!r}: must be a tuple of three shares, as in (1.0, 1.0, 1.0)")
        for share in self.shares:
            positive("shares", share, "they divide mu^2 between lower solves, penalised solves and outer steps")
        self._check_ranges()
        self._check_constants()

    def _check_ranges(self) -> None:
        if self.gamma >= 1:
            raise InvalidArgument(f"gamma={self.gamma!r}: must be below 1; it is a probability (try 0.05)")
        if self.batch is None and self.setting == "minibatch":
            raise InvalidArgument("batch=None: required with setting='minibatch'; it is b_out (try n // 10)")
        if self.batch is not None and self.setting == "erm":
            raise InvalidArgument(f"batch={self.batch!r}: must be None with setting='erm' (try setting='minibatch')")
        if self.batch is not None and self.batch > self.n:
            raise InvalidArgument(f"batch={self.batch!r}: must be at most n={self.n!r}")
        if self.noise_ratio is not None and (self.batch is None or self.noise_ratio < 1):
            raise InvalidArgument(f"noise_ratio={self.noise_ratio!r}: must be at least 1, and requires batch=...")

    def _check_constants(self) -> None:
        constants = self.constants
        if constants.upper_lipschitz == 0:
            raise InvalidArgument("constants: upper_lipschitz=0.0 makes F constant; there is nothing to plan")
        if constants.upper_smoothness == 0 == constants.lower_hessian_lipschitz:
            affine = "upper_smoothness=0.0 with lower_hessian_lipschitz=0.0 makes F affine and the step 1/(2L) infinite"
            raise InvalidArgument(f"constants: {affine} (declare a positive upper_smoothness: it is an upper bound)")
        smallest = constants.smallest_penalty_weight()
        if self.penalty_weight is not None and self.penalty_weight < smallest:
            raise InvalidArgument(
                f"penalty_weight={self.penalty_weight!r}: must be at least max{{2 L1f/mu_g, L0f/L0g, L1f/L1g}} = "
                f"{smallest:.6g}; it is too small by a factor {smallest / self.penalty_weight:.4g} (try "
                "None for the best one)"
            )
