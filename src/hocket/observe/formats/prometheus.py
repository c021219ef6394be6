"""Totals of a run as metrics of Prometheus, in its text format, for the textfile collector of node_exporter.

``.inspector.prom`` has the metrics of NCCL's Inspector (plugins/profiler/inspector in NCCL 2.30) for its dashboards.
Format: prometheus.io/docs/instrumenting/exposition_formats.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.observe.analysis.breakdown import bus_factor, quantile_of, whole_nbytes
from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.connections import connections_of
from hocket.observe.analysis.findings import findings
from hocket.observe.analysis.operations import kind_names
from hocket.observe.analysis.totals import COMMUNICATION, totals_of
from hocket.observe.formats.inspector import NAMES_IN_NCCL
from hocket.whole_file import write_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.totals import RunTotals
    from hocket.observe.saved import ObservedRun, SavedProcess

INSPECTOR_ENDINGS = (".inspector.prom",)
ENDINGS = (".prom",)
_QUANTILES = (0.5, 0.99)
_KEYS = ("process", "comm", "kind", "library", "algorithm")
_PROCESS_COUNTERS = {
    "cpu_s": ("hocket_process_cpu_seconds_total", "Seconds of CPU of a process"),
    "read_nbytes": ("hocket_process_read_bytes_total", "Bytes of all read calls of a process"),
    "written_nbytes": ("hocket_process_written_bytes_total", "Bytes of all write calls of a process"),
}
_UNITS = ("B", "KB", "MB", "GB", "TB")

_Samples = Iterable[tuple[str, Mapping[str, str], float]]


def write_prometheus(run: ObservedRun, path: Path) -> None:
    """Write the totals of a run as metrics; the file is there as a whole or not at all.

    Args:
        run: from `open_run`.
        path: of the file.
    """
    write_text(path, "".join(_lines(run)))


def write_inspector_metrics(run: ObservedRun, path: Path) -> None:
    """Write the collectives and messages of a run as metrics of NCCL's Inspector; whole or not at all.

    Args:
        run: from `open_run`.
        path: of the file.
    """
    write_text(path, "".join(_inspector_lines(run)))


def _lines(run: ObservedRun) -> Iterator[str]:
    totals = totals_of(run)
    groups = [*_groups(run, totals, _KEYS)]
    yield from _family(
        "hocket_operation_seconds", "summary", "Time of operations from begin to end",
        (sample for labels, rows in groups for sample in _summary("hocket_operation_seconds", labels, rows)),
    )  # fmt: skip
    for name, text, field in (
        ("hocket_operation_bytes_total", "Bytes of operations", "nbytes"),
        ("hocket_operation_failures_total", "Operations that failed", "failed"),
    ):
        yield from _family(name, "counter", text, ((name, labels, float(rows[field].sum())) for labels, rows in groups))
    for column, (name, text) in _PROCESS_COUNTERS.items():
        samples = (
            (name, _of_process(run, place), _last(process, column)) for place, process in enumerate(run.processes)
        )
        yield from _family(name, "counter", text, (each for each in samples if not math.isnan(each[2])))
    name = "hocket_recorder_lost_events_total"
    lost = ((name, _of_process(run, place), float(sum(each.lost.values()))) for place, each in enumerate(run.processes))
    yield from _family(name, "counter", "Events that were overwritten before they could be saved", lost)
    sent: dict[tuple[int, str, str], float] = defaultdict(float)
    for each in connections_of(run):
        if each.process is not None:
            peer = each.remote if each.peer is None else _rank(run.processes[each.peer])
            sent[each.process, peer, each.device] += each.sent_nbytes
    name = "hocket_tcp_sent_bytes_total"
    yield from _family(
        name, "counter", "Bytes that a process sent over TCP",
        ((name, {**_of_process(run, place), "peer": peer, "device": device}, value)
         for (place, peer, device), value in sent.items()),
    )  # fmt: skip
    costs: dict[tuple[str, str, str], float] = defaultdict(float)
    for found in findings(run):
        rank = "" if found.process is None else _rank(run.processes[found.process])
        costs[found.kind, found.layer, rank] += found.seconds
    name = "hocket_finding_seconds"
    labelled = ({"kind": kind, "layer": layer, "rank": rank} for kind, layer, rank in costs)
    yield from _family(
        name, "gauge", "What the findings cost", ((name, *each) for each in zip(labelled, costs.values(), strict=True))
    )


def _inspector_lines(run: ObservedRun) -> Iterator[str]:
    # What differs only in what these metrics do not have, such as the library of a message, is summed up.
    sums: dict[tuple[bool, tuple[tuple[str, str], ...]], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    totals = totals_of(run)
    for labels, rows in _groups(run, totals, (*_KEYS, "size_class")):
        op, row = kind_names()[rows["kind"][0]], rows[0]
        if op not in NAMES_IN_NCCL:
            continue
        communicator = totals.communicators[row["comm"]]
        count, seconds, nbytes = (float(rows[field].sum()) for field in ("count", "seconds", "nbytes"))
        whole = whole_nbytes(op, round(nbytes), communicator.size, bool(row["is_foreign"]))
        hosts = len({run.processes[place].host for place in communicator.processes.values()})
        is_message = op in ("send", "recv")
        shown = {
            "version": "hocket", "slurm_job_id": _slurm_job(run.processes[row["process"]]), "node": labels["host"],
            "gpu": labels["rank"], "comm_name": communicator.label, "n_nodes": str(hosts),
            "nranks": str(communicator.size), "p2p_operation" if is_message else "collective": NAMES_IN_NCCL[op],
            "message_size": _bucket(int(row["size_class"])),
        }  # fmt: skip
        if not is_message:
            shown["algo_proto"] = labels["algorithm"] or labels["library"]
        own = sums[is_message, tuple(shown.items())]
        for place, value in enumerate((count, seconds, whole * (bus_factor(op, communicator.size) or 0.0))):
            own[place] += value
    for is_message, bandwidth, duration in (
        (True, "nccl_p2p_bus_bandwidth_gbs", "nccl_p2p_exec_time_microseconds"),
        (False, "nccl_bus_bandwidth_gbs", "nccl_collective_exec_time_microseconds"),
    ):
        found = [(dict(key), values) for (is_one, key), values in sums.items() if is_one == is_message and values[0]]
        yield from _family(
            bandwidth, "gauge", "Bus bandwidth in GB/s",
            ((bandwidth, key, moved / seconds / 1e9 if seconds else 0.0) for key, (_, seconds, moved) in found),
        )  # fmt: skip
        yield from _family(
            duration, "gauge", "Execution time in microseconds",
            ((duration, key, seconds / count * 1e6) for key, (count, seconds, _) in found),
        )  # fmt: skip


def _groups(
    run: ObservedRun, totals: RunTotals, keys: tuple[str, ...]
) -> Iterator[tuple[dict[str, str], NDArray[np.void]]]:
    """The totals of the program's operations by these columns, with their labels."""
    import numpy as np

    rows = totals.rows
    is_wanted = (rows["layer"] == COMMUNICATION) & np.isin(rows["comm"], numbers_of_program(totals.communicators))
    rows = rows[is_wanted]
    if not len(rows):
        return
    columns = np.stack([rows[key].astype(np.int64) for key in keys], axis=1)
    unique, group = np.unique(columns, axis=0, return_inverse=True)
    for place in range(len(unique)):
        own = rows[group.reshape(-1) == place]
        first = own[0]
        yield (
            {
                **_of_process(run, int(first["process"])),
                "communicator": totals.communicators[first["comm"]].label,
                "comm": str(first["comm"]),
                "op": kind_names()[first["kind"]],
                "library": totals.names[first["library"]],
                "algorithm": totals.names[first["algorithm"]],
            },
            own,
        )


