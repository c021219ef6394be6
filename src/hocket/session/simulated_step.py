"""A step of traffic on virtual ranks: what it would take on links that one has not got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from hocket.comm import Communicator
from hocket.comm.replay import Replay
from hocket.session.simulator import simulate
from hocket.trace import Record
from hocket.trace.traffic import Traffic

if TYPE_CHECKING:
    from hocket.sim import Hosts, Link, Uniform


@dataclass(frozen=True)
class SimulatedOperations:
    """The operations of one kind and size in a step.

    Args:
        kind: name of the operation.
        nbytes: as in `Record.nbytes`.
        count: of them in a step.
        seconds: of one, from its issue to its end; the mean on rank 0, of the last 4,096 operations of the step.
        algorithm: by which its time was found.
    """

    kind: str
    nbytes: int
    count: int
    seconds: float
    algorithm: str


@dataclass(frozen=True)
class SimulatedStep:
    """What a step would take. Simulated, not measured.

    Args:
        seconds: of the step.
        compute_s: of computation in it, on each rank; the rest waits for communication.
        operations: of it, in the order in which they come first.
    """

    seconds: float
    compute_s: float
    operations: tuple[SimulatedOperations, ...]


def simulate_step(
    traffic: Traffic,
    fabric: Uniform | Hosts | Link,
    on_rank: Callable[[int], object] = lambda num_done: None,
) -> SimulatedStep:
    """Run a step on virtual ranks, without its data.

    Args:
        traffic: of as many ranks as are wanted.
        fabric: as of `simulate`.
        on_rank: called with the number of ranks that have ended, whenever one has.
    """
    made: list[Replay] = []
    records: list[Record] = []
    num_done = 0

    def run(comm: Communicator) -> float:
        nonlocal num_done
        replay = Replay(comm, traffic, computes=True, like=made[0] if made else None)
        made.append(replay)
        comm.barrier()
        begin = comm.wtime()
        replay()
        seconds = comm.wtime() - begin
        if comm.rank == 0:
            records.extend(record for record in comm.records() if record.seq > 1)  # the first is the barrier
        num_done += 1
        on_rank(num_done)
        return seconds

    ran = simulate(run, traffic.num_ranks, fabric=fabric, moves_data=False)
    seconds_of: dict[tuple[str, int], list[float]] = {}
    for record in records:
        seconds_of.setdefault((record.op, record.nbytes), []).append(record.seconds or 0.0)
    counts = Counter((step.kind, step.nbytes) for step in traffic.steps)
    operations = [
        SimulatedOperations(kind, nbytes, count, fmean(seconds_of[kind, nbytes]), algorithm)
        for (kind, nbytes), count in counts.items()
        if (kind, nbytes) in seconds_of  # of very many operations a rank remembers the last ones
        for algorithm in [ran.algorithms.get((kind, nbytes, traffic.num_ranks), "")]
    ]
    computed_s = sum(step.compute_s for step in traffic.steps)
    return SimulatedStep(max(ran.results), computed_s, tuple(operations))
