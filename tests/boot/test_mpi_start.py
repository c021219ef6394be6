"""Plain MPI programs under the launcher: one job over each MPI, and its end if ranks start or leave MPI separately."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hocket.reserved_port import ReservedPort

from ..naming import assert_names
from ..program import start_python
from ..tier import covering, full

pytestmark = pytest.mark.timeout(120)

LIBRARIES = {name: str(Path(sys.prefix) / "lib" / file) for name, file in (
    ("mpich", "libmpi.so.12"), ("openmpi", "libmpi.so.40")
)}  # fmt: skip
EACH_LIBRARY = pytest.mark.parametrize("library", LIBRARIES)
EACH_START = pytest.mark.parametrize(
    ("library", "initialise"),
    covering(itertools.product(LIBRARIES, ["", "import mpi4py; mpi4py.rc.initialize = False"]), tuple, strength=1),
)
PLAIN = """
from mpi4py import MPI
world = MPI.COMM_WORLD
assert world.rank == RANK
print(world.size, world.allreduce(world.rank), flush=True)
"""


def with_library(name: str) -> dict[str, str]:
    return {"MPI4PY_LIBMPI": LIBRARIES[name]}


def with_segments_in(folder: Path) -> dict[str, str]:
    """Variables that keep the files of an Open MPI that is not finalized in a folder."""
    return {"OMPI_MCA_btl_sm_backing_directory": str(folder)}


@EACH_START
def test_a_plain_program_is_one_job(start_job: Callable[..., Any], library: str, initialise: str) -> None:
    script = initialise + PLAIN.replace("world =", "MPI.Is_initialized() or MPI.Init(); world =")
    before = set(os.listdir("/dev/shm"))
    job = start_job(script, 3, env=with_library(library))
    assert job.finish() == 0, job.stderr
    assert job.stdout == "3 3\n" * 3
    assert job.leftovers() == [] and {each for each in os.listdir("/dev/shm") if "pmix" in each} <= before


@EACH_LIBRARY
def test_a_rank_that_ends_without_mpi_ends_the_job(start_job: Callable[..., Any], library: str) -> None:
    job = start_job("if RANK == 1: sys.exit(0)\n" + PLAIN, 3, env=with_library(library))
    assert job.finish() == 1
    assert_names(job.stderr.splitlines()[0], "rank 1", "ranks 0, 2", "MPI_Init")
    assert job.leftovers() == []


def test_a_rank_that_fails_before_mpi_is_the_cause(start_job: Callable[..., Any]) -> None:
    job = start_job("if RANK == 1: sys.exit(5)\n" + PLAIN, 2)
    assert job.finish() == 5
    assert "MPI_Init" not in job.stderr


@EACH_LIBRARY
def test_who_is_waited_for_is_named_and_the_job_ends_in_time(start_job: Callable[..., Any], library: str) -> None:
    script = "if RANK == 1: signal.pause()\n" + PLAIN
    job = start_job(script, 3, mpi_named_after_s=0.2, mpi_start_s=1.5, env=with_library(library))
    assert job.finish() == 124
    named = [line for line in job.stderr.splitlines() if "MPI_Init" in line]
    assert len(named) == 2
    for line in named:
        assert_names(line, "rank 1", "waited")
    assert job.leftovers() == []


def test_a_rank_that_ends_without_finalize_ends_the_job(start_job: Callable[..., Any]) -> None:
    job = start_job(PLAIN + "if RANK == 1: os._exit(0)", 3, env=with_library("mpich"))
    assert job.finish() == 1
    assert_names(job.stderr.splitlines()[0], "rank 1", "MPI_Finalize")


@EACH_START
def test_a_rank_that_ends_at_once_while_others_wait_ends_the_job(
    start_job: Callable[..., Any], library: str, initialise: str
) -> None:
    """As MPI's own launchers do: exit code 0 without MPI_Finalize is a failure."""
    script = (
        initialise
        + PLAIN.replace("world =", "MPI.Is_initialized() or MPI.Init(); world =")
        + "if RANK == 1: os._exit(0)\nworld.Barrier(); world.Barrier()\n"
    )
    job = start_job(script, 2, env=with_library(library))
    assert job.finish() == 1
    assert_names(job.stderr.splitlines()[0], "rank 1", "MPI_Finalize")
    assert job.leftovers() == []


