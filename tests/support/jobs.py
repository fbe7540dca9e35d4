"""What several processes release, send and hold, and what becomes of a job whose processes are not alike.

`report` runs this file as a program, once for each process; all experiments are done by one job, and the first process
prints what all have found. tests/privacy/test_parts.py says what must hold, and what must not for the library with one
mistake each.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

NUMBER = 1901  # of `devices`
MADE = 1000  # rows of a Parquet file


def report(processes, devices=1):
    """What the processes of a job find, each with some devices; the folder has what they leave."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip()
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        started = [
            subprocess.Popen(
                [sys.executable, __file__, address, str(processes), str(index), folder],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context(open(Path(folder) / f"said-{index}", "w+b")),
            )
            for index in range(processes)
        ]
        out = [process.communicate(timeout=900)[0] for process in started]
        said = [(Path(folder) / f"said-{index}").read_text(errors="replace")[-2000:] for index in range(processes)]
        assert [process.returncode for process in started] == [0] * processes, "\n".join(said)
        found = json.loads(out[0])
        found["mutant executed"] = [_time(folder, f"mutant-executed-{index}") for index in range(processes)]
        found["mutant charged"] = _time(folder, "mutant-charged")
        return found | {"resumed elsewhere": _resumed_here(folder)}


def _time(folder, name):
    path = Path(folder) / name
    return float(path.read_text()) if path.exists() else None


def _resumed_here(folder):
    """What this process, alone, says to the checkpoint of a job."""
    from support import devices

    import dpbilevel as dpb

    try:
        devices.solved(1, checkpoint=Path(folder) / "run.checkpoint", seed=1)
    except dpb.CheckpointRefused as error:
        return str(error)


def main():
    address, processes, index, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    from dpbilevel.foundation.joining import join_job
    from dpbilevel.foundation.processes import current

    join_job(address, processes, index)
    experiments = Experiments(current(), folder)
    found = experiments.all()
    if index == 0:
        print(json.dumps(found), flush=True)
    experiments.mutant()
    os._exit(0)


