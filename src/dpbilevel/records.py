"""Private records: an object that hides its arrays and only evaluates charged releases on them.

(A run with an infinite epsilon, which is not private, uses exact means instead.) The arrays are stored in a table of
this module, keyed by the object. `Records` cannot be passed to jit or grad, pickled or copied; its repr and
``vars(records)`` show no values. The public facts about records are `RecordShapes` (`privacy/record_shapes.py`).
"""

import functools
import hmac
import json
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh

from dpbilevel.errors import InvalidArgument
from dpbilevel.execution.means import mean_over_records
from dpbilevel.execution.parts import Observer, Opened, is_divided, run_in_memory, run_part
from dpbilevel.execution.program import Answer, Call, Means, Program, Randomness, Stage, State
from dpbilevel.execution.segments import run_on_disk
from dpbilevel.foundation.arguments import one_of
from dpbilevel.foundation.compilation import Compiled
from dpbilevel.foundation.precision import in_user_precision, is_double, isolated_jax_config
from dpbilevel.foundation.processes import reached
from dpbilevel.foundation.tracing import without_addresses
from dpbilevel.privacy.accounting import ROLES
from dpbilevel.privacy.bundles import is_packed, packed_shapes
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.memory import Memory
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.parquet_records import read_parquet
from dpbilevel.privacy.parts import Part, job_of, own_range
from dpbilevel.privacy.preparing import can_be_on_disk, prepared
from dpbilevel.privacy.record_shapes import RecordShapes
from dpbilevel.privacy.release import Release
from dpbilevel.privacy.roles import check_roles
from dpbilevel.privacy.shards import Shards, checked_mesh, gathered
from dpbilevel.privacy.storage import Storage
from dpbilevel.privacy.units import selections

Tree = Any

# The mask of records on disk is NumPy's array, as all of their arrays are; with a mesh they are arrays of its devices.
_VAULT: "weakref.WeakKeyDictionary[Records, dict[str, tuple[Any, Any]]]" = weakref.WeakKeyDictionary()