@pytest.mark.parametrize(
    ("library", "end", "code"),
    [(*each, 3 if each[1] == "3" else 1)
     for each in covering(itertools.product(LIBRARIES, ["3", "'no input'"]), tuple, strength=1)],
)  # fmt: skip
def test_an_exit_code_counts_though_mpi_would_wait_for_the_others(
    start_job: Callable[..., Any], library: str, end: str, code: int
) -> None:
    job = start_job(
        PLAIN + f"if RANK == 1: sys.exit({end})\nworld.Barrier(); world.Barrier()\n", 2, env=with_library(library)
    )
    assert job.finish() == code
    assert_names(job.stderr, "rank 1")
    assert job.leftovers() == []


def test_ranks_that_all_exit_with_a_code_are_not_ended(start_job: Callable[..., Any]) -> None:
    job = start_job(PLAIN + "sys.exit(3)\n", 2)
    assert job.finish() == 3
    assert "terminated" not in job.stderr


@EACH_LIBRARY
def test_abort_with_0_is_a_failure(start_job: Callable[..., Any], library: str) -> None:
    job = start_job(
        PLAIN + "if RANK == 1: world.Abort(0)\nworld.Barrier(); world.Barrier()\n", 2, env=with_library(library)
    )
    assert job.finish() == 1
    assert_names(job.stderr, "rank 1", "MPI_Abort(0)")


@pytest.mark.parametrize(
    "spawn", ["Spawn(sys.executable, maxprocs=1)", "Spawn_multiple([sys.executable] * 2, maxprocs=[1, 1])"]
)
def test_a_spawn_is_refused_and_the_program_goes_on(start_job: Callable[..., Any], spawn: str) -> None:
    script = (
        PLAIN
        + f"""
try:
    MPI.COMM_SELF.{spawn}
except MPI.Exception:
    print("refused", world.allreduce(1), flush=True)
"""
    )
    job = start_job(script, 2)
    assert job.finish() == 0, job.stderr
    assert job.stdout.count("refused 2") == 2
    (told,) = [line for line in job.stderr.splitlines() if "MPI_Comm_spawn" in line]
    assert_names(told, "mpi4py.futures")


@EACH_LIBRARY
def test_abort_ends_all_with_its_code(start_job: Callable[..., Any], library: str) -> None:
    script = PLAIN + "if RANK == 1: world.Abort(7)\nsignal.pause()"
    job = start_job(script, 2, env=with_library(library))
    assert job.finish() == 7
    assert_names(job.stderr, "MPI_Abort(7)" if library == "mpich" else "rank 1", "7")
    assert job.leftovers() == []


@EACH_LIBRARY
def test_a_killed_launcher_leaves_no_shared_memory(start_job: Callable[..., Any], library: str) -> None:
    before = set(os.listdir("/dev/shm"))
    job = start_job(PLAIN + "signal.pause()", 2, env=with_library(library))
    assert job.read_line() == job.read_line() == "2 1\n"
    job.process.kill()
    job.process.wait()
    deadline_s = time.monotonic() + 20
    while set(os.listdir("/dev/shm")) - before:
        assert time.monotonic() < deadline_s, set(os.listdir("/dev/shm")) - before
        time.sleep(0.05)


