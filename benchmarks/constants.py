"""Do the constants of the default matter? Each is halved and doubled, one at a time.

    python benchmarks/constants.py --processes 16     (writes docs/results/constants.*; interrupted, it resumes)

It compiles for longer than it computes: XLA_FLAGS=--xla_backend_optimization_level=0 halves the time.

The measure is the geometric mean of the remaining fraction of F(x0) - F*, clipped to [1e-4, 1], over a dozen problems
of `solver.py` at 10^4 and 10^5 records, epsilon 1. For a decay m between 0 and 1, 1 - m is halved and doubled.

Records are simulated: 800 records represent n. Their mean is that of the 800, while the noise, the clip norms and all
other parameters of the plan are those of n. All seeds therefore run in one compiled program, for any n.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from pieces import Cells, options, read_cells, run
from solver_private import DELTA, left_by
from solver_problems import Posed, table
from solver_reference import Reference

import dpbilevel as dpb
from dpbilevel import planning
from dpbilevel.foundation.tables import markdown_table, short
from dpbilevel.privacy.outer import dense

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "constants.json"
MODULES = ("passes", "lower_steps", "hyper_steps", "hyper_rules", "loop")
GUARDS = ("_TINY", "_LEAST_WEIGHT")  # guards against division by zero, and the floor of weights
DECAYS = ("_SHORT", "_LONG", "_TOP_DECAY", "_FALL", "_DECAY", "_NARROWING")
ENTRIES = (1, 5, 8, 10, 13, 33, 41, 43, 48, 52, 59, 62)  # entries of the table: every family and every domain
RECORDS, SIMULATED, EPSILON = (10**4, 10**5), 800, 1.0
DATA_SEED, NOISE_SEED, SEEDS = 61, 71, 4
LEAST = 1e-4  # smaller shares count as this
AS_IT_IS = "as it is"

PAGE = """# Do the constants of the default matter?

Every constant in the modules of the default (`passes`, `lower_steps`, `hyper_steps`, `hyper_rules`, `loop`), halved
and doubled, one at a time; for a decay m, 1 − m is halved and doubled. *Mean* is the geometric mean of the remaining
fraction of $F(x_0) - F^*$, over {problems} problems of [the solver benchmark](solver.md) at 10⁴ and 10⁵ records,
ε = {epsilon:g} and {seeds} seeds, relative to that of the unchanged constants, {base:.3g}: a factor below 1 is an
improvement. *Problems* are the smallest and the largest factor of any single problem.

{table}

