"""One rank of split.py: measures a table of both libraries and of both at once, then serves them and its choices.

split_rank.py hocket FILE NBYTES...
split_rank.py mpich - NBYTES...

FILE gets what the table chose by case, and the bytes that one operation over both sends over each device. "mpich" has
nothing but this library, as the environment has it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

import numpy as np
from libraries import size_name

import hocket as hk
from hocket.measure import Contender, pin, serve
from hocket.tune.policy import TablePolicy
from hocket.tune.sweep import Sweep, measure_table

OPS = ("all_reduce", "broadcast")
BOTH = "mpi+gloo"
CHOICE = "by the table"
ALL_LINKS = "mpi over all links"


def looped(comm: hk.Communicator, op: str, x: np.ndarray, **how: str) -> Callable[[int], None]:
    arguments = (x, 0) if op == "broadcast" else (x,)

    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            getattr(comm, op)(*arguments, **how)

    return run


def sent_nbytes() -> dict[str, int]:
    """Bytes that have left this host, by device."""
    counters = Path("/sys/class/net").glob("eth*/statistics/tx_bytes")
    return {each.parts[4]: int(each.read_text()) for each in counters}


def serve_mpich(nbytes: list[int]) -> None:
    comm = hk.init(backends="mpi", policy=hk.Policy.fixed({"*": "mpi"}))
    pin(comm.rank)
    contenders = [
        Contender(f"{op} {size_name(each)}", ALL_LINKS, looped(comm, op, np.zeros(each // 4, np.float32)))
        for op in OPS
        for each in nbytes
    ]
    serve(contenders, comm.rank, comm.barrier)
    comm.finalize()


def main() -> None:
    role, file, *sizes = sys.argv[1:]
    if role == "mpich":
        serve_mpich([int(each) for each in sizes])
        return
    comm = hk.init(backends=["mpi", "gloo", BOTH], policy=hk.Policy.fixed({"*": "mpi"}))
    pin(comm.rank)
    nbytes = [int(each) for each in sizes]
    comm.policy = TablePolicy(measure_table(comm, Sweep(ops=OPS, sizes=nbytes, busy_sizes=(), schedules=False)))
    contenders = []
    said = {}
    for op in OPS:
        for each in nbytes:
            case = f"{op} {size_name(each)}"
            x = np.zeros(each // 4, np.float32)
            for name in ("mpi", "gloo", BOTH):
                contenders.append(Contender(case, name, looped(comm, op, x, backend=name, algorithm="native")))
            contenders.append(Contender(case, CHOICE, looped(comm, op, x)))
            comm.barrier()
            before = sent_nbytes()
            contenders[-2].run(1)
            comm.barrier()
            sent = {device: count - before[device] for device, count in sent_nbytes().items()}
            said[case] = {"chosen": comm.explain(op, each).chosen, "sent": sent}
    if comm.rank == 0:
        Path(file).write_text(json.dumps(said))
    serve(contenders, comm.rank, comm.barrier)
    comm.finalize()


if __name__ == "__main__":
    main()