def test_a_killed_server_of_open_mpis_leaves_no_folder(start_job: Callable[..., Any]) -> None:
    script = """
if RANK == 1:
    signal.pause()
helper = subprocess.run(["pgrep", "-P", str(os.getppid()), "-f", "pmix_server"], capture_output=True, text=True)
os.kill(int(helper.stdout), signal.SIGKILL)
print("killed", any("pmix" in name for name in os.listdir("/dev/shm")), flush=True)
"""
    before = set(os.listdir("/dev/shm"))
    job = start_job(PLAIN + script + "os._exit(0)", 2, env=with_library("openmpi"))
    assert job.finish() == 1
    assert_names(job.stderr.splitlines()[0], "rank 0", "MPI_Finalize")
    assert "killed True\n" in job.stdout
    assert {each for each in os.listdir("/dev/shm") if "pmix" in each} <= before


SHOW = "import os; print(sorted(name for name in os.environ if name.startswith(('PMI_', 'PMIX', 'HOCKET_PMI'))))"
CHILDREN = """
import multiprocessing, ctypes
show = [sys.executable, "-c", SHOW]
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
def in_child():
    print([name for name in os.environ if name.startswith("PMI_")], libc.getenv(b"PMI_FD"), flush=True)
if __name__ == "__main__":
    fd = int(os.environ["PMI_FD"])
    print("subprocess", subprocess.run(show, capture_output=True, text=True).stdout.strip())
    print("variables", subprocess.run(show, capture_output=True, text=True, env=dict(os.environ)).stdout.strip())
    in_shell = f"{sys.executable} -c \\"{SHOW}\\""
    print("shell", subprocess.run(in_shell, shell=True, capture_output=True, text=True).stdout.strip())
    holding = subprocess.run(show, capture_output=True, text=True, pass_fds=[fd]).stdout.strip()
    print("holding", holding)
    sys.stdout.flush()
    for method in ("fork", "spawn"):
        child = multiprocessing.get_context(method).Process(target=in_child)
        child.start()
        child.join()
    assert os.environ["PMI_FD"] == str(fd) and libc.getenv(b"PMI_FD") == str(fd).encode()
    from mpi4py import MPI
    print("own", MPI.COMM_WORLD.size)
"""


def test_programs_that_a_rank_starts_are_no_ranks(start_job: Callable[..., Any]) -> None:
    job = start_job(f"SHOW = {SHOW!r}\n" + CHILDREN, 2, env=with_library("mpich"))
    assert job.finish() == 0, job.stderr
    lines = job.stdout.splitlines()
    own = "['HOCKET_PMI_FD', 'PMI_FD', 'PMI_RANK', 'PMI_SIZE']"
    for expected in ("subprocess []", "variables []", "shell []", f"holding {own}", "own 2"):
        assert lines.count(expected) == 2, job.stdout
    assert lines.count("[] None") == 4, job.stdout


def test_a_launcher_within_a_rank_starts_its_own_job(start_job: Callable[..., Any]) -> None:
    script = """
if "WITHIN" in os.environ:
    from mpi4py import MPI
    print("within", MPI.COMM_WORLD.size, flush=True)
elif RANK == 0:
    command = [sys.executable, "-m", "hocket.cli", "run", "-n", "3", __file__]
    subprocess.run(command, env={**os.environ, "WITHIN": "1"}, check=True)
"""
    job = start_job(script, 2, env=with_library("mpich"))
    assert job.finish() == 0, job.stderr
    assert job.stdout == "within 3\n" * 3


def test_a_job_without_mpi_has_no_further_process(start_job: Callable[..., Any]) -> None:
    script = """
launcher = os.getppid()
print(len(os.listdir(f"/proc/{launcher}/task")))
if RANK == 0:
    tell("there")
    await_("seen")
else:
    await_("there")
    children = open(f"/proc/{launcher}/task/{launcher}/children").read().split()
    print([open(f"/proc/{each}/cmdline").read().replace("\\0", " ") for each in children], flush=True)
    tell("seen")
"""
    job = start_job(script, 2, fifos=("there", "seen"))
    assert job.finish() == 0, job.stderr
    assert re.findall(r"^\d+$", job.stdout, re.MULTILINE) == ["1", "1"]
    assert "pmi" not in job.stdout and job.stdout.count("script.py") == 2, job.stdout


