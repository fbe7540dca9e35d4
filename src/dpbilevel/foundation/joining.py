"""Join a job of several processes: meet at an address, compare versions, and start `jax.distributed`.

JAX ends a process that cannot join, without an exception. So the processes meet before: the first waits at the address
for all others, and tells each of them whether all have come and are alike, or what is wrong. All sockets, those of JAX
too, are bound to the network of that address only. No process proves who it is.
"""

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jaxlib
import numpy as np
from jax._src import distributed, xla_bridge
from jax._src.lib import _jax
from jax.extend.backend import register_backend_factory

from dpbilevel.errors import InvalidArgument, JobFailed
from dpbilevel.foundation.about import version
from dpbilevel.foundation.arguments import count
from dpbilevel.foundation.processes import current, has_lost

JOINING = 300.0  # seconds within which all processes must have come
SILENCE = 60  # seconds without a sign of life of a process after which JAX ends the others
_PAUSE = 0.1  # seconds between two tries to connect, or to accept
_PATIENCE = 5.0  # seconds that the first process listens to one that says nothing
_LONGEST = 2**12  # bytes of a message
_FAILED = "the job did not start, and nothing was charged"


def join_job(coordinator: str, processes: int, process: int, *, is_local: bool = False) -> None:
    """Make this process one of a job of several, before JAX computes anything.

    All processes then run the same code: ``jax.devices()`` are the devices of all, and `Records` are divided among a
    mesh of them. What travels between processes is neither encrypted nor authenticated: the address must be on a
    network whose members are all trusted with the records. All sockets are bound to that network.

    `jax.distributed.initialize` is another way to join; JAX then listens on all networks unless it is told not to.

    Args:
        coordinator: HOST:PORT, at which process 0 listens, such as "127.0.0.1:5678" if all are on one machine.
        processes: how many there are.
        process: which of them this is, from 0 on.
        is_local: whether all are on this machine: each then has the accelerator of its number, if there are any.

    >>> join_job("somewhere", processes=2, process=0)
    Traceback (most recent call last):
        ...
    dpbilevel.errors.InvalidArgument: coordinator='somewhere': must be HOST:PORT, ...
    """
    _place(coordinator, processes, process)
    if xla_bridge.backends_are_initialized():
        raise InvalidArgument(
            "join_job: must be called before anything else computes with JAX, and once; start the processes again, and "
            "let each of them join first"
        )
    own = meet(coordinator, processes, process)
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM
    jax.distributed.initialize(
        coordinator,
        processes,
        process,
        local_device_ids=[process] if is_local else None,
        initialization_timeout=int(JOINING),
        heartbeat_timeout_seconds=SILENCE,
        shutdown_timeout_seconds=SILENCE,
        coordinator_bind_address=coordinator,
    )
    if getattr(jax.config, "jax_cpu_collectives_implementation", None) == "gloo":
        register_backend_factory("cpu", partial(_processors, own), priority=0, fail_quietly=False)
    with _silence():  # Gloo prints a line when devices connect
        current().broadcast(b"")


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Without the standard output of this process, that of libraries in C++ too."""
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _processors(own: str) -> Any:
    """Processors that exchange arrays at this address; by default, at that of the machine's name."""
    client = distributed.global_state.client
    return xla_bridge.make_cpu_client(_jax.make_gloo_tcp_collectives(distributed_client=client, hostname=own))


def meet(coordinator: str, processes: int, process: int, seconds: float = JOINING) -> str:
    """Wait until all processes have come and are alike; returns the address of this one on their network."""
    place = _place(coordinator, processes, process)
    hello = {"processes": processes, "process": process, "versions": _versions()}
    until = time.monotonic() + seconds
    if process:
        return _go(coordinator, place, hello, until)
    return _wait(coordinator, place, hello, until)


