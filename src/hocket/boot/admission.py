"""Check that this machine has room for the ranks of a job, before any of them starts."""

from __future__ import annotations

import os
from pathlib import Path

from hocket.errors import InvalidArgument

MOST_RANKS_PER_CPU = 16
MOST_SHARE_OF_MEMORY = 0.8


def check_room(num_ranks: int, switch: str = "--oversubscribe") -> None:
    """Refuse a job that would overload this machine.

    The memory that a rank needs to start is estimated by the private memory of this process, which has the same
    interpreter with hocket imported. The memory of the program itself is not included.

    Args:
        num_ranks: processes to start on this machine.
        switch: option that overrides this check, for the message.

    Raises:
        InvalidArgument: there would be more than 16 ranks per usable CPU, or their start would need more than 80 % of
            the free memory.
    """
    remedy = f"start fewer ranks, or override this with {switch}"
    num_cpus = len(os.sched_getaffinity(0))
    most = MOST_RANKS_PER_CPU * num_cpus
    if num_ranks > most:
        raise InvalidArgument(
            f"{num_ranks} ranks are more than {MOST_RANKS_PER_CPU} per CPU on {num_cpus} CPUs ({most}); {remedy}"
        )
    own, free = private_nbytes(), free_nbytes()
    if own is not None and free is not None and num_ranks * own > MOST_SHARE_OF_MEMORY * free:
        raise InvalidArgument(
            f"{num_ranks} ranks need at least {_mib(own)} each to start, more than {MOST_SHARE_OF_MEMORY:.0%} of the "
            f"{_mib(free)} of free memory; {remedy}"
        )


def private_nbytes(path: Path = Path("/proc/self/smaps_rollup")) -> int | None:
    """Return the bytes of memory that only this process uses; None if the kernel does not report them."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    numbers = [int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:"))]
    return 1024 * sum(numbers) if numbers else None


def free_nbytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes available to new processes: the machine's free memory or the rest of this control group."""
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
    """Return the bytes left in a control group (version 2); its page cache counts as free."""
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
