"""Private records: an object that hides its arrays and only evaluates charged releases on them.

(A run with an infinite epsilon, which is not private, uses exact means instead.) The arrays are stored in a table of
this module, keyed by the object. `Records` cannot be passed to jit or grad, pickled or copied; its repr and
``vars(records)`` show no values. The public facts about records are `RecordShapes` (`privacy/record_shapes.py`).
"""

import contextlib
import functools
import hmac
import json
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh

from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.execution.means import mean_over_records
from dpbilevel.execution.parts import Observer, Opened, is_divided, run_in_memory, run_part
from dpbilevel.execution.program import Answer, Call, Means, Program, Randomness, Stage, State
from dpbilevel.execution.segments import run_on_disk
from dpbilevel.foundation.arguments import one_of
from dpbilevel.foundation.precision import in_user_precision, is_double
from dpbilevel.foundation.tracing import without_addresses
from dpbilevel.privacy.accounting import ROLES
from dpbilevel.privacy.arrays import check_leading_axis, drop_unusable, narrowed, usable_dtype
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.memory import Memory
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.parquet_records import read_parquet
from dpbilevel.privacy.record_shapes import RecordShapes
from dpbilevel.privacy.release import Release
from dpbilevel.privacy.roles import check_roles
from dpbilevel.privacy.shards import Shards, checked_mesh, gathered
from dpbilevel.privacy.storage import Storage
from dpbilevel.privacy.units import Selection, selections

Tree = Any

# The mask of records on disk is NumPy's array, as all of their arrays are.
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
        mesh: the devices that records are divided among, a `jax.sharding.Mesh` of equal devices of this process. Only
            clipped sums travel between them; sampling, black boxes and an infinite epsilon are refused. By default
            records are on JAX's first device.
        storage: a folder on a disk, for records that need not fit into memory: `np.load(..., mmap_mode="r")`, for
            example. They are copied to private files there, which have no name and end with the process.

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
        if mesh is not None and storage is not None:
            raise InvalidArgument("storage: must be left out with a mesh, whose devices hold the records")
        chosen, disk = selections(given, unit, rows_per_unit, mean_rows, unit_ids), Storage.of(storage)
        stored = {role: _prepared(role, tree, invalid, chosen.get(role), mesh, disk) for role, tree in given.items()}
        shapes = {role: source.records(number) for role, (source, _, number) in stored.items()}
        self._sizes = RecordShapes(**shapes, rows_per_unit=rows_per_unit, mean_rows=mean_rows, mesh=mesh)
        self._caveats, self._is_on_disk = _caveats(given), disk is not None
        _VAULT[self] = {role: (source, present) for role, (source, present, _) in stored.items()}

    @classmethod
    def from_parquet(
        cls, *, record: Any, columns: Any = None, storage: Any = ".", invalid: str = "refuse", **roles: Any
    ) -> "Records":
        """Records made of the rows of Parquet files, on disk; memory holds one batch of rows.

        Args:
            record: a function from a block of rows, a dictionary of NumPy columns, to a pytree of arrays with one line
                for each row. It must map every row by itself, which cannot be checked: results have a caveat. Its
                errors on private rows are withheld.
            columns: names of the columns to read; None for all.
            storage, invalid: as in `Records`. A missing cell is NaN in a floating-point column, and refused elsewhere.
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
        return cls(**read_parquet(roles, record, columns, Storage.of(storage)), storage=storage, invalid=invalid)

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
        if self._is_on_disk and program.has_stages_only:
            run = functools.partial(run_on_disk, program, precise, held)
        else:
            resident = jax.device_put(held, may_alias=True) if self._is_on_disk else held  # of exact means
            run = functools.partial(
                run_in_memory, program, precise, functools.partial(_execute, program, precise, resident)
            )
        history = []
        for begin in range(0, rounds, program.capacity):
            number = min(program.capacity, rounds - begin)
            randomness = program.randomness(schedule, first + begin * program.keys_per_round, number)
            with isolated_jax_config():
                state, rows = run(state, randomness, number, done, observer)
            history.append(rows)
        return state, jax.tree.map(lambda *parts: np.concatenate(parts), *history)

    def seal(self, key: bytes) -> bytes:
        """HMAC-SHA256 of all arrays, with which the holder of the key can check that records are the same.

        The key must be secret, because anyone who has it can test guesses of the records; a short key is refused.
        """
        if not isinstance(key, bytes) or len(key) < 32:
            raise InvalidArgument("key: must be at least 32 secret bytes; a seal that others can compute leaks records")
        mac = hmac.new(key, b"dpbilevel records", "sha256")
        for role, (source, present) in _VAULT[self].items():
            number = self._sizes.count(role)
            with isolated_jax_config():
                mask = present if self._is_on_disk else gathered(present)
                leaves, structure = jax.tree.flatten((source.as_numpy(number), mask[:number]))
                arrays = [np.ascontiguousarray(leaf) for leaf in leaves]
            shapes = [[array.dtype.str, list(array.shape)] for array in arrays]
            mac.update(json.dumps([role, without_addresses(str(structure)), shapes]).encode())
            for array in arrays:
                mac.update(array.reshape(-1).view(np.uint8).data)
        return mac.digest()

    def __repr__(self) -> str:
        return f"Records({self._sizes.counts()}{self._sizes.where()}; values hidden)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Records cannot be pickled or copied: private values would leave the accounting")


@functools.partial(jax.jit, static_argnames=("precise",))
def _execute(
    program: Program, precise: bool, arrays: Mapping[str, Any], state: State, randomness: Randomness, rounds: jax.Array
) -> tuple[State, Tree]:
    # Losses are traced in the user's precision, noise and sums in float64.
    with jax.enable_x64(precise):
        own = in_user_precision(program)
        if isinstance(state, Opened):
            return run_part(own, _answering(arrays), state, randomness, rounds)
        return own.loop(_answering(arrays), state, randomness, rounds, _means(arrays))


@functools.partial(jax.jit, static_argnames=("precise",))
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
    return {
        role: (Memory.shapes(getattr(sizes, role)), jax.ShapeDtypeStruct((sizes.count(role),), bool))
        for role in sizes.roles
    }


@contextlib.contextmanager
def isolated_jax_config() -> Iterator[None]:
    """The JAX settings under which programs run: float64 for noise and sums, and no debugging that inspects values.

    ``jax_debug_nans`` would turn a record's value into an exception, and ``jax_disable_jit`` would show values to the
    losses. Settings that could fail a run after its charge are off too: strict type promotion and transfer guards.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.enable_x64(True))
        stack.enter_context(jax.debug_nans(False))
        stack.enter_context(jax.debug_infs(False))
        stack.enter_context(jax.disable_jit(False))
        stack.enter_context(jax.numpy_dtype_promotion("standard"))
        stack.enter_context(jax.transfer_guard("allow"))
        yield


