"""The file that a rank leaves behind when a communicator failed under it."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hocket.trace.record import Record
from hocket.whole_file import write_whole

_MOST_RECORDS = 512


def write_failure_record(
    folder: Path, *, rank: int, size: int, communicator: str, error: BaseException, records: Sequence[Record]
) -> Path:
    """Write ``rank-N.json`` with the error and the last operations; return its path.

    Args:
        folder: made if it is not there.
        rank: of the world, names the file.
        size: of the world.
        communicator: label of the one that failed.
        error: what is about to be raised.
        records: operations of the communicator, oldest first; the last 512 are kept.

    Raises:
        OSError: the file could not be written.
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
    write_whole(path, lambda part: part.write_text(text))
    return path
