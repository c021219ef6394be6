"""Timelines in the form of torch's profiler on a GPU, for HolisticTraceAnalysis and others that read such traces.

Each rank has a file ``rank-N.json``. Operations are kernels of NCCL on one stream, regions of the program are kernels
of computation on another one: so the analyser's overlap of computation and communication is that of `overlaps`. Where
operations or regions of a rank overlap, the kernel is their union, as on a stream.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.observe.analysis.operations import operations_of
from hocket.observe.analysis.overlap import LayerTimes
from hocket.observe.jobs import ranks_of_largest_job
from hocket.whole_file import write_text

if TYPE_CHECKING:
    from hocket.observe.saved import ObservedRun

ENDINGS = (".kineto",)
_KERNELS = {"regions": (7, "region"), "communication": (20, "ncclDevKernel_operation")}
"""Stream and name of the kernels of each layer; the analyser knows communication by the begin of the name."""
_US = 1e6


def write_kineto(run: ObservedRun, folder: Path) -> None:
    """Write one trace for each rank of the job with most ranks.

    Args:
        run: from `open_run`.
        folder: made if it does not exist; should hold nothing else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layers = LayerTimes(run, operations_of(run), None)
    for rank, place in ranks_of_largest_job(run.processes).items():
        world_size = run.processes[place].snapshot.owner.world_size
        events: list[dict[str, Any]] = []
        for layer, (stream, name) in _KERNELS.items():
            times = layers.of(place, layer)
            for begin, end in zip(times.begins.tolist(), times.ends.tolist(), strict=True):
                events.append(
                    {
                        "ph": "X",
                        "cat": "kernel",
                        "name": name,
                        "pid": 0,
                        "tid": stream,
                        "ts": begin * _US,
                        "dur": (end - begin) * _US,
                        "args": {"stream": stream, "device": 0, "correlation": len(events) + 1},
                    }
                )
        content = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "hocket", "rank": rank, "world_size": world_size},
            "traceEvents": sorted(events, key=lambda event: float(event["ts"])),
        }
        write_text(folder / f"rank-{rank}.json", json.dumps(content))
