"""Private records: an object that hides its arrays and only evaluates charged releases on them.

(A run with an infinite epsilon, which is not private, uses exact means instead.) The arrays are stored in a table of
this module, keyed by the object. `Records` cannot be passed to jit or grad, pickled or copied; its repr and
``vars(records)`` show no values. The public facts about records are `RecordShapes`: the number of records in each role,
and the shape and dtype of one record.
"""

import contextlib
import functools
import hmac
import json
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.extend.core import ClosedJaxpr

from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.execution.means import mean_over_records
from dpbilevel.execution.program import Answer, Call, Means, Program, Randomness, Stage, State
from dpbilevel.foundation.arguments import one_of
from dpbilevel.foundation.precision import is_double, user_float
from dpbilevel.foundation.tracing import without_addresses
from dpbilevel.privacy.clipping import Memory
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.release import Release

Tree = Any

_VAULT: "weakref.WeakKeyDictionary[Records, dict[str, tuple[Tree, jax.Array]]]" = weakref.WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class RecordShapes:
    """The public facts about records: shapes and dtypes, with the number of records as leading axis.

    To plan without data, pass pytrees of ``jax.ShapeDtypeStruct``, or of arrays, of which only the shapes are kept.

    >>> import jax
    >>> f32 = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")
    >>> RecordShapes(upper=(f32(500, 8), f32(500)), lower=(f32(4000, 8), f32(4000)))
    RecordShapes(upper=500 records, lower=4000 records)
    """

    upper: Tree = None
    lower: Tree = None
    both: Tree = None

    def __post_init__(self) -> None:
        _check_roles(self.upper, self.lower, self.both)
        for role in ("upper", "lower", "both"):
            shapes = jax.tree.map(lambda leaf: _shape(role, leaf), getattr(self, role))  # noqa: B023
            _check_leading_axis(role, shapes)
            object.__setattr__(self, role, shapes)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that have records."""
        return tuple(role for role in ("upper", "lower", "both") if getattr(self, role) is not None)

    def count(self, role: str) -> int:
        """The number of records of a role ("upper", "lower" or "both")."""
        return int(jax.tree.leaves(getattr(self, role))[0].shape[0])

    def role_of(self, level: str) -> str | None:
        """The role whose records a level ("upper" or "lower") reads; None if it reads none."""
        if self.both is not None:
            return "both"
        return level if getattr(self, level) is not None else None

    def record(self, level: str) -> Tree:
        """The shape and dtype of one record of a level."""
        role = self.role_of(level)
        stacked = None if role is None else getattr(self, role)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), stacked)

    def _key(self) -> tuple[Any, ...]:
        leaves, structure = jax.tree.flatten((self.upper, self.lower, self.both))
        return (structure, *((leaf.shape, leaf.dtype) for leaf in leaves))

    def __hash__(self) -> int:
        return hash(self._key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordShapes) and self._key() == other._key()

    def __repr__(self) -> str:
        return f"RecordShapes({self.counts()})"

    def counts(self) -> str:
        """The number of records in each role, as text."""
        return ", ".join(f"{role}={self.count(role)} records" for role in self.roles)


class Records:
    """Private records by role: ``Records(upper=..., lower=...)`` for disjoint roles, or ``Records(both=...)``.

    Args:
        upper: validation records, a pytree of arrays with one leading axis.
        lower: training records, likewise.
        both: records that feed both levels.
        invalid: "refuse" (default) raises for non-finite values, before anything is charged; whether it raises is not
            covered by (epsilon, delta). With "zero", the run never raises, and such records contribute zero.

    The role of each record is public. It must depend on the index of the record, never on its content: not on a
    stratified split, and not on sorted data. Caveats of `EncodedRows` become caveats of every result.

    >>> import numpy as np
    >>> Records(lower=(np.zeros((100, 3)), np.zeros(100)))
    Records(lower=100 records; values hidden)
    """

    __slots__ = ("__weakref__", "_caveats", "_sizes")

    def __init__(self, *, upper: Tree = None, lower: Tree = None, both: Tree = None, invalid: str = "refuse") -> None:
        one_of("invalid", invalid, ("refuse", "zero"), "it selects the treatment of records with non-finite values")
        _check_roles(upper, lower, both)
        arrays = {}
        for role, tree in (("upper", upper), ("lower", lower), ("both", both)):
            if tree is not None:
                arrays[role] = _prepared(role, tree, invalid)
        self._sizes = RecordShapes(**{role: tree for role, (tree, _) in arrays.items()})
        self._caveats = _caveats((upper, lower, both))
        _VAULT[self] = arrays

    @property
    def sizes(self) -> RecordShapes:
        """The public facts: the number of records in each role, and the shape and dtype of one record."""
        return self._sizes

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a guarantee about these records does not cover, inherited from encoded rows; public sentences."""
        return self._caveats

    def execute(
        self, program: Program, receipt: Receipt, schedule: KeySchedule, state: State, rounds: int
    ) -> tuple[State, Tree]:
        """Run the next rounds of a program whose releases a ledger has charged; the only access to the arrays."""
        keys = program.randomness(schedule, program.take(receipt, schedule, rounds), rounds)
        precise = is_double()
        if not program.is_compiled:
            return _execute_with_calls(program, precise, _VAULT[self], state, keys)
        with isolated_jax_config():
            return _execute(program, precise, _VAULT[self], state, keys)

    def seal(self, key: bytes) -> bytes:
        """HMAC-SHA256 of all arrays, with which the holder of the key can check that records are the same.

        The key must be secret, because anyone who has it can test guesses of the records; a short key is refused.
        """
        if not isinstance(key, bytes) or len(key) < 32:
            raise InvalidArgument("key: must be at least 32 secret bytes; a seal that others can compute leaks records")
        mac = hmac.new(key, b"dpbilevel records", "sha256")
        for role, stored in _VAULT[self].items():
            leaves, structure = jax.tree.flatten(stored)
            with isolated_jax_config():
                arrays = [np.ascontiguousarray(leaf) for leaf in leaves]
            shapes = [[array.dtype.str, list(array.shape)] for array in arrays]
            mac.update(json.dumps([role, without_addresses(str(structure)), shapes]).encode())
            for array in arrays:
                mac.update(array.reshape(-1).view(np.uint8).data)
        return mac.digest()

    def __repr__(self) -> str:
        return f"Records({self._sizes.counts()}; values hidden)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Records cannot be pickled or copied: private values would leave the accounting")


