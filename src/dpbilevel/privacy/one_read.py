"""The clipped sum of outer products on a GPU, by a kernel that reads every row once.

XLA makes two matrix products of such a sum, one for scores and one for sums, and each reads all rows. The kernel holds
a few rows in registers, computes their scores, from these the numbers of their records (`entries`), measures, scales
and adds them up. `products` has the formulas, and sums wherever the kernel does not apply: on processors, in float64,
for records whose rows were not measured when they were stored, for losses that the kernel cannot compute, and for rows
that are very long.

**What is measured is what is summed.** A record's numbers leave a loop that runs until a number in memory says so. No
compiler computes such a value a second time, for its last round is known only when it has run; whatever follows reads
the one value. Rows are read from memory, which does not change, and so are their norms, in a metric too. Scales may be
computed several times, as in `products`.

**Rounding.** A program of the kernel holds a few rows at a time, one in each of at most eight places, and adds up what
was in a place in float32: 64 rows, or 32 in a metric. These are the chunks of `products`, as long as there or shorter,
and its bound holds: an entry errs by at most 65 * 2^-24 * sum_i |c_il| |a_ij|, in any order, with or without fused
multiply-adds, which is 65 * 2^-24 * 64 C in all; in a metric by 33 * 2^-24 * 32 * 16 C. No format is shorter than
float32, for nothing here is a matrix product. Which rows are in a chunk depends on their places alone, so that
neighbours differ in one chunk. From there on sums are in float64: of eight places, then of at most 2^15 programs, with
2^24 records in all, which err by (2^15 + 8) * 2^-53 * 2^24 C < 2^-13 C; in a metric of 2^14 programs with 2^22 records
by (2^14 + 8) * 2^-53 * 2^22 * 16 C < 2^-12 C. Blocks of so many programs are added with compensation, as those of
`clipping` are. All of it is less than what `products` and `clipping` allow for.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas
from jax.experimental.pallas import triton

from dpbilevel.privacy.entries import NotByEntries, Traced
from dpbilevel.privacy.outer import Layout, known_norms
from dpbilevel.privacy.products import OVERFLOW, UNDERFLOW, longest, scaled_numbers, scales
from dpbilevel.privacy.sums import Sum, Tree, Vector

INTERPRETED = False  # whether the kernel is run by JAX's interpreter, which tests do on processors

_CHUNK, _CHUNK_IN_METRIC = 64, 32  # rows whose products are summed in float32
_PROGRAMS, _PROGRAMS_IN_METRIC = 2**15, 2**14  # whose totals are added at a time
# Measured on an H200 for 256 columns: two warps with four rows each took 2.11 ms, 32 other shapes 2.13 to 4.2 ms.
_WARPS = 2
_PIECES = 8  # of a row, at most: every thread has four numbers of each piece of a row, and of its sums
_NARROWEST, _WIDEST = 32, 128  # columns of a piece
_COEFFICIENTS = 4  # of a record, at most: their sums are in registers, too
_OLDEST = 8  # compute capability that Triton supports
_RECORDS = 128  # the length of arrays is a multiple of it


class OneRead(NamedTuple):
    """Contributions of all records, not yet computed.

    Args:
        traced: the numbers of a record.
        layout: which number is what.
        leaves: arrays of the records.
        norms: at least those of rows, in the metric of the layout if it has one, in float64.
        first: the first of the programs that add up these contributions.
    """

    traced: Traced
    layout: Layout
    leaves: tuple[jax.Array, ...]
    norms: jax.Array
    first: Any = 0

    @property
    def rows(self) -> jax.Array:
        """The rows that coefficients multiply."""
        assert self.layout.record_leaf is not None
        return self.leaves[self.layout.record_leaf]

    @property
    def shape(self) -> "Shape":
        """Of what a program reads, by public sizes."""
        number, columns = self.rows.shape
        piece = min(_WIDEST, max(_NARROWEST, pallas.next_power_of_2(columns) // _PIECES))
        held = _WARPS * (_WIDEST // piece)  # a thread has four columns of a piece
        chunk, most = (_CHUNK, _PROGRAMS) if self.layout.metric is None else (_CHUNK_IN_METRIC, _PROGRAMS_IN_METRIC)
        return Shape(piece, -(-columns // piece), held, chunk, min(most, -(-number // (held * chunk))))

    def fold(self, total: Sum, start: Any, present: jax.Array) -> Any:
        """Add all contributions to a sum, in blocks of so many programs."""
        shape = self.shape
        blocks = -(-self.rows.shape[0] // (shape.held * shape.times * shape.programs))
        if blocks == 1:
            return total.add(start, self, present)

        def step(carry: Any, index: jax.Array) -> tuple[Any, None]:
            return total.add(carry, self._replace(first=index * shape.programs), present), None

        return jax.lax.scan(step, start, jnp.arange(blocks, dtype=jnp.int32))[0]


class Shape(NamedTuple):
    """What a program reads.

    Args:
        piece: columns of a piece of a row.
        pieces: of a row.
        held: rows at a time.
        times: how many times.
        programs: how many there are in a block.
    """

    piece: int
    pieces: int
    held: int
    times: int
    programs: int


def one_read(found: Layout, vector: Vector, arrays: Tree, norms: Sequence[Any] | None) -> OneRead | None:
    """The contributions of these records, if the kernel can sum them; by public shapes and by what a loss does."""
    leaves = tuple(jax.tree.leaves(arrays))
    place = found.record_leaf
    if norms is None or place is None or not (INTERPRETED or _is_supported()):
        return None
    rows = leaves[place]
    few = found.coefficients <= _COEFFICIENTS and found.numbers - found.coefficients <= rows.shape[1]
    fits = few and rows.shape[1] <= _PIECES * _WIDEST and rows.shape[0] % _RECORDS == 0
    if found.dtype != jnp.float32 or rows.dtype not in (jnp.float32, jnp.bfloat16) or not fits:
        return None

    def numbers(record: Tree, norm: jax.Array) -> list[jax.Array]:
        with known_norms([(jax.tree.leaves(record)[place], norm.astype(found.dtype))]):
            return [part.astype(found.dtype) for part in found.numbers_of(vector(record))]

    record = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), arrays)
    try:
        traced = Traced(numbers, record, place, found.dtype)
    except NotByEntries:
        return None
    return OneRead(traced, found, leaves, norms[place])


def _is_supported() -> bool:
    """Whether the device has what the kernel was tried on: what fails to compile would fail after the charge.

    That is one NVIDIA GPU that Triton supports; shards of several have not been tried.
    """
    if jax.default_backend() != "gpu" or not jax.sharding.get_abstract_mesh().empty:
        return False
    version = str(getattr(jax.devices()[0], "compute_capability", ""))
    major = version.partition(".")[0]
    return major.isdecimal() and int(major) >= _OLDEST


def one_read_total(block: OneRead, taken: jax.Array, clip: float) -> jax.Array:
    """Sum of the clipped contributions, raveled, in float64."""
    layout, traced, rows = block.layout, block.traced, block.rows
    number, columns = rows.shape
    shape = block.shape
    width = shape.piece * shape.pieces
    weights = jnp.pad(jnp.stack(traced.columns), ((0, 0), (0, width - columns)))
    found = pallas.pallas_call(
        functools.partial(_kernel, traced, layout, shape),
        # The last line has sums of other numbers, and what it has after them is not read.
        out_shape=jax.ShapeDtypeStruct((shape.programs, layout.coefficients + 1, width), jnp.float64),
        grid=(shape.programs,),
        interpret=INTERPRETED,
        compiler_params=None if INTERPRETED else triton.CompilerParams(num_warps=_WARPS, num_stages=1),
        name="one_read",
    )(
        rows,
        block.norms,
        jnp.pad(taken, (0, number - taken.shape[0])).astype(jnp.int8),
        jnp.stack([jnp.int32(1), jnp.asarray(block.first, jnp.int32)]),
        longest(clip)[None],
        weights,
        [jnp.atleast_1d(constant) for constant in traced.constants],
        [block.leaves[place] for place in traced.leaves],
    )
    summed = jnp.sum(found, axis=0)
    return layout.assemble(summed[:-1, :columns], summed[-1, : layout.numbers - layout.coefficients])


def _kernel(
    traced: Traced,
    layout: Layout,
    shape: Shape,
    rows: Any,
    norms: Any,
    taken: Any,
    given: Any,
    limit: Any,
    weights: Any,
    constants: list[Any],
    leaves: list[Any],
    totals: Any,
) -> None:
    """One program. Rows are in pieces, so that few threads share a row, and compute the numbers of its record."""
    piece, pieces, held, times, _ = shape
    count, me = layout.coefficients, pallas.program_id(0)
    first = (given[1] + me) * times
    known = [[constant[place] for place in range(constant.shape[0])] for constant in constants]

    def numbers(begin: Any, parts: list[jax.Array], norm: jax.Array) -> list[jax.Array]:
        scores = []
        for line in range(weights.shape[0]):
            columns = [weights[line, pallas.ds(index * piece, piece)] for index in range(pieces)]
            products = [part * column[None, :] for part, column in zip(parts, columns, strict=True)]
            scores.append(jnp.sum(functools.reduce(jnp.add, products), axis=1))
        return traced.lines(scores, [_entries(leaf, begin, held) for leaf in leaves], norm, known, held)

    def add(tile: Any, carry: Any) -> Any:
        sums, others = carry
        begin = tile * held
        parts = [_part(rows, begin, held, index * piece, piece) for index in range(pieces)]
        norm = norms[pallas.ds(begin, held)]
        empty = [jnp.zeros(held, jnp.float32)] * layout.numbers
        # How often it is computed is read from memory, so that it is computed once, and then known.
        _, lines = jax.lax.while_loop(
            lambda state: state[0] > 0, lambda state: (state[0] - 1, numbers(begin, parts, norm)), (given[0], empty)
        )
        lines = _clipped(lines, count, norm, taken[pallas.ds(begin, held)] != 0, limit[0])
        sums = [
            [total + line[:, None] * part for total, part in zip(totals, parts, strict=True)]
            for totals, line in zip(sums, lines[:count], strict=True)
        ]
        return sums, [total + line for total, line in zip(others, lines[count:], strict=True)]

    empty = [jnp.zeros((held, piece), jnp.float32)] * pieces
    start = [empty] * count, [jnp.zeros(held, jnp.float32)] * (layout.numbers - count)
    last = jnp.minimum(first + times, rows.shape[0] // held)
    sums, others = jax.lax.fori_loop(first, last, add, start)
    for line, pieces_of_line in enumerate(sums):
        for index, total in enumerate(pieces_of_line):
            totals[me, line, pallas.ds(index * piece, piece)] = jnp.sum(total.astype(jnp.float64), axis=0)
    for place, total in enumerate(others):
        totals[me, count, place] = jnp.sum(total.astype(jnp.float64))


def _part(rows: Any, begin: Any, held: int, first: int, piece: int) -> jax.Array:
    """A piece of some rows in float32, with zeros after their last column."""
    if first + piece <= rows.shape[1]:
        return rows[pallas.ds(begin, held), pallas.ds(first, piece)].astype(jnp.float32)
    lines = begin + jax.lax.broadcasted_iota(jnp.int32, (held, piece), 0)
    places = first + jax.lax.broadcasted_iota(jnp.int32, (held, piece), 1)
    found: jax.Array = triton.load(rows.at[lines, places], mask=places < rows.shape[1], other=0)
    return found.astype(jnp.float32)


def _entries(leaf: Any, begin: Any, held: int) -> Any:
    """Entries of some records' leaf, as `Traced.lines` takes them."""
    found = np.empty(leaf.shape[1:], dtype=object)
    for index in np.ndindex(*leaf.shape[1:]):
        found[index] = leaf[(pallas.ds(begin, held), *index)]
    return found


def _clipped(lines: list[jax.Array], count: int, norms: jax.Array, taken: jax.Array, limit: jax.Array) -> Any:
    """The numbers of some records, scaled as in `products`, one line after another."""
    sizes = [jnp.abs(line) for line in lines]
    finite = functools.reduce(jnp.logical_and, [size <= OVERFLOW for size in sizes])
    largest = functools.reduce(jnp.maximum, sizes[:count], jnp.full_like(sizes[0], UNDERFLOW))
    usable = taken & finite & (norms * largest.astype(jnp.float64) < OVERFLOW)
    squares = [jnp.square(line.astype(jnp.float64)) for line in lines]
    outer = functools.reduce(jnp.add, squares[:count])
    others = functools.reduce(jnp.add, squares[count:], jnp.zeros_like(outer))
    found = scales(outer, others, norms, usable, limit, len(lines)).astype(lines[0].dtype)
    return [scaled_numbers(line, found) for line in lines]