Made by `python benchmarks/constants.py` on {simulated} records, with the noise of 10⁴ and 10⁵ records. Data
seed {data_seed}, noise seeds from {noise_seed} on. The problems: {names}.
"""


def constants() -> dict[str, tuple[ModuleType, str, int | None]]:
    """All private constants of the modules by title: module, name, and index in a tuple."""
    found: dict[str, tuple[ModuleType, str, int | None]] = {}
    for module in (importlib.import_module(f"dpbilevel.methods.tracking.{name}") for name in MODULES):
        for name, value in vars(module).items():
            values = value if isinstance(value, tuple) else (value,)
            if not name.startswith("_") or not name.isupper() or name in GUARDS:
                continue
            if all(isinstance(one, int | float) for one in values):
                title = f"{module.__name__.rsplit('.', 1)[-1]}.{name}"
                places = {f"{title}[{index}]": (module, name, index) for index in range(len(values))}
                found |= places if isinstance(value, tuple) else {title: (module, name, None)}
    return found


def changed(name: str, value: float, way: str) -> float:
    """A constant, halved or doubled."""
    factor = {"halved": 0.5, "doubled": 2.0}[way]
    if name in DECAYS:
        return 1 - (1 - value) / factor  # halved: decays twice as fast
    return int(value * factor) if isinstance(value, int) else value * factor


def variants() -> list[str]:
    """The unchanged constants, and each constant changed."""
    return [AS_IT_IS, *(f"{title} {way}" for title in constants() for way in ("halved", "doubled"))]


def set_to(variant: str) -> tuple[Callable[[], None], str]:
    """Change a constant; returns a function that restores it, and both values as text."""
    if variant == AS_IT_IS:
        return planning._planned.cache_clear, ""
    title, way = variant.rsplit(" ", 1)
    module, name, index = constants()[title]
    old = getattr(module, name)
    value = changed(name, old if index is None else old[index], way)
    setattr(module, name, value if index is None else (*old[:index], value, *old[index + 1 :]))
    planning._planned.cache_clear()  # cached plans use the old constants

    def undo() -> None:
        setattr(module, name, old)
        planning._planned.cache_clear()

    return undo, f"{short(old if index is None else old[index])} → {short(value)}"


def simulated(posed: Posed, n: int) -> list[Any]:
    """x for each seed, of the default on simulated records."""
    data = jax.tree.map(jnp.asarray, posed.data)

    def shape(role: str, leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((n // 2 if role == "upper" else n, *leaf.shape[1:]), leaf.dtype)

    sizes = dpb.RecordShapes(
        **{role: jax.tree.map(lambda leaf: shape(role, leaf), tree) for role, tree in data.items()}  # noqa: B023
    )
    start = planning.checked_start(posed.problem, posed.start)
    budget = dpb.Budget(EPSILON, DELTA)
    program = planning.prepare(posed.problem, sizes, budget, planning.DEFAULT_METHOD, start).program

    def answer(release: Any, point: Any, keys: jax.Array) -> Any:
        total: Any = 0.0
        for role, contribution in release.contributions.items():
            vectors = jax.vmap(lambda record: dense(contribution.per_record(point, record)))(data[role])  # noqa: B023
            flat = jax.vmap(lambda vector: ravel_pytree(vector)[0])(vectors)
            norms = jnp.sqrt(jnp.sum(flat**2, axis=1, keepdims=True))
            total += jnp.mean(flat * jnp.minimum(1, contribution.clip / jnp.maximum(norms, 1e-30)), axis=0)
        unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], vectors))[1]
        return unravel(total + release.noise_std * jax.random.normal(keys[0], total.shape))

    def one(seed: jax.Array) -> Any:
        keys = jax.random.split(jax.random.key(seed), (program.rounds, program.keys_per_round, 1))
        return program.finish(program.loop(answer, program.start(*start), keys)[0])[0]

    xs = jax.jit(jax.vmap(one))(jnp.arange(NOISE_SEED, NOISE_SEED + SEEDS))
    return [jax.tree.map(lambda leaf: np.asarray(leaf[index]), xs) for index in range(SEEDS)]  # noqa: B023


@functools.cache
def solution(index: int) -> tuple[Reference, float, float]:
    """The reference of a problem, F(x0) and F*."""
    reference = Reference(table()[index].posed(SIMULATED, DATA_SEED))
    return reference, reference.value(reference.posed.start[0]), reference.best()


def measure(task: tuple[int, str]) -> Cells:
    """One problem with one constant changed."""
    index, variant = task
    reference, first, best = solution(index)
    undo, values = set_to(variant)
    try:
        xs = [simulated(reference.posed, n) for n in RECORDS]
    finally:
        undo()
    left = [[left_by(x, reference, first, best) for x in of_size] for of_size in xs]
    jax.clear_caches()
    return {f"{variant} | {index}": {"left": left, "values": values}}


def report(out: Path) -> None:
    """Write the page from the results."""
    cells = read_cells(out)

    def logarithm(variant: str, index: int) -> float:
        return float(np.mean(np.log(np.clip(cells[f"{variant} | {index}"]["left"], LEAST, 1))))

    base = {index: logarithm(AS_IT_IS, index) for index in ENTRIES}
    rows = []
    for variant in variants()[1:]:
        factors = [np.exp(logarithm(variant, index) - base[index]) for index in ENTRIES]
        mean = np.exp(np.mean(np.log(factors)))
        ends = f"{min(factors):.2f} to {max(factors):.2f}"
        rows.append(
            [f"`{variant.rsplit(' ', 1)[0]}`", cells[f"{variant} | {ENTRIES[0]}"]["values"], f"{mean:.2f}", ends]
        )
    page = PAGE.format(
        problems=len(ENTRIES),
        epsilon=EPSILON,
        seeds=SEEDS,
        base=np.exp(np.mean(list(base.values()))),
        table=markdown_table(["constant", "change", "mean", "problems"], rows),
        simulated=SIMULATED,
        data_seed=DATA_SEED,
        noise_seed=NOISE_SEED,
        names="; ".join(table()[index].name for index in ENTRIES),
    )
    out.with_suffix(".md").write_text(page, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, and report once everything is there."""
    asked = options(__doc__, RESULTS, arguments)
    there = read_cells(asked.out)
    tasks = [(index, variant) for variant in variants() for index in ENTRIES if f"{variant} | {index}" not in there]
    run(measure, tasks, asked.out, asked.processes)
    report(asked.out)


if __name__ == "__main__":
    main()
