"""Several processes as one job, on one machine or on several: those of `jax.distributed`.

All processes run the same code on the same public facts, each with its own devices. What one of them raises, all raise:
none goes on alone. Their messages are short and public, and pass through the service of the first process. What is
secret travels from device to device, as the arrays of programs do (`Job.broadcast`).
"""

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax._src import distributed  # the service through which processes talk has no public interface
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpbilevel import errors
from dpbilevel.errors import DPBilevelError, JobFailed

T = TypeVar("T")

PATIENCE = 1800.0  # seconds that a process waits for another one that lives; JAX notices one that has ended
_POLLING = 1000  # milliseconds between which signals are handled
_LEAVING = 3000  # milliseconds that processes wait for each other at their end
_END = "dpbilevel/end"
_ENDED = (
    "processes: JAX failed, most likely because another process of the job has ended or cannot be reached; see what "
    "that one said, and start all again"
)
_LOST: list[bool] = []  # whether this process was told that another one was killed
_LEAST = 2**12  # bytes of a broadcast: few lengths make few programs


class Job:
    """The processes of a job, seen from one of them.

    Args:
        count: how many there are.
        index: which of them this is. The first, 0, does what one alone may do: charge, write files, warn.

    >>> alone = Job()
    >>> alone.is_first, alone.is_several, alone.exchange("the end", "done")
    (True, False, ['done'])
    """

    def __init__(self, count: int = 1, index: int = 0) -> None:
        self.count, self.index = count, index
        self._sent = 0  # messages; those of the same number belong together
        self._known: BaseException | None = None  # the last error that all processes know of

    @property
    def is_first(self) -> bool:
        """Whether this process does what one alone may do."""
        return self.index == 0

    @property
    def is_several(self) -> bool:
        """Whether there are other processes."""
        return self.count > 1

    def exchange(self, place: str, text: str = "") -> list[str]:
        """The texts of all processes, in order; raises what another one has raised instead.

        Args:
            place: where in a run this is, a public name.
            text: public too.
        """
        if not self.is_several:
            return [text]
        self._send({"place": place, "text": text})
        heard = [self._received(index, place) for index in range(self.count)]
        for index, message in enumerate(heard):
            if "error" in message:
                raise self._error(*message["error"])
            if message["place"] != place:
                raise self._error(
                    "JobFailed",
                    f"processes: {index} is at {message['place']!r} and {self.index} is at {place!r}; all must run the "
                    "same code with the same arguments",
                )
        # All have sent this message, and have therefore read the one before it.
        _service().key_value_delete(_key(self._sent - 1, self.index))
        return [str(message["text"]) for message in heard]

    def agree(self, facts: Mapping[str, str]) -> None:
        """Raise, on all processes, unless all have the same facts: texts, by a public name in the plural."""
        for index, other in enumerate(self.exchange("comparison", json.dumps(dict(facts)))):
            for name, text in json.loads(other).items():
                if text != facts.get(name):
                    one, two = sorted((index, self.index))
                    raise self._error(
                        "JobFailed",
                        f"processes: {one} and {two} have other {name}; all must run the same code with the same "
                        "arguments, on the same files",
                    )

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """An error in here is raised by all processes, where they next wait for this one."""
        try:
            yield
        except BaseException as error:
            self._tell(error)
            raise

    @contextlib.contextmanager
    def barrier(self, place: str) -> Iterator[None]:
        """What each process does for itself: none goes on before all have done it, and all raise what one raises."""
        with self.telling():
            yield
        self.exchange(place)

    def by_first(self, place: str, action: Callable[[], T], follow: Callable[[], T]) -> T:
        """What ``action`` returns, to the first process; once that is done, what ``follow`` returns, to all others."""
        with self.barrier(place):
            done = [action()] if self.is_first else []
        return done[0] if done else follow()

    def first(self, place: str, action: Callable[[], str]) -> str:
        """The public text that ``action`` returns to the first process, which alone calls it."""
        with self.telling():
            text = action() if self.is_first else ""
        return self.exchange(place, text)[0]

    def broadcast(self, content: bytes) -> bytes:
        """The bytes of the first process, which may be secret; those of the others are ignored."""
        if not self.is_several:
            return content
        length = int(self.broadcast_arrays(np.uint32(len(content))))
        padded = np.zeros(max(_LEAST, 2 ** (length - 1).bit_length()), np.uint8)
        if self.is_first:
            padded[:length] = np.frombuffer(content, np.uint8)
        return bytes(self.broadcast_arrays(padded)[:length])

    def broadcast_arrays(self, arrays: Any) -> Any:
        """The arrays of the first process; those of the others have their shapes and are ignored."""
        if not self.is_several:
            return arrays
        self.exchange("a broadcast")  # JAX would wait for the last of them for a limited time
        with jax.transfer_guard("allow"), jax.disable_jit(False):
            return reached(lambda: jax.tree.map(lambda array: _of_first(np.asarray(array), self.is_first), arrays))

    def knows(self, error: BaseException) -> bool:
        """Whether all processes know of an error, or will where they next wait for this one."""
        return error is self._known

    def leave(self, code: int) -> int:
        """The exit code of the first process, which is that of all; one that does not come is not waited for."""
        if not self.is_several:
            return code
        with contextlib.suppress(TimeoutError, JobFailed):
            return reached(lambda: self._leave(code))
        return code

    def _leave(self, code: int) -> int:
        if not self.is_first:
            code = int(_service().blocking_key_value_get(_END, _LEAVING))
            _service().key_value_set(f"{_END}/{self.index}", "seen")
            return code
        _service().key_value_set(_END, str(code))
        for other in range(1, self.count):  # the service ends with this process
            _service().blocking_key_value_get(f"{_END}/{other}", _LEAVING)
        return code

    def _tell(self, error: BaseException) -> None:
        """Send an error in place of the next message, unless all know of it. Does not wait for anyone."""
        if not self.is_several or self.knows(error):
            return
        name = type(error).__name__
        text = f"processes: {self.index} ended with {name}; what it said is withheld, because it may depend on records"
        told = [name, str(error)] if isinstance(error, DPBilevelError) else ["JobFailed", text]
        with contextlib.suppress(JobFailed):  # the others are gone
            self._send({"error": told})
            self._known = error

    def _error(self, name: str, text: str) -> DPBilevelError:
        kind = getattr(errors, name, JobFailed)
        self._known = error = kind(text)
        return error

    def _send(self, message: dict[str, Any]) -> None:
        self._sent += 1
        key, text = _key(self._sent, self.index), json.dumps(message)
        reached(lambda: _service().key_value_set(key, text))

    def _received(self, index: int, place: str) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if has_lost():
                raise self._error("JobFailed", _ENDED)
            with contextlib.suppress(TimeoutError):
                key = _key(self._sent, index)
                return dict(json.loads(reached(lambda: _service().blocking_key_value_get(key, _POLLING))))  # noqa: B023
        raise self._error(
            "JobFailed",
            f"processes: {index} did not get to {place!r} within {PATIENCE:g} s of {self.index}; end all of them, and "
            "start them again",
        )


