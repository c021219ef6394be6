"""What the kernel says of a process: state, CPU, memory, switches, page faults and I/O."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import monotonic

from hocket.errors import RecorderError
from hocket.trace import Owner, ReadWritten

_STATES = {
    "R": "running", "S": "sleeping", "D": "in the kernel", "T": "stopped", "t": "stopped by a debugger",
    "Z": "ended", "X": "ended", "I": "idle",
}  # fmt: skip
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MOST_ENVIRONMENT_NBYTES = 4 << 20
_PAGE_NBYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ProcessStatus:
    """A process at one moment. Counts are since its start.

    Args:
        pid: its number.
        started: its start, in clock ticks since boot.
        state: "running", "sleeping", "in the kernel", "stopped", "stopped by a debugger" or "ended".
        time_s: when this was read, in seconds of the monotonic clock.
        cpu_s: seconds of CPU of all its threads.
        num_threads: number of threads.
        resident_nbytes: bytes of its memory that are in RAM.
        minor_faults, major_faults: page faults without and with I/O.
        voluntary_switches, forced_switches: context switches of its main thread; None: not readable.
        read_nbytes, written_nbytes: bytes of all read and write calls, sockets and pipes included; None: not readable,
            because the process belongs to another user.
        device_read_nbytes, device_written_nbytes: bytes that went from and to devices; None: as above.
        cpu_wait_s: seconds in which its main thread could have run, but waited for a CPU; None: the kernel does not
            count them.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> status = observe.process_status(os.getpid())
        >>> status.state, status.num_threads >= 1
        ('running', True)
    """

    pid: int
    started: int
    state: str
    time_s: float
    cpu_s: float
    num_threads: int
    resident_nbytes: int
    minor_faults: int
    major_faults: int
    voluntary_switches: int | None
    forced_switches: int | None
    read_nbytes: int | None
    written_nbytes: int | None
    device_read_nbytes: int | None
    device_written_nbytes: int | None
    cpu_wait_s: float | None


def process_status(pid: int) -> ProcessStatus:
    """Return what the kernel says of a process.

    Args:
        pid: its number.

    Raises:
        RecorderError: there is no such process.

    Examples:
        >>> from hocket import observe
        >>> observe.process_status(1).pid
        1
    """
    folder = Path(f"/proc/{pid}")
    try:
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        raise RecorderError(f"there is no process {pid}") from None
    switches = _numbers(folder / "status", ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"))
    moved = _numbers(folder / "io", ("rchar", "wchar", "read_bytes", "write_bytes"))
    return ProcessStatus(
        pid=pid,
        started=int(fields[19]),
        state=_STATES.get(fields[0], fields[0]),
        time_s=monotonic(),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        num_threads=int(fields[17]),
        resident_nbytes=int(fields[21]) * _PAGE_NBYTES,
        minor_faults=int(fields[7]),
        major_faults=int(fields[9]),
        voluntary_switches=switches[0],
        forced_switches=switches[1],
        read_nbytes=moved[0],
        written_nbytes=moved[1],
        device_read_nbytes=moved[2],
        device_written_nbytes=moved[3],
        cpu_wait_s=_cpu_wait_s(folder),
    )


def _cpu_wait_s(folder: Path) -> float | None:
    try:
        return int((folder / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


def io_counters(status: ProcessStatus | None) -> ReadWritten | None:
    """Return the bytes of all read and write calls; None: the process has ended, or they are not readable."""
    if status is None or status.read_nbytes is None or status.written_nbytes is None:
        return None
    return ReadWritten(status.read_nbytes, status.written_nbytes)


def status_of(owner: Owner) -> ProcessStatus | None:
    """Return what the kernel says of a recorder's process; None: it has ended, whoever has its number."""
    is_here = owner.pid_namespace in (0, _namespace_of("self"))
    pid = owner.pid if is_here else _pid_here(owner.pid_namespace, owner.pid, owner.started)
    if pid is None:
        return None
    try:
        status = process_status(pid)
    except RecorderError:
        return None
    return status if status.started == owner.started and status.state != "ended" else None


def _namespace_of(process: str) -> int:
    """The inode of its PID namespace; 0: it has ended, or belongs to another user."""
    try:
        return os.stat(f"/proc/{process}/ns/pid").st_ino
    except OSError:
        return 0


@lru_cache(4096)
def _pid_here(namespace: int, pid: int, started: int) -> int | None:
    """Return the number that a process of a container has outside; None: it has ended."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or _namespace_of(entry) != namespace:
            continue
        try:
            lines = Path(f"/proc/{entry}/status").read_text(errors="replace").splitlines()
        except OSError:
            continue  # it has ended
        numbers = next((line.split() for line in lines if line.startswith("NSpid:")), [""])
        with suppress(RecorderError):
            if numbers[-1] == str(pid) and process_status(int(entry)).started == started:
                return int(entry)
    return None


def parents() -> dict[int, int]:
    """Return the parent of each process that runs."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()
            found[int(entry)] = int(fields[1])
        except (OSError, IndexError):
            continue  # it has ended
    return found


def owner_of(pid: int) -> int | None:
    """Return the number of the user whom a process belongs to; None: it has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def descendants_of(*pids: int) -> list[int]:
    """Return processes and those that they, their children and so on have started and that run; each once."""
    children: dict[int, list[int]] = {}
    for child, parent in parents().items():
        children.setdefault(parent, []).append(child)
    found = dict.fromkeys(pids)
    waiting = list(found)
    for each in waiting:  # grows meanwhile
        new = [child for child in children.get(each, ()) if child not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    return waiting


def environment_of(pid: int) -> dict[str, str] | None:
    """Return the environment that a process was started with; None: it has ended, or belongs to another user."""
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            content = file.read(_MOST_ENVIRONMENT_NBYTES)
    except OSError:
        return None
    entries = (entry.partition("=") for entry in content.decode(errors="replace").split("\0"))
    return {name: value for name, equals, value in entries if equals}


def _numbers(path: Path, names: tuple[str, ...]) -> tuple[int | None, ...]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return (None,) * len(names)
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return tuple(int(values[name]) if values.get(name, "").strip().isdigit() else None for name in names)
