"""The checks of `hocket doctor`: each returns findings; none of them changes anything."""

from __future__ import annotations

import importlib.metadata
import os
import resource
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hocket import _native
from hocket.backends import Finding, SharedMemory, declarations, find_backends, installed_version
from hocket.errors import TableError
from hocket.tune.find import find_table
from hocket.tune.machine import this_machine
from hocket.tune.table import load_table

_LEAST_OPEN_FILES = 1024


def find_all() -> list[Finding]:
    """Run all checks."""
    return [finding for check in _CHECKS for finding in check()]


def check_processors() -> Iterator[Finding]:
    usable, all_of_them = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    text = f"{usable} usable, {_native.ISA} reductions"
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "0") or 0)
    if ranks > usable:
        yield Finding(
            "processors",
            "note",
            f"{text}; shared by {ranks} ranks on this host",
            "start at most one rank per processor, or use fewer threads per rank",
        )
    elif usable < all_of_them:
        yield Finding(
            "processors",
            "note",
            f"{text} of {all_of_them}: this process is bound to a part of them",
            "if this is not intended, widen the binding (taskset, the launcher's --bind-to)",
        )
    else:
        yield Finding("processors", "good", text)
    if os.environ.get("OMP_NUM_THREADS") is None and ranks > 1:
        yield Finding(
            "threads",
            "note",
            "OMP_NUM_THREADS is not set: each rank may use every processor",
            "export OMP_NUM_THREADS=1, or the number of processors divided by that of ranks",
        )


def check_limits() -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _LEAST_OPEN_FILES:
        yield Finding("open files", "note", f"at most {soft} per process", f"ulimit -n {_LEAST_OPEN_FILES} or more")
    else:
        yield Finding("open files", "good", f"{soft} per process")


def check_libraries() -> Iterator[Finding]:
    """Yield the findings of each library except shared memory, then those of other parts that need its modules."""
    others = {"torch": check_torch}
    for adapter in find_backends().values():
        yield from adapter.diagnose()
        for module in adapter.requires.modules:
            if module in others:
                yield from others.pop(module)()


def check_torch() -> Iterator[Finding]:
    if installed_version("torch") is None:
        return
    entry_points = importlib.metadata.entry_points(group="torch.backends")
    if not any(point.name == "hocket" for point in entry_points):
        yield Finding(
            "torch backend",
            "problem",
            'torch does not find hocket\'s entry point: init_process_group("hocket") fails',
            "install hocket (pip install .); PYTHONPATH alone is not enough",
        )
    elif os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        yield Finding(
            "torch backend",
            "problem",
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0: torch does not register backends of other packages",
            "unset it, or call hocket.torch.autoload()",
        )
    else:
        yield Finding("torch backend", "good", 'init_process_group("hocket") works')


def check_left_segments() -> Iterator[Finding]:
    """Find files that killed processes of other libraries left in /dev/shm; hocket leaves no files there."""
    folder = Path("/dev/shm")
    patterns = dict.fromkeys(pattern for each in declarations().values() for pattern in each.left_files)
    used = _mapped_files("/dev/shm/")
    left = []
    for pattern in patterns:
        for path in folder.glob(pattern):
            try:
                if path.stat().st_uid == os.geteuid() and str(path) not in used:
                    left.append(path)
            except OSError:  # removed meanwhile
                continue
    if left:
        nbytes = sum(path.stat().st_size for path in left if path.exists())
        names = ", ".join(path.name for path in left[:3]) + (", ..." if len(left) > 3 else "")
        count = "1 file" if len(left) == 1 else f"{len(left)} files"
        yield Finding(
            "left segments",
            "note",
            f"{count} with {nbytes >> 20} MiB in /dev/shm, not used by any of your processes: {names}",
            "remove them",
        )
    else:
        yield Finding("left segments", "good", "none in /dev/shm")


def check_table() -> Iterator[Finding]:
    path = find_table()
    if path is None:
        yield Finding(
            "table", "note", "none: a model chooses the library for each operation", "hocket tune run -n RANKS"
        )
        return
    if not path.exists():
        problem = f"HOCKET_TABLE names {path}, which does not exist"
        yield Finding("table", "problem", problem, "hocket tune run -n RANKS writes it; or unset HOCKET_TABLE")
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


_CHECKS: tuple[Callable[[], Iterable[Finding]], ...] = (
    check_processors, SharedMemory.diagnose, check_limits, check_libraries, check_left_segments, check_table,
)  # fmt: skip


def _mapped_files(prefix: str) -> set[str]:
    """Return the files below a folder that are mapped by a process whose maps this user may read."""
    files = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text().splitlines()
        except OSError:
            continue
        files |= {line.split(maxsplit=5)[5] for line in lines if prefix in line}
    return files
