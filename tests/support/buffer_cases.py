"""Releases whose optimised HLO is read: is the buffer that is measured the buffer that is summed?

``PYTHONPATH=src python buffer_cases.py`` compiles all of them for the device that JAX finds, an accelerator too,
prints a line for each and fails where one does not hold. test_buffers.py has a part of them on the CPU.
"""

import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from support.compilation_cache import with_names
from support.optimised_hlo import Module, optimised

from dpbilevel.foundation.precision import is_double
from dpbilevel.methods.joint import Part, joined
from dpbilevel.privacy import grid, memory
from dpbilevel.privacy.metric import Metric
from dpbilevel.privacy.outer import Outer, dense
from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.privacy.sampling import FullBatch, Poisson
from dpbilevel.records import isolated_jax_config

OVERFLOW = 2.0**100  # what `clipped` compares every entry with
CLASSES = 3


def elementwise(point, record):
    """A sine, which the text of HLO shows wherever it is computed."""
    return jnp.sin(record["row"] * point + record["target"]) * point


def cancelling(point, record):
    """Differences of products: fused multiply-adds make of them what they like."""
    row = record["row"]
    return {"a": row * point - point * jnp.roll(row, 1), "b": (row @ point) * row - row * record["target"]}


def gradient(point, record):
    def loss(y):
        margin = record["row"] @ y
        return jnp.logaddexp(0.0, margin) - record["target"] * margin

    return jax.grad(loss)(point)


def softmax(point, record):
    def loss(matrix):
        scores = record["row"] @ matrix
        return jax.nn.logsumexp(scores) - scores[0]

    return jax.grad(loss)(jnp.outer(point, jnp.arange(1.0, CLASSES + 1, dtype=point.dtype)))


def joint(point, record):
    """Several vectors of one record, each clipped by itself, as `Tracking` has them."""
    parts = {
        "model": Part(gradient, 0.5, 0.3),
        "difference": Part(lambda point, record: gradient(2 * point, record) - gradient(point, record), 0.1, 0.5),
        "score": Part(lambda point, record: jnp.tanh(record["row"] @ point), 1.0, 0.2),
    }
    return joined(parts, clipped=True)(point, record)


def linear(point, record):
    """The gradient again, as an outer product."""
    row = record["row"]
    return Outer(row, jnp.tanh(row @ point) - record["target"])


def linear_joint(point, record):
    """Several outer products of a row, and numbers beside them, each clipped by itself."""
    row, target = record["row"], record["target"]

    def matrix(point, record):
        return Outer(row, jnp.stack([jnp.sin(row @ point), target * (row @ point) - target]))

    parts = {
        "model": Part(linear, 0.5, 0.3),
        "matrix": Part(matrix, 0.1, 0.5),
        "score": Part(lambda point, record: jnp.tanh(row @ point) * target, 1.0, 0.2),
    }
    return joined(parts, clipped=True)(point, record)


def in_metric(point, record):
    """The gradient in a metric, in which one direction counts for less."""
    metric = Metric(jnp.eye(point.size, 1, dtype=point.dtype), jnp.full(1, 0.3, point.dtype))
    return linear(point, record).within(metric)


def computed_row(point, record):
    """An outer product of a row that is computed, with a difference of products in it."""
    row = record["row"]
    return Outer(row * point - point * jnp.roll(row, 1), jnp.sin(record["target"]))


_FUNCTIONS = (elementwise, cancelling, gradient, softmax, joint, linear, linear_joint, in_metric, computed_row)
VECTORS = {function.__name__: function for function in _FUNCTIONS}

# Fewer records than a chunk, one block and many, down to one record and one number.
SHAPES = {
    "one record": (1, 3),
    "two records": (2, 3),
    "one number": (300, 1),
    "part of a chunk": (101, 5),
    "one block": (1000, 20),
    "many blocks": (30_000, 100),
    "wide": (4, 70_000),
    "wider than a block": (3, 600_000),
}
KINDS = ("full batch", "Poisson", "exact")


