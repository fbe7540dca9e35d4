"""A table ten times larger than memory, tuned from a Parquet file: docs/results/large.{json,md}.

    python benchmarks/large.py     (half an hour and 45 GB of disk; ARGS="--rows 3000000 --memory 0.9GB" is smaller)

Writes a table of numbers and labels into build/, and runs `dpbilevel tune` on it with --memory, and in memory on its
first rows. Every run has a process of its own, whose anonymous memory is watched: what it holds itself, without pages
of files, which the system drops when memory is short. Where this program may make a control group of Linux, the run
with --memory is in one with that limit, pages of files included. Nothing that was compiled before is used. Epsilon is
small because steps are fewer then; in memory it is one.
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from rates import machine

from dpbilevel.cli.memory import memory_limit
from dpbilevel.foundation.parquet import batches
from dpbilevel.foundation.tables import markdown_table

ROOT = Path(__file__).resolve().parent.parent
RESULTS, BUILD = ROOT / "docs" / "results" / "large.json", ROOT / "build" / "large"
TABLE = BUILD / "table.parquet"
GROUP = Path("/sys/fs/cgroup/memory/dpbilevel-large")
PHASES = {"_read": "read labels", "_prepared": "read, encode and store", "_fit": "fit"}
AT_ONCE = 200_000  # rows that are written at a time, a row group
INSIDE = 2_000_000  # rows that are also tuned in memory

PAGE = """# Tables larger than memory

A table of {rows:,} rows with {columns} numbers and a label: a Parquet file of {file:.1f} GB, and {encoded:.1f} GB of
encoded rows, {times:.0f} times the limit of memory. `dpbilevel tune` trains a logistic regression on it, with
ε = {epsilon:g}, and on its first {inside:,} rows in memory, with ε = 1.

- *peak*: the largest anonymous memory of the process, libraries and compiler included.
- *read*: decoding, encoding and storing all rows once.
- *a pass*: of training, over all rows, as the progress of the run shows it: the median of all passes. *Its speed* is in
  encoded rows, as is that of decoding.

{table}

Decoding the file alone from the disk, on both cores, takes {decode:.0f} s: {decoded:.2f} GB/s. A pass over rows on disk
has {of_decode:.1f} times the speed of decoding, and {of_memory:.2f} times that of a pass in memory.

{group}

{progress}

Made by `make bench-large`, while the machine did other work
({commits}).
"""


def write_table(rows: int, columns: int) -> int:
    """Write the Parquet file, with its schema beside it; returns its size."""
    import pyarrow
    from pyarrow import parquet

    draws = np.random.default_rng(0)
    names = [f"x{at}" for at in range(columns)]
    declared = [f'[columns.{name}]\nrange = [-1, 1]\nknots = "none"' for name in names]
    declared = ['format = "dpbilevel.schema/2"', *declared, '[columns.y]\nclasses = ["no", "yes"]']
    (BUILD / "schema.toml").write_text("\n".join(declared) + "\n", "utf-8")
    writer = None
    for first in range(0, rows, AT_ONCE):
        number = min(AT_ONCE, rows - first)
        X = draws.uniform(-1, 1, (number, columns)).astype(np.float32)
        y = np.where(X[:, 0] + X[:, 1] + draws.normal(0, 0.5, number) > 0, "yes", "no")
        table = pyarrow.table(dict(zip(names, X.T, strict=True)) | {"y": y})
        writer = writer or parquet.ParquetWriter(TABLE, table.schema, use_dictionary=["y"])
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return TABLE.stat().st_size


def forget() -> None:
    """Let the system drop what it keeps of the file in memory."""
    with TABLE.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# ---- in processes of their own


def decode() -> dict[str, float]:
    """Seconds to decode the whole file."""
    from pyarrow import parquet

    names = parquet.read_schema(TABLE).names
    begin = time.perf_counter()
    rows = sum(batch.num_rows for batch in batches(TABLE, names))
    return {"decode": time.perf_counter() - begin, "rows": rows}


def tune(given: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the parts of a run, and of a pass."""
    from dpbilevel.cli import app, tuning
    from dpbilevel.execution import running

    found: dict[str, Any] = {}
    told: list[tuple[float, int]] = []

    def timed(name: str) -> Any:
        true = getattr(tuning, name)

        def called(*arguments: Any, **given: Any) -> Any:
            begin = time.perf_counter()
            result = true(*arguments, **given)
            found[PHASES[name]] = time.perf_counter() - begin
            return result

        return called

    @contextlib.contextmanager
    def shown(title: str, total: int) -> Iterator[Any]:
        with show_progress(title, total) as advance:
            yield lambda uses: (told.append((time.perf_counter(), uses)), advance(uses))

    show_progress = running.show_progress
    out = BUILD / "run"
    typed = ["tune", str(TABLE), "--schema", str(BUILD / "schema.toml"), "--target", "y", "--memory", given.memory]
    typed += ["--epsilon", str(given.epsilon), "--delta", "1e-8", "--out", str(out), "--force"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", ["dpbilevel", *typed]))
        stack.enter_context(mock.patch.object(running, "show_progress", shown))
        for name in PHASES:
            stack.enter_context(mock.patch.object(tuning, name, timed(name)))
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):
            app.main()
    assert len(found) == len(PHASES), "the run failed"
    # The first passes are those of second moments, and of compilation.
    paces = [(now - last) / uses for (last, _), (now, uses) in itertools.pairwise(told[1:])]
    return found | {"passes": sum(uses for _, uses in told), "pass": statistics.median(paces)}


