"""What a task may change of its process that the next task of the same process would see."""

from __future__ import annotations

import builtins
import gc
import os
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType

import numpy as np

from hocket.session import world

_CONSTANT = (bool, int, float, str, tuple, frozenset, FunctionType, type, type(None))
_REGISTRY = (dict, list, set)
_LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}


def without_those_of_mpi(variables: Mapping[str, str]) -> dict[str, str]:
    """MPI is brought up once in a process, and keeps what it needs in variables."""
    return {name: value for name, value in variables.items() if not name.startswith(("PMI", "MPI"))}


def state_of_process() -> dict[str, object]:
    """Return what a task may change, by its name.

    Descriptors and native threads are left out: those of a finalized communicator stay until there is another.
    """
    found: dict[str, object] = {
        "variables": without_those_of_mpi(os.environ),
        "threads": threading.active_count(),
        "child processes": _children(),
        "communicators": len(world._session.open),
        "handlers of signals": {each: signal.getsignal(each) for each in signal.valid_signals()},
        "timer": signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        "limits": {name: resource.getrlimit(limit) for name, limit in _LIMITS.items()},
        "affinity": os.sched_getaffinity(0),
        "umask": _umask(),
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "collector of garbage": gc.isenabled(),
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.gettrace(), sys.getprofile()),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "hidden modules": sorted(name for name, module in list(sys.modules.items()) if module is None),
        "builtins": sorted(vars(builtins)),
        "NumPy's settings": (np.geterr(), np.get_printoptions()),
    }
    # Importing a package may add filters: they are comparable while the number of packages is the same.
    found[f"filters of warnings, {_num_packages()} packages"] = list(warnings.filters)
    if (torch := sys.modules.get("torch")) is not None:
        found["torch's settings"] = (
            torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
        )  # fmt: skip
        distributed = sys.modules.get("torch.distributed")
        found["process groups"] = distributed is not None and distributed.is_initialized()
    return found | _values_of_hocket()


def first_change(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """Return the name of what is otherwise than before, an empty string if nothing is. What was not there before, as
    its module was not imported, is no change, but process groups are."""
    if after.get("process groups"):
        return "process groups"
    return next((name for name, value in before.items() if name in after and after[name] != value), "")


def _umask() -> int:
    umask = os.umask(0o22)
    os.umask(umask)
    return umask


def _children() -> list[int]:
    """Return the children of this process but the one that serves MPI, which is brought up once."""
    found = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        if b"hocket.boot.pmi" not in Path("/proc", pid, "cmdline").read_bytes():
            found.append(int(pid))
    return found


def _num_packages() -> int:
    return len({name.partition(".")[0] for name in list(sys.modules)})


def _values_of_hocket() -> dict[str, object]:
    """The constants and functions of hocket's modules and classes, and the sizes of its registries."""
    found: dict[str, object] = {}
    for module in [each for name, each in list(sys.modules.items()) if name.startswith("hocket.")]:
        for name, value in vars(module).items():
            named = f"{module.__name__}.{name}"
            if isinstance(value, type) and value.__module__ == module.__name__:
                found[f"names in {named}"] = {each for each in vars(value) if each[:2] != "__"}
                found |= {f"{named}.{each}": _Same(what) for each, what in vars(value).items() if each[:2] != "__"}
            elif isinstance(value, _CONSTANT):
                found[named] = _Same(value)
            elif isinstance(value, _REGISTRY) and name[:2] != "__":
                found[f"size of {named}"] = len(value)
    return found


class _Same:
    """Equal to what holds the very same object; arrays and the like have an equality of their own."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]
