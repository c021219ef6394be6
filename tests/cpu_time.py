"""CPU seconds, and the current speed of the machine: other users can double the time of a test."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

_MODULES = "argparse, asyncio, email.message, http.client, inspect, json, logging, unittest, xml.etree.ElementTree"
_USUAL_S = 0.070  # to import `_MODULES` where `make test` took 491 s, with two cores that give 1.95 times one
_DEADLINE_S = 60.0


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the children that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU seconds so far of another process and its descendants, also ended ones."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return 0.0  # it has ended
    own_s = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own_s + sum(cpu_seconds_of(int(child)) for child in children)


def slowness() -> float:
    """Return the slowdown of two concurrent processes, compared with an idle machine; at least 1.0.

    They start Python and import modules, as most of what tests start does. Beside two and four processes that fill the
    caches, tests of five rooms took 1.17 and 1.26 times their usual CPU, these imports 1.32 and 1.33 times, a loop that
    stays in the registers 1.00 times.
    """
    command = [sys.executable, "-I", "-S", "-c", f"import {_MODULES}"]
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = usage.ru_utime + usage.ru_stime
    programs = [subprocess.Popen(command, env={}) for _ in range(2)]
    for program in programs:
        program.wait(_DEADLINE_S)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return max(1.0, (usage.ru_utime + usage.ru_stime - began_s) / len(programs) / _USUAL_S)
