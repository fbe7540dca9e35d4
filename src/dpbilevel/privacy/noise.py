"""Random number generation: the only module that draws float64 noise and batches (`discrete` draws exact noise).

Each use of a release has its own key: BLAKE2b of a 256-bit secret and the index of the use. Keys are not split from a
common 64-bit root. A run that resumes at index k draws exactly what it would have drawn without the interruption: no
noise is replayed and none is skipped. Keys and names of checkpoints are generated here too.

Normal variates are drawn in float64. In float32 they never exceed 5.42 standard deviations, and the missing tail has a
probability comparable to usual deltas; in float64 they reach past 8. Neither protects against an adversary who reads
the lowest bits of floating-point noise (Mironov 2012; Haney et al. 2022): exact noise does.
"""

import hashlib
import math
import secrets
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument, NotCharged
from dpbilevel.foundation.processes import Job

_PURPOSES = {"noise": 0, "batch": 1}


class KeySchedule:
    """Keys for every use of every release, derived from one secret.

    The secret comes from the operating system; it is neither shown nor pickled. A fixed seed instead makes a run
    reproducible and therefore not private.
    """

    __slots__ = ("__common", "__owner", "__reproducible", "__secret")

    def __init__(self, seed: int | None = None) -> None:
        if seed is None:
            self.__secret = secrets.token_bytes(32)
        elif isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise InvalidArgument(f"seed={seed!r}: must be a whole number >= 0, or None for a private run")
        else:
            self.__secret = hashlib.blake2b(f"not private: {int(seed)}".encode(), digest_size=32).digest()
        self.__reproducible = self.__common = seed is not None
        self.__owner: object = None

    @classmethod
    def restore(cls, secret: bytes) -> "KeySchedule":
        """The schedule of an interrupted run. The checkpoint has verified that everything else is the same."""
        schedule = cls()
        schedule.__secret = secret
        return schedule

    def reveal_secret(self) -> bytes:
        """The secret, for a checkpoint, which must stay as secret: it suffices to remove all noise of the run."""
        return self.__secret

    def shared(self, job: Job) -> "KeySchedule":
        """The schedule of the first process of a job, on all of them."""
        if self.__common or not job.is_several:
            return self  # processes agree upon a seed
        common = self if job.is_first else type(self)()
        common.__secret, common.__common = job.broadcast(self.__secret), True
        return common

    @property
    def is_common(self) -> bool:
        """Whether all processes of a job have it."""
        return self.__common

    def claim(self, owner: object) -> None:
        """Bind the schedule to one run, so that no other run draws the same noise."""
        if self.__owner not in (None, owner):
            raise NotCharged("schedule: belongs to another run, whose noise it would repeat; make a new KeySchedule")
        self.__owner = owner

    @property
    def reproducible(self) -> bool:
        """Whether a fixed seed makes the noise predictable, so that the run is not private."""
        return self.__reproducible

    def keys(self, purpose: str, first: int, number: int) -> npt.NDArray[np.uint32]:
        """Keys of uses ``first`` to ``first + number - 1``, one row each."""
        person = b"dpbilevel" + bytes([_PURPOSES[purpose]])
        digests = b"".join(
            hashlib.blake2b(index.to_bytes(8, "big"), digest_size=8, key=self.__secret, person=person).digest()
            for index in range(first, first + number)
        )
        return np.frombuffer(digests, dtype=np.uint32).reshape(number, 2)

    def __repr__(self) -> str:
        return f"KeySchedule({'fixed seed: not private' if self.reproducible else 'secret'})"

    def __getstate__(self) -> NoReturn:
        raise TypeError("a KeySchedule holds the secret that makes noise unpredictable: it cannot be pickled or copied")

    def __reduce__(self) -> NoReturn:
        self.__getstate__()


def fresh_key() -> bytes:
    """256 secret random bits from the operating system, for seals."""
    return secrets.token_bytes(32)


def fresh_name() -> str:
    """A unique public name: 64 random bits, independent of every key."""
    return secrets.token_hex(8)


def standard_normal(key: jax.Array, size: int) -> jax.Array:
    """``size`` standard normal variates in float64 (which must be enabled where this is traced)."""
    return jax.random.normal(_wrapped(key), (size,), dtype=jnp.float64)


def membership(key: jax.Array, rate: float, size: int) -> jax.Array:
    """Boolean mask of the records, out of ``size``, in a Poisson sample."""
    return jax.random.uniform(_wrapped(key), (size,), dtype=jnp.float64) < rate


def capacity(rate: float, size: int) -> int:
    """The number of slots that a Poisson batch of fixed shape needs.

    A batch overflows with probability below 2^-200, which vanishes in any sum of deltas in float64; records beyond the
    last slot are then left out, which is a legal outcome of the sampling.
    """
    exponent = 200 * math.log(2)  # Bernstein's inequality, solved for the excess over the mean
    excess = exponent / 3 + math.sqrt((exponent / 3) ** 2 + 2 * exponent * size * rate * (1 - rate))
    return min(size, math.ceil(size * rate + excess))


def draw_indices(key: jax.Array, stream: int, number: int, size: int, replace: bool) -> jax.Array:
    """Draw ``size`` of ``number`` indices, with or without replacement; different streams are independent."""
    own = jax.random.fold_in(_wrapped(key), stream)
    if replace:
        return jax.random.randint(own, (size,), 0, number)
    return jax.random.choice(own, number, (size,), replace=False)


def _wrapped(key: jax.Array) -> jax.Array:
    # The implementation is explicit, so that a user's jax_default_prng_impl cannot change it.
    return jax.random.wrap_key_data(key, impl="threefry2x32")
