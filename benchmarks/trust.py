"""All robustness tests, with full counts: kills, signals, full disks, races for budgets, bad inputs.

make trust                  (two hours; writes docs/results/trust.json and docs/results/trust.md)
make trust ARGS=--quick     (a minute, to try the harness; writes nothing)
make trust ARGS="--only inputs"   (one part again; the others are kept)

CI runs a subset of the same code: test_killed_runs.py, test_killed_jobs.py, test_signalled_runs.py,
test_full_disks.py, tests/privacy/test_ledger_faults.py, tests/guarantees/test_fuzz.py.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support import (  # noqa: E402
    full_disks,
    fuzz_coverage,
    killed_jobs,
    killed_runs,
    ledger_racers,
    postgresql_server,
    signalled_runs,
)

from dpbilevel.cli.launch import GRACE, LAST  # noqa: E402
from dpbilevel.foundation.tables import markdown_table  # noqa: E402

FORMAT = "dpbilevel.trust/1"
TARGET = ROOT / "docs" / "results"
# Some inputs happen to be valid: at least 20,000 must be bad. Disks: number of ways to fail, each at every write.
FULL = {"kills": 200, "jobs": 100, "resumes": 200, "signals": 200, "disks": 3, "races": 50}
FULL |= {"inputs": 24_000, "guided": 8_000}
QUICK = {"kills": 7, "jobs": 2, "resumes": 5, "signals": 3, "disks": 1, "races": 2, "inputs": 400, "guided": 160}
FORMATS = (
    *("solutions", "run files", "schemas", "tables"),
    *("checkpoints", "ledger files", "accounts", "data sets"),
)
RACERS = 16
FAIR = ["charged"] + ["refused"] * (RACERS - 1)

PAGE = """# Trust

Attempts to break the library's guarantees, and their outcomes. Made by `make trust` on {hardware}, Python {python}.

{table}

- **Kills.** Whole runs of `dpbilevel tune` with a ledger in SQLite, killed with `kill -9` at chosen phases and at
  random moments. A budget is *under-counted* if a run had read records but its charge is not in the ledger afterwards.
- **Jobs.** Whole runs of `dpbilevel launch --processes 2 reweight`, one process of which is killed with `kill -9`, at
  chosen phases and at random moments. A job *hangs* if it had not ended {limit:g} s after its first process had. Jobs
  that left a checkpoint are resumed and must end with the bits of a job that nobody killed, charged once.
- **Resumed.** Runs of `solve` with a checkpoint, killed at chosen and random moments (start, charge, loop, checkpoint
  write, report) and resumed until they finish; their results are compared bit by bit with an uninterrupted run.
- **Signals.** Whole runs of `dpbilevel tune` that receive Ctrl-C or SIGTERM, a quarter of them twice, at random moments
  from their first line, including imports, and at chosen moments at which Python's own handler does not run. A signal
  is *handled* if the process ended with exit code 130 and the documented message, and the message agreed with the
  ledger and the files.
- **Full disks.** Runs whose disk fails once, fails permanently, or is full to the last byte (a small file system), at
  every single write, flush and rename, including those of a ledger on the same disk. A run is *lost* if it was charged
  and released, but cannot be read afterwards by following the instructions of the command.
- **Races.** {racers} processes compete for the last part of a budget. A race is fair if it has exactly one winner and
  {losers} refusals, none of which was lost.
- **Random inputs.** Every public entry point and file format, with arguments of any kind and damaged files
  (hypothesis). A refused input raised a typed error, and nothing was charged or written. Accepted inputs happened to be
  valid.
- **Coverage-guided inputs.** Damaged files of every format; inputs that reach new code are damaged further (atheris).

{kills}

{jobs}