def test_hockets_own_mpi_starts_by_the_launcher(start_job: Callable[..., Any]) -> None:
    script = """
import hocket as hk, numpy as np
comm = hk.init(backends=["mpi:mpich", "mpi:openmpi"])
for backend in comm.backends:
    x = np.ones(5)
    comm.all_reduce(x, backend=backend)
    assert x.tolist() == [2.0] * 5
names = [open(f"/proc/{each}/cmdline").read() for each in os.listdir("/proc") if each.isdigit()]
print(sorted(comm.backends), flush=True)
"""
    job = start_job(script, 2)
    assert job.finish() == 0, job.stderr
    assert job.stdout == "['mpi:mpich', 'mpi:openmpi']\n" * 2


def test_open_mpi_that_starts_alone_ends_the_job(start_job: Callable[..., Any], tmp_path: Path) -> None:
    """If it could not be predicted that the library is Open MPI."""
    (tmp_path / "libsome.so").symlink_to(LIBRARIES["openmpi"])
    folders = ":".join(str(Path(LIBRARIES["openmpi"]).parent / each) for each in ("", "openmpi"))
    library = {"MPI4PY_LIBMPI": str(tmp_path / "libsome.so"), "LD_LIBRARY_PATH": folders}
    job = start_job(PLAIN, 2, env={**library, **with_segments_in(tmp_path)})
    assert job.finish() == 1
    assert_names(job.stderr, "BackendUnavailable", "Open MPI", "mpirun")


@EACH_LIBRARY
def test_a_failure_is_told_though_mpi_would_wait_for_the_others(start_job: Callable[..., Any], library: str) -> None:
    script = PLAIN + "import numpy\nif RANK == 1: raise ValueError('boom')\nworld.Recv(numpy.zeros(1), source=1)"
    job = start_job(script, 2, env=with_library(library))
    assert job.finish() == 1
    assert_names(job.stderr.splitlines()[0], "rank 1")
    assert "ValueError: boom" in job.stderr and job.stderr.count("Traceback") == 1


def test_threads_that_start_programs_while_mpi_starts(start_job: Callable[..., Any]) -> None:
    script = """
import threading
failures = []
def starts():
    for _ in range(40):
        done = subprocess.run(["/usr/bin/env"], capture_output=True, text=True)
        if "PMI_FD" in done.stdout or "PATH" not in done.stdout:
            failures.append(done.stdout)
threads = [threading.Thread(target=starts) for _ in range(4)]
for each in threads: each.start()
"""
    job = start_job(script + PLAIN + "for each in threads: each.join()\nassert not failures, failures[0]", 2)
    assert job.finish() == 0, job.stderr
    assert job.stdout == "2 1\n" * 2


def test_a_program_that_gets_the_descriptor_by_a_forked_child(start_job: Callable[..., Any]) -> None:
    script = """
fd = int(os.environ["PMI_FD"])
command = [sys.executable, "-c", f"import os; os.fstat({fd}); print(os.environ['PMI_FD'])"]
how = {"pass_fds": [fd], "preexec_fn": lambda: None, "capture_output": True, "text": True}
print(subprocess.run(command, **how).stdout == f"{fd}\\n")
"""
    job = start_job(script, 2)
    assert job.finish() == 0, job.stderr
    assert job.stdout == "True\n" * 2


def test_an_import_that_failed_before(start_job: Callable[..., Any]) -> None:
    script = """
os.environ["MPI4PY_LIBMPI"] = "/no/such/libmpi.so.40"
try:
    from mpi4py import MPI
except RuntimeError:
    os.environ["MPI4PY_LIBMPI"] = os.environ["LATER"]
"""
    job = start_job(script + PLAIN, 2, env={"LATER": LIBRARIES["openmpi"]})
    assert job.finish() == 0, job.stderr
    assert job.stdout == "2 1\n" * 2


