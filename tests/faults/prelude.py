# ruff: noqa: F401
"""What every script of these tests begins with: ``from prelude import *``, modules included."""

import json
import os
import signal
import sys
import threading
import time

import numpy as np

import hocket as hk

_NAMES = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE") if "RANK" not in os.environ else ("RANK", "WORLD_SIZE")
RANK, SIZE = (int(os.environ[name]) for name in _NAMES)


def note(what, **facts):
    """Leave a line for the test; the clock is one for all processes."""
    with open(f"notes-{RANK}-{os.getpid()}", "a") as file:
        file.write(json.dumps({"what": what, "rank": RANK, "time_s": time.monotonic(), **facts}) + "\n")


def wait_until(condition, limit_s=40.0):
    """Look until it is true, or end: no test hangs."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            note("waited in vain")
            os._exit(99)
        time.sleep(0.005)


def tell(name):
    with open(f"told-{name}.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"told-{name}.part", f"told-{name}")


def await_told(*names):
    wait_until(lambda: all(os.path.exists(f"told-{name}") for name in names))


def start_together():
    """Interpreters start at their own speed; short timeouts begin after that."""
    tell(f"started-{RANK}")
    await_told(*(f"started-{rank}" for rank in range(SIZE)))


def pid_of(rank):
    with open(f"told-started-{rank}") as file:
        return int(file.read())


def is_struck(pid):
    """Whether the process is stopped or has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "TZX"
    except OSError:
        return True


def is_in_flight(comm, op):
    return any(each.op == op and each.state in ("issued", "started") for each in comm.records())


def is_meeting():
    """Whether the main thread is inside of the native part of hk.init, or one step before it."""
    return sys._current_frames()[threading.main_thread().ident].f_code.co_name == "_connect"


def caught(call, *args, **kwargs):
    """Return the error of a call, noted, or None."""
    entered_s = time.monotonic()
    try:
        call(*args, **kwargs)
    except (hk.HocketError, KeyboardInterrupt) as error:
        note(
            "error",
            type=type(error).__name__,
            text=str(error),
            ranks=list(getattr(error, "ranks", ())),
            entered_s=entered_s,
        )
        return error
    return None