# ---- watching them


@contextlib.contextmanager
def limited(limit: int | None) -> Iterator[Path | None]:
    """A control group with a limit of memory; None where none can be made."""
    group = None
    if limit is not None:
        with contextlib.suppress(OSError):
            GROUP.mkdir()
            group = GROUP
            (GROUP / "memory.limit_in_bytes").write_text(str(limit))
    try:
        yield group
    finally:
        if group is not None:
            group.rmdir()


def watched(part: str, *options: str, limit: int | None = None) -> dict[str, Any]:
    """What a process reports, with its seconds, its peak of anonymous memory, and that of its control group."""
    with limited(limit) as group:

        def join() -> None:
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        begin, peak = time.perf_counter(), 0
        command = [sys.executable, __file__, "--part", part, *options]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=join,
            env=os.environ | {"DPBILEVEL_COMPILATION_CACHE": "off"},
        ) as process:
            lines: list[tuple[float, str]] = []
            listener = threading.Thread(target=listen, args=(process.stderr, lines), daemon=True)
            listener.start()
            while process.poll() is None:
                peak = max(peak, anonymous(process.pid))
                time.sleep(0.02)
            listener.join()
            assert process.stdout is not None
            said = process.stdout.read()
        assert process.returncode == 0, "\n".join(line for _, line in lines)
        found = json.loads(said.splitlines()[-1]) | {"seconds": time.perf_counter() - begin, "peak": peak}
        found |= {"machine": machine(), "progress": heard(lines)}
        if group is not None:
            found["group peak"] = int((group / "memory.max_usage_in_bytes").read_text())
        return dict(found)


def listen(stream: Any, lines: list[tuple[float, str]]) -> None:
    """Note when a process says what."""
    for line in stream:
        lines.append((time.perf_counter(), line.rstrip()))


def heard(lines: list[tuple[float, str]]) -> dict[str, Any]:
    """Lines of progress with an estimate of the time left, and the longest silence between any two."""
    estimates = [line for _, line in lines if line.endswith("s left")]
    times = [moment for moment, line in lines if " of " in line]
    silences = [later - sooner for sooner, later in itertools.pairwise(times)]
    return {
        "estimates": len(estimates),
        "middle": estimates[len(estimates) // 2 :][:1],
        "silence": max(silences, default=0),
    }


def anonymous(process: int) -> int:
    """Bytes of anonymous memory of a process."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
    return 0


def page(found: dict[str, Any]) -> str:
    """The page of results."""
    disk, inside, cell = found["disk"], found["in memory"], 4 * (found["columns"] + 1) / 1e9
    lines, speeds = [], []
    for name, run, rows in (
        (f"all, --memory {found['memory']}", disk, found["rows"]),
        ("in memory", inside, found["inside"]),
    ):
        speeds.append(rows * cell / run["pass"])
        read = run["read labels"] + run["read, encode and store"]
        sizes = [f"{rows:,}", f"{run['peak'] / 1e9:.2f} GB", f"{read:.0f} s", str(run["passes"])]
        lines.append([name, *sizes, f"{run['pass']:.2f} s", f"{speeds[-1]:.2f} GB/s", f"{run['seconds']:.0f} s"])
    decoded = found["rows"] * cell / found["decode"]
    group = "No control group could be made, so that pages of files were not limited."
    if "group peak" in disk:
        group = (
            f"The run with --memory was in a control group of {found['memory']}, pages of files included; its largest "
            f"use was {disk['group peak'] / 1e9:.2f} GB."
        )
    told = disk["progress"]
    progress = (
        f"It said {told['estimates']} times how much time is left (`{''.join(told['middle'])}`), and was never silent "
        f"for more than {told['silence']:.0f} s."
    )
    return PAGE.format(
        **{name: found[name] for name in ("rows", "columns", "epsilon", "decode", "inside")},
        file=found["file"] / 1e9,
        encoded=found["rows"] * cell,
        times=found["rows"] * cell / (memory_limit(found["memory"]) / 1e9),
        commits="; ".join(dict.fromkeys(run["machine"] for run in (disk, inside))),
        decoded=decoded,
        of_decode=speeds[0] / decoded,
        of_memory=speeds[0] / speeds[1],
        table=markdown_table(["rows", "number", "peak", "read", "passes", "a pass", "its speed", "all"], lines),
        group=group,
        progress=progress,
    )


def main() -> None:
    """Write the table, run, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--epsilon", type=float, default=0.001)
    parser.add_argument("--part", choices=["decode", "tune"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part is not None:
        print(json.dumps(decode() if given.part == "decode" else tune(given)))
        return
    BUILD.mkdir(parents=True, exist_ok=True)
    try:
        size = write_table(given.rows, given.columns)
        found = {name: getattr(given, name) for name in ("rows", "columns", "memory", "epsilon")} | {"file": size}
        found["inside"] = min(INSIDE, given.rows)
        forget()
        found |= {"decode": watched("decode")["decode"]}
        limit, epsilon = memory_limit(given.memory), f"--epsilon={given.epsilon}"
        found["disk"] = watched("tune", epsilon, f"--memory={given.memory}", limit=limit)
        write_table(found["inside"], given.columns)
        found["in memory"] = watched("tune", "--epsilon=1", "--memory=1000TB")
    finally:
        TABLE.unlink(missing_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    RESULTS.with_suffix(".md").write_text(page(found), "utf-8")
    print(page(found))


if __name__ == "__main__":
    main()
