"""Communicators leave no file descriptors, mappings or shared pages in a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..tier import is_full

pytestmark = pytest.mark.timeout(120)

COUNTS = """
def counts():
    with open("/proc/self/maps") as file:
        return len(os.listdir("/proc/self/fd")), sum("hocket" in line for line in file)

def segment_bytes():
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:hocket (deleted)"):
                return os.stat(f"/proc/self/fd/{fd}").st_blocks * 512
        except OSError:
            pass
    return 0

def use(comm):
    for n in (3, 3000, 200_000):
        comm.all_reduce(np.ones(n))
    x = np.zeros(100_000)
    work = comm.irecv(x, (comm.rank + 1) % comm.size)
    comm.send(x, (comm.rank - 1) % comm.size)
    work.wait()
"""


@pytest.mark.parametrize("progress", ["caller", "thread"])
def test_cycles_of_init_and_finalize(run_job: Callable[..., Any], progress: str) -> None:
    script = """
def cycle():
    comm = hk.init(timeout=30, progress=sys.argv[1])
    use(comm)
    if RANK:
        comm.split(0 if RANK == 1 else None)
    else:
        comm.split(None)
    comm.finalize()

cycle()
before = counts()
threads = len(os.listdir("/proc/self/task"))
for _ in range(int(sys.argv[2])):
    cycle()
note("counts", before=before, after=counts())
assert segment_bytes() == 0
wait_until(lambda: len(os.listdir("/proc/self/task")) == threads)  # a joined thread may still be exiting
"""
    job = run_job(COUNTS + script, 3, progress, str(50 if is_full() else 10))
    assert (job.return_code, job.stderr) == (0, "")
    assert len(job.notes("counts")) == 3
    for note in job.notes("counts"):
        assert note["after"] == note["before"]


def test_cycles_of_split_and_finalize(run_job: Callable[..., Any]) -> None:
    script = """
comm = hk.init(timeout=30)
def cycle(number):
    part = (lambda: comm.split(0), comm.dup, lambda: comm.group([1, 0]))[number % 3]()
    use(part)
    if number % 2:
        part.finalize()  # otherwise only garbage-collected

for number in range(6):
    cycle(number)
comm.barrier()
before = counts()
pages = segment_bytes()
for number in range(int(sys.argv[1])):
    cycle(number)
comm.barrier()
# The last member to leave frees the pages, perhaps a moment after this rank.
wait_until(lambda: segment_bytes() <= pages)
note("counts", before=before, after=counts())
comm.barrier()
"""
    job = run_job(COUNTS + script, 2, str(200 if is_full() else 40))
    assert (job.return_code, job.stderr) == (0, "")
    for note in job.notes("counts"):
        assert note["after"] == note["before"]


def test_failed_attempts_leave_nothing(run_job: Callable[..., Any]) -> None:
    script = """
if RANK:
    sys.exit(0)
def attempt():
    assert isinstance(caught(hk.init, timeout=0.05), hk.CommTimeout)
attempt()
before = counts()
for _ in range(20):
    attempt()
assert counts() == before
"""
    job = run_job(COUNTS + script, 2)
    assert (job.return_code, job.stderr) == (0, "")


def test_arrays_are_released(run_job: Callable[..., Any]) -> None:
    script = """
comm = hk.init(timeout=30, progress=sys.argv[1])
references = lambda: [sys.getrefcount(x) for x in arrays]
arrays = [np.ones(n) for n in (3, 3000, 200_000)]
before = references()
for _ in range(3):
    works = [comm.all_reduce(x, async_op=True) for x in arrays]
    for work in works:
        work.wait()
    del work, works
    for x in arrays:
        comm.all_reduce(x)
    del x
    # Handles without a wait: the next calls release the arrays of their operations.
    for index in range(3):
        comm.all_reduce(arrays[index], async_op=True)
    comm.barrier()
    comm.barrier(async_op=True).wait()
assert references() == before, (references(), before)
"""
    for progress in ("caller", "thread"):
        job = run_job(COUNTS + script, 2, progress)
        assert (job.return_code, job.stderr) == (0, "")
