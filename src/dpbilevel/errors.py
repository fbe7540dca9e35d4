"""All errors and warnings of the library.

Messages name the argument, the rule and the remedy. They contain the values of *public* arguments only, never a
record's value, row or count, because an error message is a release that is not accounted for.
"""


class DPBilevelError(Exception):
    """Base class of every error of this library."""


class InvalidArgument(DPBilevelError, ValueError):
    """A public argument is invalid."""


class InvalidRecords(InvalidArgument):
    """Records cannot be used: wrong type, shape, or (unless ``invalid="zero"``) a non-finite value."""


class InvalidProblem(InvalidArgument):
    """The losses, terms or domains do not describe a bilevel problem, or the method does not fit it."""


class BudgetExceeded(DPBilevelError):
    """The ledger refuses a charge: it would exceed the total that was fixed when the ledger was created."""


class NotCharged(DPBilevelError):
    """A release was evaluated that no ledger has charged, or more often than it was charged."""


class LedgerCorrupt(DPBilevelError):
    """A stored ledger is not as it was written. Nothing is charged, and the ledger does not restart at zero."""


class LedgerUnavailable(DPBilevelError):
    """A ledger cannot be used: its database cannot be reached, read or written, or it was copied by a fork."""


class CheckpointRefused(DPBilevelError):
    """A checkpoint belongs to another run, or is damaged, in use, or readable by others. Nothing is charged."""


class JobFailed(DPBilevelError):
    """A run of several processes cannot go on: one has ended, did not come, or has other code, arguments or records."""


class MissingExtra(DPBilevelError, ImportError):
    """An optional dependency is not installed; the message names the extra that installs it."""


class StorageFailed(DPBilevelError):
    """A disk that holds records cannot be read any more. The charge stands."""


class TrainerFailed(DPBilevelError):
    """A black-box trainer raised, or returned something that is not a model. The charge stands."""


class PrivacyLeakWarning(UserWarning):
    """Something outside the accounting may depend on private records, or epsilon is too large for real protection.

    The result has a caveat.
    """


class UtilityWarning(UserWarning):
    """The signal-to-noise ratio is low, by plan or in a result; the privacy guarantee holds regardless."""


class NotPrivateWarning(UserWarning):
    """The result has no privacy guarantee (a fixed seed, or an infinite epsilon)."""
