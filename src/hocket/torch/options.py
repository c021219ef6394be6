"""The options of a process group, and the backend that the present call names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from hocket.comm import Policy

_backend: ContextVar[str | None] = ContextVar("hocket_backend", default=None)


@dataclass(frozen=True)
class Options:
    """Options for ``torch.distributed.init_process_group("hocket", pg_options=Options(...))``.

    Args:
        backends: names of the libraries that may carry operations, such as "shm" and "mpi"; None: all that are
            available. Groups that are made later have the libraries of the first group.
        policy: chooses the library of each operation that names none: "auto", or a `hocket.Policy`.

    Examples:
        >>> import torch
        >>> options = hk.torch.Options(backends=("shm", "gloo"), policy=hk.Policy.fixed({"*": "gloo"}))
        >>> torch.distributed.init_process_group(
        ...     "hocket", store=torch.distributed.HashStore(), rank=0, world_size=1, pg_options=options
        ... )
        >>> hk.torch.communicator().explain("all_reduce", nbytes=1024, dtype="float32").chosen
        'gloo'
        >>> torch.distributed.destroy_process_group()
    """

    backends: str | Sequence[str] | None = "shm"
    policy: str | Policy = "auto"


@contextmanager
def on_backend(name: str | None) -> Iterator[None]:
    """Have a backend carry the operations that this thread issues on process groups in a ``with`` block."""
    token = _backend.set(name)
    try:
        yield
    finally:
        _backend.reset(token)


def requested_backend() -> str | None:
    """Return the backend that the present call names; None: the policy chooses."""
    return _backend.get()
