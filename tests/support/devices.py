"""What records on 1, 2 and 4 devices release, send and hold, on a processor that JAX takes for four devices.

JAX fixes the number of devices when it starts: `report` runs this file as a program, all experiments in one process,
and returns what it prints. tests/privacy/test_shards.py says what must hold, and what must not for the library with one
mistake each.
"""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from support.buffer_cases import OVERFLOW, direct
from support.compilation_cache import with_names
from support.optimised_hlo import optimised

import dpbilevel as dpb
from dpbilevel.execution import program as program_module
from dpbilevel.privacy import memory, shards
from dpbilevel.privacy.bundles import Bundle
from dpbilevel.privacy.memory import Memory
from dpbilevel.privacy.noise import KeySchedule, standard_normal
from dpbilevel.privacy.outer import Outer
from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.privacy.second_moments import SecondMoments
from dpbilevel.privacy.shards import Shards
from dpbilevel.records import Records, isolated_jax_config

DEVICES = (1, 2, 4)
NUMBER, COLUMNS, UNITS = 1901, 33, 500  # no multiple of a piece, of a chunk or of a vector register
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "reduce-scatter")


def report():
    """What this program prints, run with four devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4".strip()
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def mesh_of(devices):
    return Mesh(np.array(jax.devices()[:devices]), ("anything",))


# ---- sums of releases


def elementwise(point, record):
    """Sines and a sum, which round differently in blocks of another length; not zero for a record of zeros."""
    row, target = record
    return jnp.sin(row * point[:, 0] + target + 1) * row - jnp.sum(row * point[:, 1]) * point[:, 2] + 0.01


def outer(point, record):
    row, target = record
    return {"slope": Outer(row, jnp.tanh(row @ point[:, 0]) - target), "beside": 1 + 0 * target}


def of_units(point, record):
    parts = jax.vmap(lambda *row: elementwise(point, row))(*record.rows)
    return jnp.sum(jnp.where(record.present[:, None], parts, 0), axis=0)


def row_of(point, record):
    return record[0] + 0.1


FUNCTIONS = {"vectors": elementwise, "products": outer, "units": of_units, "moments": row_of}
SIZES = {"vectors": COLUMNS, "products": COLUMNS + 1, "units": COLUMNS, "moments": COLUMNS**2}


def _data():
    draws = np.random.default_rng(0)
    rows = draws.normal(size=(NUMBER, COLUMNS)).astype(np.float32)
    rows[::97] *= 1e4  # clipped
    targets, point = draws.normal(size=NUMBER).astype(np.float32), draws.normal(size=(COLUMNS, 3)).astype(np.float32)
    bundled = rows[: 3 * UNITS].reshape(UNITS, 3, COLUMNS), targets[: 3 * UNITS].reshape(UNITS, 3)
    return (rows, targets), Bundle(bundled, draws.random((UNITS, 3)) < 0.8), point


ROWS, BUNDLES, POINT = _data()


def arrays_of(kind):
    return BUNDLES if kind == "units" else ROWS


def release_of(kind, exact, number=None):
    number = number or len(jax.tree.leaves(arrays_of(kind))[0])
    contributions = {"lower": Contribution(FUNCTIONS[kind], 1.0, number)}
    made = SecondMoments if kind == "moments" else Release
    release = made(name=kind, contributions=contributions, noise_std=1e-3, uses=1)
    return release.discretized(SIZES[kind]) if exact else release


def held_by(arrays, devices, most=None):
    """Records on so many devices, or in memory; with ``most``, in other blocks than the library's."""
    valid = np.arange(len(jax.tree.leaves(arrays)[0])) % 11 > 0
    if devices is None:
        return Memory.stored(arrays, valid), jnp.asarray(valid)
    source, present = Shards.stored(arrays, valid, shards.checked_mesh(mesh_of(devices)))
    return Shards(source.memory, source.mesh, most or source.most), present


