"""What the hooks record of windows, partitioned messages, short-lived communicators, and compiled programs."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hocket.bench.launchers import wheel_file
from hocket.trace.region import Definition, RecorderSnapshot, read_recorder

from ..load import scaled
from .mpi_jobs import LAUNCHERS, operations, run_executable, run_mpi, start_mpi

pytestmark = [
    pytest.mark.timeout(240),
]
EACH_LIBRARY = pytest.mark.parametrize("library", LAUNCHERS)

_WINDOWS = """
import numpy as np
memory = np.zeros(64)
window = MPI.Win.Create(memory, 8, comm=world)
window.Set_name("halo")
other, expected = 1 - world.rank, []
x, y = np.arange(16.0), np.zeros(16)
window.Fence()
window.Put(x[:5], other); expected.append(["put", 40])
window.Get(y[:6], other, 8); expected.append(["get", 48])
window.Accumulate(x[:3], other, 20, op=MPI.SUM); expected.append(["accumulate", 24])
window.Fence()
window.Get_accumulate(x[:2], y[:2], other, 30, op=MPI.SUM); expected.append(["get_accumulate", 16])
window.Get_accumulate([x, 0], y[:4], other, 30, op=MPI.NO_OP); expected.append(["get_accumulate", 32])
window.Fence()
window.Lock(other)
window.Fetch_and_op(x[:1], y[:1], other, 40); expected.append(["get_accumulate", 8])
window.Compare_and_swap(np.ones(1, int), np.ones(1, int), np.zeros(1, int), other, 50)
expected.append(["get_accumulate", 8])
window.Rput(x[:7], other).Wait(); expected.append(["put", 56])
window.Rget(y[:8], other).Wait(); expected.append(["get", 64])
window.Raccumulate(x[:1], other).Wait(); expected.append(["accumulate", 8])
window.Rget_accumulate(x[:9], y[:9], other).Wait(); expected.append(["get_accumulate", 72])
window.Put(x, MPI.PROC_NULL); expected.append(["put", 0])
window.Unlock(other)
window.Free()
leave(expected)
"""


@EACH_LIBRARY
def test_one_sided_operations(library: str, tmp_path: Path) -> None:
    job = run_mpi(library, _WINDOWS, tmp_path)
    for rank, (snapshot, expected) in enumerate(zip(job.recordings, job.results, strict=True)):
        found = operations(snapshot)
        assert [[each["kind"], each["nbytes"]] for each in found] == expected
        assert {each["comm"] for each in found} == {"halo"}
        assert [each["peer"] for each in found[:-1]] == [1 - rank] * (len(expected) - 1)
        assert all(each["state"] == "completed" for each in found)
        assert snapshot.members[found[0]["id"]] == (0, 1)


_PARTITIONED = """
import numpy as np
x, other = np.arange(60.0), 1 - world.rank
if world.rank == 0:
    request = world.Psend_init(x, 6, 1, 4)
else:
    x[:] = 0
    request = world.Precv_init(x, 6, 0, 4)
for _ in range(3):
    request.Start()
    if world.rank == 0:
        request.Pready_range(0, 5)
    request.Wait()
request.Free()
leave(float(x.sum()))
"""


@EACH_LIBRARY
def test_partitioned_messages(library: str, tmp_path: Path) -> None:
    job = run_mpi(library, _PARTITIONED, tmp_path)
    assert job.results == [1770.0] * 2
    for rank, snapshot in enumerate(job.recordings):
        found = [(each["kind"], each["nbytes"], each["peer"], each["tag"]) for each in operations(snapshot)]
        assert found == [("recv" if rank else "send", 480, 1 - rank, 4)] * 3


_COMMUNICATORS = """
import numpy as np
out = np.zeros(1000, np.uint8)
matrix = [[0] * 3 for _ in range(3)]
owned = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, other: other.Free())
for number in range(30):
    order = [(rank + number) % 3 for rank in range(3)]  # the place of each rank
    comm = world.Split(0, order[world.rank])
    assert comm.rank == order[world.rank]
    comm.Sendrecv(np.ones(10 * number + comm.rank, np.uint8), (comm.rank + 1) % 3, 0, out, (comm.rank - 1) % 3, 0)
    for place in range(3):
        matrix[order.index(place)][order.index((place + 1) % 3)] += 10 * number + place
    if number % 2:
        comm.Free()
    else:  # from inside of another call of MPI
        owner = MPI.COMM_SELF.Dup()
        owner.Set_attr(owned, comm)
        owner.Free()
