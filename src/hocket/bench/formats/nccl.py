"""The JSON format of nccl-tests (version 2, `-J` with `-I 1`), which its tools/analyze_perf_json.py reads.

Results of the same point in place and out of place (`--place in,out`) share one entry. Results of the natural form of
an operation are under "out_of_place", which the tool reads first.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import fmean, pstdev
from typing import Any

from hocket.bench.families.collectives import itemsize_of
from hocket.bench.layout import ResultLayout
from hocket.bench.point import Point
from hocket.bench.registry import find_benchmark
from hocket.bench.result import Result
from hocket.bench.run import Run

_VERSION = 2
_TIME = "%Y-%m-%d %H:%M:%S"


def write(run: Run, layout: ResultLayout) -> str:
    """Return one JSON object; it has the times of single calls by process if they were measured."""
    sizes = [each.total_nbytes for each in run.results]
    num_ranks = run.results[0].num_ranks
    devices = [
        {"rank": rank, "group": 0, "pid": 0, "hostname": platform.node(), "device": rank, "device_hex": "",
         "device_info": "CPU"}
        for rank in range(num_ranks)
    ]  # fmt: skip
    config = {
        "nthreads": 1,
        "ngpus": 0,
        "minimum_bytes": min(sizes),
        "maximum_bytes": max(sizes),
        "step_factor": 2,
        "warmup_iters": 1,
        "iterations": max(each.iterations for each in run.results),
        "aggregated_iterations": 1,
        "validation": 1,
        "graph": 0,
        "blocking_collectives": "true",
        "per_iter_timing": "true",
        "parallel_init": "false",
        "devices": devices,
    }
    bandwidths = [each.busbw for each in run.results]
    began, ended = (time.strftime(_TIME, time.localtime(each)) for each in (run.began_s, run.ended_s))
    return json.dumps(
        {
            "version": _VERSION,
            "start_time": began,
            "args": sys.argv,
            "env": [],
            "nccl_version": 0,
            "config": config,
            "results": [_result(each) for each in _group_places(run)],
            "out_of_bounds": {"count": 0, "okay": "true"},
            "average_bus_bandwidth": {"bandwidth": fmean(bandwidths), "okay": "unchecked"},
            "errors": [],
            "end_time": ended,
        }
    )


def _group_places(run: Run) -> Collection[Sequence[Result]]:
    """Return groups of results that differ only in their place."""
    found: dict[Point, list[Result]] = {}
    for each in run.results:
        found.setdefault(replace(each.point, place=""), []).append(each)
    return found.values()


def _result(places: Sequence[Result]) -> dict[str, Any]:
    first = places[0]
    point = replace(first.point, place="")
    found: dict[str, Any] = {
        "size": first.total_nbytes,
        "count": first.total_nbytes // itemsize_of(point.dtype),
        "type": point.dtype,
        "redop": point.reduction if find_benchmark(point.benchmark).reduces else "none",
        "root": "-1",
        "actual_iterations": first.num_timed,
        "experiment_name": f"{point.benchmark} {point.way}",
    }
    for each in places:
        name = "in_place" if each.point.place == "in" else "out_of_place"
        found[name] = {"time": each.time_us, "alg_bw": each.algbw, "bus_bw": each.busbw, "nwrong": 0.0}
        found[f"{name}_per_iter"] = _per_iteration(each)
    return found


def _per_iteration(result: Result) -> dict[str, Any]:
    factor = 1e6 / result.operations
    by_process = [[factor * each for each in times] for times in zip(*result.calls, strict=True)]
    times = [max(each) for each in zip(*by_process, strict=True)] or [factor * each for each in result.samples]
    mean, spread = fmean(times), pstdev(times)
    return {
        "min_us": min(times),
        "max_us": max(times),
        "avg_us": mean,
        **{f"p{percent}_us": result.percentile(percent) for percent in (50, 95, 99)},
        "stdev_us": spread,
        "cv_pct": 100 * spread / mean if mean else 0.0,
        "times_us": times,
        **({"per_process_max_times_us": by_process} if by_process else {}),
    }
