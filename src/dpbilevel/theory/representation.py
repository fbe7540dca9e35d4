"""Certified constants of a shared linear representation with one ridge regression per task on top of it.

    f_i = g_i = (row^T B h_t - target)^2/2,     g0 = (ridge/2) sum over tasks t of ||h_t||^2

with x = B, a map of Frobenius norm at most rho (domain ``Ball(rho)``), y = (h_t), the heads, t the task of record i,
||row|| <= R, |target| <= T and no f0. For a fixed B it is ridge regression on rows B^T row, of norm at most R rho:
convex in y, so that mu_g = ridge. It is not convex in x and y jointly, which is not required.

The constants hold for all ||B|| <= rho and all y in the ball ||y|| <= r, r = `solution_radius`. The ball contains y*
and y^lambda for every B, every data set and every lambda of at least `Constants.smallest_penalty_weight`, and the
segments between them. r is that of ridge regression with rows of norm R rho (`theory/glm.py`), whose bounds on lambda
hold here too: L0f >= L0g and L1f >= (R rho)^2, so that 1/lambda <= min{ridge/(2 (R rho)^2), 1}.

*The derivatives* along (P in B, q in h_t), of sizes a and b. The residual e = row^T B h_t - target has

    |e| <= E = R rho r + T,   e' = row^T (P h_t + B q) <= R (r a + rho b),   e'' = 2 row^T P q <= 2 R a b,   e''' = 0,

and e^2/2 has the derivatives e e', e'^2 + e e'' and 3 e' e''. One record attains these bounds all at once: for unit
vectors u and v take B = rho u v^T, h_t = r v, P = a u v^T, q = b v, row = R u and target = -T. So every constant is
exact on the ball.
"""

import math

from dpbilevel.constants import Constants
from dpbilevel.foundation.arguments import positive
from dpbilevel.theory.forms import largest_cubic, largest_square
from dpbilevel.theory.losses import loss_shape


def representation_constants(row_norm: float, *, map_norm: float, target_bound: float, ridge: float) -> Constants:
    """Constants of a linear representation and its heads; see the module docstring for their domain of x and y.

    With a, b >= 0, a^2 + b^2 = 1 and r, E as defined there:

    ====================  =============================================================================================
    L0f                   E R sqrt(r^2 + rho^2), total and per record alike, as there is no f0
    L0g per record        E R rho, in y alone
    L1f, L1g per record   largest eigenvalue of [[(R r)^2, R^2 r rho + R E], [R^2 r rho + R E, (R rho)^2]]
    L1g total             the same with (R rho)^2 + ridge
    L2g total             max over a, b of 6 R^2 (r a^2 b + rho a b^2)
    mu_g                  ridge: a row of zeros has no curvature of its own
    ====================  =============================================================================================

    Args:
        row_norm: R, declared: every row of features has at most this Euclidean norm.
        map_norm: rho, the public bound on the Frobenius norm of the map.
        target_bound: T, declared: no target exceeds it in absolute value.
        ridge: the public weight of ||y||^2/2 in the lower level; it is mu_g.

    >>> constants = representation_constants(1.0, map_norm=1.0, target_bound=2.0, ridge=1.0)
    >>> constants.strong_convexity, round(constants.lower_lipschitz, 3)
    (1.0, 3.225)
    >>> round(constants.lower_smoothness, 3), round(constants.record_lower_smoothness, 3)
    (6.207, 5.707)
    """
    radius = solution_radius(row_norm, map_norm=map_norm, target_bound=target_bound, ridge=ridge)
    residual = row_norm * map_norm * radius + target_bound
    # (R r, R rho): the change of the score per unit change of the map and of the head.
    by_map, by_head = row_norm * radius, row_norm * map_norm
    cross = by_map * by_head + row_norm * residual
    record = largest_square(by_map * by_map, cross, by_head * by_head)
    cubic = (0.0, 6 * row_norm * by_map, 6 * row_norm * by_head, 0.0)
    return Constants(
        upper_lipschitz=residual * row_norm * math.hypot(radius, map_norm),
        upper_smoothness=record,
        lower_lipschitz=residual * by_head,
        lower_smoothness=largest_square(by_map * by_map, cross, by_head * by_head + ridge),
        lower_hessian_lipschitz=largest_cubic(*cubic),
        strong_convexity=ridge,
        record_lower_smoothness=record,
    )


def solution_radius(row_norm: float, *, map_norm: float, target_bound: float, ridge: float) -> float:
    """The radius r of a ball around 0 that contains every y* and y^lambda; arguments as in `representation_constants`.

    >>> solution_radius(1.0, map_norm=1.0, target_bound=2.0, ridge=1.0) ** 2
    1.5
    """
    positive("row_norm", row_norm, "it is the declared bound on the norm of every row (try 1.0, and clip rows to it)")
    positive("map_norm", map_norm, "it bounds the Frobenius norm of the map: domain=Ball(map_norm) (try 1.0)")
    positive("ridge", ridge, "it is mu_g: the lower level has no other curvature if the map is 0 (try 0.01)")
    through = row_norm * map_norm
    return loss_shape("squared", through, target_bound=target_bound, threshold=None, classes=None).solution_radius(
        through, ridge
    )
