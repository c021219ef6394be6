"""The performance variables of MPI libraries (MPI_T) that the hooks read, beside what the library must have counted."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from hocket.trace import RecorderSnapshot

from .mpi_jobs import LAUNCHERS, run_mpi

pytestmark = pytest.mark.timeout(240)
EACH_LIBRARY = pytest.mark.parametrize("library", LAUNCHERS)
MONITORING = {"OMPI_MCA_pml_monitoring_enable": "2"}


def variables_of(snapshot: RecorderSnapshot) -> dict[str, dict[int, list[float]]]:
    """Return the recorded values of each element of each variable, oldest first."""
    names = {each.id: each.text for each in snapshot.definitions if each.kind == "counter"}
    found: dict[str, dict[int, list[float]]] = {name.removeprefix("mpi_t:"): {} for name in names.values()}
    ring = snapshot.rings["process"]
    assert ring.issued == ring.recorded == len(ring.events)
    for event in ring.events:
        (value,) = struct.unpack("<d", struct.pack("<Q", int(event["aux"])))
        elements = found[names[int(event["comm"])].removeprefix("mpi_t:")]
        elements.setdefault(int(event["seq"]), []).append(value)
    return found


# Sizes and numbers of messages differ by sender and receiver; no collective is used.
_MESSAGES = """
import time
import numpy as np
sizes = [[0] * world.size for _ in range(world.size)]
sent = {}
for source in range(world.size):
    for target in range(world.size):
        if source == target:
            continue
        for number in range(3 + source + 2 * target):
            nbytes = 10 * source + 100 * target + number
            if world.rank == source:
                world.Send(np.zeros(nbytes, np.uint8), target)
                count, total = sent.get(target, (0, 0))
                sent[target] = (count + 1, total + nbytes)
            elif world.rank == target:
                world.Recv(np.zeros(nbytes, np.uint8), source)
        if world.rank == source:
            time.sleep(0.15)
leave(sent)
"""


def test_open_mpis_counts_of_messages(tmp_path: Path) -> None:
    job = run_mpi("openmpi", _MESSAGES, tmp_path, num_ranks=3, variables=MONITORING)
    for snapshot, sent in zip(job.recordings, job.results, strict=True):
        found = variables_of(snapshot)
        assert found["num_variables"][0][-1] == len(found) - 1 >= 10
        for name, index in (("count", 0), ("size", 1)):
            elements = found[f"pml_monitoring_messages_{name}"]
            assert {str(peer): values[-1] for peer, values in elements.items()} == {
                peer: each[index] for peer, each in sent.items()
            }
            assert all(values == sorted(values) for values in elements.values())


_UNEXPECTED = """
import time
import numpy as np
if world.rank == 0:
    for tag in range(5):
        world.Send(np.zeros(8, np.uint8), 1, tag)
world.Barrier()
time.sleep(0.25)
world.Barrier()  # a call at which they are read
if world.rank == 1:
    for tag in range(5):
        world.Recv(np.zeros(8, np.uint8), 0, tag)
time.sleep(0.25)
world.Barrier()
leave(None)
"""


def test_open_mpis_queue_of_messages_that_nobody_has_received(tmp_path: Path) -> None:
    job = run_mpi("openmpi", _UNEXPECTED, tmp_path)
    lengths = variables_of(job.recordings[1])["pml_ob1_unexpected_msgq_length"][0]
    assert 5 in lengths and lengths[-1] == 0


@EACH_LIBRARY
def test_a_library_has_as_many_variables_as_it_says(library: str, tmp_path: Path) -> None:
    job = run_mpi(library, _OWN_USE, tmp_path, arguments=["inside"])
    for snapshot, result in zip(job.recordings, job.results, strict=True):
        found = variables_of(snapshot)
        assert found.pop("num_variables") == {0: [len(found)]}
        assert found.keys() <= set(result["names"])
        assert bool(found) == bool(result["names"])  # the wheel of MPICH is built without any


# A program that uses the tool interface itself: before MPI begins, inside of it, or until after its end.
_OWN_USE = """
import ctypes
import time
from mpi4py import MPI
library = ctypes.CDLL(os.environ["MPI4PY_LIBMPI"])
number, level = ctypes.c_int(), ctypes.c_int()
when = sys.argv[1]
checks = []

def begin():
    checks.append(library.MPI_T_init_thread(3, ctypes.byref(level)))

def end():
    checks.append(library.MPI_T_finalize())

begin()
checks.append(library.MPI_T_pvar_get_num(ctypes.byref(number)))
names = []
for index in range(number.value):
    name, length, text = ctypes.create_string_buffer(256), ctypes.c_int(256), ctypes.create_string_buffer(1024)
    rest = [ctypes.c_long() for _ in range(9)]
    places = [ctypes.byref(each) for each in rest]
    rest[3].value = 1024
    checks.append(library.MPI_T_pvar_get_info(
        index, name, ctypes.byref(length), *places[:2], places[4], places[5], text, places[3], *places[6:], places[2]))
    names.append(name.value.decode())
if when == "inside":
    end()
for _ in range(4):
    time.sleep(0.06)
    world.Barrier()
sum_of_ranks = world.allreduce(world.rank)
if when == "unused":
    end()
    begin()
    end()
leave({"names": names, "checks": checks, "sum": sum_of_ranks})
if when in ("after", "never"):
    MPI.Finalize()
if when == "after":
    assert library.MPI_T_pvar_get_num(ctypes.byref(number)) == 0
    end()
    assert not any(checks)
"""


@EACH_LIBRARY
@pytest.mark.parametrize("when", ["inside", "unused", "after", "never"])
def test_programs_that_use_the_tool_interface_notice_nothing(library: str, when: str, tmp_path: Path) -> None:
    watched = run_mpi(library, _OWN_USE, tmp_path / "watched", arguments=[when], variables=MONITORING)
    plain = run_mpi(library, _OWN_USE, tmp_path / "plain", arguments=[when], variables=MONITORING, observe=None)
    assert watched.results == plain.results
    assert not any(watched.results[0]["checks"])
    assert all("num_variables" in variables_of(snapshot) for snapshot in watched.recordings)


_THREADS = """
import threading
import time
import numpy as np
assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
comms = [world.Dup() for _ in range(3)]
end = time.monotonic() + 1
def work(comm):
    count = 0
    for count in range(10**9):
        if comm.allreduce(int(time.monotonic() > end)):
            return
        comm.Sendrecv(np.zeros(100, np.uint8), 1 - comm.rank, 0, np.zeros(100, np.uint8), 1 - comm.rank, 0)
threads = [threading.Thread(target=work, args=(comm,)) for comm in comms]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
leave(None)
"""


def test_threads_that_call_mpi_at_the_same_time(tmp_path: Path) -> None:
    job = run_mpi("openmpi", _THREADS, tmp_path, variables=MONITORING)
    for snapshot in job.recordings:
        ring = snapshot.rings["process"]
        times = sorted(set(ring.events["t_begin"].tolist()))
        assert len(times) > 3 and ring.dropped == 0


@EACH_LIBRARY
def test_they_belong_to_the_layer_of_communication(library: str, tmp_path: Path) -> None:
    job = run_mpi(library, "world.Barrier(); leave(None)", tmp_path, observe="io")
    for snapshot in job.recordings:
        assert snapshot.rings["process"].issued == 0
