"""Which roles the records of one object may have together."""

from typing import Any

import jax

from dpbilevel.errors import InvalidRecords

Tree = Any


def check_roles(upper: Tree, lower: Tree, both: Tree, heldout: Tree) -> None:
    """Raise unless roles go together: disjoint ``upper`` and ``lower``, or one role alone."""
    if heldout is not None and not (upper is None and lower is None and both is None):
        raise InvalidRecords("roles: heldout=... must be alone; no level of a problem reads it")
    if heldout is None and (both is None) == (lower is None):
        raise InvalidRecords("roles: give lower=... (with upper=... if the upper level has records), or only both=...")
    if both is not None and upper is not None:
        raise InvalidRecords(
            "roles: both=... cannot be combined with upper=...; records of upper=... and lower=... are disjoint"
        )
    for role, tree in (("upper", upper), ("lower", lower), ("both", both), ("heldout", heldout)):
        try:
            jax.tree.leaves(tree)
        except ValueError:
            raise InvalidRecords(f"{role}: has a dictionary whose keys cannot be sorted; use strings as keys") from None
