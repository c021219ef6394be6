# ruff: noqa: F401
"""Names and modules for all scripts of these tests, which start with ``from prelude import *``."""

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


def note(event, **facts):
    """Write a line for the test; all processes share the clock."""
    with open(f"notes-{RANK}-{os.getpid()}", "a") as file:
        file.write(json.dumps({"event": event, "rank": RANK, "time_s": time.monotonic(), **facts}) + "\n")


def wait_until(condition, limit_s=40.0):
    """Poll until the condition is true; exit after the limit, so that no test hangs."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            note("waited in vain")
            os._exit(99)
        time.sleep(0.005)


def set_flag(name):
    """Set a flag that all processes of the job can see: a file with the pid of this process."""
    with open(f"flag-{name}.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"flag-{name}.part", f"flag-{name}")


def await_flags(*names):
    wait_until(lambda: all(os.path.exists(f"flag-{name}") for name in names))


def start_together():
    """Wait until all interpreters run, before short timeouts begin."""
    set_flag(f"started-{RANK}")
    await_flags(*(f"started-{rank}" for rank in range(SIZE)))


def pid_of(rank):
    with open(f"flag-started-{rank}") as file:
        return int(file.read())


def is_stopped_or_dead(pid):
    """Return whether the process is stopped or has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "TZX"
    except OSError:
        return True


def is_in_flight(comm, op):
    return any(record.op == op and record.state in ("issued", "started") for record in comm.records())


def is_bootstrapping():
    """Return whether the main thread is in the native part of hk.init, or about to enter it."""
    return sys._current_frames()[threading.main_thread().ident].f_code.co_name == "_connect"


def caught(call, *args, **kwargs):
    """Return the error of a call and note it, or return None."""
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