def _wait(coordinator: str, place: tuple[str, int], hello: dict[str, Any], until: float) -> str:
    """As the first process."""
    try:
        server = socket.create_server(place, family=socket.AF_INET6 if ":" in place[0] else socket.AF_INET)
    except OSError as error:
        raise JobFailed(
            f"coordinator {coordinator}: process 0 cannot listen there ({os.strerror(error.errno or 0)}); it must be a "
            "free port, at an address of its machine"
        ) from None
    came, connections, problem = {0}, [], None
    with contextlib.ExitStack() as stack:
        own = str(stack.enter_context(server).getsockname()[0])
        server.settimeout(_PAUSE)
        while problem is None and len(came) < hello["processes"]:
            missing = [str(other) for other in range(hello["processes"]) if other not in came]
            if has_lost() or time.monotonic() > until:
                how = "ended before it came" if has_lost() else "did not come in time"
                problem = f"process {', '.join(missing)} of {hello['processes']} {how}"
                break
            with contextlib.suppress(TimeoutError):
                connection = stack.enter_context(server.accept()[0])
                other = _read(connection, _PATIENCE)
                if other is not None and isinstance(other.get("process"), int):  # else it is none of ours
                    problem = _difference(hello, other, came)
                    connections.append(connection)
                    came.add(other["process"])
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps({"problem": problem}).encode() + b"\n")
    if problem is not None:
        raise JobFailed(f"coordinator {coordinator}: {problem}; {_FAILED}")
    return own


def _go(coordinator: str, place: tuple[str, int], hello: dict[str, Any], until: float) -> str:
    """As another process."""
    reason = "no answer"
    while (left := until - time.monotonic()) > 0 and not has_lost():
        try:
            with socket.create_connection(place, timeout=left) as connection:
                connection.sendall(json.dumps(hello).encode() + b"\n")
                answer = _read(connection, JOINING + _PATIENCE)
                own = str(connection.getsockname()[0])
        except OSError as error:
            reason = error.strerror or "no answer"
            time.sleep(_PAUSE)
            continue
        if answer is None or "problem" not in answer:
            raise JobFailed(f"coordinator {coordinator}: is no first process of a job; {_FAILED}. Check the address")
        if answer["problem"] is not None:
            raise JobFailed(f"coordinator {coordinator}: {answer['problem']}; {_FAILED}")
        return own
    if has_lost():
        raise JobFailed(f"coordinator {coordinator}: another process has ended before all came; {_FAILED}")
    raise JobFailed(
        f"coordinator {coordinator}: process {hello['process']} could not reach process 0 in time ({reason}); "
        f"{_FAILED}. Check the address, and that process 0 was started"
    )


def _difference(hello: dict[str, Any], other: dict[str, Any], came: set[int]) -> str | None:
    """What is wrong with another process; None if nothing is."""
    index = other["process"]
    if other.get("versions") != hello["versions"]:
        return f"process {index} has {other.get('versions')}, and process 0 has {hello['versions']}"
    if other.get("processes") != hello["processes"]:
        return f"process {index} is one of {other.get('processes')}, and process 0 one of {hello['processes']}"
    return f"there are two processes {index}" if index in came else None


def _read(connection: socket.socket, seconds: float) -> dict[str, Any] | None:
    """One line of JSON; None if there is none."""
    connection.settimeout(max(0.01, seconds))
    with contextlib.suppress(OSError, ValueError):
        line = connection.makefile("rb").readline(_LONGEST)
        content = json.loads(line)
        return content if isinstance(content, dict) else None
    return None


def _versions() -> str:
    return f"dpbilevel {version()}, JAX {jax.__version__}, jaxlib {jaxlib.__version__}, NumPy {np.__version__}"


def _place(coordinator: Any, processes: Any, process: Any) -> tuple[str, int]:
    """The address of the first process; raises unless all arguments are usable."""
    place = _address(coordinator)
    number = count("processes", processes, "it is the number of processes of the job (try 2)")
    if isinstance(process, bool) or not isinstance(process, int) or not 0 <= process < number:
        raise InvalidArgument(f"process={process!r}: must be from 0 to {number - 1}, one number for each process")
    return place


def _address(coordinator: Any) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(":") if isinstance(coordinator, str) else ("", "", "")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
        raise InvalidArgument(
            f"coordinator={coordinator!r}: must be HOST:PORT, at an address of the machine of process 0 "
            "(127.0.0.1:PORT if all are on one machine)"
        )
    return host.strip("[]"), int(port)
