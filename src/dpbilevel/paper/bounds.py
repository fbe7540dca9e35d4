"""The inequalities behind the theory planner, each with an explicit constant and the lemma it sharpens.

Everything holds for every lambda >= 2 L1f/mu_g, for unconstrained y, and for every data set that satisfies the
constants. The totals of L0f and L1g are used for the per-record values too: a data-free term counts as part of each
record, which is safe and costs a factor if the term is large.

    y*, y^lambda   minimisers over y of g and of f/lambda + g       F(x) = f(x, y*(x))
    L*_lambda(x) = min over y of f + lambda (g - min g)             L, its smoothness: `Constants`
    C = L0f (1 + L1g/mu_g),   K = L1f + L2g L0f/mu_g,   k = L1g/mu_g

Where the paper's O(.) hides more than a constant: y^lambda may lie outside the set Y on which records are
L0g-Lipschitz (`penalised_sensitivity`), batches deviate like 1/sqrt(b) (`batch_deviation`), and the n^(-1/4) of the
population bound is not needed (`pointwise_generalisation`).
"""

import functools
import math
from dataclasses import dataclass

from dpbilevel.constants import Constants

# The constants that the doctests of this module use.
_EXAMPLE = Constants(
    upper_lipschitz=1.0,
    upper_smoothness=0.25,
    lower_lipschitz=1.0,
    lower_smoothness=0.35,
    lower_hessian_lipschitz=0.1,
    strong_convexity=0.1,
)


def record_bound(constants: Constants) -> float:
    """C = L0f (1 + L1g/mu_g): the norm of one record's contribution to the hypergradient at the exact y*, y^lambda.

    Lemma "Li improved Lip", explicit and without lambda. Contributions are clipped to C, so privacy does not depend on
    it. Clipping costs no accuracy: it projects onto a ball that contains every exact contribution, and projections are
    non-expansive, so `inexactness` bounds clipped ones too. C also bounds ||grad F||: an alpha of C is vacuous.

    >>> round(record_bound(_EXAMPLE), 6)
    4.5
    """
    return constants.upper_lipschitz * (1 + _condition(constants))


def solution_distance(constants: Constants, penalty_weight: float) -> float:
    """||y^lambda - y*|| <= L0f/(lambda mu_g): Lemma "ylam close".

    >>> round(solution_distance(_EXAMPLE, penalty_weight=10.0), 6)
    1.0
    """
    return constants.upper_lipschitz / (penalty_weight * constants.strong_convexity)


def value_loss(constants: Constants, penalty_weight: float) -> float:
    """F - L*_lambda lies between 0 and L0f^2/(2 lambda mu_g): Lemma "kwon" (i), explicit.

    At distance r from y* the penalised value is at least F - L0f r + lambda mu_g r^2/2.

    >>> round(value_loss(_EXAMPLE, penalty_weight=10.0), 6)
    0.5
    """
    return constants.upper_lipschitz**2 / (2 * penalty_weight * constants.strong_convexity)


def bias_constant(constants: Constants) -> float:
    """B with ||grad L*_lambda - grad F|| <= B/lambda: Lemma "kwon" (ii), explicit.

    B = sqrt(1 + k^2) (L0f/mu_g) (L1f + L2g L0f/(2 mu_g)). By stationarity of y^lambda the difference is [I, dy*/dx']
    applied to the remainders of two Taylor expansions at y*: of grad f to order zero, of lambda grad g to order one.

    >>> round(bias_constant(_EXAMPLE), 3)
    27.3
    """
    mu, upper = constants.strong_convexity, constants.upper_lipschitz
    remainder = constants.upper_smoothness + constants.lower_hessian_lipschitz * upper / (2 * mu)
    return math.hypot(1, _condition(constants)) * upper / mu * remainder


def solution_lipschitz(constants: Constants, penalty_weight: float) -> float:
    """c_y = (L1f + lambda L1g)/(lambda mu_g - L1f), a Lipschitz constant of x -> y^lambda(x): Lemma "ylam Lip".

    >>> round(solution_lipschitz(_EXAMPLE, penalty_weight=10.0), 6)
    5.0
    """
    return (constants.upper_smoothness + penalty_weight * constants.lower_smoothness) / (
        penalty_weight * constants.strong_convexity - constants.upper_smoothness
    )


