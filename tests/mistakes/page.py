"""Makes docs/errors.md: what each class of errors means, and the messages of mistakes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path

from hocket import errors

from .commands import COMMANDS
from .mistake import Mistake, Outcome
from .statements import ALONE, BETWEEN

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"

REMEDIES = {
    "InvalidArgument": "correct the value that the message names",
    "InvalidType": "pass an object of the type that the message names",
    "UnsupportedDtype": "convert the array, or use the operations on objects",
    "InvalidState": "see the order of calls in [the communicator](communicator.md)",
    "CollectiveMismatch": "issue the same operations in the same order on all ranks; the message names both lines",
    "CommTimeout": "check the rank that the message names; if it computes that long, pass a larger `timeout=`",
    "PeerFailure": "find the first failure, which `hocket run` prints in full; `comm.shrink()` drops dead ranks",
    "Aborted": "find the first failure, as for `PeerFailure`",
    "AuthenticationError": "use one secret on [all hosts](hosts.md); if you already do, somebody is interfering",
    "BackendUnavailable": "install what the message names, or use another backend; see `hocket doctor`",
    "BootstrapMismatch": "start all ranks with one launcher and one version of hocket",
    "LaunchError": "read the output of the job",
    "RemoteError": "read the traceback of the rank: it is the cause of the exception",
    "MissingPackage": "run the command that the message names",
    "ResourceExhausted": "free shared memory or file descriptors; `hocket doctor` shows the limits",
    "RecorderError": "name a process that has called `hk.init`, or whose launcher runs; or copy the file again",
    "TableError": "measure a new table: `hocket tune run`",
    "QueryTimeout": "narrow the query, for example by LIMIT or WHERE, or raise `timeout=`",
    "TableMismatch": "copy one table to all hosts, or set the same `HOCKET_TABLE` on all",
    "NotFinite": 'look for the cause at the element that the message names, or pass `nonfinite="pass"`',
    "WrongResult": "the library computes wrong results: do not use it, and report it",
    "UnsupportedCall": "use the alternative that the message names",
    "BadEntry": "correct the file that the message names",
    "InvalidModel": "split the model elsewhere, or over fewer ranks, as the message says",
    "InvalidSchedule": "correct the transfer or the action that the message names",
    "MissingAction": "add the action that the message names",
    "DuplicateAction": "remove one of the two",
    "MisplacedAction": "move the action to the rank that holds its stage",
    "IllegalOrder": "move the action after the action that it needs",
    "PipelineDeadlock": "break the cycle that the message shows, or allow as many messages in flight as it says",
    "MemoryLimitExceeded": "raise the limit to the value in the message, or choose a schedule that holds less",
    "StashLeak": "add the action that releases the value",
    "SimulationDeadlock": "break the cycle of the tasks that the message names",
}

_HEAD = """# Errors and what to do

This page lists what each error of hocket means, what to do about it, and the messages of about 170 mistakes. Every
error derives from `hocket.HocketError` and from a fitting builtin. Its message says what was wrong and what would be
right. A name that does not exist raises Python's own `AttributeError`. `tools/errors_page.py` makes the tables from
`tests/mistakes`; the tests make each of these mistakes. Mistakes whose message depends on the machine are not shown.

hocket refuses bad input before it changes or sends anything, and the communicator stays usable. Under `hocket run` the
traceback of an error of hocket ends in your own line; `HOCKET_TRACEBACK=1` shows the rest.

| exit code of `hocket run` | meaning |
|---|---|
| 2 | a bad argument of the command; one line says what is wrong. All commands of hocket use this code |
| that of a rank | the program failed: the exit code of the rank that failed first |
| 128 + number of the signal | a signal killed a rank, or ended the launcher |
| 124 | in a [plain MPI program](launch.md#plain-mpi-programs) a rank did not reach `MPI_Init` in time |
| 74 | the program succeeded, but its output could not be written |

Commands that measure have further codes: see [benchmarks](bench.md#find-out-whether-something-is-slower) and [mixing
libraries](mixing.md#choose-a-library-by-measurement).

## Classes of errors

| error | what it means | what to do |
|---|---|---|
"""


def error_classes() -> dict[str, type]:
    """Return the classes of errors by name, except the base of all."""
    found = {name: each for name, each in vars(errors).items() if inspect.isclass(each)}
    return {
        name: each
        for name, each in found.items()
        if issubclass(each, errors.HocketError) and each.__mro__[1:2] != (Exception,)
    }


def is_shown(mistake: Mistake) -> bool:
    return not mistake.varies


def make(outcomes: Mapping[Mistake, Outcome]) -> str:
    """Return the page.

    Args:
        outcomes: what came of each mistake that is shown, by the mistake.
    """
    parts = [_HEAD, *(_class_row(name, each) for name, each in error_classes().items())]
    for title, mistakes in {**ALONE, **BETWEEN, **COMMANDS}.items():
        shown = [each for each in mistakes if is_shown(each)]
        if shown:
            parts += [
                f"\n## {title}\n\n| mistake | message |\n|---|---|\n",
                *(_row(each, outcomes[each]) for each in shown),
            ]
    return "".join(parts)


def _class_row(name: str, error: type) -> str:
    meaning = " ".join((inspect.getdoc(error) or "").split("\n\n")[0].split())
    builtin = next(each.__name__ for each in error.__mro__[1:] if each.__module__ == "builtins")
    return f"| `{name}` ({builtin}) | {meaning} | {REMEDIES[name]} |\n"


def _row(mistake: Mistake, outcome: Outcome) -> str:
    kind = "" if isinstance(outcome.kind, int) else f"{outcome.kind}: "
    return f"| `{_cell(mistake.written)}` | {_cell(kind + outcome.message)} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
