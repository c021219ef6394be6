"""torch.distributed's names and forms, with ``backend=`` for each call: ``import hocket.torch.dist as dist``.

    dist.init_process_group(backends=("shm", "mpi"))
    dist.all_reduce(x)                  # the policy chooses the backend
    dist.all_reduce(x, backend="mpi")   # MPI carries this call

This module has every operation of torch.distributed with its own arguments and a further one, ``backend=``: the name of
one of ``hocket.torch.communicator(group).backends``; None lets the policy choose. All other names (`get_rank`,
`new_group`, `ReduceOp`, ...) are torch.distributed's own objects.
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
from hocket.torch.dist_examples import EXAMPLES, docstring_of
from hocket.torch.options import Options, on_backend
from hocket.torch.process_group import process_group_of

OPERATIONS = tuple(name for name in EXAMPLES if hasattr(torch.distributed, name))  # old versions of torch lack some
__all__ = ["P2POp", "init_process_group", "monitored_barrier"]
__all__ += list(OPERATIONS)


def init_process_group(
    backend: str = "hocket",
    *args: Any,
    backends: str | Sequence[str] | None = None,
    policy: str | Policy = "auto",
    **options: Any,
) -> None:
    """Make the default process group, as ``torch.distributed.init_process_group`` does.

    Args:
        backend: must be "hocket".
        args, options: further arguments of torch's function.
        backends, policy: see `hocket.torch.Options`.

    Raises:
        InvalidArgument: `backend` is not "hocket", or `pg_options` is given.
        BackendUnavailable: one of `backends` is not available.

    Examples:
        >>> dist = hk.torch.dist
        >>> dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1, backends=("shm", "gloo"))
        >>> list(hk.torch.communicator().backends)
        ['shm', 'gloo']
        >>> dist.destroy_process_group()
    """
    if backend != "hocket":
        raise InvalidArgument(
            f"backend must be 'hocket', not {backend!r}; use torch.distributed.init_process_group for other backends"
        )
    if "pg_options" in options:
        raise InvalidArgument("pass backends= and policy= instead of pg_options=")
    options["pg_options"] = Options(backends, policy)
    torch.distributed.init_process_group(backend, *args, **options)


def monitored_barrier(
    group: Any = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
    *,
    backend: str | None = None,
) -> None:
    """Wait for all ranks; after the timeout, the error on every waiting rank names the missing ranks.

    torch.distributed's own function accepts gloo groups only.

    Args:
        group: a process group of backend "hocket"; None: the default group. Ranks outside of it return at once.
        timeout: a timedelta, or seconds; None: the timeout of the group.
        wait_all_ranks: has no effect: the error always names all missing ranks.
        backend: name of the library that carries the barrier.

    Raises:
        CommTimeout: some ranks did not call the barrier in time; the error names them.

    Examples:
        >>> dist = hk.torch.dist
        >>> dist.init_process_group(store=dist.FileStore("monitored", 2), rank=comm.rank, world_size=2)
        >>> dist.monitored_barrier(timeout=20.0)
        >>> dist.destroy_process_group()
    """
    if torch.distributed.distributed_c10d._rank_not_in_group(group):
        return
    _check(backend, [group])
    limit = timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout
    with on_backend(backend):
        process_group_of(group).monitored_barrier(limit, wait_all_ranks)


class P2POp(torch.distributed.P2POp):
    """torch.distributed's P2POp, which also accepts `isend` and `irecv` of this module.

    Examples:
        >>> import torch
        >>> dist = hk.torch.dist
        >>> dist.init_process_group(store=dist.FileStore("P2POp", 2), rank=comm.rank, world_size=2)
        >>> x = torch.empty(1)
        >>> send = dist.P2POp(dist.isend, torch.ones(1), 1 - comm.rank)
        >>> receive = dist.P2POp(dist.irecv, x, 1 - comm.rank)
        >>> [work.wait() for work in dist.batch_isend_irecv([send, receive])], x
        ([True, True], tensor([1.]))
        >>> dist.destroy_process_group()
    """

    def __new__(cls, op: Callable[..., Any], *args: Any, **options: Any) -> P2POp:
        operation: P2POp = super().__new__(cls, _own(op), *args, **options)
        return operation

    def __init__(self, op: Callable[..., Any], *args: Any, **options: Any) -> None:
        super().__init__(_own(op), *args, **options)


def _own(op: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch.distributed's function of the same name: torch compares by identity what kind of message it is."""
    return getattr(op, "__wrapped__", op) if op in (globals()["isend"], globals()["irecv"]) else op


def _with_backend(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)
    keyword = inspect.Parameter("backend", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None")

    @functools.wraps(function)
    def call(*args: Any, backend: str | None = None, **options: Any) -> Any:
        if backend is None:
            return function(*args, **options)
        _check(backend, _groups(signature.bind(*args, **options).arguments))
        with on_backend(backend):
            return function(*args, **options)

    parameters = [*signature.parameters.values(), keyword]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__module__ = __name__
    call.__doc__ = docstring_of(function)
    return call


def _check(backend: str | None, groups: Iterable[Any]) -> None:
    """Check, before anything is sent, that the groups have hocket's backend, and the named library in it."""
    for group in groups:
        backends = process_group_of(group).communicator.backends
        if backend is not None and backend not in backends:
            reason = backends.left_out.get(backend)
            raise BackendUnavailable(
                f"backend {backend!r} is not in this process group; it has {', '.join(backends)}"
                + (f". {backend!r} was left out: {reason}" if reason else "")
            )


def _groups(arguments: dict[str, Any]) -> list[Any]:
    """Return the process groups of a call; None stands for the default group."""
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
    return sorted({"OPERATIONS", *__all__, *(name for name in dir(torch.distributed) if not name.startswith("_"))})