def total_of(release):
    """(records, key) -> the sum of a release, in int64 or in float64; with noise if there is a key."""

    def total(held, key):
        records = {"lower": held}
        if release.grid is not None:
            return release._exact_total(release.grid, records, POINT, False)
        summed = release._total(records, POINT, None, False)
        return summed if key is None else release._noised(summed, key)

    return jax.jit(total)


@isolated_jax_config()
def bits(kind, most=lambda devices: None):
    """A hash of the integers that are summed, for each number of devices."""
    total = total_of(release_of(kind, exact=True))
    sums = [np.asarray(total(held_by(arrays_of(kind), devices, most(devices)), None)) for devices in DEVICES]
    return [hashlib.sha256(one.tobytes()).hexdigest() for one in sums]


@isolated_jax_config()
def differences(kind, devices=DEVICES, key=None):
    """From records in memory, relative to the norm of the sum, or to its noise."""
    release = release_of(kind, exact=False)
    total = total_of(release)
    sums = [np.asarray(total(held_by(arrays_of(kind), number), key)) for number in (None, *devices)]
    scale = np.linalg.norm(sums[0]) if key is None else release.noise_std
    return [float(np.linalg.norm(one - sums[0]) / scale) for one in sums[1:]]


@isolated_jax_config()
def movement():
    """The largest change of a sum over its sensitivity: one record of 600 is replaced, first and last of each shard."""
    rows, targets = (array[:600].copy() for array in ROWS)
    release = release_of("products", exact=False, number=600)
    total, found = total_of(release), []
    for place in (1, 255, 256, 511, 512, 599):
        before, sums = (rows[place].copy(), targets[place]), []
        for sign in (-1, 1):
            rows[place], targets[place] = sign * 1e3, 1e3
            sums.append(np.asarray(total(held_by((rows, targets), 4), None)))
        rows[place], targets[place] = before
        found.append(np.linalg.norm(sums[0] - sums[1]) / release.sensitivity("lower"))
    return float(max(found))


# ---- compiled programs, and what devices hold


@isolated_jax_config()
def compiled(kind, number, exact=False, devices=4):
    """What a release on some devices sends, and whether it sums what it measures."""
    release = release_of(kind, exact, number)
    arrays = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((number, *leaf.shape[1:]), leaf.dtype), arrays_of(kind))
    held = Shards.shapes(arrays, shards.checked_mesh(mesh_of(devices)))
    keys = jax.ShapeDtypeStruct((release.grid.dimension if exact else 2, 2), jnp.uint32)

    def program(rows, present, keys):
        with jax.enable_x64(False):
            return Release.answer(release, {"lower": (rows, present)}, POINT, keys)

    with with_names():
        lowered = jax.jit(program).lower(*held, keys)
        text, module = lowered.compile().as_text(), optimised(lowered, records="rows")
    sent = [found[0] for line in text.splitlines() if (found := re.search(rf"\S+ (?:{'|'.join(COLLECTIVES)})\(", line))]
    limits = [OVERFLOW, release.grid.longest(1.0, number) ** 2] if exact else [OVERFLOW]
    return {"sent": sent, "measured": all(map(module.is_measured_once, limits))}


@isolated_jax_config()
def bytes_held(number):
    """By device, of rows with a target and their norms, with a mask."""
    arrays = jax.tree.map(lambda leaf: leaf[:number], ROWS)
    leaves = jax.tree.leaves(held_by(arrays, 4))
    return [sum(leaf.addressable_shards[device].data.nbytes for leaf in leaves) for device in range(4)]


# ---- whole runs


def loss(x, y, record):
    return 0.5 * (jnp.tanh(record[0] @ y) - record[1]) ** 2


BUDGET = dpb.Budget(1.0, 1e-5)
PROBLEM = dpb.BilevelProblem(upper_term=lambda x, y: 0.5 * (x + y @ y - 1) ** 2, lower_loss=loss)


