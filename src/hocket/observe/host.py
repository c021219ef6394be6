"""What the kernel counts for the whole host: CPU, memory, load, network devices and disks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_PROC = Path("/proc")
_NETWORK_CLASS = Path("/sys/class/net")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SECTOR_NBYTES = 512
"""Of /proc/diskstats, whatever the device says (Documentation/admin-guide/iostats.rst of Linux)."""
_MOST_DEVICES = 256
_CPU = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_NETWORK = {
    "received_nbytes": 0, "received_packets": 1, "receive_errors": 2, "receive_drops": 3,
    "sent_nbytes": 8, "sent_packets": 9, "send_errors": 10, "send_drops": 11,
}  # fmt: skip
"""Places of the numbers in a line of /proc/net/dev."""
_DISK = {"reads": 0, "read_nbytes": 2, "writes": 4, "written_nbytes": 6, "busy_s": 9}
"""Places of the numbers in a line of /proc/diskstats."""


@dataclass(frozen=True)
class HostSample:
    """Numbers of a host, a device or a file system at one moment.

    Args:
        source: "host", "network", "queue", "disk", "Lustre" or "NFS".
        name: which one.
        numbers: by name; None: it could not be read.
    """

    source: str
    name: str
    numbers: dict[str, float | None]


def sample_host(name: str, proc: Path = _PROC) -> Iterator[HostSample]:
    """Return what can be read now.

    Args:
        name: of the host.
        proc: the folder of the kernel's files.
    """
    yield HostSample("host", name, {**_cpu(proc), **_memory(proc), **_load(proc)})
    for each in parse_network(_text(proc / "net/dev")):
        yield replace(each, numbers={**each.numbers, "speed_nbytes_s": _speed(each.name)})
    yield from parse_disks(_text(proc / "diskstats"), _whole_disks())


def parse_network(text: str) -> list[HostSample]:
    """Return the samples of the network devices of a text such as /proc/net/dev; lines of another form are left out."""
    found = []
    for line in text.splitlines()[2 : 2 + _MOST_DEVICES]:
        name, _, rest = line.rpartition(":")
        numbers = _counts(rest.split())
        if name.strip() and numbers and len(numbers) >= 16:
            found.append(HostSample("network", name.strip(), {key: numbers[at] for key, at in _NETWORK.items()}))
    return found


def parse_disks(text: str, wanted: frozenset[str]) -> list[HostSample]:
    """Return the samples of disks of a text such as /proc/diskstats; lines of another form are left out.

    Args:
        text: of the kernel.
        wanted: names of devices; others are partitions of them.
    """
    found: list[HostSample] = []
    for line in text.splitlines():
        fields = line.split()
        numbers = _counts(fields[3:]) if len(fields) >= 14 else None
        # A device that has done nothing, such as a loop device without a file, is not worth a file.
        if numbers is None or fields[2] not in wanted or not any(numbers) or len(found) == _MOST_DEVICES:
            continue
        values: dict[str, float | None] = {key: numbers[at] for key, at in _DISK.items()}
        values["read_nbytes"] = numbers[_DISK["read_nbytes"]] * _SECTOR_NBYTES
        values["written_nbytes"] = numbers[_DISK["written_nbytes"]] * _SECTOR_NBYTES
        values["busy_s"] = numbers[_DISK["busy_s"]] / 1e3
        found.append(HostSample("disk", fields[2], values))
    return found


def _speed(device: str) -> float | None:
    """Bytes per second that a network device says it can send; None: it does not say."""
    try:
        mbit = int((_NETWORK_CLASS / device / "speed").read_text())
    except (OSError, ValueError):
        return None
    return mbit * 125_000.0 if mbit > 0 else None


def _whole_disks() -> frozenset[str]:
    try:
        return frozenset(name.replace("!", "/") for name in os.listdir("/sys/block"))
    except OSError:
        return frozenset()


def _cpu(proc: Path) -> dict[str, float | None]:
    first = _text(proc / "stat").partition("\n")[0].split()
    numbers = _counts(first[1:9]) if first[:1] == ["cpu"] else None
    if numbers is None or len(numbers) < len(_CPU):
        return {f"cpu_{name}_s": None for name in _CPU}
    return {f"cpu_{name}_s": ticks / _TICKS_PER_S for name, ticks in zip(_CPU, numbers, strict=True)}


def _memory(proc: Path) -> dict[str, float | None]:
    lines = dict(line.split(":", 1) for line in _text(proc / "meminfo").splitlines() if ":" in line)

    def nbytes(name: str) -> float | None:
        fields = lines.get(name, "").split()
        return int(fields[0]) * 1024 if len(fields) == 2 and fields[0].isdecimal() and fields[1] == "kB" else None

    return {"memory_nbytes": nbytes("MemTotal"), "memory_available_nbytes": nbytes("MemAvailable")}


def _load(proc: Path) -> dict[str, float | None]:
    fields = _text(proc / "loadavg").split()
    try:
        running, _, existing = fields[3].partition("/")
        return {"load_1min": float(fields[0]), "running_threads": int(running), "threads": int(existing)}
    except (IndexError, ValueError):
        return dict.fromkeys(("load_1min", "running_threads", "threads"))


def _counts(fields: list[str]) -> list[int] | None:
    return [int(field) for field in fields] if all(field.isascii() and field.isdecimal() for field in fields) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
