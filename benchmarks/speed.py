"""Speed and memory, as ratios between sides that take turns in one run.

    python benchmarks/speed.py [--peer PYTHON] [--only WORD]    (an hour on two cores; make bench-speed)
    python benchmarks/speed.py --report                         (writes docs/results/speed.md and speed.svg)
    python benchmarks/speed.py --device-step --rows 8000000 --columns 256

PYTHON is an interpreter with the peers of benchmarks/speed.txt; without one their lines are left out. Results are
stored line by line and a line that is there is not measured again: delete it from the file, or use --again. The third
form measures one tracking step on the device that JAX finds and needs nothing but the library's own requirements.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pieces
from speed_worker import HERE, Side, interleaved

ROOT = HERE.parent
RESULTS = ROOT / "docs" / "results" / "speed.json"
BEGINNING = "0cb980d"  # the commit that whole fits are compared with
REPEATS, STEPS = 7, 10  # runs of each side; tracking steps in a run
SHORT_REPEATS = 21  # of runs that take milliseconds
ROWS, TINY = 50_000, 500
MANY = (10_000, 100_000, 1_000_000)
BASE_ROWS = 1000  # peak memory of a fit of so few rows is that of the code


@dataclass(frozen=True)
class Line:
    """A line of the results.

    Args:
        key: its name.
        measure: settings -> the content of its cell.
        needs_peer: whether it needs the environment of the peers.
        gigabytes: free memory without which it is left out.
    """

    key: str
    measure: Callable[["Settings"], dict[str, Any]]
    needs_peer: bool = False
    gigabytes: float = 0.0


@dataclass(frozen=True)
class Settings:
    """What all lines share: the interpreter of the peers, and the number of runs."""

    peer: str | None = None
    tiny: bool = False

    def repeats(self, number: int = REPEATS) -> int:
        """The number of runs of each side."""
        return 2 if self.tiny else number

    def side(self, name: str, script: str = "speed_sides.py", **arguments: Any) -> Callable[[], Side]:
        """A side in the library's environment."""
        return lambda: Side(name, arguments, script)

    def peer_side(self, name: str, script: str, **arguments: Any) -> Callable[[], Side]:
        """A side in the environment of the peers."""
        return lambda: Side(name, arguments, script, str(self.peer))


def linear_step(columns: int, tiny: bool) -> Line:
    """A private tracking step of a linear model, and the same step in plain JAX."""
    rows = TINY if tiny else ROWS

    def measure(settings: Settings) -> dict[str, Any]:
        sizes = {"number": rows, "columns": columns, "chunk": STEPS}
        sides = {"private": settings.side("private_linear", **sizes), "plain": settings.side("plain_linear", **sizes)}
        return interleaved(sides, settings.repeats(SHORT_REPEATS)) | {"steps": STEPS}

    return Line(f"step, linear, {rows} x {columns}", measure)


def network_step(columns: int, hidden: int, tiny: bool) -> Line:
    """The same of a small network."""
    rows = TINY if tiny else ROWS

    def measure(settings: Settings) -> dict[str, Any]:
        sizes = {"number": rows, "columns": columns, "chunk": 2, "hidden": hidden}
        sides = {name: settings.side(f"{name}_network", **sizes) for name in ("private", "plain", "clipped")}
        return interleaved(sides, settings.repeats()) | {"steps": 2}

    return Line(f"step, network of {hidden} units, {rows} x {columns}", measure)


def whole_fit(columns: int, tiny: bool) -> Line:
    """A fit with all defaults: now, at the commit at which this work began, and scikit-learn's without privacy."""
    rows = TINY if tiny else ROWS

    def measure(settings: Settings) -> dict[str, Any]:
        sizes = {"number": rows, "columns": columns}
        with checkout(BEGINNING) as source:
            sides = {
                "now": settings.side("fit", **sizes),
                BEGINNING: lambda: Side("fit", sizes, "speed_sides.py", source=source),
                "scikit-learn": settings.side("scikit_learn", **sizes),
            }
            return interleaved(sides, settings.repeats(5))

    return Line(f"fit, {rows} x {columns}", measure)


