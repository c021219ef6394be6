"""Makes docs/errors.md: what each class of errors means, and what is said of mistakes."""

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
    "InvalidType": "pass the kind of thing that the message names",
    "UnsupportedDtype": "convert the array, or use the operations on objects",
    "InvalidState": "see the order of calls in [the communicator](communicator.md)",
    "CollectiveMismatch": "make all ranks issue the same in the same order; the message has the lines of both sides",
    "CommTimeout": "look at the rank that the message names; if it computes that long, pass a larger `timeout=`",
    "PeerFailure": "look for the first failure: `hocket run` prints it whole. `comm.shrink()` goes on",
    "Aborted": "look for the first failure, as for `PeerFailure`",
    "AuthenticationError": "use one secret on [all hosts](hosts.md); if you do, somebody interferes",
    "BackendUnavailable": "install what the message names, or take another one; `hocket doctor` shows what there is",
    "BootstrapMismatch": "start all ranks by one launcher, with one version of hocket",
    "LaunchError": "look at what the job wrote",
    "RemoteError": "look at the traceback of the rank, which is the error's cause",
    "MissingPackage": "run the command that the message names",
    "ResourceExhausted": "free shared memory or descriptors; `hocket doctor` names the limits",
    "TableError": "make the table anew: `hocket tune run`",
    "TableMismatch": "copy one table to all hosts, or set `HOCKET_TABLE` alike",
    "WrongResult": "a library gives wrong results: do not use it, and report it",
    "UnsupportedCall": "use what the message names instead",
    "BadEntry": "correct the file that the message names",
    "InvalidModel": "split the model elsewhere, or over fewer ranks, as the message says",
    "InvalidSchedule": "correct the transfer or the action that the message names",
    "MissingAction": "add the action that the message names",
    "DuplicateAction": "take one of the two out",
    "MisplacedAction": "put the action to the rank that holds its stage",
    "IllegalOrder": "put the action behind what it needs",
    "PipelineDeadlock": "break the circle that the message shows, or allow as many messages in flight as it says",
    "MemoryLimitExceeded": "allow what the message says, or choose a schedule that keeps less",
    "StashLeak": "add the action that lets go what is kept",
    "SimulationDeadlock": "break the circle of the tasks that the message names",
}

_HEAD = """# Errors and what to do

**What for.** What hocket's errors mean, what to do, and what is said of some 190 mistakes. Every error of hocket's
derives from `hocket.HocketError` and from the builtin that fits; the message says what was wrong and what would be
right. Mistakes whose message depends on the machine are left out. The tables are made by `tools/errors_page.py`
from `tests/mistakes`, which the tests make, too.

Bad input is refused before anything is changed or sent, and the communicator stays usable. Bad arguments of a
command are one line and exit code 2; a failed program has its own exit code, 128 + the signal's number if it was
killed, 124 if its time was over, and 74 if it ended well but what it printed could not be written. Under
`hocket run` the traceback of an error of hocket's ends in your own line; `HOCKET_TRACEBACK=1` shows the rest.

| error | what it means | what to do |
|---|---|---|
"""


def error_classes() -> dict[str, type]:
    """Return the classes of errors by name, but for the base of all."""
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
                f"\n## {title}\n\n| written | said |\n|---|---|\n",
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
