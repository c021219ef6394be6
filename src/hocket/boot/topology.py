"""Find which ranks of a host are near each other: their processors share a cache and a memory node."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

_SYSTEM = Path("/sys/devices/system")


def find_domain(cpus: Collection[int] | None = None, system: Path = _SYSTEM) -> str:
    """Return the name of the domain of some processors; equal for processors that share a cache and a memory node.

    Args:
        cpus: processors that a process may run on; by default those of this process.
        system: folder in which the kernel describes the machine.

    Returns:
        The memory node and the processors of the largest shared cache, such as "node0 cpus 0-7"; "" if the processors
        are in several domains, or the kernel does not report them.
    """
    cpus = os.sched_getaffinity(0) if cpus is None else cpus
    try:
        domains = {_domain_of(cpu, system) for cpu in cpus}
    except (OSError, ValueError):
        return ""
    return domains.pop() if len(domains) == 1 else ""


def _domain_of(cpu: int, system: Path) -> str:
    folder = system / f"cpu/cpu{cpu}"
    caches = [(int((each / "level").read_text()), each) for each in folder.glob("cache/index*")]
    _, largest = max(caches)
    nodes = sorted(each.name for each in folder.glob("node[0-9]*"))
    return " ".join([*nodes, "cpus", (largest / "shared_cpu_list").read_text().strip()])
