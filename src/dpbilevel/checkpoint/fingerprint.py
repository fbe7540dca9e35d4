"""The fingerprint of a run: HMACs under a secret key of each argument except the records.

Two runs with the same noise must be the same run. Most of a run is defined by functions, which their names do not
identify. Programs are therefore compared as the jaxprs that are compiled, with every constant, and by the numbers that
are passed to them: noise, clips, learning rates. The key is secret
because a loss may close over arrays of data, and a plain hash of data would let anyone test guesses of it.
"""

import hmac
import json
import platform
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jaxlib
import numpy as np

from dpbilevel.foundation.about import version
from dpbilevel.foundation.precision import is_double
from dpbilevel.foundation.structure import numbers_as_bytes
from dpbilevel.foundation.tracing import without_addresses, written_out
from dpbilevel.planning import Plan
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.record_shapes import RecordShapes
from dpbilevel.privacy.stores.entry import plan_text
from dpbilevel.records import traced

Tree = Any


def code() -> str:
    """Library, JAX, machine, and the settings of JAX that affect bits, as text."""
    settings = [
        "float64" if is_double() else "float32",
        f"matrix products {jax.config.jax_default_matmul_precision or 'by default'}",  # type: ignore[attr-defined]
        f"generator {'' if jax.config.jax_threefry_partitionable else 'not '}split",  # type: ignore[attr-defined]
    ]
    machine = f"{jax.default_backend()} of {platform.system()} {platform.machine()}"
    libraries = f"dpbilevel {version()}, JAX {jax.__version__}, jaxlib {jaxlib.__version__}, NumPy {np.__version__}"
    return f"{libraries} on {machine} ({', '.join(settings)})"


def fingerprint(
    key: bytes, planned: Plan, schedule: KeySchedule, chunks: Sequence[int], facts: str = ""
) -> dict[str, str]:
    """Name of an argument -> HMAC of its value; the most informative names first.

    Args:
        key: secret key of the HMACs.
        planned: plan of the run.
        schedule: key schedule, which identifies a fixed seed.
        chunks: rounds per chunk, for each part.
        facts: facts that were read with the records, as text.
    """
    start = planned.start
    seed = schedule.keys("noise", 0, 4).tobytes() if schedule.reproducible else b"secret"
    sizes = planned.sizes
    pieces: dict[str, list[bytes]] = {
        "seed": [seed],
        "set of columns, classes, ranges or names": [facts.encode()],
        "budget": [repr(planned.budget).encode()],
        "size of records": [*_shapes((sizes.upper, sizes.lower, sizes.both)), *_units(sizes)],
        "set of devices": _devices(sizes),
        "start": [*_shapes(start), *(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(start))],
        "method": [without_addresses(repr(planned.method)).encode()],
        "plan": [
            plan_text(planned.privacy).encode(),
            without_addresses(repr([dict(planned.parameters), planned.privacy.caveats])).encode(),
            repr(list(chunks)).encode(),
        ],
        "problem": list(_programs(planned, start)),
    }
    return {name: _mac(key, name, values) for name, values in pieces.items()}


def _units(sizes: RecordShapes) -> Iterator[bytes]:
    if sizes.rows_per_unit is not None:
        yield repr((sizes.rows_per_unit, sizes.mean_rows)).encode()


def _devices(sizes: RecordShapes) -> list[bytes]:
    # On another number of devices, partial sums are merged in another order; processes seal their own records.
    devices = () if sizes.mesh is None else tuple(sizes.mesh.devices)
    return [f"{device.device_kind} of {device.process_index}".encode() for device in devices]


def _mac(key: bytes, name: str, pieces: Sequence[bytes]) -> str:
    mac = hmac.new(key, f"dpbilevel {name}".encode(), "sha256")
    for piece in pieces:
        mac.update(len(piece).to_bytes(8, "big") + piece)  # the length separates the pieces
    return mac.hexdigest()


def _programs(planned: Plan, start: tuple[Tree, Tree]) -> Iterator[bytes]:
    """The compiled programs of tuning and training and their numbers, with their start and finish functions."""
    for part in planned.parts:
        state = jax.eval_shape(part.start, *start)
        yield from written_out(jax.make_jaxpr(part.start)(*start))
        yield from written_out(traced(part, planned.sizes, state))
        yield numbers_as_bytes(part)
        yield from written_out(jax.make_jaxpr(part.finish)(state))


def _shapes(tree: Tree) -> Iterator[bytes]:
    leaves, structure = jax.tree.flatten(tree)
    yield without_addresses(str(structure)).encode()
    yield json.dumps([[str(leaf.dtype), list(leaf.shape)] for leaf in leaves]).encode()
