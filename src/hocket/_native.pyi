"""The native core of hocket: what the Python rooms use of it."""

from collections.abc import Callable
from typing import Any, Literal, overload

CONSTANTS: dict[str, int]
OP_NAMES: tuple[str, ...]
DTYPE_NAMES: tuple[str, ...]
REDUCE_NAMES: tuple[str, ...]
ISA: str

def set_oversubscribed(value: bool) -> None: ...
def start_progress_thread() -> None: ...
def stop_progress_thread() -> None: ...
def has_progress_thread() -> bool: ...
def clock_anchor() -> tuple[int, int]: ...
def chunk_bytes(num_ranks: int) -> int: ...
def is_forked_child() -> bool: ...

class Work:
    """The handle of an operation in flight; dropping it does not cancel the operation."""

    def wait(self, timeout: float | None = None) -> None: ...
    def test(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    @property
    def done(self) -> bool: ...
    @property
    def seq(self) -> int: ...
    def _on_finished(self, callback: Callable[[], object]) -> None: ...

class Host:
    """The ranks of a job that share a host."""

    def __init__(self, name: str, rank: int, size: int, timeout: float) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def num_cpus(self) -> int: ...
    def set_finalized(self) -> None: ...

Array = Any
"""A NumPy array, a torch tensor on the CPU, or anything else with the buffer protocol."""

ReduceName = Literal["sum", "prod", "min", "max", "avg"]
Backend = Literal["shm"] | None

class Communicator:
    def __init__(
        self, host: Host, members: list[int], rank: int, key: int, label: str, timeout: float, open_timeout: float
    ) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def timeout(self) -> float: ...
    @property
    def _label(self) -> str: ...
    @property
    def _closed(self) -> bool: ...
    _check_grad: bool
    _on_failure: Callable[[Any, BaseException], object] | None

    @overload
    def all_reduce(
        self,
        x: Array,
        op: ReduceName = "sum",
        *,
        backend: Backend = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def all_reduce(
        self,
        x: Array,
        op: ReduceName = "sum",
        *,
        backend: Backend = None,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def reduce(
        self,
        x: Array,
        root: int,
        op: ReduceName = "sum",
        *,
        backend: Backend = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def reduce(
        self,
        x: Array,
        root: int,
        op: ReduceName = "sum",
        *,
        backend: Backend = None,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def broadcast(
        self,
        x: Array,
        root: int,
        *,
        backend: Backend = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def broadcast(
        self,
        x: Array,
        root: int,
        *,
        backend: Backend = None,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def barrier(
        self, *, backend: Backend = None, async_op: Literal[False] = False, timeout: float | None = None
    ) -> None: ...
    @overload
    def barrier(self, *, backend: Backend = None, async_op: Literal[True], timeout: float | None = None) -> Work: ...
    @overload
    def all_gather(
        self,
        out: Array,
        x: Array,
        *,
        backend: Backend = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def all_gather(
        self,
        out: Array,
        x: Array,
        *,
        backend: Backend = None,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def reduce_scatter(
        self,
        out: Array,
        x: Array,
        op: ReduceName = "sum",
        *,
        backend: Backend = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def reduce_scatter(
        self,
        out: Array,
        x: Array,
        op: ReduceName = "sum",
        *,
        backend: Backend = None,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def all_to_all(
        self,
        out: Array,
        x: Array,
        *,
        backend: Backend = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def all_to_all(
        self,
        out: Array,
        x: Array,
        *,
        backend: Backend = None,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    def send(self, x: Array, dst: int, tag: int = 0, *, timeout: float | None = None) -> None: ...
    def recv(self, x: Array, src: int, tag: int = 0, *, timeout: float | None = None) -> None: ...
    def isend(self, x: Array, dst: int, tag: int = 0, *, timeout: float | None = None) -> Work: ...
    def irecv(self, x: Array, src: int, tag: int = 0, *, timeout: float | None = None) -> Work: ...
    def _gather_for(self, kind: Literal["split", "dup"], out: Array, x: Array) -> None: ...
    def _records(self) -> bytes: ...
    def _close(self, drain_timeout: float) -> None: ...