@contextmanager
def checkout(commit: str) -> Iterator[str]:
    """The source folder of a commit, in a temporary git worktree."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(tree), commit], cwd=ROOT, check=True)
        try:
            yield str(tree / "src")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def second_epsilon(columns: int, tiny: bool) -> Line:
    """A fit with another epsilon, and one with the same epsilon again, in one process."""
    rows = TINY if tiny else ROWS

    def measure(settings: Settings) -> dict[str, Any]:
        load = [os.getloadavg()[0]]
        with settings.side("fit", number=rows, columns=columns)() as worker:
            first = worker.first()
            runs = []
            for turn in range(settings.repeats(5)):
                other = 1.1 + 0.1 * turn
                runs.append({"other": worker.run(epsilon=other), "same": worker.run(epsilon=1.0)})
        sides = {
            name: {
                "runs": [run[name]["seconds"] for run in runs],
                "compilations": [run[name]["compilations"] for run in runs],
            }
            for name in ("other", "same")
        }
        return {"sides": sides, "first": first["seconds"], "load": [*load, os.getloadavg()[0]]}

    return Line(f"another epsilon, {rows} x {columns}", measure)


def gradient_step(number: int, columns: int, tiny: bool) -> list[Line]:
    """One DP-GD step beside each peer."""
    rows = TINY if tiny else number
    sizes = {"number": rows, "columns": columns}
    data = rows * columns * 4 / 2**30

    def measured(peer: str) -> Callable[[Settings], dict[str, Any]]:
        def measure(settings: Settings) -> dict[str, Any]:
            script = "speed_gradients.py"
            make = settings.peer_side if peer == "opacus" else settings.side
            sides = {
                "library": settings.side("library_step", script, **sizes),
                peer: make(f"{peer}_step", script, **sizes),
            }
            return interleaved(sides, settings.repeats(SHORT_REPEATS if rows * columns <= 10**8 else REPEATS))

        return measure

    # Both sides hold the rows, and one of them its records' gradients, some of them several times.
    return [
        Line(f"gradient step, {peer}, {rows} x {columns}", measured(peer), peer == "opacus", 6 * data)
        for peer in ("jax_privacy", "opacus")
    ]


def fit_memory(rows: int, columns: int) -> Line:
    """Peak memory of a fit beyond what its caller holds."""

    def measure(settings: Settings) -> dict[str, Any]:
        with settings.side("fit", number=rows, columns=columns)() as worker:
            first = worker.first()
        return {"peak": first["peak"], "encoded": 4 * rows * (columns + 1), "rows": rows}  # one column for intercepts

    return Line(f"memory of a fit, {rows} x {columns}", measure, gigabytes=6 * 4e-9 * rows * columns)


def lines(tiny: bool) -> list[Line]:
    """All lines, the short ones first."""
    from speed_blocks import CASES, PRODUCT, block_line
    from speed_tuning import tuning

    columns = 10 if tiny else 100
    found = [linear_step(columns, tiny), linear_step(20 if tiny else 1000, tiny), network_step(columns, 32, tiny)]
    found += [Line(*block_line(case, tiny)) for case in (*CASES, PRODUCT)]
    found += [line for rows in MANY[:2] for size in (100, 1000) for line in gradient_step(rows, size, tiny)]
    found += [whole_fit(columns, tiny), second_epsilon(columns, tiny)]
    found += [fit_memory(rows, columns) for rows in ((BASE_ROWS, TINY) if tiny else (BASE_ROWS, *MANY))]
    found += [Line(f"tuning, {size} penalties", tuning(size, tiny), True) for size in ((5,) if tiny else (50, 2000))]
    found += [line for size in (100, 1000) for line in gradient_step(MANY[2], size, tiny)]
    return list({line.key: line for line in found}.values())


def available() -> float:
    """Gigabytes of free memory; infinite where the system does not say."""
    information = Path("/proc/meminfo")
    text = information.read_text() if information.exists() else ""
    found = [line.split()[1] for line in text.splitlines() if line.startswith("MemAvailable")]
    return int(found[0]) / 2**20 if found else float("inf")


def device_step(rows: int, columns: int, repeats: int = 9) -> dict[str, Any]:
    """One tracking step and a whole default run on the device that JAX finds, here and now."""
    import jax
    from speed_sides import default_run, held_linear, private_steps

    problem, records = held_linear(rows, columns)
    run = private_steps(problem, records, STEPS)
    begin = time.perf_counter()
    run()
    first = time.perf_counter() - begin
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        seconds.append((time.perf_counter() - begin) / STEPS)
    device = jax.devices()[0]
    whole = [default_run(problem, records) for _ in range(4)]
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "jax": jax.__version__,
        "rows": rows,
        "columns": columns,
        "first": first,
        "milliseconds": [1000 * second for second in seconds],
        "median milliseconds": 1000 * statistics.median(seconds),
        "default run": {"first": whole[0], "seconds": whole[1:]},
        "peak bytes": (device.memory_stats() or {}).get("peak_bytes_in_use", 0),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="interpreter with the peers of benchmarks/speed.txt")
    parser.add_argument("--only", default="", help="measure lines whose names contain this")
    parser.add_argument("--again", action="store_true", help="measure lines that are there, too")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the script")
    parser.add_argument("--report", action="store_true", help="measure nothing, only write page and figure")
    parser.add_argument("--device-step", action="store_true", help="measure one tracking step on this device")
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--columns", type=int, default=256)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args(arguments)
    cells = pieces.read_cells(chosen.out)
    if chosen.device_step:
        found = device_step(chosen.rows, chosen.columns)
        print(json.dumps(found, indent=1))
        key = f"device step, {found['device']}, {chosen.rows} x {chosen.columns}"
        pieces.write_cells(chosen.out, cells | {key: found})
        return
    settings = Settings(chosen.peer, chosen.tiny)
    for line in [] if chosen.report else lines(chosen.tiny):
        if chosen.only not in line.key or (line.key in cells and not chosen.again):
            continue
        if line.needs_peer and settings.peer is None:
            print(f"{line.key}: left out, it needs --peer", file=sys.stderr)
        elif line.gigabytes > available():
            cells[line.key] = {"left out": f"needs {line.gigabytes:.0f} GB of free memory"}
        else:
            cells[line.key] = line.measure(settings) | {"commit": commit(), "machine": machine()}
        if line.key in cells:
            pieces.write_cells(chosen.out, cells)
            print(f"{line.key}: {summary(cells[line.key])}", file=sys.stderr, flush=True)
    from speed_report import write

    write(cells, chosen.out)


def commit() -> str:
    """The commit that was measured."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def machine() -> str:
    """Cores and processor, without the host name."""
    information = Path("/proc/cpuinfo")
    text = information.read_text().splitlines() if information.exists() else []
    model = next((line.split(": ")[1] for line in text if "model name" in line), platform.machine())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} core(s) of {model}"


def summary(cell: dict[str, Any]) -> str:
    """A cell in one line."""
    sides = cell.get("sides", {})
    medians = [f"{name} {statistics.median(side['runs']):.4g} s" for name, side in sides.items() if side.get("runs")]
    return ", ".join(medians) or str(cell)


if __name__ == "__main__":
    main()
