"""Everything the library raises or warns with.

Messages name the argument, the rule and the remedy. They carry the value of *public* arguments only: never a
record's value, row or count, because an error message is a release nobody paid for.
"""


class DPBilevelError(Exception):
    """Base class of every error of this library."""


class InvalidArgument(DPBilevelError, ValueError):
    """A public argument breaks its rule."""


class InvalidRecords(InvalidArgument):
    """Records cannot be used: wrong type, shape, or (unless ``invalid="zero"``) a non-finite value."""


class InvalidProblem(InvalidArgument):
    """The losses, terms or domains do not describe a bilevel problem, or the method does not fit it."""


class BudgetExceeded(DPBilevelError):
    """The ledger refuses a charge: it would exceed the total that was fixed when the ledger was made."""


class NotCharged(DPBilevelError):
    """A release was asked of the records that no ledger has charged (or more often than was charged)."""


class LedgerCorrupt(DPBilevelError):
    """What is stored of a ledger is not what was written. Nothing is charged, and nothing starts at zero."""


class LedgerUnavailable(DPBilevelError):
    """A ledger cannot be used: its database cannot be reached, read or written, or it is a copy that a fork made."""


class CheckpointRefused(DPBilevelError):
    """A checkpoint is of another run, damaged, in use, or readable by others. Nothing new is charged or released."""


class MissingExtra(DPBilevelError, ImportError):
    """A package is not installed that only some people need; the message names the extra that brings it."""


class TrainerFailed(DPBilevelError):
    """A black-box trainer raised, or returned something that is not a model. The charge stands."""


class PrivacyLeakWarning(UserWarning):
    """Something outside the accounting may depend on private records, or epsilon is too large to protect anybody.

    The result is marked with a caveat.
    """


class UtilityWarning(UserWarning):
    """Noise is large against what the records can tell, by plan or in a result; privacy holds all the same."""


class NotPrivateWarning(UserWarning):
    """The result carries no privacy guarantee at all (a fixed seed, or an infinite epsilon)."""
