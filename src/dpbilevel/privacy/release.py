"""A release: the one building block of every private method.

    answer = sum over roles r, 1/(rate n_r) * sum over records i of r, clip(phi_r,i(point), C_r)  +  N(0, noise_std^2 I)

It is declared before any record is read: which roles, what each record contributes, how it is clipped, how much
noise, which sampling and how many uses. Its sensitivity is computed from that, never typed. The accountant and the
compiled loop read the same declaration, so that what is charged and what is executed cannot drift apart.

A release that is `discretized` does the same in integers, with noise that it is handed instead of drawn (see `grid`).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count, non_negative, one_of, positive
from dpbilevel.foundation.precision import is_double
from dpbilevel.foundation.structure import function, passing
from dpbilevel.privacy.accounting import ROLES, Charge
from dpbilevel.privacy.budget import ADJACENCIES, Adjacency
from dpbilevel.privacy.bundles import unit_shape
from dpbilevel.privacy.clipping import LARGEST_CLIP, ROUNDING, SMALLEST_CLIP, clipped_sum
from dpbilevel.privacy.grid import Grid
from dpbilevel.privacy.memory import Memory, room
from dpbilevel.privacy.noise import standard_normal
from dpbilevel.privacy.outer import dense
from dpbilevel.privacy.sampling import FullBatch, Sampling, check_sampling
from dpbilevel.privacy.shards import Shards, arrays_of

Tree = Any


@passing("per_record", "clip", structure=("count",))
@dataclass(frozen=True, eq=False)
class Contribution:
    """What each record of one role adds to a release.

    Args:
        per_record: phi(point, record), a pytree of real arrays; it may read its record and released values only.
        clip: largest norm of one record's contribution, over all leaves jointly.
        count: the public number of records of the role.
    """

    per_record: Callable[[Tree, Tree], Tree]
    clip: float
    count: int

    def __post_init__(self) -> None:
        clip = positive("clip", self.clip, "it bounds each record's contribution (try 1.0)", infinite=True)
        if not (SMALLEST_CLIP <= clip <= LARGEST_CLIP or math.isinf(clip)):
            raise InvalidArgument(f"clip={self.clip!r}: must be between 2^-60 and 2^60 for float32 to hold (try 1.0)")
        if not callable(self.per_record):
            raise InvalidArgument("per_record: must be a function (point, record) -> pytree of real arrays")
        object.__setattr__(self, "per_record", function(self.per_record))
        object.__setattr__(self, "clip", clip)
        object.__setattr__(self, "count", count("count", self.count, "it is the number of records of the role"))


@passing("contributions", "noise_std", "grid", structure=("name", "sampling", "adjacency"))
@dataclass(frozen=True, eq=False, kw_only=True)
class Release:
    """A bounded Gaussian release, used ``uses`` times.

    Args:
        name: what the ledger and the report call it.
        contributions: role ("upper", "lower", "both" or "heldout") to `Contribution`. Where two roles contribute, the
            one Gaussian covers both.
        noise_std: standard deviation of the Gaussian on the answer (a mean, not a sum).
        uses: in the whole run.
        sampling: `FullBatch()`, `Poisson(rate)`, `WithoutReplacement(size)` or `WithReplacement(size)`.
        adjacency: the neighbouring relation that the sensitivity refers to.
        grid: the integers of a release with exact noise, from `discretized`; None for one with noise in float64.

    >>> release = Release(
    ...     name="mean",
    ...     contributions={"lower": Contribution(lambda point, record: record, 1.0, 1000)},
    ...     noise_std=0.01,
    ...     uses=1,
    ... )
    >>> release.sensitivity("lower") == 2 * 1.0 * (1 + 2**-7) / 1000
    True
    """

    name: str
    contributions: Mapping[str, Contribution]
    noise_std: float
    uses: int
    sampling: Sampling = dataclasses.field(default_factory=FullBatch)
    adjacency: Adjacency = "replace-one"
    grid: Grid | None = None

    def __post_init__(self) -> None:
        noise_std = non_negative(
            "noise_std", self.noise_std, "it is the standard deviation of the Gaussian on the answer"
        )
        uses = count("uses", self.uses, "it is the number of uses in the whole run")
        object.__setattr__(self, "noise_std", noise_std)
        object.__setattr__(self, "uses", uses)
        check_sampling(self.sampling)
        one_of("adjacency", self.adjacency, ADJACENCIES, "it says which data sets count as neighbours")
        if not isinstance(self.contributions, Mapping) or not self.contributions:
            raise InvalidArgument(
                "contributions: must map at least one role to a dpb.Contribution(per_record, clip, count)"
            )
        for role, contribution in self.contributions.items():
            one_of("role", role, ROLES, "it says which records contribute")
            if not isinstance(contribution, Contribution):
                raise InvalidArgument(f"contributions[{role!r}]: must be a dpb.Contribution(per_record, clip, count)")
        # A copy that nobody else holds: what was charged must be what is executed.
        object.__setattr__(self, "contributions", MappingProxyType(dict(self.contributions)))
        for contribution in self.contributions.values():
            self.sampling.divisor(contribution.count)  # refuses batches larger than the role
        if self.grid is not None:
            self._check_exact(self.grid)

    def sensitivity(self, role: str) -> float:
        """How far the answer moves, at most, when one record of ``role`` changes (rounding included).

        For a batch: when it holds the record once, before and after. That another record takes its place in a batch of
        fixed size that does not hold it (2C under "zero-out" too), and what several draws of one record cost, is for
        the accountant to count.
        """
        if role not in self.contributions:
            raise InvalidArgument(f"role={role!r}: must be one of {sorted(self.contributions)}, which contribute")
        contribution = self.contributions[role]
        vectors_changed = 2 if self.adjacency == "replace-one" else 1
        one_record = contribution.clip * (1 + ROUNDING) / self.sampling.divisor(contribution.count)
        return vectors_changed * one_record

    def charges(self) -> tuple[Charge, ...]:
        """What all uses of this release cost, role by role."""
        return tuple(
            Charge(
                self.name,
                role,
                _ratio(self.sensitivity(role), self.noise_std),
                self.uses,
                self.sampling,
                contribution.count,
                clip=contribution.clip,
                exact=self.grid is not None,
            )
            for role, contribution in self.contributions.items()
        )

    def scaled(self, factor: float) -> "Release":
        """The same release with ``factor`` times the noise."""
        return dataclasses.replace(self, noise_std=self.noise_std * factor)

    def discretized(self, dimension: int) -> "Release":
        """The same release on integers with exact noise; ``dimension`` is how many numbers an answer has.

        Sensitivity, noise and their ratio stay what they are: `ROUNDING` covers the rounding to integers.
        """
        bounds = {role: (part.clip, part.count) for role, part in self.contributions.items()}
        if any(math.isinf(part.clip) for part in self.contributions.values()):
            raise InvalidArgument(
                'noise="exact": needs a finite epsilon; without privacy there is nothing to discretize'
            )
        return dataclasses.replace(self, grid=Grid.of(self.name, dimension, bounds))

    @property
    def scale(self) -> float:
        """Of the exact noise, in units of the grid."""
        assert self.grid is not None, "a release with noise in float64 has no grid"
        return self.grid.scale(self.name, self.noise_std)

    def answer(self, records: Mapping[str, tuple[Tree, jax.Array]], point: Tree, keys: jax.Array) -> Tree:
        """Evaluate the release once, inside a compiled loop.

        Args:
            records: role to (arrays with a leading axis or a `Source`, which records are valid).
            point: released values at which to evaluate.
            keys: the noise key and the batch key of this use, two rows; for exact noise the noise itself, as
                `Program.draws` gives it.
        """
        example, precise = self._example(records, point), is_double()
        # Sums and noise are in float64; what the method and the user wrote is traced in the user's precision.
        with jax.enable_x64(True):
            if self.grid is None:
                total = self._total(records, point, keys[1], precise)
            else:
                total = self._exact_total(self.grid, records, point, precise)
        return self._answered(example, total, keys)

    def total_of(self, role: str, arrays: Tree, present: jax.Array, point: Tree) -> jax.Array:
        """What some records of a role add to the answer, without noise: private. Inside compiled code.

        Those of all records, merged in float64 with compensation, or as integers, are the answer before its noise.
        """
        precise = is_double()
        with jax.enable_x64(True):
            if self.grid is None:
                return self._part(role, arrays, present, point, precise)
            return self._exact_part(self.grid, role, arrays, present, point, precise)

    def noisy(
        self, records: Mapping[str, tuple[Tree, jax.Array]], point: Tree, total: jax.Array, keys: jax.Array
    ) -> Tree:
        """The answer of a total, with its noise. Of ``records``, only the shape of a record is used."""
        return self._answered(self._example(records, point), total, keys)

    def _answered(self, example: tuple[Any, Any], total: jax.Array, keys: jax.Array) -> Tree:
        zeros, unravel = example
        with jax.enable_x64(True):
            noisy = self._noised(total, keys[0]) if self.grid is None else self._exactly_noised(self.grid, total, keys)
            rounded = noisy.astype(zeros.dtype)
        return unravel(rounded)

    def _total(
        self, records: Mapping[str, tuple[Tree, jax.Array]], point: Tree, batch_key: jax.Array, precise: bool
    ) -> jax.Array:
        """The sum over roles of their means of clipped contributions, without noise: private."""
        totals = []
        batches = self.sampling.draw(batch_key, [part.count for part in self.contributions.values()])
        for role, batch in zip(self.contributions, batches, strict=True):
            arrays, present = records[role]
            if batch is not None:
                if isinstance(arrays, Shards):
                    raise InvalidArgument(
                        f"release {self.name!r}: samples ({self.sampling!r}); must be dpb.FullBatch() for records that "
                        "are divided among devices, or rows would travel between them (leave mesh, or devices, out)"
                    )
                indices, taken = batch
                places = jnp.concatenate([indices, jnp.zeros(room(indices.size) - indices.size, indices.dtype)])
                arrays = (arrays if isinstance(arrays, Memory) else Memory(arrays)).at(places)
                present = present[indices] & taken
            totals.append(self._part(role, arrays, present, point, precise))
        return sum(totals, start=jnp.zeros(totals[0].size, jnp.float64))

    def _part(self, role: str, arrays: Tree, present: jax.Array, point: Tree, precise: bool) -> jax.Array:
        contribution = self.contributions[role]
        vector = at_point(contribution.per_record, point, precise)
        summed = clipped_sum(vector, arrays, present, contribution.clip)
        return summed / self.sampling.divisor(contribution.count)

    def _noised(self, total: jax.Array, key: jax.Array) -> jax.Array:
        """The total with its noise, which is drawn once, whatever the total was merged from."""
        return total + self.noise_std * standard_normal(key, total.size)

    def _exact_total(
        self, grid: Grid, records: Mapping[str, tuple[Tree, jax.Array]], point: Tree, precise: bool
    ) -> jax.Array:
        """The same in integers of the grid."""
        totals = []
        for role in self.contributions:
            arrays, present = records[role]
            totals.append(self._exact_part(grid, role, arrays, present, point, precise))
        return sum(totals, start=jnp.zeros(totals[0].size, jnp.int64))

    def _exact_part(
        self, grid: Grid, role: str, arrays: Tree, present: jax.Array, point: Tree, precise: bool
    ) -> jax.Array:
        contribution = self.contributions[role]
        vector = at_point(contribution.per_record, point, precise)
        return grid.summed(vector, arrays, present, contribution.clip, contribution.count)

    def _exactly_noised(self, grid: Grid, total: jax.Array, draws: jax.Array) -> jax.Array:
        if draws.shape != (grid.dimension, 2) or draws.dtype != jnp.uint32 or total.size != grid.dimension:
            raise InvalidArgument(f"release {self.name!r}: takes {grid.dimension} integers of exact noise, and no keys")
        return (total + jax.lax.bitcast_convert_type(draws, jnp.int64)).astype(jnp.float64) * grid.unit

    def _check_exact(self, grid: Grid) -> None:
        if not self.sampling.is_full_batch:
            raise InvalidArgument(
                f'noise="exact": release {self.name!r} samples ({self.sampling!r}); must be dpb.FullBatch(), for no '
                'accountant of sampled exact noise is used here (leave noise="float")'
            )
        grid.scale(self.name, self.noise_std)  # refuses noise that 64-bit integers could not hold

    def _example(self, records: Mapping[str, tuple[Tree, jax.Array]], point: Tree) -> tuple[Any, Any]:
        """A raveled answer of zeros, and the function that gives an answer its structure back."""
        shapes = []
        for role, contribution in self.contributions.items():
            one = unit_shape(arrays_of(records[role][0]))
            shapes.append(jax.eval_shape(lambda *at: dense(contribution.per_record(*at)), point, one))  # noqa: B023
        described = [(jax.tree.structure(s), [leaf.shape for leaf in jax.tree.leaves(s)]) for s in shapes]
        if any(description != described[0] for description in described):
            raise InvalidArgument(
                f"release {self.name!r}: the vectors of its roles must have the same structure and shapes"
            )
        if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for s in shapes for leaf in jax.tree.leaves(s)):
            raise InvalidArgument(f"release {self.name!r}: vectors must be real floating-point numbers")
        return ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[0]))


def shared_noise(ratios: Mapping[str, float], sensitivities: Mapping[str, float]) -> float:
    """The one noise that keeps every role's sensitivity over noise at or below its ratio."""
    return max(sensitivities[role] / ratios[role] for role in sensitivities)


def _ratio(sensitivity: float, noise: float) -> float:
    return math.inf if noise == 0 else sensitivity / noise


def at_point(vector: Callable[[Tree, Tree], Tree], point: Tree, precise: bool) -> Callable[[Tree], Tree]:
    """A contribution as a function of the record, traced in the user's precision."""

    def contribution(record: Tree) -> Tree:
        with jax.enable_x64(precise):
            return vector(point, arrays_of(record))

    return contribution
