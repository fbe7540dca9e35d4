"""Long benchmarks in parts: tasks in several processes, results stored by key, files that can be merged.

Results are written after every task, so that an interrupted run loses only the tasks in progress, and resumes from its
file. This module does not import JAX, because environment variables must be set first.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

Cells = dict[str, Any]

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1") | {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # processes share the memory of a GPU
}


def read_cells(*paths: Path) -> Cells:
    """The merged content of files; later files override earlier ones, missing files are empty."""
    cells: Cells = {}
    for path in paths:
        if path.exists():
            cells |= json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def write_cells(path: Path, cells: Cells) -> None:
    """Write the file atomically, in an order that does not depend on the order of tasks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(path.name + ".half")
    content = {"cells": dict(sorted(cells.items()))}
    half.write_text(json.dumps(content, allow_nan=False, indent=1) + "\n", encoding="utf-8")
    half.replace(path)


def options(description: str | None, results: Path, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line of a benchmark that only runs tasks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=results)
    return parser.parse_args(arguments)


def run(work: Callable[[Any], Cells], tasks: Iterable[Any], out: Path, processes: int) -> Cells:
    """Run tasks and add their results to a file; with several processes, each has one thread."""
    cells, tasks = read_cells(out), list(tasks)

    def keep(done: int, new: Cells) -> None:
        cells.update(new)
        write_cells(out, cells)
        print(f"{done}/{len(tasks)}  {', '.join(new)}", file=sys.stderr, flush=True)

    if processes == 1:
        for done, task in enumerate(tasks, 1):
            keep(done, work(task))
        return cells
    flags = f"{ONE_THREAD['XLA_FLAGS']} {os.environ.get('XLA_FLAGS', '')}".strip()
    os.environ.update(ONE_THREAD | {"XLA_FLAGS": flags})  # inherited by spawned processes
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(work, task) for task in tasks]
        for done, future in enumerate(as_completed(futures), 1):
            keep(done, future.result())
    return cells
