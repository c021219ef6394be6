"""Records of other tools as tables: against those tools' own readers, and with damaged files."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.errors import HocketError, InvalidArgument, RecorderError
from hocket.observe import export_run, import_records, operations_of, query_run, query_tables
from hocket.observe.formats.imported import ImportedTables
from hocket.observe.formats.importing import IMPORT_FORMATS, import_format_of
from hocket.observe.store.columns import NUMPY_TYPES, TABLE_COLUMNS
from hocket.observe.store.run_tables import Columns, run_tables

from ..naming import raises
from ..program import hocket
from .fabricated_run import MS, FakeRank, Op, fabricate

pytest.importorskip("duckdb")
pytestmark = pytest.mark.timeout(180)
_FLIGHT_PROGRAM = """
import os, sys, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
from torch.profiler import ProfilerActivity, profile
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    for size in (10, 1000):
        dist.all_reduce(torch.ones(size))
    dist.broadcast(torch.ones(7, dtype=torch.float64), 0)
    dist.send(torch.ones(5), 1) if rank == 0 else dist.recv(torch.ones(5), 0)
profiler.export_chrome_trace(f"{sys.argv[3]}/trace-{rank}.json")
open(f"{sys.argv[3]}/rank-{rank}", "wb").write(_dump_fr_trace())
dist.barrier()
os._exit(0)  # threads of torch abort a process now and then while it ends
"""


def _read(path: Path) -> dict[str, Columns]:
    tables = ImportedTables()
    import_format_of(path).read(path, tables)
    return tables.tables()


def _darshan_logs() -> list[Path]:
    found = find_spec("darshan")
    assert found is not None and found.origin is not None
    return sorted(Path(found.origin).parent.glob("**/*.darshan"))


_SOON = ("example.darshan", "ior_hdf5_example.darshan", "sample-dxt-simple.darshan")
"""Logs that `make test` reads; `make test-full` reads all."""


def test_there_are_as_many_example_logs_as_ever() -> None:
    assert len(_darshan_logs()) == 18


@pytest.mark.parametrize("log", [
    pytest.param(log, id=log.name[:24], marks=() if log.name in _SOON else pytest.mark.full) for log in _darshan_logs()
])  # fmt: skip
def test_bytes_and_operations_of_example_logs_are_those_of_darshans_accumulator(log: Path) -> None:
    from darshan import DarshanReport
    from darshan.backend.cffi_backend import accumulate_records

    num_compared = 0
    tables = _read(log)
    files, counters = tables["files"], tables["file_counters"]
    report = DarshanReport(str(log), read_all=False)
    for module in ("POSIX", "STDIO", "MPI-IO"):
        is_own = files["layer"] == module
        assert is_own.any() == (module in report.modules)
        if not is_own.any():
            continue
        report.mod_read_all_records(module)
        records = report.records[module].to_df()
        found = accumulate_records(records, module, report.metadata["job"]["nprocs"])
        own = np.maximum([files["read_nbytes"][is_own], files["written_nbytes"][is_own]], 0)
        assert own.sum() == found.derived_metrics.total_bytes, (log.name, module)
        assert is_own.sum() == len(records["counters"])
        whole = {"opens": ("OPENS", "COLL_OPENS", "INDEP_OPENS"), "reads": ("READS", "COLL_READS", "INDEP_READS"),
                 "writes": ("WRITES", "COLL_WRITES", "INDEP_WRITES")}  # fmt: skip
        for name, parts in whole.items():
            summary = found.summary_record["counters"]
            prefix = module.replace("-", "")
            expected = sum(int(summary[f"{prefix}_{part}"].iloc[0]) for part in parts
                           if f"{prefix}_{part}" in summary)  # fmt: skip
            assert np.maximum(files[f"num_{name}"][is_own], 0).sum() == expected, (log.name, module, name)
        of_module = counters["layer"] == module
        name = f"{module.replace('-', '')}_BYTES_READ"
        chosen = of_module & (counters["counter"] == name)
        assert counters["value"][chosen].tolist() == records["counters"][name].tolist()
        num_compared += 1
    for module in ("DXT_POSIX", "DXT_MPIIO"):
        if module in report.modules:
            report.mod_read_all_dxt_records(module, dtype="dict")
            segments = [
                each for record in report.records[module] for kind in ("read_segments", "write_segments")
                for each in record[kind]
            ]  # fmt: skip
            is_own = tables["io"]["layer"] == {"DXT_POSIX": "POSIX", "DXT_MPIIO": "MPI-IO"}[module]
            assert tables["io"]["nbytes"][is_own].sum() == sum(each["length"] for each in segments)
            assert is_own.sum() == len(segments)
            num_compared += 1
    assert num_compared > 0


def test_damaged_logs_of_darshan_are_refused_and_this_process_goes_on(tmp_path: Path) -> None:
    content = next(each for each in _darshan_logs() if each.name == "sample-dxt-simple.darshan").read_bytes()
    draw = random.Random(5)
    num_refused = 0
    for seed in range(6):
        damaged = bytearray(content[: draw.randrange(len(content))] if seed % 3 == 0 else content)
        for _ in range(1 << seed % 5):
            damaged[draw.randrange(min(len(damaged), 400 if seed % 2 else len(damaged)))] = draw.randrange(256)
        path = tmp_path / f"{seed}.darshan"
        path.write_bytes(damaged)
        try:
            _read(path)
        except RecorderError:
            num_refused += 1
    assert num_refused >= 4
    path = tmp_path / "other.darshan"
    path.write_bytes(b"something else")
    with raises(RecorderError, names=str(path)):
        _read(path)


@pytest.fixture(scope="module")
def torch_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What torch's flight recorder and profiler write of two ranks of gloo."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("torch")
    program = folder.parent / "flight_program.py"
    program.write_text(_FLIGHT_PROGRAM)
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, program, str(rank), str(folder.parent / "store"), folder], env=environment)
        for rank in range(2)
    ]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    return folder


def test_flight_records_of_torch(torch_files: Path, tmp_path: Path) -> None:
    rows = import_records(sorted(torch_files.glob("rank-*")), tmp_path / "flight.parquet")
    assert rows["sources"] == rows["processes"] == 2
    sql = "SELECT rank, number, op, peer, nbytes, library FROM operations ORDER BY ALL"
    expected = [
        *((rank, number, op, -1, nbytes, "gloo") for rank in range(2)
          for number, op, nbytes in ((1, "all_reduce", 40), (2, "all_reduce", 4000), (3, "broadcast", 56))),
    ]  # fmt: skip
    assert query_tables(tmp_path / "flight.parquet", sql).rows == tuple(expected)


def test_timelines_of_torch(torch_files: Path) -> None:
    tables = ImportedTables()
    num_slices = 0
    for path in sorted(torch_files.glob("trace-*.json")):
        import_format_of(path).read(path, tables)
        content = json.loads(path.read_text())
        num_slices += sum(event["ph"] in "Xi" for event in content["traceEvents"])
    found = tables.tables()
    assert len(found["slices"]["name"]) == num_slices
    assert sorted(set(found["processes"]["rank"].tolist())) == [0, 1]
    operations = found["operations"]
    assert set(operations["op"]) == {"all_reduce", "broadcast", "send", "recv"}
    assert operations["nbytes"][operations["op"] == "all_reduce"].tolist().count(4000) == 2
    assert (operations["seconds"] > 0).all()
    first = min(event["ts"] for event in content["traceEvents"] if event["ph"] in "Xi")
    assert abs(found["sources"]["origin_unix_s"][0] - content["baseTimeNanoseconds"] * 1e-9 - first * 1e-6) < 10


def test_kernels_of_nccl_in_a_timeline(tmp_path: Path) -> None:
    arguments = {
        "Collective name": "_allgather_base", "In msg nelems": 1024, "Out msg nelems": 8192, "Group size": 8,
        "dtype": "BFloat16", "Process Group Name": "3", "Process Group Description": "tensor parallel",
        "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", "Seq": 12, "stream": 20,
    }  # fmt: skip
    events = [
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather", "pid": 0, "tid": 20, "ts": 10.5, "dur": 4.25,
         "args": arguments},
        {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 7, "tid": 7, "ts": 1, "dur": 1,
         "args": arguments},
        {"ph": "X", "cat": "kernel", "name": "backwards", "pid": 0, "tid": 7, "ts": 20, "dur": -3},
        {"ph": "B", "name": "outer", "pid": 7, "tid": 7, "ts": 1}, {"ph": "B", "name": "inner", "pid": 7, "tid": 7,
                                                                     "ts": 2},
        {"ph": "E", "pid": 7, "tid": 7, "ts": 3}, {"ph": "E", "pid": 7, "tid": 7, "ts": 5},
        {"ph": "B", "name": "never ends", "pid": 7, "tid": 7, "ts": 6},
        {"ph": "C", "name": "memory", "pid": 7, "ts": 2.0, "args": {"used": 5, "unit": "B"}},
        {"ph": "s", "id": 1, "pid": 7, "tid": 7, "ts": 1, "name": "flow", "cat": "c"},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 7, "args": {"name": "main"}},
    ]  # fmt: skip
    path = tmp_path / "trace.json.gz"
    head = {"schemaVersion": 1, "distributedInfo": {"rank": 5, "world_size": 8}, "traceEvents": events}
    path.write_bytes(gzip.compress(json.dumps(head).encode()))
    tables = _read(path)
    operations = {name: column.tolist() for name, column in tables["operations"].items()}
    assert operations["op"] == ["all_gather"]
    assert operations["nbytes"] == [2048]
    assert operations["number"] == [12]
    assert operations["seconds"] == [pytest.approx(4.25e-6)]
    assert tables["communicators"]["communicator"].tolist() == ["tensor parallel"]
    assert tables["processes"]["rank"].tolist() == [5]
    spans = dict(zip(tables["slices"]["name"].tolist(), tables["slices"]["seconds"].tolist(), strict=True))
    assert spans["inner"] == pytest.approx(1e-6)
    assert spans["outer"] == pytest.approx(4e-6)
    assert np.isnan(spans["backwards"])
    assert set(tables["slices"]["thread"][tables["slices"]["name"] == "outer"]) == {"main"}
    assert tables["counters"]["value"].tolist() == [5.0]
    assert tables["sources"]["num_left_out"].tolist() == [2]


def test_the_version_of_nccl_makes_no_report_of_ras(tmp_path: Path) -> None:
    event = {"ph": "X", "name": "a", "pid": 1, "tid": 2, "ts": 1_795_932_338_508_301, "dur": 4}
    timeline = {
        "distributedInfo": {"rank": 0, "nccl_version": "2.28.9"},
        "traceEvents": [event, {**event, "ts": event["ts"] + 1}],
    }
    record = {"version": "2.10", "nccl_version": "2.28.9", "pg_config": {}, "pg_status": {}, "entries": []}
    for number, (content, name) in enumerate(((timeline, "trace"), (record, "flight"))):
        path = tmp_path / f"{name}-{number}"
        path.write_text(json.dumps(content))
        assert import_format_of(path).name == name
    began = _read(tmp_path / "trace-0")["slices"]["began_s"]
    assert began[1] - began[0] == pytest.approx(1e-6)


def test_a_timeline_whose_writer_was_killed_is_read(tmp_path: Path) -> None:
    path = tmp_path / "killed.json"
    path.write_text('[{"ph": "X", "name": "a", "pid": 1, "tid": 2, "ts": 3, "dur": 4},\n')
    assert _read(path)["slices"]["name"].tolist() == ["a"]


def _inspector_line(**changes: Any) -> dict[str, Any]:
    return {
        "header": {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
                     "dump_timestamp_us": 1748030377748202, "hostname": "node-1", "pid": 1639453},
        "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184,
                      "coll_exec_time_us": 61974, "coll_algobw_gbs": 277.210914, "coll_busbw_gbs": 485.119099},
        **changes,
    }  # fmt: skip


def test_records_of_nccls_inspector(tmp_path: Path) -> None:
    verbose = {
        "coll": "ReduceScatter", "coll_sn": 1231, "coll_msg_size_bytes": 2147483648, "coll_exec_time_us": 41057,
        "coll_timing_source": "kernel_gpu", "coll_algo": "RING", "coll_proto": "LL",
        "event_trace_ts": {
            "coll_start_ts": 1752867229235059, "coll_stop_ts": 1752867229235064,
            "kernel_events": [{"channel_id": 0, "kernel_start_ts": 1752867229235181,
                               "kernel_stop_ts": 1752867229275811, "kernel_record_ts": 1752867229275811}],
        },
    }  # fmt: skip
    message = {"p2p": "Send", "p2p_sn": 3, "p2p_peer": 5, "p2p_msg_size_bytes": 64, "p2p_exec_time_us": 7}
    without = {key: value for key, value in _inspector_line().items() if key != "coll_perf"}
    lines = [_inspector_line(), _inspector_line(coll_perf=verbose), {**without, "p2p_perf": message},
             {**without, "dump_stats": {"drops": 1}}]  # fmt: skip
    path = tmp_path / "node-1-pid1639453.log"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    tables = _read(path)
    operations = {name: column.tolist() for name, column in tables["operations"].items()}
    assert operations["op"] == ["all_reduce", "reduce_scatter", "send"]
    assert operations["nbytes"] == [17179869184, 2147483648, 64]
    assert operations["seconds"] == pytest.approx([0.061974, 0.041057, 7e-6])
    assert np.isnan(operations["began_s"]).tolist() == [True, False, True]
    assert operations["ended_s"][1] - operations["began_s"][1] == pytest.approx(0.04063)
    assert operations["algorithm"] == ["", "RING LL", ""]
    assert operations["peer"] == [-1, -1, 5]
    assert tables["sources"]["num_left_out"].tolist() == [1]
    assert tables["sources"]["is_partial"].tolist() == [True]
    assert tables["processes"]["rank"].tolist() == [2]


def test_bandwidth_in_our_records_of_the_inspector_is_what_nccl_computes_from_the_size(tmp_path: Path) -> None:
    run = fabricate(
        FakeRank(rank, [Op(op, place, place * MS, place * MS + MS, nbytes=4096)
                        for place, op in enumerate(("all_reduce", "all_gather", "reduce_scatter", "broadcast"))])
        for rank in range(4)
    )  # fmt: skip
    export_run(run, tmp_path / "run.inspector")
    num_records = 0
    for file in (tmp_path / "run.inspector").iterdir():
        for line in file.read_text().splitlines():
            found = json.loads(line)["coll_perf"]
            # inspector.cc of NCCL, ncclInspectorComputeCollBw.
            traffic = found["coll_msg_size_bytes"] * (4 if found["coll"] in ("AllGather", "ReduceScatter") else 1)
            factor = {"AllReduce": 2 * 3 / 4, "AllGather": 3 / 4, "ReduceScatter": 3 / 4, "Broadcast": 1}[found["coll"]]
            assert found["coll_algobw_gbs"] == pytest.approx(traffic / 1e9 / 1e-3, rel=1e-3)
            assert found["coll_busbw_gbs"] == pytest.approx(traffic / 1e9 / 1e-3 * factor, rel=1e-3)
            num_records += 1
    assert num_records == 16


def test_reports_of_ncclras(tmp_path: Path) -> None:
    def member(rank: int, count: int, **status: bool) -> dict[str, Any]:
        return {
            "rank": rank, "host": "10.0.0.1", "pid": 100 + rank, "cuda_dev": rank, "nvml_dev": rank,
            "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False,
                       "abort_flag": False, **status},
            "collective_counts": {"Broadcast": 0, "AllReduce": count},
        }  # fmt: skip

    missing = {"rank": 3, "host": "10.0.0.2", "pid": 7, "cuda_dev": 0, "nvml_dev": 0,
               "status": {"unresponsive": True, "considered_dead": False}}  # fmt: skip
    report = {
        "nccl_version": "2.28.9", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
        "timestamp": "2026-06-11 11:44:19", "communicators_count": 1,
        "communicators": [{
            "hash": "0xabc", "secondary_hash": "0x1:0x2", "size": 4, "ranks_count": 3, "missing_ranks_count": 1,
            "ranks": [member(0, 9), member(1, 7), member(2, 9, abort_flag=True)], "missing_ranks": [missing],
        }],
        "ras": {"collection_time_sec": 0.1, "timeouts_count": 0},
    }  # fmt: skip
    # NCCL 2.28 writes no comma before the status of a rank that is missing.
    text = json.dumps(report, indent=2)
    head, _, rest = text.partition('"missing_ranks":')
    (tmp_path / "ras.json").write_text(head + '"missing_ranks":' + rest.replace('"nvml_dev": 0,', '"nvml_dev": 0', 1))
    with pytest.raises(json.JSONDecodeError):
        json.loads((tmp_path / "ras.json").read_text())
    import_records([tmp_path / "ras.json"], tmp_path / "ras.parquet")
    states = query_tables(tmp_path / "ras.parquet", "SELECT comm_rank, state FROM members ORDER BY comm_rank").rows
    assert states == ((0, "running"), (1, "running"), (2, "aborted"), (3, "does not answer"))
    behind = "SELECT rank, count FROM collective_counts WHERE op = 'all_reduce' ORDER BY count LIMIT 1"
    assert query_tables(tmp_path / "ras.parquet", behind).rows == ((1, 7),)


@pytest.fixture
def run_of_three() -> Any:
    return fabricate(
        FakeRank(rank, [Op("all_reduce", step, step * MS, step * MS + MS // 2, nbytes=64) for step in range(5)],
                 regions={"work": [(0, 5 * MS)]})
        for rank in range(3)
    )  # fmt: skip


@pytest.mark.parametrize("ending", [".flight", ".inspector", ".json.gz", ".kineto"])
def test_what_hocket_exports_it_imports(run_of_three: Any, tmp_path: Path, ending: str) -> None:
    source = tmp_path / f"run{ending}"
    export_run(run_of_three, source)
    rows = import_records([source], tmp_path / "run.parquet")
    if ending in (".flight", ".inspector"):
        assert rows["operations"] == len(operations_of(run_of_three).rows) == 15
        sql = "SELECT rank, op, number, round(seconds * 1e6) FROM operations ORDER BY ALL"
        assert query_tables(tmp_path / "run.parquet", sql).rows == query_run(run_of_three, sql).rows
    else:
        assert rows["slices"] >= 6


def test_tables_of_runs_have_the_stated_columns(run_of_three: Any) -> None:
    for table, columns in run_tables(run_of_three).items():
        assert {name: column.dtype.name for name, column in columns.items()} == {
            name: NUMPY_TYPES[kind] for name, kind in TABLE_COLUMNS[table].items()
        }


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"", ()),
        (b"{}", ()),
        (b'{"traceEvents": 5, "ph": 1}', "traceEvents"),
        (b'{"traceEvents": [{"ph": "X", "ts": "1"}]}', ("event 0", "ts", "1")),
        (b'{"traceEvents": [{"ph": "X", "ts": 1e300, "dur": 1}]}', ("event 0", "ts", "1e+300")),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": NaN}]}', ("event 0", "dur", "nan")),
        (b'{"traceEvents": [5], "ph": 1}', ("event 0", "5")),
        (b'{"traceEvents": [{"ph": ' + b"[" * 100_000, ()),
        (b'{"nccl_version": "2.28", "timestamp": "now"}', "timestamp"),
        (b'{"nccl_version": "2.28", "timestamp": "2026-01-01 00:00:00", "communicators": [{"hash": "a", "size": "4"}]}',
         ("communicators", "size", "4")),
        (json.dumps(_inspector_line(header={"id": "a", "rank": 9, "n_ranks": 8})).encode(), ("line 1", "rank", "9")),
        (json.dumps(_inspector_line()).replace("v4.0", "v9.1").encode(), ("line 1", "v9.1", "v4.0")),
        (json.dumps(_inspector_line()).encode() + b"\n{broken\n", "line 2"),
        (json.dumps(_inspector_line()).encode()[:-9], "line 1"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "name": "\\ud800"}]}', ("event 0", "name")),
        (b"\x1f\x8b" + b"damaged" * 10, ()),
    ],
)  # fmt: skip
def test_files_that_are_not_as_they_should_be_are_refused(
    tmp_path: Path, content: bytes, names: str | tuple[str, ...]
) -> None:
    path = tmp_path / "file-1"
    path.write_bytes(content)
    with raises(RecorderError, names=(str(path), *((names,) if isinstance(names, str) else names))):
        import_records([path], tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


class _Shell:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch pickle-was-run",)


def test_a_pickle_that_calls_something_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rank-0"
    for content in (_Shell(), {"version": "2.10", "pg_status": {}, "entries": [_Shell()]}):
        path.write_bytes(pickle.dumps(content))
        with raises(RecorderError, names=str(path)):
            import_records([path], tmp_path / "out.parquet", format="flight")
    shared: list[Any] = []
    for _ in range(40):
        shared = [shared, shared]
    for version in (10**5000, shared):
        path.write_bytes(pickle.dumps({"version": version, "pg_status": {}}))
        with raises(RecorderError, names=(str(path), "version")):
            import_records([path], tmp_path / "out.parquet", format="flight")
    # A place in the memory of the pickle that Python would reserve 64 GB for.
    path.write_bytes(b"\x80\x02Kr\xff\xff\xff\xff.".replace(b"Kr", b"K\x01r"))
    with raises(RecorderError, names=str(path)):
        import_records([path], tmp_path / "out.parquet", format="flight")
    assert not (tmp_path / "pickle-was-run").exists()


def test_mutated_files_are_read_or_refused(torch_files: Path, tmp_path: Path) -> None:
    draw = random.Random(7)
    originals = [(torch_files / name).read_bytes() for name in ("rank-0", "trace-0.json")]
    originals.append((json.dumps(_inspector_line()) + "\n").encode() * 3)
    num_refused = 0
    for seed in range(300):
        content = bytearray(originals[seed % 3])
        for _ in range(1 + seed % 4):
            place = draw.randrange(len(content))
            content[place : place + draw.randrange(3)] = bytes(draw.randrange(256) for _ in range(draw.randrange(3)))
        path = tmp_path / "mutated-0"
        path.write_bytes(content)
        try:
            IMPORT_FORMATS[{0: 3, 1: 4, 2: 1}[seed % 3]].read(path, ImportedTables())
        except RecorderError:
            num_refused += 1
    assert num_refused > 50


def test_what_a_killed_writer_left_is_read_as_a_part(tmp_path: Path) -> None:
    whole = json.dumps(_inspector_line()).encode()
    event = b'{"ph": "X", "name": "a", "pid": 1, "tid": 2, "ts": 3, "dur": 4}'
    for name, content, table in (
        ("inspector", whole + b"\n" + whole[:99], "operations"), ("whole", whole, "operations"),
        ("cut", b"[" + event + b",\n" + event[:30], "slices"), ("open", b"[" + event + b",\n" + event, "slices"),
        ("closed", b"[" + event + b"]", "slices"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
        tables = _read(tmp_path / name)
        assert len(tables[table]["process"]) == (2 if name == "open" else 1)
        assert tables["sources"]["is_partial"].tolist() == [name not in ("whole", "closed")]


def test_wrong_names_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"ph": "i", "ts": 1}]')
    with raises(InvalidArgument, names=("out", ".parquet")):
        import_records([tmp_path / "a.json"], tmp_path / "out")
    with raises(InvalidArgument, names=("vampir", "darshan")):
        import_records([tmp_path / "a.json"], tmp_path / "out.parquet", format="vampir")
    with raises(InvalidArgument, names="absent"):
        import_records([tmp_path / "absent"], tmp_path / "out.parquet")
    with pytest.raises(HocketError):
        import_records([], tmp_path / "out.parquet")
    with raises(InvalidArgument, names="a.json"):
        import_records([tmp_path / "a.json", tmp_path / "a.json"], tmp_path / "out.parquet")
    (tmp_path / "empty").mkdir()
    with raises(InvalidArgument, names="empty"):
        import_records(tmp_path / "empty", tmp_path / "out.parquet")
    (tmp_path / "full.parquet").mkdir()
    (tmp_path / "full.parquet" / "x").touch()
    with raises(InvalidArgument, names="full.parquet"):
        import_records([tmp_path / "a.json"], tmp_path / "full.parquet")


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"ph": "i", "ts": 1, "name": "mark"}]')
    done = hocket("observe", "import", str(tmp_path / "a.json"), str(tmp_path / "a.parquet"), "--json")
    assert json.loads(done.stdout)["rows"]["slices"] == 1
    done = hocket("observe", "query", str(tmp_path / "a.parquet"), "SELECT name FROM slices", "--json")
    assert json.loads(done.stdout)["rows"] == [["mark"]]
    failed = hocket("observe", "import", str(tmp_path / "a.json"))
    assert failed.returncode == 2
    assert ".parquet" in failed.stderr
