"""Tracking steps and whole fits, sides of the benchmark of speed (`speed_worker` has the protocol).

Rows are standard normal over the root of the number of columns, so that their norms are about one; labels follow a
logistic model.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import speed_worker

Run = Callable[..., Any]
STEPS = 200  # of a plan; receipts allow no more


def rows(number: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels -1 and 1, in float32, made in blocks."""
    draws = np.random.default_rng(seed)
    made = np.empty((number, columns), np.float32)
    for first in range(0, number, 2**14):
        part = made[first : first + 2**14]
        draws.standard_normal(out=part, dtype=np.float32)
        part /= np.float32(np.sqrt(columns))
    scores = made @ (3 * draws.standard_normal(columns)).astype(np.float32)
    return made, np.where(draws.random(number) < 1 / (1 + np.exp(-scores)), 1.0, -1.0).astype(np.float32)


def parts(number: int, columns: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A fifth of the rows validates, as in the estimators."""
    made, labels = rows(number, columns)
    cut = number // 5
    return {"upper": (made[:cut], labels[:cut]), "lower": (made[cut:], labels[cut:])}


# ------------------------------------------------------------------------------------------------------ tracking step


def private_steps(problem: Any, records: Any, chunk: int) -> Run:
    """Tracking steps as `solve` runs them, ``chunk`` of them in one call."""
    import jax

    import dpbilevel as dpb
    from dpbilevel.execution.running import _plain
    from dpbilevel.privacy.noise import KeySchedule

    budget = dpb.Budget(1.0, 1e-8)  # below one over eight million rows
    planned = dpb.plan(problem, records.sizes, budget, method=dpb.Tracking(steps=STEPS), refit=None)
    state = planned.program.start(*problem.start)
    open_run: dict[str, Any] = {"left": 0}

    def run() -> dict[str, Any]:
        if open_run["left"] < chunk:
            receipt = dpb.Ledger(budget).charge(planned.releases, budget, "speed")
            open_run.update(receipt=receipt, schedule=KeySchedule(None), left=STEPS)
        open_run["left"] -= chunk
        done = records.execute(planned.program, open_run["receipt"], open_run["schedule"], _plain(state), chunk)
        jax.block_until_ready(done)
        return {"steps": chunk}

    return run


def held_linear(number: int, columns: int) -> tuple[Any, Any]:
    """Logistic regression with one penalty, and its records."""
    import dpbilevel as dpb

    problem = dpb.applications.regularization(columns=columns, row_norm=1.5)
    return problem, dpb.Records(**parts(number, columns))


def private_linear(number: int, columns: int, chunk: int) -> Run:
    """Its tracking steps: the linear path."""
    return private_steps(*held_linear(number, columns), chunk)


def default_run(problem: Any, records: Any) -> float:
    """Seconds of `solve` with all defaults: tracking, and the training of the model."""
    import dpbilevel as dpb

    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dpb.solve(problem, records, dpb.Budget(1.0, 1e-8), progress=False)
    return time.perf_counter() - begin


def plain_linear(number: int, columns: int, chunk: int) -> Run:
    """The same step in plain JAX: matrix products, no clipping, no noise, nothing that adapts."""
    import jax
    import jax.numpy as jnp

    made = parts(number, columns)
    (validation, targets), (training, labels) = (jax.tree.map(jnp.asarray, made[role]) for role in ("upper", "lower"))

    def step(carry: Any, _: None, data: Any) -> tuple[Any, None]:
        (validation, targets, training, labels), (x, y, d) = data, carry
        penalty, length = jnp.exp(x), jnp.sqrt(jnp.sum(d**2))
        u = d / jnp.maximum(length, 1e-30)
        scores = training @ jnp.stack([y, u], axis=1)
        probability = jax.nn.sigmoid(labels * scores[:, 0])
        coefficients = jnp.stack([labels * (probability - 1), probability * (1 - probability) * scores[:, 1]])
        gradient, curved = coefficients @ training / labels.size
        score = targets * (validation @ y)
        pull = (targets * (jax.nn.sigmoid(score) - 1)) @ validation / targets.size
        new_y = y - (gradient + penalty * y)
        new_d = d - (length * (curved + penalty * u) + pull)
        return (x - penalty * y @ d, new_y, new_d), None

    @jax.jit
    def steps(state: Any, *data: Any) -> Any:
        return jax.lax.scan(lambda carry, none: step(carry, none, data), state, None, length=chunk)[0]

    zeros = jnp.zeros(columns)
    state = (jnp.asarray(-5.0), zeros, zeros + 0.01)

    def run() -> dict[str, Any]:
        jax.block_until_ready(steps(state, validation, targets, training, labels))
        return {"steps": chunk}

    return run


def network(columns: int, hidden: int) -> tuple[Any, Any]:
    """The loss of one record of a network with one hidden layer, and its start."""
    import jax
    import jax.numpy as jnp

    def loss(y: Any, record: Any) -> Any:
        row, label = record
        score = jnp.tanh(row @ y["in"] + y["bias"]) @ y["out"]
        return jax.nn.softplus(-label * score)

    draws = np.random.default_rng(1)
    start = {
        "in": draws.standard_normal((columns, hidden)).astype(np.float32),
        "bias": np.zeros(hidden, np.float32),
        "out": (draws.standard_normal(hidden) / np.sqrt(hidden)).astype(np.float32),
    }
    return loss, start


def private_network(number: int, columns: int, chunk: int, hidden: int) -> Run:
    """A network with a tuned penalty: the generic path, with a gradient for each record."""
    import jax.numpy as jnp

    import dpbilevel as dpb

    loss, start = network(columns, hidden)
    problem = dpb.BilevelProblem(
        upper_loss=lambda x, y, record: loss(y, record),
        lower_loss=lambda x, y, record: loss(y, record),
        lower_term=lambda x, y: jnp.exp(x) / 2 * sum(jnp.sum(leaf**2) for leaf in y.values()),
        domain=dpb.Box(-12.0, 2.0),
        start=(np.float32(-5.0), start),
    )
    return private_steps(problem, dpb.Records(**parts(number, columns)), chunk)


def plain_network(number: int, columns: int, chunk: int, hidden: int) -> Run:
    """The same step in plain JAX: gradients of means over all records at once."""
    import jax
    import jax.numpy as jnp

    loss, start = network(columns, hidden)
    made = jax.tree.map(jnp.asarray, parts(number, columns))

    def mean(y: Any, data: Any) -> Any:
        return jnp.mean(jax.vmap(lambda record: loss(y, record))(data))

    def step(carry: Any, data: Any) -> Any:
        x, y, d = carry
        gradient, curved = jax.jvp(lambda y: jax.grad(mean)(y, data["lower"]), (y,), (d,))
        pull, penalty = jax.grad(mean)(y, data["upper"]), jnp.exp(x)
        change = sum(jnp.sum(a * b) for a, b in zip(jax.tree.leaves(y), jax.tree.leaves(d), strict=True))
        new_y = jax.tree.map(lambda a, g: a - 0.1 * (g + penalty * a), y, gradient)
        new_d = jax.tree.map(lambda a, h, p: a - 0.1 * (h + penalty * a + p), d, curved, pull)
        return x - penalty * change, new_y, new_d

    @jax.jit
    def steps(state: Any, data: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (step(carry, data), None), state, None, length=chunk)[0]

    state = (jnp.asarray(-5.0), start, jax.tree.map(lambda leaf: 0.01 * jnp.ones_like(leaf), start))

    def run() -> dict[str, Any]:
        jax.block_until_ready(steps(state, made))
        return {"steps": chunk}

    return run


def clipped_network(number: int, columns: int, chunk: int, hidden: int) -> Run:
    """The least that clipping needs in plain JAX: a gradient for each record, clipped and summed block by block."""
    import jax
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree

    loss, start = network(columns, hidden)
    block = min(256, number // 5)
    made = jax.tree.map(
        lambda leaf: jnp.asarray(leaf[: len(leaf) // block * block]).reshape(-1, block, *leaf.shape[1:]),
        parts(number, columns),
    )
    flat, unravel = ravel_pytree(start)

    def gradient(y: Any, record: Any) -> Any:
        return jax.grad(lambda y: loss(unravel(y), record))(y)

    def clipped(vectors: Any) -> Any:
        norms = jnp.sqrt(jnp.sum(vectors**2, axis=1, keepdims=True))
        return jnp.sum(vectors * jnp.minimum(1.0, 1.0 / norms), axis=0)

    def total(vectors: Callable[[Any], Any], data: Any) -> Any:
        size = jax.eval_shape(vectors, jax.tree.map(lambda leaf: leaf[0], data)).shape[1]
        return jax.lax.scan(lambda sum, part: (sum + clipped(vectors(part)), None), jnp.zeros(size), data)[0]

    def step(carry: Any, data: Any) -> Any:
        x, y, d = carry

        def lower(part: Any) -> Any:
            both = jax.vmap(lambda record: jax.jvp(lambda y: gradient(y, record), (y,), (d,)))(part)
            return jnp.concatenate(both, axis=1)

        slope, curved = jnp.split(total(lower, data["lower"]) / number, 2)
        pull = total(lambda part: jax.vmap(lambda record: gradient(y, record))(part), data["upper"]) / number
        penalty = jnp.exp(x)
        return x - penalty * y @ d, y - 0.1 * (slope + penalty * y), d - 0.1 * (curved + penalty * d + pull)

    @jax.jit
    def steps(state: Any, data: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (step(carry, data), None), state, None, length=chunk)[0]

    state = (jnp.asarray(-5.0), flat, 0.01 * jnp.ones_like(flat))

    def run() -> dict[str, Any]:
        jax.block_until_ready(steps(state, made))
        return {"steps": chunk}

    return run


# ---------------------------------------------------------------------------------------------------------- whole fit


def fit(number: int, columns: int) -> Run:
    """`DPLogisticRegressionCV` with all defaults; the second and later fits find what the first has compiled."""
    from dpbilevel.estimators import DPLogisticRegressionCV

    made, labels = rows(number, columns)

    def run(epsilon: float = 1.0) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            DPLogisticRegressionCV(epsilon=epsilon, data_norm=1.5, classes=[-1.0, 1.0]).fit(made, labels)

    return run


def scikit_learn(number: int, columns: int) -> Run:
    """scikit-learn's `LogisticRegressionCV` with all defaults, without privacy."""
    from sklearn.linear_model import LogisticRegressionCV

    made, labels = rows(number, columns)

    def run() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            LogisticRegressionCV().fit(made, labels)

    return run


NETWORKS = (private_network, plain_network, clipped_network)
SIDES = {side.__name__: side for side in (private_linear, plain_linear, *NETWORKS, fit, scikit_learn)}

if __name__ == "__main__":
    speed_worker.serve(SIDES)
