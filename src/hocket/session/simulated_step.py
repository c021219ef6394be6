"""A step of traffic on virtual ranks: its predicted time on links that you do not have."""

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
        count: number of these operations in the step.
        seconds: mean time of one operation from issue to end, on rank 0, over the last 4,096 operations of the step.
        algorithm: name of the algorithm that gave the time.
    """

    kind: str
    nbytes: int
    count: int
    seconds: float
    algorithm: str


@dataclass(frozen=True)
class SimulatedStep:
    """The predicted times of a step. Simulated, not measured.

    Args:
        seconds: time of the step.
        compute_s: time of computation in it, on each rank; the rest is waiting for communication.
        operations: the operations of the step, in order of first occurrence.
    """

    seconds: float
    compute_s: float
    operations: tuple[SimulatedOperations, ...]


def simulate_step(
    traffic: Traffic,
    fabric: Uniform | Hosts | Link,
    on_rank: Callable[[int], object] = lambda num_done: None,
) -> SimulatedStep:
    """Run a step on virtual ranks, without moving data.

    Args:
        traffic: the operations of the step; has the number of ranks.
        fabric: as for `simulate`.
        on_rank: called after each rank ends, with the number of ranks that have ended.
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
        if (kind, nbytes) in seconds_of  # a rank keeps only its last records
        for algorithm in [ran.algorithms.get((kind, nbytes, traffic.num_ranks), "")]
    ]
    computed_s = sum(step.compute_s for step in traffic.steps)
    return SimulatedStep(max(ran.results), computed_s, tuple(operations))
