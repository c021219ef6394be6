"""What the clients of Lustre and NFS count for each mounted file system."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hocket.errors import RecorderError
from hocket.observe.host import HostSample

LUSTRE_FOLDERS = (Path("/proc/fs/lustre/llite"), Path("/sys/kernel/debug/lustre/llite"))
"""Of one folder for each mount; newer clients have it where only root can read."""
MOUNT_STATISTICS = Path("/proc/self/mountstats")
_MOST_NBYTES = 4 << 20
_MOST_MOUNTS = 256

_LUSTRE = {"read_bytes": ("read_nbytes", "read_calls"), "write_bytes": ("written_nbytes", "write_calls")}
_DEVICE = re.compile(r"device (\S+) mounted on (\S+) with fstype (nfs4?)(?: statvers=(\S+))?")
_STATISTICS_VERSIONS = ("1.0", "1.1")
_BYTES = (
    "read_nbytes", "written_nbytes", "direct_read_nbytes", "direct_written_nbytes", "server_read_nbytes",
    "server_written_nbytes",
)  # fmt: skip
"""The first numbers of the line "bytes:" (enum nfs_stat_bytecounters in include/linux/nfs_iostat.h of Linux)."""
_OPERATION = re.compile(r"\s*([A-Z][A-Z0-9_]*): ([\d ]+)")
_OPS, _SENT, _TIMEOUTS, _ROUND_TRIP_MS, _EXECUTE_MS = 0, 1, 2, 6, 7
"""Places of the numbers of an operation (struct rpc_iostats in include/linux/sunrpc/metrics.h of Linux)."""
_LEAST_NUMBERS = 8
NFS_NUMBERS = (
    *_BYTES, "operations", "transmissions", "timeouts", "round_trip_s", "execute_s", "read_operations",
    "read_execute_s", "write_operations", "write_execute_s",
)  # fmt: skip


def sample_file_systems(problems: set[str]) -> Iterator[HostSample]:
    """Return what can be read now; adds what cannot to `problems`."""
    for find in (_lustre_samples, nfs_samples):
        try:
            yield from find()
        except RecorderError as error:
            problems.add(str(error))


def lustre_folder() -> Path | None:
    """Return the folder with the counters of Lustre; None: no Lustre is mounted, or they cannot be read."""
    for folder in LUSTRE_FOLDERS:
        try:
            if any(folder.glob("*/stats")):
                return folder
        except OSError:
            continue
    return None


def parse_lustre(text: str, name: str, place: str = "stats") -> HostSample:
    """Return the sample of one mount.

    Args:
        text: a file ``llite/NAME/stats``, with lines such as ``read_bytes 12 samples [bytes] 4096 1048576 99`` (The
            Lustre Operations Manual, "Monitoring Client Activity"): number of calls, unit, least, most and sum.
        name: of the mount.
        place: origin of the text, for messages.

    Raises:
        RecorderError: a line about bytes has another form; names the line.
    """
    # A client that has not read anything has no line about it.
    numbers: dict[str, float | None] = {name: 0 for names in _LUSTRE.values() for name in names}
    lines = text.splitlines()
    if not any(line.startswith("snapshot_time") for line in lines):
        raise RecorderError(f'{place}: counters of Lustre have a line "snapshot_time", and it has none')
    for number, line in enumerate(lines, 1):
        label, *fields = line.split() or [""]
        if label not in _LUSTRE:
            continue
        if len(fields) < 6 or fields[1:3] != ["samples", "[bytes]"] or not _are_counts([fields[0], *fields[3:6]]):
            form = f'"{label} COUNT samples [bytes] LEAST MOST SUM"'
            raise RecorderError(f"{place}, line {number}: {form} is expected, not {line[:120]!r}")
        nbytes, calls = _LUSTRE[label]
        numbers |= {nbytes: int(fields[5]), calls: int(fields[0])}
    return HostSample("Lustre", name, numbers)


def parse_nfs(text: str, place: str = str(MOUNT_STATISTICS)) -> list[HostSample]:
    """Return the samples of all mounts of NFS.

    Args:
        text: such as /proc/self/mountstats.
        place: origin of the text, for messages.

    Raises:
        RecorderError: the statistics of a mount have another version, or a line another form; names the line.
    """
    found: list[HostSample] = []
    numbers: dict[str, float | None] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("device "):
            numbers = None
            device = _DEVICE.fullmatch(line)
            if device is None or len(found) == _MOST_MOUNTS:
                continue  # of another file system
            if device[4] not in _STATISTICS_VERSIONS:
                raise RecorderError(f"{place}, line {number}: statvers is {device[4]}; 1.0 and 1.1 can be read")
            numbers = dict.fromkeys(NFS_NUMBERS)
            name = device[2].encode().decode("unicode_escape", "replace")  # spaces are written as \040
            found.append(HostSample("NFS", f"{name} from {device[1]}", numbers))
        elif numbers is not None:
            _take_line(numbers, line, f"{place}, line {number}")
    return found


def _take_line(numbers: dict[str, float | None], line: str, place: str) -> None:
    label, _, rest = line.strip().partition(":")
    if label == "bytes":
        fields = rest.split()
        if len(fields) < len(_BYTES) or not _are_counts(fields):
            raise RecorderError(f'{place}: "bytes:" has at least {len(_BYTES)} numbers, not {line[:120]!r}')
        numbers.update(zip(_BYTES, map(int, fields), strict=False))
    elif operation := _OPERATION.fullmatch(line):
        counts = [int(each) for each in operation[2].split()]
        if len(counts) < _LEAST_NUMBERS:
            raise RecorderError(f"{place}: an operation has at least {_LEAST_NUMBERS} numbers, not {line[:120]!r}")
        taken = {
            "operations": counts[_OPS], "transmissions": counts[_SENT], "timeouts": counts[_TIMEOUTS],
            "round_trip_s": counts[_ROUND_TRIP_MS] / 1e3, "execute_s": counts[_EXECUTE_MS] / 1e3,
        }  # fmt: skip
        if operation[1] in ("READ", "WRITE"):
            kind = operation[1].lower()
            taken |= {f"{kind}_operations": counts[_OPS], f"{kind}_execute_s": counts[_EXECUTE_MS] / 1e3}
        for name, value in taken.items():
            numbers[name] = (numbers[name] or 0) + value


def _lustre_samples() -> Iterator[HostSample]:
    folder = lustre_folder()
    for path in sorted(folder.glob("*/stats"))[:_MOST_MOUNTS] if folder else ():
        yield parse_lustre(_read(path), path.parent.name, str(path))


def nfs_samples() -> Iterator[HostSample]:
    """Return what can be read of NFS now; see `parse_nfs`."""
    if MOUNT_STATISTICS.exists():
        yield from parse_nfs(_read(MOUNT_STATISTICS))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_NBYTES + 1)
    except OSError as error:
        raise RecorderError(f"{path}: {error.strerror}") from None
    if len(content) > _MOST_NBYTES:
        raise RecorderError(f"{path}: longer than {_MOST_NBYTES} bytes")
    return content.decode(errors="replace")


def _are_counts(fields: list[str]) -> bool:
    return all(field.isascii() and field.isdecimal() and len(field) <= 20 for field in fields)
