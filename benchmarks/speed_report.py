"""The page and the figure of the benchmark of speed, from its cells."""

import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import speed_blocks

from dpbilevel.foundation.tables import markdown_table

Cells = dict[str, Any]
SIZES = "MB"

PAGE = """# Speed and memory

Ratios between two sides that take turns in one run (A B A B …), each in a process of its own, with warm caches of
compiled programs and after `block_until_ready`. *Ratio* is that of the medians, *turns* has the smallest and the
largest ratio of a turn. The machine was shared and busy (a load of {load}): absolute times say little, and ratios of
short runs vary. Rows are in float32. The ratios that are targets were set before this benchmark was written.

Some lines were measured more than once, and the last measurement is shown. Steps of linear models had ratios of 3.14,
2.61 and 2.48 (100 columns) and 0.65, 1.32 and 1.32 (1,000 columns), the first from fewer turns, before rows were read
without copies. Since then they had 1.26 and 0.76 at a load of 14; those shown are from a quiet machine, where plain JAX
uses both cores. The gradient step of 10,000 x 100 had 1.76, a fit 0.42 and its memory 3.04. The F that the
lines of tuning are timed to was redefined after first results, and one version was discarded because it took times too
early. Blocks and cores were measured again when the machine was less busy. The step of a network had a ratio of 19.51
before gradients of its first layer were summed by matrix products, then 1.94, 3.06 and 3.09. Tuning had ratios of 1.49
(50 penalties) and 1.86 (2,000) before conjugate gradients were preconditioned.

{verdict}

![Ratios and targets](speed.svg)

{claims}

- *Step*: one tracking step, a fifth of the rows for validation. The other side is the same step in plain JAX: matrix
  products or batched gradients for the gradient, the Hessian-vector product and the validation gradient, without
  clipping, noise, or anything that adapts.
- *Fit*: `DPLogisticRegressionCV` with all defaults, compared with commit `0cb980d`.
- *Another ε*: a fit with an ε that was not used before, compared with the same ε again, in one process.
- *Gradient step*: one DP-GD step of a logistic loss with the same clip and noise, compared with
  [jax_privacy](https://github.com/google-deepmind/jax_privacy) and [Opacus](https://opacus.ai), each in its fastest of
  the settings that were tried. Norms of all rows are measured before, once, when records are made. (Lines from commit
  6e5d922 include them in every step.)
- *Tuning*: time to the same F, to 1e-4, without privacy (ε = ∞), with a log-penalty for each column and
  20,000 + 20,000 rows, compared with jaxopt, each in the better of two settings. jaxopt: warm-started L-BFGS, implicit
  differentiation by plain conjugate gradients, and SciPy's L-BFGS-B for x.
- *Memory of a fit*: peak beyond what the caller holds, less that of a fit of 1,000 rows, over the encoded rows.
{missing}
## Times

Medians in seconds per run, and the first run, with compilation (peers of gradient steps have compiled before it, when
their settings were tried). *Steps* is the number of steps in a run. *Peak* is the memory beyond the data, the
compiler's included. *Clipped* is the least that clipping needs in plain JAX: a gradient for each record of the network,
clipped and summed in float32, block by block, without noise.

{times}

## Tuning without privacy

*F* is evaluated in float64 by a separate solver. The target is an F that both the library and jaxopt reach, the larger
of their smallest F. *Seconds* is the median time to the first point within 1e-4 of it, without compilation, and
*points* is how many points a side had seen by then. The *first run* is one point, with compilation. *F at the end* is
that of a run that continues until the side stops by itself, or for 20 seconds (F2SA: 10; library and jaxopt with 2,000
penalties: 40). With 2,000 penalties jaxopt has not converged by then: the F there is the smallest that it reached,
far from the library's. F2SA is a minimal version in plain JAX with exact gradients.

{tuning}

## Blocks and cores

The generic path computes contributions in blocks. Their size is a constant (`_ELEMENTS` in `privacy/memory.py`),
chosen by the first table: processor seconds of a clipped sum on one core, relative to the best size for each kind of
record. It is not measured at run time, because it affects the last bits of released values.

{blocks}

XLA's matrix products use both cores. The generic path uses one: its blocks follow one another in a loop, and kernels
of a block are too small or fill a buffer in place. The second table has processor seconds over wall seconds in the turn
that had most of the machine (2 would be both cores all the time), and the processor seconds that a second core costs.
For contributions of 100,000 numbers, of which a block has ten, it costs several times the work: nearly all of it is the
sum of a block over its records, which XLA leaves to a library with threads of its own.

## Peak memory of a fit

{memory}

{epsilon}

{device}All raw numbers, with the load during each line: [speed.json](speed.json).

Made by `make bench-speed` on {machine}, from {commits}.
"""


class Claim(NamedTuple):
    """A ratio and its target: at most that, or less than one for peers."""

    name: str
    ratio: float
    least: float
    largest: float
    target: float

    @property
    def holds(self) -> bool:
        """Whether the target is met."""
        return self.ratio <= self.target


