"""Every operation of torch's gloo, by introspection: recorded as what it is, or known to start no operation of gloo."""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hocket import _native
from hocket.errors import RecorderError
from hocket.observe import SavedProcess, open_run, record_run
from hocket.observe.gloo import TESTED_TORCH, find_torch, gloo_interface, match_gloo
from hocket.observe.run import hooks_library
from hocket.observe.shared_object import SharedObject
from hocket.trace import EVENT_STATES

from ..load import scaled
from ..naming import raises
from .gloo_program import BACKEND, PUBLIC
from .mpi_jobs import kind_name

pytestmark = pytest.mark.timeout(180)

_NO_WORK_OF_BACKEND = {
    "Device": "a type", "Options": "a type", "_Options": "a type", "options": "settings", "name": "a name",
    "rank": "a number", "size": "a number", "_get_backend_name": "a name", "create_device": "makes a device",
    "create_default_device": "makes a device", "_get_sequence_number_for_group": "a number",
    "_set_sequence_number_for_group": "gloo does nothing", "_set_default_timeout": "settings",
    "set_timeout": "settings",
    "_pybind11_conduit_v1_": "of the bindings", "abort": "sends nothing", "shutdown": "sends nothing",
    "allocate_tensor": "gloo refuses it", "mem_allocator": "gloo refuses it", "memory_stats": "gloo refuses it",
    "eager_connect_single_device": "gloo does nothing", "_start_coalescing": "gloo refuses it",
    "_end_coalescing": "gloo refuses it", "setUsePgForSymmMemRendezvous": "settings", "resume": "gloo refuses it",
    "suspend": "gloo refuses it", "shrink": "gloo refuses it", "supports_coalescing": "a fact",
    "supports_shrinking": "a fact", "supports_splitting": "a fact", "supports_tensor_alloc": "a fact",
    "supports_time_estimate": "a fact",
}  # fmt: skip
_NO_WORK_OF_PUBLIC = {
    "default_pg_timeout", "destroy_process_group", "get_backend", "get_backend_config", "get_debug_level",
    "get_default_backend_for_device", "get_global_rank", "get_group_rank", "get_node_local_rank", "get_pg_count",
    "get_process_group_ranks", "get_rank", "get_world_size", "init_process_group", "is_backend_available",
    "is_gloo_available", "is_initialized", "is_mpi_available", "is_nccl_available", "is_torchelastic_launched",
    "is_ucc_available", "is_xccl_available", "new_group", "new_subgroups", "new_subgroups_by_enumeration",
    "record_comm", "reduce_op", "shrink_group", "split_group", "supports_complex",
}  # fmt: skip
"""They make groups, say something, or, as `record_comm`, mark what others do."""

_MESSAGE = {"backend recv_anysource": 24, "public isend": 20, "public irecv": 20, "public send": 20, "public recv": 20,
            "backend send": 20, "backend recv": 20}  # fmt: skip