class Records:
    """Private records by role: ``Records(upper=..., lower=...)`` for disjoint roles, or ``Records(both=...)``.

    Args:
        upper: validation records, a pytree of arrays with one leading axis.
        lower: training records, likewise.
        both: records that feed both levels.
        heldout: records that neither level reads, for scores alone; without any other role. They are disjoint from the
            records of a run that is charged together with their scores.
        invalid: "refuse" (default) raises for non-finite values, before anything is charged; whether it raises is not
            covered by (epsilon, delta). With "zero", the run never raises, and such records contribute zero.
        unit: the id of the unit of each row: integers or strings, one for each row; a mapping from roles to ids if
            there are two roles. The unit of privacy is then all rows of one id, and everything counts units. Ids are
            private.
        rows_per_unit: k, public: how many rows of a unit are used. Of a unit with more, k are kept.
        mean_rows: public, k by default: a guess of the mean number of rows of a unit, by which losses are divided. The
            closer it is, the closer the mean over units is to a mean over rows.
        unit_ids: a public list of all ids that may be in the data (by role if there are two), not read off the rows.
            With it, an id without rows is a unit that contributes zero, and the guarantee also hides whether a unit has
            rows at all. Without it, each unit has at least one row.
        mesh: the devices that records are divided among, a `jax.sharding.Mesh` of equal devices of this process, or of
            all processes of a job. Only clipped sums travel between them; sampling, black boxes and an infinite epsilon
            are refused. By default records are on JAX's first device. Each process is given the same arrays, on a disk
            for example, and copies its own part of them.
        storage: a folder on a disk, for records that need not fit into memory: `np.load(..., mmap_mode="r")`, for
            example. They are copied to private files there, which have no name and end with the process. With a mesh
            each process must have one device, a processor, and the system reads their pages.

    The role of each record is public. It must depend on the index of the record (of a unit: on its id), never on its
    content: not on a stratified split, and not on sorted data. Caveats of `EncodedRows` become caveats of every result.

    >>> import numpy as np
    >>> Records(lower=(np.zeros((100, 3)), np.zeros(100)))
    Records(lower=100 records; values hidden)
    >>> Records(lower=(np.zeros((100, 3)), np.zeros(100)), unit=np.arange(100) // 4, rows_per_unit=3)
    Records(lower=25 units of at most 3 rows; values hidden)
    >>> Records(lower=np.zeros(100), unit=np.arange(100) // 4, rows_per_unit=3, unit_ids=range(40))
    Records(lower=40 units of at most 3 rows; values hidden)
    """

    __slots__ = ("__weakref__", "_caveats", "_is_on_disk", "_sizes")

    def __init__(
        self,
        *,
        upper: Tree = None,
        lower: Tree = None,
        both: Tree = None,
        heldout: Tree = None,
        invalid: str = "refuse",
        unit: Any = None,
        rows_per_unit: int | None = None,
        mean_rows: float | None = None,
        unit_ids: Any = None,
        mesh: Mesh | None = None,
        storage: Any = None,
    ) -> None:
        one_of("invalid", invalid, ("refuse", "zero"), "it selects the treatment of records with non-finite values")
        check_roles(upper, lower, both, heldout)
        roles = {"upper": upper, "lower": lower, "both": both, "heldout": heldout}
        given = {role: tree for role, tree in roles.items() if tree is not None}
        mesh = None if mesh is None else checked_mesh(mesh)
        job = job_of(mesh)
        if mesh is not None and storage is not None and not can_be_on_disk(mesh):
            raise InvalidArgument(
                "storage: must be left out with several devices of a process, or with accelerators, which hold the "
                "records"
            )
        if job.is_several and unit is not None:
            raise InvalidArgument("unit: is not supported with devices of several processes yet; use those of one")
        with job.barrier("records"):
            chosen, disk = selections(given, unit, rows_per_unit, mean_rows, unit_ids), Storage.of(storage)
            where = mesh, disk
            stored = {role: prepared(role, tree, invalid, chosen.get(role), *where) for role, tree in given.items()}
        shapes = {role: source.records(number) for role, (source, _, number) in stored.items()}
        described = jax.tree.map(lambda leaf: f"{leaf.shape} {leaf.dtype}", shapes)
        job.agree({"numbers, shapes or types of records": without_addresses(str(described))})
        self._sizes = RecordShapes(**shapes, rows_per_unit=rows_per_unit, mean_rows=mean_rows, mesh=mesh)
        self._caveats, self._is_on_disk = _caveats(given), disk is not None
        _VAULT[self] = {role: (source, present) for role, (source, present, _) in stored.items()}

    @classmethod
    def from_parquet(
        cls,
        *,
        record: Any,
        columns: Any = None,
        storage: Any = ".",
        invalid: str = "refuse",
        mesh: Mesh | None = None,
        **roles: Any,
    ) -> "Records":
        """Records made of the rows of Parquet files, on disk; memory holds one batch of rows.

        Args:
            record: a function from a block of rows, a dictionary of NumPy columns, to a pytree of arrays with one line
                for each row. It must map every row by itself, which cannot be checked: results have a caveat. Its
                errors on private rows are withheld.
            columns: names of the columns to read; None for all.
            storage, invalid: as in `Records`. A missing cell is NaN in a floating-point column, and refused elsewhere.
            mesh: as in `Records`. Each process of a job reads its own rows.
            roles: a Parquet file, or a folder of them, for each role: ``upper=``, ``lower=``, ``both=``, ``heldout=``.

        >>> import os, tempfile, pyarrow, numpy as np
        >>> from pyarrow import parquet
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = pyarrow.table({"age": np.arange(9.0), "ill": np.arange(9) % 2})
        ...     parquet.write_table(table, os.path.join(folder, "people.parquet"))
        ...     record = lambda block: (block["age"] / 120, block["ill"])
        ...     Records.from_parquet(lower=os.path.join(folder, "people.parquet"), record=record, storage=folder)
        Records(lower=9 records; values hidden)
        """
        check_roles(*(roles.get(role) for role in ROLES))
        if not set(roles) <= set(ROLES):
            raise InvalidArgument(f"roles: must be paths of Parquet files for some of {', '.join(ROLES)}")
        mesh = None if mesh is None else checked_mesh(mesh)
        with job_of(mesh).telling():
            read = read_parquet(roles, record, columns, Storage.of(storage), mesh)
            return cls(**read, storage=storage, invalid=invalid, mesh=mesh)

    @property
    def sizes(self) -> RecordShapes:
        """The public facts: the number of records in each role, and the shape and dtype of one record."""
        return self._sizes

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a guarantee about these records does not cover, inherited from encoded rows; public sentences."""
        return self._caveats

    @property
    def is_on_disk(self) -> bool:
        """Whether the arrays are on disk (``storage``)."""
        return self._is_on_disk

    def execute(
        self,
        program: Program,
        receipt: Receipt,
        schedule: KeySchedule,
        state: State,
        rounds: int,
        done: int = 0,
        observer: Observer = Observer(),
    ) -> tuple[State, Tree]:
        """Run the next rounds of a program whose releases a ledger has charged; the only access to the arrays.

        Compiled code gets noise and clips from the very releases that are redeemed on the receipt. If ``done`` steps of
        the only round are done already, ``state`` is what they have left. The observer is told public numbers, and
        what was computed of answers.
        """
        first, precise, held = program.take(receipt, schedule, rounds), is_double(), _VAULT[self]
        if not program.is_compiled:
            keys = program.keys(schedule, first, rounds)
            return _execute_with_calls(program, precise, held, state, keys, observer)
        job, on_disk = job_of(self._sizes.mesh), self._is_on_disk and self._sizes.mesh is None
        if on_disk and program.has_stages_only:
            run = functools.partial(run_on_disk, program, precise, held)
        else:
            resident = jax.device_put(held, may_alias=True) if on_disk else held  # of exact means
            call = functools.partial(_execute, program, precise, resident)
            run = functools.partial(run_in_memory, program, precise, _together(call) if job.is_several else call)
        history = []
        for begin in range(0, rounds, program.capacity):
            number = min(program.capacity, rounds - begin)
            randomness = program.randomness(schedule, first + begin * program.keys_per_round, number, job)
            with isolated_jax_config():
                state, rows = run(state, randomness, number, done, observer)
            history.append(rows)
        return state, jax.tree.map(lambda *parts: np.concatenate(parts), *history)

    def seal(self, key: bytes) -> bytes:
        """HMAC-SHA256 of all arrays, with which the holder of the key can check that records are the same.

        The key must be secret, because anyone who has it can test guesses of the records; a short key is refused. All
        processes of a job call this: each seals its own records, and the seal is that of their seals, in order.
        """
        if not isinstance(key, bytes) or len(key) < 32:
            raise InvalidArgument("key: must be at least 32 secret bytes; a seal that others can compute leaks records")
        mac, job = hmac.new(key, b"dpbilevel records", "sha256"), job_of(self._sizes.mesh)
        for role, (source, present) in _VAULT[self].items():
            own = own_range(self._sizes.count(role), self._sizes.mesh)
            number = own.stop - own.start
            with isolated_jax_config():
                valid = (present if isinstance(present, np.ndarray) else gathered(present))[:number]
                leaves, structure = jax.tree.flatten((source.records(number), valid))
                shapes = [[np.dtype(leaf.dtype).str, list(leaf.shape)] for leaf in leaves]
                mac.update(json.dumps([role, without_addresses(str(structure)), shapes]).encode())
                for array in (*source.contents(number), valid):
                    mac.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        if not job.is_several:
            return mac.digest()
        seals = job.exchange("seal of records", mac.hexdigest())
        return hmac.new(key, f"dpbilevel records of processes {' '.join(seals)}".encode(), "sha256").digest()

    def __repr__(self) -> str:
        return f"Records({self._sizes.counts()}{self._sizes.where()}; values hidden)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Records cannot be pickled or copied: private values would leave the accounting")


def _together(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call that needs the other processes; what it returns is complete."""
    return lambda *arguments: reached(lambda: jax.block_until_ready(call(*arguments)))


