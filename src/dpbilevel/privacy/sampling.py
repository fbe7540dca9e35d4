"""Who takes part in a step: everybody, or a random batch.

The number that a sum is divided by is public in every case: never the realised size of a Poisson batch.
"""

from dataclasses import dataclass

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count, positive


@dataclass(frozen=True)
class FullBatch:
    """Every record takes part in every step."""

    @property
    def is_full_batch(self) -> bool:
        """Whether no record is ever left out, so that accounting is that of the plain Gaussian."""
        return True

    def divisor(self, records: int) -> float:
        """The public number by which a sum over the batch is divided."""
        return float(records)


@dataclass(frozen=True)
class Poisson:
    """Each record takes part in a step with probability ``rate``, independently.

    The size of a batch is private: an answer is divided by the public rate * n, an empty batch is pure noise.
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

    def divisor(self, records: int) -> float:
        """The expected size of a batch."""
        return self.rate * records


@dataclass(frozen=True)
class WithoutReplacement:
    """``size`` different records, every such batch equally likely.

    Costs far more than Poisson sampling, under both relations: a batch that does not hold a record holds another one in
    its place, which may point the other way.
    """

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", count("size", self.size, "it is the number of records in a batch"))

    @property
    def is_full_batch(self) -> bool:
        """Never assumed: whether size equals n is for the accountant to see."""
        return False

    def divisor(self, records: int) -> float:
        """The size of a batch; it must not exceed the number of records."""
        if self.size > records:
            raise InvalidArgument(
                f"size={self.size}: must be at most n = {records}; a batch cannot hold more records than there are"
            )
        return float(self.size)


@dataclass(frozen=True)
class WithReplacement:
    """``size`` independent draws, as the paper has it: a record may be drawn several times, and is charged for it."""

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", count("size", self.size, "it is the number of draws in a batch"))

    @property
    def is_full_batch(self) -> bool:
        """Never."""
        return False

    def divisor(self, records: int) -> float:
        """The size of a batch; the paper's b lies between 1 and n."""
        if self.size > records:
            raise InvalidArgument(f"size={self.size}: must be at most n = {records}, as the paper has it")
        return float(self.size)


Sampling = FullBatch | Poisson | WithoutReplacement | WithReplacement


def check_sampling(sampling: Sampling) -> None:
    """Raise unless ``sampling`` is one of the schemes that the accountant knows."""
    if not isinstance(sampling, FullBatch | Poisson | WithoutReplacement | WithReplacement):
        raise InvalidArgument(
            f"sampling={sampling!r}: must be dpb.FullBatch(), dpb.Poisson(rate), dpb.WithoutReplacement(size) or "
            "dpb.WithReplacement(size)"
        )
