"""One side of a comparison in a process of its own, and the process that asks sides in turn.

Two sides may need different environments or different revisions of the library, and peak memory is that of a process.
So each side is a worker: it prepares, runs once (compilation included), and then runs once for every line it is sent.
The other process asks side after side, A B A B ..., so that all sides see the same load of the machine.

This module imports nothing but the standard library, so that every environment can use it.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

Run = Callable[..., Any]  # one run, which returns when its results are there; a dictionary of its own is kept
HERE = Path(__file__).resolve().parent
_COMPILED = "/jax/core/compile/backend_compile_duration"


def serve(sides: Mapping[str, Callable[..., Run]]) -> None:
    """The main function of a worker: the command line names a side and its arguments."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to standard error
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    compilations: list[float] = []

    def timed(**settings: Any) -> None:
        before, begin = len(compilations), time.perf_counter()
        own = run(**settings)
        seconds = time.perf_counter() - begin
        result = {
            "seconds": seconds,
            "compilations": len(compilations) - before,
            "compile seconds": sum(compilations[before:]),
            "peak": _memory("VmHWM") - held,
        }
        print(json.dumps(result | (own or {})), file=answers, flush=True)

    run = sides[name](**arguments)
    if "jax" in sys.modules:
        from jax import monitoring

        monitoring.register_event_duration_secs_listener(
            lambda event, seconds, **_: compilations.append(seconds) if event == _COMPILED else None
        )
    held = _memory("VmRSS")
    _forget_peak()
    timed()
    for line in sys.stdin:
        timed(**json.loads(line))


def _memory(field: str) -> int:
    """Resident bytes of this process, now (VmRSS) or at most (VmHWM); 0 where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


def _forget_peak() -> None:
    """Peak memory counts from here on."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        print("peak memory includes preparation: this system does not reset it", file=sys.stderr)


class Side:
    """A worker process.

    Args:
        name, arguments: which side, and its sizes.
        script: the file of this folder that serves it.
        python: interpreter, by default this one.
        source: a folder of the library's source, by default that of this checkout.
    """

    def __init__(
        self, name: str, arguments: Mapping[str, Any], script: str, python: str = sys.executable, source: str = ""
    ) -> None:
        # Compilation is measured, so that nothing compiled may be found on disk.
        environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
        environment["PYTHONPATH"] = source or str(HERE.parent / "src")
        self.process = subprocess.Popen(
            [python, str(HERE / script), name, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def first(self) -> dict[str, Any]:
        """The result of the first run, once it is there."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a side failed: {self.process.args}")
        return dict(json.loads(line))

    def run(self, **settings: Any) -> dict[str, Any]:
        """The result of one more run."""
        assert self.process.stdin is not None
        print(json.dumps(settings), file=self.process.stdin, flush=True)
        return self.first()

    def __enter__(self) -> "Side":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        if kind is not None:
            self.process.kill()
        self.process.stdin.close()
        self.process.wait()


def interleaved(sides: Mapping[str, Callable[[], Side]], repeats: int) -> dict[str, Any]:
    """For each side its first run, and the seconds of further runs, which take turns: A B A B ..."""
    load = [os.getloadavg()[0]]
    with ExitStack() as stack:
        workers, first = {}, {}
        for name, make in sides.items():  # one after the other, so that no side compiles while another one runs
            workers[name] = stack.enter_context(make())
            first[name] = workers[name].first()
        runs = [{name: worker.run() for name, worker in workers.items()} for _ in range(repeats)]
    load.append(os.getloadavg()[0])
    collected = {
        name: {
            "first": first[name]["seconds"],
            "compile seconds": first[name]["compile seconds"],
            "peak": max([first[name]["peak"], *(run[name]["peak"] for run in runs)]),
            "runs": [run[name]["seconds"] for run in runs],
            "setting": runs[-1][name].get("setting", ""),
        }
        for name in sides
    }
    return {"sides": collected, "load": load}
