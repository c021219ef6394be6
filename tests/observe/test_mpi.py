"""What the hooks record of MPI programs that do not know hocket, and that these notice nothing of it."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hocket import _native
from hocket.bench.launchers import wheel_file

from ..load import scaled
from ..tier import is_full
from .mpi_collective_program import PROGRAM as COLLECTIVES
from .mpi_jobs import ASYNC, HOOKS, IN_PLACE, LAUNCHERS, MpiJob, message_matrix, operations, run_mpi
from .mpi_message_program import PROGRAM as MESSAGES

pytestmark = [
    pytest.mark.timeout(240),
]
EACH_LIBRARY = pytest.mark.parametrize("library", LAUNCHERS)
FILES = {"mpich": "libmpi.so.12", "openmpi": "libmpi.so.40"}
SEEDS = range(1, 6 if is_full() else 2)
NUM_STEPS = 200
MPI_ROUTE = _native.IO_ROUTE_NAMES.index("mpi")

# Functions that move no data between ranks and start, complete or free no operation that does.
NO_DATA = re.compile(
    "MPI_("
    # objects and their attributes
    "(Comm|Type|Win|Group|Info|Op|Errhandler|Session|File|Request|Message|Status)_(c2f|f2c|toint|fromint|c2f08|f082c"
    "|f082f|f2f08|compare|size|rank|group|free_keyval|create_keyval|[gs]et_\\w+|call_errhandler|create_errhandler"
    "|delete_attr|test_inter|remote_size|remote_group|init|finalize|free|dup|delete|create|create_env|commutative"
    "|create_c|get|set)"
    "|Type_\\w+|Group_\\w+|Info_\\w+|Errhandler_\\w+|Attr_\\w+|Keyval_\\w+|Op_\\w+|Add_error_\\w+|Remove_error_\\w+"
    "|Error_\\w+|Status_\\w+|Abi_\\w+|T_\\w+|Register_datarep(_c)?|\\w+_FN|\\w*_FN_NULL|CONVERSION_FN_NULL"
    # making communicators, windows and topologies: the library's own exchange
    "|Comm_(create|create_group|create_from_group|split|split_type|dup_with_info|idup|idup_with_info|spawn"
    "|spawn_multiple|accept|connect|join|get_parent)|Intercomm_\\w+|Session_\\w+|Dims_create|Topo_test"
    "|Cart\\w+|Cartdim_get|Graph\\w*|Dist_graph_\\w+|Win_(allocate\\w*|create\\w*|attach|detach|shared_query(_c)?)"
    # synchronisation of windows and buffers
    "|Win_(fence|lock|lock_all|unlock|unlock_all|flush\\w*|post|start|complete|wait|test|sync)|Buffer_\\w+"
    "|Comm_(attach|detach|flush|iflush)_buffer(_c)?"
    # looking without taking; conversions in memory
    "|I?[Pp]robe|Request_get_status\\w*|Get_(count|elements)\\w*|Test_cancelled|Pack\\w*|Unpack\\w*|Reduce_local(_c)?"
    # parts of a persistent operation, which MPI_Start began
    "|Pready\\w*|Parrived|Grequest_\\w+"
    # places and properties of files
    "|File_(delete|preallocate|seek|seek_shared)"
    # the process and the library
    "|Initialized|Finalized?|Abort|Query_thread|Is_thread_main|Wtime|Wtick|WTIME_F90|WTICK_F90|Pcontrol"
    "|Get_(version|library_version|processor_name|address|hw_resource_info)|Address|A(int|INT)_(add|diff|ADD_F90"
    "|DIFF_F90)|Alloc_mem|Free_mem|Open_port|Close_port|Publish_name|Unpublish_name|Lookup_name"
    "|UNWEIGHTED|WEIGHTS_EMPTY|F08_STATUS(ES)?_IGNORE|F_STATUS(ES)?_IGNORE"
    ")"
)


def exported(path: str) -> set[str]:
    """Return the names of MPI that a library exports."""
    listed = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r" [TWVDBi] (MPI_\w+)$", listed, re.MULTILINE))


@EACH_LIBRARY
def test_each_function_is_hooked_or_moves_no_data(library: str) -> None:
    known = exported(wheel_file(library, FILES[library]))
    hooked = exported(str(HOOKS))
    assert len(known) > 400
    assert [name for name in sorted(known - hooked) if not NO_DATA.fullmatch(name)] == []


def test_each_hook_is_of_a_function_of_mpi() -> None:
    every = set().union(*(exported(wheel_file(library, file)) for library, file in FILES.items()))
    assert exported(str(HOOKS)) - every == set()


def run_messages(library: str, seed: int, folder: Path, **settings: Any) -> MpiJob:
    return run_mpi(library, MESSAGES, folder, num_ranks=3, arguments=[str(seed), str(NUM_STEPS)], **settings)


def own_matrix(job: MpiJob, name: str = "matrix") -> Counter[tuple[int, int]]:
    """Return the bytes that the program itself counted."""
    matrix = job.results[0][name]
    assert all(result[name] == matrix for result in job.results)
    return +Counter({(i, j): matrix[i][j] for i, j in itertools.product(range(3), repeat=2)})


@EACH_LIBRARY
@pytest.mark.parametrize("seed", SEEDS)
def test_messages_are_counted_to_the_byte_and_results_stay(library: str, seed: int, tmp_path: Path) -> None:
    watched = run_messages(library, seed, tmp_path / "watched")
    expected = own_matrix(watched)
    assert expected.total() > 1_000_000
    assert message_matrix(watched, "send") == expected
    assert message_matrix(watched, "recv") == expected
    plain = run_messages(library, seed, tmp_path / "plain", observe=None)
    assert plain.recordings == []
    assert watched.results == plain.results


@pytest.mark.parametrize("seed", SEEDS)
def test_open_mpis_own_monitoring_counts_the_same_bytes(seed: int, tmp_path: Path) -> None:
    job = run_messages("openmpi", seed, tmp_path / "job", variables={
        "OMPI_MCA_pml_monitoring_enable": "2",
        "OMPI_MCA_pml_monitoring_enable_output": "3",
        "OMPI_MCA_pml_monitoring_filename": str(tmp_path / "monitored"),
    })  # fmt: skip
    monitored: Counter[tuple[int, int]] = Counter()
    paths = list(tmp_path.glob("monitored*"))
    assert len(paths) == 3
    for path in paths:
        # "E" lines: messages of the program, not those of collective operations.
        for line in re.findall(r"^E\t(\d+)\t(\d+)\t(\d+) bytes", path.read_text(), re.MULTILINE):
            source, target, nbytes = map(int, line)
            monitored[source, target] += nbytes
    persistent = own_matrix(job, "of_persistent")  # Open MPI 5.0.11 does not count these
    assert persistent.total() > 0
    assert monitored + persistent == message_matrix(job, "send") == own_matrix(job)


@EACH_LIBRARY
def test_every_collective_in_every_form(library: str, tmp_path: Path) -> None:
    watched = run_mpi(library, COLLECTIVES, tmp_path / "watched", num_ranks=3)
    for rank, snapshot in enumerate(watched.recordings):
        found = [
            {name: each[name] for name in ("kind", "nbytes", "dtype", "peer", "reduction", "comm")}
            | {"in_place": bool(each["flags"] & IN_PLACE), "is_async": bool(each["flags"] & ASYNC)}
            for each in operations(snapshot)
            if each["comm"] in ("collectives", "ring")
        ]
        expected = watched.results[rank]["expected"]
        for number, (one, other) in enumerate(zip(found, expected, strict=False)):
            assert one == other, f"operation {number} of rank {rank}"
        assert len(found) == len(expected) > 100
        for name in ("collectives", "ring"):
            numbers = [each["seq"] for each in operations(snapshot) if each["comm"] == name]
            assert numbers == list(range(len(numbers)))
    plain = run_mpi(library, COLLECTIVES, tmp_path / "plain", num_ranks=3, observe=None)
    assert watched.results == plain.results


_FILES = """
import random
import numpy as np
rng = random.Random(int(sys.argv[1]) * 1000 + world.rank)
everyone = random.Random(int(sys.argv[1]))
path = os.path.join(os.environ["TEST_FOLDER"], "data")
file = MPI.File.Open(world, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
expected, contents = [], []
STRIDE = 1 << 20
file.Write_at(world.rank * STRIDE, np.full(STRIDE, world.rank + 1, np.uint8))
expected.append(["write", world.rank * STRIDE, STRIDE])
file.Sync()
world.Barrier()

def note(kind, offset, buffer, status):
    expected.append([kind, offset, status.Get_count(MPI.BYTE)])
    contents.append(int(buffer.sum()))

for number in range(40):
    together = everyone.random() < 0.5
    name = everyone.choice(["read", "write"])
    form = everyone.choice(["", "_at", "_all", "_at_all", "_split", "_at_split", "_ordered", "_shared"])
    is_nonblocking = everyone.random() < 0.5
    nbytes, offset = rng.randrange(3000), world.rank * STRIDE + rng.randrange(STRIDE - 3000)
    buffer, status = np.full(nbytes, 7, np.uint8), MPI.Status()
    place = [offset] if "_at" in form else []
    if form in ("", "_all", "_split"):
        file.Seek(offset)
    if form in ("_ordered", "_shared"):
        file.Seek_shared(0)
        world.Barrier()
        name = "read"
    if "split" in form:
        base = f"{name.capitalize()}{form.replace('_split', '')}_all"
        getattr(file, base + "_begin")(*place, buffer)
        getattr(file, base + "_end")(buffer, status)
    elif is_nonblocking and form != "_ordered":
        getattr(file, f"I{name}{form}")(*place, buffer).Wait(status)
    else:
        getattr(file, f"{name.capitalize()}{form}")(*place, buffer, status)
    note(name, None if form in ("_ordered", "_shared") else offset, buffer, status)
    world.Barrier()
file.Set_view(16, MPI.DOUBLE)
values = np.ones(10)
status = MPI.Status()
file.Read_at(world.rank + 3, values, status)
note("read", 16 + 8 * (world.rank + 3), values, status)
file.Close()
end = MPI.File.Open(MPI.COMM_SELF, path, MPI.MODE_RDONLY)
end.Seek(end.Get_size() - 5)
values = np.zeros(10, np.uint8)
end.Read(values, status)
assert status.Get_count(MPI.BYTE) == 5
note("read", end.Get_size() - 5, values, status)
end.Close()
leave({"expected": expected, "contents": contents if int(sys.argv[2]) else None})
"""


@EACH_LIBRARY
@pytest.mark.parametrize("seed", SEEDS)
def test_files_are_counted_to_the_byte(library: str, seed: int, tmp_path: Path) -> None:
    job = run_mpi(library, _FILES, tmp_path, arguments=[str(seed), "0"], observe="io")
    for snapshot, result in zip(job.recordings, job.results, strict=True):
        names = {each.id: each.text for each in snapshot.definitions if each.kind == "file"}
        events = [event for event in snapshot.rings["io"].events if event["backend"] == MPI_ROUTE]
        kinds = [_native.IO_NAMES[event["kind"]] for event in events]
        assert [kinds.count(each) for each in ("open", "close", "sync")] == [2, 2, 1]
        found = [
            [kind, None if event["aux"] == 2**64 - 1 else int(event["aux"]), int(event["nbytes"])]
            for kind, event in zip(kinds, events, strict=True)
            if kind in ("read", "write")
        ]
        assert found == result["expected"]
        assert {names[int(event["comm"])] for event in events} == {str(tmp_path / "data")}
        assert all(event["state"] == 3 and event["t_end"] > event["t_begin"] and event["peer"] == 0 for event in events)
        assert len(snapshot.rings["foreign"].events) == 0


_THREADS = """
import threading
import numpy as np
assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
comms = [world.Dup() for _ in range(2)]
for number, comm in enumerate(comms):
    comm.Set_name(f"thread {number}")
other = 1 - world.rank
sums = [0, 0]

def work(number):
    comm, sizes = comms[number], [(7 * i + number) % 900 for i in range(300)]
    out = np.zeros(1000, np.uint8)
    for tag, nbytes in enumerate(sizes):
        work = [comm.Irecv(out, other, tag), comm.Isend(np.full(nbytes, 3, np.uint8), other, tag)]
        if tag % 3:
            MPI.Request.Waitall(work)
        else:
            while not MPI.Request.Testall(work):
                pass
        sums[number] += int(out[:nbytes].sum())
        if tag % 50 == 0:
            comm.Allreduce(MPI.IN_PLACE, np.ones(number + 1))

threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
leave(sums)
"""


@EACH_LIBRARY
def test_two_threads(library: str, tmp_path: Path) -> None:
    job = run_mpi(library, _THREADS, tmp_path)
    sizes = [[(7 * i + number) % 900 for i in range(300)] for number in range(2)]
    assert job.results == [[3 * sum(each) for each in sizes]] * 2
    for snapshot in job.recordings:
        found = operations(snapshot)
        for number in range(2):
            own = [each for each in found if each["comm"] == f"thread {number}"]
            assert len({each["thread"] for each in own}) == 1
            for kind in ("send", "recv"):
                messages = [each for each in own if each["kind"] == kind]
                assert [each["nbytes"] for each in sorted(messages, key=lambda each: each["tag"])] == sizes[number]
                assert all(each["state"] == "completed" for each in messages)
            reductions = [each["nbytes"] for each in own if each["kind"] == "all_reduce"]
            assert reductions == [8 * (number + 1)] * 6


_REFUSED = """
import numpy as np
world.Set_errhandler(MPI.ERRORS_RETURN)
failed = []
for action in (
    lambda: world.Send(np.ones(3), 99), lambda: world.Allreduce(np.ones(3), np.ones(3), MPI.OP_NULL),
    lambda: world.Recv(np.zeros(1), 0, 5) if world.rank else world.Send(np.zeros(4), 1, 5),
):
    try:
        action()
        failed.append(0)
    except MPI.Exception as error:
        failed.append(error.Get_error_class())
leave(failed)
"""


@EACH_LIBRARY
def test_errors_are_failed_operations(library: str, tmp_path: Path) -> None:
    watched = run_mpi(library, _REFUSED, tmp_path / "watched")
    plain = run_mpi(library, _REFUSED, tmp_path / "plain", observe=None)
    assert watched.results == plain.results
    for snapshot, errors in zip(watched.recordings, watched.results, strict=True):
        assert [each["state"] for each in operations(snapshot)] == [
            "failed" if each else "completed" for each in errors
        ]


@EACH_LIBRARY
def test_nothing_is_recorded_unless_it_is_asked_for(library: str, tmp_path: Path) -> None:
    script = "world.Barrier(); world.sendrecv(1, 1 - world.rank); leave(world.allreduce(1))"
    job = run_mpi(library, script, tmp_path, observe="process")
    assert job.results == [2, 2]
    for snapshot in job.recordings:
        assert all(len(ring.events) == 0 for ring in snapshot.rings.values())


@pytest.mark.parametrize("backend", ["mpi:mpich", "mpi:openmpi"])
def test_hockets_own_use_of_mpi_is_not_recorded_twice(backend: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
import os
import numpy as np
import hocket as hk
comm = hk.init(backends=["{backend}"])
x = np.ones(1000, np.float32)
for _ in range(5):
    comm.all_reduce(x)
    comm.broadcast(x, 0)
from hocket.trace import find_recorders
(place,) = find_recorders(os.getpid())
rings = place.read().rings
print(len(rings["operations"].events) >= 10, [int(each) for each in rings["foreign"].events["kind"]])
""")
    environment = {"LD_PRELOAD": str(HOOKS), "HOCKET_OBSERVE": "comm,io"}
    variables = [f"{name}={value}" for name, value in environment.items()]
    command = ["env", *variables, sys.executable, "-m", "hocket", "run"]
    done = subprocess.run([*command, "-n", "2", str(script)], capture_output=True, text=True, timeout=scaled(100))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True []\n" * 2