@functools.partial(Compiled, static_argnames=("precise",))
def _execute(
    program: Program, precise: bool, arrays: Mapping[str, Any], state: State, randomness: Randomness, rounds: jax.Array
) -> tuple[State, Tree]:
    # Losses are traced in the user's precision, noise and sums in float64.
    with jax.enable_x64(precise):
        own = in_user_precision(program)
        if isinstance(state, Opened):
            return run_part(own, _answering(arrays), state, randomness, rounds)
        return own.loop(_answering(arrays), state, randomness, rounds, _means(arrays))


@functools.partial(Compiled, static_argnames=("precise",))
def _execute_stage(stage: Stage, precise: bool, arrays: Mapping[str, Any], state: State, keys: jax.Array) -> State:
    with jax.enable_x64(precise):
        return in_user_precision(stage).run(_answering(arrays), state, keys)


def _answering(arrays: Mapping[str, Any]) -> Answer:
    return lambda release, point, keys: Release.answer(release, arrays, point, keys)


def _means(arrays: Mapping[str, Any]) -> Means:
    """Differentiable exact means over the records of a level, only for programs without noise."""

    def means(level: str, function: Callable[..., Any]) -> Callable[..., Any]:
        memory, present = arrays["both" if "both" in arrays else level]
        if isinstance(memory, Shards):
            raise InvalidArgument(
                "mesh: is not supported with an infinite epsilon, whose methods read exact means (leave mesh, or "
                "devices, out, or take a finite epsilon)"
            )
        return mean_over_records(function, memory.arrays, present, stored=memory.norms is not None)

    return means


