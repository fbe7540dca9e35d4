"""Derivative bounds of losses of linear scores, and the ball that contains their minimisers.

A record's loss is loss(s, target) of the score s = row . y, ||row|| <= R. On the ball ||y|| <= r no score exceeds the
reach R r. Most derivatives are bounded for any reach; the first derivative of the squared loss and all derivatives of
the Poisson loss are not. Every loss here is convex in s.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from scipy.special import lambertw

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count, one_of, positive

LOSSES = ("logistic", "softmax", "squared", "pseudo-huber", "poisson")

_TAKES = {
    "softmax": {"classes"},
    "squared": {"target_bound"},
    "pseudo-huber": {"threshold", "target_bound"},
    "poisson": {"target_bound"},
}
_OPTIONAL = {("pseudo-huber", "target_bound")}


class Suprema(NamedTuple):
    """Suprema of the loss's first three derivatives in s, over targets and scores; operator norms if s is a vector."""

    derivative: float
    curvature: float
    third_derivative: float


@dataclass(frozen=True)
class LossShape:
    """The properties of a loss that determine the constants.

    Attributes:
        derivative_at_zero: c0, the supremum of |loss'(0)| over targets.
        pull: p, the supremum of -loss'(s) s: how strongly a record pulls y away from 0.
        suprema: suprema of the derivatives, as a non-decreasing function of the reach.
    """

    derivative_at_zero: float
    pull: float
    suprema: Callable[[float], Suprema]

    def solution_radius(self, row_norm: float, floor: float, weight: float = 1.0) -> float:
        """A radius r such that ||y|| <= r at the minimum of sum_i v_i loss_i + (1/lambda) (a mean of losses) + g0.

        The v_i >= 0 sum to at most ``weight``, and y . grad g0 >= floor ||y||^2. For every lambda of at least 1/weight
        and 2 c2 R^2/floor, c2 the curvature on the ball itself, and for lambda = infinity. At the minimum
        floor ||y||^2 <= (weight + 1/lambda) (the largest -loss'(s) s), and -loss'(s) s is at most p; and at most
        -loss'(0) s <= c0 R ||y||, as the loss is convex. So

            r = min{c0 R m, sqrt(p m)},   m = (weight + 1/lambda)/floor.

        c2 is taken on the ball of lambda = infinity, which the ball of radius r contains. It is no larger than on the
        latter, so that 1/lambda is at most the value used here.
        """

        def radius(inverse_penalty: float) -> float:
            multiple = (weight + inverse_penalty) / floor
            return min(self.derivative_at_zero * row_norm * multiple, math.sqrt(self.pull * multiple))

        smallest_penalty_weight = 2 * self.suprema(row_norm * radius(0.0)).curvature * row_norm * row_norm / floor
        return radius(1 / max(smallest_penalty_weight, 1 / weight))


