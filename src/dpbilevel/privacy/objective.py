"""The privacy of objective perturbation, for linear models with bounded rows (Redberg, Koskela and Wang 2023).

    y* = minimiser of  sum over records i of loss_i(a_i . y) + q(y) + (ridge/2) |y|^2 + b . y,   b ~ N(0, noise_std^2 I)

with |a_i| <= R, a loss that is convex in its score with |loss'| <= G and loss'' <= K, and a convex quadratic q that
reads no record. Released is y~ + N(0, output_std^2 I), where y~ is any point at which the gradient of the objective has
norm at most ``tolerance``.

**The minimiser.** For given records, b and y* determine each other: b = -(the gradient of all other terms at y*). So y*
has the density of b at that place, times the determinant of the Hessian H. Compare records with their neighbour's.

*Determinant.* A neighbour has H - k a a' + k' c c' with k, k' <= K, and what remains without a and c is at least
``ridge``. Either determinant is at most 1 + K R^2/ridge times that of the remainder, and at least once. Its logarithm
is at most log(1 + K R^2/ridge).

*Density of b.* The neighbour needs b + v at the same y*, with v = s a - s' c and derivatives s, s' in [-G, G] that
depend on y*, hence on b. The loss in the exponent is (2 b . v + |v|^2)/(2 noise_std^2). It is convex in (s, s'), so
that it is largest at one of four vertices, each of which is a *fixed* vector of norm at most 2 G R. For a fixed v it is
the loss of a Gaussian mechanism. The hockey-stick divergence of the largest of four losses is at most the sum of four:
with mu = 2 G R/noise_std,

    delta(epsilon) <= 4 delta_mu(epsilon - log(1 + K R^2/ridge)),

delta_mu that of mu-GDP. If a record is set to zero instead, there are two vertices of norm at most G R, and 2 in place
of 4, which is Theorem 3.1 of the paper. That derivatives depend on b is why objective perturbation is no Gaussian
release.

**The approximation.** The objective is ridge-strongly convex, so that |y~ - y*| <= tolerance/ridge. Given y*, the
output is a Gaussian mechanism on y~ - y*, which differs between neighbours by at most 2 tolerance/ridge. It composes
with the above: mu^2 grows by (2 tolerance/(ridge output_std))^2, in each of the four terms.

**Units.** A record may be a unit with r of at most k rows. Its loss is w/m times the sum of losses of its rows, with m
public and w = min(1, c m/r). It is a convex function, as w does not depend on y. To clip its gradient would not do:
what is clipped is the gradient of no function, and b and y* would not determine each other. The gradient is w/m sum s_j
a_j, with one derivative s_j for each row, and at most c G R long. The Hessian has at most k eigenvalues other than
zero, with a sum of at most T = c K R^2. So either determinant is at most (1 + T/(k ridge))^k times that of the
remainder. And v has one derivative for each row of both units: it is convex in 2 k numbers, which have 4^k vertices,
each of them a fixed vector of norm at most 2 c G R. With mu = 2 c G R/noise_std,

    delta(epsilon) <= 4^k delta_mu(epsilon - k log(1 + c K R^2/(k ridge))),

and with 2^k vertices and c G R if a unit is set to zero. For k = c = 1 these are the bounds above.

The guarantee assumes that the bounds G and K hold, that rows are shortened to R, and that y~ satisfies the tolerance.
It is one of real arithmetic, like that of all noise in floating point.
"""

import math
from dataclasses import dataclass
from typing import Self

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy.accounting import gaussian_delta, gaussian_mu
from dpbilevel.privacy.budget import Budget

_VERTICES = {"replace-one": 4, "zero-out": 2}  # for each row of a unit
MOST_ROWS = 256  # of a unit: with more, delta divided by the number of vertices is no number in float64
_CHANGES = {"replace-one": 2.0, "zero-out": 1.0}  # gradients of records that a neighbour adds or removes
_HEADROOM = 1e-9  # relative margin for rounding
_OUTPUT_SHARE = 1e-3  # of mu^2, for the noise that hides what the solver has left


@dataclass(frozen=True)
class ObjectiveNoise:
    """The noise with which objective perturbation spends a budget.

    Args:
        ridge: on the sum of losses.
        noise_std: of each entry of b.
        output_std: of each entry of the noise on the output.
        tolerance: largest norm of the gradient at the output.
    """

    ridge: float
    noise_std: float
    output_std: float
    tolerance: float

    @classmethod
    def of(
        cls,
        budget: Budget,
        *,
        derivative: float,
        curvature: float,
        row_norm: float,
        ridge: float,
        tolerance: float,
        rows: int = 1,
        reach: float = 1.0,
    ) -> Self:
        """For a budget and a ridge, whose determinant must cost less than epsilon.

        Args:
            budget: of the release.
            derivative, curvature, row_norm: G, K, R.
            ridge, tolerance: as above.
            rows, reach: k and c, of units.

        >>> noise = ObjectiveNoise.of(
        ...     Budget(1.0, 1e-6), derivative=1.0, curvature=0.25, row_norm=1.0, ridge=2.5, tolerance=1e-9
        ... )
        >>> round(noise.noise_std, 2)
        9.89
        >>> spent = noise.delta(1.0, derivative=1.0, curvature=0.25, row_norm=1.0, adjacency="replace-one")
        >>> 0.999e-6 < spent <= 1e-6
        True
        """
        assert budget.delta is not None, "without privacy there is no noise"
        cost = _determinant(curvature * row_norm**2 * reach / ridge, rows)
        if not cost < budget.epsilon:
            raise InvalidArgument(
                f"ridge={ridge!r}: its determinant costs {cost:.3g}, all of epsilon={budget.epsilon!r} (try more)"
            )
        vertices = float(_VERTICES[budget.adjacency] ** rows)
        mu = gaussian_mu(budget.epsilon - cost, budget.delta / vertices) * (1 - _HEADROOM)
        return cls(
            ridge=ridge,
            noise_std=_CHANGES[budget.adjacency] * derivative * row_norm * reach / (mu * math.sqrt(1 - _OUTPUT_SHARE)),
            output_std=2 * tolerance / (ridge * mu * math.sqrt(_OUTPUT_SHARE)),
            tolerance=tolerance,
        )

    def delta(
        self,
        epsilon: float,
        *,
        derivative: float,
        curvature: float,
        row_norm: float,
        adjacency: str,
        rows: int = 1,
        reach: float = 1.0,
    ) -> float:
        """The delta at epsilon, by the bound above."""
        minimiser = _CHANGES[adjacency] * derivative * row_norm * reach / self.noise_std
        output = 2 * self.tolerance / (self.ridge * self.output_std)
        left = epsilon - _determinant(curvature * row_norm**2 * reach / self.ridge, rows)
        return float(_VERTICES[adjacency] ** rows) * gaussian_delta(math.hypot(minimiser, output), left)


def smallest_ridge(cost: float, *, curvature: float, row_norm: float, rows: int = 1, reach: float = 1.0) -> float:
    """The ridge whose determinant costs so much of epsilon.

    >>> round(smallest_ridge(0.1, curvature=0.25, row_norm=1.0), 2)
    2.38
    """
    return reach * curvature * row_norm**2 / (rows * math.expm1(cost / rows))


def _determinant(bend: float, rows: int) -> float:
    """The largest logarithm of a determinant, for a Hessian of a unit with this sum of eigenvalues over the ridge."""
    return rows * math.log1p(bend / rows)