{inputs}
"""


def kills(number: int) -> dict[str, Any]:
    """Runs that are killed, by phase, with all faults found."""
    with tempfile.TemporaryDirectory() as folder:
        found = killed_runs.happened(Path(folder), number)
    faults = Counter(fault for kill in found for fault in killed_runs.faults(kill))
    by_phase = {
        phase: {
            "kills": len(mine),
            "touched records": sum(kill["touched"] for kill in mine),
            "charged": sum(kill["charged"] or 0 for kill in mine),
            "finished": sum(kill["state"] == "finished" for kill in mine),
        }
        for phase in killed_runs.PHASES
        if (mine := [kill for kill in found if kill["phase"] == phase])
    }
    return {
        "kills": len(found),
        "under-counted budgets": faults["under-counted budget"],
        "unreadable ledgers": faults["unreadable ledger"],
        "faults": dict(faults),
        "phases": by_phase,
    }


def jobs(number: int) -> dict[str, Any]:
    """Jobs one process of which is killed, by process and phase, with all faults found."""
    with tempfile.TemporaryDirectory() as folder:
        found = killed_jobs.happened(Path(folder), number)
    faults = Counter(fault for kill in found for fault in killed_jobs.faults(kill))
    by_kind = {
        f"{index}, {phase}": {
            "kills": len(mine),
            "touched records": sum(kill["touched"] for kill in mine),
            "charged": sum(kill["charged"] or 0 for kill in mine),
            "finished": sum(kill["state"] == "finished" for kill in mine),
            "resumed": sum("resumed" in kill for kill in mine),
        }
        for index, phase in dict.fromkeys(killed_jobs.KILLS)
        if (mine := [kill for kill in found if kill["kill"] == [index, phase]])
    }
    return {
        "kills": len(found),
        "under-counted budgets": faults["under-counted budget"],
        "hangs": faults["hang"],
        "resumed": sum("resumed" in kill for kill in found),
        "longest end": max(kill["seconds"] for kill in found),
        "faults": dict(faults),
        "phases": by_kind,
    }


def resumes(number: int) -> dict[str, Any]:
    """Runs with a checkpoint, killed and resumed until they end: they must be charged once and give the same bits."""
    program = [sys.executable, str(ROOT / "tests" / "support" / "killed_solves.py"), "--kills", str(number)]
    ended = subprocess.run(program, capture_output=True, text=True, cwd=ROOT / "tests", check=False)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def signals(number: int) -> dict[str, Any]:
    """Runs that receive a signal at random and at chosen moments, with all faults found."""
    with tempfile.TemporaryDirectory() as folder:
        found = signalled_runs.happened(Path(folder), random=number, moments=tuple(signalled_runs.MOMENTS))
    counted = [one for one in found if not one.get("late")]
    ends = Counter({"nothing": "nothing spent"}.get(one["state"], one["state"]) for one in counted)
    wrong = [one for one in counted if one["faults"]]
    return {"signals": len(counted), "answered": len(counted) - len(wrong), "ends": dict(ends), "faults": wrong}


def disks(number: int) -> dict[str, Any]:
    """Runs whose disk fails or is full at every write, in the first ``number`` of three ways."""
    reason = full_disks.reason_to_skip()
    ways: dict[str, Callable[[Path], tuple[int, dict[str, list[str]]]]] = {
        "fails once": lambda home: full_disks.injected(home, "once"),
        "fails from then on": lambda home: full_disks.injected(home, "broken"),
        **({} if reason else {"is full": full_disks.filled}),
    }
    runs, wrong = {}, {}
    for way in list(ways)[:number]:
        with tempfile.TemporaryDirectory() as folder:
            runs[way], faults = ways[way](Path(folder) / "runs")
        wrong |= {f"{way}, {step}": what for step, what in faults.items()}
    return {"runs": sum(runs.values()), "ways": runs, "skipped": reason, "faults": wrong}


def races(number: int) -> dict[str, Any]:
    """Races on SQLite and on PostgreSQL; a reason if there is no server."""
    with tempfile.TemporaryDirectory() as folder:
        found = {"SQLite": _raced(f"sqlite:///{folder}/ledger.db", Path(folder), number)}
    reason = postgresql_server.reason_to_skip()
    if reason is not None:
        return found | {"PostgreSQL": {"skipped": reason}}
    with postgresql_server.server() as url, tempfile.TemporaryDirectory() as folder:
        return found | {"PostgreSQL": _raced(url, Path(folder), number)}


def _raced(url: str, folder: Path, number: int) -> dict[str, Any]:
    """Races in groups of ten, because a racing program has a time limit."""
    outcomes: list[list[str]] = []
    while len(outcomes) < number:
        part = min(10, number - len(outcomes))
        named = url if not url.startswith("sqlite") else f"sqlite:///{folder}/ledger-{len(outcomes)}.db"
        outcomes += ledger_racers.raced(named, folder, part, first=len(outcomes))
    return {"races": len(outcomes), "racers": RACERS, "fair": sum(outcome == FAIR for outcome in outcomes)}


def inputs(number: int, seed: int) -> dict[str, Any]:
    """Bad inputs to every target; counts by outcome."""
    from support.fuzz_targets import TARGETS, fuzz, shares

    return _tried(TARGETS, lambda name: dict(fuzz(name, shares(number)[name], seed)))


def guided(number: int) -> dict[str, Any]:
    """Bad files chosen by coverage, equally many of each format; a reason if atheris is not available."""
    reason = fuzz_coverage.reason_to_skip()
    if reason is not None:
        return {"skipped": reason}
    return _tried(FORMATS, lambda name: fuzz_coverage.fuzzed(name, number // len(FORMATS)))


def _tried(names: Iterable[str], attempt: Callable[[str], dict[str, int]]) -> dict[str, Any]:
    found, failures = {}, {}
    for name in names:
        print(f"  {name}", flush=True)
        try:
            found[name] = attempt(name)
        except Exception as error:
            print(traceback.format_exc()[-4000:], flush=True)
            failures[name] = type(error).__name__
    counts: Counter[str] = Counter()
    for outcome in found.values():
        counts.update(outcome)
    return {
        "inputs": counts.total(),
        "refused": counts.total() - counts["accepted"],
        "accepted": counts["accepted"],
        "misbehaved": failures,
        "targets": found,
    }


def machine() -> dict[str, str]:
    """Commit, marked if the tree has changes, and machine."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    changed = subprocess.run(["git", "status", "--porcelain", "src", "tests"], cwd=ROOT, capture_output=True, text=True)
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {
        "commit": (head.strip() or "unknown") + (" with changes" if changed.stdout.strip() else ""),
        "hardware": f"{os.cpu_count()} core(s) of {model}",
        "python": platform.python_version(),
    }


