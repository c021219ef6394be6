"""Operations of a run as records of NCCL's Inspector, one JSON object a line, for its exporter and readers.

Format: version 4.2 of plugins/profiler/inspector in NCCL 2.30 (inspector_json.cc). Each process has a file; times are
those of the CPU. Operations that NCCL does not have are left out, and those that never completed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.observe.analysis.breakdown import bus_factor, whole_nbytes
from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.operations import operations_of
from hocket.whole_file import write_text

if TYPE_CHECKING:
    import numpy as np

    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.saved import ObservedRun

ENDINGS = (".inspector",)
NAMES_IN_NCCL = {
    "all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "broadcast": "Broadcast",
    "reduce": "Reduce", "all_to_all": "AlltoAll", "gather": "Gather", "scatter": "Scatter", "send": "Send",
    "recv": "Recv",
}  # fmt: skip
_VERSION = "v4.2"


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
    seconds = max(float(row["end"] - row["begin"]), 1e-9)
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
            f"{name}_msg_size_bytes": whole,
            f"{name}_exec_time_us": round(seconds * 1e6),
            f"{name}_timing_source": "collective_cpu",
            f"{name}_algobw_gbs": whole / seconds / 1e9,
            f"{name}_busbw_gbs": whole / seconds / 1e9 * (bus_factor(op, num_ranks) or 0.0),
        }
    }