_COLLECTIVES: dict[str, list[tuple[str, int]]] = {
    "backend _allgather_base": [("all_gather", 16)], "backend allgather": [("all_gather", 12)],
    "backend _reduce_scatter_base": [("all_reduce", 32)],  # gloo's reduce_scatter sums everything
    "backend allgather_coalesced": [("all_gather", 20)], "backend allreduce": [("all_reduce", 36)],
    "backend allreduce_coalesced": [("all_reduce", 44)], "backend alltoall": [("all_to_all", 16)],
    "backend alltoall_base": [("all_to_all", 40)], "backend barrier": [("barrier", 0)],
    "backend broadcast": [("broadcast", 28)], "backend gather": [("gather", 24)],
    "backend monitored_barrier": [("barrier", 0)], "backend reduce": [("reduce", 44)],
    "backend reduce_scatter": [("all_reduce", 12), ("all_reduce", 12)], "backend scatter": [("scatter", 40)],
    "public all_gather": [("all_gather", 12)], "public all_gather_coalesced": [("all_gather", 12)],
    "public all_gather_into_tensor": [("all_gather", 32)], "public all_gather_single": [("all_gather", 16)],
    "public all_reduce": [("all_reduce", 18)], "public all_reduce_coalesced": [("all_reduce", 44)],
    "public all_to_all": [("all_to_all", 16)], "public all_to_all_single": [("all_to_all", 40)],
    "public barrier": [("barrier", 0)], "public broadcast": [("broadcast", 56)], "public gather": [("gather", 24)],
    "public monitored_barrier": [("barrier", 0)], "public reduce": [("reduce", 11)],
    "public reduce_scatter": [("all_reduce", 12), ("all_reduce", 12)],
    "public reduce_scatter_single": [("all_reduce", 32)], "public reduce_scatter_tensor": [("all_reduce", 32)],
    "public scatter": [("scatter", 40)], "public coalesced all_gather_into_tensor": [("all_gather", 20)],
    "public coalesced reduce_scatter_tensor": [("all_reduce", 16), ("all_reduce", 24)],
    "public coalesced all_reduce": [("all_reduce", 20)],
}  # fmt: skip
"""What each rank contributes."""
_OBJECTS = {
    "public all_gather_object": ["all_gather", "all_gather"], "public gather_object": ["all_gather", "gather"],
    "public broadcast_object_list": ["broadcast", "broadcast"],
    "public scatter_object_list": ["broadcast", "scatter", "scatter"], "public send_object_list": ["message"] * 2,
    "public recv_object_list": ["message"] * 2, "public batch_isend_irecv": ["send", "recv"],
}  # fmt: skip
"""Their bytes are those of pickled objects. Messages are sent by rank 0."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, str]], list[SavedProcess]]:
    """Of each rank: what became of each call, and what was recorded."""
    folder = tmp_path_factory.mktemp("gloo")
    program = Path(__file__).with_name("gloo_program.py")
    options = ["--layers", "comm", "--output", str(folder / "run")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(program), str(folder)]
    command = [sys.executable, "-m", "hocket.cli", "observe", "run", *options, "--", *torchrun]
    done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(150))
    assert done.returncode == 0, done.stderr
    processes = [each for each in open_run(folder / "run").processes if len(each.events["foreign"])]
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(2)], processes


def _by_call(results: dict[str, str], process: SavedProcess) -> dict[str, list[Any]]:
    """Return the events between the reductions that tell the calls apart."""
    found: list[list[Any]] = [[]]
    for event in process.events["foreign"]:
        if kind_name(int(event["kind"])) == "reduce" and event["nbytes"] == 4000:
            found.append([])
        else:
            found[-1].append(event)
    return dict(zip([*results, "groups"], found[1:], strict=True))


def _names(events: list[Any]) -> list[tuple[str, int]]:
    return [(kind_name(int(event["kind"])), int(event["nbytes"])) for event in events]


def test_no_operation_is_forgotten() -> None:
    import torch.distributed as dist
    from torch._C import _distributed_c10d

    methods = {
        name
        for each in (_distributed_c10d.Backend, dist.ProcessGroupGloo)
        for name in dir(each)
        if not name.startswith("__")
    }
    assert methods == BACKEND.keys() | _NO_WORK_OF_BACKEND.keys()
    functions = {name for name in dist.distributed_c10d.__all__ if not isinstance(getattr(dist, name, None), type)}
    communicate = {name for name in PUBLIC if not name.startswith("coalesced ")}
    assert functions - {"GroupName"} == communicate | _NO_WORK_OF_PUBLIC


@pytest.mark.parametrize("rank", [0, 1])
def test_every_operation_is_recorded(recorded: tuple[list[dict[str, str]], list[SavedProcess]], rank: int) -> None:
    results, processes = recorded
    found = _by_call(results[rank], processes[rank])
    assert processes[rank].snapshot.owner.rank == rank and not any(results[rank].values())
    assert found.keys() - {"groups"} == _COLLECTIVES.keys() | _MESSAGE.keys() | _OBJECTS.keys()
    own = "recv" if rank else "send"
    for name, expected in _COLLECTIVES.items():
        if expected[0][0] == "scatter" and rank != 0:
            expected = [("scatter", 0)]
        assert _names(found[name]) == expected, name
    for name, nbytes in _MESSAGE.items():
        assert _names(found[name]) == [(own, nbytes)], name
        assert [int(event["peer"]) for event in found[name]] == [1 - rank], name
    for name, kinds in _OBJECTS.items():
        assert [kind for kind, _ in _names(found[name])] == [own if each == "message" else each for each in kinds]
    events = processes[rank].events["foreign"]
    assert {EVENT_STATES[state] for state in events["state"]} == {"completed"} and (events["flags"] <= 1).all()
    dtypes = {name: _native.DTYPE_NAMES[int(found[f"public {name}"][0]["dtype"])] for name in ("all_reduce", "reduce")}
    assert dtypes == {"all_reduce": "bfloat16", "reduce": "uint8"}


@pytest.mark.parametrize("rank", [0, 1])
def test_groups_and_totals(recorded: tuple[list[dict[str, str]], list[SavedProcess]], rank: int) -> None:
    results, processes = recorded
    snapshot, events = processes[rank].snapshot, processes[rank].events["foreign"]
    found = _by_call(results[rank], processes[rank])["groups"]
    # A group of this rank alone, and a second one of both; each counts its own operations.
    assert [snapshot.members[int(event["comm"])] for event in found] == [(rank,), (0, 1)]
    assert [int(event["seq"]) for event in found] == [1, 1]
    labels = [snapshot.names["communicator", int(event["comm"]), 0] for event in found]
    world = snapshot.names["communicator", int(events[0]["comm"]), 0]
    other = processes[1 - rank].snapshot
    assert len({*labels, world}) == 3
    shared = {each.text for each in snapshot.communicators.values()} & {
        each.text for each in other.communicators.values()
    }
    assert shared == {world, labels[1]}
    # Collectives have the numbers that all ranks give them, whatever messages some of them send.
    collectives = [event for event in events if kind_name(int(event["kind"])) not in ("send", "recv")]
    of_world = [int(event["seq"]) for event in collectives if int(event["comm"]) == int(events[0]["comm"])]
    assert of_world == list(range(1, len(of_world) + 1))
    totals = snapshot.histograms
    assert int(totals["count"].sum()) == len(events) and int(totals["nbytes"].sum()) == int(events["nbytes"].sum())


def test_numbers_are_torchs() -> None:
    from torch._C import _distributed_c10d

    interface = gloo_interface()
    assert interface.operations == {name: int(value) for name, value in _distributed_c10d.OpType.__members__.items()}
    assert len(interface.types) == len(_native.DTYPE_NAMES)
    library = ctypes.CDLL(str(find_torch()))
    for name, number in interface.types.items():
        assert getattr(library, f"aoti_torch_dtype_{name}")() == number, name


def _doctors_word(folder: Path) -> dict[str, Any]:
    """What `hocket observe doctor` says of gloo where the torch in a folder is imported."""
    doctor = [sys.executable, "-m", "hocket.cli", "observe", "doctor", "--json"]
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    sources = json.loads(subprocess.check_output(doctor, env=environment, timeout=scaled(60)))
    (status,) = [each for each in sources if each["name"] == "torch over gloo"]
    return status


def test_hooks_that_do_not_match_are_told(tmp_path: Path) -> None:
    interface = gloo_interface()
    with SharedObject(hooks_library()) as hooks:
        assert hooks.find(interface.replaced).keys() == set(interface.replaced)
    library = find_torch()
    assert library is not None and match_gloo(library).problem is None and match_gloo(library).is_tested
    # A torch of another version, one of whose functions has another type.
    lacking = interface.replaced[3]
    folder = tmp_path / "torch"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "version.py").write_text("from typing import Optional\n__version__ = '2.4.1+cu121'\n")
    names = [name for name in (*interface.replaced, *interface.called) if name != lacking]
    source = tmp_path / "torch.c"
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in names))
    fake = folder / "lib" / "libtorch_cpu.so"
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", fake], check=True, timeout=scaled(60))
    match = match_gloo(fake)
    assert match.missing == (lacking,) and match.version == "2.4.1+cu121" and not match.is_tested
    status = _doctors_word(tmp_path)
    assert not status["is_available"] and lacking in status["reason"] and "2.4.1" in status["reason"]
    # The agent looks at the processes themselves.
    program = f"import ctypes, time; ctypes.CDLL({str(fake)!r}); time.sleep(1.5)"
    recording = record_run([sys.executable, "-c", program], tmp_path / "run", layers=["comm"])
    assert len(recording.problems) == 1
    assert all(word in recording.problems[0] for word in (lacking, "2.4.1", str(fake)))


def test_a_torch_that_was_not_tested_is_no_problem_of_a_run_and_one_without_hooks_is(tmp_path: Path) -> None:
    interface = gloo_interface()
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '9.0.0'\n")
    source, fake = tmp_path / "torch.c", tmp_path / "torch" / "lib" / "libtorch_cpu.so"
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in (*interface.replaced, *interface.called)))
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", fake], check=True, timeout=scaled(60))
    program = f"import ctypes, time; ctypes.CDLL({str(fake)!r}); time.sleep(1.5)"
    recording = record_run([sys.executable, "-c", program], tmp_path / "run", layers=["comm"])
    assert recording.problems == ()
    status = _doctors_word(tmp_path)
    assert status["is_available"] and all(version in status["reason"] for version in ("9.0.0", *TESTED_TORCH))
    recording = record_run(
        ["env", "-u", "LD_PRELOAD", sys.executable, "-c", program], tmp_path / "bare", layers=["comm"]
    )
    assert len(recording.problems) == 1 and "LD_PRELOAD" in recording.problems[0]


def test_a_program_in_cpp_calls_hooked_functions_itself(tmp_path: Path) -> None:
    # The hooks look for torch's own function in the library that calls them: here it is the program.
    (wait,) = [name for name in gloo_interface().replaced if "SendWork4wait" in name]
    declaration = f'_Bool wait_sent(void* work, long timeout_ms) __asm__("{wait}");'
    library, program = tmp_path / "libtorch_cpu.so", tmp_path / "program"
    (tmp_path / "torch.c").write_text(f"{declaration} _Bool wait_sent(void* work, long ms) {{ return ms == 5; }}")
    (tmp_path / "main.c").write_text(f"{declaration} int main(void) {{ return wait_sent(0, 5) ? 42 : 1; }}")
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "torch.c", "-o", library], check=True, timeout=scaled(60))
    build = ["cc", tmp_path / "main.c", "-o", program, library, f"-Wl,-rpath,{tmp_path}"]
    subprocess.run(build, check=True, timeout=scaled(60))
    recording = record_run([str(program)], tmp_path / "run", layers=["comm"])
    assert recording.exit_code == 42


_OF_HOCKET = """
import numpy as np
import hocket as hk
with hk.init(backends=["gloo"]) as comm:
    for _ in range(5):
        comm.all_reduce(np.ones(1000, np.float32))
