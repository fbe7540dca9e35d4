"""Certified constants of data weights on the simplex, one for each source (or class) of records.

    f_i(y) = loss(row . y, target),     g_i(x, y) = K x_s loss(row . y, target),     g0(y) = (ridge/2) ||y||^2

with s the source of record i, x on the simplex {x >= 0, sum x = 1} with K coordinates (x = 1/K weights every record by
one), ||row|| <= R and no f0. Sources are private and may have any share of the records: one may have all.

The constants hold for all x in the simplex and all y in the ball ||y|| <= r, r = `solution_radius`. The ball contains
y* and y^lambda for every x, every data set and every lambda of at least `Constants.smallest_penalty_weight`, and the
segments between them.

*Why r.* At y^lambda the gradient of f/lambda + g vanishes, so that ridge ||y||^2 is at most (K + 1/lambda) times the
largest -loss'(score) score: the mean of the weights K x_s is at most K, and equals K if all records are of one source
with x_s = 1. The bounds on -loss'(score) score are those of `theory/glm.py`. Of the three bounds on lambda, L0f/L0g is
1/K and L1f/L1g is less: 1/lambda <= min{ridge/(2 L1f), K}.

*What is not needed.* Values of the loss are derivatives of g in x only, which no constant bounds: L0g is for
derivatives in y. g is linear in x, so its second derivative in x is zero. Derivatives are taken along every direction
of x, also out of the simplex.
"""

from typing import Any

from dpbilevel.constants import Constants
from dpbilevel.foundation.arguments import count, positive
from dpbilevel.theory.forms import largest_cubic, largest_square
from dpbilevel.theory.losses import LossShape, loss_shape


def weighted_constants(
    loss: str,
    row_norm: float,
    *,
    weights: int,
    ridge: float,
    target_bound: float | None = None,
    threshold: float | None = None,
    classes: int | None = None,
    radius: float | None = None,
) -> Constants:
    """Constants of a linear model with weights of sources; see the module docstring for their domain of x and y.

    With c1, c2, c3 the suprema of the loss's first three derivatives in the score, a, b >= 0 and a^2 + b^2 = 1:

    ====================  =============================================================================================
    L0f                   c1 R, total and per record: f does not depend on x and there is no f0
    L1f                   c2 R^2
    L0g per record        K c1 R, in y
    L1g per record        largest eigenvalue of K [[0, c1 R], [c1 R, c2 R^2]], the norms of the blocks of the Hessian
    L1g total             largest eigenvalue of [[0, K c1 R], [K c1 R, K c2 R^2 + ridge]]
    L2g total             max over a, b of K (3 c2 R^2 a b^2 + c3 R^3 b^3), the third derivative along (a in x, b in y)
    mu_g                  ridge: a source of weight 0 has no curvature
    ====================  =============================================================================================

    One record with x_s = 1 is as bad as any data set, as a norm of a mean is at most the largest norm. With "squared",
    and with "poisson" if the largest rate exceeds ``target_bound``, it attains every bound. The first derivatives of
    the other losses are bounded for all y: they approach c1 only for large scores, where the curvature vanishes.

    Args:
        loss: as in `glm_constants`, like ``target_bound``, ``threshold`` and ``classes``.
        row_norm: R, declared: every row of features has at most this Euclidean norm.
        weights: K, the public number of sources, and of coordinates of x.
        ridge: the public weight of ||y||^2/2 in the lower level; it is mu_g.
        radius: the radius of another ball, as in `glm_constants`.

    >>> constants = weighted_constants("logistic", row_norm=1.0, weights=10, ridge=0.1)
    >>> constants.upper_lipschitz, constants.lower_lipschitz, constants.strong_convexity
    (1.0, 10.0, 0.1)
    >>> round(constants.lower_smoothness, 3), round(constants.record_lower_smoothness, 3)
    (11.385, 11.328)
    """
    shape, sources, ridge = _checked(loss, row_norm, weights, ridge, target_bound, threshold, classes)
    if radius is None:
        radius = shape.solution_radius(row_norm, ridge, sources)
    radius = positive("radius", radius, "it is the radius of the ball that y stays in (try None for the solutions')")
    derivative, curvature, third_derivative = shape.suprema(row_norm * radius)
    first, second, third = (
        derivative * row_norm,
        curvature * row_norm * row_norm,
        third_derivative * row_norm * row_norm * row_norm,
    )
    return Constants(
        upper_lipschitz=first,
        upper_smoothness=second,
        lower_lipschitz=sources * first,
        lower_smoothness=largest_square(0.0, sources * first, sources * second + ridge),
        lower_hessian_lipschitz=largest_cubic(0.0, 0.0, 3 * sources * second, sources * third),
        strong_convexity=ridge,
        record_upper_lipschitz=first,
        record_lower_smoothness=largest_square(0.0, sources * first, sources * second),
    )


def solution_radius(
    loss: str,
    row_norm: float,
    *,
    weights: int,
    ridge: float,
    target_bound: float | None = None,
    threshold: float | None = None,
    classes: int | None = None,
) -> float:
    """The radius r of a ball around 0 that contains every y* and y^lambda; arguments as in `weighted_constants`.

    r = min{c0 R (K + 1/lambda)/ridge, sqrt(p (K + 1/lambda)/ridge)} with c0 the derivative at score 0 and p the
    supremum of -loss'(score) score.

    >>> round(solution_radius("squared", row_norm=1.0, weights=4, ridge=0.01, target_bound=2.0), 4)
    20.0125
    """
    shape, sources, ridge = _checked(loss, row_norm, weights, ridge, target_bound, threshold, classes)
    return shape.solution_radius(row_norm, ridge, sources)


def _checked(
    loss: Any, row_norm: Any, weights: Any, ridge: Any, target_bound: Any, threshold: Any, classes: Any
) -> tuple[LossShape, int, float]:
    shape = loss_shape(loss, row_norm, target_bound=target_bound, threshold=threshold, classes=classes)
    sources = count("weights", weights, "it is the number of sources, each with a weight (try 10)")
    ridge = positive("ridge", ridge, "it is mu_g: sources of weight 0 have no curvature (try 0.01)")
    return shape, sources, ridge
