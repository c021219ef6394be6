"""The gain of learning while a program runs if a table is wrong, and its cost if the table is right.

Two ranks of this host with shared memory, gloo and MPI; a step has nine blocking collectives. In the wrong table, gloo
is the fastest, then MPI. One communicator uses this table, one learns until nothing changes any more, and one has the
learned table from the start; another one has a learner that has nothing left to try.
"""

from __future__ import annotations

import sys
from functools import partial

from claim import Found, Options, measured, run_claim
from libraries import job
from ranks import zeros

import hocket as hk
from hocket.measure import Comparison, Contender, pin, serve
from hocket.measure.loops import Loop, in_order
from hocket.tune import Learner, Row, Table, TablePolicy, this_machine

KIB = 1 << 10
STEP = (("all_reduce", 64 * KIB),) * 5 + (("all_reduce", 4 * KIB),) * 2 + (("broadcast", KIB), ("all_gather", 16 * KIB))
WRONG_ORDER = ("gloo", "mpi", "shm")
MOST_STEPS = 20_000
QUIET_STEPS = 3_000  # without a change: nothing is left to learn
LEAST_SPEED = 0.95  # of what it would be without a learner
KEEPS, LEARNS = "the wrong table", "learned from the wrong table"
RIGHT, RESTS = "the learned table, no learner", "the learned table, a learner beside it"


def steps(on: hk.Communicator) -> Loop:
    calls = []
    for op, nbytes in STEP:
        x, out = zeros(nbytes // 4), zeros(on.size * nbytes // 4)
        given = {"all_reduce": (x, "max"), "broadcast": (x, 0), "all_gather": (out, x)}[op]
        calls.append(partial(getattr(on, op), *given))
    return in_order(calls)


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


def serve_rank(_: str) -> None:
    """One rank: the communicators, taught and checked."""
    comm = hk.init(backends=["shm", "gloo", "mpi"], progress="caller")
    pin(comm.rank)
    rows = [
        Row(op, "full" if op == "all_reduce" else "moved", comm.size, nbytes, backend, False, s, s, s)
        for op, nbytes in dict.fromkeys(STEP)
        for backend, s in zip(WRONG_ORDER, (1.0e-6, 1.5e-6, 1.8e-6), strict=True)
    ]
    stays_wrong, learns, right, rests = (comm.dup() for _ in range(4))
    stays_wrong.policy = learns.policy = TablePolicy(Table(this_machine(comm.backends), tuple(rows)))
    learned = teach(learns)
    right.policy = rests.policy = TablePolicy(learned.table)
    held = [learned, teach(rests)]
    ways = ((LEARNS, learns), (KEEPS, stays_wrong), (RIGHT, right), (RESTS, rests))
    serve([Contender("step", name, steps(on)) for name, on in ways], comm.rank, comm.barrier)
    for learner in held:
        learner.stop()
    comm.finalize()


def parts(options: Options) -> Found:
    measurement = measured([job("hocket", __file__, [], 2)], "rounds", options.settings, start_timeout_s=300.0)
    compared = ((LEARNS, KEEPS, 1.0), (LEARNS, RIGHT, LEAST_SPEED), (RESTS, RIGHT, LEAST_SPEED))
    yield (
        [Comparison("step", ours, (rival,), target, label=f"a step: {ours}") for ours, rival, target in compared],
        measurement,
    )


if __name__ == "__main__":
    run_claim("learning while running", parts)
