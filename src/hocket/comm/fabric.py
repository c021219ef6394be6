"""What connects the ranks of a job: shared memory and the libraries that were started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from hocket import _native
from hocket.backends.base import Backend
from hocket.comm.compressed_sums import CompressedSource
from hocket.comm.policy import DefaultPolicy, Policy
from hocket.comm.schedule_source import ScheduleSource
from hocket.comm.sparse_sums import SparseSource
from hocket.errors import InvalidState


class Backends(dict[str, str]):
    """The backends of a communicator, by name, with a short description of each.

    Attributes:
        left_out: the backends that are not available, by name, with the reason.
    """

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
        hosts: for each rank, the number of its host.
        local_ranks: for each rank, its number among the ranks of its host.
        domains: for each rank, a name of the cache or memory node that it shares with some ranks of its host; empty if
            not known.
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
        """Return how many consecutive ranks each host has, if that number is equal on all hosts; otherwise 1."""
        return row_length([self.hosts[rank] for rank in ranks])

    def ranks_per_domain(self, ranks: Sequence[int]) -> int:
        """Return how many consecutive ranks each domain has, if that number is known and equal; otherwise 1."""
        if not self.domains or not all(self.domains[rank] for rank in ranks):
            return 1
        return row_length([(self.hosts[rank], self.domains[rank]) for rank in ranks])


def row_length(places: Sequence[object]) -> int:
    """Return the length of the runs of equal items; 1 if the lengths differ, or if an item occurs in two runs."""
    rows = [len(list(row)) for _, row in groupby(places)]
    return rows[0] if len(set(rows)) == 1 and len(rows) == len(set(places)) else 1


def _no_sums(comm: Any) -> Any:
    raise InvalidState("this communicator was made without sparse and compressed sums")


@dataclass(frozen=True)
class JobFabric:
    """The state that all communicators of a job share.

    Args:
        host: the ranks of this host.
        layout: where all ranks are.
        control: the control connection between several hosts; None on one host.
        libraries: the started backends other than shared memory, in the same order on all ranks.
        allowed: names of the backends that operations may use.
        left_out: the other backends by name, each with the reason why it is not available.
        policy: how a backend is chosen.
        schedules: source of schedules; None: only the libraries' own algorithms can be chosen.
        on_failure: called with (communicator, error) when an operation has failed.
        has_raised: returns whether a failure of any communicator was raised in the program.
        object_key: key for the seals of objects that libraries carry.
        open_sparse_sums: makes what carries the sparse sums of a communicator out.
        open_compressed_sums: likewise for compressed sums.
        virtual: the virtual ranks, if the ranks are threads of one process; `libraries` has their lanes.
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
    open_sparse_sums: Callable[[Any], SparseSource] = _no_sums
    open_compressed_sums: Callable[[Any], CompressedSource] = _no_sums
    virtual: _native.VirtualRanks | None = None

    def backends_between(self, ranks: Sequence[int]) -> tuple[list[str], Backends]:
        """Return the backends that connect some ranks of the job.

        Returns:
            The names of all backends, in the order in which communicators number them, and the backends that operations
            may use.
        """
        num_hosts = self.layout.num_hosts(ranks)
        words = {"shm": describe_shared_memory()} if num_hosts == 1 and self.virtual is None else {}
        words |= {library.name: library.description for library in self.libraries}
        left_out = dict(self.left_out)
        if num_hosts > 1 and "shm" in self.allowed:
            left_out["shm"] = f"the ranks are on {num_hosts} hosts"
        return list(words), Backends({name: words[name] for name in self.allowed if name in words}, left_out)
