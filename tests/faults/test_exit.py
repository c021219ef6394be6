"""The exit of the interpreter with threads, callbacks and operations still active."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..load import scaled
from ..naming import assert_names
from ..tier import is_full, sample

pytestmark = [pytest.mark.timeout(120), pytest.mark.fresh_ranks]  # a forked child skips most of the interpreter's exit

IS_SOAK = bool(os.environ.get("HOCKET_SOAK"))
NUM_RUNS = 50 if IS_SOAK else 25 if is_full() else 5

# Modules are imported once; every run is a forked child that starts and exits. The end of a run depends on its number.
TORCH_RUNS = """
import torch
import torch.distributed as dist

import hocket.torch.process_group

def work(run):
    dist.init_process_group("hocket", init_method=f"file://{os.getcwd()}/store-{run}", rank=RANK, world_size=SIZE)
    def chain(length):
        def issue_another(future):
            if length:
                kept.append(dist.all_reduce(torch.ones(10), async_op=True).get_future().then(chain(length - 1)))
        return issue_another
    kept = [dist.all_reduce(torch.ones(n), async_op=True).get_future() for n in (2, 5000, 200_000)]
    kept += [future.then(lambda future: sum(range(1000))) for future in kept]
    ending = run % 5
    if ending == 1:
        dist.destroy_process_group()
        torch.futures.collect_all(kept).wait()  # all of them complete
    elif ending == 2:
        kept[0].wait()
    elif ending == 3:
        late = dist.all_reduce(torch.ones(3), async_op=True)
        dist.destroy_process_group()
        late.get_future().then(lambda future: sum(range(1000)))  # requested after the end of the group
    elif ending == 4:
        kept.append(dist.all_reduce(torch.ones(4), async_op=True).get_future().then(chain(50)))

for run in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        work(run)
        sys.exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0, (run, status)