def lower_sensitivity(constants: Constants, n: int, multiple: float = 2.0) -> float:
    """The sensitivity of y* to one record: 2 L0g/(mu_g n) under replace-one (``multiple`` 1 under zero-out).

    At the old minimiser the new objective has a gradient of at most 2 L0g/n, and it is mu_g-strongly convex.

    >>> round(lower_sensitivity(_EXAMPLE, n=1000), 6)
    0.02
    """
    return multiple * constants.lower_lipschitz / (constants.strong_convexity * n)


def penalised_sensitivity(constants: Constants, penalty_weight: float, n: int, multiple: float = 2.0) -> float:
    """The sensitivity of y^lambda to one record: 2 (L0g + C/lambda)/((mu_g - L1f/lambda) n).

    C/lambda is L0f/lambda, for f_i, plus L1g L0f/(lambda mu_g), for g_i between Y and y^lambda. Without the latter the
    bound is false unless L0g holds on Y widened by L0f/(lambda mu_g): g_i = (1 + s_i a) y^2/2, f = -y has Y = {0}.

    >>> round(penalised_sensitivity(_EXAMPLE, penalty_weight=10.0, n=1000), 6)
    0.038667
    """
    slope = constants.lower_lipschitz + record_bound(constants) / penalty_weight
    return multiple * slope / (constants.penalised_strong_convexity(penalty_weight) * n)


def inexactness(constants: Constants, penalty_weight: float, lower_error: float, penalised_error: float) -> float:
    """beta of Lemma "inexact grad": (L1f + lambda L1g) e_lambda + lambda L1g e_*, for solves with errors e.

    It bounds the distance of grad L*_lambda from the mean contribution, clipped to `record_bound` or not.

    >>> round(inexactness(_EXAMPLE, 10.0, lower_error=0.1, penalised_error=0.2), 6)
    1.1
    """
    slope = penalty_weight * constants.lower_smoothness
    return (constants.upper_smoothness + slope) * penalised_error + slope * lower_error


def gaussian_norm(dimension: int, probability: float) -> float:
    """A standard Gaussian vector has norm above sqrt(d) + sqrt(2 ln(1/p)) with probability at most p.

    The norm is 1-Lipschitz with mean at most sqrt(d): Gaussian concentration.

    >>> round(gaussian_norm(100, probability=0.01), 4)
    13.0349
    """
    return math.sqrt(dimension) + math.sqrt(2 * math.log(1 / probability))


def gradient_mapping(error: float, curvature: float) -> float:
    """The guarantee of T outer steps with oracle errors of at most ``error``: Proposition "outer alg", explicit.

    With eta = 1/(2L) and ``curvature`` = L Delta_L/T, the output has a gradient mapping of at most error + s, where
    3/4 s^2 - error s = 2 L Delta_L/T: if every step exceeded s, each would lower L*_lambda by more than Delta_L/T.
    With error = alpha/4 this is the paper's case, T = (128/15) L Delta_L/alpha^2; no T makes it less than 7/3 error.

    >>> round(gradient_mapping(error=0.25, curvature=15 / 128), 12)
    1.0
    """
    return error + 2 / 3 * (error + math.sqrt(error**2 + 6 * curvature))


def batch_deviation(constants: Constants, batch: int, probability: float) -> float:
    """The deviation of a batch's mean of clipped vectors: C (sqrt(2 l/b) + 4 l/(3b)), l = ln(2/p), w.p. 1-p.

    Bernstein's inequality in Hilbert space (Pinelis 1994) for b draws with or without replacement, or for Poisson
    batches of b expected records. The paper's "inexact grad minib" prints C/b; the deviation is of order C/sqrt(b).

    >>> round(batch_deviation(_EXAMPLE, batch=10**4, probability=0.01), 3)
    0.15
    """
    log = math.log(2 / probability)
    return record_bound(constants) * (math.sqrt(2 * log / batch) + 4 * log / (3 * batch))


def pointwise_generalisation(constants: Constants) -> float:
    """V with ||grad F_S - grad F_P|| <= V (1 + sqrt(2 ln(1/p)))/sqrt(n) at one x, except with probability 2p.

    V = sqrt(1 + k^2) (C + K L0g/mu_g), independent of d_x and d_y. With w = (Hessian of g_P)^-1 grad_y f_P at y_P, the
    difference is [I, dy_S/dx'] applied to the deviation of the mean of grad f_i - (Hessian of g_i) w, n vectors of norm
    at most C, and to a change of at most K ||y_S - y_P||; and mu_g ||y_S - y_P|| <= ||grad_y g_S(y_P)||, a mean of n
    vectors of norm at most L0g and expectation zero. McDiarmid's inequality bounds both: no n^(-1/4) as in Lemma "uc".

    >>> round(pointwise_generalisation(_EXAMPLE), 3)
    61.881
    """
    wander = _rough(constants) * constants.lower_lipschitz / constants.strong_convexity
    return math.hypot(1, _condition(constants)) * (record_bound(constants) + wander)


