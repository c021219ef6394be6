"""Records of NCCL's Inspector, one JSON object a line: written of a run, and read.

Format: version 4.2 of plugins/profiler/inspector in NCCL 2.30 (inspector_json.cc); 4.0 and 4.1 have less. Each process
has a file. What is written has the times of the CPU, without the operations that NCCL does not have and those that
never completed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.errors import RecorderError
from hocket.observe.analysis.breakdown import bus_factor, whole_nbytes
from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.operations import operations_of
from hocket.observe.formats.imported import operation_of
from hocket.observe.formats.reading import ReadObject, lines_of, parse_json
from hocket.whole_file import write_text

if TYPE_CHECKING:
    import numpy as np

    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.formats.imported import ImportedTables
    from hocket.observe.saved import ObservedRun

ENDINGS = (".inspector",)
NAMES_IN_NCCL = {
    "all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "broadcast": "Broadcast",
    "reduce": "Reduce", "all_to_all": "AlltoAll", "gather": "Gather", "scatter": "Scatter", "send": "Send",
    "recv": "Recv",
}  # fmt: skip
_VERSION = "v4.2"
_READ_VERSION = re.compile(r"v4\.\d{1,3}")
"""Minor versions add fields."""
_OF_ONE_BLOCK = ("all_gather", "reduce_scatter")
"""Their messages count as one block, and their bandwidth as that of all blocks."""
_LESS_THAN_CLOCK_S = 1e-9


def write_inspector_records(run: ObservedRun, folder: Path) -> None:
    """Write one file for each process that has such operations.

    Args:
        run: from `open_run`.
        folder: made if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    operations = operations_of(run)
    for place, process in enumerate(run.processes):
        if text := "".join(json.dumps(each) + "\n" for each in _records(run, operations, place)):
            host = re.sub(r"[^A-Za-z0-9_.-]", "_", process.host)
            write_text(folder / f"{host}-pid{process.snapshot.owner.pid}-{place}.jsonl", text)


def _records(run: ObservedRun, operations: RunOperations, place: int) -> Iterator[dict[str, Any]]:
    import numpy as np

    rows = operations.rows
    of_program = numbers_of_program(operations.communicators)
    is_wanted = (rows["process"] == place) & np.isin(rows["comm"], of_program) & ~np.isnan(rows["end"])
    for row in rows[is_wanted]:
        op, communicator = operations.kind_names[row["kind"]], operations.communicators[row["comm"]]
        if op in NAMES_IN_NCCL:
            hosts = {run.processes[each].host for each in communicator.processes.values()}
            yield {
                "header": {
                    "id": f"{int(row['comm']):#x}", "comm_name": communicator.label, "rank": int(row["rank"]),
                    "n_ranks": communicator.size, "nnodes": len(hosts),
                },
                "metadata": {
                    "inspector_output_format_version": _VERSION, "git_rev": "", "rec_mechanism": "hocket",
                    "dump_timestamp_us": round((run.description.began_s + float(row["end"])) * 1e6),
                    "hostname": run.processes[place].host, "pid": run.processes[place].snapshot.owner.pid,
                },
                **_performance(operations, row, op, communicator.size),
            }  # fmt: skip


def _performance(operations: RunOperations, row: np.void, op: str, num_ranks: int) -> dict[str, dict[str, Any]]:
    seconds = max(float(row["end"] - row["begin"]), _LESS_THAN_CLOCK_S)
    whole = whole_nbytes(op, int(row["nbytes"]), num_ranks, bool(row["is_foreign"]))
    is_message = op in ("send", "recv")
    name = "p2p" if is_message else "coll"
    library, algorithm = (operations.names[row[field]] for field in ("library", "algorithm"))
    carried = (
        {"p2p_peer": int(row["peer"])} if is_message else {"coll_algo": algorithm or library, "coll_proto": library}
    )
    return {
        f"{name}_perf": {
            name: NAMES_IN_NCCL[op],
            **carried,
            f"{name}_sn": int(row["number"]),
            f"{name}_msg_size_bytes": whole // num_ranks if op in _OF_ONE_BLOCK else whole,
            f"{name}_exec_time_us": round(seconds * 1e6),
            f"{name}_timing_source": "collective_cpu",
            f"{name}_algobw_gbs": whole / seconds / 1e9,
            f"{name}_busbw_gbs": whole / seconds / 1e9 * (bus_factor(op, num_ranks) or 0.0),
        }
    }