def ratio(name: str, cell: Any, over: str, under: str, target: float) -> Claim:
    """The ratio of medians, and the range of the ratios of turns."""
    above, below = (cell["sides"][side]["runs"] for side in (over, under))
    turns = [a / b for a, b in zip(above, below, strict=True)]
    return Claim(name, statistics.median(above) / statistics.median(below), min(turns), max(turns), target)


def claims(cells: Cells) -> Iterator[Claim]:
    """Everything that has a target, as far as it was measured."""
    for key, cell in cells.items():
        if "left out" in cell:
            continue
        if key.startswith("step, linear"):
            yield ratio(f"{key}: private / plain", cell, "private", "plain", 1.2)
        elif key.startswith("step, network"):
            yield ratio(f"{key}: private / plain", cell, "private", "plain", 2.5)
        elif key.startswith("fit"):
            yield ratio(f"{key}: now / 0cb980d", cell, "now", "0cb980d", 1 / 3)
        elif key.startswith("another epsilon"):
            yield ratio(f"{key}: other / same", cell, "other", "same", 1.2)
        elif key.startswith("gradient step"):
            peer = key.split(", ")[1]
            yield ratio(f"{key}: library / {peer}", cell, "library", peer, 1.0)
        elif key.startswith("tuning"):
            yield from tuning_claim(key, cell)
    yield from memory_claims(cells)


def tuning_claim(key: str, cell: Any) -> Iterator[Claim]:
    """The library and jaxopt, each in the setting that reached the target first, if both did."""
    sides = cell["sides"]
    reached = {name: statistics.median(side["runs"]) for name, side in sides.items() if side["runs"]}
    best = [
        min((name for name in reached if name.startswith(tool)), key=lambda name: reached[name], default=None)
        for tool in ("library", "jaxopt")
    ]
    if all(best):
        target = 1 / 5 if "2000" in key else 1 / 2
        yield ratio(f"{key}: library / jaxopt", cell, str(best[0]), str(best[1]), target)


def memory_cells(cells: Cells) -> list[Any]:
    """Peaks by number of rows."""
    found = [cell for key, cell in cells.items() if key.startswith("memory") and "peak" in cell]
    return sorted(found, key=lambda cell: cell["rows"])


def memory_claims(cells: Cells) -> Iterator[Claim]:
    """Peak over encoded rows at the largest size, and the exponent of its growth in the last decade."""
    base, *others = memory_cells(cells) or [None]
    if len(others) < 2:
        return
    beyond = [cell["peak"] - base["peak"] for cell in others]
    most = beyond[-1] / others[-1]["encoded"]
    yield Claim(f"memory of a fit, {others[-1]['rows']} rows: peak / encoded rows", most, most, most, 1.5)
    exponents = [
        math.log(later / earlier) / math.log(b["rows"] / a["rows"])
        for (a, earlier), (b, later) in zip(
            zip(others, beyond, strict=True), list(zip(others, beyond, strict=True))[1:], strict=False
        )
        if earlier > 0 and later > 0
    ]
    if exponents:
        yield Claim("memory of a fit: exponent of its growth", exponents[-1], min(exponents), max(exponents), 1.05)


def times(cells: Cells) -> str:
    """Medians of all lines with several runs."""
    rows = []
    for key, cell in cells.items():
        if key.startswith(("tuning", speed_blocks.KEY)) or "sides" not in cell:
            continue
        for name, side in cell["sides"].items():
            first = side.get("first", cell.get("first"))
            peak = None if key.startswith("gradient") else side.get("peak")
            rows.append(
                [
                    key,
                    name if not side.get("setting") else f"{name} ({side['setting']})",
                    f"{statistics.median(side['runs']):.4g}",
                    f"{min(side['runs']):.4g} to {max(side['runs']):.4g}",
                    "" if first is None else f"{first:.3g}",
                    "" if peak is None else f"{peak / 1e6:.0f} {SIZES}",
                    str(cell.get("steps", 1)),
                ]
            )
    return markdown_table(["line", "side", "median", "range", "first run", "peak", "steps"], rows)


def tuning_table(cells: Cells) -> str:
    """All sides of the tuning lines."""
    rows = []
    for key, cell in cells.items():
        if key.startswith("tuning") and "sides" in cell:
            for name, side in cell["sides"].items():
                reached = f"{statistics.median(side['runs']):.3g}" if side["runs"] else "not reached"
                points = str(side["points"] or "")
                rows.append([key, name, reached, points, f"{side['first']:.3g}", f"{side['end']:.6f}"])
    return (
        markdown_table(["line", "side", "seconds", "points", "first run", "F at the end"], rows)
        if rows
        else "Not measured."
    )


