"""Certified constants of regularised generalised linear models whose hyperparameters are their L2 weights.

    f_i(y) = loss(row . y, target),     g_i(y) = the same,     g0(x, y) = sum over groups k of (w_k/2) ||y_k||^2

with w_k = x_k ("linear" coordinates) or exp(x_k) ("log"), every w_k between public bounds, ||row|| <= R and no f0. The
groups are any partition of y, possibly a single group: every formula holds for any number of them. Every coordinate of
y has a weight, including an intercept (a column of ones, which counts in R): without one g is not strongly convex.
Coordinates in no group have a public weight ``fixed`` that is not tuned: g0 then also has (fixed/2) ||y_0||^2.

The constants hold for all x in the box and all y in the ball ||y|| <= r, r = `solution_radius`. The ball contains y*
and y^lambda for every x, every data set and every lambda of at least `Constants.smallest_penalty_weight`. It is convex,
so it also contains the segments between them, on which the theory expands f and g. Bounds that do not grow with y (the
derivative of every loss but the squared and the Poisson ones, all curvature in y but the Poisson loss's) hold for
every y.

*Why r.* y^lambda minimises (1 + 1/lambda) (a weighted mean of losses) + g0, and y* is the case lambda = infinity. Its
gradient vanishes, so that floor ||y||^2 <= (1 + 1/lambda) (a weighted mean of -loss'(s) s), s = row . y, where floor is
the least weight: low, or ``fixed`` if that is less. Two bounds on -loss'(s) s give two on ||y||, and r is the smaller:
the supremum over s; and, as the loss is convex, -loss'(0) s. The three bounds on lambda imply
1/lambda <= min{floor/(2 L1f), 1}, since L0f = L0g. On a centred ball as ``lower_domain`` the gradient points outwards
instead of vanishing, and the same inequality follows. `theory/losses.py` has the suprema of every loss.

The rate of the Poisson loss is up to e^(R r) on the ball, and its constants grow with it: they are refused if they
overflow a float.
"""

from typing import Any

import numpy as np

from dpbilevel.constants import Constants
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import one_of, positive
from dpbilevel.theory.forms import largest_cubic, largest_square
from dpbilevel.theory.losses import loss_shape

COORDINATES = ("linear", "log")


