"""Looks at all processes of a job again and again: what each does, its rates, and whom it waits for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic

from hocket.errors import RecorderError
from hocket.observe.activity import Activity, InFlight, LatestCollective, activity_of
from hocket.observe.batch import BatchTask, task_in
from hocket.observe.completeness import IoCompleteness, completeness_of
from hocket.observe.jobs import JobFinder, JobMember
from hocket.observe.processes import ProcessStatus, io_counters, status_of
from hocket.trace import Owner, RecorderPlace

_Latest = tuple[int, int | None, Sequence[LatestCollective]]
"""Of a process: its job, its rank and how far it has come."""
_LATEST_EVENTS = 256
"""Of each ring: enough for what is in flight, and cheap enough to read several times a second."""


@dataclass(frozen=True)
class _Look:
    """What one process was doing at one moment."""

    owner: Owner
    status: ProcessStatus | None
    activity: Activity
    io: IoCompleteness
    batch: BatchTask | None


@dataclass(frozen=True)
class RankView:
    """One process of a job.

    Args:
        owner: who it is.
        status: what the kernel says of it; None: it has ended.
        activity: what it is doing.
        operations_per_s, communicated_per_s: completed operations and their bytes, per second since the last look.
        communicating: share of the time since the last look in which an operation was under way; above 1 with several
            at the same time.
        io_per_s: bytes of file I/O per second.
        io: how much of its I/O was seen so far.
        cpu: CPUs that it used since the last look.
        waits_for: ranks of its job that have not begun the oldest collective that this one has in flight.
        job: number of its job in this view: a shell or a script may have started several, each with a rank 0.
        batch: its job of Slurm or PBS; None: none, or unknown.
        launcher: what its launcher calls the job, such as "MASTER_PORT=29500", equal on all hosts; empty: unknown.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> with hk.init():
        ...     view = observe.JobWatcher(lambda: observe.find_job(os.getpid())).look()
        >>> [rank.waits_for for rank in view.ranks if rank.owner.pid == os.getpid()]
        [()]
    """

    owner: Owner
    status: ProcessStatus | None
    activity: Activity
    operations_per_s: float
    communicated_per_s: float
    communicating: float
    io_per_s: float
    io: IoCompleteness
    cpu: float
    waits_for: tuple[int, ...]
    job: int
    batch: BatchTask | None
    launcher: tuple[str, ...]

    @property
    def doing(self) -> InFlight | None:
        """The oldest operation or call in flight; without one the innermost region; None: nothing is in flight."""
        calls = [each for each in self.activity.in_flight if each.ring != "program"]
        regions = [each for each in self.activity.in_flight if each.ring == "program"]
        return calls[0] if calls else regions[-1] if regions else None


@dataclass(frozen=True)
class JobView:
    """All processes of a job at one moment.

    Args:
        ranks: by job and rank; processes without a rank come last.
        problems: what could not be read, each with its file and offset.
        interval_s: seconds since the last look; None: this is the first one, and rates are since the start.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> with hk.init():
        ...     view = observe.JobWatcher(lambda: observe.find_job(os.getpid())).look()
        >>> view.problems, view.interval_s
        ((), None)
    """

    ranks: tuple[RankView, ...]
    problems: tuple[str, ...]
    interval_s: float | None


class JobWatcher:
    """Looks at a job.

    Args:
        find: returns the recorders of the job; called at every look, as processes come and go.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> with hk.init() as comm:
        ...     watcher = observe.JobWatcher(lambda: observe.find_job(os.getpid()))
        ...     _ = watcher.look()
        ...     comm.all_reduce(np.ones(4))
        ...     any(rank.operations_per_s > 0 for rank in watcher.look().ranks)
        True
    """

    def __init__(self, find: Callable[[], Sequence[RecorderPlace]]) -> None:
        self._find = find
        self._before: dict[tuple[int, int, int], _Look] = {}
        self._looked_s: float | None = None
        self._jobs = JobFinder()

    def look(self) -> JobView:
        """Return what all processes do now.

        Raises:
            RecorderError: no recorder of the job can be found.
        """
        now_s = monotonic()
        interval_s = None if self._looked_s is None else max(now_s - self._looked_s, 1e-9)
        problems: list[str] = []
        looks: dict[tuple[int, int, int], _Look] = {}
        members: list[JobMember] = []
        for place in self._find():
            try:
                snapshot = place.read(_LATEST_EVENTS)
            except RecorderError as error:
                problems.append(str(error))
                continue
            problems += snapshot.problems
            owner, status = snapshot.owner, status_of(snapshot.owner)
            key = owner.pid, owner.started, owner.image
            if key not in looks:
                pid = status.pid if status else owner.pid  # in a container it has another number
                members.append(
                    JobMember(pid, owner.started, owner.rank, owner.world_size, place.holder, status is not None)
                )
            io = completeness_of(snapshot, io_counters(status))
            looks[key] = _Look(owner, status, activity_of(snapshot), io, task_in(snapshot.variables))
        jobs = self._jobs.group(members)
        latest = [
            (job, look.owner.rank, look.activity.collectives) for job, look in zip(jobs, looks.values(), strict=True)
        ]
        ranks = [
            _view(look, self._before.get(key), interval_s, job, latest, self._jobs.name_of(member))
            for job, member, (key, look) in zip(jobs, members, looks.items(), strict=True)
        ]
        self._before = looks
        self._looked_s = now_s
        ranks.sort(key=lambda view: (view.owner.rank is None, view.job, view.owner.rank or 0, view.owner.pid))
        return JobView(tuple(ranks), tuple(problems), interval_s)


def _view(
    look: _Look, before: _Look | None, interval_s: float | None, job: int, latest: Sequence[_Latest],
    launcher: tuple[str, ...],
) -> RankView:  # fmt: skip
    activity = look.activity
    past = before.activity if before else None
    num_operations, nbytes, communication_s, io_nbytes = (
        (past.num_operations, past.communicated_nbytes, past.communication_s, past.io_nbytes)
        if past else (0, 0, 0.0, 0)
    )  # fmt: skip
    cpu_s = before.status.cpu_s if before and before.status else 0.0
    per_s = 1 / interval_s if interval_s is not None and past else 0.0
    return RankView(
        owner=look.owner,
        status=look.status,
        activity=activity,
        operations_per_s=(activity.num_operations - num_operations) * per_s,
        communicated_per_s=(activity.communicated_nbytes - nbytes) * per_s,
        communicating=max(activity.communication_s - communication_s, 0.0) * per_s,
        io_per_s=(activity.io_nbytes - io_nbytes) * per_s,
        io=look.io,
        cpu=(look.status.cpu_s - cpu_s) * per_s if look.status else 0.0,
        waits_for=late_ranks(activity, [(rank, of_rank) for other, rank, of_rank in latest if other == job]),
        job=job,
        batch=look.batch,
        launcher=launcher,
    )


def late_ranks(activity: Activity, latest: Sequence[tuple[int | None, Sequence[LatestCollective]]]) -> tuple[int, ...]:
    """Return the ranks that have not begun the oldest collective that a process has in flight.

    Args:
        activity: of the process.
        latest: of each process of its job its rank, and how far it has come.
    """
    for each in activity.in_flight:
        if each.ring in ("operations", "foreign") and each.peer is None and each.name not in ("send", "recv"):
            # Children of a rank have its number, too, and no communicators.
            of_ranks: dict[int, list[LatestCollective]] = {}
            for rank, of_process in latest:
                if rank is not None:
                    of_ranks.setdefault(rank, []).extend(of_process)
            late = {rank for rank, of_rank in of_ranks.items() if _is_late(each, rank, of_rank)}
            return tuple(sorted(late))
    return ()


def _is_late(waiting: InFlight, rank: int, of_rank: Sequence[LatestCollective]) -> bool:
    """Whether a rank has not begun the collective that another one has in flight."""
    numbers = [each.number for each in of_rank if (each.target, each.members) == (waiting.target, waiting.members)]
    if numbers:
        return max(numbers) < waiting.number
    # A member that has not used the communicator yet has no name for it. Between two groups, the other group has the
    # name with other members.
    has_name = any(each.target == waiting.target for each in of_rank)
    return not has_name and any(first <= rank <= last for first, last in _ranges(waiting.members))


def _ranges(members: str) -> Iterator[tuple[int, int]]:
    for found in re.finditer(r"(?:^|,)(\d{1,9})(?:-(\d{1,9}))?(?=,|$)", members):
        yield int(found[1]), int(found[2] or found[1])