def test_a_forked_child_beside_open_mpi_is_a_world_of_its_own(start_job: Callable[..., Any], tmp_path: Path) -> None:
    script = """
pid = os.fork()
if pid == 0:
    from mpi4py import MPI
    print("child", MPI.COMM_WORLD.size, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""
    job = start_job(script + PLAIN, 2, env={**with_library("openmpi"), **with_segments_in(tmp_path)})
    assert job.finish() == 0, job.stderr
    assert sorted(job.stdout.splitlines()) == ["2 1", "2 1", "child 1", "child 1"]


@EACH_LIBRARY
def test_mpi_after_hocket(start_job: Callable[..., Any], library: str) -> None:
    script = "import hocket as hk\ncomm = hk.init(timeout=20)\nassert 'mpi' in comm.backends, comm.backends\n"
    job = start_job(script + PLAIN + "comm.finalize()", 2, env=with_library(library))
    assert job.finish() == 0, job.stderr
    assert job.stdout == "2 1\n" * 2


def run_on_two(
    folder: Path, script: str, second_environment: dict[str, str] | None = None
) -> list[subprocess.CompletedProcess[str]]:
    """Run a script as four ranks by two launchers, which take this machine for two hosts; where the second has an
    environment of its own, the first one is ended when that has."""
    (folder / "script.py").write_text("import os, signal, sys\nRANK = int(os.environ['RANK'])\n" + script)
    with ReservedPort() as port:
        command = ["-m", "hocket.cli", "run", "-n", "2", "--nnodes", "2", "--master-addr", "127.0.0.1"]
        command += ["--master-port", str(port.number)]
        environment = {**os.environ, **with_library("mpich")}
        own = ({"HOCKET_HOST": "host-0"}, {"HOCKET_HOST": "host-1", **(second_environment or {})})
        launchers = [
            start_python(*command, "--node-rank", str(host), "script.py", folder=folder, environment=environment | each)
            for host, each in enumerate(own)
        ]
        try:
            second = launchers[1].communicate(timeout=90)
            if second_environment is not None:
                launchers[0].terminate()
            outputs = [launchers[0].communicate(timeout=90), second]
        finally:
            for launcher in launchers:
                launcher.terminate()  # ends its ranks
                launcher.wait()
    return [
        subprocess.CompletedProcess([], launcher.returncode, *output)
        for launcher, output in zip(launchers, outputs, strict=True)
    ]


def test_launchers_of_two_hosts_are_one_job(tmp_path: Path) -> None:
    ends = run_on_two(tmp_path, PLAIN)
    assert [(end.returncode, end.stdout, end.stderr) for end in ends] == [(0, "4 6\n" * 2, "")] * 2


def test_abort_reaches_the_other_host(tmp_path: Path) -> None:
    ends = run_on_two(tmp_path, PLAIN + "if RANK == 3: world.Abort(9)\nsignal.pause()")
    assert [end.returncode for end in ends] == [9, 9]
    assert_names(ends[0].stderr, "MPI_Abort", "9")
    assert_names(ends[1].stderr, "rank 3", "MPI_Abort", "9")


def test_the_end_of_the_first_host_ends_the_other(tmp_path: Path) -> None:
    ends = run_on_two(tmp_path, "if RANK == 1: sys.exit(0)\n" + PLAIN)
    assert [end.returncode for end in ends] == [1, 1]
    assert_names(ends[0].stderr, "rank 1", "ranks 0, 2-3", "MPI_Init")
    assert "ended" in ends[1].stderr.splitlines()[0]


def test_ranks_that_never_use_mpi_are_not_waited_for(tmp_path: Path) -> None:
    script = "import time\nif RANK == 2: sys.exit(0)\ntime.sleep(3.5)\nprint('done', flush=True)"
    ends = run_on_two(tmp_path, script)
    assert [(end.returncode, end.stdout, end.stderr) for end in ends] == [(0, "done\n" * 2, ""), (0, "done\n", "")]


@pytest.mark.parametrize(
    ("end", "names"),
    [("os.kill(os.getpid(), signal.SIGKILL)", ("rank 3", "9")), ("os._exit(0)", ("rank 3", "MPI_Finalize"))],
)
def test_the_end_of_a_rank_reaches_the_other_host(tmp_path: Path, end: str, names: tuple[str, ...]) -> None:
    ends = run_on_two(tmp_path, PLAIN + f"if RANK == 3: {end}\nMPI.Finalize()")
    assert ends[0].returncode == 1
    assert_names(ends[0].stderr, *names)


@full
def test_a_rank_that_ends_at_once_ends_the_other_host(tmp_path: Path) -> None:
    ends = run_on_two(tmp_path, PLAIN + "if RANK == 3: os._exit(0)\nworld.Barrier(); world.Barrier()\n")
    assert [end.returncode for end in ends] == [1, 1]
    assert_names(ends[1].stderr, "rank 3", "MPI_Finalize")


@pytest.mark.parametrize(("leave", "told"), [("RANK >= 2", 0), pytest.param("RANK < 2", 1, marks=full)])
def test_all_ranks_of_a_host_that_end_at_once_end_the_other(tmp_path: Path, leave: str, told: int) -> None:
    end = run_on_two(tmp_path, PLAIN + f"if {leave}: os._exit(0)\nworld.Barrier(); world.Barrier()\n")[told]
    assert end.returncode == 1
    assert_names(end.stderr, "MPI_Finalize")


def test_asking_whether_mpi_is_installed_does_not_start_it(start_job: Callable[..., Any]) -> None:
    script = """
