"""Whether this machine has room for the ranks of a job, before any of them is started."""

from __future__ import annotations

import os
from pathlib import Path

from hocket.errors import InvalidArgument

MOST_RANKS_PER_CPU = 16
MOST_SHARE_OF_MEMORY = 0.8


def check_room(num_ranks: int, switch: str = "--oversubscribe") -> None:
    """Refuse a job that this machine could hardly start, and that would take it from everybody else.

    Args:
        num_ranks: processes to start on this machine.
        switch: by which the caller can start them all the same.

    Raises:
        InvalidArgument: more than 16 for each CPU that this process may use, or more than 80 % of the free memory would
            go to their start. How much that is, is told by what this process has for itself: it is of the same
            interpreter, with hocket imported. What the program itself needs comes on top.
    """
    remedy = f"start fewer, or more all the same with {switch}"
    num_cpus = len(os.sched_getaffinity(0))
    most = MOST_RANKS_PER_CPU * num_cpus
    if num_ranks > most:
        raise InvalidArgument(
            f"{num_ranks} ranks are more than {MOST_RANKS_PER_CPU} for each of {num_cpus} CPUs ({most}); {remedy}"
        )
    own, free = private_nbytes(), free_nbytes()
    if own is not None and free is not None and num_ranks * own > MOST_SHARE_OF_MEMORY * free:
        raise InvalidArgument(
            f"{num_ranks} ranks take at least {_mib(own)} each to start, more than {MOST_SHARE_OF_MEMORY:.0%} of the "
            f"{_mib(free)} of memory that are free; {remedy}"
        )


def private_nbytes(path: Path = Path("/proc/self/smaps_rollup")) -> int | None:
    """Return how many bytes this process shares with no other; None where the kernel does not tell."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:"))]
    return 1024 * sum(found) if found else None


def free_nbytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return how many bytes new processes can have: the machine's, or what this control group may still take."""
    known = [each for each in (_available(proc / "meminfo"), _left_in_group(proc / "self/cgroup", cgroups)) if each]
    return min(known, default=None)


def _available(path: Path) -> int | None:
    try:
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return None


def _left_in_group(own: Path, root: Path) -> int | None:
    """Of a control group of version 2; what its files take can be had again."""
    try:
        name = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
        group = root / name.lstrip("/")
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((group / "memory.current").read_text())
        files = [line.split()[1] for line in (group / "memory.stat").read_text().splitlines() if line[:5] == "file "]
        return max(1, int(limit) - used + int(files[0] if files else 0))
    except (OSError, ValueError, StopIteration):
        return None


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.0f} MiB"