def loss_shape(loss: Any, row_norm: Any, *, target_bound: Any, threshold: Any, classes: Any) -> LossShape:
    """The shape of a loss by name; the arguments are those of `glm_constants` and are checked here.

    >>> options = {"target_bound": None, "threshold": None, "classes": None}
    >>> loss_shape("logistic", 1.0, **options).suprema(10.0).curvature
    0.25
    >>> loss_shape("poisson", 1.0, **options | {"target_bound": 3.0}).suprema(0.0)
    Suprema(derivative=2.0, curvature=1.0, third_derivative=1.0)
    """
    if isinstance(loss, str) and loss == "huber":
        raise InvalidArgument(
            "loss='huber': its second derivative jumps at the threshold, so no L2g exists; use 'pseudo-huber'"
        )
    one_of("loss", loss, LOSSES, "it is the loss of both levels")
    positive("row_norm", row_norm, "it is the declared bound on the norm of every row (try 1.0, and clip rows to it)")
    for name, value in (("target_bound", target_bound), ("threshold", threshold), ("classes", classes)):
        takes = name in _TAKES.get(loss, ())
        if value is not None and not takes:
            raise InvalidArgument(f"{name}={value!r}: must be None with loss={loss!r}, which has no such parameter")
        if value is None and takes and (loss, name) not in _OPTIONAL:
            raise InvalidArgument(
                f"{name}=None: required with loss={loss!r}; declare it, never estimate it from the data"
            )
    if target_bound is not None:
        bound = positive("target_bound", target_bound, "it bounds the absolute value of every target (clip to it)")
    match loss:
        case "logistic":
            # Two classes whose scores are s and 0. The derivatives of 1/(1 + e^-s) are largest at s = 0 and at
            # e^s = 2 +- sqrt(3); s/(1 + e^s) has its maximum W(1/e) at s = 1 + W(1/e).
            return _bounded(0.5, _lambert(1 / math.e), Suprema(1.0, 0.25, 1 / (6 * math.sqrt(3))))
        case "softmax":
            return _softmax(count("classes", classes, "it is the number of classes"))
        case "squared":
            # -(s - target) s is largest at s = target/2.
            return LossShape(bound, bound * bound / 4, lambda reach: Suprema(reach + bound, 1.0, 0.0))
        case "poisson":
            return _poisson(bound)
    # The residual v over the threshold: derivative v/sqrt(1 + v^2), curvature (1 + v^2)^(-3/2), which changes most at
    # v = 1/2. The derivative is below both the absolute residual (so the pull is below the squared loss's) and the
    # threshold.
    threshold = positive("threshold", threshold, "it is where the pseudo-Huber loss turns linear (try 1.0)")
    derivative_at_zero, pull = threshold, math.inf
    if target_bound is not None:
        derivative_at_zero = bound / math.hypot(1, bound / threshold)
        pull = min(bound * bound / 4, bound * threshold)
    return _bounded(derivative_at_zero, pull, Suprema(threshold, 1.0, 1.5 * 0.8**2.5 / threshold))


def _bounded(derivative_at_zero: float, pull: float, suprema: Suprema) -> LossShape:
    """A loss whose derivatives are bounded for any reach."""
    return LossShape(derivative_at_zero, pull, lambda reach: suprema)


def _softmax(classes: int) -> LossShape:
    if classes < 2:
        raise InvalidArgument(f"classes={classes!r}: must be at least 2; one class leaves nothing to learn")
    # The derivative is p - e_label, at most the distance of two vertices. Along a unit vector u second and third
    # derivatives are the variance and the third central moment of u_k under p: of a variable whose range is at
    # most sqrt(2), so at most range^2/4 and range^3/(6 sqrt(3)). The pull is E[d], d_k = s_label - s_k; it is
    # stationary where every other d_k is 1 + E[d], hence its maximum W((classes - 1)/e).
    suprema, others = Suprema(math.sqrt(2), 0.5, math.sqrt(2) / (3 * math.sqrt(3))), classes - 1
    return _bounded(math.sqrt(others / classes), _lambert(others / math.e), suprema)


def _poisson(target_bound: float) -> LossShape:
    """e^s - target s with 0 <= target <= target_bound: its derivative is e^s - target, and all others e^s."""

    def suprema(reach: float) -> Suprema:
        if reach > math.log(sys.float_info.max):
            raise InvalidArgument(
                f"loss='poisson': exp(row_norm * radius) = exp({reach:.6g}) must fit float64; it is the largest rate "
                "on the ball (declare a smaller row_norm or target_bound, larger weights, or a smaller radius)"
            )
        rate = math.exp(reach)
        return Suprema(max(rate, target_bound - math.exp(-reach)), rate, rate)

    # The pull (target - e^s) s is largest at s = -1 with target 0, or where target_bound = (1 + s) e^s.
    score = max(0.0, _lambert(target_bound * math.e) - 1)
    return LossShape(max(1.0, target_bound - 1), max(1 / math.e, score * score * math.exp(score)), suprema)


def _lambert(value: float) -> float:
    """W with W e^W = value."""
    return float(lambertw(value).real)
