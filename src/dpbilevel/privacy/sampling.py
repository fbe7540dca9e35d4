"""Sampling schemes: which records take part in one use of a release.

A scheme defines everything that the library needs to know about it: the records of a batch (`draw`), the privacy loss
of the record that changes (`loss_distribution`), the public number by which a sum is divided (`divisor`), and its JSON.
No other module distinguishes schemes.

The divisor is always public; it is never the realised size of a Poisson batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count, positive
from dpbilevel.privacy import profiles

if TYPE_CHECKING:  # inspecting a ledger does not need JAX
    import jax

    Batch = tuple[jax.Array, jax.Array]  # indices, of fixed length, and a mask of those that count

_SCHEMES: dict[str, type["Sampling"]] = {}  # by the name in run files


class Sampling(ABC):
    """A sampling scheme: a frozen dataclass of public numbers, registered under its name when it is defined.

    Privacy relies on the following contract: one use of a release reads the records selected by `draw`, with randomness
    that no other use shares, and its cost to a record is at most `loss_distribution`. Both must describe the same
    distribution. The argument *ratio* is sensitivity over noise, for a batch that contains the record once.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        known = _SCHEMES.setdefault(cls.__name__, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidArgument(
                f"sampling {cls.__name__!r}: is the name of another scheme, which run files would then refer to "
                "(choose another name)"
            )
        _SCHEMES[cls.__name__] = cls

    @property
    def is_full_batch(self) -> bool:
        """Whether every record is in every batch, so that the accounting is that of the Gaussian mechanism."""
        return False

    @property
    def draws_once(self) -> bool:
        """Whether no batch contains a record twice, so that a batch never costs more than the full batch."""
        return False

    @abstractmethod
    def divisor(self, records: int) -> float:
        """The public number by which a sum over the batch is divided; raises if ``records`` are too few."""

    @abstractmethod
    def draw(self, key: "jax.Array", counts: Sequence[int]) -> "list[Batch | None]":
        """One batch per role, given the number of records of each; None for all records.

        Shapes depend on public numbers alone, and all randomness is drawn by `privacy.noise` from ``key``.
        """

    @abstractmethod
    def loss_distribution(self, ratio: float, records: int | None, adjacency: str, discretisation: float) -> Any:
        """The privacy loss distribution (dp_accounting's) of one use, for a role of ``records`` records."""

    def accountants(self, adjacency: str) -> tuple[str, ...]:
        """The accountants of dp_accounting, "pld" or "rdp", that count `dp_event` correctly; by default none."""
        return ()

    def dp_event(self, gaussian: Any, records: int | None) -> Any:
        """One use as a ``dp_accounting.DpEvent``, given the event of the Gaussian mechanism on a batch."""
        raise InvalidArgument(
            f"sampling={self!r}: has no dp_accounting event; compose epsilon(delta) and delta instead"
        )

    @property
    def assumption(self) -> str | None:
        """A caveat of the guarantee: a scheme from outside the library is trusted to draw what it accounts for."""
        if type(self).__module__ == __name__:
            return None
        return (
            f"the sampling scheme {type(self).__name__} is not part of the library: the guarantee assumes that its "
            "draws follow the distribution that it accounts for"
        )

    def to_json(self) -> dict[str, Any]:
        """The fields of a run file."""
        return {"sampling": type(self).__name__, "sampling_parameters": asdict(self)}  # type: ignore[call-overload]


def sampling_from_json(fields: Mapping[str, Any]) -> Sampling:
    """The scheme with these fields; the inverse of `Sampling.to_json`."""
    name = fields["sampling"]
    if name not in _SCHEMES:
        raise InvalidArgument(f"sampling={name!r}: is not a known scheme; import the module that defines it first")
    return _SCHEMES[name](**fields["sampling_parameters"])


def check_sampling(sampling: Sampling) -> None:
    """Raise unless ``sampling`` is a scheme, and one that cannot change after a charge."""
    if not isinstance(sampling, Sampling):
        raise InvalidArgument(
            f"sampling={sampling!r}: must be dpb.FullBatch(), dpb.Poisson(rate), dpb.WithoutReplacement(size) or "
            "dpb.WithReplacement(size)"
        )
    settings = getattr(sampling, "__dataclass_params__", None)
    if settings is None or not settings.frozen:
        raise InvalidArgument(
            f"sampling={type(sampling).__name__}: must be a frozen dataclass; it must not change after a charge "
            "(decorate the scheme with @dataclass(frozen=True))"
        )


@dataclass(frozen=True)
class FullBatch(Sampling):
    """Every record is in every batch."""

    @property
    def is_full_batch(self) -> bool:
        """Whether every record is in every batch, so that the accounting is that of the Gaussian mechanism."""
        return True

    @property
    def draws_once(self) -> bool:
        """Always."""
        return True

    def divisor(self, records: int) -> float:
        """The public number by which a sum over the batch is divided."""
        return float(records)

    def draw(self, key: "jax.Array", counts: Sequence[int]) -> "list[Batch | None]":
        """All records of every role."""
        return [None] * len(counts)

    def loss_distribution(self, ratio: float, records: int | None, adjacency: str, discretisation: float) -> Any:
        """The privacy loss distribution of the Gaussian mechanism."""
        return _gaussian_losses(ratio, 1.0, adjacency, discretisation)

    def accountants(self, adjacency: str) -> tuple[str, ...]:
        """Both."""
        return ("pld", "rdp")

    def dp_event(self, gaussian: Any, records: int | None) -> Any:
        """The event of the Gaussian mechanism itself."""
        return gaussian


@dataclass(frozen=True)
class Poisson(Sampling):
    """Each record is in a batch with probability ``rate``, independently.

    The size of a batch is private: a sum is divided by the public rate * n, and the answer of an empty batch is noise.
    """

    rate: float

    def __post_init__(self) -> None:
        rate = positive("rate", self.rate, "it is a sampling probability (try 0.1)")
        if rate > 1:
            raise InvalidArgument(f"rate={self.rate!r}: must be at most 1; it is a sampling probability (try 0.1)")
        object.__setattr__(self, "rate", rate)

    @property
    def is_full_batch(self) -> bool:
        """Whether the rate is one."""
        return self.rate == 1

    @property
    def draws_once(self) -> bool:
        """Always."""
        return True

    def divisor(self, records: int) -> float:
        """The expected size of a batch."""
        return self.rate * records

    def draw(self, key: "jax.Array", counts: Sequence[int]) -> "list[Batch | None]":
        """A coin flip per record; selected records are gathered into an array of fixed length."""
        import jax.numpy as jnp

        from dpbilevel.privacy import noise

        if self.is_full_batch:
            return [None] * len(counts)
        taken = noise.membership(key, self.rate, sum(counts))
        batches: list[Batch | None] = []
        for number in counts:
            mine, taken = taken[:number], taken[number:]
            size = noise.capacity(self.rate, number)
            batches.append((jnp.nonzero(mine, size=size, fill_value=0)[0], jnp.arange(size) < jnp.sum(mine)))
        return batches

    def loss_distribution(self, ratio: float, records: int | None, adjacency: str, discretisation: float) -> Any:
        """The privacy loss distribution of a Gaussian on a Poisson sample, from dp_accounting."""
        return _gaussian_losses(ratio, self.rate, adjacency, discretisation)

    def accountants(self, adjacency: str) -> tuple[str, ...]:
        """Under replace-one, dp_accounting has no Rényi divergence for it."""
        return ("pld",) if adjacency == "replace-one" else ("pld", "rdp")

    def dp_event(self, gaussian: Any, records: int | None) -> Any:
        """The event of the Gaussian mechanism on a Poisson sample."""
        from dp_accounting import PoissonSampledDpEvent

        return PoissonSampledDpEvent(float(self.rate), gaussian)


@dataclass(frozen=True)
class WithoutReplacement(Sampling):
    """``size`` different records; all such batches are equally likely.

    Costs much more than Poisson sampling, under both relations: a batch without the record contains another one in its
    place, which may point the other way.
    """

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", count("size", self.size, "it is the number of records in a batch"))

    @property
    def draws_once(self) -> bool:
        """Always."""
        return True

    def divisor(self, records: int) -> float:
        """The size of a batch; it must not exceed the number of records."""
        if self.size > records:
            raise InvalidArgument(
                f"size={self.size}: must be at most n = {records}; a batch cannot contain more records than there are"
            )
        return float(self.size)

    def draw(self, key: "jax.Array", counts: Sequence[int]) -> "list[Batch | None]":
        """Different records of each role, independently across roles."""
        return _fixed_size(key, counts, self.size, replace=False)

    def loss_distribution(self, ratio: float, records: int | None, adjacency: str, discretisation: float) -> Any:
        """The privacy loss distribution, from the profile of one use."""
        parameters = float(ratio), self.size, _known(records, self)
        return profiles.loss_distribution(profiles.without_replacement, parameters, adjacency, discretisation)

    def accountants(self, adjacency: str) -> tuple[str, ...]:
        """Under replace-one, dp_accounting has its Rényi divergence."""
        return ("rdp",) if adjacency == "replace-one" else ()

    def dp_event(self, gaussian: Any, records: int | None) -> Any:
        """The event of the Gaussian mechanism on a batch of fixed size."""
        from dp_accounting import SampledWithoutReplacementDpEvent

        return SampledWithoutReplacementDpEvent(_known(records, self), self.size, gaussian)


@dataclass(frozen=True)
class WithReplacement(Sampling):
    """``size`` independent draws, as in the paper: a record may be drawn several times, which is accounted for."""

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", count("size", self.size, "it is the number of draws in a batch"))

    def divisor(self, records: int) -> float:
        """The size of a batch; the paper's b is between 1 and n."""
        if self.size > records:
            raise InvalidArgument(f"size={self.size}: must be at most n = {records}, as in the paper")
        return float(self.size)

    def draw(self, key: "jax.Array", counts: Sequence[int]) -> "list[Batch | None]":
        """Independent draws from each role."""
        return _fixed_size(key, counts, self.size, replace=True)

    def loss_distribution(self, ratio: float, records: int | None, adjacency: str, discretisation: float) -> Any:
        """The privacy loss distribution, from the profile of one use, which averages over the number of draws."""
        parameters = float(ratio), self.size, _known(records, self)
        return profiles.loss_distribution(profiles.with_replacement, parameters, adjacency, discretisation)


def _gaussian_losses(ratio: float, rate: float, adjacency: str, discretisation: float) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    # Under REPLACE_ONE, dp_accounting expects noise over one record's contribution, and doubles the sensitivity itself.
    relation, multiple = {
        "replace-one": (NeighboringRelation.REPLACE_ONE, 2.0),  # sensitivity is twice one record's contribution
        "zero-out": (NeighboringRelation.REPLACE_SPECIAL, 1.0),
    }[adjacency]
    return pld.from_gaussian_mechanism(
        standard_deviation=float(multiple / ratio),
        value_discretization_interval=discretisation,
        sampling_prob=float(rate),
        neighboring_relation=relation,
    )


def _fixed_size(key: "jax.Array", counts: Sequence[int], size: int, replace: bool) -> "list[Batch | None]":
    import jax.numpy as jnp

    from dpbilevel.privacy import noise

    everyone = jnp.ones(size, bool)
    return [(noise.draw_indices(key, role, number, size, replace), everyone) for role, number in enumerate(counts)]


def _known(records: int | None, sampling: Sampling) -> int:
    if records is None:
        raise InvalidArgument(f"records=None: {sampling!r} cannot be accounted for without the number of records")
    return records
