"""The steps of preconditioned training: how released values move the model (`preconditioned` has their numbers).

Second moments give the preconditioner, gradients the model and its average, and a few passes its scale (`rescaling`).
All of it is post-processing of released values.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.execution.program import State
from dpbilevel.foundation.structure import passing
from dpbilevel.methods.context import gradient
from dpbilevel.methods.rescaling import Rescaling, at_point, fitted_part, reach_of_training
from dpbilevel.methods.scale_directions import members, moved
from dpbilevel.methods.standard_errors import averaged_variances, without_noise
from dpbilevel.methods.training_gradients import ReleasedGradients
from dpbilevel.problem import BilevelProblem

Tree = Any

STANDARD_ERRORS, FACTORS, READOUT = "y standard error", "y factors", "readout standard error"  # of the history
MOMENTUM = 0.5  # doubles the rate of convergence


@passing(
    *("gradients", "damping", "curvature", "steps", "noise", "moments_noise", "rescaling", "readout"),
    structure=("problem",),
)
@dataclass(frozen=True, eq=False)
class Steps:
    """How released values move the model."""

    gradients: ReleasedGradients
    problem: BilevelProblem
    damping: float
    curvature: float
    steps: int
    noise: float  # on a coordinate of the mean gradient, in units of the clip
    moments_noise: float
    rescaling: Rescaling | None
    readout: Any  # a public matrix, or None

    def precondition(self, state: State, carry: State, moments: jax.Array, step: jax.Array) -> State:
        """The preconditioner at the final x, from released second moments."""
        x, y = carry["x"], carry["y"]
        sizes, directions = jnp.linalg.eigh(moments)
        positive = (directions * jnp.maximum(sizes, 0)) @ directions.T
        of_data = self.problem.lower_scale(x) * self.curvature * positive
        damping = self.problem.lower_scale(x) * self.damping
        inverse = jnp.linalg.inv(of_data + jnp.diag(self._own_curvature(x, y) + damping))
        preconditioner = ((inverse + inverse.T) / 2).astype(y.dtype)
        kept = {"sizes": sizes, "directions": directions}
        return carry | {"preconditioner": preconditioner} | {name: part.astype(y.dtype) for name, part in kept.items()}

    def _own_curvature(self, x: Tree, y: jax.Array) -> jax.Array:
        """The curvature of separate penalties; the product with ones is that of a diagonal matrix."""
        term = gradient(self.problem, "lower_term", 1)
        _, along_ones = jax.jvp(lambda y: term(x, y), (y,), (jnp.ones_like(y),))
        return jnp.maximum(jnp.mean(along_ones.reshape(y.shape[0], -1), axis=1), 0)

    def step(self, state: State, carry: State, answer: Tree, step: jax.Array) -> State:
        """One gradient step, and its part of the average."""
        y = carry["y"]
        direction, clip = self.gradients.read(carry["x"], y, carry["clip"], answer)
        change = (carry["preconditioner"] @ direction.reshape(y.shape[0], -1)).reshape(y.shape)
        velocity = (MOMENTUM * carry["velocity"] + change).astype(y.dtype)
        y = y - velocity
        first = self.steps // 2
        weight = jnp.where(step >= first, 1.0 / (self.steps - first), 0.0)
        average = (carry["average"] + weight * y).astype(y.dtype)
        # Noise of the first half is mostly forgotten, and clips of both halves may differ.
        variance = carry["variance"] + weight * (self.noise * carry["clip"]) ** 2
        more = {"y": y, "velocity": velocity, "average": average, "clip": clip}
        return carry | more | {"variance": variance.astype(jnp.float32)}

    def begin_scale(self, state: State) -> State:
        """The state at the trained model, before its scale is measured."""
        assert self.rescaling is not None
        moments = state["sizes"], state["directions"]
        reach = reach_of_training(moments[0], self.moments_noise, self.curvature, self.damping, self.steps)
        scale = self.rescaling.begin(state["scale"], state["average"], moments, reach, state["clip"])
        return state | {"scale": scale}

    def rescale(self, state: State, carry: State, answer: Tree, step: jax.Array) -> State:
        """One step of the scale."""
        assert self.rescaling is not None
        return carry | {"scale": self.rescaling.step(carry["scale"], answer, step)}

    def end(self, state: State, carry: State) -> State:
        """The state after the last stage, with the standard errors of the model and the factors of its columns."""
        y, factors, rescaling, directions = carry["average"], carry["factors"], self.rescaling, carry["directions"]
        flatness = 1.0 if rescaling is None else rescaling.flatness(carry["scale"])
        variances = self._variances(carry, flatness)
        model, along, of_factors = y, jnp.zeros((1, *y.shape), y.dtype), jnp.zeros((1, 1), y.dtype)
        if rescaling is not None:
            moments, along = (carry["sizes"], directions), carry["scale"]["along"]
            fitted = fitted_part(carry["scale"]["reach"], flatness)
            of_groups, of_factors = rescaling.factors(carry["scale"], moments, y, variances, fitted)
            model = moved(y, along, of_groups)
            lines = members(rescaling.groups)
            factors = (of_groups @ lines + (1 - lines.sum(axis=0))).astype(y.dtype)
        by_column = (-1, *(1,) * (y.ndim - 1))
        squares = (factors**2 * jnp.maximum(directions**2 @ variances, 0)).reshape(by_column)
        errors = jnp.sqrt(squares + _quadratic(along, of_factors)).astype(y.dtype)
        more = {"model": model, "factors": factors, "errors": errors}
        if self.readout is not None:
            read = ((self.readout * factors) @ directions) ** 2 @ variances
            by_group = jnp.einsum("rd,gdk->grk", self.readout, along.reshape(*along.shape[:2], -1))
            read = read + jnp.mean(_quadratic(by_group, of_factors), axis=1)
            more["readout"] = jnp.sqrt(jnp.maximum(read, 0)).astype(y.dtype)
        return carry | more

    def _variances(self, state: State, flatness: Any) -> jax.Array:
        """The variance of the model along each eigenvector of the second moments, by the curvature as measured."""
        x, y = state["x"], state["average"]
        scale = self.problem.lower_scale(x)
        sizes, directions = state["sizes"], state["directions"]
        own = directions.T**2 @ self._own_curvature(x, y)
        rates = 1 / (scale * (self.curvature * jnp.maximum(sizes, 0) + self.damping) + own)
        # Records beyond the clip pull with the same force wherever the model is: they have no curvature.
        within_clip = self.gradients.within * self.curvature * flatness
        curvatures = scale * within_clip * without_noise(sizes, self.moments_noise) + own
        return averaged_variances(rates, curvatures, scale**2 * state["variance"], self.steps, MOMENTUM)


def _quadratic(along: jax.Array, covariance: jax.Array) -> jax.Array:
    """The variance of every entry of a sum over groups of a factor times what moves along it."""
    return jnp.maximum(jnp.einsum("g...,gh,h...->...", along, covariance, along), 0)


def start(steps: Steps, clip: Any, x: Tree, y: Tree) -> State:
    """The state before the first release."""
    columns = y.shape[0]
    state = {
        "x": x,
        "y": y,
        "velocity": jnp.zeros_like(y),
        "average": jnp.zeros_like(y),
        "clip": jnp.asarray(clip, jnp.float32),
        "variance": jnp.zeros((), jnp.float32),
        "sizes": jnp.zeros(columns, y.dtype),  # eigenvalues and eigenvectors of the released second moments
        "directions": jnp.zeros((columns, columns), y.dtype),
        "preconditioner": jnp.zeros((columns, columns), y.dtype),
        "errors": jnp.zeros_like(y),
        "model": jnp.zeros_like(y),
        "factors": jnp.ones(columns, y.dtype),
    }
    if steps.readout is not None:
        state["readout"] = jnp.zeros(steps.readout.shape[0], y.dtype)
    return state if steps.rescaling is None else state | {"scale": steps.rescaling.start(y)}


def rows_at(state: State, carry: State, step: jax.Array) -> Tree:
    """The query point of second moments."""
    return carry["x"], carry["y"]


def gradients_at(state: State, carry: State, step: jax.Array) -> Tree:
    """The query point of a step."""
    return carry["x"], carry["y"], carry["clip"]


def observe(state: State) -> Tree:
    """What the history keeps."""
    read = {READOUT: state["readout"]} if "readout" in state else {}
    return {STANDARD_ERRORS: state["errors"], FACTORS: state["factors"]} | read


def finish(state: State) -> tuple[Tree, Tree]:
    """The trained model."""
    return state["x"], state["model"]


def scales_at(state: State, carry: State, step: jax.Array) -> Tree:
    """The query point of a pass that measures the scale."""
    return at_point(carry["scale"], carry["x"], carry["average"])