def _summary(name: str, labels: Mapping[str, str], rows: NDArray[np.void]) -> _Samples:
    for share in _QUANTILES if rows["bins"].sum() else ():
        yield name, {**labels, "quantile": f"{share:g}"}, quantile_of(rows, share)
    yield f"{name}_sum", labels, float(rows["seconds"].sum())
    yield f"{name}_count", labels, float(rows["count"].sum())


def _family(name: str, kind: str, text: str, samples: _Samples) -> Iterator[str]:
    lines = [f"{sample}{{{_labels(labels)}}} {value:.17g}\n" for sample, labels, value in samples]
    if lines:
        yield f"# HELP {name} {text}.\n# TYPE {name} {kind}\n"
        yield from lines


def _labels(labels: Mapping[str, str]) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    return ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())


def _of_process(run: ObservedRun, place: int) -> dict[str, str]:
    """The labels of a process; one that goes on as another program has the same number, but another place."""
    process = run.processes[place]
    owner = process.snapshot.owner
    return {"host": process.host, "rank": _rank(process), "pid": str(owner.pid), "process": str(place)}


def _rank(process: SavedProcess) -> str:
    rank = process.snapshot.owner.rank
    return "" if rank is None else str(rank)


def _last(process: SavedProcess, column: str) -> float:
    import numpy as np

    known = process.series[column][~np.isnan(process.series[column])]
    return float(known[-1]) if len(known) else math.nan


def _slurm_job(process: SavedProcess) -> str:
    return process.snapshot.variables.get("SLURM_JOB_ID", "unknown")


def _bucket(size_class: int) -> str:
    """The range of a class of sizes, such as "4-8KB"."""
    power = max(size_class - 1, 0)
    unit = min(power // 10, len(_UNITS) - 1)
    least = 1 << (power - 10 * unit)
    return f"{least if size_class else 0}-{2 * least}{_UNITS[unit]}"