def glm_constants(
    loss: str,
    row_norm: float,
    *,
    penalty: tuple[float, float],
    coordinates: str = "linear",
    fixed: float | None = None,
    target_bound: float | None = None,
    threshold: float | None = None,
    classes: int | None = None,
    radius: float | None = None,
) -> Constants:
    """Constants of an L2-regularised generalised linear model; see the module docstring for their domain of x and y.

    With c1, c2, c3 the suprema of the loss's first three derivatives in the score and a, b >= 0, a^2 + b^2 = 1:

    ====================  =============================================================================================
    L0f, L0g              c1 R, total and per record alike, as there is no f0
    L1f, L1g per record   c2 R^2. A record's loss is free of x: the block in x and y of its Hessian is *zero*
    L1g total             largest eigenvalue of [[xx, xy], [xy, high + c2 R^2]], norms of the blocks of the Hessian of
                          g: linear has xx = 0, xy = max_k ||y_k|| <= r; log has xx = high r^2/2, xy = high r
                          (or fixed + c2 R^2 if larger: coordinates in no group have no block with x)
    L2g total             linear: max over a, b of 3 a b^2 + c3 R^3 b^3, the third derivative along (a in x, b in y);
                          log: of high (a^3 r^2/2 + 3 a^2 b r + 3 a b^2) + c3 R^3 b^3
    mu_g                  the least weight, low or fixed: a row of zeros has no curvature of its own
    ====================  =============================================================================================

    Args:
        loss: "logistic" (labels 0 and 1, or -1 and 1), "softmax" (y a matrix, cross-entropy), "squared",
            (row . y - target)^2/2, "pseudo-huber", threshold^2 (sqrt(1 + (residual/threshold)^2) - 1), or "poisson",
            exp(row . y) - target row . y.
        row_norm: R, declared: every row of features has at most this Euclidean norm.
        penalty: (low, high), the public bounds on every weight w_k (not on x, if that is its logarithm).
        coordinates: "linear" if x holds the weights, "log" if it holds their logarithms.
        fixed: the public weight of the coordinates of y that are in no group; None if all are in a group.
        target_bound: declared: no target exceeds it in absolute value, and with "poisson" none is negative. Required
            for "squared" and "poisson"; for "pseudo-huber" it makes the ball smaller.
        threshold: of "pseudo-huber": where its derivative bends from the residual to a constant.
        classes: the public number of classes of "softmax".
        radius: the radius of another ball: larger for iterates that leave the ball of solutions, or smaller for
            problems with ``lower_domain=Ball(radius)``.

    >>> constants = glm_constants("logistic", row_norm=1.0, penalty=(0.1, 1.0), coordinates="log")
    >>> constants.upper_lipschitz, constants.upper_smoothness, constants.strong_convexity
    (1.0, 0.25, 0.1)
    >>> round(constants.lower_smoothness, 3), constants.record_lower_smoothness
    (3.3, 0.25)
    >>> glm_constants("poisson", row_norm=1.0, penalty=(1.0, 2.0), fixed=0.5, target_bound=3.0).strong_convexity
    0.5
    """
    low, high = _checked_penalty(penalty)
    one_of("coordinates", coordinates, COORDINATES, "x holds either the weights or their logarithms")
    options: dict[str, Any] = {"target_bound": target_bound, "threshold": threshold, "classes": classes}
    shape = loss_shape(loss, row_norm, **options)
    floor = _least(low, fixed)
    if radius is None:
        radius = shape.solution_radius(row_norm, floor)
    radius = positive("radius", radius, "it is the radius of the ball that y stays in (try None for the solutions')")
    derivative, curvature, third_derivative = shape.suprema(row_norm * radius)
    record_curvature = curvature * row_norm * row_norm
    # Along (a in x, b in y) with group norms a_k, b_k: sums over groups such as sum_k a_k^2 ||y_k|| b_k are at most
    # a^2 r b, because no a_k exceeds a, and by Cauchy-Schwarz. So groups never increase a bound.
    if coordinates == "linear":
        x_block, cross_block, cubic = 0.0, radius, (0.0, 0.0, 3.0)
    else:
        x_block, cross_block = high * radius * radius / 2, high * radius
        cubic = (high * radius * radius / 2, 3 * high * radius, 3 * high)
    total = largest_square(x_block, cross_block, high + record_curvature)
    return Constants(
        upper_lipschitz=derivative * row_norm,
        upper_smoothness=record_curvature,
        lower_lipschitz=derivative * row_norm,
        lower_smoothness=total if fixed is None else max(total, fixed + record_curvature),
        lower_hessian_lipschitz=largest_cubic(*cubic, third_derivative * row_norm * row_norm * row_norm),
        strong_convexity=floor,
        record_upper_lipschitz=derivative * row_norm,
        record_lower_smoothness=record_curvature,
    )


def solution_radius(
    loss: str,
    row_norm: float,
    *,
    penalty: tuple[float, float],
    fixed: float | None = None,
    target_bound: float | None = None,
    threshold: float | None = None,
    classes: int | None = None,
) -> float:
    """The radius r of a ball around 0 that contains every y* and y^lambda; arguments as in `glm_constants`.

    r = min{c0 R (1 + 1/lambda)/floor, sqrt(p (1 + 1/lambda)/floor)} with c0 the derivative at score 0 and p the
    supremum of -loss'(s) s. For ridge regression p = target_bound^2/4, attained by one record (row of norm sqrt(low)).

    >>> round(solution_radius("squared", row_norm=1.0, penalty=(0.01, 1.0), target_bound=2.0), 4)
    10.025
    """
    low, _ = _checked_penalty(penalty)
    shape = loss_shape(loss, row_norm, target_bound=target_bound, threshold=threshold, classes=classes)
    return shape.solution_radius(row_norm, _least(low, fixed))


def _least(low: float, fixed: Any) -> float:
    """The least weight that a coordinate of y may have."""
    if fixed is None:
        return low
    return min(low, positive("fixed", fixed, "it is the weight of coordinates in no group (try 0.01)"))


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
