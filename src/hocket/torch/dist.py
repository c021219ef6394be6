"""torch.distributed's names and forms, with ``backend=`` for each call: ``import hocket.torch.dist as dist``.

    dist.init_process_group(backends=("shm", "mpi"))
    dist.all_reduce(x)                  # the fastest one, as the policy says
    dist.all_reduce(x, backend="mpi")   # this one

Every operation of torch.distributed is here with its own arguments, and takes ``backend=``, the name of one of
``hocket.torch.communicator(group).backends``; None lets the policy choose. Everything else (`get_rank`, `new_group`,
`ReduceOp`, ...) is torch.distributed's own object.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed

from hocket.comm import Policy
from hocket.errors import BackendUnavailable, InvalidArgument
from hocket.torch.options import Options, on_backend
from hocket.torch.process_group import process_group_of

_NAMES = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_gather_single",
    "all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv",
    "broadcast", "broadcast_object_list", "gather", "gather_object", "irecv", "isend", "recv", "recv_object_list",
    "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "scatter_object_list",
    "send", "send_object_list",
)  # fmt: skip
OPERATIONS = tuple(name for name in _NAMES if hasattr(torch.distributed, name))  # some came with later versions


def init_process_group(
    backend: str = "hocket",
    *args: Any,
    backends: str | Sequence[str] | None = None,
    policy: str | Policy = "auto",
    **options: Any,
) -> None:
    """Make the default process group, as ``torch.distributed.init_process_group``.

    Args:
        backend: "hocket".
        args, options: torch's.
        backends, policy: see `hocket.torch.Options`.

    Raises:
        InvalidArgument: another backend than "hocket", or torch's own `pg_options`.
        BackendUnavailable: one of `backends` cannot be had.
    """
    if backend != "hocket":
        raise InvalidArgument(f"the backend must be 'hocket', not {backend!r}; others are torch.distributed's")
    if "pg_options" in options:
        raise InvalidArgument("give backends= and policy= instead of pg_options=")
    options["pg_options"] = Options(backends, policy)
    torch.distributed.init_process_group(backend, *args, **options)


def monitored_barrier(
    group: Any = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
    *,
    backend: str | None = None,
) -> None:
    """Wait for all ranks; every rank that waited in vain learns which others did not come.

    torch.distributed's own asks for gloo by name.

    Args:
        group: a process group of backend "hocket"; None: the default one. Who is not in it returns at once.
        timeout: a number is one of seconds; None: that of the group.
        wait_all_ranks: whatever it says, the error names all ranks that are missing.
        backend: the library that carries it.

    Raises:
        CommTimeout: naming them.
    """
    if torch.distributed.distributed_c10d._rank_not_in_group(group):
        return
    _check(backend, [group])
    limit = timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout
    with on_backend(backend):
        process_group_of(group).monitored_barrier(limit, wait_all_ranks)


class P2POp(torch.distributed.P2POp):
    """torch.distributed's, which takes `isend` and `irecv` of this module as well."""

    def __new__(cls, op: Callable[..., Any], *args: Any, **options: Any) -> P2POp:
        made: P2POp = super().__new__(cls, _own(op), *args, **options)
        return made

    def __init__(self, op: Callable[..., Any], *args: Any, **options: Any) -> None:
        super().__init__(_own(op), *args, **options)


def _own(op: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch.distributed's function of the same name, by which it knows what a message is."""
    return getattr(op, "__wrapped__", op) if op in (globals()["isend"], globals()["irecv"]) else op


def _with_backend(function: Callable[..., Any]) -> Callable[..., Any]:
    own = inspect.signature(function)
    keyword = inspect.Parameter("backend", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None")

    @functools.wraps(function)
    def call(*args: Any, backend: str | None = None, **options: Any) -> Any:
        if backend is None:
            return function(*args, **options)
        _check(backend, _groups(own.bind(*args, **options).arguments))
        with on_backend(backend):
            return function(*args, **options)

    call.__signature__ = own.replace(parameters=[*own.parameters.values(), keyword])  # type: ignore[attr-defined]
    call.__module__ = __name__
    summary = f"``torch.distributed.{function.__name__}``, with ``backend=``: the library that carries it."
    call.__doc__ = f"{summary}\n\n{function.__doc__}"
    return call


def _check(backend: str | None, groups: Iterable[Any]) -> None:
    """Raise before anything is sent if the backend is in none of the groups."""
    for group in groups:
        backends = process_group_of(group).communicator.backends
        if backend is not None and backend not in backends:
            reason = backends.left_out.get(backend)
            raise BackendUnavailable(
                f"backend {backend!r} is not in this process group, which has {', '.join(backends)}"
                + (f"; it was left out: {reason}" if reason else "")
            )


def _groups(arguments: dict[str, Any]) -> list[Any]:
    """The process groups of a call; None for the default one."""
    if "p2p_op_list" in arguments:
        return [each.group for each in arguments["p2p_op_list"]]
    return [arguments.get("group")]


for _name in OPERATIONS:
    globals()[_name] = _with_backend(getattr(torch.distributed, _name))


def __getattr__(name: str) -> Any:
    try:
        return getattr(torch.distributed, name)
    except AttributeError:
        raise AttributeError(f"neither {__name__!r} nor torch.distributed has {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for name in dir(torch.distributed) if not name.startswith("_"))})
