"""The steps of preconditioned training: how released values move the model (`preconditioned` has their numbers).

Second moments give the metric of clips and the preconditioner, gradients the model and its average, and a few passes
its scale if it has several classes (`scale`). All of it is post-processing of released values.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.execution.program import State
from dpbilevel.foundation.structure import passing
from dpbilevel.methods.context import gradient
from dpbilevel.methods.scale import Scale, at_point
from dpbilevel.methods.standard_errors import averaged_variances, without_noise
from dpbilevel.methods.training_gradients import ReleasedGradients
from dpbilevel.privacy.metric import Metric
from dpbilevel.problem import BilevelProblem

Tree = Any

STANDARD_ERRORS, FACTOR, READOUT = "y standard error", "y factor", "readout standard error"  # of the history
LENGTH = 0.5  # typical length of rows in the metric, in units of the declared norm
MOMENTUM = 0.5  # doubles the rate of convergence; steps are stable below 2 (1 + MOMENTUM)/h
# Where the average stands, in steps: it has the weight of its number for each. Momentum moves twice as far.
REACHED = 2 / 3 / (1 - MOMENTUM)


@passing(
    *("gradients", "ridge", "row_norm", "unlike", "surplus", "curvature", "derivative", "steps", "noise"),
    *("moments_noise", "scale", "readout"),
    structure=("problem", "outputs"),
)
@dataclass(frozen=True, eq=False, kw_only=True)
class Steps:
    """How released values move the model.

    Args:
        problem: the bilevel problem.
        gradients: how released gradients are read.
        ridge: worth the noise, for rows of typical length in the metric.
        row_norm: declared, R.
        unlike: by which gradients of units are shorter than those of their rows; one for rows.
        surplus: by which clipped second moments of units underestimate the curvature, at most.
        curvature: kappa, of the loss in the score.
        derivative: bound on the derivative of the loss in the score; None for residuals, which have none.
        outputs: scores per record.
        steps: their number.
        noise: on a coordinate of the mean gradient in the metric, in units of the clip.
        moments_noise: on entries of the second moments.
        scale: of the trained model; None to keep it as it is.
        readout: a public matrix, or None.
    """

    problem: BilevelProblem
    gradients: ReleasedGradients
    ridge: float
    row_norm: float
    unlike: float
    surplus: float
    curvature: float
    derivative: float | None
    outputs: int
    steps: int
    noise: float
    moments_noise: float
    scale: Scale | None
    readout: Any

    def start(self, x: Tree, y: Tree) -> State:
        """The state before the first release."""
        columns = y.shape[0]
        state = {
            "x": x,
            "y": y,
            "velocity": jnp.zeros_like(y),
            "average": jnp.zeros_like(y),
            "clip": jnp.ones((), jnp.float32),
            "variance": jnp.zeros((), jnp.float32),
            "sizes": jnp.zeros(columns, y.dtype),  # eigenvalues and eigenvectors of the released second moments
            "directions": jnp.zeros((columns, columns), y.dtype),
            "metric": Metric.identity(columns, y.dtype),
            "damping": jnp.zeros((), y.dtype),
            "preconditioner": jnp.zeros((columns, columns), y.dtype),
            "square": jnp.zeros((), jnp.float32),
            "errors": jnp.zeros_like(y),
            "model": jnp.zeros_like(y),
        }
        if self.readout is not None:
            state["readout"] = jnp.zeros(self.readout.shape[0], y.dtype)
        return state if self.scale is None else state | {"scale": self.scale.start()}

    def decompose(self, state: State, carry: State, moments: jax.Array, step: jax.Array) -> State:
        """What follows from released second moments: the metric, the first clip, and the preconditioner at the x."""
        x, y = carry["x"], carry["y"]
        sizes, directions = jnp.linalg.eigh(moments)
        metric = Metric.of(sizes.astype(y.dtype), directions.astype(y.dtype), self.moments_noise)
        typical, scale = self._typical_norm(metric, sizes), self.problem.lower_scale(x)
        damping = self._damping(typical, sizes)
        of_data = scale * self.curvature * (directions * jnp.maximum(sizes, 0)) @ directions.T
        inverse = jnp.linalg.inv(of_data + jnp.diag(self._own_curvature(x, y) + scale * damping))
        return carry | {
            "sizes": sizes.astype(y.dtype),
            "directions": directions.astype(y.dtype),
            "metric": metric,
            "damping": damping.astype(y.dtype),
            "clip": (self._first_derivative * self.unlike * typical).astype(jnp.float32),
            "preconditioner": ((inverse + inverse.T) / 2).astype(y.dtype),
        }

    def _damping(self, typical: jax.Array, sizes: jax.Array) -> jax.Array:
        """What makes the number of steps worth the ridge of these rows; at least what makes steps stable.

        The ridge grows with the noise, and so with the norm of rows in the metric, to the power of 3/2, and with the
        root of their norm. Noise may hide curvatures up to kappa times its own edge.
        """
        trace = jnp.maximum(jnp.sum(sizes), self.moments_noise)
        ridge = self.ridge * (typical / (LENGTH * self.row_norm)) ** 1.5 * (trace / self.row_norm**2) ** 0.25
        edge = self.moments_noise * jnp.sqrt(2.0 * sizes.shape[0])
        return jnp.maximum(REACHED * self.steps * ridge, self.surplus * self.curvature * edge / (1 + MOMENTUM))

    @property
    def _first_derivative(self) -> Any:
        """Of the loss in the score, where the score is zero; scaled targets are of size one."""
        return 0.5 if self.derivative is None else self.derivative / 2

    def _typical_norm(self, metric: Metric, sizes: jax.Array) -> jax.Array:
        """The root mean square of norms in the metric; the noise is what a trace of zero may look like."""
        clean = without_noise(sizes, self.moments_noise)
        return jnp.sqrt(jnp.maximum(metric.mean_square(clean), self.moments_noise))

    def _own_curvature(self, x: Tree, y: jax.Array) -> jax.Array:
        """The curvature of separate penalties; the product with ones is that of a diagonal matrix."""
        term = gradient(self.problem, "lower_term", 1)
        _, along_ones = jax.jvp(lambda y: term(x, y), (y,), (jnp.ones_like(y),))
        return jnp.maximum(jnp.mean(along_ones.reshape(y.shape[0], -1), axis=1), 0)

    def step(self, state: State, carry: State, answer: Tree, step: jax.Array) -> State:
        """One gradient step, and its part of the average."""
        y = carry["y"]
        direction, clip = self.gradients.read(gradients_at(state, carry, step), answer)
        change = (carry["preconditioner"] @ direction.reshape(y.shape[0], -1)).reshape(y.shape)
        velocity = (MOMENTUM * carry["velocity"] + change).astype(y.dtype)
        y = y - velocity
        weight = 2.0 * (step + 1) / (self.steps * (self.steps + 1.0))
        average = (carry["average"] + weight * y).astype(y.dtype)
        # Noise of the first steps is mostly forgotten, and clips change.
        variance = (carry["variance"] + weight * (self.noise * carry["clip"]) ** 2).astype(jnp.float32)
        square = (carry["square"] + weight * self.gradients.square(answer)).astype(jnp.float32)
        more = {"y": y, "velocity": velocity, "average": average}
        return carry | more | {"clip": clip, "variance": variance, "square": square}

    def begin_scale(self, state: State) -> State:
        """The state at the trained model, before its scale is measured."""
        assert self.scale is not None
        sizes = without_noise(state["sizes"], self.moments_noise)
        along = state["directions"].T @ state["average"].reshape(sizes.size, -1)
        of_data = self.problem.lower_scale(state["x"]) * self.gradients.within * self._mean_curvature(state)
        reach = REACHED * self.steps * self._rates(state) * of_data * sizes
        fitted = self.outputs * jnp.sum(1 - jnp.exp(-reach))
        return state | {"scale": self.scale.begin(state["scale"], jnp.sum(sizes[:, None] * along**2), fitted)}

    def rescale(self, state: State, carry: State, answer: Tree, step: jax.Array) -> State:
        """One step of the scale."""
        assert self.scale is not None
        return carry | {"scale": self.scale.step(carry["scale"], answer, step)}

    def end(self, state: State, carry: State) -> State:
        """The state after the last pass, with the model and its standard errors."""
        y, directions, variances = carry["average"], carry["directions"], self._variances(carry)
        factor, error = jnp.ones((), y.dtype), jnp.zeros((), y.dtype)
        if self.scale is not None:
            factor, error = carry["scale"]["factor"], carry["scale"]["error"]
        squares = factor**2 * jnp.maximum(directions**2 @ variances, 0).reshape(-1, *(1,) * (y.ndim - 1))
        more = {"model": factor * y, "errors": jnp.sqrt(squares + (error * y) ** 2)}
        if self.readout is not None:
            read = factor**2 * jnp.maximum((self.readout @ directions) ** 2 @ variances, 0)
            of_factor = jnp.mean((self.readout @ y.reshape(y.shape[0], -1)) ** 2, axis=1)
            more["readout"] = jnp.sqrt(read + error**2 * of_factor)
        return carry | {name: value.astype(y.dtype) for name, value in more.items()}

    def _variances(self, state: State) -> jax.Array:
        """The variance of the model along each eigenvector of the second moments."""
        # Records beyond the clip pull with the same force wherever the model is: they have no curvature.
        of_data = (
            self.gradients.within * self._mean_curvature(state) * without_noise(state["sizes"], self.moments_noise)
        )
        curvatures = self.problem.lower_scale(state["x"]) * of_data + self._own_along(state)
        factors = state["metric"].by_direction(curvatures.size)
        noise = self.problem.lower_scale(state["x"]) ** 2 * state["variance"] / factors**2
        return averaged_variances(self._rates(state), curvatures, noise, self.steps, MOMENTUM)

    def _rates(self, state: State) -> jax.Array:
        """The rate of steps along each eigenvector of the second moments."""
        scale = self.problem.lower_scale(state["x"])
        of_data = self.curvature * jnp.maximum(state["sizes"], 0) + state["damping"]
        return 1 / (scale * of_data + self._own_along(state))

    def _own_along(self, state: State) -> jax.Array:
        return state["directions"].T ** 2 @ self._own_curvature(state["x"], state["average"])

    def _mean_curvature(self, state: State) -> Any:
        """The mean second derivative of the loss in a score: kappa, or as measured for classes."""
        if self.derivative is None:
            return self.curvature
        return jnp.clip(state["square"] * self.derivative**2 / self.outputs, 0, self.curvature)


def rows_at(state: State, carry: State, step: jax.Array) -> Tree:
    """The query point of second moments."""
    return carry["x"], carry["y"]


def gradients_at(state: State, carry: State, step: jax.Array) -> Tree:
    """The query point of a step."""
    return carry["x"], carry["y"], carry["clip"], carry["metric"]


def observe(state: State) -> Tree:
    """What the history keeps."""
    read = {READOUT: state["readout"]} if "readout" in state else {}
    factor = {FACTOR: state["scale"]["factor"]} if "scale" in state else {}
    return {STANDARD_ERRORS: state["errors"]} | factor | read


def finish(state: State) -> tuple[Tree, Tree]:
    """The trained model."""
    return state["x"], state["model"]


def scale_at(state: State, carry: State, step: jax.Array) -> Tree:
    """The query point of a pass that measures the scale."""
    return at_point(carry["scale"], carry["x"], carry["average"])
