"""Certified constants of regularised generalised linear models whose hyperparameters are their L2 weights.

    f_i(y) = loss(row . y, target),     g_i(y) = the same,     g0(x, y) = sum over groups k of (w_k/2) ||y_k||^2

with w_k = x_k ("linear" coordinates) or exp(x_k) ("log"), every w_k between public bounds, ||row|| <= R and no f0. The
groups split y any way, and one group is a split too: every formula holds for any number of them. Every coordinate of
y is in a group, an intercept too (as a column of ones, which counts in R): without a weight g is not strongly convex.

The constants hold for all x of the box and all y of the ball ||y|| <= r, r = `solution_radius`. It holds y* and
y^lambda for every x, every data set and every lambda of at least `Constants.smallest_penalty`; and a ball is convex,
so that it holds the segments between them, on which the theory expands f and g. What does not grow with y (the slope
of every loss but the squared one, all curvature in y) holds for every y.

*Why r.* y^lambda minimises (1 + 1/lambda) (a weighted mean of losses) + g0, and y* is the case lambda = infinity. Its
gradient vanishes, so that low ||y||^2 <= (1 + 1/lambda) (a weighted mean of -loss'(s) s), s = row . y. Two bounds on
-loss'(s) s give two on ||y||, and r is the smaller: the supremum over s; and, as the loss is convex, -loss'(0) s. The
three bounds on lambda say 1/lambda <= min{low/(2 L1f), 1}, since L0f = L0g. On a centred ball as ``lower_domain`` the
gradient points outwards instead of vanishing, and the same inequality follows.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import lambertw

from dpbilevel.arguments import count, one_of, positive
from dpbilevel.errors import InvalidArgument
from dpbilevel.theory.constants import Constants

LOSSES = ("logistic", "softmax", "squared", "pseudo-huber")
COORDINATES = ("linear", "log")


def glm_constants(
    loss: str,
    row_norm: float,
    *,
    penalty: tuple[float, float],
    coordinates: str = "linear",
    target_bound: float | None = None,
    threshold: float | None = None,
    classes: int | None = None,
    radius: float | None = None,
) -> Constants:
    """Constants of an L2-regularised generalised linear model; the head of this module says for which x and y.

    With c1, c2, c3 the suprema of the loss's first three derivatives in the score and a, b >= 0, a^2 + b^2 = 1:

    ====================  =============================================================================================
    L0f, L0g              c1 R, total and per record alike, as there is no f0
    L1f, L1g per record   c2 R^2. A record's loss is free of x: the block in x and y of its Hessian is *zero*
    L1g total             largest eigenvalue of [[xx, xy], [xy, high + c2 R^2]], norms of the blocks of the Hessian of
                          g: linear has xx = 0, xy = max_k ||y_k|| <= r; log has xx = high r^2/2, xy = high r
    L2g total             linear: max over a, b of 3 a b^2 + c3 R^3 b^3, the third derivative along (a in x, b in y);
                          log: of high (a^3 r^2/2 + 3 a^2 b r + 3 a b^2) + c3 R^3 b^3
    mu_g                  low: a row of zeros has no curvature of its own
    ====================  =============================================================================================

    Args:
        loss: "logistic" (labels 0 and 1, or -1 and 1), "softmax" (y a matrix, cross-entropy), "squared",
            (row . y - target)^2/2, or "pseudo-huber", threshold^2 (sqrt(1 + (residual/threshold)^2) - 1).
        row_norm: R, declared: every row of features has at most this Euclidean norm.
        penalty: (low, high), the public bounds on every weight w_k (not on x, where that is its logarithm).
        coordinates: "linear" where x holds the weights, "log" where it holds their logarithms.
        target_bound: declared: no target exceeds it in absolute value. Needed for "squared"; for "pseudo-huber" it
            makes the ball smaller.
        threshold: of "pseudo-huber": where its slope bends from the residual to a constant.
        classes: the public number of classes of "softmax".
        radius: of another ball: a larger one for iterates that go farther than any solution, or a smaller one for
            problems with ``lower_domain=Ball(radius)``.

    >>> constants = glm_constants("logistic", row_norm=1.0, penalty=(0.1, 1.0), coordinates="log")
    >>> constants.upper_lipschitz, constants.upper_smoothness, constants.strong_convexity
    (1.0, 0.25, 0.1)
    >>> round(constants.lower_smoothness, 3), constants.record_lower_smoothness
    (3.3, 0.25)
    """
    low, high = _checked_penalty(penalty)
    one_of("coordinates", coordinates, COORDINATES, "it says whether x holds the weights or their logarithms")
    options: dict[str, Any] = {"target_bound": target_bound, "threshold": threshold, "classes": classes}
    shape = _shape(loss, row_norm, **options)
    if radius is None:
        radius = solution_radius(loss, row_norm, penalty=penalty, **options)
    radius = positive("radius", radius, "it is the radius of the ball that y stays in (try None for the solutions')")
    slope = shape.slope
    if target_bound is not None and not math.isfinite(slope):
        slope = row_norm * radius + target_bound  # of the squared loss: the largest residual on the ball
    record_curvature = shape.curvature * row_norm * row_norm
    # Along (a in x, b in y) with group norms a_k, b_k: sums over groups such as sum_k a_k^2 ||y_k|| b_k are at most
    # a^2 r b, because no a_k exceeds a, and Cauchy-Schwarz does the rest. So groups never add to a bound.
    if coordinates == "linear":
        x_block, cross_block, cubic = 0.0, radius, (0.0, 0.0, 3.0)
    else:
        x_block, cross_block = high * radius * radius / 2, high * radius
        cubic = (high * radius * radius / 2, 3 * high * radius, 3 * high)
    y_block = high + record_curvature
    total = (x_block + y_block) / 2 + math.hypot((x_block - y_block) / 2, cross_block)
    return Constants(
        upper_lipschitz=slope * row_norm,
        upper_smoothness=record_curvature,
        lower_lipschitz=slope * row_norm,
        lower_smoothness=total,
        lower_hessian_lipschitz=_largest_cubic(*cubic, shape.twist * row_norm * row_norm * row_norm),
        strong_convexity=low,
        record_upper_lipschitz=slope * row_norm,
        record_lower_smoothness=record_curvature,
    )


def solution_radius(
    loss: str,
    row_norm: float,
    *,
    penalty: tuple[float, float],
    target_bound: float | None = None,
    threshold: float | None = None,
    classes: int | None = None,
) -> float:
    """The radius r of a ball around 0 that holds every y* and y^lambda; arguments as in `glm_constants`.

    r = min{c0 R (1 + 1/lambda)/low, sqrt(p (1 + 1/lambda)/low)} with c0 the slope at score 0 and p the supremum of
    -loss'(s) s. For ridge regression p = target_bound^2/4, and one record (row of norm sqrt(low)) comes up to it.

    >>> round(solution_radius("squared", row_norm=1.0, penalty=(0.01, 1.0), target_bound=2.0), 4)
    10.025
    """
    low, _ = _checked_penalty(penalty)
    shape = _shape(loss, row_norm, target_bound=target_bound, threshold=threshold, classes=classes)
    inverse_penalty = min(1.0, low / (2 * shape.curvature * row_norm * row_norm))
    weight = (1 + inverse_penalty) / low
    return min(shape.slope_at_zero * row_norm * weight, math.sqrt(shape.pull * weight))


@dataclass(frozen=True)
class _Shape:
    """Suprema of a loss over all scores s and targets; norms and operator norms where s is a vector."""

    slope: float  # of |loss'|: infinite for the squared loss, whose slope is the residual
    curvature: float  # of |loss''|
    twist: float  # of |loss'''|
    slope_at_zero: float  # of |loss'(0)|, over targets alone
    pull: float  # of -loss'(s) s: how hard a record pulls y away from 0


def _shape(loss: Any, row_norm: Any, *, target_bound: Any, threshold: Any, classes: Any) -> _Shape:
    if loss == "huber":
        raise InvalidArgument(
            "loss='huber': its second derivative jumps at the threshold, so that no L2g exists; use 'pseudo-huber'"
        )
    one_of("loss", loss, LOSSES, "it is the loss of both levels")
    positive("row_norm", row_norm, "it is the declared bound on the norm of every row (try 1.0, and clip rows to it)")
    options = {"target_bound": target_bound, "threshold": threshold, "classes": classes}
    takes = {"squared": {"target_bound"}, "softmax": {"classes"}, "pseudo-huber": {"threshold", "target_bound"}}
    for name, value in options.items():
        if value is not None and name not in takes.get(loss, ()):
            raise InvalidArgument(f"{name}={value!r}: must be None with loss={loss!r}, which has no such number")
    for name in takes.get(loss, set()) - ({"target_bound"} if loss == "pseudo-huber" else set()):
        if options[name] is None:
            raise InvalidArgument(f"{name}=None: required with loss={loss!r}; declare it, never read it off the data")
    if target_bound is not None:
        positive("target_bound", target_bound, "it bounds the absolute value of every target (clip targets to it)")
    match loss:
        case "logistic":
            # Two classes whose scores are s and 0. The derivatives of 1/(1 + e^-s) are largest at s = 0 and at
            # e^s = 2 +- sqrt(3); s/(1 + e^s) has its maximum W(1/e) at s = 1 + W(1/e).
            return _Shape(1.0, 0.25, 1 / (6 * math.sqrt(3)), 0.5, _lambert(1 / math.e))
        case "softmax":
            classes = count("classes", classes, "it is the number of classes")
            if classes < 2:
                raise InvalidArgument(f"classes={classes!r}: must be at least 2; one class leaves nothing to learn")
            # The slope is p - e_label, at most the distance of two vertices. Along a unit vector u second and third
            # derivatives are the variance and the third central moment of u_k under p: of a variable whose range is at
            # most sqrt(2), so at most range^2/4 and range^3/(6 sqrt(3)). The pull is E[d], d_k = s_label - s_k; it is
            # stationary where every other d_k is 1 + E[d], hence its maximum W((classes - 1)/e).
            twist, others = math.sqrt(2) / (3 * math.sqrt(3)), classes - 1
            return _Shape(math.sqrt(2), 0.5, twist, math.sqrt(others / classes), _lambert(others / math.e))
        case "squared":
            # -(s - target) s is largest at s = target/2.
            return _Shape(math.inf, 1.0, 0.0, target_bound, target_bound * target_bound / 4)
    # The residual v over the threshold: slope v/sqrt(1 + v^2), curvature (1 + v^2)^(-3/2), whose own slope is steepest
    # at v = 1/2. The slope is below both the residual's size (so the pull is below the squared loss's) and threshold.
    threshold = positive("threshold", threshold, "it is where the pseudo-Huber loss turns linear (try 1.0)")
    slope_at_zero, pull = threshold, math.inf
    if target_bound is not None:
        slope_at_zero = target_bound / math.hypot(1, target_bound / threshold)
        pull = min(target_bound * target_bound / 4, target_bound * threshold)
    return _Shape(threshold, 1.0, 1.5 * 0.8**2.5 / threshold, slope_at_zero, pull)


def _checked_penalty(penalty: Any) -> tuple[float, float]:
    if not isinstance(penalty, tuple | list) or len(penalty) != 2:
        raise InvalidArgument(f"penalty={penalty!r}: must be (low, high), the bounds on every weight (try (0.01, 1.0))")
    low, high = penalty
    if not isinstance(low, bool) and isinstance(low, int | float | np.number) and low == 0:
        raise InvalidArgument(
            f"penalty={penalty!r}: low must be > 0; the lower level is not strongly convex at weight 0; keep every "
            "weight at or above a public floor (try 0.01)"
        )
    low = positive("penalty", low, "low bounds every weight from below, and is mu_g (try 0.01)")
    high = positive("penalty", high, "high bounds every weight from above (try 1.0)")
    if low > high:
        raise InvalidArgument(f"penalty={penalty!r}: low must not exceed high; swap the two bounds")
    return low, high


def _lambert(value: float) -> float:
    """W with W e^W = value."""
    return float(lambertw(value).real)


def _largest_cubic(aaa: float, aab: float, abb: float, bbb: float) -> float:
    """The maximum of aaa a^3 + aab a^2 b + abb a b^2 + bbb b^3 over a, b >= 0 on the unit circle.

    >>> round(_largest_cubic(0.0, 0.0, 3.0, 0.0) / (2 / math.sqrt(3)), 12)
    1.0
    """

    def value(ratio: float) -> float:
        return (((aaa * ratio + aab) * ratio + abb) * ratio + bbb) / math.hypot(1, ratio) ** 3

    # Where the derivative in the ratio a/b vanishes. Other ratios may take part: none has more than the maximum.
    stationary = np.roots([-aab, 3 * aaa - 2 * abb, 2 * aab - 3 * bbb, abb])
    return max([aaa, bbb, *(value(float(ratio)) for ratio in stationary.real if ratio > 0)])
