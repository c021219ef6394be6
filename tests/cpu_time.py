"""Seconds of CPU, and how much is done in one now: what other users of a machine do can double what a test takes."""

from __future__ import annotations

import hashlib
import os
import resource
import threading
import time
from pathlib import Path

_DATA = bytes(8 << 20)
_USUAL_S = 0.0106  # to hash `_DATA`, on a machine for which budgets were made, when its two cores give 1.7 times one


def cpu_seconds() -> float:
    """Return what this process and the children that it has waited for have taken, in seconds of CPU."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def cpu_seconds_of(pid: int) -> float:
    """Return what another process and its descendants have taken so far, those included that were waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return 0.0  # it has ended
    own_s = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own_s + sum(cpu_seconds_of(int(child)) for child in children)


def slowness() -> float:
    """Return how many times as long as usual two cores take that are busy at once; 1.0 where they are faster."""
    taken_s: list[float] = []

    def work() -> None:
        began_s = time.thread_time()
        hashlib.blake2b(_DATA).digest()  # without the lock of the interpreter
        taken_s.append(time.thread_time() - began_s)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(1.0, sum(taken_s) / len(taken_s) / _USUAL_S)