"""


def test_hockets_own_use_of_gloo_is_not_recorded_twice(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_OF_HOCKET)
    job = [sys.executable, "-m", "hocket", "run", "-n", "2", str(tmp_path / "program.py")]
    recording = record_run(job, tmp_path / "run", layers=["comm"])
    assert (recording.exit_code, recording.problems) == (0, ())
    ranks = [each for each in open_run(tmp_path / "run").processes if len(each.events["operations"])]
    assert [each.snapshot.owner.rank for each in ranks] == [0, 1]
    for process in ranks:
        sums = [each for each in process.events["operations"] if kind_name(int(each["kind"])) == "all_reduce"]
        assert len(sums) >= 5 and len(process.events["foreign"]) == 0


def test_damaged_shared_objects(tmp_path: Path) -> None:
    whole = hooks_library().read_bytes()
    path = tmp_path / "library.so"
    for content in (
        b"",
        b"\x7fELF",
        whole[:16],
        whole[:64],
        whole[:4096],
        b"#!" + whole[2:],
        whole[:4] + b"\1" + whole[5:],
    ):
        path.write_bytes(content)
        with raises(RecorderError, names=(str(path),)), SharedObject(path) as library:
            library.find(["open"])
    with raises(RecorderError, names=(str(tmp_path / "missing"),)):
        SharedObject(tmp_path / "missing")
    # Any byte of the head and the tables may be wrong: an error or an answer, never another exception.
    chance = random.Random(5)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(8):
            damaged[chance.randrange(0x4000)] = chance.randrange(256)
        path.write_bytes(damaged)
        with suppress(RecorderError), SharedObject(path) as library:
            library.find(["open", "hocket_gloo_interface", "nothing"])