def _prepared(
    role: str, tree: Tree, invalid: str, selection: Selection | None, mesh: Mesh | None, storage: Storage | None
) -> tuple[Memory | Shards, Any, int]:
    """Arrays in the form that the compiled loop needs, a mask of valid records, and the number of records."""
    with np.errstate(over="ignore"):  # a float64 too large for float32 becomes infinite, hence invalid
        # In two steps, because NumPy's error quotes an integer that does not fit the requested dtype.
        arrays = jax.tree.map(lambda leaf: narrowed(leaf, usable_dtype(role, leaf), storage), tree)
    check_leading_axis(role, arrays)
    leaves = jax.tree.leaves(arrays)
    valid = np.ones(leaves[0].shape[0], dtype=bool)
    for leaf, given in zip(leaves, jax.tree.leaves(tree), strict=True):
        drop_unusable(valid, leaf, np.asarray(given))
    if invalid == "refuse" and not valid.all():
        raise InvalidRecords(
            f"{role}: must hold finite values that fit JAX's types (float32 and int32, unless jax_enable_x64 is on); "
            'clean them, or pass invalid="zero" to let such records contribute nothing'
        )
    if selection is not None:
        arrays, valid = selection.bundled(arrays, storage), selection.usable(valid)
    # Copies, because the caller could change an array during a run. Under isolated settings, because with
    # jax_debug_nans even a copy to the device raises on a record's value.
    with isolated_jax_config():
        if mesh is not None:
            return *Shards.stored(arrays, valid, mesh), len(valid)
        if storage is not None:
            return Memory.filled(arrays, valid, storage), valid, len(valid)
        return Memory.stored(arrays, valid), jnp.array(valid), len(valid)


def _caveats(tree: Tree) -> tuple[str, ...]:
    """The caveats of all encoded rows in a tree, each once."""
    arrays = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, np.ndarray))
    return tuple(dict.fromkeys(caveat for array in arrays for caveat in getattr(array, "caveats", ())))