import importlib.util
assert importlib.util.find_spec("mpi4py.MPI")
if RANK == 0:
    time.sleep(5)
print("done", flush=True)
"""
    job = start_job(script, 2, env=with_library("openmpi"))
    assert job.finish() == 0, job.stderr
    assert job.stdout == "done\n" * 2 and job.stderr == ""


def test_hosts_with_different_secrets_do_not_join(tmp_path: Path) -> None:
    ends = run_on_two(tmp_path, PLAIN, {"HOCKET_SECRET": "another secret of more than sixteen characters"})
    assert ends[1].returncode == 1
    assert_names(ends[1].stderr, "MPI", "secret", "HOCKET_SECRET")


def test_open_mpi_on_two_hosts_is_refused(tmp_path: Path) -> None:
    script = f"os.environ['MPI4PY_LIBMPI'] = {LIBRARIES['openmpi']!r}\n" + PLAIN
    for end in run_on_two(tmp_path, script):
        assert end.returncode == 1
        assert_names(end.stderr, "BackendUnavailable", "hosts", "mpirun")


@pytest.mark.parametrize(("own", "other"), [("mpich", "openmpi"), ("openmpi", "mpich")])
def test_a_program_that_a_rank_starts_may_use_another_mpi(
    start_job: Callable[..., Any], own: str, other: str, tmp_path: Path
) -> None:
    child = tmp_path / "child.py"
    child.write_text(f"import hocket as hk\nhk.init(backends=['mpi:{other}']).barrier()\n")
    script = f"""
import hocket as hk
with hk.init(backends=["mpi:{own}"]) as comm:
    comm.barrier()
    print("MPI4PY_LIBMPI" in os.environ, flush=True)
    if comm.rank == 0:
        command = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", {str(child)!r}]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    comm.barrier()
with hk.init(backends=["mpi"]) as comm:  # still the one that is loaded
    comm.barrier()
maps = open("/proc/self/maps").read()
print("libmpi.so.12" in maps and "libmpi.so.40" in maps)
"""
    job = start_job(script, 2)
    assert job.finish() == 0, job.stderr
    assert job.stdout.splitlines() == ["False"] * 4