def memory_table(cells: Cells) -> str:
    """Peaks of fits."""
    found = memory_cells(cells)
    rows = [
        [
            f"{cell['rows']:,}",
            f"{cell['encoded'] / 1e6:.1f} {SIZES}",
            f"{cell['peak'] / 1e6:.1f} {SIZES}",
            f"{(cell['peak'] - found[0]['peak']) / cell['encoded']:.2f}",
        ]
        for cell in found
    ]
    header = ["rows", "encoded rows", "peak beyond the caller's", "less that of the smallest fit, over encoded rows"]
    return markdown_table(header, rows) if rows else "Not measured."


def epsilon_sentence(cells: Cells) -> str:
    """How often another epsilon compiled."""
    for key, cell in cells.items():
        if key.startswith("another epsilon"):
            counts = {name: cell["sides"][name]["compilations"] for name in ("other", "same")}
            return (
                f"Compilations of a fit with another ε: {', '.join(map(str, counts['other']))}; with the same ε again: "
                f"{', '.join(map(str, counts['same']))}. The target is none."
            )
    return ""


def device_sentence(cells: Cells) -> str:
    """Steps on an accelerator, from --device-step."""
    found = [cell for key, cell in cells.items() if key.startswith("device step")]
    lines = [
        f"One tracking step on {cell['device']}, {cell['rows']:,} x {cell['columns']}: a median of "
        f"{cell['median milliseconds']:.2f} ms (`python benchmarks/speed.py --device-step --rows {cell['rows']} "
        f"--columns {cell['columns']}`, JAX {cell['jax']}). The first ten took {cell['first']:.1f} s. A run of `solve` "
        f"with all defaults takes {statistics.median(cell['default run']['seconds']):.2f} s, the first "
        f"{cell['default run']['first']:.1f} s. Targets on an NVIDIA H200 for 8,000,000 x 256 are 3 ms a step, where "
        "one read of the rows takes 2.05, and 2 s a run.\n\n"
        for cell in found
    ]
    return "".join(lines)


def draw(found: list[Claim], target: Path) -> None:
    """One row for each claim: ratio, range of turns, and target."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "speed", "font.size": 10})
    figure = Figure(figsize=(9, 1.2 + 0.3 * len(found)), layout="constrained")
    panel = figure.subplots()
    for place, claim in enumerate(reversed(found)):
        colour = "C0" if claim.holds else "C3"
        panel.plot([claim.least, claim.largest], [place, place], color=colour, linewidth=1.4)
        panel.plot(claim.ratio, place, "o" if claim.holds else "s", color=colour, markersize=5)
        panel.plot(claim.target, place, "|", color="0.3", markersize=12, markeredgewidth=2)
    panel.set_yticks(range(len(found)), [claim.name for claim in reversed(found)])
    for marker, colour, label in (("o", "C0", "target met"), ("s", "C3", "target missed"), ("|", "0.3", "target")):
        panel.plot([], [], marker, color=colour, label=label)
    panel.set(xscale="log", xlabel="ratio of medians, with the range of turns")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.grid(True, axis="x", alpha=0.3)
    figure.legend(*panel.get_legend_handles_labels(), loc="outside upper right", ncols=3, frameon=False)
    figure.savefig(target, metadata={"Date": None})


def verdict(found: list[Claim]) -> str:
    """Which targets are met, and which are missed."""
    missed = [claim.name for claim in found if not claim.holds]
    if not missed:
        return f"All {len(found)} targets are met."
    sentence = f"{len(found) - len(missed)} of {len(found)} targets are met. Missed:\n\n"
    return sentence + "\n".join(f"- {name}" for name in missed)


def write(cells: Cells, out: Path) -> None:
    """Page and figure beside the results."""
    found = list(claims(cells))
    table = markdown_table(
        ["line", "ratio", "turns", "target", ""],
        [
            [
                claim.name,
                f"{claim.ratio:.2f}",
                f"{claim.least:.2f} to {claim.largest:.2f}",
                f"{claim.target:.2f}",
                "met" if claim.holds else "**missed**",
            ]
            for claim in found
        ],
    )
    loads = [load for cell in cells.values() for load in cell.get("load", [])]
    left_out = [f"{key} ({cell['left out']})" for key, cell in cells.items() if "left out" in cell]
    commits = sorted({cell["commit"] for cell in cells.values() if "commit" in cell})
    page = PAGE.format(
        load=f"{min(loads, default=0):.0f} to {max(loads, default=0):.0f}",
        machine=", ".join(sorted({cell["machine"] for cell in cells.values() if "machine" in cell})),
        verdict=verdict(found),
        claims=table,
        missing=f"\nLeft out: {'; '.join(left_out)}.\n" if left_out else "",
        times=times(cells),
        tuning=tuning_table(cells),
        blocks=speed_blocks.section(cells),
        memory=memory_table(cells),
        epsilon=epsilon_sentence(cells),
        device=device_sentence(cells),
        commits=("commit " if len(commits) == 1 else "commits ") + ", ".join(commits),
    )
    out.with_suffix(".md").write_text(page, encoding="utf-8")
    if found:
        draw(found, out.with_suffix(".svg"))
