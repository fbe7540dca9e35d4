"""One step of DP-GD on a logistic loss, sides of the benchmark of speed: this library, jax_privacy and Opacus.

All clip each record's gradient to norm one and add noise of multiplier one. Each is called once per step.
"""

import time
from collections.abc import Callable
from typing import Any

import speed_worker
from speed_sides import rows

Run = Callable[..., Any]


def fastest_of(step: Run, runs: int = 3) -> float:
    """The least time of a few runs after a first one, to choose between settings."""
    step()
    seconds = []
    for _ in range(runs):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def library_step(number: int, columns: int) -> Run:
    """One step of DP-GD on a logistic loss, as a program of the library, called once per step."""
    import jax
    import jax.numpy as jnp

    import dpbilevel as dpb
    from dpbilevel.execution.program import Program, Stage
    from dpbilevel.methods.derivatives import gradient_in_y
    from dpbilevel.privacy.noise import KeySchedule
    from dpbilevel.privacy.release import Contribution, Release

    uses = 1000
    gradient = gradient_in_y(
        dpb.LinearLoss(row=lambda record: record[0], loss=lambda x, score, record: jax.nn.softplus(-record[1] * score))
    )
    contribution = Contribution(lambda y, record: gradient(0.0, y, record), 1.0, number)
    release = Release(name="gradient", contributions={"lower": contribution}, noise_std=1.0 / number, uses=uses)
    program = Program(
        rounds=uses,
        stages=[Stage(release=release, update=lambda state, y, noisy, step: y - 0.5 * noisy)],
        start=lambda x, y: y,
        observe=lambda y: {},
        finish=lambda y: (0.0, y),
    )
    records = dpb.Records(lower=rows(number, columns))
    budget = dpb.Budget(1e6, 1e-9)
    receipt, schedule = dpb.Ledger(budget).charge(program.releases, budget, "speed"), KeySchedule(None)
    state = jnp.zeros(columns, jnp.float32)

    def run() -> None:
        jax.block_until_ready(records.execute(program, receipt, schedule, state, 1))

    return run


def jax_privacy_step(number: int, columns: int) -> Run:
    """The same with jax_privacy, in its fastest of a few block sizes."""
    import jax
    import jax.numpy as jnp
    from jax_privacy import clipped_grad

    data = jax.tree.map(jnp.asarray, rows(number, columns))

    def loss(y: Any, row: Any, label: Any) -> Any:
        return jax.nn.softplus(-label * (row @ y))

    def stepping(size: int | None) -> Run:
        clipped = clipped_grad(loss, l2_clip_norm=1.0, batch_argnums=(1, 2), keep_batch_dim=False, microbatch_size=size)

        @jax.jit
        def step(y: Any, data: Any, key: Any) -> Any:
            noisy = clipped(y, *data) + jax.random.normal(key, y.shape)
            return y - 0.5 * noisy / number

        return step

    keys, start, tried = iter(jax.random.split(jax.random.key(0), 1000)), jnp.zeros(columns), {}
    for size in (None, *(size for size in (1000, 10_000) if number > size and number % size == 0)):
        step = stepping(size)
        tried[fastest_of(lambda: jax.block_until_ready(step(start, data, next(keys))))] = (size, step)  # noqa: B023
    size, fastest = tried[min(tried)]

    def run() -> dict[str, Any]:
        jax.block_until_ready(fastest(start, data, next(keys)))
        return {"setting": f"microbatch_size={size}"}

    return run


def opacus_step(number: int, columns: int) -> Run:
    """The same with Opacus, in the faster of its per-sample gradients and its ghost clipping."""
    import torch
    from opacus import GradSampleModule
    from opacus.grad_sample import GradSampleModuleFastGradientClipping as GhostModule
    from opacus.optimizers import DPOptimizer
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping as GhostOptimizer
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping as GhostLoss

    made, labels = (torch.from_numpy(part) for part in rows(number, columns))
    targets = (labels + 1) / 2

    def private(optimizer: Any, model: Any) -> Any:
        descent = torch.optim.SGD(model.parameters(), lr=0.5)
        return optimizer(descent, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=number)

    def linear() -> Any:
        model = torch.nn.Linear(columns, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        return model

    per_sample = GradSampleModule(linear())
    per_sample_optimizer = private(DPOptimizer, per_sample)
    mean_loss = torch.nn.BCEWithLogitsLoss()

    def with_gradients() -> None:
        per_sample_optimizer.zero_grad()
        mean_loss(per_sample(made).squeeze(1), targets).backward()
        per_sample_optimizer.step()

    ghost = GhostModule(linear(), max_grad_norm=1.0, use_ghost_clipping=True)
    ghost_optimizer = private(GhostOptimizer, ghost)

    ghost_loss = GhostLoss(ghost, ghost_optimizer, mean_loss)

    def with_ghosts() -> None:
        ghost_optimizer.zero_grad()
        ghost_loss(ghost(made).squeeze(1), targets).backward()
        ghost_optimizer.step()

    ways = {"per-sample gradients": with_gradients, "ghost clipping": with_ghosts}
    tried = {}
    for threads in {1, torch.get_num_threads()}:  # on a busy machine one thread may be faster
        torch.set_num_threads(threads)
        for way, step in ways.items():
            tried[fastest_of(step)] = (threads, way)
    threads, way = tried[min(tried)]
    torch.set_num_threads(threads)

    def run() -> dict[str, Any]:
        ways[way]()
        return {"setting": f"{way}, {threads} thread{'s' if threads > 1 else ''}"}

    return run


SIDES = {side.__name__: side for side in (library_step, jax_privacy_step, opacus_step)}

if __name__ == "__main__":
    speed_worker.serve(SIDES)
