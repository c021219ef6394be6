"""hocket: moves data between the processes of a parallel program by the fastest way for every operation."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket._native import Work
    from hocket.comm import Communicator, Policy, Recv, Send, register_reduction
    from hocket.errors import (
        Aborted,
        BackendUnavailable,
        BootstrapMismatch,
        CollectiveMismatch,
        CommTimeout,
        HocketError,
        InvalidArgument,
        InvalidSchedule,
        InvalidState,
        InvalidType,
        LaunchError,
        PeerFailure,
        RemoteError,
        ResourceExhausted,
        TableError,
        TableMismatch,
        UnsupportedDtype,
    )
    from hocket.session import Simulated, init, simulate, spawn
    from hocket.trace import Record

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "BackendUnavailable",
    "BootstrapMismatch",
    "CollectiveMismatch",
    "CommTimeout",
    "Communicator",
    "HocketError",
    "InvalidArgument",
    "InvalidState",
    "InvalidSchedule",
    "InvalidType",
    "LaunchError",
    "PeerFailure",
    "Policy",
    "Record",
    "Recv",
    "RemoteError",
    "ResourceExhausted",
    "Send",
    "Simulated",
    "TableError",
    "TableMismatch",
    "UnsupportedDtype",
    "Work",
    "__version__",
    "init",
    "register_reduction",
    "simulate",
    "spawn",
]

_HOMES = {
    "Communicator": "hocket.comm",
    "Policy": "hocket.comm",
    "Record": "hocket.trace",
    "Recv": "hocket.comm",
    "Send": "hocket.comm",
    "Simulated": "hocket.session",
    "Work": "hocket._native",
    "init": "hocket.session",
    "register_reduction": "hocket.comm",
    "simulate": "hocket.session",
    "spawn": "hocket.session",
}


def __getattr__(name: str) -> Any:
    # Names are loaded at first use (PEP 562), so that `import hocket` costs nothing.
    if name not in __all__:
        raise AttributeError(f"module 'hocket' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "hocket.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