@dataclass(frozen=True)
class Case:
    """A release and the shapes of its records."""

    vector: str
    shape: str
    kind: str
    double: bool = False

    def __str__(self) -> str:
        return f"{self.vector}, {self.shape}, {self.kind}, {'float64' if self.double else 'float32'}"

    @property
    def dimension(self) -> int:
        point, record = self._shapes(1)
        described = jax.eval_shape(lambda *at: dense(VECTORS[self.vector](*at)), point, record)
        return sum(leaf.size for leaf in jax.tree.leaves(described))

    def release(self) -> Release:
        number = SHAPES[self.shape][0]
        release = Release(
            name="mean",
            contributions={"lower": Contribution(VECTORS[self.vector], 0.7, number)},
            noise_std=1.0,
            uses=1,
            sampling=Poisson(0.5) if self.kind == "Poisson" else FullBatch(),
        )
        return release.discretized(self.dimension) if self.kind == "exact" else release

    def limits(self) -> list[float]:
        """What records are measured by: every entry, and with exact noise the squares of a row of integers."""
        exact = self.release().grid
        return [OVERFLOW] if exact is None else [OVERFLOW, exact.longest(0.7, SHAPES[self.shape][0]) ** 2]

    def module(self) -> Module:
        """The program as the compiler has made it."""
        with isolated_jax_config(), with_names():
            return optimised(self.lowered(), records="rows")

    def lowered(self) -> Any:
        """The program as JAX hands it to the compiler."""
        release = self.release()
        with jax.enable_x64(self.double):
            precise = is_double()
            point, records = self._shapes(0)
        present = jax.ShapeDtypeStruct((SHAPES[self.shape][0],), bool)
        keys = jax.ShapeDtypeStruct((self.dimension, 2) if self.kind == "exact" else (2, 2), jnp.uint32)

        def program(rows: Any, present: Any, point: Any, keys: Any) -> Any:
            with jax.enable_x64(precise):
                return Release.answer(release, {"lower": (rows, present)}, point, keys)

        with isolated_jax_config(), with_names():
            return jax.jit(program).lower(records, present, point, keys)

    def is_measured_once(self) -> bool:
        module = self.module()
        return all(module.is_measured_once(limit) for limit in self.limits())

    def _shapes(self, first: int) -> tuple[Any, Any]:
        """Of a point and of all records, or of one."""
        number, dimension = SHAPES[self.shape]
        leading = (number,)[first:]
        dtype = jnp.float64 if self.double else jnp.float32
        record = {"row": (*leading, dimension), "target": leading}
        shapes = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in record.items()}
        return jax.ShapeDtypeStruct((dimension,), dtype), shapes


CASES = [
    Case(vector, shape, kind, double)
    for vector, shape, kind, double in itertools.product(VECTORS, SHAPES, KINDS, (False, True))
    if not (vector == "softmax" and "wide" in shape)
]


# ---- what must not pass


def direct(rows, shape, dtype):
    """Without a loop, as plain expressions."""
    parts = [part.reshape(shape[0], -1).astype(dtype) for part in rows(np.array(0), shape[0])]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)


def behind_a_barrier(rows, shape, dtype):
    """With the operation that is made for this, which XLA removes before it forms kernels for CPUs."""
    return jax.lax.optimization_barrier(direct(rows, shape, dtype))


def in_one_step(rows, shape, dtype):
    """With a loop of one step, which XLA unrolls."""
    whole = jax.lax.scan(lambda buffer, first: (direct(rows, shape, dtype), None), jnp.zeros(shape, dtype), np.zeros(1))
    return whole[0]


def broken(monkeypatch, mutant, modules=(memory, grid)):
    """Replace `computed_once`, and `stored_once` too, by ``mutant``."""

    def stored(lines):
        shape = lines[0].shape[1], sum(line.shape[0] for line in lines)
        return mutant(lambda first, number: [line.T for line in lines], shape, lines[0].dtype).T

    for module in modules:
        monkeypatch.setattr(module, "computed_once", mutant)
        if module is memory:
            monkeypatch.setattr(module, "stored_once", stored)


def main() -> int:
    memory._ELEMENTS_ON_ACCELERATORS = memory._ELEMENTS  # so that many blocks are many there, too
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind} ({jax.default_backend()})", flush=True)
    failures = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for case, holds in zip(CASES, pool.map(Case.is_measured_once, CASES), strict=True):
            failures += not holds
            print(f"{'ok  ' if holds else 'FAIL'} {case}", flush=True)
    print(f"{len(CASES) - failures} of {len(CASES)} programs measure the buffer that they sum")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