@functools.partial(jax.jit, static_argnames=("program", "precise"))
def _execute(
    program: Program, precise: bool, arrays: Mapping[str, Any], state: State, keys: Randomness
) -> tuple[State, Tree]:
    # Losses are traced in the user's precision, noise and sums in float64.
    with jax.enable_x64(precise):
        return program.loop(_answering(arrays), state, keys, _means(arrays))


@functools.partial(jax.jit, static_argnames=("stage", "precise"))
def _execute_stage(stage: Stage, precise: bool, arrays: Mapping[str, Any], state: State, keys: jax.Array) -> State:
    with jax.enable_x64(precise):
        return stage.run(_answering(arrays), state, keys)


def _answering(arrays: Mapping[str, Any]) -> Answer:
    # Norms of rows are measured here, once for all rounds of a loop.
    sources = {role: (Memory(tree).measured(), present) for role, (tree, present) in arrays.items()}
    return lambda release, point, keys: Release.answer(release, sources, point, keys)


def _means(arrays: Mapping[str, Any]) -> Means:
    """Differentiable exact means over the records of a level, only for programs without noise."""

    def means(level: str, function: Callable[..., Any]) -> Callable[..., Any]:
        tree, present = arrays["both" if "both" in arrays else level]
        return mean_over_records(function, tree, present)

    return means


