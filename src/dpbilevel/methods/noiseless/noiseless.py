"""Runs without noise: the bilevel problem is solved to a stationary point.

With an infinite epsilon, access to the data is free, and the lower level can be solved exactly in each round. A round
solves the lower level at x, differentiates its solution implicitly, and makes one spectral projected step on the
hyperobjective F(x) = f(x, y*(x)):

    y = argmin g(x, .),   u solves (grad_yy g) u = grad_y f,   grad F = grad_x f - (grad_xy g) u

This is the limit of an infinite penalty. Comparisons and stopping rules here depend on records. A `NoiselessStage`
therefore refuses a release with noise.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpbilevel.execution.program import Means, NoiselessStage, Program, State
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.noiseless import spectral
from dpbilevel.methods.noiseless.newton import adjoint, inverse_scales, minimiser
from dpbilevel.privacy.release import Contribution, Release

Tree = Any
Parameters = dict[str, tuple[Any, str]]

_ROUNDS = 300  # at most; most problems are stationary after twenty


def noiseless_tuning(context: PublicContext) -> tuple[Program, Parameters]:
    """The program that solves the bilevel problem to a stationary point of the hyperobjective."""
    problem = context.problem

    def run(means: Means, search: State) -> State:
        evaluate = _hyperobjective(context, means)
        return jax.lax.cond(search.done, lambda: search, lambda: spectral.step(evaluate, problem.domain, search))

    program = Program(
        rounds=_ROUNDS,
        stages=[NoiselessStage(release=_exact_means(context, ("upper", "lower"), _ROUNDS), run=run)],
        start=lambda x, y: spectral.begin(problem.domain, x, (y, optax.tree.zeros_like(y))),
        observe=lambda search: {"x": search.x, "hypergradient": search.gradient},
        finish=lambda search: (search.best[0], search.best[2][0]),
    )
    reason = "at most; without noise a run stops where the hyperobjective is stationary"
    return program, {
        "rounds": (_ROUNDS, reason),
        "output": ("best", "the evaluated point with the smallest hyperobjective"),
    }


def noiseless_training(context: PublicContext, pools: bool) -> tuple[Program, Parameters]:
    """The program that trains the model at the final x to the minimiser, on upper records too if ``pools``."""
    problem, sizes = context.problem, context.sizes
    levels = ("lower", "upper") if pools else ("lower",)
    counts = {level: sizes.count(sizes.role_of(level) or level) for level in levels}

    def run(means: Means, state: State) -> State:
        x, total = state["x"], sum(counts.values())
        lower = means("lower", problem.lower_loss)
        upper = means("upper", problem.upper_loss) if pools and problem.upper_loss is not None else None

        def objective(y: Tree) -> jax.Array:
            value = counts["lower"] / total * lower(x, y)
            if upper is not None:
                value = value + problem.lower_scale(x) * counts["upper"] / total * upper(x, y)
            return value + problem.term("lower")(x, y)

        scales = inverse_scales(objective, partial(problem.term("lower"), x), state["y"])
        return state | {"y": minimiser(objective, problem.lower_domain, state["y"], scales)}

    program = Program(
        rounds=1,
        stages=[NoiselessStage(release=_exact_means(context, levels, 1), run=run)],
        start=lambda x, y: {"x": x, "y": y},
        observe=lambda state: {},
        finish=lambda state: (state["x"], state["y"]),
    )
    return program, {"training: steps": ("as needed", "without noise the model is trained to the minimiser")}


def _hyperobjective(context: PublicContext, means: Means) -> spectral.Evaluate:
    """F and its gradient; the memory holds the lower solution and its adjoint, as warm starts."""
    problem = context.problem
    lower = _level(context, means, "lower")
    upper = _level(context, means, "upper")

    def evaluate(x: Tree, memory: Tree) -> tuple[jax.Array, Tree, Tree]:
        y, u = memory
        loss = partial(lower, x)
        scales = inverse_scales(loss, partial(problem.term("lower"), x), y)
        y = minimiser(loss, problem.lower_domain, y, scales)
        value, (gradient, pull) = jax.value_and_grad(upper, (0, 1))(x, y)
        u = adjoint(loss, problem.lower_domain, y, pull, u, scales)
        cross = jax.grad(lambda point: optax.tree.vdot(jax.grad(lower, 1)(point, y), u))(x)
        return value, optax.tree.sub(gradient, cross), (y, u)

    return evaluate


def _level(context: PublicContext, means: Means, level: str) -> Callable[[Tree, Tree], jax.Array]:
    loss, term = context.problem.loss(level), context.problem.term(level)
    if loss is None:
        return term
    mean = means(level, loss)
    return lambda x, y: mean(x, y) + term(x, y)


def _exact_means(context: PublicContext, levels: tuple[str, ...], rounds: int) -> Release:
    """The release that is charged: exact means, whose epsilon is infinite."""
    sizes = context.sizes
    roles = {sizes.role_of(level) for level in levels if context.problem.loss(level) is not None}

    def vector(point: Tree, record: Tree) -> Tree:
        return jnp.zeros(())

    return Release(
        name="exact means",
        contributions={role: Contribution(vector, math.inf, sizes.count(role)) for role in sorted(filter(None, roles))},
        noise_std=0.0,
        uses=rounds,
        adjacency=context.budget.adjacency,
    )
