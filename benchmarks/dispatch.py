"""What it costs to go through hocket: an operation on its mpi lane against mpi4py's non-blocking form of the same one.

Both run in one process over one MPI, alternating, on arrays of their own.
"""

from __future__ import annotations

import sys
from itertools import repeat
from pathlib import Path

from libraries import size_name

from hocket.measure import (
    Comparison,
    Contender,
    Coordinator,
    direct_job,
    finish,
    judge,
    measure,
    null_rows,
    pin,
    progress,
    report,
    run_script,
    script_parser,
    serve,
    settings_of,
)

KIB, MIB = 1 << 10, 1 << 20
SIZES = (8, 64 * KIB, 4 * MIB)
OURS = "hocket comm.all_reduce(x, backend='mpi')"
THEIRS = "mpi4py Iallreduce(IN_PLACE, [x, FLOAT]), Wait"
# At most 5 % slower, as a ratio theirs / ours; 8 bytes have a limit in time instead.
TARGETS = {64 * KIB: 1 / 1.05, 4 * MIB: 1 / 1.05}
MOST_MORE_S = 1e-6


def serve_rank() -> None:
    """One rank: both forms, checked."""
    import numpy as np

    import hocket as hk

    comm = hk.init(backends=["shm", "mpi"], progress="caller")
    from mpi4py import MPI

    world = MPI.COMM_WORLD.Dup()
    pin(comm.rank)
    contenders = []
    for nbytes in SIZES:
        x = np.zeros(nbytes // 4, np.float32)
        buffer = [x, MPI.FLOAT]  # the same memory: where an array lies, and on which pages, changes what it costs

        def ours(iterations: int, x: np.ndarray = x) -> None:
            all_reduce = comm.all_reduce
            for _ in repeat(None, iterations):
                all_reduce(x, backend="mpi")

        def theirs(iterations: int, buffer: list[object] = buffer) -> None:
            iallreduce, in_place = world.Iallreduce, MPI.IN_PLACE
            for _ in repeat(None, iterations):
                iallreduce(in_place, buffer).Wait()

        for run in (ours, theirs):
            x.fill(comm.rank + 1)
            run(1)
            assert (x == 3).all()
        x.fill(0)
        contenders += [Contender(size_name(nbytes), OURS, ours), Contender(size_name(nbytes), THEIRS, theirs)]
    serve(contenders, comm.rank, lambda: comm.barrier(backend="shm"))
    comm.finalize()


def main() -> int:
    options = script_parser(__doc__.split("\n\n")[0]).parse_args()
    job = direct_job("dispatch", (sys.executable, str(Path(__file__)), "--rank"), 2, {"OMP_NUM_THREADS": "1"})
    with Coordinator([job]) as coordinator, progress("dispatch") as on_round:
        measured = measure(coordinator, settings_of(options), on_round=on_round)
    rows = []
    for nbytes in SIZES:
        case = size_name(nbytes)
        target = TARGETS.get(nbytes)
        if target is None:
            # One microsecond more, as a ratio of what mpi4py takes in this run.
            theirs = sorted(each.seconds[key] for each in measured.rounds for key in each.seconds
                            if key.case == case and key.name == THEIRS)  # fmt: skip
            median_s = theirs[len(theirs) // 2]
            target = median_s / (median_s + MOST_MORE_S)
        rows.append(judge(measured, Comparison(case, OURS, (THEIRS,), target, label=f"{case}, two ranks")))
    rows += null_rows(measured)
    claim = "all_reduce of float32 through hocket's mpi lane against mpi4py's non-blocking form, same process and MPI"
    return finish(report(claim, rows, [measured]), options)


if __name__ == "__main__":
    if sys.argv[1:] == ["--rank"]:
        serve_rank()
    else:
        run_script(main)
