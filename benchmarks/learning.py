"""What learning while a program runs gains where a table is wrong, and what it costs where the table is right.

Two ranks of this host with shared memory, gloo and MPI; a step has nine blocking collectives. The wrong table says that
gloo is the fastest, then MPI. One communicator keeps to it, one learns from it until nothing changes any more, and one
has what a learner found from the start; another one has a learner beside it that has nothing left to try.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
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
STEP = (("all_reduce", 64 * KIB),) * 5 + (("all_reduce", 4 * KIB),) * 2 + (("broadcast", KIB), ("all_gather", 16 * KIB))
WRONG_ORDER = ("gloo", "mpi", "shm")
MOST_STEPS = 20_000
QUIET_STEPS = 3_000  # without a change: nothing is left to learn
LEAST_SPEED = 0.95  # of what it would be without a learner


def serve_rank() -> None:
    """One rank: the communicators, taught and checked."""
    import numpy as np

    import hocket as hk
    from hocket.tune import Learner, Row, Table, TablePolicy, this_machine

    comm = hk.init(backends=["shm", "gloo", "mpi"], progress="caller")
    pin(comm.rank)
    rows = [
        Row(op, "full" if op == "all_reduce" else "moved", comm.size, nbytes, backend, False, s, s, s)
        for op, nbytes in dict.fromkeys(STEP)
        for backend, s in zip(WRONG_ORDER, (1.0e-6, 1.5e-6, 1.8e-6), strict=True)
    ]
    wrong = TablePolicy(Table(this_machine(comm.backends), tuple(rows)))

    def steps(on: hk.Communicator) -> Callable[[int], None]:
        arrays = [np.zeros(nbytes // 4, np.float32) for _, nbytes in STEP]
        gathered = [np.zeros(on.size * nbytes // 4, np.float32) for _, nbytes in STEP]

        def run(iterations: int) -> None:
            for _ in repeat(None, iterations):
                for (op, _), x, out in zip(STEP, arrays, gathered, strict=True):
                    if op == "all_reduce":
                        on.all_reduce(x, "max")
                    elif op == "broadcast":
                        on.broadcast(x, 0)
                    else:
                        on.all_gather(out, x)

        return run

    def teach(on: hk.Communicator) -> Learner:
        learner, run = Learner(on), steps(on)
        done, last_change = 0, 0
        while done < min(MOST_STEPS, last_change + QUIET_STEPS):
            seen = sum(lesson.changed for lesson in learner.lessons)
            run(100)
            done += 100
            if sum(lesson.changed for lesson in learner.lessons) > seen:
                last_change = done
        if on.rank == 0:
            print(f"{len(learner.lessons)} trials; the last change after {last_change} steps", file=sys.stderr)
            print(*learner.lessons, sep="\n", file=sys.stderr, flush=True)
        return learner

    stays_wrong, learns, right, rests = (comm.dup() for _ in range(4))
    stays_wrong.policy = learns.policy = wrong
    learned = teach(learns)
    right.policy = rests.policy = TablePolicy(learned.table)
    held = [learned, teach(rests)]
    contenders = [
        Contender("step", name, steps(on))
        for name, on in (
            ("learned from the wrong table", learns),
            ("the wrong table", stays_wrong),
            ("the learned table, no learner", right),
            ("the learned table, a learner beside it", rests),
        )
    ]
    serve(contenders, comm.rank, comm.barrier)
    for learner in held:
        learner.stop()
    comm.finalize()


def main() -> int:
    options = script_parser(__doc__.split("\n\n")[0]).parse_args()
    settings = settings_of(options)
    argv = (sys.executable, str(Path(__file__).resolve()), "rank")
    with Coordinator([direct_job("hocket", argv, 2)], start_timeout_s=300.0) as coordinator, progress("rounds") as show:
        measurement = measure(coordinator, settings, on_round=show)
    rows = [
        judge(measurement, Comparison("step", ours, (theirs,), target=target, label=f"a step: {ours}"))
        for ours, theirs, target in (
            ("learned from the wrong table", "the wrong table", 1.0),
            ("learned from the wrong table", "the learned table, no learner", LEAST_SPEED),
            ("the learned table, a learner beside it", "the learned table, no learner", LEAST_SPEED),
        )
    ]
    rows += null_rows(measurement)
    return finish(report("learning while running", rows, [measurement]), options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        serve_rank()
    else:
        run_script(main)
