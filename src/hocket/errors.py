"""Every exception a user of hocket can see.

Each class derives from `HocketError` and from the builtin that fits, so that
``except TimeoutError`` and ``except HocketError`` both work.
"""

from __future__ import annotations


class HocketError(Exception):
    """Base of all errors that hocket raises."""


class InvalidArgument(HocketError, ValueError):
    """An argument has a value that cannot work: a rank out of range, overlapping arrays, a wrong size."""


class InvalidSchedule(HocketError, ValueError):
    """A schedule is malformed, or does not do what its collective promises; names the transfer."""


class MissingAction(InvalidSchedule):
    """A pipeline schedule lacks an action: a pass of a micro-batch through a stage, or the other end of a message."""


class DuplicateAction(InvalidSchedule):
    """A pipeline schedule has an action twice."""


class MisplacedAction(InvalidSchedule):
    """An action of a pipeline schedule stands on a rank that does not hold its stage, or in another pipe."""


class IllegalOrder(InvalidSchedule):
    """An action of a pipeline schedule stands before one of the same rank that it needs."""


class PipelineDeadlock(InvalidSchedule):
    """Actions of several ranks wait for each other; the message shows the cycle, and what would help."""


class MemoryLimitExceeded(InvalidSchedule):
    """A rank of a pipeline schedule would keep more than it may; the message names the action and the least limit."""


class StashLeak(InvalidSchedule):
    """Something that a pipeline schedule keeps for a micro-batch is never let go."""


class InvalidModel(HocketError, ValueError):
    """A model cannot be split over ranks as it was asked for; the message names the part, and what would do."""


class SimulationDeadlock(HocketError, RuntimeError):
    """Tasks of a simulation wait for each other; the message names the first of them, and `tasks` has all."""

    def __init__(self, message: str, tasks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.tasks = tasks


class InvalidType(HocketError, TypeError):
    """An argument is of a kind that cannot work: not an array, on another device, read-only."""


class UnsupportedDtype(HocketError, TypeError):
    """The data type, or its combination with a reduction, is not supported; the message lists what is."""


class InvalidState(HocketError, RuntimeError):
    """The call is not possible now: after finalize, after fork, or from two threads at once."""


class CollectiveMismatch(HocketError, RuntimeError):
    """The members of a communicator issued different operations at the same place of the issue order.

    Raised on every rank; the operation is skipped and the communicator stays usable.
    """


class WrongResult(HocketError, RuntimeError):
    """An operation gave something else than it has to; names the place, what was there, and what had to be."""


class CommTimeout(HocketError, TimeoutError, RuntimeError):
    """An operation did not complete in its time; the message and `ranks` name who is missing.

    A RuntimeError as well: that is what torch.distributed raises over gloo, and programs catch.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class PeerFailure(HocketError, RuntimeError):
    """A member of the communicator died or left; the message and `ranks` name it."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class UnsupportedCall(HocketError, RuntimeError):
    """A method of another library's interface that hocket does not support; the message names an alternative."""


class AuthenticationError(HocketError, RuntimeError):
    """What came is not what a rank of this job sent; nothing of it was looked at."""


class Aborted(HocketError, RuntimeError):
    """The communicator was given up by another member, or by an earlier failure on this one."""


class ResourceExhausted(HocketError, MemoryError):
    """Shared memory or another resource of the machine ran out."""


class MissingPackage(HocketError, ImportError):
    """Something needs a package that is not installed; the message says which, and the command that installs it."""


class BackendUnavailable(HocketError, RuntimeError):
    """A backend asked for by name cannot be had here; the message says why."""


class BootstrapMismatch(HocketError, RuntimeError):
    """The processes that met at start-up disagree about the job: its size, a rank, the version of hocket."""


class TableError(HocketError, ValueError):
    """A file cannot be read as a tuning table; the message names the file and the line."""


class TableMismatch(HocketError, RuntimeError):
    """The ranks of a job have different tuning tables, and would choose different backends."""


class RemoteError(HocketError, RuntimeError):
    """A function run by `hocket.spawn` failed in a rank in a way that cannot be raised here as it was."""


class LaunchError(HocketError, RuntimeError):
    """A job could not be started, or one of its ranks failed."""


class BadEntry(HocketError, ImportError):
    """A file that should add an entry to a registry does not: it fails when it is imported, or lacks what it must have.

    `name` is that of the module, `path` its file.
    """


def first_line(error: BaseException) -> str:
    """Return the first line of what an error of another library says; its type, where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
