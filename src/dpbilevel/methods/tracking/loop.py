"""The loop of difference tracking: the query points of a step and the update from its releases, on flat vectors."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpbilevel.constraints import project
from dpbilevel.execution.program import State
from dpbilevel.foundation.structure import passing
from dpbilevel.methods.context import PublicContext, Setting, free_gradients
from dpbilevel.methods.derivatives import flat
from dpbilevel.methods.tracking import hyper_steps, lower_steps
from dpbilevel.methods.tracking.hyper_groups import groups
from dpbilevel.methods.tracking.passes import LOSS_CHANGE, SCALE, SEARCH, TRACK, VALIDATE, Pass

Tree = Any

MODEL, CURVATURE, CROSS = "model gradient", "curvature", "cross derivative"
PULL, HYPERGRADIENT = "validation gradient", "hypergradient"
# Fraction of the steps in each phase: find the clips, then the largest curvature, then let y and d converge before x
# moves; at the end, half as many steps to find the scale of loss changes, and then validate.
_PHASE = 0.05
# Entries of the history besides x and its hypergradient; the validation steps fill in the last two.
_HISTORY = ("evidence", "unsettled", "loss change", "loss change noise")
_TOP = "largest curvature"  # the clip of the curvature in power iteration steps
_CHANCE = 2.0  # assumed ratio of the mean square of a cross derivative to its squared median
_POWER = 10  # every tenth step is a power iteration step, because the largest curvature changes with x
_SURE = 1.0  # the validation loss must fall by this many standard deviations of its noise
_AVERAGED = 10  # the running average of x covers about the last tenth of the steps: 20 of 200


def phase_of(steps: int) -> int:
    """Number of steps in each phase: clip search, largest curvature, convergence of y and d, and validation."""
    return int(_PHASE * steps)


def validation_start(steps: int) -> int:
    """The first validation step: from here on x and y are final. Half a phase finds the scale of the loss changes."""
    phase = phase_of(steps)
    return steps - phase - phase // 2


@passing(
    *("passes", "steps", "phase", "validation_start", "decay"),
    structure=("problem", "to_x", "to_y", "groups", "free", "records"),
)
class Loop:
    """State, query points and updates of the loop, on flat vectors."""

    def __init__(self, context: PublicContext, passes: Mapping[str, Pass], steps: int, clip_norm: float) -> None:
        self.passes, self.problem = passes, context.problem
        self.steps, self.phase, self.clip_norm = steps, phase_of(steps), clip_norm
        self.validation_start = validation_start(steps)
        self.decay = max(0.0, 1 - _AVERAGED / steps)
        self.to_x, self.to_y, self.groups = _coordinates(context.setting)
        self.free = free_gradients(context.setting)
        lower = context.sizes.role_of("lower")
        self.records = context.sizes.count(lower) if lower is not None else 1

    def start(self, x: Tree, y: Tree) -> State:
        """The state before the first step."""
        flat_x, flat_y = flat(x), flat(y)
        clips = {level: one.start(self.clip_norm) for level, one in self.passes.items()}
        clips["lower"][_TOP] = clips["lower"][CURVATURE]
        return {
            "step": jnp.zeros((), jnp.int32),
            "x": flat_x,
            "average": flat_x,
            "origin": flat_y,
            "first": (flat_x, flat_y),
            "loss_change": {name: jnp.zeros((), jnp.float32) for name in ("sum", "variance", "passes")},
            "y": lower_steps.start_steps(flat_y),
            "d": lower_steps.start_steps(jnp.zeros_like(flat_y)),
            "curvature": lower_steps.start_curvature(flat_y.size, flat_y.dtype),
            "rules": hyper_steps.start(self.groups, flat_x),
            "clips": clips,
            "farthest": jnp.zeros((), flat_y.dtype),
            "lower": self._zeros("lower", flat_x, flat_y),
            "seen": {"hypergradient": x} | {name: jnp.zeros((), jnp.float32) for name in _HISTORY},
        }

    def _zeros(self, level: str, x: jax.Array, y: jax.Array) -> Tree:
        one = self.passes[level]
        zeros = {name: jnp.zeros(size, x.dtype if name == CROSS else y.dtype) for name, size in one.dimensions.items()}
        return one.empty(zeros)

    def _power(self, state: State) -> jax.Array:
        """Whether a step is a power iteration step, which estimates the largest curvature."""
        return (state["step"] < 2 * self.phase) | (state["step"] % _POWER == _POWER - 1)

    def query(self, state: State) -> Tree:
        """The query point of both releases of a step."""
        power, d = self._power(state), state["d"]["point"]
        length = jnp.sqrt(jnp.sum(d**2))
        along = power | (length == 0)
        u = jnp.where(along, state["curvature"]["direction"], d / jnp.where(along, 1, length))
        first = (self.to_x(state["first"][0]), self.to_y(state["first"][1]))
        at = {"x": self.to_x(state["x"]), "y": self.to_y(state["y"]["point"]), "u": u, "first": first}
        medians = {name: clip["median"] for clips in state["clips"].values() for name, clip in clips.items()}
        medians[CURVATURE] = jnp.where(power, medians.pop(_TOP), medians[CURVATURE])
        step, end = state["step"], jnp.where(state["step"] < self.steps - self.phase, SCALE, VALIDATE)
        phase = jnp.where(step < self.phase, SEARCH, jnp.where(step < self.validation_start, TRACK, end))
        return {"at": at, "medians": medians, "power": power, "phase": phase}

    def update(self, state: State, upper: Tree | None) -> State:
        """The state after a step, given the released values of both levels."""
        point = self.query(state)
        (x, y, u), power = (point["at"][name] for name in ("x", "y", "u")), point["power"]
        lower, lower_counts = self.passes["lower"].released_means(state["lower"], point)
        means, counts = lower, {"lower": lower_counts}
        if upper is not None:
            upper_means, counts["upper"] = self.passes["upper"].released_means(upper, point)
            means = means | upper_means
        noise = {name: one.noise_of(name, point) for one in self.passes.values() for name in one.names}
        searching, phase = point["phase"] == SEARCH, self.phase
        validating = point["phase"] >= SCALE
        # The derivatives of data-free terms are exact and cost no budget.
        term = jax.grad(self.problem.term("lower"), 1)
        gradient, curved = (flat(part) for part in jax.jvp(lambda y: term(x, y), (y,), (self.to_y(u),)))
        cross = flat(jax.jvp(lambda y: self.free["lower"](x, y), (y,), (self.to_y(u),))[1])
        pull = flat(jax.grad(self.problem.term("upper"), 1)(x, y))
        direct = flat(self.free["upper"](x, y))
        by_term = curved
        gradient, curved = gradient + means[MODEL], by_term + means[CURVATURE]
        cross = cross + means[CROSS] if CROSS in means else cross
        pull = pull + means[PULL] if PULL in means else pull
        direct = direct + means[HYPERGRADIENT] if HYPERGRADIENT in means else direct

        bound = jnp.exp(point["medians"][CURVATURE])
        released = (means[CURVATURE], by_term, noise[CURVATURE], bound)
        curvatures = lower_steps.curvature(state["curvature"], power, u, *released)
        curvatures = _select(searching, state["curvature"], curvatures)
        size, length = gradient.size, jnp.sqrt(jnp.sum(state["d"]["point"] ** 2))
        difference = length * curved + pull
        # All at once: a loop costs more than its few vectors. Random signs measure the preconditioner.
        direction_y, direction_d, measured = lower_steps.preconditioned(
            curvatures,
            lambda v: flat(jax.jvp(lambda y: term(x, y), (y,), (self.to_y(v),))[1]),
            jnp.stack([gradient, difference, _signs(state["step"], size).astype(gradient.dtype)]),
        )
        square = jnp.mean(measured**2)
        moving = (state["step"] >= 2 * phase) & ~validating
        variance = size * noise[MODEL] ** 2
        new_y = lower_steps.step(
            state["y"], gradient, direction_y, variance, curvatures, square, moving, self._project_lower
        )
        variance = size * ((length * noise[CURVATURE]) ** 2 + (noise[PULL] ** 2 if PULL in noise else 0.0))
        new_d = lower_steps.step(state["d"], difference, direction_d, variance, curvatures, square, moving & ~power)
        new_d = new_d | {"point": self._tangent(state, direction_y, new_d["point"])}

        hypergradient = jnp.where(power, state["rules"]["last"], direct + length * cross)
        # The scale of y: its norm, or its distance from the start, whichever is larger.
        sizes = (jnp.sum(part**2) for part in (state["y"]["point"], state["y"]["point"] - state["origin"]))
        travelled = jnp.sqrt(jnp.maximum(*sizes))
        farthest = jnp.maximum(state["farthest"], travelled)
        evidence = lower_steps.evidence(new_y, travelled) * lower_steps.evidence(new_d, length)
        lag = lower_steps.unsettled(new_y, curvatures, travelled) + lower_steps.unsettled(new_d, curvatures, length)
        schedule = jnp.where(state["step"] >= 3 * phase, 1 - state["step"] / self.steps, 0.0)
        steepest = curvatures["largest"] + jnp.sqrt(jnp.sum(by_term**2))
        rules, moved = hyper_steps.move(
            self.groups,
            state["rules"],
            state["x"],
            hypergradient,
            natural=self._natural(x, y, hypergradient, cross, farthest * steepest),
            length=schedule * evidence / jnp.sqrt(1 + lag),
            persistent_noise=self._persistent_noise(state, x, y, (new_y["error"], new_d["error"])),
            rate=lower_steps.rate(curvatures),
            sampling_variance=self._sampling_variance(point["medians"], length),
            steps=self.steps,
            has_hypergradient=moving & ~power,
        )
        new_x = flat(project(self.problem.domain, self.to_x(moved))).astype(moved.dtype)
        average = self.decay * state["average"] + (1 - self.decay) * new_x
        average = jnp.where(validating, state["average"], average)
        validation = self._validation(state, means, noise, point)
        passes = jnp.maximum(validation["passes"], 1)
        values = (evidence, lag, validation["sum"] / passes, jnp.sqrt(validation["variance"]) / passes)
        history = {name: value.astype(jnp.float32) for name, value in zip(_HISTORY, values, strict=True)}
        history |= {"hypergradient": self.to_x(hypergradient)}
        return state | {
            "step": state["step"] + 1,
            # The validation steps evaluate the point that is returned, the average.
            "x": jnp.where(state["step"] == self.validation_start - 1, average, new_x).astype(new_x.dtype),
            "average": average.astype(new_x.dtype),
            # Until x moves, the reference point follows y: a loss that y alone reduces is not a gain of tuning x.
            "first": _select(jnp.all(new_x == state["first"][0]), (new_x, new_y["point"]), state["first"]),
            "loss_change": validation,
            "y": new_y,
            "d": new_d,
            "curvature": curvatures,
            "rules": rules,
            "clips": self._clips(state, counts, means, point),
            "farthest": farthest.astype(state["farthest"].dtype),
            "seen": history,
        }

    def _natural(self, x: Tree, y: Tree, gradient: jax.Array, cross: jax.Array, force: jax.Array) -> list[jax.Array]:
        """The natural length of each group of x: the distance that changes y, or the gradient, by its own norm."""
        size = jnp.sqrt(jnp.sum(gradient**2))
        along = self.to_x(gradient / jnp.maximum(size, 1e-30))
        curved = flat(jax.jvp(lambda x: self.free["upper"](x, y), (x,), (along,))[1])
        lengths = []
        for group in self.groups:
            indirect, direct = (jnp.sqrt(jnp.sum(part[group.place] ** 2)) for part in (cross, curved))
            inverse = indirect / jnp.maximum(force, 1e-30) + direct / jnp.maximum(size, 1e-30)
            lengths.append(jnp.where(inverse > 0, 1 / jnp.maximum(inverse, 1e-30), 1.0))
        return lengths

    def _persistent_noise(self, state: State, x: Tree, y: Tree, errors: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Variance of the data-free part of a hypergradient that is due to the noise in y and d.

        It is estimated by the derivative along random signs, scaled to the size of that noise. Second differences of
        hypergradients miss this noise, because y and d hardly change from one step to the next.
        """

        def hypergradient(y: Tree, d: Tree) -> jax.Array:
            return flat(self.free["upper"](x, y)) + flat(jax.jvp(lambda y: self.free["lower"](x, y), (y,), (d,))[1])

        d = state["d"]["point"]
        signs = _signs(state["step"], 2 * d.size) / jnp.sqrt(d.size)
        along = (self.to_y(jnp.sqrt(error) * part) for error, part in zip(errors, jnp.split(signs, 2), strict=True))
        return jax.jvp(hypergradient, (y, self.to_y(d)), tuple(along))[1] ** 2

    def _sampling_variance(self, medians: Mapping[str, jax.Array], length: jax.Array) -> Any:
        """Sampling variance of the derivatives on a simplex: full batches repeat the same error in every step."""
        if CROSS not in medians:
            return 0.0
        return _CHANCE * (length * jnp.exp(medians[CROSS])) ** 2 / self.records

    def _validation(self, state: State, means: Tree, noise: Tree, point: Tree) -> Tree:
        """The change of the validation loss since x started to move, summed over the validation steps."""
        (x, y), first = (point["at"][name] for name in ("x", "y")), point["at"]["first"]
        term = self.problem.term("upper")
        change = jnp.asarray(term(x, y) - term(*first), jnp.float32)
        variance = jnp.zeros((), jnp.float32)
        if LOSS_CHANGE in means:
            change, variance = change + means[LOSS_CHANGE][0], noise[LOSS_CHANGE] ** 2
        now = jnp.where(point["phase"] == VALIDATE, 1.0, 0.0)
        more = {"sum": now * change, "variance": now * variance, "passes": now}
        return {name: (value + more[name]).astype(jnp.float32) for name, value in state["loss_change"].items()}

    def finish(self, state: State) -> tuple[Tree, Tree]:
        """The returned (x, y): the final point if its validation loss is lower by more than the noise, else the first.

        The margin is one standard deviation s of the noise. If the true loss is higher by D, the final point is still
        returned with probability Phi(-1 - D/s); the expected loss is at most D Phi(-1 - D/s) = 0.03 s. If it is lower
        by D, the first point is returned with probability Phi(1 - D/s), which forgoes at most 0.5 s. A margin of two
        standard deviations would forgo up to 1.1 s, and no margin could lose 0.17 s.
        """
        last = (state["average"], state["y"]["main"])
        finite = jnp.isfinite(jnp.sum(last[0]) + jnp.sum(last[1]))
        fell = state["loss_change"]["sum"] < -_SURE * jnp.sqrt(state["loss_change"]["variance"])
        worse = ~(finite & fell)
        pairs = zip(state["first"], last, strict=True)
        x, y = (jnp.where(worse, first, final) for first, final in pairs)
        return self.to_x(x), self.to_y(y)

    def _clips(self, state: State, counts: Any, means: Any, point: Tree) -> Tree:
        """The clips after a step. The curvature has two, along d and for power iteration, which start equal."""
        before, power, searching = state["clips"], point["power"], point["phase"] == SEARCH
        used = before["lower"] | {CURVATURE: _select(power, before["lower"][_TOP], before["lower"][CURVATURE])}
        after = self.passes["lower"].update_clips(used, counts["lower"], means, point)
        early = state["step"] < 2 * self.phase
        clips = {
            MODEL: after[MODEL],
            CURVATURE: _select(power & ~early, before["lower"][CURVATURE], after[CURVATURE]),
            _TOP: _select(power, after[CURVATURE], before["lower"][_TOP]),
        }
        if CROSS in after:
            clips[CROSS] = _select(power & ~searching, before["lower"][CROSS], after[CROSS])
        new = {"lower": clips}
        if "upper" in counts:
            new["upper"] = self.passes["upper"].update_clips(before["upper"], counts["upper"], means, point)
            expected = self._expected_change(state, point["medians"])
            new["upper"][LOSS_CHANGE] = _select(point["phase"] < SCALE, expected, new["upper"][LOSS_CHANGE])
        return new

    def _expected_change(self, state: State, medians: Mapping[str, jax.Array]) -> Tree:
        """The clip of loss changes before the search for their scale.

        By Cauchy and Schwarz, the loss of a record changes by at most the norm of its gradient times the distance
        moved; if their directions are unrelated, by a fraction of about 1/sqrt(d) of that. The search covers both, and
        a factor of e more, because the gradients have changed on the way.
        """
        moves = {PULL: (state["y"]["point"], state["first"][1]), HYPERGRADIENT: (state["x"], state["first"][0])}
        bounds, size = [], 1
        for name in (name for name in moves if name in medians):
            after, before = moves[name]
            bounds.append(jnp.exp(medians[name]) * jnp.sqrt(jnp.sum((after - before) ** 2)))
            size = max(size, after.size)
        return self.passes["upper"].expect(sum(bounds, start=0.0) / size**0.25, math.log(size) / 4 + 1)

    def _project_lower(self, y: jax.Array) -> jax.Array:
        return flat(project(self.problem.lower_domain, self.to_y(y))).astype(y.dtype)

    def _tangent(self, state: State, step: jax.Array, d: jax.Array) -> jax.Array:
        """d restricted to directions in which y can move: on the boundary of its domain, y* does not follow x."""
        return jax.jvp(self._project_lower, (state["y"]["point"] - step,), (d,))[1]


@functools.lru_cache(maxsize=64)
def _coordinates(setting: Setting) -> tuple[Any, ...]:
    """The functions that turn flat vectors into x and y, and the groups of x."""
    to_x, to_y = (unravel(part) for part in setting.point)
    return to_x, to_y, groups(setting.problem.domain, setting.point[0])


def unravel(shapes: Tree) -> Callable[[jax.Array], Tree]:
    """The function that turns a flat vector into a pytree of the given shapes."""
    return ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))[1]


def _signs(step: jax.Array, size: int) -> jax.Array:
    """Pseudo-random signs: multiples of the golden ratio modulo one, below or above a half.

    Integer arithmetic (Knuth's multiplicative hashing), because the products of large models have no fractional part
    left in float32.
    """
    places = jnp.arange(1, size + 1, dtype=jnp.uint32) * (step + 1).astype(jnp.uint32)
    return jnp.where(places * jnp.uint32(round(lower_steps.GOLDEN * 2**32)) >= jnp.uint32(2**31), 1.0, -1.0)


def _select(condition: Any, yes: Tree, no: Tree) -> Tree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
