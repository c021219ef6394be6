"""Seconds of CPU, finer than the hundredths of `os.times`."""

from __future__ import annotations

import resource


def cpu_s() -> float:
    """Return what this process and the children that it has waited for have taken, in seconds of CPU."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
