"""What connects the ranks of a job: shared memory and the libraries that are up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from hocket import _native
from hocket.backends.base import Backend
from hocket.comm.policy import DefaultPolicy, Policy
from hocket.comm.schedule_source import ScheduleSource


class Backends(dict[str, str]):
    """The backends of a communicator, with a word on each; `left_out` says which are not there, and why."""

    def __init__(self, available: Mapping[str, str], left_out: Mapping[str, str]) -> None:
        super().__init__(available)
        self.left_out = dict(left_out)

    def __repr__(self) -> str:
        return f"{dict(self)!r}, left out: {self.left_out!r}"


def describe_shared_memory() -> str:
    reads = "reads" if _native.has_single_copy() else "does not read"
    return f"shared memory of this host, {_native.ISA} reductions, {reads} the memory of peers"


@dataclass(frozen=True)
class JobLayout:
    """Where the ranks of a job are.

    Args:
        hosts: by rank, the number of its host.
        local_ranks: by rank, its number among those of its host.
        domains: by rank, a name of what it shares with some ranks of its host, as a cache or a memory node; empty where
            it is not known.
    """

    hosts: Sequence[int]
    local_ranks: Sequence[int]
    domains: Sequence[str] = ()

    @staticmethod
    def on_one_host(size: int) -> JobLayout:
        return JobLayout([0] * size, range(size))

    def num_hosts(self, ranks: Sequence[int]) -> int:
        return len({self.hosts[rank] for rank in ranks})

    def ranks_per_host(self, ranks: Sequence[int]) -> int:
        """Return how many of some ranks every host has, in a row; 1 if that is not so."""
        return row_length([self.hosts[rank] for rank in ranks])

    def ranks_per_domain(self, ranks: Sequence[int]) -> int:
        """Return how many of some ranks every domain has, in a row; 1 if that is not so, or not known."""
        if not self.domains or not all(self.domains[rank] for rank in ranks):
            return 1
        return row_length([(self.hosts[rank], self.domains[rank]) for rank in ranks])


def row_length(places: Sequence[object]) -> int:
    """Return how many equal items there are in each row of them; 1 if rows differ, or if items come back."""
    rows = [len(list(row)) for _, row in groupby(places)]
    return rows[0] if len(set(rows)) == 1 and len(rows) == len(set(places)) else 1


@dataclass(frozen=True)
class JobFabric:
    """What every communicator of a job shares.

    Args:
        host: the ranks of this host.
        layout: where all ranks are.
        control: what connects several hosts besides the libraries; None where there is one.
        libraries: those that are up besides shared memory, in the same order on all ranks.
        allowed: names of the backends that operations may use.
        left_out: why other backends are not there, by name.
        policy: how a backend is chosen.
        schedules: where algorithms come from; None: only the libraries' own ways can be chosen.
        on_failure: called with (communicator, error) when an operation failed.
        has_raised: whether the program was told of a failure of any communicator.
        object_key: by which ranks seal the objects that libraries carry.
        virtual: the ranks, where they are threads of one process on a virtual clock; `libraries` has their lanes.
    """

    host: _native.Host
    layout: JobLayout
    control: _native.Control | None = None
    libraries: Sequence[Backend] = ()
    allowed: Sequence[str] = ("shm",)
    left_out: Mapping[str, str] = field(default_factory=dict)
    policy: Policy = field(default_factory=DefaultPolicy)
    schedules: ScheduleSource | None = None
    on_failure: Callable[[Any, BaseException], object] | None = None
    has_raised: Callable[[], bool] = lambda: False
    object_key: bytes = field(default=b"", repr=False)
    virtual: _native.VirtualRanks | None = None

    def backends_between(self, ranks: Sequence[int]) -> tuple[list[str], Backends]:
        """Return what connects some ranks of the job.

        Returns:
            The names of all backends, in the order in which communicators number them, and those of them that
            operations may use.
        """
        num_hosts = self.layout.num_hosts(ranks)
        words = {"shm": describe_shared_memory()} if num_hosts == 1 and self.virtual is None else {}
        words |= {library.name: library.description for library in self.libraries}
        left_out = dict(self.left_out)
        if num_hosts > 1 and "shm" in self.allowed:
            left_out["shm"] = f"the ranks are on {num_hosts} hosts"
        return list(words), Backends({name: words[name] for name in self.allowed if name in words}, left_out)