"""


@pytest.mark.parametrize("repetition", range(10 if IS_SOAK else 1))
def test_torch_jobs_that_end_right_after_their_last_operation(run_job: Callable[..., Any], repetition: int) -> None:
    job = run_job(TORCH_RUNS, 2, str(NUM_RUNS))
    assert (job.return_code, job.stderr) == (0, "")


# The same with hocket only: each entry is the end of a program.
ENDS = {
    "pending in caller": "works = [comm.all_reduce(np.ones(n), async_op=True) for n in (3, 5000, 300_000)]",
    "dropped": "comm.all_reduce(np.ones(300_000), async_op=True)",
    "finalized": "work = comm.all_reduce(np.ones(300_000), async_op=True)\ncomm.finalize()\nassert work.done",
    "daemon in a wait": (
        "thread = threading.Thread(target=lambda: caught(comm.recv, np.ones(3), 1 - RANK), daemon=True)\n"
        "thread.start()\nwait_until(lambda: is_in_flight(comm, 'recv'))\n"
        "set_flag(f'in-{RANK}')\nawait_flags('in-0', 'in-1')"
    ),
    "thread in operations": (
        "copy = comm.dup()\n"
        "def repeat():\n"
        "    while caught(copy.all_reduce, np.ones(10)) is None:\n"
        "        set_flag(f'in-{RANK}')\n"
        "threading.Thread(target=repeat, daemon=True).start()\nawait_flags('in-0', 'in-1')"
    ),
    "callbacks": (
        "works = [comm.all_reduce(np.ones(n), async_op=True) for n in (3, 5000, 300_000)]\n"
        "for work in works:\n    work._on_finished(lambda: sum(range(1000)))"
    ),
    "callback that finalizes": "comm.all_reduce(np.ones(3), async_op=True)._on_finished(comm.finalize)",
}


@pytest.mark.parametrize("progress", ["caller", "thread"])
@pytest.mark.parametrize("end", sample(ENDS, 4))
def test_end_of_a_program(run_job: Callable[..., Any], end: str, progress: str) -> None:
    script = f"comm = hk.init(timeout=30, progress={progress!r})\ncomm.barrier()\n{ENDS[end]}\n"
    job = run_job(script, 2)
    assert (job.return_code, job.stderr) == (0, "")


# A failed operation without a wait makes the program fail. Values: the end of the program on rank 0 and on rank 1, the
# ranks that fail, and words of the error.
UNSEEN: dict[str, tuple[str, str, set[int], tuple[str, ...]]] = {
    "never joined": ("comm.all_reduce(x, async_op=True)", "pass", {0}, ("PeerFailure", "all_reduce(sum)", "rank 1")),
    "mismatch": (
        *("comm.all_reduce(x, async_op=True)", "comm.broadcast(x, 1, async_op=True)"),
        *({0, 1}, ("CollectiveMismatch", "all_reduce(sum)", "broadcast")),
    ),
    "another size": (
        *("comm.all_reduce(x, async_op=True)", "comm.all_reduce(x[:2], async_op=True)"),
        *({0, 1}, ("CollectiveMismatch", "24", "16")),
    ),
    "never sent": ("work = comm.irecv(x, 1)", "comm.irecv(x, 0)", {0, 1}, ("recv", "tag 0")),
    "callback that never comes": (
        *("work = comm.irecv(x, 1)\nwork._on_finished(lambda: note('called'))", "pass"),
        *({0}, ("PeerFailure", "recv", "rank 1")),
    ),
    "never received": ("comm.isend(np.ones(300_000), 1)", "pass", {0}, ("send", "2400000", "rank 1")),
    "in a group": ("comm.dup().all_reduce(x, async_op=True)", "comm.dup()", {0}, ("PeerFailure", "all_reduce(sum)")),
    "finalized": (
        *("comm.all_reduce(x, async_op=True)\ncomm.finalize()", "comm.finalize()"),
        *({0}, ("PeerFailure", "all_reduce(sum)")),
    ),
    "group finalized": (
        *("copy = comm.dup()\ncopy.all_reduce(x, async_op=True)\ncopy.finalize()", "comm.dup().finalize()"),
        *({0}, ("PeerFailure", "all_reduce(sum)")),
    ),
    "end of a with": (
        *("with comm:\n    comm.all_reduce(x, async_op=True)", "with comm:\n    pass"),
        *({0}, ("PeerFailure", "all_reduce(sum)")),
    ),
    "coalesced, dropped": (
        *("with contextlib.suppress(KeyError), comm.coalesced():\n    comm.all_reduce(x)\n    raise KeyError", "pass"),
        *({0}, ("PeerFailure", "all_reduce(sum)")),
    ),
    "prepared": (
        *("go = comm.prepare('all_reduce', x)\ngo.start()", "pass"),
        *({0}, ("PeerFailure", "all_reduce(sum)")),
    ),
    "aborted by the other": (
        *("comm.irecv(x, 1)\nawait_flags('over')", "comm.abort('enough')\nset_flag('over')"),
        *({0}, ("Aborted", "recv", "enough")),
    ),
}


@pytest.mark.parametrize("progress", ["caller", "thread"])
@pytest.mark.parametrize("end", sample(UNSEEN, 3, always=["never joined", "mismatch"]))
def test_a_failed_operation_without_a_wait_fails_the_program(
    run_job: Callable[..., Any], end: str, progress: str
) -> None:
    first, second, failing, names = UNSEEN[end]
    script = (
        f"import contextlib\ncomm = hk.init(timeout=5, progress={progress!r})\nx = np.ones(3)\ncomm.barrier()\n"
        f"if RANK == 0:\n{textwrap.indent(first, '    ')}\nelse:\n{textwrap.indent(second, '    ')}\n"
    )
    job = run_job(script, 2)
    assert job.return_code == 1
    assert_names(job.stderr, *names, "script.py", *(f"rank {rank}" for rank in failing))


# The program has seen the failure, or caused it: the exit does not report it again.
SEEN = {
    "waited for": "assert caught(comm.all_reduce(x, async_op=True).wait)",
    "tested": ("work = comm.all_reduce(x, async_op=True)\nwait_until(lambda: caught(work.test) is not None)"),
    "looked at": "work = comm.all_reduce(x, async_op=True)\nwait_until(lambda: work._drive())\nassert work.exception()",
    "two, one waited for": (
        "works = [comm.all_reduce(x, async_op=True) for _ in range(2)]\nassert caught(works[1].wait)"
    ),
    "another group": ("work = copy.all_reduce(x, async_op=True)\nassert caught(comm.recv, x, 1)\n"),
    "finalized twice": ("comm.all_reduce(x, async_op=True)\nassert caught(comm.finalize)\ncomm.finalize()"),
    "aborted here": "comm.irecv(x, 1)\nassert comm.abort('enough') is None\nassert caught(comm.barrier)",
}


@pytest.mark.parametrize("end", sample(SEEN, 2))
def test_a_failure_that_the_program_has_seen_is_not_reported_again(run_job: Callable[..., Any], end: str) -> None:
    script = (
        "comm = hk.init(timeout=5)\ncopy = comm.dup()\nx = np.ones(3)\ncomm.barrier()\n"
        f"if RANK == 0:\n{textwrap.indent(SEEN[end], '    ')}\n"
    )
    job = run_job(script, 2)
    assert job.return_code == 0, job.stderr


def test_exit_codes_of_failures_are_kept(run_job: Callable[..., Any]) -> None:
    script = """