class Experiments:
    """What is done by every process; ``each`` gathers what every one of them finds."""

    def __init__(self, job, folder):
        import jax
        from support import devices

        self.job, self.folder, self.count = job, folder, jax.device_count()
        self.devices = devices

    def each(self, found):
        return [json.loads(text) for text in self.job.exchange("what was found", json.dumps(found))]

    def all(self):
        from dpbilevel.execution import program

        found = {"devices": self.count}
        with self.devices.broken(program, "discrete_gaussian", self._of_first):
            found["exact"] = self.each(self.hashed(noise="exact"))
            if self.count == self.job.count:  # a disk is for processes of one device
                stored = self.records(storage=self.folder)
                found["exact, on disk"] = self.each(self.hashed(noise="exact", records=stored))
        found["float"] = self.each(np.asarray(self.solved(seed=1, steps=1).y).tolist())
        found["secret"] = [self.each(self.hashed()) for _ in range(2)]
        found["warned"] = self.each(self.warned())
        found["bytes"] = self.each(self.bytes_held())
        found["rows read"] = self.each(self.rows_read())
        found["parquet"] = self.each(self.parquet())
        found["sent"] = [self.each(self.sent(number)) for number in (2000, 50_000)]
        found["seals"] = [self.each(self.seal(changed)) for changed in (None, 0, NUMBER - 1)]
        found["charged"], found["refused"] = self.each(self.charged()), self.each(self.refused())
        found["order"] = self.each(self.order())
        found["unlike"] = {name: self.each(self.unlike(name)) for name in self.UNLIKE}
        found["invalid"] = self.each(self.invalid())
        found["resumed"] = self.each(self.resumed())
        found["unsupported"], found["planned"] = self.each(self.unsupported()), self.each(self.planned())
        return found

    def _of_first(self, true):
        def drawn(scale, number):
            assert self.job.is_first or number == 0, "exact noise is drawn by the first process alone"
            return self.devices.seeded_gaussian(scale, number)

        return drawn

    def records(self, rows=None, **options):
        import dpbilevel as dpb

        return dpb.Records(lower=rows or self.devices.ROWS, mesh=self.devices.mesh_of(self.count), **options)

    def solved(self, **options):
        with warnings.catch_warnings():
            if "seed" in options:
                warnings.simplefilter("ignore")
            return self.devices.solved(self.count, **options)

    def hashed(self, **options):
        return self.devices.hashed(self.solved(**options))

    def warned(self):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            self.devices.solved(self.count, seed=1)
        return [str(one.message) for one in found]

    # ---- what is held, read and sent

    def leaves(self, records):
        import jax

        from dpbilevel.records import _VAULT

        return jax.tree.leaves(_VAULT[records]["lower"])

    def bytes_held(self):
        return sum(shard.data.nbytes for leaf in self.leaves(self.records()) for shard in leaf.addressable_shards)

    def rows_read(self):
        """The ranges of a memory-mapped array that a process looks at."""
        np.save(self.folder / f"rows-{self.job.index}.npy", self.devices.ROWS[0])
        mapped = np.load(self.folder / f"rows-{self.job.index}.npy", mmap_mode="r").view(Watched)
        Watched.ranges = []
        self.records((mapped, self.devices.ROWS[1]))
        return Watched.ranges

    def parquet(self):
        """How many rows a process reads of a file with four groups of rows, how many it holds, and their sum."""
        import pyarrow
        from pyarrow import parquet

        import dpbilevel as dpb
        from dpbilevel.privacy import parquet_records

        path, read = self.folder / "made.parquet", []
        with self.job.barrier("a file"):
            if self.job.is_first:
                table = {"a": np.arange(MADE, dtype=np.float32), "b": np.arange(MADE)}
                parquet.write_table(pyarrow.table(table), path, row_group_size=MADE // 4)

        def counted(true):
            def batches(*arguments):
                for batch in true(*arguments):
                    read.append(batch.num_rows)
                    yield batch

            return batches

        with self.devices.broken(parquet_records, "batches", counted):
            records = dpb.Records.from_parquet(
                lower=path,
                record=lambda block: (block["a"], block["b"]),
                storage=None,
                mesh=self.devices.mesh_of(self.count),
            )
        first = np.concatenate([np.asarray(shard.data) for shard in self.leaves(records)[0].addressable_shards])
        return [sum(read), float(first.sum()), records.sizes.count("lower"), list(records.caveats)]

    def sent(self, number):
        found = self.devices.compiled("vectors", number, devices=self.count)
        return [found["sent"], found["measured"]]

    def seal(self, changed):
        rows, targets = (array.copy() for array in self.devices.ROWS)
        if changed is not None:
            targets[changed] += 1
        return self.records((rows, targets)).seal(bytes(32)).hex()

    # ---- who charges, and when

    def charged(self):
        import dpbilevel as dpb

        ledger = dpb.Ledger(dpb.Budget(3.0, 1e-4))
        self.solved(seed=1, ledger=ledger)
        return len(ledger.entries)

    def refused(self):
        """A run beyond the budget: what is raised, and how often records were read."""
        import dpbilevel as dpb

        ledger = dpb.Ledger(dpb.Budget(0.5, 1e-4) if self.job.is_first else dpb.Budget(9.0, 1e-4))
        return [*self.raised(lambda: self.solved(seed=1, ledger=ledger)), len(ledger.entries)]

    def raised(self, action):
        """The error of an action, and how often records were read meanwhile."""
        from dpbilevel.records import Records

        executed = []

        def noted(true):
            return lambda *arguments: executed.append(1) or true(*arguments)

        with self.devices.broken(Records, "execute", noted):
            try:
                action()
            except Exception as error:
                return [type(error).__name__, str(error), len(executed)]
        return ["nothing", "", len(executed)]

    def order(self):
        """When the first process has charged, and when this one first reads its records."""
        import dpbilevel as dpb
        from dpbilevel.records import Records

        times = []

        def slow(true):
            def charge(*arguments, **options):
                time.sleep(0.5)
                receipt = true(*arguments, **options)
                times.append(time.time())
                return receipt

            return charge

        def noted(true):
            return lambda *arguments: times.append(time.time()) or true(*arguments)

        with self.devices.broken(dpb.Ledger, "charge", slow), self.devices.broken(Records, "execute", noted):
            self.solved(seed=1)
        return times[:2]

    def mutant(self):
        """The mistake that ``order`` must show: the others do not wait for the charge. The job does not survive it."""
        import dpbilevel as dpb
        from dpbilevel.foundation import processes
        from dpbilevel.records import Records

        processes.PATIENCE = 3.0

        def hasty(true):
            return lambda job, place, action, follow: action() if job.is_first else follow()

        def slow(true):
            def charge(*arguments, **options):
                time.sleep(1.0)
                receipt = true(*arguments, **options)
                (self.folder / "mutant-charged").write_text(str(time.time()))
                return receipt

            return charge

        def noted(true):
            def execute(*arguments):
                first = self.folder / f"mutant-executed-{self.job.index}"
                if not first.exists():
                    first.write_text(str(time.time()))
                return true(*arguments)

            return execute

        with (
            self.devices.broken(processes.Job, "by_first", hasty),
            self.devices.broken(dpb.Ledger, "charge", slow),
            self.devices.broken(Records, "execute", noted),
            contextlib.suppress(dpb.JobFailed),
        ):
            self.solved(seed=1)

    # ---- processes that are not alike

    UNLIKE = ("epsilon", "method", "loss", "seed", "number of records", "type of records", "version", "steps")

    def unlike(self, name):
        import dpbilevel as dpb
        from dpbilevel.checkpoint import agreement

        other = self.job.index == self.job.count - 1
        rows, options = self.devices.ROWS, {"seed": 1, "ledger": dpb.Ledger(dpb.Budget(3.0, 1e-4))}
        versions = contextlib.nullcontext()
        if other:
            if name == "epsilon":
                options["budget"] = dpb.Budget(1.1, 1e-5)
            elif name == "method":
                options["method"] = dpb.Refit(steps=6, learning_rate=0.1)
            elif name == "steps":
                options["steps"] = 7
            elif name == "loss":
                scaled = lambda x, y, record: 1.5 * self.devices.loss(x, y, record)  # noqa: E731
                options["problem"] = dpb.BilevelProblem(upper_term=self.devices.PROBLEM.upper_term, lower_loss=scaled)
            elif name == "seed":
                options["seed"] = 2
            elif name == "number of records":
                rows = tuple(array[:-1] for array in rows)
            elif name == "type of records":
                rows = rows[0], rows[1].astype(int)
            elif name == "version":
                versions = self.devices.broken(agreement, "code", lambda true: lambda: "another version")
        with versions:
            found = self.raised(lambda: self.solved(records=self.records(rows), **options))
        return [*found, len(options["ledger"].entries)]

    def invalid(self):
        """A cell of the last record, of the last process, that is not a number."""
        rows, targets = (array.copy() for array in self.devices.ROWS)
        targets[-1] = np.nan
        return self.raised(lambda: self.records((rows, targets)))

    def unsupported(self):
        """What is raised for units, and for a search whose number of runs is secret."""
        from dpbilevel.baselines import PrivateRandomSearch

        search = PrivateRandomSearch(candidates=[0.0, 1.0], score_range=(0.0, 1.0))
        start = 0.0, np.zeros(self.devices.COLUMNS)
        run = lambda: search.solve(self.devices.PROBLEM, self.records(), self.devices.BUDGET, start=start)  # noqa: E731
        units = {"unit": np.arange(NUMBER) // 2, "rows_per_unit": 2}
        return [self.raised(run), self.raised(lambda: self.records(**units))]

    def planned(self):
        """What a plan says of devices and processes."""
        import dpbilevel as dpb

        start, method = (0.0, np.zeros(self.devices.COLUMNS)), dpb.Refit(steps=6)
        sizes = self.records().sizes
        planned = dpb.plan(self.devices.PROBLEM, sizes, self.devices.BUDGET, start=start, method=method)
        return [planned.parameters[name][0] for name in ("devices", "processes")]

    def resumed(self):
        """A run that is interrupted, resumed, and without an interruption; only the first process has a folder."""
        from dpbilevel.records import Records

        folder = self.folder if self.job.is_first else self.folder / "nowhere"
        options = {"checkpoint": folder / "run.checkpoint", "seed": 1}
        broken = self.devices.broken(Records, "execute", self.devices.interrupted)
        with broken, contextlib.suppress(self.devices.Interrupted):
            self.solved(**options)
        return [self.hashed(**options), self.hashed(seed=1)]


class Watched(np.ndarray):
    """An array that notes which of its rows are asked for first."""

    ranges = ()

    def __getitem__(self, key):
        if type(self.base) is np.memmap and isinstance(key, slice):
            Watched.ranges.append([key.start, key.stop])
        return super().__getitem__(key)


if __name__ == "__main__":
    main()