def read_inspector(path: Path, tables: ImportedTables) -> None:
    """Add the operations of a file.

    Without the traces of its verbose mode, the Inspector does not say when an operation began: then only its duration
    is known, and when it was written down at the latest ("seen_s").

    Args:
        path: of one process.
        tables: to add to.

    Raises:
        RecorderError: a line is no such record; names it.
    """
    version, num_records, num_left_out, is_partial = "", 0, 0, False
    for number, line, is_whole in lines_of(path):
        try:
            content = parse_json(line, f"{path}, line {number}")
        except RecorderError:
            if is_whole or not num_records:
                raise
            is_partial = True  # its writer was killed while it wrote this line
            break
        record = ReadObject(content, f"{path}, line {number}")
        metadata = record.child("metadata")
        version = metadata.text("inspector_output_format_version")
        if not _READ_VERSION.fullmatch(version):
            raise RecorderError(f"{record.place}: it has version {version!r:.20}; this hocket reads v4.0 to {_VERSION}")
        kind = next((each for each in ("coll", "p2p") if f"{each}_perf" in record), None)
        if kind is None:  # counts of what was dropped, and kinds of later versions
            num_left_out += 1
            is_partial |= any(
                "drop" in str(name) and bool(count) for name, count in record.child("dump_stats").content.items()
            )
            continue
        _add(tables, record, kind)
        num_records += 1
    if not version:
        raise RecorderError(f"{path}: it is empty")
    tables.add("sources", file=str(path), format="NCCL Inspector", version=version, num_records=num_records,
               num_left_out=num_left_out, is_partial=is_partial)  # fmt: skip


def _add(tables: ImportedTables, record: ReadObject, kind: str) -> None:
    header, metadata, performance = (record.child(key) for key in ("header", "metadata", f"{kind}_perf"))
    host, pid, size = metadata.text("hostname"), metadata.integer("pid"), header.integer("n_ranks")
    rank, ident = header.integer("rank"), header.text("id")
    if not 0 <= rank < size:
        raise RecorderError(f'{header.place}: "rank" should be from 0 to n_ranks - 1, {size - 1}, not {rank}')
    protocol = performance.text(f"{kind}_proto", "")
    began_ns, ended_ns = _times(performance.child("event_trace_ts"), kind)
    tables.add(
        "operations",
        process=tables.process((host, pid), rank=rank, size=size, pid=pid, host=host),
        comm=tables.comm((ident, size), header.text("comm_name", ident), size),
        number=performance.integer(f"{kind}_sn"),
        op=operation_of(performance.text(kind)),
        peer=performance.integer("p2p_peer", -1),
        nbytes=performance.integer(f"{kind}_msg_size_bytes"),
        began_s=began_ns,
        ended_s=ended_ns,
        seconds=performance.number(f"{kind}_exec_time_us") * 1e-6,
        state="completed",
        library="nccl",
        algorithm=" ".join(each for each in (performance.text(f"{kind}_algo", ""), protocol) if each),
        weight=1,
        seen_s=metadata.integer("dump_timestamp_us") * 1000,
    )


def _times(trace: ReadObject, kind: str) -> tuple[int | None, int | None]:
    """Of the kernels, in ns: the operation's own events are those of its launch."""
    kernels = [
        (each.integer("kernel_start_ts"), each.integer("kernel_stop_ts")) for each in trace.children("kernel_events")
    ]
    kernels = [(begin, end) for begin, end in kernels if 0 < begin <= end]
    if kernels:
        return min(begin for begin, _ in kernels) * 1000, max(end for _, end in kernels) * 1000
    launched_us = trace.integer(f"{kind}_start_ts", 0)
    return (launched_us * 1000 if launched_us > 0 else None), None
