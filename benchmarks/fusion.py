"""Many small all_reduces: one by one, side by side, and fused into few large ones, over each library.

64 float32 arrays of 4 KiB, and 16 of 64 KiB, two ranks; all ways in the same processes and rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

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

KIB = 1 << 10
CASES = {"64 x 4 KiB": (64, 4 * KIB), "16 x 64 KiB": (16, 64 * KIB)}
BACKENDS = ("shm", "mpi", "gloo")
PLAIN = "one by one"
WAYS = ("coalesced()", "all_reduce_coalesced", "fused()", "bucket()")


def ways(comm, xs: list, backend: str) -> Iterator[tuple[str, Callable[[], object]]]:
    def plain() -> None:
        for x in xs:
            comm.all_reduce(x, backend=backend)

    def side_by_side() -> None:
        with comm.coalesced():
            for x in xs:
                comm.all_reduce(x, backend=backend)

    def fused() -> None:
        with comm.fused(backend=backend) as group:
            for x in xs:
                group.all_reduce(x)

    bucket = comm.bucket(backend=backend)

    def bucketed() -> None:
        handles = [bucket.all_reduce(x) for x in xs]
        for handle in handles:
            handle.wait()

    yield PLAIN, plain
    yield WAYS[0], side_by_side
    yield WAYS[1], lambda: comm.all_reduce_coalesced(xs, backend=backend)
    yield WAYS[2], fused
    yield WAYS[3], bucketed


def serve_rank() -> None:
    import numpy as np

    import hocket as hk

    comm = hk.init(backends=BACKENDS)
    pin(comm.rank)
    contenders = []
    for case, (count, nbytes) in CASES.items():
        xs = [np.zeros(nbytes // 4, np.float32) for _ in range(count)]
        for backend in BACKENDS:
            for name, call in ways(comm, xs, backend):
                for number, x in enumerate(xs):
                    x.fill(comm.rank + number)
                call()
                assert all((x == 2 * number + 1).all() for number, x in enumerate(xs)), (case, backend, name)
                for x in xs:
                    x.fill(0)

                def run(iterations: int, call: Callable[[], object] = call) -> None:
                    for _ in repeat(None, iterations):
                        call()

                contenders.append(Contender(f"{case} over {backend}", name, run))
    serve(contenders, comm.rank, lambda: comm.barrier(backend="shm"))
    comm.finalize()


def main() -> int:
    options = script_parser(__doc__.split("\n\n")[0]).parse_args()
    job = direct_job("fusion", (sys.executable, str(Path(__file__)), "--rank"), 2, {"OMP_NUM_THREADS": "1"})
    with Coordinator([job]) as coordinator, progress("fusion") as on_round:
        measured = measure(coordinator, settings_of(options), on_round=on_round)
    rows = []
    for case in dict.fromkeys(key.case for key in measured.iterations):
        for way in WAYS:
            rows.append(judge(measured, Comparison(case, way, (PLAIN,), label=f"{case}: {way}")))
    claim = "many small all_reduces together, against one by one"
    return finish(report(claim, [*rows, *null_rows(measured)], [measured]), options)


if __name__ == "__main__":
    if sys.argv[1:] == ["--rank"]:
        serve_rank()
    else:
        run_script(main)
