"""hocket: move data between the processes of a parallel program, each operation in the fastest way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hocket._native import Work
    from hocket.collectives import ElementCodec, ResidualState
    from hocket.comm import PROC_NULL, Communicator, Policy, Recv, Send, register_reduction, wait_all, wait_any, wtime
    from hocket.errors import (
        Aborted,
        AuthenticationError,
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
        MissingPackage,
        NotFinite,
        PeerFailure,
        QueryTimeout,
        RecorderError,
        RemoteError,
        ResourceExhausted,
        TableError,
        TableMismatch,
        UnsupportedCall,
        UnsupportedDtype,
    )
    from hocket.session import Simulated, init, simulate, spawn
    from hocket.trace import Record

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "AuthenticationError",
    "BackendUnavailable",
    "BootstrapMismatch",
    "CollectiveMismatch",
    "CommTimeout",
    "Communicator",
    "ElementCodec",
    "HocketError",
    "InvalidArgument",
    "InvalidState",
    "InvalidSchedule",
    "InvalidType",
    "LaunchError",
    "MissingPackage",
    "NotFinite",
    "PROC_NULL",
    "PeerFailure",
    "Policy",
    "QueryTimeout",
    "Record",
    "RecorderError",
    "Recv",
    "RemoteError",
    "ResourceExhausted",
    "Send",
    "Simulated",
    "ResidualState",
    "TableError",
    "TableMismatch",
    "UnsupportedCall",
    "UnsupportedDtype",
    "Work",
    "__version__",
    "init",
    "register_reduction",
    "simulate",
    "spawn",
    "wait_all",
    "wait_any",
    "wtime",
]

_PACKAGES = (
    *("backends", "bench", "clock", "collectives", "dask", "keras", "measure", "memory", "observe", "pipeline", "sim"),
    *("torch", "trace", "train", "tune"),
)


def _suggestion(name: str, known: Iterable[str]) -> str:
    # Imported here, so that `import hocket` stays cheap.
    from hocket.comm import Communicator
    from hocket.comm.foreign_names import OF_THE_PACKAGE
    from hocket.suggestions import did_you_mean

    if name in OF_THE_PACKAGE:
        return f"; {OF_THE_PACKAGE[name]}"
    return f"; it is a method: comm.{name}" if name in dir(Communicator) else did_you_mean(name, known)


__getattr__ = lazy(
    __name__,
    {
        **dict.fromkeys(__all__, "errors"),
        **dict.fromkeys(_PACKAGES, ""),
        "Communicator": "comm",
        "ElementCodec": "collectives",
        "PROC_NULL": "comm",
        "Policy": "comm",
        "Record": "trace",
        "Recv": "comm",
        "Send": "comm",
        "Simulated": "session",
        "ResidualState": "collectives",
        "Work": "_native",
        "init": "session",
        "register_reduction": "comm",
        "simulate": "session",
        "spawn": "session",
        "wait_all": "comm",
        "wait_any": "comm",
        "wtime": "comm",
    },
    _suggestion,
)


def __dir__() -> list[str]:
    return sorted(__all__)
