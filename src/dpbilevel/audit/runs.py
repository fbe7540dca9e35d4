"""Many runs of one plan in one compiled program, for audits.

Runs use `Release.answer` with keys of the same kind, as in `solve`, and include the final training if the plan has one.
There is no ledger and no charge: this is for synthetic data only.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.compilation import Compiled
from dpbilevel.foundation.precision import is_double, isolated_jax_config
from dpbilevel.planning import Plan
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.release import Release

Tree = Any
Arrays = Mapping[str, tuple[Tree, npt.NDArray[np.bool_]]]  # by role: records, and which of them are valid

_AT_ONCE = 2**22  # maximum number of array entries in memory, over all runs of a batch


def released_values(
    planned: Plan, data_sets: Sequence[Arrays], start: tuple[Tree, Tree], schedule: KeySchedule, trials: int
) -> list[tuple[Tree, Tree, Tree]]:
    """The released values of ``trials`` runs of a plan on each data set: x, y and history, with runs as leading axis.

    Run k on data set j uses the keys from index (j trials + k) uses on. No two runs share noise, and the first run
    equals that of `solve` with the same seed.
    """
    program, training, precise = planned.program, planned.training, is_double()
    parts = (program,) if training is None else (program, training)
    if not all(part.is_compiled for part in parts):
        raise InvalidArgument("method: calls a black box, which cannot be compiled; audit the black box separately")

    @jax.jit  # traced before it is mapped: otherwise JAX would retrace the float64 parts in the surrounding precision
    def one_run(arrays: Mapping[str, Any], keys: tuple[jax.Array, ...]) -> tuple[Tree, Tree, Tree]:
        def answer(release: Release, point: Tree, release_keys: jax.Array) -> Tree:
            return Release.answer(release, arrays, point, release_keys)

        with jax.enable_x64(precise):  # as `Records.execute` does: losses in the user's precision, noise in float64
            x, y = (jax.tree.map(jnp.asarray, tree) for tree in start)
            state, history = program.loop(answer, program.start(x, y), keys[0], program.rounds)
            values = program.finish(state)
            if training is not None:
                state, _ = training.loop(answer, training.start(values[0], y), keys[1], training.rounds)
                values = training.finish(state)
            return (*values, history)

    def all_runs(arrays: Mapping[str, Any], keys: tuple[jax.Array, ...]) -> Tree:
        size = sum(leaf.size for leaf in jax.tree.leaves(arrays))
        return jax.lax.map(lambda run_keys: one_run(arrays, run_keys), keys, batch_size=batch_size(size))

    compiled = Compiled(all_runs)  # not cached: an audit must not run a program compiled before a change of the code
    released = []
    uses = [part.rounds * part.keys_per_round for part in parts]
    for index, arrays in enumerate(data_sets):
        number = trials * sum(uses)
        pairs = [schedule.keys(purpose, index * number, number) for purpose in ("noise", "batch")]
        keys = np.stack(pairs, axis=1).reshape(trials, sum(uses), 2, 2)
        split = np.split(keys, np.cumsum(uses)[:-1], axis=1)
        shaped = tuple(
            mine.reshape(trials, part.rounds, part.keys_per_round, 2, 2)
            for mine, part in zip(split, parts, strict=True)
        )
        with isolated_jax_config():
            runs = compiled(arrays, shaped)
        released.append(jax.tree.map(np.asarray, runs))
    return released


def batch_size(size: int) -> int:
    """The number of runs that are vectorised together; a power of ten, so that round numbers leave no remainder."""
    return int(10 ** min(3, math.floor(math.log10(max(1, _AT_ONCE // size)))))