def page(results: dict[str, Any]) -> str:
    """The results as a page."""
    killed, resumed, raced, tried = (results[part] for part in ("kills", "resumes", "races", "inputs"))
    rows = [
        ["runs killed", f"{killed['kills']:,}", f"{killed['under-counted budgets']} under-counted budgets, "
         f"{killed['unreadable ledgers']} unreadable ledgers", killed["commit"]],
        ["kills of one of two processes", *_parted(results.get("jobs"), "kills", _jobs_ended)],
        ["kills of runs with a checkpoint", f"{resumed['kills']:,}", f"{resumed['runs']} runs resumed and finished, "
         f"{len(resumed['faults'])} of them with a wrong charge or different bits", resumed["commit"]],
        ["signals to runs", *_parted(results.get("signals"), "signals", lambda found: f"{found['answered']} handled, "
         f"{len(found['faults'])} lost or wrong")],
        ["runs on disks that fail or are full", *_parted(results.get("disks"), "runs", lambda found: "at every write "
         f"of a run whose disk {', '.join(found['ways'])}: {len(found['faults'])} lost or wrong")],
        *([f"races on {name}", *_raced_well(raced[name]), raced["commit"]] for name in ("SQLite", "PostgreSQL")),
        ["random inputs", f"{tried['inputs']:,}", _outcome(tried), tried["commit"]],
        ["coverage-guided inputs", f"{results['guided'].get('inputs', 0):,}", _outcome(results["guided"]),
         results["guided"]["commit"]],
    ]  # fmt: skip
    phases = [[phase, *map(str, counts.values())] for phase, counts in killed["phases"].items()]
    of_jobs = results.get("jobs", {"phases": {}})["phases"]
    killed_processes = [[kind, *map(str, counts.values())] for kind, counts in of_jobs.items()]
    kinds = sorted({kind for found in tried["targets"].values() for kind in found})
    targets = [[name, *(str(found.get(kind, 0)) for kind in kinds)] for name, found in tried["targets"].items()]
    return PAGE.format(
        hardware=results["inputs"]["hardware"],
        python=results["inputs"]["python"],
        racers=RACERS,
        losers=RACERS - 1,
        table=markdown_table(["test", "number", "outcome", "commit"], rows),
        limit=GRACE + LAST,
        jobs=markdown_table(
            ["killed process", "jobs", "had read records", "were charged", "had finished", "were resumed"],
            killed_processes,
        ),
        kills=markdown_table(["killed", "runs", "had read records", "were charged", "had finished"], phases),
        inputs=markdown_table(["inputs to", *kinds], targets),
    )


