"""Looks at all processes of a job again and again: what each does, its rates, and whom it waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from hocket.errors import RecorderError
from hocket.observe.activity import Activity, InFlight, activity_of
from hocket.observe.processes import ProcessStatus, status_of
from hocket.trace import Owner, RecorderPlace

_LATEST_EVENTS = 256
"""Of each ring: enough for what is in flight, and cheap enough to read several times a second."""


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
        cpu: CPUs that it used since the last look.
        waits_for: ranks of the job that have not begun the oldest collective that this one has in flight.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> with hk.init():
        ...     (rank,) = observe.JobWatcher(lambda: observe.find_job(os.getpid())).look().ranks
        >>> rank.owner.rank, rank.waits_for
        (0, ())
    """

    owner: Owner
    status: ProcessStatus | None
    activity: Activity
    operations_per_s: float
    communicated_per_s: float
    communicating: float
    io_per_s: float
    cpu: float
    waits_for: tuple[int, ...]

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
        ranks: by rank; processes without a rank come last.
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
        ...     watcher.look().ranks[0].operations_per_s > 0
        True
    """

    def __init__(self, find: Callable[[], Sequence[RecorderPlace]]) -> None:
        self._find = find
        self._before: dict[tuple[int, int, int], tuple[Activity, ProcessStatus | None]] = {}
        self._looked_s: float | None = None

    def look(self) -> JobView:
        """Return what all processes do now.

        Raises:
            RecorderError: no recorder of the job can be found.
        """
        now_s = monotonic()
        interval_s = None if self._looked_s is None else max(now_s - self._looked_s, 1e-9)
        problems: list[str] = []
        looks: dict[tuple[int, int, int], tuple[Owner, ProcessStatus | None, Activity]] = {}
        for place in self._find():
            try:
                snapshot = place.read(_LATEST_EVENTS)
            except RecorderError as error:
                problems.append(str(error))
                continue
            problems += snapshot.problems
            owner = snapshot.owner
            looks[owner.pid, owner.started, owner.image] = owner, status_of(owner), activity_of(snapshot)
        latest = [(owner.rank, activity.latest) for owner, _, activity in looks.values()]
        ranks = [
            self._view(owner, status, activity, self._before.get(key), interval_s, latest)
            for key, (owner, status, activity) in looks.items()
        ]
        self._before = {key: (activity, status) for key, (_, status, activity) in looks.items()}
        self._looked_s = now_s
        ranks.sort(key=lambda view: (view.owner.rank is None, view.owner.rank or 0, view.owner.pid))
        return JobView(tuple(ranks), tuple(problems), interval_s)

    def _view(
        self, owner: Owner, status: ProcessStatus | None, activity: Activity,
        before: tuple[Activity, ProcessStatus | None] | None, interval_s: float | None,
        latest: list[tuple[int | None, dict[str, int]]],
    ) -> RankView:  # fmt: skip
        past, past_status = before if before else (None, None)
        num_operations, nbytes, communication_s, io_nbytes, cpu_s = (
            (past.num_operations, past.communicated_nbytes, past.communication_s, past.io_nbytes,
             past_status.cpu_s if past_status else 0.0)
            if past else (0, 0, 0.0, 0, 0.0)
        )  # fmt: skip
        passed_s = interval_s if interval_s is not None and past else None
        per_s = 1 / passed_s if passed_s else 0.0
        return RankView(
            owner=owner,
            status=status,
            activity=activity,
            operations_per_s=(activity.num_operations - num_operations) * per_s,
            communicated_per_s=(activity.communicated_nbytes - nbytes) * per_s,
            communicating=max(activity.communication_s - communication_s, 0.0) * per_s,
            io_per_s=(activity.io_nbytes - io_nbytes) * per_s,
            cpu=(status.cpu_s - cpu_s) * per_s if status else 0.0,
            waits_for=_late_ranks(activity, latest),
        )


def _late_ranks(activity: Activity, latest: list[tuple[int | None, dict[str, int]]]) -> tuple[int, ...]:
    for each in activity.in_flight:
        is_collective = each.ring in ("operations", "foreign") and each.name not in ("send", "recv")
        if is_collective and each.peer is None:
            late = {
                rank
                for rank, of_rank in latest
                if rank is not None and of_rank.get(each.target, each.number) < each.number
            }
            return tuple(sorted(late))
    return ()