def _execute_with_calls(
    program: Program,
    precise: bool,
    arrays: Mapping[str, Any],
    state: State,
    keys: npt.NDArray[np.uint32],
    observer: Observer,
) -> tuple[State, Tree]:
    """Run round by round, because a black box runs outside compiled code. It receives invalid records as zeros."""
    readable = {role: memory.as_numpy(len(valid)) for role, (memory, valid) in arrays.items()}
    history = []
    for round_keys in keys:
        left = round_keys
        for stage in program.stages:
            own, left = left[: stage.keys_per_round], left[stage.keys_per_round :]
            if isinstance(stage, Call):
                copies = {role: jax.tree.map(np.copy, readable[role]) for role in stage.release.roles}
                state = stage.run(state, copies, own)
            else:
                with isolated_jax_config():
                    state = _execute_stage(stage, precise, arrays, state, own)
        history.append(jax.tree.map(np.asarray, program.observe(state)))
        observer.advance(program.uses_per_round)
    return state, jax.tree.map(lambda *rows: np.stack(rows), *history)


def check_traceable(program: Program, sizes: RecordShapes, state: State) -> None:
    """Trace a program on shapes, so that its errors are raised before anything is charged. JAX keeps the trace."""
    if program.is_compiled:
        traced(program, sizes, state)
        return
    if sizes.mesh is not None:
        raise InvalidArgument(
            "mesh: is not supported with a black box, which reads all records at once (leave mesh, or devices, out, or "
            "take an inner solver of the library)"
        )
    arrays, precise = _shapes(sizes), is_double()
    with isolated_jax_config():
        for stage in (stage for stage in program.stages if isinstance(stage, Stage)):
            keys = jax.ShapeDtypeStruct((stage.keys_per_round, 2, 2), jnp.uint32)
            _execute_stage.trace(stage, precise, arrays, _strong(state), keys)


def traced(program: Program, sizes: RecordShapes, state: State) -> ClosedJaxpr:
    """The jaxpr of the compiled loop of a program, traced on shapes. Numbers are its inputs, not part of it."""
    arrays, precise, rounds = _shapes(sizes), is_double(), jax.ShapeDtypeStruct((), jnp.int32)
    state = _strong(state)
    if is_divided(program):
        state, rounds = _strong(Opened.of(program, state, precise)), jax.ShapeDtypeStruct((2,), jnp.int32)
    with isolated_jax_config():
        return _execute.trace(program, precise, arrays, state, program.randomness_shapes(), rounds).jaxpr


def _strong(state: State) -> State:
    """Shapes without JAX's weak types, which the arrays of a run do not have."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)


def answer_dimensions(program: Program, sizes: RecordShapes, state: State) -> dict[Release, int]:
    """The dimension of each release's answer, by tracing a compiled program on shapes."""
    arrays, precise = _shapes(sizes), is_double()
    dimensions: dict[Release, int] = {}

    def traced(arrays: Mapping[str, Any], state: State, keys: Randomness) -> tuple[State, Tree]:
        def answer(release: Release, point: Tree, keys: jax.Array) -> Tree:
            noisy = Release.answer(release, arrays, point, keys)
            dimensions[release] = sum(leaf.size for leaf in jax.tree.leaves(noisy))
            return noisy

        with jax.enable_x64(precise):
            return program.loop(answer, state, keys, 1, _means(arrays))

    with isolated_jax_config():
        jax.eval_shape(traced, arrays, state, program.randomness_shapes())
    return dimensions


def _shapes(sizes: RecordShapes) -> dict[str, tuple[Memory | Shards, Any]]:
    if sizes.mesh is not None:
        return {role: Shards.shapes(getattr(sizes, role), sizes.mesh) for role in sizes.roles}
    held = {role: getattr(sizes, role) for role in sizes.roles}
    if is_packed(sizes.rows_per_unit, sizes.mesh):
        held = {role: packed_shapes(bundles) for role, bundles in held.items()}
    return {
        role: (Memory.shapes(shapes), jax.ShapeDtypeStruct((sizes.count(role),), bool)) for role, shapes in held.items()
    }


def _caveats(tree: Tree) -> tuple[str, ...]:
    """The caveats of all encoded rows in a tree, each once."""
    leaves = (leaf.own if isinstance(leaf, Part) else leaf for leaf in jax.tree.leaves(tree))
    arrays = (leaf for leaf in leaves if isinstance(leaf, np.ndarray))
    return tuple(dict.fromkeys(caveat for array in arrays for caveat in getattr(array, "caveats", ())))