def generalisation(constants: Constants, n: int, d_x: int, radius: float, probability: float) -> float:
    """gen_n: `pointwise_generalisation` uniformly over a ball of x, except with probability 2p (Lemma "uc", explicit).

    A net with spacing V/(2 L_F sqrt(n)) has at most (1 + 4 L_F radius sqrt(n)/V)^d_x points; between its points both
    hypergradients are L_F-Lipschitz, L_F = K (1 + k)^2, the limit of the smoothness of L*_lambda.

    >>> round(generalisation(_EXAMPLE, n=10**8, d_x=1, radius=1.0, probability=0.01), 4)
    0.0455
    """
    scale = pointwise_generalisation(constants) / math.sqrt(n)
    smoothness = _rough(constants) * (1 + _condition(constants)) ** 2
    log_net = d_x * math.log1p(4 * smoothness * radius / scale)
    return scale * (2 + math.sqrt(2 * (math.log(1 / probability) + log_net)))


def localisation_radii(start: float, scale: float, dimension: int, factor: float = 1.0) -> tuple[float, ...]:
    """R_0, ..., R_{M-1} of DP-Loc-GD (Theorem "DPGD"): R_m = c (sqrt(R_{m-1} A) + A sqrt(d_y)), never growing.

    ``scale`` is A, sensitivity over mu of one solve; M = max(1, ceil(log2 log2(R_0/A))), where the paper's
    log2 log(1/A) depends on the units of y. ``factor`` is c, hidden in the paper's Theta(.): *no value is proved*.

    >>> [round(radius, 4) for radius in localisation_radii(start=20.0, scale=0.001, dimension=4)]
    [20.0, 0.1434, 0.014, 0.0057]
    """
    doublings = math.log2(start / scale) if 0 < scale < start else 1.0
    rounds = max(1, math.ceil(math.log2(doublings))) if doublings > 1 else 1
    radii = [start]
    for _ in range(rounds - 1):
        radii.append(min(radii[-1], factor * (math.sqrt(radii[-1] * scale) + scale * math.sqrt(dimension))))
    return tuple(radii)


