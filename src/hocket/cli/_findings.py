"""What `hocket doctor` looks at: each check returns findings, and none of them changes anything."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hocket import _native
from hocket.backends._mpi import find_library
from hocket.errors import TableError
from hocket.tune.find import find_table
from hocket.tune.machine import this_machine
from hocket.tune.table import load_table

State = Literal["good", "note", "problem"]
_LEAST_OPEN_FILES = 1024


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        about: what, in a word or two.
        state: "good"; "note", if something could be better; "problem", if something will not work.
        text: what was found.
        remedy: what to do about it; empty where it is good.
    """

    about: str
    state: State
    text: str
    remedy: str = ""


def find_all() -> list[Finding]:
    """Make all checks."""
    return [finding for check in _CHECKS for finding in check()]


def check_processors() -> Iterator[Finding]:
    usable, all_of_them = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    text = f"{usable} usable, {_native.ISA} reductions"
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "0") or 0)
    if ranks > usable:
        yield Finding(
            "processors",
            "note",
            f"{text}; {ranks} ranks on this host share them",
            "start at most as many ranks as processors, or bind fewer threads to each",
        )
    elif usable < all_of_them:
        yield Finding(
            "processors",
            "note",
            f"{text} of {all_of_them}: this process is bound to some of them",
            "widen the binding (taskset, the launcher's --bind-to) if that was not meant",
        )
    else:
        yield Finding("processors", "good", text)
    if os.environ.get("OMP_NUM_THREADS") is None and ranks > 1:
        yield Finding(
            "threads",
            "note",
            "OMP_NUM_THREADS is not set, so each rank may use every processor",
            "export OMP_NUM_THREADS=1, or processors divided by ranks",
        )


