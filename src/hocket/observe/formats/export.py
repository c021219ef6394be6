"""Which format a file has, by its ending."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.errors import InvalidArgument
from hocket.observe.formats import chrome
from hocket.whole_file import check_output

if TYPE_CHECKING:
    from hocket.observe.saved import ObservedRun

_WRITERS: dict[str, Callable[[ObservedRun, Path], None]] = {
    **dict.fromkeys(chrome.ENDINGS, chrome.write_chrome),
}


def export_run(run: ObservedRun, path: str | Path) -> None:
    """Write a recorded run as a file of another tool, chosen by the ending of its name.

    ``.json`` and ``.json.gz`` are a timeline for ui.perfetto.dev: regions, operations, transfers and I/O of all
    processes, arrows from sends to receives, CPU and memory.

    Args:
        run: from `open_run`.
        path: of the file.

    Raises:
        InvalidArgument: the ending is unknown, or nothing can be written there.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> from hocket import observe
        >>> _ = observe.record_run(["cat", "/etc/hostname"], "run-to-export")
        >>> observe.export_run(observe.open_run("run-to-export"), "cat.json")
        >>> events = json.loads(Path("cat.json").read_text())["traceEvents"]
        >>> {"open", "read", "close"} <= {event["name"] for event in events if event["ph"] == "X"}
        True
    """
    target = Path(path)
    write = writer_of(target)
    check_output(target)
    write(run, target)


def writer_of(path: Path) -> Callable[[ObservedRun, Path], None]:
    """Return the function that writes files with this ending.

    Raises:
        InvalidArgument: the ending is unknown; lists the known ones.
    """
    for ending, write in _WRITERS.items():
        if path.name.endswith(ending):
            return write
    raise InvalidArgument(f"{path} must end in one of {', '.join(_WRITERS)}")