comm = hk.init(timeout=5)
comm.barrier()
if RANK == 0:
    comm.all_reduce(np.ones(3), async_op=True)
    sys.exit(7)
"""
    job = run_job(script, 2)
    assert job.return_code == 7
    assert_names(job.stderr, "all_reduce(sum)")


def test_finalize_while_another_thread_issues(run_job: Callable[..., Any]) -> None:
    script = """
comm = hk.init(timeout=30, progress=sys.argv[1])
for cycle in range(int(sys.argv[2])):
    copy = comm.dup()
    begun = threading.Event()
    seen = []
    def issue():
        x = np.ones(3)
        try:
            while True:
                copy.all_reduce(x)
                copy.all_reduce(x, async_op=True).wait()
                copy.isend(x, RANK)
                begun.set()
        except (hk.InvalidState, hk.PeerFailure, hk.Aborted) as error:
            seen.append(error)
        begun.set()
    thread = threading.Thread(target=issue)
    thread.start()
    begun.wait()
    copy._leave(0.0)
    thread.join()
    assert len(seen) == 1
    comm.barrier()
"""
    for progress in ("caller", "thread"):
        job = run_job(script, 2, progress, str(150 if is_full() else 30))
        assert (job.return_code, job.stderr) == (0, "")


@pytest.mark.timeout(90)
def test_wait_that_ends_with_the_interpreter(run_job: Callable[..., Any]) -> None:
    """Threads that wait in torch for messages return when the peer has died, after the interpreter's exit."""
    script = """
import builtins, importlib
importlib.import_module("torch").set_num_threads(1)
comm = hk.init(backends=["shm", "gloo"], timeout=30, progress="caller")
comm.barrier(backend="gloo")
if RANK == 1:
    await_flags("ending")
    os._exit(0)

class Late:
    mkdir, sleep = os.mkdir, time.sleep
    def __del__(self):  # the last object that the interpreter deletes
        type(self).mkdir("flag-ending")
        type(self).sleep(1)

builtins.late = Late()
works = [comm.irecv(np.zeros(10), 1, tag, backend="gloo") for tag in range(20)]
_ = [work.test() for work in works]
"""
    job = run_job(script, 2)
    assert job.return_code == 1
    assert_names(job.stderr, "recv", "tag 0", "rank 0")
    assert "terminate" not in job.stderr


def test_messages_in_flight_at_the_end_of_a_program_arrive(run_job: Callable[..., Any]) -> None:
    script = """
import hocket.session.world as world

world._EXIT_DRAIN_S = 30.0  # enough time on a busy machine
comm = hk.init(timeout=30, progress="caller")
x = np.full(1_000_000, float(RANK))
if RANK == 0:
    work = comm.irecv(x, 1)
    comm.barrier()
    work.wait()
    assert (x == 1).all()
else:
    comm.barrier()
    comm.isend(x, 0)  # without a wait
"""
    job = run_job(script, 2)
    assert (job.return_code, job.stderr) == (0, "")


_LOCKED_THREAD = """
#include <Python.h>
#include <atomic>
#include <mutex>
#include <thread>

namespace {
std::mutex held;
std::atomic<bool> is_held{false};

// As a thread of torch's gloo that lets go of a tensor: Python ends it, which no destructor may let through.
void run() noexcept {
  const std::lock_guard<std::mutex> guard(held);
  is_held = true;
  while (!_Py_IsFinalizing()) std::this_thread::yield();
  PyGILState_Ensure();
}
}  // namespace

extern "C" void start() {
  std::thread(run).detach();
  while (!is_held) std::this_thread::yield();
  Py_AtExit([] { held.lock(); });
}
"""


@pytest.mark.full
@pytest.mark.timeout(120)
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python 3.13 has this function under another name")
def test_an_exit_that_waits_for_a_thread_without_interpreter_ends(tmp_path: Path) -> None:
    """torch 2.13 waits for a lock of such a thread in the destructor of its process group."""
    (tmp_path / "thread.cpp").write_text(_LOCKED_THREAD)
    include = sysconfig.get_paths()["include"]
    command = ["c++", "-std=c++20", "-shared", "-fPIC", f"-I{include}", "thread.cpp", "-o", "thread.so"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=scaled(60))
    program = "import ctypes, hocket._native; ctypes.PyDLL('./thread.so').start()"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, timeout=scaled(80))
    assert done.returncode == -signal.SIGABRT and b"a thread of another library" in done.stderr