def _execute_with_calls(
    program: Program, precise: bool, arrays: Mapping[str, Any], state: State, keys: npt.NDArray[np.uint32]
) -> tuple[State, Tree]:
    """Run round by round, because a black box runs outside compiled code. It receives invalid records as zeros."""
    readable = {
        role: jax.tree.map(functools.partial(_zero_invalid, valid), tree) for role, (tree, valid) in arrays.items()
    }
    history = []
    for round_keys in keys:
        first = 0
        for stage in program.stages:
            if isinstance(stage, Call):
                copies = {role: jax.tree.map(np.copy, readable[role]) for role in stage.release.roles}
                state = stage.run(state, copies)
                continue
            with isolated_jax_config():
                state = _execute_stage(stage, precise, arrays, state, round_keys[first : first + stage.keys_per_round])
            first += stage.keys_per_round
        history.append(jax.tree.map(np.asarray, program.observe(state)))
    return state, jax.tree.map(lambda *rounds: np.stack(rounds), *history)


def _zero_invalid(valid: jax.Array, leaf: jax.Array) -> npt.NDArray[Any]:
    array = np.array(leaf)
    array[~np.asarray(valid)] = 0
    return array


def check_traceable(program: Program, sizes: RecordShapes, state: State) -> None:
    """Trace a program on shapes, so that its errors are raised before anything is charged."""
    arrays, precise = _shapes(sizes), is_double()
    keys = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.uint32)
    with isolated_jax_config():
        if program.is_compiled:
            looped = _randomness_shapes(program)
            jax.eval_shape(functools.partial(_execute, program, precise), arrays, state, looped)
            return
        for stage in program.stages:
            if isinstance(stage, Stage):
                staged = functools.partial(_execute_stage, stage, precise)
                jax.eval_shape(staged, arrays, state, keys((stage.keys_per_round, 2, 2)))


def traced(program: Program, sizes: RecordShapes, state: State, rounds: int) -> ClosedJaxpr:
    """The jaxpr of a program that runs ``rounds`` rounds at a time, traced on shapes."""
    keys = jax.ShapeDtypeStruct((rounds, program.keys_per_round, 2, 2), jnp.uint32)
    precise = is_double()
    with isolated_jax_config():
        return _execute.trace(program, precise, _shapes(sizes), state, keys).jaxpr


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
            return program.loop(answer, state, keys, _means(arrays))

    with isolated_jax_config():
        jax.eval_shape(traced, arrays, state, _randomness_shapes(program))
    return dimensions


def _shapes(sizes: RecordShapes) -> dict[str, tuple[Tree, Any]]:
    return {role: (getattr(sizes, role), jax.ShapeDtypeStruct((sizes.count(role),), bool)) for role in sizes.roles}


def _randomness_shapes(program: Program) -> Any:
    """Shapes of the randomness of one round."""
    keys = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.uint32)
    return tuple(map(keys, program.draw_shapes(1))) if program.is_exact else keys((1, program.keys_per_round, 2, 2))


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


def _check_roles(upper: Tree, lower: Tree, both: Tree) -> None:
    if (both is None) == (lower is None):
        raise InvalidRecords("roles: give lower=... (with upper=... if the upper level has records), or only both=...")
    if both is not None and upper is not None:
        raise InvalidRecords(
            "roles: both=... cannot be combined with upper=...; records of upper=... and lower=... are disjoint"
        )
    for role, tree in (("upper", upper), ("lower", lower), ("both", both)):
        try:
            jax.tree.leaves(tree)
        except ValueError:
            raise InvalidRecords(f"{role}: has a dictionary whose keys cannot be sorted; use strings as keys") from None


