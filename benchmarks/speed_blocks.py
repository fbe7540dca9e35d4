"""Clipped sums of the generic path by the size of a block, on one core and on two.

The constant `_ELEMENTS` of `privacy/memory.py` is chosen by these lines. It is never measured at run time: block
sizes affect the last bits of released values, and may depend on public sizes only.
"""

import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import speed_worker

from dpbilevel.foundation.tables import markdown_table

Run = Callable[..., Any]
EXPONENTS = (14, 16, 17, 18, 19, 20, 21, 22)  # of two: numbers in a block of contributions
CORES = (1, 2)
COLUMNS, UNITS = 100, 32
# Records and numbers per record: a few numbers, a network whose gradients are written out, and a wide model.
CASES = {"20 numbers": (200_000, 20), "network of 32 units": (20_000, 3264), "100000 numbers": (500, 100_000)}
PRODUCT = "matrix product"  # 50,000 x 100 times 100 x 32, to compare
KEY = "blocks, "


def records_of(case: str, number: int) -> tuple[Any, Callable[[Any], Any]]:
    """Records, and the contribution of one of them."""
    import jax
    import jax.numpy as jnp

    draws = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return draws.standard_normal(shape, np.float32)

    if case.startswith("network"):
        y = {"in": drawn(UNITS, COLUMNS), "bias": drawn(UNITS), "out": drawn(UNITS)}

        def loss(y: Any, record: Any) -> Any:
            row, label = record
            return jax.nn.softplus(-label * (jnp.tanh(y["in"] @ row + y["bias"]) @ y["out"]))

        return (drawn(number, COLUMNS), np.sign(drawn(number))), lambda record: jax.grad(loss)(y, record)
    point = drawn(CASES[case][1])
    return drawn(number), lambda record: jnp.tanh(record * point) * point


def clipped_sums(case: str, number: int, cores: int) -> Run:
    """Sums of clipped contributions; every run names the size of its blocks."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])  # before JAX starts its threads
    import jax
    import jax.numpy as jnp

    from dpbilevel.privacy import clipping, memory
    from dpbilevel.records import isolated_jax_config

    compiled: dict[int, Any] = {}
    if case == PRODUCT:
        arguments = (jnp.ones((number, COLUMNS)), jnp.ones((COLUMNS, UNITS)))
        function: Any = jnp.matmul
    else:
        records, vector = records_of(case, number)
        arguments = (jax.tree.map(jnp.asarray, records), jnp.ones(number, bool))

        def function(held: Any, mask: Any) -> Any:
            return clipping.clipped_sum(vector, held, mask, 1.0)

    def run(exponent: int = EXPONENTS[0]) -> dict[str, Any]:
        if exponent not in compiled:
            memory._ELEMENTS = 2**exponent
            compiled[exponent] = jax.jit(lambda *given: function(*given))  # its own, and not one of another size
            with isolated_jax_config():
                jax.block_until_ready(compiled[exponent](*arguments))
        begin, processor = time.perf_counter(), time.process_time()
        with isolated_jax_config():
            jax.block_until_ready(compiled[exponent](*arguments))
        return {"seconds": time.perf_counter() - begin, "processor": time.process_time() - processor}

    return run


def block_line(case: str, tiny: bool) -> tuple[str, Callable[[Any], dict[str, Any]]]:
    """The name of a line, and what measures it."""
    number = 300 if tiny else CASES[case][0] if case in CASES else 50_000
    exponents = (0,) if case == PRODUCT else EXPONENTS[:2] if tiny else EXPONENTS

    def measure(settings: Any) -> dict[str, Any]:
        load, sides = [os.getloadavg()[0]], {}
        with ExitStack() as stack:
            workers = {}
            for cores in CORES:
                make = settings.side("clipped_sums", "speed_blocks.py", case=case, number=number, cores=cores)
                workers[cores] = stack.enter_context(make())
                workers[cores].first()
                for exponent in exponents:
                    workers[cores].run(exponent=exponent)
            turns = [
                {(e, cores): worker.run(exponent=e) for e in exponents for cores, worker in workers.items()}
                for _ in range(settings.repeats(9))
            ]
        for exponent, cores in turns[0]:
            sides[f"{exponent}, {cores}"] = {
                "runs": [turn[exponent, cores]["seconds"] for turn in turns],
                "processor": [turn[exponent, cores]["processor"] for turn in turns],
            }
        return {"sides": sides, "load": [*load, os.getloadavg()[0]]}

    return f"{KEY}{case}", measure


def section(cells: dict[str, Any]) -> str:
    """What the page says about blocks and cores."""
    mine = {key.removeprefix(KEY): cell["sides"] for key, cell in cells.items() if key.startswith(KEY)}
    cases = [case for case in mine if case != PRODUCT]
    if not cases:
        return "Not measured."
    exponents = sorted({int(side.split(", ")[0]) for case in cases for side in mine[case]})
    rows, relative = [], {}
    for exponent in exponents:
        line = [f"2^{exponent}"]
        for case in cases:
            seconds = {e: processor_seconds(mine[case], e, 1) for e in exponents}
            relative.setdefault(exponent, []).append(seconds[exponent] / min(seconds.values()))
            line.append(f"{relative[exponent][-1]:.2f}")
        rows.append([*line, f"{max(relative[exponent]):.2f}"])
    table = markdown_table(["numbers in a block", *cases, "largest"], rows)
    cores = []
    for case, sides in mine.items():
        best = min({int(side.split(", ")[0]) for side in sides}, key=lambda e: processor_seconds(sides, e, 1))
        one, two = (sides[f"{best}, {cores}"] for cores in CORES)
        used = (max(p / w for p, w in zip(side["processor"], side["runs"], strict=True)) for side in (one, two))
        more = processor_seconds(sides, best, 2) / processor_seconds(sides, best, 1)
        cores.append([case, *(f"{share:.2f}" for share in used), f"{more:.2f}"])
    return f"{table}\n\n" + markdown_table(
        ["line", "processor over wall, one core", "two cores", "processor seconds on two cores over those on one"],
        cores,
    )


def processor_seconds(sides: Any, exponent: int, cores: int) -> float:
    """The median of the turns, which hardly depends on the load of the machine."""
    return statistics.median(sides[f"{exponent}, {cores}"]["processor"])


if __name__ == "__main__":
    speed_worker.serve({"clipped_sums": clipped_sums})
