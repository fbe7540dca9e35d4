"""What the processes of a job must agree upon before anything is charged: software, settings, the plan and its program.

A program is compared as its fingerprint, under a key that only they know: a loss may close over data.
"""

from collections.abc import Sequence

from dpbilevel.checkpoint.fingerprint import code, fingerprint
from dpbilevel.foundation.processes import Job
from dpbilevel.planning import Plan
from dpbilevel.privacy.noise import KeySchedule, fresh_key


def check_alike(job: Job, planned: Plan, schedule: KeySchedule, chunks: Sequence[int], facts: str) -> None:
    """Raise, on all processes of a job, unless all are about to do the same run; arguments as of `fingerprint`."""
    if not job.is_several:
        return
    job.agree({"versions, settings or machines": code()})  # before they exchange arrays
    key = job.broadcast(fresh_key())
    found = fingerprint(key, planned, schedule, chunks, facts)
    job.agree({f"arguments ({name})": mac for name, mac in found.items()})
