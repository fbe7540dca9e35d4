"""A model of growth: bytes read, sums sent and seconds of a pass, from rows, columns, devices and bandwidths.

    python benchmarks/scale_model.py                        (a moment, without JAX; writes docs/results/scale_model.md)
    python benchmarks/scale_model.py --rows 1e9 --columns 256 --devices 8 --machine "NVIDIA H200"       (prints a line)

A pass of a linear model multiplies the rows twice, for scores and for sums. Plain XLA reads them both times:

    seconds of reading = reads * rows/devices * columns * bytes per number / bytes read per second
    seconds of sending = messages * seconds per message + bytes received / bytes received per second

A device receives the partial sums of all others, 16 bytes for each entry of an answer: two numbers of float64. In two
levels, sums of a group of devices are merged first, and then those of groups; that is not implemented.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from dpbilevel.foundation.tables import markdown_table

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results" / "scale_model.md"
SUM_BYTES = 16  # of one entry of a partial sum
FACTOR = 3.0  # within which the model must predict what was measured


@dataclass(frozen=True)
class Machine:
    """A device and what connects it: bytes a second, and seconds a message. ``source`` says where numbers are from."""

    name: str
    read: float
    link: float
    message: float
    source: str


@dataclass(frozen=True)
class Load:
    """Rows on devices."""

    rows: float
    columns: int
    devices: int = 1
    bytes_per_number: int = 4
    reads: int = 2

    @property
    def held(self) -> float:
        """Bytes of rows on each device."""
        return self.rows / self.devices * self.columns * self.bytes_per_number


def dimensions(columns: int) -> dict[str, int]:
    """Entries of an answer, by release, of a logistic or ridge regression with one penalty."""
    numbers = columns + 1  # with the intercept
    return {
        "training": numbers + 2,  # one less for a ridge regression
        "second moments": numbers**2,
        "training pass of tracking": 2 * numbers + 2,
        "validation pass of tracking": numbers + 3,
    }


def reading(load: Load, machine: Machine) -> float:
    """Seconds in which a device reads its rows in one pass."""
    return load.reads * load.held / machine.read


def received(entries: int, devices: int, levels: int = 1) -> float:
    """Bytes of partial sums that a device receives in one merge."""
    others = devices - 1 if levels == 1 else 2 * (math.ceil(math.sqrt(devices)) - 1)
    return float(others * entries * SUM_BYTES)


def sending(entries: int, devices: int, machine: Machine, levels: int = 1) -> float:
    """Seconds of one merge."""
    if devices == 1:
        return 0.0
    messages = levels * math.ceil(math.log2(devices))
    return messages * machine.message + received(entries, devices, levels) / machine.link


# The rate of two cores is that of one line, and other lines are predicted from it. That of an H200 is its own limit:
# one read of 8,000,000 x 256 numbers in 2.05 ms. Everything else is an assumption.
CORES = Machine("2 cores", 2 * 50_000 * 1000 * 4 / 0.1174, 1.25e9, 50e-6, "a step of 50,000 x 1,000 in 0.1174 s")
H200 = Machine("NVIDIA H200", 4.0e12, 50e9, 20e-6, "one read at its limit; 400 Gb/s for each device assumed")
SERVER = Machine("server of 64 cores", 32 * CORES.read, 12.5e9, 50e-6, "32 times two cores, 100 Gb/s: assumed")
DISK = Machine("server with a disk", 3.0e9, 12.5e9, 50e-6, "rows read from a disk at 3 GB/s, 100 Gb/s: assumed")
MACHINES = (CORES, H200, SERVER, DISK)

# Seconds of a step from docs/results/speed.md: one tracking step, or one step of DP-GD.
MEASURED = (
    ("step, linear, 50000 x 100", Load(50_000, 100), CORES, 0.01522),
    ("gradient step, jax_privacy, 100000 x 1000", Load(100_000, 1000), CORES, 0.2048),
    ("gradient step, opacus, 100000 x 1000", Load(100_000, 1000), CORES, 0.1291),
    ("gradient step, jax_privacy, 1000000 x 100", Load(1_000_000, 100), CORES, 0.3304),
    ("gradient step, opacus, 1000000 x 100", Load(1_000_000, 100), CORES, 0.2373),
    ("step on NVIDIA H200, 8000000 x 256", Load(8_000_000, 256, reads=1), H200, 3.61e-3),
)
GROWTH = (
    (Load(10**6, 100), CORES),
    (Load(8 * 10**6, 256), H200),
    (Load(5 * 10**7, 256, bytes_per_number=2), H200),
    (Load(10**9, 256, 8), H200),
    (Load(10**11, 256, 1000), H200),
    (Load(10**11, 256, 1000), SERVER),
    (Load(10**11, 256, 1000), DISK),
)
PASSES = 181  # of the default for 100,000 rows of 10 columns, at most: second moments and training


def checks() -> list[tuple[str, float, float]]:
    """What was measured: the line, its seconds, and those of the model."""
    return [(line, seconds, reading(load, machine)) for line, load, machine, seconds in MEASURED]


def row_of(load: Load, machine: Machine) -> list[str]:
    """The line of a table for rows on devices."""
    entries = dimensions(load.columns)
    training, moments = entries["training"], entries["second moments"]
    one_pass = reading(load, machine) + sending(training, load.devices, machine)
    return [
        f"{load.rows:.3g} x {load.columns}, {8 * load.bytes_per_number} bits",
        f"{load.devices:,} x {machine.name}",
        size(load.held),
        time(reading(load, machine)),
        size(received(training, load.devices)),
        time(sending(training, load.devices, machine)),
        time(sending(moments, load.devices, machine)),
        time(PASSES * one_pass + sending(moments, load.devices, machine)),
    ]


def moments_row(columns: int, devices: int, machine: Machine) -> list[str]:
    """The merge of second moments in one level and in two."""
    entries = dimensions(columns)["second moments"]
    found = [f"{columns:,}", f"{devices:,} x {machine.name}", size(entries * SUM_BYTES)]
    for levels in (1, 2):
        found += [size(received(entries, devices, levels)), time(sending(entries, devices, machine, levels))]
    return found


def size(number: float) -> str:
    """Bytes as text.

    >>> size(0), size(102.4e9)
    ('0', '102 GB')
    """
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:.3g}"


def time(seconds: float) -> str:
    """Seconds as text.

    >>> time(0.0041), time(68.3), time(2867)
    ('4.1 ms', '68.3 s', '47.8 min')
    """
    if seconds >= 300:
        return f"{seconds / 60:.3g} min"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


HEADER = ["rows", "devices", "rows on each", "reading", "received", "merge", "merge of moments", f"{PASSES} passes"]
LEVELS = ["columns", "devices", "sent by each", "received, one level", "time", "received, two levels", "time"]


def page() -> str:
    """docs/results/scale_model.md."""
    measured = [
        [line, f"{1e3 * seconds:.3g} ms", f"{1e3 * model:.3g} ms", f"{model / seconds:.2f}"]
        for line, seconds, model in checks()
    ]
    machines = [
        [m.name, f"{size(m.read)}/s", f"{size(m.link)}/s", f"{1e6 * m.message:.0f} µs", m.source] for m in MACHINES
    ]
    moments = [moments_row(columns, 1000, H200) for columns in (256, 2048)]
    return f"""# A model of growth

