"""Whether two processes have the same clock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OFFSETS = Path("/proc/self/timens_offsets")


@dataclass(frozen=True)
class ClockOrigin:
    """What a process's monotonic clock counts from. Processes with equal origins have the same clock.

    Args:
        boot_id: of the running kernel; "" if unknown, and then equal to no other.
        offset_s: by how much the clock of its time namespace is ahead of the kernel's.

    Examples:
        >>> hk.clock.clock_origin() == hk.clock.clock_origin()
        True
    """

    boot_id: str
    offset_s: float

    def is_same(self, other: ClockOrigin) -> bool:
        """Return whether both clocks always show the same."""
        return self.boot_id != "" and self == other


def clock_origin() -> ClockOrigin:
    """Return the origin of this process's monotonic clock.

    A time namespace (``unshare --time``) moves the monotonic clock, but not the processor's counter of ticks.

    Examples:
        >>> origin = hk.clock.clock_origin()
        >>> origin.is_same(origin)
        True
    """
    try:
        boot_id = _BOOT_ID.read_text().strip()
    except OSError:
        boot_id = ""
    return ClockOrigin(boot_id, _namespace_offset_s())


def _namespace_offset_s() -> float:
    try:
        lines = _OFFSETS.read_text().splitlines()
    except OSError:
        return 0.0  # a kernel without time namespaces
    for line in lines:
        name, *numbers = line.split()
        if name == "monotonic" and len(numbers) == 2:
            return int(numbers[0]) + int(numbers[1]) * 1e-9
    return 0.0
