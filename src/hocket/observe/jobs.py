"""Tells apart the jobs that one shell, script or scheduler has started: ranks of different jobs wait for nobody in the
other one, though both have a communicator "world"."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.observe.processes import environment_of, parents

if TYPE_CHECKING:
    from hocket.observe.saved import SavedProcess

_VARIABLES = (
    "HOCKET_JOB", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID", "PBS_JOBID",
)  # fmt: skip
"""Launchers set these to the same values on all ranks of a job; another job has another value of one of them."""
_MOST_ANCESTORS = 256

_Identity = tuple[str | None, ...]


@dataclass(frozen=True)
class JobMember:
    """A recorded process.

    Args:
        pid: its number.
        started: its start, in clock ticks since boot.
        rank: its rank in its job; None: unknown.
        world_size: number of ranks of its job; None: unknown.
        holder: process through which its recorder is read: itself or its launcher.
        is_running: whether it runs.
    """

    pid: int
    started: int
    rank: int | None
    world_size: int | None
    holder: int
    is_running: bool


class JobFinder:
    """Groups processes by job; remembers what it has read of processes that end."""

    def __init__(self) -> None:
        self._identities: dict[tuple[int, int], _Identity] = {}

    def group(self, members: Sequence[JobMember]) -> list[int]:
        """Return for each process the number of its job, from 0 in the order of the processes.

        Processes are in one job if their launcher gave them the same identity, they have the same world size, and no
        two of them have the same rank; a child of a rank counts as that rank.
        """
        above = parents()
        lineages = [_lineage(member, above) for member in members]
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        unknown = []
        for index, member in enumerate(members):
            identity = self._identity(member)
            if identity is None:
                unknown.append(index)
            else:
                groups[identity, member.world_size].append(index)
        jobs: list[list[int]] = []
        for group in groups.values():
            jobs += _split(group, members, lineages)
        for index in unknown:  # it ended before its environment was read
            _join(index, jobs, members, lineages)
        number_of = {index: job for job, indices in enumerate(sorted(jobs)) for index in indices}
        return [number_of[index] for index in range(len(members))]

    def name_of(self, member: JobMember) -> tuple[str, ...]:
        """Return what its launcher calls the job of a process, such as "MASTER_PORT=29500"; nothing if unknown."""
        identity = self._identity(member) or ()
        return tuple(f"{name}={value}" for name, value in zip(_VARIABLES, identity, strict=False) if value is not None)

    def _identity(self, member: JobMember) -> _Identity | None:
        key = member.pid, member.started
        if key not in self._identities and member.is_running:
            environment = environment_of(member.pid)
            if environment is not None:
                self._identities[key] = tuple(environment.get(name) for name in _VARIABLES)
        return self._identities.get(key)


def _lineage(member: JobMember, above: Mapping[int, int]) -> list[int]:
    """The ancestors of a process, its parent first; of one that has ended, its launcher and that one's."""
    found = [above.get(member.pid, 0) if member.is_running else member.holder]
    while found[-1] > 1 and len(found) < _MOST_ANCESTORS:
        found.append(above.get(found[-1], 0))
    return found


def _split(group: list[int], members: Sequence[JobMember], lineages: Sequence[list[int]]) -> list[list[int]]:
    """Split processes so that no rank occurs twice: by the highest ancestor below which that is so."""
    ranked = {members[index].pid: members[index].rank for index in group}
    below: dict[int, list[int | None]] = defaultdict(list)
    for index in group:
        rank = members[index].rank
        # Children of a rank, such as those that load data, have its rank, too.
        is_child = any(ranked.get(ancestor, -1) == rank for ancestor in lineages[index])
        for ancestor in lineages[index] if rank is not None and not is_child else ():
            below[ancestor].append(rank)
    is_unique = {ancestor: len(ranks) == len(set(ranks)) for ancestor, ranks in below.items()}
    split: dict[int, list[int]] = defaultdict(list)
    for index in group:
        unique = [ancestor for ancestor in lineages[index] if is_unique.get(ancestor, True)]
        split[unique[-1] if unique else lineages[index][0]].append(index)
    return list(split.values())


def _join(index: int, jobs: list[list[int]], members: Sequence[JobMember], lineages: Sequence[list[int]]) -> None:
    own = members[index]
    for job in jobs:
        others = [members[other] for other in job]
        is_related = any(own.holder in (other.holder, *lineages[at]) for other, at in zip(others, job, strict=True))
        has_room = own.rank not in [other.rank for other in others]
        if is_related and has_room and own.world_size == others[0].world_size:
            job.append(index)
            job.sort()
            return
    jobs.append([index])


def job_numbers(processes: Sequence[SavedProcess]) -> list[int]:
    """Return for each process of a recorded run the number of its job, from 0.

    Processes are in one job if their launcher gave them the same identity, they have the same world size, and no two of
    those that communicate have the same rank. Of jobs that one shell has started one after the other, the earlier one
    has the ranks that were started first.
    """
    jobs: list[tuple[tuple[object, ...], set[int]]] = []
    numbers: dict[int, int] = {}
    for place in sorted(range(len(processes)), key=lambda each: _start_of(processes[each])):
        snapshot = processes[place].snapshot
        rank = snapshot.owner.rank
        identity = (*(snapshot.variables.get(name) for name in _VARIABLES), snapshot.owner.world_size)
        own = {rank} if rank is not None and snapshot.communicators else set()
        candidates = [job for job, (other, ranks) in enumerate(jobs) if other == identity and not own & ranks]
        number = candidates[-1] if candidates else len(jobs)
        if number == len(jobs):
            jobs.append((identity, set()))
        jobs[number][1].update(own)
        numbers[place] = number
    return [numbers[place] for place in range(len(processes))]


def ranks_of_jobs(processes: Sequence[SavedProcess]) -> dict[tuple[int, int], int]:
    """Return the place of the process of each rank, by job and rank.

    Children of a rank have its rank in their environment, too: the rank is the process that communicates, or else the
    first one.
    """
    found: dict[tuple[int, int], int] = {}
    for place, (process, job) in enumerate(zip(processes, job_numbers(processes), strict=True)):
        rank = process.snapshot.owner.rank
        if rank is None:
            continue
        before = found.setdefault((job, rank), place)
        if process.snapshot.communicators and not processes[before].snapshot.communicators:
            found[job, rank] = place
    return found


def ranks_of_largest_job(processes: Sequence[SavedProcess]) -> dict[int, int]:
    """Return the place of the process of each rank of the job with the most ranks."""
    by_job: dict[int, dict[int, int]] = defaultdict(dict)
    for (job, rank), place in ranks_of_jobs(processes).items():
        by_job[job][rank] = place
    return max(by_job.values(), key=len, default={})


def _start_of(process: SavedProcess) -> float:
    return float(process.clock.seconds(process.snapshot.anchor[0]))