How long does a pass take with more rows, columns and devices than were tried here? This page is a calculation, not a
measurement: only the second table compares it with what was measured. A pass of a linear model reads its rows twice in
plain XLA, for scores and for sums. Each device then receives the partial sums of all others, {SUM_BYTES} bytes for each
entry of the answer, whatever the number of rows ([several devices](../gpu.md#several-devices)).

## Machines

{markdown_table(["machine", "reads", "receives", "a message", "where numbers are from"], machines)}

## What was measured

Lines of [speed and memory](speed.md). The model must predict each within a factor of {FACTOR:g}. A step of DP-GD has
one product for scores and one for sums; one of tracking, from which the rate of two cores is taken, has several of
each, so that steps of DP-GD are faster than the model says.

{markdown_table(["line", "measured", "model", "model / measured"], measured)}

## Growth

*Reading* and *merge* are of one pass of training, *merge of moments* that of the second moments of all columns, which
are released once. The last column has {PASSES} passes, as a default fit with little noise has them.
Rows in 16 bits, and several machines, are not supported yet.

{markdown_table(HEADER, [row_of(*one) for one in GROWTH])}

## What breaks first

Second moments have as many entries as pairs of columns. Gathered from all devices at once, those of 2,048 columns take
longer than 102 GB take to be read. They could be merged in groups of √devices and then between groups, which is not
implemented:

{markdown_table(LEVELS, moments)}

## Assumptions

- Rows are in the memory of devices before the first pass (or are read from a disk in every pass), and all devices are
  equally fast. Time to read, decode and encode a table is left out: 102 GB for each machine take minutes.
- Devices wait for the slowest: no time is counted for that. Nor is compilation, a constant.
- Messages of a merge are sent one after another, log₂(devices) of them for each level; a device receives at its full
  rate.
- Products take no longer than rows take to be read. This does not hold for second moments, whose number of products is
  that of pairs of columns: the time to compute them is left out.

Made by `python benchmarks/scale_model.py`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Model the seconds of a pass.")
    parser.add_argument("--rows", type=float)
    parser.add_argument("--columns", type=int, default=256)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--machine", choices=[machine.name for machine in MACHINES], default=H200.name)
    parser.add_argument("--out", type=Path, default=PAGE)
    given = parser.parse_args()
    if given.rows is None:
        given.out.write_text(page(), encoding="utf-8")
        return
    (machine,) = [one for one in MACHINES if one.name == given.machine]
    found = row_of(Load(given.rows, given.columns, given.devices), machine)
    print("\n".join(f"{name:<18} {value}" for name, value in zip(HEADER, found, strict=True)))


if __name__ == "__main__":
    main()
