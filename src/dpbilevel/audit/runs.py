"""Many runs of one plan in one compiled program: what an audit looks at.

Runs go through `Release.answer`, as those of `solve` do, with keys of the same kind, and end with the final training
where the plan has one. Nothing is charged and no ledger is asked, so that this is for synthetic data alone.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.precision import is_double
from dpbilevel.planning import Plan
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.release import Release
from dpbilevel.records import isolated_jax_config

Tree = Any
Arrays = Mapping[str, tuple[Tree, npt.NDArray[np.bool_]]]  # by role: records, and which of them are valid

_AT_ONCE = 2**22  # numbers of records side by side in memory, at most, over all runs that go together


def released_values(
    planned: Plan, data_sets: Sequence[Arrays], start: tuple[Tree, Tree], schedule: KeySchedule, trials: int
) -> list[tuple[Tree, Tree, Tree]]:
    """All that ``trials`` runs of a plan on each data set release: x, y and history, with the runs as leading axis.

    Run k of data set j has the keys of uses (j trials + k) uses and on, so that no two runs share noise and the first
    is the one that `solve` makes with the same seed.
    """
    program, training, precise = planned.program, planned.training, is_double()
    parts = (program,) if training is None else (program, training)
    if not all(part.is_compiled for part in parts):
        raise InvalidArgument("method: calls a black box, which cannot be compiled into many runs; audit it by itself")

    @jax.jit  # traced before it is mapped: JAX would redo the float64 parts under the switch that is on around them
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
        return jax.lax.map(lambda run_keys: one_run(arrays, run_keys), keys, batch_size=together(size))

    compiled = jax.jit(all_runs)  # of this call alone: an audit must not run what was compiled before the code changed
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


def together(size: int) -> int:
    """How many runs on data of that size go side by side; a power of ten, so that round numbers leave no remainder."""
    return int(10 ** min(3, math.floor(math.log10(max(1, _AT_ONCE // size)))))
