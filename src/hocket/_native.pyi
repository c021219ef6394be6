"""The native core of hocket: what the Python rooms use of it."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, overload

CONSTANTS: dict[str, int]
OP_NAMES: tuple[str, ...]
DTYPE_NAMES: tuple[str, ...]
REDUCE_NAMES: tuple[str, ...]
DTYPE_CLASS_NAMES: tuple[str, ...]
ISA: str

def set_oversubscribed(value: bool) -> None: ...
def start_progress_thread() -> None: ...
def stop_progress_thread() -> None: ...
def has_progress_thread() -> bool: ...
def clock_anchor() -> tuple[int, int]: ...
def chunk_bytes(num_ranks: int) -> int: ...
def is_forked_child() -> bool: ...
def has_single_copy() -> bool: ...
def progress() -> None: ...
def python_lane(adapter: object, backend: str) -> Lane: ...

class Work:
    """The handle of an operation in flight; dropping it does not cancel the operation."""

    def wait(self, timeout: float | None = None) -> None: ...
    def test(self) -> bool: ...
    def __await__(self) -> Generator[Any]: ...
    def exception(self) -> BaseException | None: ...
    @property
    def done(self) -> bool: ...
    @property
    def seq(self) -> int: ...
    def _on_finished(self, callback: Callable[[], object]) -> None: ...

class Lane:
    """A lane of a foreign library; belongs to the communicator that it is given to."""

class LaneOperation:
    """An operation as a backend written in Python gets it; sizes in bytes, memory as addresses."""

    @property
    def kind(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def reduction(self) -> str | None: ...
    @property
    def root(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def in_address(self) -> int: ...
    @property
    def in_nbytes(self) -> int: ...
    @property
    def out_address(self) -> int: ...
    @property
    def out_nbytes(self) -> int: ...

class MpiLibrary:
    """The functions of an MPI library that is loaded and initialised; handles are numbers."""

    def __init__(
        self,
        *,
        path: str,
        backend: str,
        handle_nbytes: int,
        in_place: int,
        max_tag: int,
        error_truncate: int,
        byte: int,
        datatypes: dict[str, int],
        reductions: dict[str, int],
    ) -> None: ...
    def collective_lane(self, communicator: int, rank: int, size: int) -> Lane: ...
    def point_to_point_lane(self, communicator: int, rank: int, size: int) -> Lane: ...

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

class Control:
    """What this rank knows of ranks on other hosts, and has to say to them; see `hocket.boot.control`.

    Args:
        places: of each rank of the job, where it runs.
    """

    def __init__(self, places: Sequence[str]) -> None: ...
    def fileno(self) -> int: ...
    def take_notices(self) -> list[dict[str, Any]]: ...
    def note_death(self, rank: int) -> None: ...
    def note_lost(self, why: str) -> None: ...
    def note_left(self, key: int, rank: int, seq: int, history: int) -> None: ...
    def note_abort(self, key: int, code: int, text: str, ranks: Sequence[int]) -> None: ...
    def note_verdict(self, key: int, seq: int, behind: Sequence[int], mismatch: str) -> None: ...
    def report(self, key: int, seq: int) -> tuple[int, int, str] | None: ...
    def histories(self, key: int, seq: int) -> list[int]: ...

Array = Any
"""A NumPy array, a torch tensor on the CPU, or anything else with the buffer protocol."""

ReduceName = Literal["sum", "prod", "min", "max", "avg"]
Backend = str | None

class Communicator:
    @overload
    def __init__(
        self,
        host: Host,
        members: list[int],
        rank: int,
        key: int,
        label: str,
        backends: list[str],
        timeout: float,
        open_timeout: float,
    ) -> None: ...
    @overload
    def __init__(
        self, control: Control, members: list[int], rank: int, key: int, label: str, backends: list[str], timeout: float
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
        deps: Sequence[Work] = (),
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
        deps: Sequence[Work] = (),
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
        deps: Sequence[Work] = (),
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
        deps: Sequence[Work] = (),
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
        deps: Sequence[Work] = (),
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
        deps: Sequence[Work] = (),
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def barrier(
        self,
        *,
        backend: Backend = None,
        async_op: Literal[False] = False,
        deps: Sequence[Work] = (),
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def barrier(
        self,
        *,
        backend: Backend = None,
        async_op: Literal[True],
        deps: Sequence[Work] = (),
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def all_gather(
        self,
        out: Array,
        x: Array,
        *,
        backend: Backend = None,
        async_op: Literal[False] = False,
        deps: Sequence[Work] = (),
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
        deps: Sequence[Work] = (),
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def gather(
        self,
        out: Array | None,
        x: Array,
        root: int,
        *,
        backend: Backend = None,
        async_op: Literal[False] = False,
        deps: Sequence[Work] = (),
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def gather(
        self,
        out: Array | None,
        x: Array,
        root: int,
        *,
        backend: Backend = None,
        async_op: Literal[True],
        deps: Sequence[Work] = (),
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def scatter(
        self,
        out: Array,
        x: Array | None,
        root: int,
        *,
        backend: Backend = None,
        async_op: Literal[False] = False,
        deps: Sequence[Work] = (),
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def scatter(
        self,
        out: Array,
        x: Array | None,
        root: int,
        *,
        backend: Backend = None,
        async_op: Literal[True],
        deps: Sequence[Work] = (),
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
        deps: Sequence[Work] = (),
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
        deps: Sequence[Work] = (),
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
        deps: Sequence[Work] = (),
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
        deps: Sequence[Work] = (),
        timeout: float | None = None,
    ) -> Work: ...
    def send(
        self, x: Array, dst: int, tag: int = 0, *, backend: Backend = None, timeout: float | None = None
    ) -> None: ...
    def recv(
        self, x: Array, src: int, tag: int = 0, *, backend: Backend = None, timeout: float | None = None
    ) -> None: ...
    def sendrecv(
        self,
        x: Array,
        dst: int,
        out: Array,
        src: int,
        tag: int = 0,
        out_tag: int | None = None,
        *,
        backend: Backend = None,
        timeout: float | None = None,
    ) -> None: ...
    def _batch(
        self,
        messages: Sequence[tuple[str, Array, int, int]],
        *,
        backend: Backend = None,
        timeout: float | None = None,
    ) -> list[Work]: ...
    def isend(
        self, x: Array, dst: int, tag: int = 0, *, backend: Backend = None, timeout: float | None = None
    ) -> Work: ...
    def irecv(
        self, x: Array, src: int, tag: int = 0, *, backend: Backend = None, timeout: float | None = None
    ) -> Work: ...
    def _gather_for(self, kind: Literal["split", "dup"], out: Array, x: Array) -> None: ...
    def _add_backend(self, collective: Lane, point_to_point: Lane) -> None: ...
    def _set_allowed(self, backends: list[str]) -> None: ...
    def _set_left_out(self, reasons: dict[str, str]) -> None: ...
    def _set_choice(self, kind: str, dtype_class: str, ranges: list[tuple[int, list[int]]]) -> None: ...
    def _refuses(self, backend: str, kind: str, dtype: str, reduction: str | None, nbytes: int) -> str | None: ...
    def _choose(self, kind: str, dtype: str, reduction: str | None, nbytes: int) -> str: ...
    def _records(self) -> bytes: ...
    def _close(self, drain_timeout: float) -> None: ...
