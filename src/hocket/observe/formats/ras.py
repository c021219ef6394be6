"""Reports of NCCL's RAS (``ncclras -f json``): which ranks of each communicator answer, and how far they are.

Format: src/ras/client_support.cc of NCCL 2.28 and later. A report has no operations, only their counts by rank: a rank
whose count is less than that of the others is the one they wait for.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.errors import RecorderError
from hocket.observe.formats.imported import operation_of
from hocket.observe.formats.reading import ReadObject, parse_json, pieces_of

if TYPE_CHECKING:
    from hocket.observe.formats.imported import ImportedTables

_NO_COMMA = re.compile(rb'("nvml_dev": -?[0-9]+)(\s+"status":)')
"""NCCL 2.28 writes no comma there for ranks that are missing, which is when reports are read."""
_FLAGS = (
    ("abort_flag", "aborted"), ("destroy_flag", "destroyed"), ("finalize_called", "finalizing"),
    ("considered_dead", "dead"), ("unresponsive", "does not answer"),
)  # fmt: skip


def read_ras(path: Path, tables: ImportedTables) -> None:
    """Add the members of all communicators and their counts of collectives.

    Args:
        path: of a report.
        tables: to add to.

    Raises:
        RecorderError: it is no such report; names what is wrong.
    """
    text = _NO_COMMA.sub(rb"\1,\2", b"".join(pieces_of(path)))
    report = ReadObject(parse_json(text, str(path)), str(path))
    version = report.text("nccl_version")
    try:
        datetime.fromisoformat(report.text("timestamp"))
    except ValueError:
        raise RecorderError(f'{path}: "timestamp" should be a date and time') from None
    num_members = 0
    for communicator in report.children("communicators"):
        ident, size = communicator.text("hash"), communicator.integer("size")
        comm = tables.comm((ident, communicator.text("secondary_hash", "")), ident, size)
        for key in ("ranks", "missing_ranks"):
            for member in communicator.children(key):
                _add(tables, member, comm, size, is_missing=key == "missing_ranks")
                num_members += 1
    tables.add("sources", file=str(path), format="NCCL RAS", version=version, num_records=num_members,
               num_left_out=0)  # fmt: skip


def _add(tables: ImportedTables, member: ReadObject, comm: int, size: int, *, is_missing: bool) -> None:
    host, pid, rank = member.text("host", ""), member.integer("pid", -1), member.integer("rank")
    gpu = member.integer("cuda_dev", -1)
    key = (host, pid, gpu) if pid >= 0 else ("unknown", comm, rank)
    process = tables.process(key, rank=rank, size=size, pid=pid, host=host)
    status = member.child("status")
    states = [text for flag, text in _FLAGS if status.boolean(flag, False)]
    if not states and is_missing:
        states = ["missing"]
    elif not states:
        states = ["running" if status.integer("init_state") == 0 else "starting"]
    tables.add("members", process=process, comm=comm, comm_rank=rank, state=", ".join(states),
               error=status.integer("async_error", 0))  # fmt: skip
    counts = member.child("collective_counts")
    for name in counts.content:
        count = counts.integer(name)
        tables.add("collective_counts", process=process, comm=comm, op=operation_of(str(name)), count=count)