ALONE = Job()
_JOBS: dict[int, Job] = {}  # by JAX's client, which there is once


def current() -> Job:
    """The job that this process has joined; `ALONE` if it has joined none."""
    state = distributed.global_state
    if state.client is None or state.num_processes == 1:
        return ALONE
    return _JOBS.setdefault(id(state.client), Job(state.num_processes, state.process_id))


def reached(action: Callable[[], T]) -> T:
    """What an action returns that needs the other processes; JAX's errors become one of the library, without a text."""
    late = False
    try:
        return action()
    except DPBilevelError:
        raise
    except Exception as error:
        late = "DEADLINE_EXCEEDED" in str(error)
    if late:
        raise TimeoutError
    raise JobFailed(_ENDED)


def lose() -> None:
    """Another process was killed: do not wait for it, which JAX would do for a while."""
    _LOST.append(True)


def has_lost() -> bool:
    """Whether another process was killed."""
    return bool(_LOST)


def _of_first(array: npt.NDArray[Any], is_first: bool) -> npt.NDArray[Any]:
    """The array of the first process: a sum over all devices, of zeros except on its first one."""
    mesh = Mesh(np.array(jax.devices()), ("devices",))
    parts = [jax.device_put(np.zeros_like(array)[None], device) for device in jax.local_devices()]
    if is_first:
        parts[0] = jax.device_put(array[None], jax.local_devices()[0])
    shape, sharding = (mesh.size, *array.shape), NamedSharding(mesh, PartitionSpec("devices"))
    return np.asarray(_summed(jax.make_array_from_single_device_arrays(shape, sharding, parts), mesh))


@functools.partial(jax.jit, static_argnames=("mesh",))
def _summed(parts: jax.Array, mesh: Mesh) -> jax.Array:
    total = jnp.sum(parts, axis=0, dtype=parts.dtype)
    return jax.lax.with_sharding_constraint(total, NamedSharding(mesh, PartitionSpec()))


def _service() -> Any:
    return distributed.global_state.client


def _key(number: int, index: int) -> str:
    return f"dpbilevel/{number}/{index}"
