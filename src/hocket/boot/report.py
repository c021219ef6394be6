"""What a rank that failed by an exception leaves for its launcher: one JSON file."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from hocket.errors import Aborted, CommTimeout, PeerFailure
from hocket.whole_file import write_whole

# A rank raises these because of what happened to another one.
_CONSEQUENCES = (PeerFailure, Aborted, CommTimeout)


@dataclass(frozen=True)
class Report:
    """An uncaught exception of one rank.

    Args:
        rank: the rank that failed.
        type_name: name of the exception's class.
        message: the exception as text.
        where: innermost place of the traceback, as "file:line in function"; empty where there is none.
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


def make_report(rank: int, error: BaseException, trace: TracebackType | None) -> Report:
    """Describe an exception.

    Args:
        rank: the rank in which it was caught.
        error: the exception.
        trace: its traceback from the frame on that the user should see first.
    """
    frames = traceback.extract_tb(trace)
    return Report(
        rank=rank,
        type_name=type(error).__name__,
        message=_text(error),
        where=f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else "",
        traceback="".join(traceback.format_exception(type(error), error, trace)),
        time_s=time.time(),
        consequence=_is_consequence(error),
    )


def write_report(folder: Path, report: Report) -> None:
    """Write `folder`/rank-N.json, whole or not at all: a rank may be killed at any moment.

    Raises:
        OSError: the folder is gone or full.
    """
    text = json.dumps(asdict(report))
    write_whole(folder / f"rank-{report.rank}.json", lambda part: part.write_text(text, encoding="utf-8"))


def read_reports(folder: Path, ranks: Iterable[int]) -> dict[int, Report]:
    """Read the reports of those of some ranks that have left one, by rank."""
    reports = {}
    for rank in ranks:
        try:
            reports[rank] = Report(**json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue  # none, or not ours: a script can write there too; the rank's exit code is told in any case
    return reports


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<its text could not be made>"


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
