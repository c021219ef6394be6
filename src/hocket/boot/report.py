"""What a rank that failed by an exception leaves for its launcher: one JSON file."""

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

# A rank raises these because of what happened to another one.
_CONSEQUENCES = (PeerFailure, Aborted, CommTimeout)
_OWN = f"{Path(__file__).parents[1]}/"
_OF_OTHERS = (
    str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), "<frozen "
)  # fmt: skip

EXIT_EXCEPTION = 1
"""With which a rank ends that has left a report."""


@dataclass(frozen=True)
class FailureReport:
    """An uncaught exception of one rank.

    Args:
        rank: the rank that failed.
        type_name: name of the exception's class.
        message: the exception as text, with what Python thinks was meant.
        where: innermost place of the traceback that is in no library, as "file:line in function"; empty where there is
            none.
        traceback: the whole traceback as Python prints it.
        time_s: when it was caught, in seconds since the epoch.
        consequence: the exception, or one it was raised from or while handling, says that another rank failed.
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
    """Describe an exception.

    Args:
        rank: the rank in which it was caught.
        error: the exception.
        trace: its traceback from the frame on that the user should see first.
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
    """Write `folder`/rank-N.json, whole or not at all: a rank may be killed at any moment.

    Raises:
        OSError: the folder is gone or full.
    """
    text = json.dumps(asdict(report))
    write_whole(folder / f"rank-{report.rank}.json", lambda part: part.write_text(text, encoding="utf-8"))


def read_reports(folder: Path, ranks: Iterable[int]) -> dict[int, FailureReport]:
    """Read the reports of those of some ranks that have left one, by rank."""
    reports = {}
    for rank in ranks:
        try:
            reports[rank] = FailureReport(**json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue  # none, or not ours: a script can write there too; the rank's exit code is told in any case
    return reports


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<its text could not be made>"


def _as_python_prints(error: BaseException, trace: TracebackType | None) -> str:
    """Return the traceback with what Python thinks was meant, which before 3.12 its own hook alone puts in."""
    told = traceback.TracebackException(type(error), error, trace)
    if isinstance(error, HocketError) and not os.environ.get("HOCKET_TRACEBACK"):
        # What hocket refuses is told by the line that asked for it; how hocket came to refuse it helps nobody.
        told.stack = _until_user(told.stack)
    text = "".join(told.format())
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
    bare.__traceback__ = error.__traceback__  # of a name the hook looks at the variables of the innermost frame
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        sys.__excepthook__(type(bare), bare, bare.__traceback__)
    _, found, meant = said.getvalue().rstrip("\n").rpartition(". Did you mean: ")
    return found + meant if found else ""


def _is_consequence(error: BaseException) -> bool:
    """Follow the chain of causes and contexts; it can be a ring, as users may assign them."""
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
