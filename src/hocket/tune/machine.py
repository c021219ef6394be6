"""The machine of a table. Times of another machine, or of other versions of libraries, do not apply here."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """The facts that a table's times depend on.

    Args:
        processor: name of the processor.
        num_cpus: number of CPUs that a process may use.
        num_hosts: number of hosts of the ranks.
        backends: descriptions by name, with versions.

    Examples:
        >>> here = hk.tune.Machine("a processor", 2, 1, {"shm": "shared memory"})
        >>> there = hk.tune.Machine("a processor", 64, 1, {"shm": "shared memory"})
        >>> here.difference(there)
        'its number of processors is 64, here it is 2'
    """

    processor: str
    num_cpus: int
    num_hosts: int
    backends: Mapping[str, str]

    def difference(self, other: Machine, *, carries_over: bool = False) -> str | None:
        """Return the difference because of which times of `other` cannot be used here, or None.

        A backend that only one of the two has makes no difference.

        Args:
            other: the machine that was measured.
            carries_over: whether times on several hosts may be used for another number of several hosts.
        """
        facts = {"processor": "processor", "num_cpus": "number of processors", "num_hosts": "number of hosts"}
        for name, words in facts.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if name == "num_hosts" and carries_over and min(mine, theirs) > 1:
                continue
            if mine != theirs:
                return f"its {words} is {theirs!r}, here it is {mine!r}"
        for name in sorted(self.backends.keys() & other.backends.keys()):  # all ranks find the same difference first
            if self.backends[name] != other.backends[name]:
                return f"its {name} is {other.backends[name]!r}, here it is {self.backends[name]!r}"
        return None

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "backends": dict(self.backends)}


def this_machine(backends: Mapping[str, str], num_hosts: int = 1) -> Machine:
    """Describe the machine of this process.

    Args:
        backends: as `Communicator.backends`.
        num_hosts: number of hosts of the ranks.

    Examples:
        >>> import os
        >>> machine = hk.tune.this_machine({"shm": "shared memory"})
        >>> machine.num_cpus == len(os.sched_getaffinity(0)), machine.num_hosts
        (True, 1)
    """
    return Machine(_processor(), len(os.sched_getaffinity(0)), num_hosts, dict(backends))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "CPU part", "cpu model"):
            return value.strip()
    return platform.machine()
