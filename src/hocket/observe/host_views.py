"""What the processes of other hosts do: agents send it to the first host while somebody looks there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import time
from typing import Any

from hocket.errors import RecorderError
from hocket.observe.agent import FOLDER_PREFIX
from hocket.observe.job_watcher import JobView, JobWatcher, RankView, late_ranks
from hocket.trace import RecorderPlace
from hocket.typed_json import record_from
from hocket.versioned_json import read_text
from hocket.whole_file import write_text

_WATCHED = "watched"
"""File that `hocket observe top` touches; while it is new, the agents of other hosts are asked."""
_VIEW_SUFFIX = ".view"
_HOST_SUFFIX = ".host"
_NEW_S = 5.0
_STALE_S = 10.0
_MOST_VIEW_NBYTES = 1 << 20


def view_message(view: JobView) -> dict[str, Any]:
    """Return what an agent sends of its host; where it would be too long, without the last ranks."""
    ranks = [asdict(rank) for rank in view.ranks]
    while True:
        message = {"ranks": ranks, "problems": list(view.problems)[:10], "num_left_out": len(view.ranks) - len(ranks)}
        if len(json.dumps(message)) < _MOST_VIEW_NBYTES // 2 or not ranks:
            return message
        ranks = ranks[: len(ranks) // 2]


def is_watched(memory: Path) -> bool:
    """Return whether somebody looks at the run whose agent has this folder."""
    try:
        return time() - (memory / _WATCHED).stat().st_mtime < _NEW_S
    except OSError:
        return False


def keep_view(memory: Path, host: str, message: object) -> None:
    """Keep what another host has sent for those who look."""
    text = json.dumps(message)
    write_text(memory / (host + _VIEW_SUFFIX), text)


def add_host(memory: Path, host: str) -> None:
    """Note that another host has joined the run."""
    (memory / (host + _HOST_SUFFIX)).touch()


def remove_host(memory: Path, host: str) -> None:
    """Note that another host has left the run."""
    for suffix in (_HOST_SUFFIX, _VIEW_SUFFIX):
        (memory / (host + suffix)).unlink(missing_ok=True)


class RunWatcher:
    """Looks at a job on all hosts of its recorded run.

    Args:
        find: returns the recorders of the job on this host; called at every look.

    Attributes:
        awaited: hosts that have not said yet what their processes do.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> with hk.init():
        ...     watcher = observe.RunWatcher(lambda: observe.find_job(os.getpid()))
        ...     os.getpid() in [rank.owner.pid for rank in watcher.look().ranks], watcher.awaited
        (True, ())
    """

    def __init__(self, find: Callable[[], Sequence[RecorderPlace]]) -> None:
        self._find = find
        self._places: Sequence[RecorderPlace] = ()
        self._watcher = JobWatcher(self._find_places)
        self.awaited: tuple[str, ...] = ()

    def look(self) -> JobView:
        """Return what all processes do now, those of other hosts as of about a second ago.

        Raises:
            RecorderError: no recorder of the job can be found on this host.
        """
        own = self._watcher.look()
        views, awaited = [], []
        folders = {_folder_of(place) for place in self._places}
        for memory in sorted(folder for folder in folders if folder.name.startswith(FOLDER_PREFIX)):
            with suppress(OSError):  # the run has just ended
                (memory / _WATCHED).touch()
            for path in sorted(memory.glob("*" + _HOST_SUFFIX)):
                view = path.with_suffix(_VIEW_SUFFIX)
                if _is_new(view):
                    views.append(_read(view))
                else:
                    awaited.append(path.stem)
        self.awaited = tuple(awaited)
        waits = tuple(f"{host}: its agent has not said what its processes do" for host in awaited)
        return joined(own, [*views, JobView((), waits, None)])

    def _find_places(self) -> Sequence[RecorderPlace]:
        self._places = self._find()
        return self._places


def joined(own: JobView, others: Sequence[JobView]) -> JobView:
    """Return the view of all hosts: jobs that their launchers call the same are one job, whose ranks wait for each
    other."""
    ranks = list(own.ranks)
    for other in others:
        number_of: dict[int, int] = {}
        for rank in other.ranks:
            if rank.job not in number_of:
                of_job = [each for each in other.ranks if each.job == rank.job]
                number_of[rank.job] = _number(of_job, ranks)
        ranks += [replace(rank, job=number_of[rank.job]) for rank in other.ranks]
    latest = [(each.job, each.owner.rank, each.activity.collectives) for each in ranks]
    ranks = [
        replace(
            each,
            waits_for=late_ranks(each.activity, [(rank, found) for job, rank, found in latest if job == each.job]),
        )
        for each in ranks
    ]
    ranks.sort(key=lambda view: (view.owner.rank is None, view.job, view.owner.rank or 0, view.owner.pid))
    problems = (*own.problems, *(problem for other in others for problem in other.problems))
    return JobView(tuple(ranks), problems, own.interval_s)


def _number(job: Sequence[RankView], ranks: Sequence[RankView]) -> int:
    """The number of the job that these ranks of another host belong to; a new one if it is not there yet."""
    numbers = {each.owner.rank for each in job}
    for number in sorted({each.job for each in ranks}):
        there = [each for each in ranks if each.job == number]
        is_same = (there[0].launcher, there[0].owner.world_size) == (job[0].launcher, job[0].owner.world_size)
        if is_same and not numbers & {each.owner.rank for each in there if each.owner.rank is not None}:
            return number
    return max((each.job for each in ranks), default=-1) + 1


def _folder_of(place: RecorderPlace) -> Path:
    try:
        return place.path.readlink().parent
    except OSError:
        return Path("/")


def _is_new(path: Path) -> bool:
    try:
        return time() - path.stat().st_mtime < _STALE_S
    except OSError:
        return False


def _read(path: Path) -> JobView:
    host = path.name.removesuffix(_VIEW_SUFFIX)
    try:
        content = json.loads(read_text(path, RecorderError, most_nbytes=_MOST_VIEW_NBYTES))
        ranks = tuple(record_from(RankView, each) for each in content["ranks"])
        problems = [f"{host}: {str(each)[:1000]}" for each in content["problems"]]
        left_out = int(content["num_left_out"])
    except (RecorderError, ValueError, KeyError, TypeError, RecursionError) as error:
        return JobView((), (f"{host}: its view cannot be read: {error}",), None)
    if left_out:
        problems.append(f"{host}: {left_out} more processes")
    return JobView(ranks, tuple(problems), None)
