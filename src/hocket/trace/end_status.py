"""What a process said of itself when it ended normally; native/recorder/layout.hpp has the same layout."""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields

END_STATUS_AT = 1408
END_STATUS = struct.Struct("<13q")


@dataclass(frozen=True)
class EndStatus:
    """A process at its normal end. Counts are since its start; None: unknown.

    Only processes whose recorders are collected (`hocket observe run`) write it.

    Args:
        time_ns: when it was written, in nanoseconds of the monotonic clock.
        cpu_s: seconds of CPU of all its threads.
        num_threads: number of threads.
        resident_nbytes: bytes of its memory that are in RAM.
        minor_faults, major_faults: page faults without and with I/O.
        voluntary_switches, forced_switches: context switches of its main thread.
        read_nbytes, written_nbytes: bytes of all read and write calls, sockets and pipes included.
        device_read_nbytes, device_written_nbytes: bytes that went from and to devices.
        cpu_wait_s: seconds in which its main thread could have run, but waited for a CPU.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["cat", "/etc/hostname"], "run-that-ends")
        >>> observe.open_run("run-that-ends").processes[0].snapshot.end_status.num_threads
        1
    """

    time_ns: int
    cpu_s: float | None
    num_threads: int | None
    resident_nbytes: int | None
    minor_faults: int | None
    major_faults: int | None
    voluntary_switches: int | None
    forced_switches: int | None
    read_nbytes: int | None
    written_nbytes: int | None
    device_read_nbytes: int | None
    device_written_nbytes: int | None
    cpu_wait_s: float | None


def parse_end_status(content: bytes) -> EndStatus | None:
    """Return the status in these bytes of a recorder; None: the process has written none."""
    if len(content) < END_STATUS.size:
        return None
    time_ns, cpu_ns, *counts, cpu_wait_ns = END_STATUS.unpack(content[: END_STATUS.size])
    if time_ns <= 0:
        return None
    names = [field.name for field in fields(EndStatus)]
    known = {name: count if count >= 0 else None for name, count in zip(names[2:-1], counts, strict=True)}
    cpu_s, cpu_wait_s = (ns / 1e9 if ns >= 0 else None for ns in (cpu_ns, cpu_wait_ns))
    return EndStatus(time_ns=time_ns, cpu_s=cpu_s, cpu_wait_s=cpu_wait_s, **known)