def check_shared_memory() -> Iterator[Finding]:
    try:
        os.close(os.memfd_create("hocket-doctor"))
        yield Finding("shared memory", "good", "memfd works")
    except OSError as error:
        yield Finding(
            "shared memory",
            "problem",
            f"memfd_create fails: {error}",
            "run on Linux 3.17 or later, without a seccomp filter that forbids it",
        )
    if os.environ.get("HOCKET_SINGLE_COPY") == "0":
        yield Finding(
            "single copy", "note", "turned off by HOCKET_SINGLE_COPY=0", "unset it for large gathers and scatters"
        )
    elif not _native.has_single_copy():
        yield Finding(
            "single copy",
            "note",
            "this process may not read another one's memory: gather and scatter of more than two ranks copy twice",
            "in a container allow process_vm_readv (e.g. --cap-add SYS_PTRACE)",
        )
    else:
        scope = _read("/proc/sys/kernel/yama/ptrace_scope")
        if scope not in ("", "0") and os.geteuid() != 0:
            yield Finding(
                "single copy",
                "note",
                f"Yama's ptrace_scope is {scope}: between ranks it may be refused; gather and scatter then copy twice",
                "sysctl kernel.yama.ptrace_scope=0",
            )
        else:
            yield Finding(
                "single copy",
                "good",
                "gather and scatter of more than two ranks read large blocks out of their owner's memory",
            )
    policy = _read("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    if "[never]" in policy or "[deny]" in policy:
        yield Finding(
            "huge pages",
            "note",
            "shared memory has none, which costs some per cent with large arrays",
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        )
    elif policy:
        yield Finding("huge pages", "good", f"shared memory: {policy[policy.find('[') + 1 : policy.find(']')]}")


def check_limits() -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _LEAST_OPEN_FILES:
        yield Finding("open files", "note", f"at most {soft} per process", f"ulimit -n {_LEAST_OPEN_FILES} or more")
    else:
        yield Finding("open files", "good", f"{soft} per process")


def check_torch() -> Iterator[Finding]:
    version = _version("torch")
    if version is None:
        yield Finding("gloo", "note", "torch is not installed", "pip install 'hocket[torch]' for gloo and training")
        return
    yield Finding("gloo", "good", f"torch {version}")
    entry_points = importlib.metadata.entry_points(group="torch.backends")
    if not any(point.name == "hocket" for point in entry_points):
        yield Finding(
            "torch backend",
            "problem",
            'torch does not find hocket\'s entry point: init_process_group("hocket") fails',
            "install hocket (pip install .), do not only put it on PYTHONPATH",
        )
    elif os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        yield Finding(
            "torch backend",
            "problem",
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0: torch registers no backends of others",
            "unset it, or call hocket.torch.autoload()",
        )
    else:
        yield Finding("torch backend", "good", 'init_process_group("hocket") works')


def check_mpi() -> Iterator[Finding]:
    under_open_mpi = "OMPI_COMM_WORLD_RANK" in os.environ
    if importlib.util.find_spec("mpi4py") is None:
        yield Finding("mpi", "note", "mpi4py is not installed", "pip install 'hocket[mpi]' for MPI")
        return
    found = {family: find_library(family) for family in ("mpich", "openmpi")}
    there = {family: path for family, path in found.items() if path is not None}
    wanted = "openmpi" if under_open_mpi else "mpich"
    if wanted not in there:
        yield Finding(
            "mpi",
            "problem" if under_open_mpi else "note",
            f"mpi4py {_version('mpi4py')} is here, {wanted}, which this launcher needs, is not"
            if under_open_mpi
            else f"mpi4py {_version('mpi4py')} is here without {wanted}",
            f"pip install {wanted}",
        )
    else:
        yield Finding("mpi", "good", f"{wanted} at {there[wanted]}")
    if len(there) == 2 and all(path.startswith(sys.prefix) for path in there.values()):
        yield Finding(
            "mpi launchers",
            "note",
            "mpich and openmpi are both in this environment, and share the names "
            "mpirun and mpiexec: the one installed last has them",
            "start MPICH by mpiexec.hydra or hocket run, Open MPI by prterun --personality ompi",
        )
    if under_open_mpi and os.environ.get("MPI4PY_LIBMPI", "").find("libmpi.so.12") >= 0:
        yield Finding(
            "mpi launchers",
            "problem",
            "under Open MPI's launcher MPI4PY_LIBMPI names MPICH, which would start with one rank in each process",
            "unset MPI4PY_LIBMPI, or start by hocket run",
        )


def check_ucx() -> Iterator[Finding]:
    version = _version("ucxx-cu13")
    if version is None:
        yield Finding("ucx", "note", "ucxx is not installed", "pip install 'hocket[ucx]' for backends=\"ucx\"")
    else:
        yield Finding("ucx", "good", f'ucxx {version}, UCX {_version("libucx-cu13")}; for who asks for backend "ucx"')


def check_left_segments() -> Iterator[Finding]:
    """hocket leaves no names in /dev/shm; other libraries do when their processes are killed."""
    folder = Path("/dev/shm")
    patterns = ("mpich_shm_*", "psm2_shm*", "sm_segment.*", "vader_segment.*", "ucx_*", "nccl-*")
    used = _mapped_files("/dev/shm/")
    left = []
    for pattern in patterns:
        for path in folder.glob(pattern):
            try:
                if path.stat().st_uid == os.geteuid() and str(path) not in used:
                    left.append(path)
            except OSError:  # gone meanwhile
                continue
    if left:
        nbytes = sum(path.stat().st_size for path in left if path.exists())
        names = ", ".join(path.name for path in left[:3]) + (", ..." if len(left) > 3 else "")
        yield Finding(
            "left segments",
            "note",
            f"{len(left)} files of {nbytes >> 20} MiB in /dev/shm that no process of yours maps: {names}",
            "remove them",
        )
    else:
        yield Finding("left segments", "good", "none in /dev/shm")


def check_table() -> Iterator[Finding]:
    path = find_table()
    if path is None:
        yield Finding("table", "note", "none: a model chooses among the libraries", "hocket tune run -n RANKS")
        return
    try:
        table = load_table(path)
    except (TableError, OSError) as error:
        yield Finding("table", "problem", str(error), f"remove {path}, or measure again: hocket tune run")
        return
    difference = this_machine({}).difference(table.machine)
    if difference is not None:
        yield Finding("table", "note", f"{path} is of another machine: {difference}", "hocket tune run")
    else:
        yield Finding("table", "good", f"{path}, {len(table.rows)} rows, hash {table.hash}")


_CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_processors, check_shared_memory, check_limits, check_torch, check_mpi, check_ucx,
    check_left_segments, check_table,
)  # fmt: skip


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _mapped_files(prefix: str) -> set[str]:
    """Return the files below a folder that some process maps, of those processes that we may look at."""
    files = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text().splitlines()
        except OSError:
            continue
        files |= {line.split(maxsplit=5)[5] for line in lines if prefix in line}
    return files
