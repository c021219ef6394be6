"""Series of samples on disk: one file for each process, device or file system, with its columns named at its begin.

A file is one line of JSON (format, source, name, fields) and rows of fixed size. Rows are appended, so that what a run
had saved when it was killed can be read. Numbers that could not be read are NaN, never 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.errors import RecorderError
from hocket.observe.run_clock import RunClock
from hocket.versioned_json import Head

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SERIES_SUFFIX = ".series"
DEVICE_FILES = "device-*" + SERIES_SUFFIX
SERIES_STATES = (
    "unknown", "running", "sleeping", "in the kernel", "stopped", "stopped by a debugger", "idle", "ended", "replaced",
)  # fmt: skip
"""States of processes; a row has the place in this list. A process that calls `os.exec` is "replaced" by the next."""
PROCESS_NUMBERS = (
    "cpu_s", "num_threads", "resident_nbytes", "minor_faults", "major_faults", "voluntary_switches", "forced_switches",
    "read_nbytes", "written_nbytes", "device_read_nbytes", "device_written_nbytes",
    "cpu_wait_s",
)  # fmt: skip
"""Columns of the series of a process, as in `ProcessStatus`."""

_HEAD = Head("hocket series, version ", 1, RecorderError, title="a series")
_TIME, _STATE, _NUMBER = ("time_ns", "<i8"), ("state", "|u1"), "<f8"
_MOST_HEAD_NBYTES = 64 << 10
_MOST_FIELDS = 256
_MOST_NBYTES = 1 << 30
"""Of rows that are read: a year of a process, one row a second, is 3 GB."""


@dataclass(frozen=True)
class SavedSeries:
    """Samples of a device, a file system or a host of a recorded run.

    Args:
        host: name of the host.
        source: "host", "network", "queue", "disk", "Lustre" or "NFS".
        name: of the device, of the queue such as "eth0 fq_codel 8001: root", of the host, or the place where the file
            system is mounted.
        rows: structured array by time: "time_ns", nanoseconds of the monotonic clock of that host, and numbers of type
            float64. Names say the unit: "_nbytes", "_s"; without one it is a count. Counts are since the start of the
            host, the device or the mount. NaN: it could not be read.
        clock: its `seconds_at_ns` converts the times to seconds since the run began, equal for all hosts.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["sleep", "0.1"], "run-with-host")
        >>> series = {each.source: each for each in observe.open_run("run-with-host").host_series}
        >>> bool(series["host"].rows["memory_available_nbytes"][0] > 0)
        True
    """

    host: str
    source: str
    name: str
    rows: NDArray[np.void]
    clock: RunClock


class SeriesWriter:
    """Appends rows to a file, which is made with its head.

    Args:
        path: the file; a new one.
        source: what is sampled: "process", "host", ...
        name: which one.
        numbers: names of the columns of numbers.
        has_state: whether rows have the state of a process.
    """

    def __init__(self, path: Path, source: str, name: str, numbers: Sequence[str], *, has_state: bool = False) -> None:
        import numpy as np

        fields = [_TIME, *([_STATE] if has_state else []), *((number, _NUMBER) for number in numbers)]
        self._path = path
        self._numbers = tuple(numbers)
        self._layout = np.dtype(fields)
        head = {_HEAD.key: _HEAD.text, "source": source, "name": name, "fields": [list(field) for field in fields]}
        with path.open("xb") as file:
            file.write(json.dumps(head).encode() + b"\n")

    def append(self, time_ns: int, values: Mapping[str, float | None], state: str | None = None) -> None:
        """Append a row; numbers that `values` lacks or that are None could not be read."""
        self.append_all(time_ns, [values], state)

    def append_all(self, time_ns: int, rows: Sequence[Mapping[str, float | None]], state: str | None = None) -> None:
        """Append rows of one moment."""
        import numpy as np

        found = np.zeros(len(rows), self._layout)
        found["time_ns"] = time_ns
        if state is not None:
            found["state"] = SERIES_STATES.index(state) if state in SERIES_STATES else 0
        for number in self._numbers:
            values = (row.get(number) for row in rows)
            found[number] = [np.nan if value is None else value for value in values]
        with self._path.open("ab") as file:
            file.write(found.tobytes())


def no_process_rows() -> NDArray[np.void]:
    """Return the rows of a process of which there is no series."""
    import numpy as np

    return np.zeros(0, _process_layout())


def read_process_rows(path: Path, problems: list[str]) -> NDArray[np.void]:
    """Return the rows of a process by time; appends what is wrong with the file to `problems`.

    A process that has said how it ends may still be seen while it does so: its own last row is the last one.
    """
    import numpy as np

    try:
        source, _, rows = _read(path, problems)
    except FileNotFoundError:
        return no_process_rows()
    except RecorderError as error:
        problems.append(str(error))
        return no_process_rows()
    if source != "process" or _STATE[0] not in (rows.dtype.names or ()):
        problems.append(f"{path}, offset 0: not a series of a process with its states, but of {source[:80]!r}")
        return no_process_rows()
    is_known = rows["state"] < len(SERIES_STATES)
    if not is_known.all():
        problems.append(f"{path}: {int((~is_known).sum())} rows have an unknown state and are left out")
    rows = rows[is_known]
    is_end = rows["state"] == SERIES_STATES.index("ended")
    return _with_process_layout(rows[is_end | (np.cumsum(is_end) == 0)])


def read_series(path: Path, host: str, clock: RunClock, problems: list[str]) -> SavedSeries | None:
    """Return a series of a host; None: the file has none. Appends what is wrong with it to `problems`."""
    try:
        return SavedSeries(host, *_read(path, problems), clock)
    except FileNotFoundError:
        return None
    except RecorderError as error:
        problems.append(str(error))
        return None


def _process_layout() -> np.dtype[np.void]:
    import numpy as np

    return np.dtype([_TIME, _STATE, *((number, _NUMBER) for number in PROCESS_NUMBERS)])


def _with_process_layout(rows: NDArray[np.void]) -> NDArray[np.void]:
    """Numbers that another version did not save are NaN; those that only it has are left out."""
    import numpy as np

    found = np.zeros(len(rows), _process_layout())
    for name in found.dtype.names or ():
        found[name] = rows[name] if name in (rows.dtype.names or ()) else np.nan
    return found


def _read(path: Path, problems: list[str]) -> tuple[str, str, NDArray[np.void]]:
    import numpy as np

    try:
        with path.open("rb") as file:
            head = file.readline(_MOST_HEAD_NBYTES)
            content = file.read(_MOST_NBYTES)
            is_longer = bool(file.read(1))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RecorderError(f"{path}: {error.strerror}") from None
    if not head.endswith(b"\n"):
        raise RecorderError(f"{path}, offset {len(head)}: it ends in its first line, or that has no end")
    _, described = _HEAD.parse(head.decode(errors="replace"), str(path))
    source, name = described.get("source"), described.get("name")
    if not isinstance(source, str) or not isinstance(name, str):
        raise RecorderError(f'{path}, line 1: "source" and "name" must be texts, not {source!r:.80} and {name!r:.80}')
    layout = np.dtype(_fields(described.get("fields"), path))
    if is_longer:
        problems.append(f"{path}, offset {len(head) + _MOST_NBYTES}: longer than {_MOST_NBYTES} bytes of rows")
    whole = len(content) // layout.itemsize * layout.itemsize
    if whole < len(content):
        problems.append(f"{path}, offset {len(head) + whole}: it ends in the middle of a row")
    rows = np.frombuffer(content[:whole], layout)
    return source, name, rows[np.argsort(rows["time_ns"], kind="stable")]


def _fields(found: object, path: Path) -> list[tuple[str, str]]:
    wrong = RecorderError(
        f'{path}, line 1: "fields" must be a list of 1 to {_MOST_FIELDS} pairs, each a name of its own and a type; '
        f"the first is {list(_TIME)}, the others have type {_STATE[1]} or {_NUMBER}"
    )
    if not isinstance(found, list) or not 1 <= len(found) <= _MOST_FIELDS:
        raise wrong
    fields = []
    for each in found:
        if not isinstance(each, list) or len(each) != 2 or not all(isinstance(part, str) and part for part in each):
            raise wrong
        fields.append((each[0], each[1]))
    is_typed = fields[0] == _TIME and all(code in (_STATE[1], _NUMBER) for _, code in fields[1:])
    if not is_typed or len({name for name, _ in fields}) != len(fields):
        raise wrong
    return fields