BIAS, INNER, OUTER, BATCH, GENERALISATION = "penalty bias", "inner error", "outer noise", "batch", "generalisation"
FORMULAS = {
    BIAS: "B/lambda, B = sqrt(1 + k^2) (L0f/mu_g) (L1f + L2g L0f/(2 mu_g)), k = L1g/mu_g: Lemma kwon (ii)",
    INNER: "(alpha_L/delta) ((L1f + lambda L1g) e_lambda + lambda L1g e_*): Lemma inexact grad",
    OUTER: "(alpha_L/delta) sigma (sqrt(d_x) + sqrt(2 ln(events/gamma))): Proposition outer alg",
    BATCH: "(alpha_L/delta) C (sqrt(2 l/b) + 4 l/(3b)), l = ln(2 events/gamma): Lemma inexact grad minib, corrected",
    GENERALISATION: "(V/sqrt(n)) (2 + sqrt(2 ln(events/gamma) + 2 d_x ln(1 + 4 L_F R sqrt(n)/V))): Lemma uc, corrected",
    "penalty_weight": "lambda >= max{2 L1f/mu_g, L0f/L0g, L1f/L1g}, for the smallest alpha: Lemma sc and lip",
    "steps": "T, for the smallest alpha: Proposition outer alg",
    "step_size": "eta = 1/(2L), L the smoothness of L*_lambda: Lemma kwon (iii)",
    "clip_norm": "C = L0f (1 + L1g/mu_g): Lemma Li improved Lip",
    "noise_std": "sigma = 2C/(n mu_out), of each outer step (C under zero-out; times noise_ratio with batches)",
    "lower_noise_std": "2 L0g/(mu_g n mu_in), on y*; e_* <= this (sqrt(d_y) + sqrt(2 ln(events/gamma)))",
    "penalised_noise_std": "2 (L0g + C/lambda)/((mu_g - L1f/lambda) n mu_in,lambda), on y^lambda; e_lambda likewise",
    "rounds": "M = max(1, ceil(log2 log2(R_0/A))), A the larger of the two noises above: Theorem DPGD",
    "radii": "R_0 = 2 L0g/mu_g + L0f/(lambda mu_g), R_m = c (sqrt(R_m-1 A) + A sqrt(d_y)): Theorem DPGD, c not proved",
}


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """All terms of alpha at one lambda, as functions of the number T of outer steps; valid for every T >= 1.

    ``mu`` is shared by T steps of three releases: T (mu_in^2 + mu_in,lambda^2 + mu_out^2) = mu^2. One failure
    probability covers 3T Gaussian vectors, T batches and the two events of `generalisation`, a union bound.
    """

    constants: Constants
    penalty_weight: float
    n: int
    d_x: int
    d_y: int
    gamma: float
    gap: float
    mu: float
    shares: tuple[float, float, float]
    multiple: float
    batch: int | None
    noise_ratio: float | None
    population: bool
    diameter: float | None

    @functools.cached_property
    def smoothness(self) -> float:
        """L, of L*_lambda."""
        return self.constants.hyperobjective_smoothness(self.penalty_weight)

    @functools.cached_property
    def _first_noises(self) -> tuple[float, float, float]:
        ratio = 1.0 if self.batch is None else min(self.n / self.batch, self.noise_ratio or math.inf)
        sensitivities = (
            lower_sensitivity(self.constants, self.n, self.multiple),
            penalised_sensitivity(self.constants, self.penalty_weight, self.n, self.multiple),
            self.multiple * record_bound(self.constants) / self.n * ratio,
        )
        lower, penalised, outer = (
            sensitivity / (self.mu * math.sqrt(share / sum(self.shares)))
            for sensitivity, share in zip(sensitivities, self.shares, strict=True)
        )
        return lower, penalised, outer

    def noises(self, steps: int) -> tuple[float, float, float]:
        """Standard deviations on y*, y^lambda and the hypergradient."""
        lower, penalised, outer = self._first_noises
        root = math.sqrt(steps)
        return lower * root, penalised * root, outer * root

    def terms(self, steps: int) -> dict[str, float]:
        """Alpha by cause; the outer loop multiplies every error of the oracle by alpha_L/delta (4 in the paper)."""
        constants, penalty_weight = self.constants, self.penalty_weight
        events = (3 if self.batch is None else 4) * steps + (2 if self.population else 0)
        probability = self.gamma / events
        lower, penalised, outer = self.noises(steps)
        length = gaussian_norm(self.d_y, probability)
        errors = {
            INNER: inexactness(constants, penalty_weight, lower * length, penalised * length),
            OUTER: outer * gaussian_norm(self.d_x, probability),
        }
        if self.batch is not None:
            errors[BATCH] = batch_deviation(constants, self.batch, probability)
        total = sum(errors.values())
        fall = self.gap + value_loss(constants, penalty_weight)
        amplified = gradient_mapping(total, self.smoothness * fall / steps) / total
        terms = {BIAS: bias_constant(constants) / penalty_weight} | {name: amplified * e for name, e in errors.items()}
        if self.population:
            # No step is longer than eta times the clipped mean, its batch deviation and the noise.
            longest = record_bound(constants) + errors[OUTER] + errors.get(BATCH, 0.0)
            radius = min(steps * longest / (2 * self.smoothness), self.diameter or math.inf)
            terms[GENERALISATION] = generalisation(constants, self.n, self.d_x, radius, probability)
        return terms

    def alpha(self, steps: int) -> float:
        """The sum of all terms."""
        return math.fsum(self.terms(steps).values())

    def best(self) -> tuple[int, float]:
        """The T with the smallest alpha, which falls and then rises with T, and that alpha."""

        def falls(steps: int) -> bool:
            # Beyond 10^6 steps one step more changes less than rounding does: compare with one in a million more.
            return self.alpha(steps + 1 + steps // 10**6) < self.alpha(steps)

        low, high = 0, 1
        while falls(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if falls(middle) else (low, middle)
        return high, self.alpha(high)


def _condition(constants: Constants) -> float:
    return constants.lower_smoothness / constants.strong_convexity


def _rough(constants: Constants) -> float:
    mu = constants.strong_convexity
    return constants.upper_smoothness + constants.lower_hessian_lipschitz * constants.upper_lipschitz / mu
