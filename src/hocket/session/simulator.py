"""Run a function on any number of virtual ranks, in this process, on a virtual clock."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket import _native
from hocket.backends.sim import Sim
from hocket.comm import Communicator, JobFabric, JobLayout
from hocket.comm.identity import derive_key
from hocket.errors import Aborted, CommTimeout, InvalidArgument, InvalidState, InvalidType, PeerFailure
from hocket.session.schedules import LazySchedules, open_compressed_sums, open_sparse_sums
from hocket.suggestions import names_wrong_keywords

if TYPE_CHECKING:
    from hocket.sim import Hosts, Link, Uniform

_STACK_NBYTES = 1 << 20
_CONSEQUENCES = (CommTimeout, PeerFailure, Aborted)  # of another rank's failure, the most informative first


@dataclass(frozen=True)
class Simulated:
    """Results and times of virtual ranks. Times are simulated, not measured.

    Args:
        results: return values of the function, by rank.
        seconds: time until the last rank ended.
        rank_seconds: time until each rank ended, by rank.
        algorithms: name of the algorithm that gave an operation's time, by (kind, bytes, number of ranks).

    Examples:
        >>> link = hk.sim.Link(alpha_s=1e-6, beta_s=1e-9)  # 1 us and 1 GB/s
        >>> run = hk.simulate(lambda comm: comm.compute(comm.rank + 1.0), 2, fabric=link)
        >>> run.seconds, run.rank_seconds
        (2.0, [1.0, 2.0])
    """

    results: list[Any]
    seconds: float
    rank_seconds: list[float]
    algorithms: dict[tuple[str, int, int], str]


@names_wrong_keywords
def simulate(
    fn: Callable[..., Any],
    n: int,
    *args: Any,
    fabric: Uniform | Hosts | Link,
    moves_data: bool = True,
    timeout: float = 600.0,
) -> Simulated:
    """Run ``fn(comm, *args)`` on `n` virtual ranks, and return the results and the simulated times.

    The ranks are threads of this process; one runs at a time. They have ordinary communicators over the backend "sim":
    all operations work, on real arrays, with the same checks and errors. Each rank has a virtual clock. Operations and
    ``comm.compute(seconds)`` advance it; Python code takes no time. Timeouts, ``comm.wtime()`` and ``comm.records()``
    use this clock. A collective takes the time of the fastest algorithm on the fabric, by simulation or by formula; an
    ``algorithm=`` is executed message by message. The connection of a rank carries one operation at a time.

    Args:
        fn: any function; it shares with other ranks what it shares with other threads.
        n: number of ranks.
        args: further arguments, the same objects on every rank.
        fabric: connection between the ranks: a `hocket.sim.Link` between any two ranks, or
            `hocket.sim.Hosts` of several ranks each.
        moves_data: whether operations move data. If False, only time passes and arrays keep their contents; operations
            on objects are not possible.
        timeout: default timeout of operations, in seconds of the virtual clock.

    Raises:
        InvalidArgument, InvalidType: an argument is invalid.
        InvalidState: called by a virtual rank.
        Exception: the exception of `fn` on the first rank that failed.

    Examples:
        >>> def program(comm):
        ...     x = np.full(1000, comm.rank, np.uint8)
        ...     if comm.rank == 0:
        ...         comm.send(x, dst=1)
        ...     else:
        ...         comm.recv(x, src=0)
        ...     return x[0].item()
        >>> run = hk.simulate(program, 2, fabric=hk.sim.Link(alpha_s=1e-6, beta_s=1e-9))
        >>> run.results, round(run.seconds * 1e6)  # 1 us of latency, 1 us for 1000 bytes
        ([0, 0], 2)
    """
    if not callable(fn):
        raise InvalidType(f"fn must be a function, not {fn!r}")
    if not isinstance(n, int) or n < 1:
        raise InvalidArgument(f"n must be a number of ranks of 1 or more, not {n!r}")
    if not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise InvalidArgument(f"timeout must be a number of seconds above zero, not {timeout!r}")
    if _native.is_virtual_rank():
        raise InvalidState("hocket.simulate() cannot be called by a virtual rank")
    job = _VirtualJob(n, fabric, moves_data)
    threads = [_RankThread(job, rank, fn, args, timeout) for rank in range(n)]
    job.run(threads)
    _raise_first([thread.error for thread in threads])
    rank_seconds = [thread.seconds for thread in threads]
    return Simulated([thread.result for thread in threads], max(rank_seconds), rank_seconds, job.times.algorithms)


class _VirtualJob:
    """State shared by the virtual ranks of one simulation."""

    def __init__(self, num_ranks: int, fabric: Uniform | Hosts | Link, moves_data: bool) -> None:
        from hocket.sim import Hosts, Link, Uniform
        from hocket.tune.virtual import CollectiveTimes

        if isinstance(fabric, Link):
            fabric = Uniform(fabric)
        if isinstance(fabric, Hosts):
            per_host, link = fabric.ranks_per_host, fabric.outer
        elif isinstance(fabric, Uniform):
            per_host, link = 1, fabric.link
        else:
            raise InvalidType(f"fabric must be a Link, Uniform or Hosts, not {fabric!r}")
        ranks = range(num_ranks)
        self.layout = JobLayout([rank // per_host for rank in ranks], [rank % per_host for rank in ranks])
        self.times = CollectiveTimes(fabric, link, self.layout)
        self.ranks = _native.VirtualRanks(num_ranks, self.times, fabric.message_cost, moves_data)
        self.host = _native.Host(f"simulated-{os.getpid()}-{id(self):x}", 0, 1, 60.0)
        self.num_ranks = num_ranks
        self._description = f"{num_ranks} virtual ranks on {fabric}; all times are simulated"

    def open(self, rank: int, timeout: float) -> Communicator:
        """Create the communicator of all ranks; called in the thread of each rank."""
        fabric = JobFabric(
            self.host,
            self.layout,
            libraries=[Sim(self.ranks, rank, self._description)],
            allowed=["sim"],
            schedules=LazySchedules(),
            open_sparse_sums=open_sparse_sums,
            open_compressed_sums=open_compressed_sums,
            virtual=self.ranks,
        )
        return Communicator(fabric, list(range(self.num_ranks)), rank, derive_key("world"), "world", timeout, timeout)

    def run(self, threads: list[_RankThread]) -> None:
        """Run all threads until they end; on an interrupt, stop all of them first."""
        started: list[_RankThread] = []
        is_running = False
        try:
            before = threading.stack_size(_STACK_NBYTES)
            try:
                for thread in threads:
                    thread.start()
                    started.append(thread)
            finally:
                threading.stack_size(before)
            self.ranks.start()
            is_running = True
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.1)  # in short waits, so that Ctrl-C is handled
        except BaseException:
            self.ranks.stop("the simulation was interrupted")
            if not is_running:
                for rank in range(len(started), len(threads)):
                    self.ranks.leave_out(rank)
                self.ranks.start()
            for thread in started:
                thread.join()
            raise


class _RankThread(threading.Thread):
    """One virtual rank."""

    def __init__(
        self, job: _VirtualJob, rank: int, fn: Callable[..., Any], args: tuple[Any, ...], timeout: float
    ) -> None:
        super().__init__(name=f"virtual rank {rank}", daemon=True)
        self._job, self._rank = job, rank
        self._fn, self._args, self._timeout = fn, args, timeout
        self.result: Any = None
        self.error: BaseException | None = None
        self.seconds = 0.0

    def run(self) -> None:
        ranks = self._job.ranks
        ranks.begin(self._rank)
        try:
            with self._job.open(self._rank, self._timeout) as comm:
                self.result = self._fn(comm, *self._args)
        except BaseException as error:
            error.add_note(f"on virtual rank {self._rank}, {ranks.now_s(self._rank):g} s of its clock after the start")
            self.error = error
        finally:
            self.seconds = ranks.now_s(self._rank)
            ranks.end(self._rank)


def _raise_first(errors: list[BaseException | None]) -> None:
    """Raise the first failure; a consequence of another rank's failure only if no other failure exists."""
    failures = [error for error in errors if error is not None]
    rest = [error for kind in _CONSEQUENCES for error in failures if isinstance(error, kind)]
    for error in (*(error for error in failures if error not in rest), *rest):
        raise error
