"""The adversary of units: replaces all rows of a unit, and compares the movement of an answer with the sensitivity."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from support.every_method import BUDGET, METHODS, PROBLEM, START, data
from support.neighbours import candidates

import dpbilevel as dpb
from dpbilevel.baselines import PrivateRandomSearch
from dpbilevel.estimators.weights import Weights
from dpbilevel.privacy.bundles import Bundle, Packed, units_from
from dpbilevel.privacy.clipping import clipped_sum
from dpbilevel.privacy.memory import Memory
from dpbilevel.privacy.units import Selection
from dpbilevel.records import isolated_jax_config

MOST, MEAN = 4, 2.0  # rows of a unit, and their mean
REFUSED = {"DPBilevel, black box"}  # whose trainer declares the cost of a row
TAKEN = [name for name in METHODS if name not in REFUSED | {"OracleHyperparameters"}]  # which is not private
UNITS = 60
TRIED = 120  # units that take the place of one


def ids():
    """Ids by role, for rows of `table`."""
    return {"upper": np.tile(np.arange(UNITS), 3), "lower": np.tile(np.arange(UNITS), 3) + UNITS}


def table():
    """Three rows for each unit."""
    return jax.tree.map(lambda leaf: np.concatenate([leaf, leaf[::-1], leaf]), data())


def records(**options):
    return dpb.Records(**table(), **({"unit": ids(), "rows_per_unit": MOST, "mean_rows": MEAN} | options))


def bundles():
    """What records hold, by role: units, and that all of them are valid."""
    narrow = jax.tree.map(lambda leaf: leaf.astype("float32" if leaf.dtype.kind == "f" else "int32"), table())
    units = {role: Selection.of(ids()[role], MOST).bundled(tree) for role, tree in narrow.items()}
    return {role: (jax.tree.map(jnp.asarray, tree), jnp.ones(UNITS, bool)) for role, tree in units.items()}


@functools.cache
def planned(name, sizes):
    method = METHODS[name]
    if isinstance(method, PrivateRandomSearch):
        return method._plan(PROBLEM, records(), BUDGET, START)[0]
    refit = dpb.Refit(steps=2) if isinstance(method, dpb.Tracking) else None
    return dpb.planning.prepare(PROBLEM, sizes, BUDGET, method, START, refit)


def releases_at_points(plan, rng, held, answers_of):
    """Every release of a plan with points at which the program uses it, in all phases of a run."""
    for part in plan.parts:
        first = part.start(*plan.start)
        for step in {0, 1, 3, 20, 39} & set(range(part.rounds)):
            state = jax.tree.map(lambda leaf: _moved(leaf, rng), first)
            state = state | ({"step": jnp.int32(step)} if "step" in state else {})
            for stage in part.stages:
                carry = stage.begin(state)
                point, answer = stage.query(state, carry, jnp.int32(0)), None
                if stage.release is not None:
                    yield stage.release, point
                    # By the program that the search has compiled: operation by operation, XLA would compile a hundred.
                    with isolated_jax_config():
                        same = answers_of(stage.release, held, _unchanged(stage.release, held), point)
                    answer = jax.tree.map(lambda leaf: leaf[0], same)
                state = stage.end(state, stage.update(state, carry, answer, jnp.int32(0)))


def _moved(leaf, rng):
    floating = jnp.issubdtype(leaf.dtype, jnp.floating)
    return leaf + jnp.asarray(0.1 * rng.normal(size=leaf.shape), leaf.dtype) if floating else leaf


def largest_ratio(answers_of, release, point, rng, held):
    """The largest movement of an answer over its sensitivity, if one unit is replaced by any of many, 0 to k rows.

    A unit without rows exists where all ids are declared. It contributes nothing: another one moves an answer from
    there by no more than the sensitivity of zero-out.
    """
    ratios = []
    for role in release.contributions:
        tried = jax.tree.map(jnp.asarray, _units(held[role][0], TRIED // 2, rng))
        with isolated_jax_config():
            answers = answers_of(release, held, _unchanged(release, held) | {role: tried}, point)
        rows = np.hstack([np.asarray(leaf, np.float64).reshape(TRIED, -1) for leaf in jax.tree.leaves(answers)])
        movements = np.linalg.norm(rows[:, None] - rows[None], axis=2)
        movements = np.where(np.isfinite(movements), movements, np.inf)
        ratios.append(movements.max() / release.sensitivity(role))
        empty = ~np.asarray(tried.present).any(axis=1)
        assert empty.any(), "the search has no unit without rows"
        from_nothing = dataclasses.replace(release, adjacency="zero-out").sensitivity(role)
        ratios.append(movements[empty].max() / from_nothing)
    return max(ratios)


def stored(unit):
    """A unit as records store it, and whether it is valid: one without rows is not (`Selection.usable`)."""
    return unit, jnp.any(unit.present)


def stored_with_a_row(unit):
    """A broken form: a unit without rows has a row of zeros, which contributes like any other."""
    return Bundle(unit.rows, unit.present.at[0].set(True)), True


def compiled_answers():
    """Answers with each of many units in the first place: compiled for all points of a release, anew for a mutant."""
    compiled = jax.jit(lambda *arguments: _answers(*arguments), static_argnums=0)

    def answers(release, held, *arguments):
        as_held = {role: (packed(units), valid) for role, (units, valid) in held.items()}
        return compiled(release, as_held, *arguments)

    return answers


def _answers(release, held, tried, point):
    """With the same noise. All roles of a release are replaced in one program, so that it is compiled once."""

    def answer(new):
        changed = {}
        for role, unit in new.items():
            one, valid = stored(unit)
            changed[role] = _with_first(held[role][0], one), held[role][1].at[0].set(valid)
        return _answer(release, held | changed, point, jnp.zeros((2, 2), jnp.uint32))

    return jax.vmap(answer)(tried)


def packed(units):
    """Units as records hold them, with k places for the rows of the first: there are others to try in them."""
    most, number = units.present.shape[1], np.asarray(units.present).sum(axis=1)
    first = np.cumsum([most, *number[1:]]) - [most, *number[1:]]
    flat = np.concatenate([np.arange(most), np.flatnonzero(np.asarray(units.present).ravel()[most:]) + most])

    def rows(leaf):
        own = np.zeros_like(np.asarray(leaf))
        own.reshape(-1, *leaf.shape[2:])[: len(flat)] = np.asarray(leaf).reshape(-1, *leaf.shape[2:])[flat]
        return jnp.asarray(own)

    return Packed(jax.tree.map(rows, units.rows), jnp.asarray(first, np.int32), jnp.asarray(number, np.int32))


def _with_first(units, new):
    """With another first unit. Rows that it does not have stay in its places, where those of others would be."""

    def rows(leaf, one):
        return leaf.reshape(-1, *leaf.shape[2:]).at[: len(one)].set(one).reshape(leaf.shape)

    return Packed(
        jax.tree.map(rows, units.rows, new.rows),
        units.first,
        units.number.at[0].set(jnp.sum(new.present, dtype=jnp.int32)),
    )


def _unchanged(release, held):
    """What is tried where nothing is replaced: the first unit of each role, as often as others are tried."""
    first = {role: held[role][0] for role in release.contributions}
    return jax.tree.map(lambda leaf: jnp.asarray(np.repeat(np.asarray(leaf[:1]), TRIED, axis=0)), first)


def _units(like, number, rng):
    """Bundles to try: rows of all kinds, mixed or all alike, and any number of them, also none."""
    rows = candidates(jax.tree.map(lambda leaf: leaf[:, 0], like.rows), number * MOST, 3, rng)
    rows = jax.tree.map(lambda leaf: leaf.reshape(2 * number, MOST, *leaf.shape[1:]), rows)
    alike = np.arange(2 * number) % 3 == 0
    rows = jax.tree.map(lambda leaf: np.where(_wide(alike, leaf), leaf[:, :1], leaf), rows)
    present = np.arange(MOST) < rng.integers(0, MOST + 1, size=(2 * number, 1))
    rows = jax.tree.map(lambda leaf: np.where(_wide(present.any(axis=1), leaf), leaf, 0).astype(leaf.dtype), rows)
    return Bundle(rows, present)


def _wide(mask, leaf):
    return mask.reshape(-1, *[1] * (leaf.ndim - 1))


def _answer(release, held, point, keys):
    with jax.enable_x64(False):
        return release.answer(held, point, keys)


def clipped_row_by_row(vector, held, present, clip):
    """A broken sum: every row of a unit is clipped on its own, and a unit contributes k times the clip."""
    arrays = held.arrays if isinstance(held, Memory) else held
    if isinstance(arrays, Packed):
        arrays = units_from(arrays, 0, present.shape[0])
    if not isinstance(arrays, Bundle):
        return clipped_sum(vector, held, present, clip)
    most = arrays.present.shape[1]
    rows = jax.tree.map(lambda leaf: leaf[: present.shape[0]].reshape(-1, 1, *leaf.shape[2:]), arrays)
    return clipped_sum(vector, rows, jnp.repeat(present, most) & rows.present[:, 0], clip)


def check_plan(plan, held, rng):
    """No unit moves an answer of a plan by more than its sensitivity; returns the largest ratio by release."""
    compiled, found = compiled_answers(), {}
    for release, point in releases_at_points(plan, rng, held, compiled):
        ratio = largest_ratio(compiled, release, point, rng, held)
        assert ratio <= 1 + 1e-6, (release.name, ratio)  # here, so that nothing more is compiled for a mutant
        found[release.name] = max(found.get(release.name, 0.0), ratio)
    return found


def check_units(names, seed=0):
    """The same for plans of these methods; returns the largest ratio of each."""
    rng, held = np.random.default_rng(seed), bundles()
    return {name: max(check_plan(planned(name, records().sizes), held, rng).values()) for name in names}


def linear_plan(kind, method=None):
    """A training of a linear model of units, and the units that it is attacked with.

    Without a method it is the final training, with second moments. Rows of a logistic regression have weights, as
    estimators give them.
    """
    rng, shape = np.random.default_rng(1), (UNITS, MOST)
    rows = (rng.normal(size=(*shape, 3)) / 3).astype(np.float32)
    targets = rng.integers(0, 2, shape).astype("float32" if kind == "squared" else "int32")
    weights = Weights((rng.uniform(size=shape).astype(np.float32),) if kind == "logistic" else ())
    unit = Bundle((rows, targets, *weights.columns), np.arange(MOST) < rng.integers(1, MOST + 1, size=(UNITS, 1)))
    held = dict.fromkeys(("upper", "lower"), (jax.tree.map(jnp.asarray, unit), jnp.ones(UNITS, bool)))
    shapes = dict.fromkeys(held, jax.tree.map(lambda leaf: leaf[:, 0], unit.rows))
    sizes = dpb.RecordShapes(**shapes, rows_per_unit=MOST, mean_rows=MEAN)
    classes = {"classes": 2} if kind == "softmax" else {}
    problem = weights.problem(dpb.applications.regularization(kind, columns=3, row_norm=1.0, **classes))
    method = dpb.Refit(steps=3) if method is None else method
    return dpb.plan(problem, sizes, dpb.Budget(8.0, 1e-3), method=method, refit=None), held
