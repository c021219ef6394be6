"""The gain of learning while a program runs if a table is wrong, and its cost if the table is right.

Two ranks of this host use shared memory, gloo and MPI; a step has nine blocking collectives. The wrong table says that
gloo is the fastest, then MPI. There are four communicators: one uses this table, one learns until the choices no longer
change, one uses the learned table from the start, and one uses it with a learner that has nothing left to try.
"""

from __future__ import annotations

import sys
from functools import partial

from claim import Options, PartResults, measure_jobs, run_claim
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
QUIET_STEPS = 3_000  # steps without a change, after which learning is complete
LEAST_SPEED = 0.95  # relative to the speed without a learner
WRONG, LEARNED = "the wrong table", "learned from the wrong table"
RIGHT, IDLE = "the learned table, no learner", "the learned table, a learner beside it"


def steps(comm: hk.Communicator) -> Loop:
    calls = []
    for op, nbytes in STEP:
        x, out = zeros(nbytes // 4), zeros(comm.size * nbytes // 4)
        arguments = {"all_reduce": (x, "max"), "broadcast": (x, 0), "all_gather": (out, x)}[op]
        calls.append(partial(getattr(comm, op), *arguments))
    return in_order(calls)


def learn(comm: hk.Communicator) -> Learner:
    learner, run = Learner(comm), steps(comm)
    num_steps, last_change = 0, 0
    while num_steps < min(MOST_STEPS, last_change + QUIET_STEPS):
        num_changes = sum(lesson.changed for lesson in learner.lessons)
        run(100)
        num_steps += 100
        if sum(lesson.changed for lesson in learner.lessons) > num_changes:
            last_change = num_steps
    if comm.rank == 0:
        print(f"{len(learner.lessons)} trials; the last change after {last_change} steps", file=sys.stderr)
        print(*learner.lessons, sep="\n", file=sys.stderr, flush=True)
    return learner


def serve_rank(_: str) -> None:
    """Run one rank: set up the communicators, let two of them learn, and serve their steps."""
    comm = hk.init(backends=["shm", "gloo", "mpi"], progress="caller")
    pin(comm.rank)
    rows = [
        Row(op, "full" if op == "all_reduce" else "moved", comm.size, nbytes, backend, False, s, s, s)
        for op, nbytes in dict.fromkeys(STEP)
        for backend, s in zip(WRONG_ORDER, (1.0e-6, 1.5e-6, 1.8e-6), strict=True)
    ]
    wrong, learning, right, idle = (comm.dup() for _ in range(4))
    wrong.policy = learning.policy = TablePolicy(Table(this_machine(comm.backends), tuple(rows)))
    learned = learn(learning)
    right.policy = idle.policy = TablePolicy(learned.table)
    learners = [learned, learn(idle)]
    ways = ((LEARNED, learning), (WRONG, wrong), (RIGHT, right), (IDLE, idle))
    serve([Contender("step", name, steps(each)) for name, each in ways], comm.rank, comm.barrier)
    for learner in learners:
        learner.stop()
    comm.finalize()


def parts(options: Options) -> PartResults:
    measurement = measure_jobs([job("hocket", __file__, [], 2)], "rounds", options.settings, start_timeout_s=300.0)
    compared = ((LEARNED, WRONG, 1.0), (LEARNED, RIGHT, LEAST_SPEED), (IDLE, RIGHT, LEAST_SPEED))
    yield (
        [Comparison("step", ours, (rival,), target, label=f"a step: {ours}") for ours, rival, target in compared],
        measurement,
    )


if __name__ == "__main__":
    run_claim("learning while a program runs", parts)