pair = world.Split(world.rank // 2, 0)  # ranks 0 and 1, and rank 2
between = pair.Create_intercomm(0, world, 2 if world.rank < 2 else 0)
between.Set_name("between")
if world.rank == 2:
    between.Send(np.ones(50, np.uint8), 1)
    matrix[2][1] += 50
elif world.rank == 1:
    between.Recv(out, 0)
leave(matrix[world.rank])
"""


@EACH_LIBRARY
def test_handles_of_freed_communicators_are_used_again(library: str, tmp_path: Path) -> None:
    job = run_mpi(library, _COMMUNICATORS, tmp_path, num_ranks=3)
    assert len({each["id"] for each in operations(job.recordings[0])}) >= 30
    for rank, snapshot in enumerate(job.recordings):
        row = Counter[int]()
        for each in operations(snapshot):
            if each["kind"] == "send":
                row[snapshot.members[each["id"]][each["peer"]]] += each["nbytes"]
            if each["comm"].startswith("MPI comm "):
                assert each["seq"] <= 1
        assert [row[other] for other in range(3)] == job.results[rank]


@pytest.mark.parametrize(("text", "members"), [
    ("0-3,7,-1", (0, 1, 2, 3, 7, -1)), ("2,1,0", (2, 1, 0)), ("", ()), ("0,x", ()), ("3-1", ()),
    ("0-999999999", ()), ("0-1000000,0-1000000", ()), ("1" * 4000, ()),
])  # fmt: skip
def test_members_of_a_damaged_recorder(text: str, members: tuple[int, ...]) -> None:
    definition = Definition("members", text, 5, 0, 0)
    assert RecorderSnapshot.members.func(SimpleNamespace(definitions=(definition,))) == {5: members}


_WAITING = """
import time
import numpy as np
if world.rank == 1:
    open(os.path.join(os.environ["TEST_FOLDER"], "ready"), "w").close()
    world.Recv(np.zeros(100), 0, 77)
else:
    while not os.path.exists(os.path.join(os.environ["TEST_FOLDER"], "go")):
        time.sleep(0.01)
    world.Send(np.zeros(100), 1, 77)
leave(None)
"""


def test_a_rank_that_waits_is_seen_from_outside(tmp_path: Path) -> None:
    with start_mpi("mpich", _WAITING, tmp_path) as process:
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + scaled(60)
        while not found and time.monotonic() < deadline:
            time.sleep(0.05)
            found = [each for snapshot in _recordings(tmp_path) for each in operations(snapshot)]
        (waiting,) = found
        assert [waiting[name] for name in ("kind", "peer", "tag", "state")] == ["recv", 0, 77, "started"]
        (tmp_path / "go").touch()
        assert process.wait(scaled(60)) == 0
    states = {(each["kind"], each["state"]) for one in _recordings(tmp_path) for each in operations(one)}
    assert states == {("send", "completed"), ("recv", "completed")}


def _recordings(folder: Path) -> list[RecorderSnapshot]:
    paths = (folder / "recorders").iterdir() if (folder / "ready").exists() else ()
    return [each for path in paths if (each := read_recorder(path)).owner.rank == 1 or (folder / "go").exists()]


_COMPILED = """
#ifdef STANDARD_ABI
#include <mpi_abi.h>
#else
#include <mpi.h>
#endif
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char** argv) {
  double x[10] = {1}, y[10];
  int rank, count, failed = 0;
  MPI_Status status;
  MPI_Request requests[2];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) {
    MPI_Send(x, 7, MPI_DOUBLE, 1, 5, MPI_COMM_WORLD);
  } else {
    MPI_Recv(y, 10, MPI_DOUBLE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_DOUBLE, &count);
    failed = count != 7 || status.MPI_SOURCE != 0 || status.MPI_TAG != 5;
  }
  MPI_Irecv(y, 10, MPI_FLOAT, 1 - rank, 1, MPI_COMM_WORLD, &requests[0]);
  MPI_Isend(x, 3, MPI_FLOAT, 1 - rank, 1, MPI_COMM_WORLD, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  MPI_Allreduce(MPI_IN_PLACE, x, 4, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce_c(x, y, 5, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  if (fork() == 0) _exit(0);
  wait(0);
  MPI_Finalize();
  return failed;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("abi", ["mpich", "standard"])
def test_a_compiled_program(abi: str, tmp_path: Path) -> None:
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(_COMPILED)
    file = "libmpi.so.12" if abi == "mpich" else "libmpi_abi.so.1"
    library, header = wheel_file("mpich", file), wheel_file("mpich", "mpi_abi.h")
    flags = ["-DSTANDARD_ABI"] if abi == "standard" else []
    folders = [f"-I{Path(header).parent}", f"-Wl,-rpath,{Path(library).parent}"]
    subprocess.run(["gcc", *flags, str(source), "-o", str(program), library, *folders], check=True)
    job = run_executable("mpich", program, tmp_path, variables={})
    for rank, snapshot in enumerate(job.recordings):
        found = [
            (each["kind"], each["nbytes"], each["peer"], each["tag"], each["dtype"], each["reduction"])
            for each in operations(snapshot)
        ]
        other = 1 - rank
        assert found == [
            ("recv" if rank else "send", 56, other, 5, "float64", None),
            ("recv", 12, other, 1, "float32", None), ("send", 12, other, 1, "float32", None),
            ("all_reduce", 32, -1, 0, "float64", "max"), ("all_reduce", 40, -1, 0, "float64", "sum"),
        ]  # fmt: skip


def test_v_functions_of_an_unobserved_program(tmp_path: Path) -> None:
    """Open MPI 5 has no functions with large counts, but the hooks have: mpi4py calls them, whatever is observed."""
    script = """
import numpy as np
counts = [1, 2]
out = np.zeros(3)
world.Allgatherv(np.full(world.rank + 1, world.rank + 1.0), [out, counts])
request = world.Iallgatherv(np.full(world.rank + 1, 2.0), [out, counts])
request.Wait()
leave(out.tolist())
"""
    job = run_mpi("openmpi", script, tmp_path, observe="nothing")
    assert job.results == [[2.0] * 3] * 2
    assert job.recordings == [] and list((tmp_path / "recorders").iterdir()) == []