def _prepared(role: str, tree: Tree, invalid: str) -> tuple[Tree, jax.Array]:
    """Arrays in the form that the compiled loop needs, and a mask of valid records."""
    with np.errstate(over="ignore"):  # a float64 too large for float32 becomes infinite, hence invalid
        # In two steps, because NumPy's error quotes an integer that does not fit the requested dtype.
        arrays = jax.tree.map(lambda leaf: _narrowed(leaf, _usable_dtype(role, leaf)), tree)
    _check_leading_axis(role, arrays)
    leaves = jax.tree.leaves(arrays)
    valid = np.ones(leaves[0].shape[0], dtype=bool)
    for leaf, given in zip(leaves, jax.tree.leaves(tree), strict=True):
        # An integer that wraps around when it is narrowed is invalid, like an infinity.
        usable = np.isfinite(leaf) if np.issubdtype(leaf.dtype, np.floating) else leaf == np.asarray(given)
        valid &= usable.reshape(leaf.shape[0], -1).all(axis=1)
    if invalid == "refuse" and not valid.all():
        raise InvalidRecords(
            f"{role}: must hold finite values that fit JAX's types (float32 and int32, unless jax_enable_x64 is on); "
            'clean them, or pass invalid="zero" to let such records contribute nothing'
        )
    # Copies, because the caller could change an array during a run. Under isolated settings, because with
    # jax_debug_nans even a copy to the device raises on a record's value.
    with isolated_jax_config():
        return jax.tree.map(jnp.array, arrays), jnp.array(valid)


def _caveats(tree: Tree) -> tuple[str, ...]:
    """The caveats of all encoded rows in a tree, each once."""
    arrays = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, np.ndarray))
    return tuple(dict.fromkeys(caveat for array in arrays for caveat in getattr(array, "caveats", ())))


def _narrowed(leaf: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.asarray(leaf).astype(dtype, copy=False)


def _shape(role: str, leaf: Any) -> jax.ShapeDtypeStruct:
    dtype = _usable_dtype(role, leaf)  # first, because it refuses values without a shape
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype)


def _usable_dtype(role: str, leaf: Any) -> np.dtype[Any]:
    """The dtype in which a leaf is stored: JAX's float, or JAX's form of the leaf's integer or boolean dtype."""
    if isinstance(leaf, np.ma.MaskedArray):
        raise InvalidRecords(f"{role}: has a masked array; fill masked values, or drop their rows")
    dtype = leaf.dtype if isinstance(leaf, np.ndarray | jax.Array | jax.ShapeDtypeStruct) else _dtype(leaf)
    if jnp.issubdtype(dtype, jnp.floating):
        return user_float()
    if getattr(dtype, "kind", None) in ("i", "u", "b"):
        return np.dtype(jax.dtypes.canonicalize_dtype(dtype))
    # Only the kind is named: the length of a string dtype, for example, depends on the values.
    kind = {"U": "strings", "S": "bytes", "O": "objects", "M": "dates", "m": "time differences", "c": "complex numbers"}
    raise InvalidRecords(
        f"{role}: has a leaf of {kind.get(getattr(dtype, 'kind', ''), 'a type that JAX does not support')}; must be "
        "real numbers, integers or booleans (encode categories and labels as integers, dates as numbers)"
    )


def _dtype(leaf: Any) -> np.dtype[Any]:
    """The dtype that NumPy gives a leaf, or object if NumPy raises: its message may quote a value."""
    try:
        return np.asarray(leaf).dtype
    except Exception:
        return np.dtype(object)


def _check_leading_axis(role: str, tree: Tree) -> None:
    leaves = jax.tree.leaves(tree)
    if tree is None:
        return
    if not leaves or any(len(leaf.shape) == 0 for leaf in leaves):
        raise InvalidRecords(
            f"{role}: must be arrays whose first axis is over records; a leaf has no axis (or there is no leaf)"
        )
    if len({leaf.shape[0] for leaf in leaves}) > 1:
        raise InvalidRecords(f"{role}: leaves disagree on the number of records; every array needs the same first axis")
    if leaves[0].shape[0] == 0:
        raise InvalidRecords(f"{role}: is empty; every role needs at least one record")
