"""One rank of hocket in hierarchy.py: collectives over every library and by levels, checked, counted, then served.

hierarchy_rank.py hocket FILE OPERATION[,OPERATION...] NBYTES...

FILE gets what one operation sends over the link, by case and name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

import numpy as np
from libraries import size_name

import hocket as hk
from hocket.measure import Contender, pin, serve

OPS = ("all_reduce", "all_gather", "all_to_all")
# Ours, by operation; {} is the number of ranks of a host. Large blocks of all_to_all go straight to their rank, over
# shared memory within a host.
LEVELS = {
    "all_reduce": ("hierarchical(ranks_per_host={})", "hierarchical(ranks_per_host={}, num_segments=4)"),
    "all_gather": ("hierarchical(ranks_per_host={})", "hierarchical(ranks_per_host={}, num_segments=4)"),
    "all_to_all": ("hierarchical(ranks_per_host={})", "windowed(window=3)"),
}
COUNTED = 5


def ways(op: str, ranks_per_host: int) -> Iterator[tuple[str, str, str]]:
    """(name, backend, algorithm)."""
    for backend in ("mpi", "gloo"):
        yield backend, backend, "native"
        for algorithm in LEVELS[op]:
            complete = algorithm.format(ranks_per_host)
            yield f"{backend}/{complete}", backend, complete


def looped(call: Callable[..., object], arrays: list[np.ndarray], **how: str) -> Callable[[int], None]:
    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            call(*arrays, **how)

    return run


def sent_nbytes() -> int:
    """Bytes that have left this host."""
    counters = Path("/sys/class/net").glob("*/statistics/tx_bytes")
    return sum(int(each.read_text()) for each in counters if each.parts[4] != "lo")


def arrays_of(op: str, nbytes: int, comm: hk.Communicator) -> tuple[list[np.ndarray], np.ndarray]:
    """Arrays of an operation whose largest one has so many bytes, and what has to be in the first afterwards."""
    count = nbytes // 4 // comm.size * comm.size
    rows = np.arange(comm.size, dtype=np.float32).repeat(count // comm.size)
    if op == "all_reduce":
        return [np.zeros(count, np.float32)], np.zeros(count, np.float32)
    if op == "all_gather":
        return [np.zeros(count, np.float32), np.full(count // comm.size, comm.rank, np.float32)], rows
    return [np.zeros(count, np.float32), np.full(count, comm.rank, np.float32)], rows


def main() -> None:
    _, file, ops, *sizes = sys.argv[1:]
    comm = hk.init(backends=["mpi", "gloo"], policy=hk.Policy.fixed({"*": "mpi"}))
    pin(comm.local_rank)
    contenders = []
    counted = {}
    for op in ops.split(","):
        for nbytes in map(int, sizes):
            for name, backend, algorithm in ways(op, comm.local_size):
                arrays, expected = arrays_of(op, nbytes, comm)
                run = looped(getattr(comm, op), arrays, backend=backend, algorithm=algorithm)
                run(1)
                if not (arrays[0] == expected).all():
                    raise AssertionError(f"{op} of {nbytes} bytes, {name}: {arrays[0][:4]}, not {expected[:4]}")
                comm.barrier()
                before = sent_nbytes()
                comm.barrier()
                run(COUNTED)
                comm.barrier()
                counted[f"{op} {size_name(nbytes)}", name] = (sent_nbytes() - before) / COUNTED
                contenders.append(Contender(f"{op} {size_name(nbytes)}", name, run))
    if comm.rank == 0:
        Path(file).write_text(json.dumps([[*key, value] for key, value in counted.items()]))
    serve(contenders, comm.rank, comm.barrier)
    comm.finalize()


if __name__ == "__main__":
    main()