def _parted(found: dict[str, Any] | None, counted: str, say: Callable[[dict[str, Any]], str]) -> tuple[str, str, str]:
    """The cells of a part that may not have been measured yet."""
    return ("0", "not measured yet", "") if found is None else (f"{found[counted]:,}", say(found), found["commit"])


def _jobs_ended(found: dict[str, Any]) -> str:
    wrong = sum(number for fault, number in found["faults"].items() if fault.startswith("resumed"))
    return (
        f"{found['under-counted budgets']} under-counted budgets, {found['hangs']} hangs; {found['resumed']} jobs "
        f"resumed and finished, {wrong} of them with a wrong charge or different bits"
    )


def _raced_well(found: dict[str, Any]) -> tuple[str, str]:
    return ("0", found["skipped"]) if "skipped" in found else (str(found["races"]), f"{found['fair']} with one winner")


def _outcome(tried: dict[str, Any]) -> str:
    if "skipped" in tried:
        return str(tried["skipped"])
    return (
        f"{tried['refused']:,} refused with a typed error, {tried['accepted']:,} accepted, "
        f"{len(tried['misbehaved'])} targets misbehaved"
    )


def passed(results: dict[str, Any]) -> bool:
    """Whether all tests passed."""
    raced = [results["races"][name] for name in ("SQLite", "PostgreSQL")]
    fair = all(found.get("fair") == found.get("races") for found in raced)
    misbehaved = [*results["inputs"]["misbehaved"], *results["guided"].get("misbehaved", ())]
    parts = [results[name]["faults"] for name in ("kills", "jobs", "resumes", "signals", "disks") if name in results]
    return not any(parts) and fair and not misbehaved


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--quick", action="store_true", help="small counts; nothing is written")
    asked.add_argument("--only", choices=tuple(FULL), help="measure this part again and keep the others")
    asked.add_argument("--seed", type=int, default=1, help="seed of the bad inputs; CI uses seed 0")
    options = asked.parse_args()
    counts, started = QUICK if options.quick else FULL, time.monotonic()
    measures: dict[str, Callable[[int], dict[str, Any]]] = {
        "races": races,
        "kills": kills,
        "jobs": jobs,
        "resumes": resumes,
        "signals": signals,
        "disks": disks,
        "inputs": lambda number: inputs(number, options.seed),
        "guided": guided,
    }
    results: dict[str, Any] = {"format": FORMAT}
    if options.only is not None:
        results = json.loads((TARGET / "trust.json").read_text("utf-8"))
        measures = {options.only: measures[options.only]}
    for name, measure in measures.items():
        print(f"{name}: {counts[name]:,}", flush=True)
        results[name] = measure(counts[name]) | machine()
        print(json.dumps(results[name]), flush=True)
    written = page(results)
    if options.quick:
        print(written)
    else:
        (TARGET / "trust.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        (TARGET / "trust.md").write_text(written, encoding="utf-8")
    print("nothing broke" if passed(results) else "SOMETHING BROKE", f"({time.monotonic() - started:.0f} s)")
    sys.exit(not passed(results))


if __name__ == "__main__":
    main()
