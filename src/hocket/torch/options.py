"""What a process group is made of, and which backend the present call wants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from hocket.comm import Policy

_backend: ContextVar[str | None] = ContextVar("hocket_backend", default=None)


@dataclass(frozen=True)
class Options:
    """For ``torch.distributed.init_process_group("hocket", pg_options=Options(...))``.

    Args:
        backends: names of the libraries that may carry operations, such as "shm" and "mpi"; None: all that can be
            had. Groups that are made later have those of the first one.
        policy: how one is chosen for an operation that names none: "auto", or a `hocket.Policy`.
    """

    backends: str | Sequence[str] | None = "shm"
    policy: str | Policy = "auto"


@contextmanager
def on_backend(name: str | None) -> Iterator[None]:
    """Let a backend carry what this thread issues on process groups in a ``with`` block."""
    token = _backend.set(name)
    try:
        yield
    finally:
        _backend.reset(token)


def wanted_backend() -> str | None:
    """Return the name of the backend that the present call asks for; None: the policy chooses."""
    return _backend.get()
