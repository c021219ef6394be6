"""The report of a rank that failed by an exception, for its launcher: one JSON file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import sysconfig
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from hocket.errors import Aborted, CommTimeout, HocketError, PeerFailure
from hocket.whole_file import write_whole

# A rank raises these because another rank failed.
_CONSEQUENCES = (PeerFailure, Aborted, CommTimeout)
_OWN = f"{Path(__file__).parents[1]}/"
_OF_OTHERS = (
    str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), "<frozen "
)  # fmt: skip

EXIT_EXCEPTION = 1
"""Exit code of a rank that has written a report."""


@dataclass(frozen=True)
class FailureReport:
    """An uncaught exception of one rank.

    Args:
        rank: the rank that failed.
        type_name: name of the exception's class.
        message: text of the exception, with Python's "Did you mean".
        where: innermost frame of the traceback outside of libraries, as "file:line in function"; may be empty.
        traceback: the whole traceback as Python prints it.
        time_s: time when it was caught, in seconds since the epoch.
        consequence: whether it, or an exception in its chain of causes and contexts, reports a failure of another rank.
    """

    rank: int
    type_name: str
    message: str
    where: str
    traceback: str
    time_s: float
    consequence: bool

    @property
    def one_line(self) -> str:
        """The exception's class and the first line of its message."""
        first_line = next(iter(self.message.splitlines()), "")
        return f"{self.type_name}: {first_line}" if first_line else self.type_name


def make_report(rank: int, error: BaseException, trace: TracebackType | None) -> FailureReport:
    """Return the report of an exception.

    Args:
        rank: the rank in which it was caught.
        error: the exception.
        trace: its traceback, from the first frame that the user should see.
    """
    frames = traceback.extract_tb(trace)
    of_user = [frame for frame in frames if not frame.filename.startswith(_OF_OTHERS)] or frames
    return FailureReport(
        rank=rank,
        type_name=type(error).__name__,
        message=_text(error) + _hint(error),
        where=f"{of_user[-1].filename}:{of_user[-1].lineno} in {of_user[-1].name}" if frames else "",
        traceback=_as_python_prints(error, trace),
        time_s=time.time(),
        consequence=_is_consequence(error),
    )


def write_report(folder: Path, report: FailureReport) -> None:
    """Write `folder`/rank-N.json, completely or not at all: a rank may be killed at any moment.

    Raises:
        OSError: the folder does not exist, or the disk is full.
    """
    text = json.dumps(asdict(report))
    write_whole(folder / f"rank-{report.rank}.json", lambda part: part.write_text(text, encoding="utf-8"))


def read_reports(folder: Path, ranks: Iterable[int]) -> dict[int, FailureReport]:
    """Return the reports of the ranks that have written one, by rank."""
    reports = {}
    for rank in ranks:
        try:
            reports[rank] = FailureReport(**json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue  # no report, or a file of the script; the launcher reports the exit code anyway
    return reports


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<the text of this exception could not be made>"


def _as_python_prints(error: BaseException, trace: TracebackType | None) -> str:
    """Return the traceback with Python's "Did you mean", which only Python's own hook adds before 3.12."""
    printed = traceback.TracebackException(type(error), error, trace)
    if isinstance(error, HocketError) and not os.environ.get("HOCKET_TRACEBACK"):
        # The user's line explains an error of hocket; hocket's own frames do not help.
        printed.stack = _until_user(printed.stack)
    text = "".join(printed.format())
    hint = _hint(error)
    if not hint or hint in text:
        return text
    head, _, last = text.rstrip("\n").rpartition("\n")
    return f"{head}\n{last}{hint}\n"


def _until_user(stack: traceback.StackSummary) -> traceback.StackSummary:
    of_user = [at for at, frame in enumerate(stack) if not frame.filename.startswith(_OF_OTHERS)]
    last = max(of_user, default=len(stack) - 1)
    return traceback.StackSummary.from_list(list(stack)[: last + 1])


def _hint(error: BaseException) -> str:
    """Return ``. Did you mean: 'size'?`` where Python would print that."""
    if not isinstance(error, (AttributeError, NameError)) or getattr(error, "name", None) is None:
        return ""
    bare = type(error)("", name=error.name, **({"obj": error.obj} if isinstance(error, AttributeError) else {}))
    bare.__traceback__ = error.__traceback__  # for a NameError the hook uses the variables of the innermost frame
    output = io.StringIO()
    with contextlib.redirect_stderr(output):
        sys.__excepthook__(type(bare), bare, bare.__traceback__)
    _, question, suggestion = output.getvalue().rstrip("\n").rpartition(". Did you mean: ")
    return question + suggestion if question else ""


def _is_consequence(error: BaseException) -> bool:
    """Search the chain of causes and contexts; it may be a cycle, since users can assign them."""
    seen: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        link = pending.pop()
        if link is None or any(link is other for other in seen):
            continue
        if isinstance(link, _CONSEQUENCES):
            return True
        seen.append(link)
        pending += [link.__cause__, link.__context__]
    return False
