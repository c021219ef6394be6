"""Exported runs, as other tools read them: Perfetto, torchfrtrace, Prometheus, OpenTelemetry."""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from prometheus_client.parser import text_string_to_metric_families

from hocket.errors import InvalidArgument
from hocket.observe import (
    ObservedRun,
    SavedProcess,
    export_run,
    open_run,
    operations_of,
    overlaps,
    record_run,
    totals_of,
)
from hocket.observe.formats.export import EXPORT_FORMATS
from hocket.observe.jobs import ranks_of_jobs

from ..load import scaled
from ..naming import raises
from ..program import hocket
from .fabricated_run import MS, FakeRank, Op, fabricate

pytestmark = pytest.mark.timeout(120)
_ANALYSER = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
_PROGRAM = """
import numpy as np
import hocket as hk
from hocket import observe
with hk.init() as comm:
    x, y = np.ones(1000, np.float32), np.empty(1000, np.float32)
    for step in range(5):
        work = comm.all_reduce(x, "max", async_op=True)
        with observe.region('a "quoted" region', step=step):
            sum(range(10000))
        work.wait()
        peer = 1 - comm.rank
        receive = comm.irecv(y, peer)
        comm.send(x, peer)
        receive.wait()
    comm.broadcast(x, 1)
    comm.reduce_scatter(y[:500], x)
    open(__file__).read()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ObservedRun:
    folder = tmp_path_factory.mktemp("formats")
    (folder / "program.py").write_text(_PROGRAM)
    launch = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(folder / "program.py")]
    assert record_run(launch, folder / "run", interval_s=0.1).exit_code == 0
    return open_run(folder / "run")


def _num_events(run: ObservedRun) -> int:
    return sum(len(events) for process in run.processes for ring, events in process.events.items() if ring != "program")


def _chrome(run: ObservedRun, folder: Path) -> list[dict[str, Any]]:
    export_run(run, folder / "run.json")
    return list(json.loads((folder / "run.json").read_text())["traceEvents"])


def test_perfetto(run: ObservedRun, tmp_path: Path) -> None:
    for name in ("run.pftrace", "run.pftrace.gz"):
        export_run(run, tmp_path / name)
    content = (tmp_path / "run.pftrace").read_bytes()
    assert gzip.decompress((tmp_path / "run.pftrace.gz").read_bytes()) == content
    trace = Trace()
    trace.ParseFromString(content)
    tracks, slices, flows = {}, [], defaultdict(list)
    stacks: dict[int, list[Any]] = defaultdict(list)
    for packet in trace.packet:
        event = packet.track_event
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
            assert not stacks[event.track_uuid] or stacks[event.track_uuid][-1][0] <= packet.timestamp
            stacks[event.track_uuid].append((packet.timestamp, event))
            assert not event.terminating_flow_ids
            for flow in event.flow_ids:
                flows[flow].append((packet.timestamp, event.name))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            begin, begun = stacks[event.track_uuid].pop()
            assert packet.timestamp >= begin
            slices.append((begin, packet.timestamp - begin, begun.name))
            for flow in event.terminating_flow_ids:
                flows[flow].append((packet.timestamp, begun.name))
        assert not packet.HasField("track_event") or event.track_uuid in tracks
    assert not any(stacks.values())
    expected = [event for event in _chrome(run, tmp_path) if event["ph"] == "X"]
    assert len(slices) == len(expected)
    # Perfetto's times are whole nanoseconds, so two that began in the same one may be sorted another way.
    found = Counter(slices)
    for event in expected:
        begin, duration, name = event["ts"] * 1e3, event["dur"] * 1e3, event["name"]
        around = product(range(int(begin) - 2, int(begin) + 3), range(int(duration) - 2, int(duration) + 3), [name])
        like = [each for each in around if found[each]]
        assert like, f"no slice of {name} that began at {begin} and took {duration} ns"
        found[like[0]] -= 1
    # Perfetto's engine draws an arrow only to what comes after its begin.
    assert len(flows) == 10 and all([name for _, name in sorted(each)] == ["send", "recv"] for each in flows.values())
    named = [event for event in _chrome(run, tmp_path) if event["ph"] == "M" and event["name"] == "process_name"]
    processes = {track.process.process_name for track in tracks.values() if track.process.pid}
    assert processes == {event["args"]["name"] for event in named}


def test_spans_of_opentelemetry(run: ObservedRun, tmp_path: Path) -> None:
    export_run(run, tmp_path / "run.otlp.jsonl")
    spans, identifiers = [], set()
    for line in (tmp_path / "run.otlp.jsonl").read_text().splitlines():
        content = json.loads(line)
        for scope in content["resourceSpans"][0]["scopeSpans"]:
            for span in scope["spans"]:  # OTLP's JSON has these in hexadecimal digits, protobuf's JSON in base64
                for key in ("traceId", "spanId"):
                    span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
        parsed = ParseDict(content, TracesData())
        for scope in parsed.resource_spans[0].scope_spans:
            spans += scope.spans
            identifiers |= {span.span_id for span in scope.spans}
    expected = [event for event in _chrome(run, tmp_path) if event["ph"] == "X"]
    assert len(spans) == len(identifiers) == len(expected) and len({span.trace_id for span in spans}) == 1
    assert sorted(span.name for span in spans) == sorted(event["name"] for event in expected)
    began_ns = run.description.began_s * 1e9
    assert all(began_ns - 1e9 <= span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)


def test_metrics_of_prometheus(run: ObservedRun, tmp_path: Path) -> None:
    export_run(run, tmp_path / "run.prom")
    families = {each.name: each for each in text_string_to_metric_families((tmp_path / "run.prom").read_text())}
    counts = {
        (sample.labels["rank"], sample.labels["op"]): sample.value
        for sample in families["hocket_operation_seconds"].samples
        if sample.name.endswith("_count")
    }
    assert counts == {
        (rank, op): count
        for rank in "01"
        for op, count in (("all_reduce", 5), ("send", 5), ("recv", 5), ("broadcast", 1), ("reduce_scatter", 1))
    }
    nbytes = sum(sample.value for sample in families["hocket_operation_bytes"].samples)
    totals = totals_of(run)
    of_world = [number for number, each in enumerate(totals.communicators) if each.label == "world"]
    is_wanted = (totals.rows["layer"] == 0) & np.isin(totals.rows["comm"], of_world)
    assert nbytes == totals.rows["nbytes"][is_wanted].sum()
    assert all(sample.value >= 0 for family in families.values() for sample in family.samples)
    assert {"hocket_process_cpu_seconds", "hocket_recorder_lost_events"} <= families.keys()


def test_metrics_of_the_inspector(run: ObservedRun, tmp_path: Path) -> None:
    export_run(run, tmp_path / "run.inspector.prom")
    text = (tmp_path / "run.inspector.prom").read_text()
    families = {each.name: each.samples for each in text_string_to_metric_families(text)}
    assert families.keys() == {
        "nccl_bus_bandwidth_gbs", "nccl_collective_exec_time_microseconds", "nccl_p2p_bus_bandwidth_gbs",
        "nccl_p2p_exec_time_microseconds",
    }  # fmt: skip
    labels = {"version", "slurm_job_id", "node", "gpu", "comm_name", "n_nodes", "nranks", "message_size"}
    assert all(
        each.labels.keys() == labels | {"collective", "algo_proto"} for each in families["nccl_bus_bandwidth_gbs"]
    )
    assert all(each.labels.keys() == labels | {"p2p_operation"} for each in families["nccl_p2p_bus_bandwidth_gbs"])


def test_records_of_the_inspector(run: ObservedRun, tmp_path: Path) -> None:
    export_run(run, tmp_path / "run.inspector")
    files = sorted((tmp_path / "run.inspector").iterdir())
    records = [[json.loads(line) for line in path.read_text().splitlines()] for path in files]
    assert [len(each) for each in records] == [17, 17]
    for record in records[0]:
        (key,) = record.keys() - {"header", "metadata"}
        name, shown = key.removesuffix("_perf"), record[key]
        num_blocks = record["header"]["n_ranks"] if shown[name] == "ReduceScatter" else 1
        seconds = num_blocks * shown[f"{name}_msg_size_bytes"] / shown[f"{name}_algobw_gbs"] / 1e9
        assert shown[f"{name}_exec_time_us"] == pytest.approx(seconds * 1e6, abs=1)
        assert shown[name] in ("AllReduce", "Broadcast", "ReduceScatter", "Send", "Recv")


def test_flight_records_of_a_run_that_went_well(run: ObservedRun, tmp_path: Path) -> None:
    export_run(run, tmp_path / "run.flight")
    text = _analysed(tmp_path / "run.flight")
    assert "missing" not in text and "mismatch" not in text.lower(), text


def test_the_analyser_names_the_rank_that_is_missing(tmp_path: Path) -> None:
    def ops(rank: int) -> list[Op]:
        done = [Op("all_reduce", number, number * MS, number * MS + 10, nbytes=4000) for number in range(1, 6)]
        return done if rank == 2 else [*done, Op("all_reduce", 6, 6 * MS, None, nbytes=4000)]

    ranks = [
        FakeRank(rank, ops(rank), communicators={1: ("gloo group", "0-3", rank)}, ring="foreign") for rank in range(4)
    ]
    export_run(fabricate(ranks), tmp_path / "run.flight")
    text = _analysed(tmp_path / "run.flight")
    assert "missing ranks: {2}" in text and "sequence number: 6" in text


def _analysed(folder: Path) -> str:
    done = subprocess.run([*_ANALYSER, str(folder)], capture_output=True, text=True, timeout=scaled(60))
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_kernels_overlap_as_operations_and_regions_do(tmp_path: Path) -> None:
    ranks = [
        FakeRank(
            rank,
            [
                Op("all_reduce", 1, 10 * MS, 30 * MS, is_async=True),
                Op("all_reduce", 2, 20 * MS, 40 * MS, is_async=True),
            ],
            regions={"forward": [(15 * MS, (25 + rank) * MS)], "backward": [(24 * MS, 28 * MS)]},
        )
        for rank in range(2)
    ]
    run = fabricate(ranks)
    export_run(run, tmp_path / "run.kineto")
    for rank, found in enumerate(overlaps(run)):
        content = json.loads((tmp_path / "run.kineto" / f"rank-{rank}.json").read_text())
        assert content["distributedInfo"]["rank"] == rank
        times = {
            name: [
                (event["ts"], event["ts"] + event["dur"]) for event in content["traceEvents"] if name in event["name"]
            ]
            for name in ("nccl", "region")
        }
        both = sum(
            max(min(end, last) - max(begin, first), 0)
            for begin, end in times["nccl"]
            for first, last in times["region"]
        )
        assert (found.seconds, found.other_s, found.both_s) == pytest.approx((0.03, 0.013, 0.013), abs=1e-6)
        assert both == pytest.approx(found.both_s * 1e6, abs=1)


def test_overlaps_of_chosen_layers() -> None:
    rank = FakeRank(
        0, [Op("all_reduce", 1, 10 * MS, 30 * MS)], io=[(0, 12 * MS), (28 * MS, 40 * MS)],
        regions={"load": [(0, 5 * MS)], "step": [(5 * MS, 29 * MS)]},
    )  # fmt: skip
    run = fabricate([rank])
    (found,) = overlaps(run, "I/O", "communication")
    assert (found.seconds, found.both_s, found.share) == pytest.approx((0.024, 0.004, 4 / 24))
    (found,) = overlaps(run, region="step", operations=operations_of(run))
    assert (found.other_s, found.exposed_s) == pytest.approx((0.024, 0.001))
    with raises(InvalidArgument, names=("stop", "step")):
        overlaps(run, region="stop")
    with raises(InvalidArgument, names="regions"):
        overlaps(run, "regions", "regions")
    with raises(InvalidArgument, names=("net", "I/O")):
        overlaps(run, "net")


@pytest.mark.parametrize("ending", [each.endings[0] for each in EXPORT_FORMATS])
def test_a_run_of_nothing_in_every_format(tmp_path: Path, ending: str) -> None:
    assert record_run(["true"], tmp_path / "run").exit_code == 0
    export_run(open_run(tmp_path / "run"), tmp_path / f"out{ending}")
    assert (tmp_path / f"out{ending}").exists()


def test_what_cannot_be_written(run: ObservedRun, tmp_path: Path) -> None:
    with raises(InvalidArgument, names=("run.xyz", ".pftrace", ".flight", ".prom")):
        export_run(run, tmp_path / "run.xyz")
    (tmp_path / "full.flight").mkdir()
    (tmp_path / "full.flight" / "file").touch()
    with raises(InvalidArgument, names="full.flight"):
        export_run(run, tmp_path / "full.flight")
    with raises(InvalidArgument, names="nowhere"):
        export_run(run, tmp_path / "nowhere" / "run.prom")
    done = hocket("observe", "export", str(run.folder), str(tmp_path / "run.flight"), "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["nbytes"] > 0


def test_a_child_of_a_rank_does_not_take_its_place(tmp_path: Path) -> None:
    ranks = [FakeRank(rank, [Op("all_reduce", 1, MS, 2 * MS)], regions={"step": [(0, MS)]}) for rank in range(2)]
    child = FakeRank(1, io=[(MS, 2 * MS)], communicators={2: ("other", "", 9)}, start_ns=3 * MS)
    run = fabricate([*ranks, child], world_size=2)
    processes = (*run.processes[:2], without_communicators(run.processes[2]))
    run = replace(run, processes=processes)
    assert ranks_of_jobs(run.processes) == {(0, 0): 0, (0, 1): 1}
    export_run(run, tmp_path / "run.flight")
    assert "missing" not in _analysed(tmp_path / "run.flight")
    export_run(run, tmp_path / "run.kineto")
    kernels = [
        json.loads((tmp_path / "run.kineto" / f"rank-{rank}.json").read_text())["traceEvents"] for rank in range(2)
    ]
    assert len(kernels[0]) == len(kernels[1]) == 2


def without_communicators(process: SavedProcess) -> SavedProcess:
    definitions = tuple(each for each in process.snapshot.definitions if each.kind != "communicator")
    return replace(process, snapshot=replace(process.snapshot, definitions=definitions))


def test_samples_occur_once(run: ObservedRun, tmp_path: Path) -> None:
    twice = replace(run, processes=(*run.processes, *run.processes))
    for name in ("run.prom", "run.inspector.prom"):
        export_run(twice, tmp_path / name)
        lines = [line.rpartition(" ")[0] for line in (tmp_path / name).read_text().splitlines() if line[0] != "#"]
        assert lines and len(lines) == len(set(lines))


def test_names_of_a_run_are_no_paths_and_need_no_encoding(run: ObservedRun, tmp_path: Path) -> None:
    strange = tuple(replace(each, host="../../x\udce9") for each in run.processes)
    export_run(replace(run, processes=strange), tmp_path / "run.inspector")
    assert len(list((tmp_path / "run.inspector").iterdir())) == 2
    for name in ("run.prom", "run.json", "run.pftrace", "run.otlp.jsonl"):
        export_run(replace(run, processes=strange), tmp_path / name)
        assert (tmp_path / name).stat().st_size > 0


def test_many_messages_of_a_lane(tmp_path: Path) -> None:
    count = 20_000
    send, receive = (
        FakeRank(rank, [Op(kind, number, number * MS, number * MS + 10, peer=1 - rank) for number in range(1, count)])
        for rank, kind in enumerate(("send", "recv"))
    )
    export_run(fabricate([send, receive]), tmp_path / "run.pftrace")
    trace = Trace()
    trace.ParseFromString((tmp_path / "run.pftrace").read_bytes())
    assert sum(len(packet.track_event.terminating_flow_ids) for packet in trace.packet) == count - 1
