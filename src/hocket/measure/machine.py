"""The load of the machine by our processes and by others, and the CPU of a rank."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """A reading of the machine's CPU clocks, in seconds since a fixed time in the past.

    Args:
        wall_s: Wall clock.
        busy_s: Time in which CPUs worked for processes or were taken by the hypervisor (steal), summed over CPUs.
        ours_s: CPU time of our processes and their descendants.
    """

    wall_s: float
    busy_s: float
    ours_s: float


def usage(pids: Iterable[int]) -> Usage:
    """Read the CPU clocks from /proc; our processes are `pids` and their descendants.

    Examples:
        >>> import os
        >>> before = hk.measure.usage([os.getpid()])
        >>> after = hk.measure.usage([os.getpid()])
        >>> after.ours_s >= before.ours_s
        True
    """
    return Usage(time.monotonic(), _busy_seconds(), _tree_seconds(pids))


def foreign_busy(before: Usage, after: Usage) -> float:
    """Return the share of the CPU time, 0 to 1, that other programs and steal took between two readings.

    Examples:
        >>> from hocket.measure.machine import Usage
        >>> before = Usage(wall_s=0.0, busy_s=0.0, ours_s=0.0)
        >>> hk.measure.foreign_busy(before, Usage(wall_s=10.0, busy_s=8.0, ours_s=8.0))  # all work was ours
        0.0
    """
    foreign_s = (after.busy_s - before.busy_s) - (after.ours_s - before.ours_s)
    available_s = (after.wall_s - before.wall_s) * (os.cpu_count() or 1)
    return min(1.0, max(0.0, foreign_s / available_s)) if available_s > 0 else 0.0


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def read_processes(name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the pid and the content of a file in /proc of every process.

    Processes that end meanwhile, and files that only another user may read, are skipped.
    """
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                yield int(entry.name), Path(entry.path, name).read_bytes()


def pin(rank: int) -> None:
    """Bind this process to one of its usable CPUs: rank i to the i-th, modulo their number.

    Examples:
        >>> import os
        >>> usable = os.sched_getaffinity(0)
        >>> hk.measure.pin(rank=0)
        >>> os.sched_getaffinity(0) == {min(usable)}
        True
        >>> os.sched_setaffinity(0, usable)  # unpin
    """
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})


def _busy_seconds() -> float:
    # Without interrupt time: the kernel charges its work for our own loopback traffic to no process.
    user, nice, system, _idle, _iowait, _irq, _softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + steal) / _TICKS_PER_S


def _tree_seconds(roots: Iterable[int]) -> float:
    parent: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for pid, content in read_processes("stat"):
        stat = content.decode(errors="surrogateescape")
        fields = stat[stat.rindex(")") + 2 :].split()  # from field 3 of proc(5) on
        parent[pid] = int(fields[1])
        ticks[pid] = sum(map(int, fields[11:15]))  # utime, stime and those of children waited for
    ours = set(roots)
    return sum(ticks[pid] for pid in ticks if _descends(pid, ours, parent)) / _TICKS_PER_S


def _descends(pid: int, roots: set[int], parent: dict[int, int]) -> bool:
    while pid:
        if pid in roots:
            return True
        pid = parent.get(pid, 0)
    return False


def sent_nbytes() -> dict[str, int]:
    """Return the bytes that this host has sent, by network device."""
    counters = Path("/sys/class/net").glob("*/statistics/tx_bytes")
    return {each.parts[4]: int(each.read_text()) for each in counters if each.parts[4] != "lo"}