def solved(devices, steps=6, **options):
    records = options.pop("records", None) or Records(lower=ROWS, mesh=mesh_of(devices))
    options = {"start": (0.0, np.zeros(COLUMNS)), "method": dpb.Refit(steps=steps), "progress": False} | options
    return dpb.solve(options.pop("problem", PROBLEM), records, options.pop("budget", BUDGET), **options)


def hashed(solution):
    return hashlib.sha256(np.asarray(solution.y).tobytes()).hexdigest()


def seeded_gaussian(scale, number):
    """In place of exact noise, which has no seed."""
    return np.rint(scale * np.random.default_rng(0).normal(size=number)).astype(np.int64)


class Interrupted(Exception):
    pass


def interrupted(true):
    """Records that are read three times."""
    left = iter(range(3))

    def execute(*arguments):
        if next(left, None) is None:
            raise Interrupted
        return true(*arguments)

    return execute


def resumed():
    """A run on 4 devices that is interrupted: resumed on 2, resumed on 4, and without an interruption."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint": Path(folder) / "run.checkpoint", "seed": 1}
        with broken(Records, "execute", interrupted), contextlib.suppress(Interrupted):
            solved(4, **options)
        try:
            refused = hashed(solved(2, **options))
        except dpb.CheckpointRefused as error:
            refused = str(error)
        return [refused, hashed(solved(4, **options)), hashed(solved(4, seed=1))]


# ---- mistakes


@contextlib.contextmanager
def broken(owner, name, mutant):
    """``mutant`` of the true attribute in its place."""
    true = getattr(owner, name)
    setattr(owner, name, mutant(true))
    try:
        yield
    finally:
        setattr(owner, name, true)


def noise_of_every_shard(true):
    def fold(*arguments):
        total, excess = true(*arguments)
        return total + NUMBER * 1e-3 * standard_normal(KEY, total.size), excess

    return fold


def padding_that_counts(true):
    def divided(array, length, mesh, storage):
        padding = np.ones((length * mesh.size - len(array), *array.shape[1:]), bool)
        return true(np.concatenate([array, padding]) if array.dtype == bool else array, length, mesh, storage)

    return divided


def merged(chosen):
    """The first shard is merged with ``chosen`` ones of the others."""

    def mutant(true):
        return lambda total, parts, whole: true(total, jnp.concatenate([parts[:1], chosen(parts[1:])]), whole)

    return broken(shards, "_merged", mutant)


KEY = KeySchedule(1).keys("noise", 0, 1)[0]


def main():
    warnings.simplefilter("ignore")
    found = {
        "bits": {kind: bits(kind) for kind in FUNCTIONS},
        "differences": differences("vectors")
        + [differences(kind, (4,))[0] for kind in ("products", "units", "moments")],
        "noise": differences("vectors", key=KEY),
        "movement": movement(),
        "compiled": [compiled(kind, 2000) for kind in ("vectors", "products", "moments")]
        + [compiled("products", 2000, exact=True)],
        "of more records": compiled("vectors", 50_000),
        "bytes": bytes_held(1500),
        "resumed": resumed(),
    }
    with broken(program_module, "discrete_gaussian", lambda true: seeded_gaussian):
        found["solutions"] = [hashed(solved(devices, noise="exact")) for devices in DEVICES]
    found["bits in other blocks"] = bits("vectors", lambda devices: 512 // devices)
    with broken(Memory, "fold", noise_of_every_shard):
        found["noise of every shard"] = differences("vectors", key=KEY)
    with broken(shards, "_divided", padding_that_counts):
        found["padding that counts"] = differences("vectors")
    with broken(memory, "computed_once", lambda true: direct):
        found["computed twice"] = compiled("moments", 2000)
    with merged(lambda others: others[:-1]):
        found["a shard left out"] = differences("vectors")
    with merged(lambda others: jnp.concatenate([others, others[:1]])):
        found["movement with a shard that counts twice"] = movement()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
