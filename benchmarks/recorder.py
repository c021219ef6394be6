"""What recording costs: of events, of operations of hocket, and of DDP over gloo that is recorded from outside.

"Without" is a communicator whose operations are not recorded at all: no ring, no totals. Both kinds of communicators
alternate in the same processes, which are started several times. Steps of DDP over gloo run in two jobs, one of them
with hocket's hooks, in turns; both are started several times.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from claim import Options, PartResults, measure_jobs, run_claim
from libraries import job
from ranks import serve_all
from starts import STARTS, measure_starts

import hocket as hk
from hocket import _native, observe
from hocket.comm.policy import format_nbytes
from hocket.measure import Comparison, Contender, Measurement, computed, pin, serve
from hocket.measure.loops import Loop, looped
from hocket.observe.run import memory_folder, recording_environment

KIB, MIB = 1 << 10, 1 << 20
SIZES = (8, 128 * KIB, MIB, 4 * MIB)
WITH, WITHOUT = "recorded", "not recorded"
MOST_SHARE = 0.02  # of the time of a large operation, and of a step of DDP
MOST_NATIVE_S, MOST_PYTHON_S = 60e-9, 300e-9
EVENTS_PER_CALL = 100
NATIVE, TORCH, SPAN = "native event, begun and ended", "torch record_function, profiled", "OpenTelemetry span"


def recorded_by_torch(iterations: int) -> None:
    """Record regions while torch's profiler is on; its start and end are part of the time."""
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]):
        for _ in range(iterations):
            with record_function("region"):
                pass


def recorded_by_opentelemetry() -> Loop | None:
    """Return a loop of spans that a batch processor takes; None: opentelemetry-sdk is not installed."""
    if find_spec("opentelemetry") is None:
        return None
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Discarding(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Discarding()))
    tracer = provider.get_tracer("hocket")

    def span() -> None:
        with tracer.start_as_current_span("region") as current:
            current.set_attribute("step", 7)

    return looped(span)


def region() -> None:
    with observe.region("region", 7):
        pass


def serve_events() -> None:
    """Serve the one rank that records events; an iteration of the native loop has EVENTS_PER_CALL of them."""
    loops: dict[str, Loop | None] = {
        NATIVE: looped(partial(_native.time_events, EVENTS_PER_CALL)),
        "observe.region": looped(region),
        "observe.mark": looped(partial(observe.mark, "mark")),
        TORCH: recorded_by_torch,
        SPAN: recorded_by_opentelemetry(),
    }
    pin(0)
    serve([Contender("event", name, loop) for name, loop in loops.items() if loop], 0, lambda: None)


def serve_rank(part: str) -> None:
    {"operations": serve_operations, "events": serve_events, "gloo": serve_gloo, "ddp": serve_ddp}[part]()


def serve_operations() -> None:
    comm = hk.init(backends=["shm"], progress="caller")
    pin(comm.rank)
    communicators = {}
    for name in (WITH, WITHOUT):
        _native.set_records_operations(name == WITH)
        communicators[name] = comm.dup()
    _native.set_records_operations(True)
    contenders = []
    for nbytes in SIZES:
        x = np.zeros(nbytes // 4, np.float32)  # sums of zeros stay zeros
        for name, communicator in communicators.items():
            contenders.append(Contender(format_nbytes(nbytes), name, looped(partial(communicator.all_reduce, x))))
    serve_all(comm, contenders, backend="shm")


def serve_ddp() -> None:
    import torch
    import torch.distributed as dist
    from ddp_step import MODELS, step_loop
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    name = WITH if os.environ.get("HOCKET_OBSERVE") else WITHOUT
    contenders = []
    for case, (make, batch) in MODELS.items():
        torch.manual_seed(0)
        step = step_loop(DistributedDataParallel(make()), batch(), sync=True)
        step(3)  # DDP rebuilds its buckets after the first step
        contenders.append(Contender(case, name, step))
    pin(dist.get_rank())
    serve(contenders, dist.get_rank(), dist.barrier)
    dist.destroy_process_group()


def serve_gloo() -> None:
    """Serve a rank that is alone, so that nothing but its own work is in the times."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    name = WITH if os.environ.get("HOCKET_OBSERVE") else WITHOUT
    pin(0)
    serve([Contender("one rank, 4 B", name, looped(partial(dist.all_reduce, torch.zeros(1))))], 0, lambda: None)
    dist.destroy_process_group()


def of_events(options: Options) -> PartResults:
    """Judge the time of one event against the limits, and show others beside it."""
    measurement = measure_jobs([job("events", __file__, [], 1)], "events", options.settings)
    limits = {NATIVE: MOST_NATIVE_S, "observe.region": MOST_PYTHON_S, "observe.mark": MOST_PYTHON_S}
    found = []
    for name in measurement.names("event"):
        each_s = median(measurement.times("event", name)) / (EVENTS_PER_CALL if name == NATIVE else 1)
        limit_s = limits.get(name)
        found.append(
            computed("one event", name, each_s * 1e9, (limit_s or each_s) * 1e9, "ns", 1.0 if limit_s else None)
        )
    yield found, measurement


def of_operations(options: Options) -> PartResults:
    """Judge large operations by the share that recording adds; of small ones it is shown."""
    measurement = measure_starts([job("operations", __file__, [], 2)], options.starts, "operations, ", options.settings)
    yield (
        [
            Comparison(format_nbytes(nbytes), WITH, (WITHOUT,), 1 / (1 + MOST_SHARE) if nbytes >= 128 * KIB else None)
            for nbytes in SIZES
        ],
        measurement,
    )


def plain_and_hooked(part: str, num_ranks: int, words: str, options: Options) -> Measurement:
    """Measure the same ranks in two jobs, the second one recorded from outside, into memory as by `observe run`."""
    plain, hooked = (job(part, __file__, [], num_ranks) for _ in range(2))
    with TemporaryDirectory(dir=memory_folder()) as folder:
        variables = recording_environment({}, Path(folder), ["comm"])
        processes = tuple(replace(each, env={**each.env, **variables}) for each in hooked.processes)
        jobs = [plain, replace(hooked, name=f"recorded {part}", processes=processes)]
        return measure_starts(jobs, options.starts, f"{words}, ", options.settings)


def of_gloo(options: Options) -> PartResults:
    """Show what recording adds to an operation of gloo; the steps of DDP have a few of them."""
    measurement = plain_and_hooked("gloo", 1, "an operation of gloo", options)
    yield [Comparison(case, WITH, (WITHOUT,)) for case in measurement.cases], measurement


def of_ddp(options: Options) -> PartResults:
    """Judge steps over gloo, with and without the hooks."""
    measurement = plain_and_hooked("ddp", 2, "DDP steps over gloo", options)
    yield [Comparison(case, WITH, (WITHOUT,), 1 / (1 + MOST_SHARE)) for case in measurement.cases], measurement


if __name__ == "__main__":
    run_claim(
        "recording costs at most 60 ns an event, and 2 % of large operations and of steps of DDP over gloo",
        {"events": of_events, "operations": of_operations, "gloo": of_gloo, "ddp": of_ddp},
        STARTS,
    )
