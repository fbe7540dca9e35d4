"""The clipped sum of outer products on a GPU, by a kernel that reads every row once.

XLA makes two matrix products of it, one for scores and one for sums, and reads all rows for each. The kernel holds a
few rows in registers, computes their scores, the numbers of their records (`entries`), their scales, and adds them up.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from dpbilevel.privacy.entries import Traced
from dpbilevel.privacy.outer import Layout

_OVERFLOW, _UNDERFLOW, _LONGEST = 2.0**100, 2.0**-100, 2.0**200

WIDTH, ROWS, STEPS, WARPS, STAGES = 32, 16, 128, 4, 1
ROUNDTRIP, PREFETCH, HOIST, F64 = True, True, False, True


def total(traced, layout, rows, norms, leaves, taken, clip, interpret=False):
    number, columns = rows.shape
    padded = max(WIDTH, pl.next_power_of_2(columns))
    slabs = padded // WIDTH
    count, lines = layout.coefficients, layout.numbers
    weights = jnp.stack(traced.columns).astype(jnp.float32)
    weights = jnp.pad(weights, ((0, 0), (0, padded - columns)))
    scores = weights.shape[0]
    steps = STEPS
    programs = -(-number // (ROWS * steps))
    blocks = number // ROWS
    assert number % ROWS == 0
    constants = [jnp.atleast_1d(c) for c in traced.constants]
    read = [leaves[i] for i in traced.leaves]
    whole = columns == padded

    def kernel(rows_ref, norms_ref, taken_ref, weights_ref, *refs):
        constants_refs, refs = refs[: len(constants)], refs[len(constants) :]
        leaves_refs, refs = refs[: len(read)], refs[len(read) :]
        products_ref, others_ref = refs
        first = pl.program_id(0) * steps
        last = jnp.minimum(first + steps, blocks)
        held = [[ref[i] for i in range(ref.shape[0])] for ref in constants_refs]
        longest = jnp.float64(min(clip, _LONGEST))

        def tile(block):
            begin = block * ROWS
            found = []
            for slab in range(slabs):
                if whole or (slab + 1) * WIDTH <= columns:
                    found.append(rows_ref[pl.ds(begin, ROWS), pl.ds(slab * WIDTH, WIDTH)])
                else:
                    lines = jnp.broadcast_to(begin + jnp.arange(ROWS, dtype=jnp.int32)[:, None], (ROWS, WIDTH))
                    places = slab * WIDTH + jnp.arange(WIDTH, dtype=jnp.int32)
                    places = jnp.broadcast_to(places[None], (ROWS, WIDTH))
                    at = rows_ref.at[lines, places]
                    found.append(triton.load(at, mask=places < columns, other=0))
            return found

        def weight(score, slab):
            return weights_ref[score, pl.ds(slab * WIDTH, WIDTH)]

        hoisted = [[weight(s, c) for c in range(slabs)] for s in range(scores)] if HOIST else None

        def scored(block, part):
            begin = block * ROWS
            wide = [slab.astype(jnp.float32) for slab in part]
            values = []
            for s in range(scores):
                column = hoisted[s] if HOIST else [weight(s, c) for c in range(slabs)]
                products = [slab * column[c][None, :] for c, slab in enumerate(wide)]
                values.append(jnp.sum(functools.reduce(jnp.add, products), axis=1))
            norm = norms_ref[pl.ds(begin, ROWS)].astype(jnp.float32) if traced.reads_norm else None
            own = [_entries_of(ref, begin) for ref in leaves_refs]
            return [value.astype(jnp.float32) for value in traced.lines(values, own, norm, held, ROWS)]

        def step(carry):
            block, sums, others, part, found = carry
            begin = block * ROWS
            ahead = jnp.minimum(block + 1, last - 1)
            following = tile(ahead)
            norm = norms_ref[pl.ds(begin, ROWS)]
            usable = taken_ref[pl.ds(begin, ROWS)] != 0
            scaled = (_scaled if F64 else _scaled32)(found, count, norm, usable, longest)
            wide = [slab.astype(jnp.float32) for slab in part]
            sums = [
                [sums[l][c] + scaled[l][:, None] * slab for c, slab in enumerate(wide)] for l in range(count)
            ]
            others = [other + scaled[count + index] for index, other in enumerate(others)]
            return block + 1, sums, others, following, scored(ahead, following)

        start = [[jnp.zeros((ROWS, WIDTH), jnp.float32) for _ in range(slabs)] for _ in range(count)]
        rest = [jnp.zeros((ROWS,), jnp.float32) for _ in range(lines - count)]
        part = tile(first)
        _, sums, others, _, _ = jax.lax.while_loop(
            lambda carry: last > carry[0], step, (first, start, rest, part, scored(first, part))
        )
        me = pl.program_id(0)
        for l in range(count):
            for c in range(slabs):
                products_ref[me, l, pl.ds(c * WIDTH, WIDTH)] = jnp.sum(sums[l][c].astype(jnp.float64), axis=0)
        for index, other in enumerate(others):
            others_ref[me, index] = jnp.sum(other.astype(jnp.float64), axis=0)

    def _entries_of(ref, begin):
        import numpy as np

        shape = ref.shape[1:]
        found = np.empty(shape, dtype=object)
        for index in np.ndindex(*shape):
            found[index] = ref[(pl.ds(begin, ROWS), *index)]
        return found

    shapes = [
        jax.ShapeDtypeStruct((programs, count, padded), jnp.float64),
        jax.ShapeDtypeStruct((programs, max(1, lines - count)), jnp.float64),
    ]
    call = pl.pallas_call(
        kernel,
        out_shape=shapes,
        grid=(programs,),
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=WARPS, num_stages=STAGES),
    )
    present = jnp.pad(taken, (0, number - taken.shape[0])).astype(jnp.int8)
    products, others = call(rows, norms, present, weights, *constants, *read)
    return layout.assemble(jnp.sum(products, axis=0)[:, :columns], jnp.sum(others, axis=0)[: lines - count])


def _scaled(found, count, norm, taken, longest):
    sizes = [jnp.abs(line) for line in found]
    finite = functools.reduce(jnp.logical_and, [size <= _OVERFLOW for size in sizes])
    largest = functools.reduce(jnp.maximum, sizes[:count])
    largest = jnp.maximum(largest, jnp.float32(_UNDERFLOW))
    usable = taken & finite & (norm * largest.astype(jnp.float64) < _OVERFLOW)
    squares = [line.astype(jnp.float64) * line.astype(jnp.float64) for line in found]
    outer = functools.reduce(jnp.add, squares[:count]) * (norm * norm)
    lengths = jnp.sqrt(functools.reduce(jnp.add, squares[count:], outer)) * (1 + (len(found) + 8) * 2.0**-52)
    scales = (longest / jnp.where(usable, jnp.maximum(lengths, longest), jnp.inf)).astype(jnp.float32)
    scaled = [jnp.where(scales >= _UNDERFLOW, line * scales, jnp.float32(0)) for line in found]
    return [jnp.where(jnp.abs(line) >= _UNDERFLOW, line, jnp.float32(0)) for line in scaled]


def _scaled32(found, count, norm, taken, longest):
    """Only to see what float64 costs."""
    sizes = [jnp.abs(line) for line in found]
    finite = functools.reduce(jnp.logical_and, [size <= _OVERFLOW for size in sizes])
    norm = norm.astype(jnp.float32)
    usable = taken & finite & (norm < _OVERFLOW)
    squares = [line * line for line in found]
    outer = functools.reduce(jnp.add, squares[:count]) * (norm * norm)
    lengths = jnp.sqrt(functools.reduce(jnp.add, squares[count:], outer))
    longest = longest.astype(jnp.float32)
    scales = longest / jnp.where(usable, jnp.maximum(lengths, longest), jnp.float32(jnp.inf))
    return [line * scales for line in found]
