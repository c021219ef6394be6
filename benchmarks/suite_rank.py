"""One rank of suite.py: messages of 8 bytes there and back, through `hocket bench` and in a loop of mpi4py's own.

suite_rank.py LIBRARY TARGET[,TARGET...]
"""

from __future__ import annotations

import sys
from itertools import repeat

import numpy as np

from hocket.bench import Point, open_drivers, open_world, parse_targets, prepare_all
from hocket.measure import Contender, pin, serve

CASE, NBYTES, BARE = "8 B there and back", 8, "bare mpi4py loop"


def bare() -> Contender:
    """What somebody writes who has no benchmark suite."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    sent, received = np.zeros(NBYTES, np.uint8), np.zeros(NBYTES, np.uint8)

    def run(iterations: int) -> None:
        if comm.rank == 0:
            for _ in repeat(None, iterations):
                comm.Send(sent, 1)
                comm.Recv(received, 1)
        else:
            for _ in repeat(None, iterations):
                comm.Recv(received, 0)
                comm.Send(sent, 0)

    return Contender(CASE, f"{BARE}, {sys.argv[1]}", run)


def main() -> None:
    targets = parse_targets(sys.argv[2])
    world = open_world(targets)
    drivers = open_drivers(targets, world)
    points = [Point("latency", each.name, NBYTES) for each in targets]
    prepared, left_out = prepare_all(points, drivers)
    assert not left_out, left_out
    contenders = [Contender(CASE, f"hocket bench, {point.target}", each.run) for point, each in prepared.items()]
    first = drivers[targets[0].name]
    if any(each.through == "mpi4py" for each in targets):
        contenders.append(bare())
    pin(first.rank)
    serve(contenders, first.rank, first.barrier)
    for driver in drivers.values():
        driver.finalize()
    if world is not None:
        world.finalize()


if __name__ == "__main__":
    main()
