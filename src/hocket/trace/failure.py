"""The file that a rank writes when one of its communicators fails."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hocket.trace.record import Record
from hocket.whole_file import write_text

_MOST_RECORDS = 512


def write_failure_record(
    folder: Path, *, rank: int, size: int, communicator: str, error: BaseException, records: Sequence[Record]
) -> Path:
    """Write ``rank-N.json`` with the error and the last operations; return its path.

    Args:
        folder: for the file; created if it does not exist.
        rank: rank of this process in the world; the file name has it.
        size: number of ranks of the world.
        communicator: label of the communicator that failed.
        error: the exception that will be raised.
        records: operations of the communicator, oldest first; the last 512 are written.

    Raises:
        OSError: the file could not be written.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> error = hk.CommTimeout("timed out after 1 s", ranks=(1,))
        >>> path = hk.trace.write_failure_record(
        ...     Path("records"), rank=0, size=2, communicator="world", error=error, records=[]
        ... )
        >>> path.name, json.loads(path.read_text())["error"]["ranks"]
        ('rank-0.json', [1])
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "format": "hocket-failure-1",
        "rank": rank,
        "size": size,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "time": time.time(),
        "communicator": communicator,
        "error": {
            "type": type(error).__name__,
            "message": str(error),
            "ranks": list(getattr(error, "ranks", ())),
        },
        "records": [asdict(record) for record in records[-_MOST_RECORDS:]],
    }
    path = folder / f"rank-{rank}.json"
    text = json.dumps(content, indent=1) + "\n"
    write_text(path, text)
    return path
