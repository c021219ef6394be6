"""One random scenario, described by the JSON in the first argument."""

import json
import os
import signal
import sys
import threading
from array import array

import numpy as np
from prelude import (
    RANK,
    SIZE,
    await_flags,
    caught,
    is_bootstrapping,
    is_in_flight,
    is_stopped_or_dead,
    note,
    pid_of,
    set_flag,
    start_together,
    wait_until,
)

import hocket as hk

PLAN = json.loads(sys.argv[1])
VICTIM, HOW, WHERE, LATE = PLAN["victim"], PLAN["how"], PLAN["where"], PLAN["late"]
IS_VICTIM = RANK == VICTIM
LARGE = 3_000_001


def fail():
    note("failure")
    if HOW == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if HOW == "raise":
        raise ValueError("the victim's own error")
    sys.exit(3)


def fail_when(condition):
    """Fail from another thread, once the main thread is in a call that does not return."""
    signal.signal(signal.SIGUSR1, lambda *_: fail())

    def watch():
        wait_until(condition)
        if HOW in ("raise", "exit"):
            os.kill(os.getpid(), signal.SIGUSR1)
        else:
            fail()

    threading.Thread(target=watch, daemon=True).start()


def connect():
    timeout = 2.0 if WHERE in ("init", "bootstrap", "split", "split-open", "group") else 30.0
    if WHERE == "init" and IS_VICTIM:
        fail()
    if WHERE == "bootstrap":
        if IS_VICTIM:
            fail_when(is_bootstrapping)
        elif RANK != (VICTIM + 1) % SIZE or SIZE == 2:
            wait_until(lambda: is_stopped_or_dead(pid_of(VICTIM)))  # so that the bootstrap cannot complete before
    return hk.init(timeout=timeout, progress=PLAN["progress"])


def filled(shape, value, dtype="float64"):
    """Return a filled array, in shared memory if the plan requires it."""
    if not PLAN["shared"]:
        return np.full(shape, value, dtype)
    x = comm.empty(shape, dtype)
    x[...] = value
    return x


def before(op):
    """Run an operation before the failure and check its result."""
    total = SIZE * (SIZE + 1) / 2
    if op == "barrier":
        comm.barrier(timeout=30)
    elif op == "all_gather":
        out = filled((SIZE, 5000), 0)
        comm.all_gather(out, filled(5000, RANK + 1.0), timeout=30)
        assert out.sum() == 5000 * total
    elif op == "ring":
        x, y = filled(9000, RANK + 1.0), filled(9000, 0)
        work = comm.isend(x, (RANK + 1) % SIZE)
        comm.recv(y, (RANK - 1) % SIZE, timeout=30)
        work.wait(30)
        assert (y == (RANK - 1) % SIZE + 1).all()
    else:
        x = filled(int(op), RANK + 1.0, "float32")
        comm.all_reduce(x, timeout=30)
        assert (x == total).all()


def use(where):
    """Run the operation during which the failure happens; every wait has a timeout of 2 s."""
    if where == "small":
        comm.all_reduce(np.ones(4), timeout=2)
    elif where == "large":
        comm.all_reduce(filled(LARGE, 1, "float32"), timeout=2)
    elif where == "async":
        works = [comm.all_reduce(filled(n, 1), async_op=True, timeout=2) for n in (2, 100_000, 3)]
        for work in works:
            work.wait(2)
    elif where == "p2p":
        # The victim's successor never reads its long message to the end; the others wait for a message it never sends.
        if IS_VICTIM:
            comm.recv(filled(LARGE, 1), (VICTIM + 1) % SIZE, tag=5, timeout=60)
        else:
            comm.recv(filled(LARGE, 1), VICTIM, tag=7, timeout=2)
    elif where == "split":
        comm.split(0)
    elif where == "split-open":
        comm._gather_for("split", array("q", bytes(16 * comm.size)), array("q", (0, 0)))
        if IS_VICTIM:
            fail()
        comm._child(list(range(SIZE)), "split", "split", 0)
    elif where == "group":
        comm.group(PLAN["members"])
    elif where in ("finalize", "outside"):
        comm.barrier(timeout=2)


start_together()
if WHERE in ("init", "bootstrap"):
    if (error := caught(connect)) is not None:
        raise error
    sys.exit("init went well")
comm = connect()
for op in PLAN["before"]:
    before(op)

if IS_VICTIM:
    if not LATE:
        await_flags(*(f"there-{rank}" for rank in range(SIZE) if rank != VICTIM))
    if WHERE == "finalize":
        work = comm.irecv(np.ones(3), (VICTIM + 1) % SIZE, tag=9)
        fail_when(lambda: is_in_flight(comm, "recv"))
        comm.finalize()
        sys.exit("finalize did not wait")
    if LATE and WHERE in ("small", "large", "async", "p2p", "split"):
        kind = {"p2p": "recv", "split": "split"}.get(WHERE, "all_reduce")
        fail_when(lambda: is_in_flight(comm, kind))
        if WHERE == "p2p":
            comm.isend(filled(LARGE, 1), (VICTIM + 1) % SIZE, tag=7)
        use(WHERE)
    elif WHERE == "split-open":
        use(WHERE)
    elif WHERE == "large":
        work = comm.all_reduce(filled(LARGE, 1, "float32"), async_op=True)  # fails while this runs
    elif WHERE == "async":
        works = [comm.all_reduce(filled(n, 1), async_op=True) for n in (2, 100_000)]
    elif WHERE == "p2p":
        comm.isend(filled(LARGE, 1), (VICTIM + 1) % SIZE, tag=7)
    fail()
    wait_until(lambda: False)

if LATE and WHERE != "split-open":
    wait_until(
        lambda: (
            is_stopped_or_dead(pid_of(VICTIM))
            or (HOW in ("raise", "exit") and os.path.exists(f"notes-{VICTIM}-{pid_of(VICTIM)}"))
        )
    )
set_flag(f"there-{RANK}")
# A victim that leaves in an orderly way completes the operation that it entered; then the next one fails.
error = caught(use, WHERE) or caught(comm.barrier, timeout=2)
if error is None:
    sys.exit("nothing was raised")
raise error
