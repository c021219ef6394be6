"""The native core of hocket: the names that its Python code uses."""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, Required, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray

CONSTANTS: dict[str, int]
OP_NAMES: tuple[str, ...]
FOREIGN_NAMES: tuple[str, ...]
TRANSFER_NAMES: tuple[str, ...]
PROGRAM_NAMES: tuple[str, ...]
IO_NAMES: tuple[str, ...]
IO_ROUTE_NAMES: tuple[str, ...]
PROCESS_NAMES: tuple[str, ...]
REDUCING_OPS: tuple[str, ...]
ITEM_NBYTES: dict[str, int]
WITH_COUNTS: dict[str, str]
DTYPE_NAMES: tuple[str, ...]
REDUCE_NAMES: tuple[str, ...]
DTYPE_CLASS_NAMES: tuple[str, ...]
PROC_NULL: int
ISA: str

def mismatch_head(seq: int, wanted: Sequence[str]) -> str: ...
def set_num_sharing(num_ranks: int) -> None: ...
def start_progress_thread() -> None: ...
def stop_progress_thread() -> None: ...
def has_progress_thread() -> bool: ...
def clock_anchor() -> tuple[int, int]: ...
def ticks_are_tsc() -> bool: ...
def region(name: str, step: int | None = None) -> AbstractContextManager[Any]: ...
def control_event(name: str, nbytes: int, /) -> AbstractContextManager[Any]: ...
def mark(name: str, step: int | None = None) -> None: ...
def counter(name: str, value: float, /) -> None: ...
def recorder_handle() -> tuple[int, str]: ...
def begin_io(name: str, kind: int, route: int, offset: int) -> tuple[int, int, int, int, int, int]: ...
def end_io(begun: tuple[int, int, int, int, int, int], nbytes: int, error: int) -> None: ...
def time_events(num_events: int) -> float: ...
def set_records_operations(wanted: bool) -> None: ...
def chunk_bytes(num_ranks: int) -> int: ...
def is_forked_child() -> bool: ...
def has_single_copy() -> bool: ...
def progress() -> None: ...
def fail_at_exit() -> None: ...
def take_unseen() -> BaseException | None: ...
def reduce_memory(
    dtype: str, op: str, out_address: int, source_addresses: Sequence[int], nbytes: int, second_out_address: int = 0
) -> None: ...
def use_memory_driver(driver: object | None) -> None: ...
def forget_buffer(address: int) -> None: ...
def pointer_cache_counters() -> dict[str, int]: ...
def simulate(
    duration_s: NDArray[np.float64],
    nbytes: NDArray[np.float64],
    after_task: NDArray[np.int32],
    after_other: NDArray[np.int32],
    uses_task: NDArray[np.int32],
    uses_resource: NDArray[np.int32],
    crosses_task: NDArray[np.int32],
    crosses_link: NDArray[np.int32],
    capacity: NDArray[np.int32],
    in_order: NDArray[np.uint8],
    bandwidth: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], int]: ...
def python_lane(adapter: object, backend: str, library: DrivenLibrary | None = None) -> Lane: ...
def split_lane(backend: str, first: Lane, second: Lane, shares: Shares) -> Lane: ...

class Work:
    """The handle of an operation in flight; dropping it does not cancel the operation."""

    def wait(self, timeout: float | None = None) -> None: ...
    def test(self) -> bool: ...
    def __await__(self) -> Generator[Any]: ...
    def exception(self) -> BaseException | None: ...
    def _drive(self) -> bool: ...
    def _peek(self) -> BaseException | None: ...
    done: Final[bool]
    @property
    def seq(self) -> int: ...
    def _on_finished(self, callback: Callable[[], object]) -> None: ...
    def _set_background(self) -> None: ...

class Prepared:
    """An operation whose arguments were checked once; made by `Communicator.prepare`.

    Call it to issue the operation and wait. `start` only issues it; `wait` and `test` are as for a `Work`. It keeps the
    tensors and arrays, and reads their content at every start. If a tensor has got other memory (``x.data = y``), that
    memory is used; with another size or type `InvalidState` is raised. NumPy refuses to resize an array that is kept.
    """

    def __call__(self) -> None: ...
    def start(self) -> None: ...
    def wait(self, timeout: float | None = None) -> None: ...
    def test(self) -> bool: ...
    def _set_again(self, again: Callable[[], Prepared]) -> None: ...

class Lane:
    """A lane of a foreign library; a communicator takes ownership of it."""

class Shares:
    """The share of an operation that the first of two libraries carries, from 0 to 1; one half by default."""

    def set(self, ranges: dict[str, list[tuple[int, float]]]) -> None:
        """Set the shares for operations that are issued from now on.

        Args:
            ranges: for each operation, in order of size: (largest number of bytes, share); "send" stands for messages.
                Operations that are not named are split in halves.

        Raises:
            InvalidArgument: an operation is not known, or a share is not between 0 and 1.
        """

class LaneOperation:
    """An operation in the form that a backend written in Python gets; sizes in bytes, memory as addresses."""

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
    def in_blocks(self) -> list[int]: ...
    @property
    def out_blocks(self) -> list[int]: ...
    @property
    def in_address(self) -> int: ...
    @property
    def in_nbytes(self) -> int: ...
    @property
    def out_address(self) -> int: ...
    @property
    def out_nbytes(self) -> int: ...

class MpiLibrary:
    """The functions of a loaded and initialised MPI library; handles are numbers."""

    def __init__(
        self,
        *,
        path: str,
        backend: str,
        handle_nbytes: int,
        in_place: int,
        max_tag: int,
        any_source: int,
        error_truncate: int,
        byte: int,
        datatypes: dict[str, int],
        reductions: dict[str, int],
    ) -> None: ...
    def collective_lane(self, communicator: int, rank: int, size: int) -> Lane: ...
    def point_to_point_lane(self, communicator: int, rank: int, size: int) -> Lane: ...

class DrivenLibrary:
    """A library that moves data only during calls of `drive`, which must not block."""

    def __init__(self, drive: Callable[[], object]) -> None: ...
    def note_use(self) -> None: ...

class SharedMemory:
    """Bytes that all ranks of the host can access; freed with the last reference. Has the buffer protocol."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Host:
    """The ranks of a job that share a host."""

    def __init__(self, name: str, rank: int, size: int, timeout: float) -> None: ...
    rank: Final[int]
    size: Final[int]
    num_cpus: Final[int]
    def allocate(self, nbytes: int) -> SharedMemory:
        """Return memory that all ranks of the host can access."""
    @property
    def num_allocated(self) -> int:
        """Number of bytes that this rank has allocated."""
    def gone(self) -> list[int]:
        """Return the ranks of this host that have died or left the job."""
    def set_finalized(self) -> None: ...

class VirtualRanks:
    """Ranks that are threads of this process; one runs at a time, on a virtual clock.

    Args:
        collective_s: called with (key of the communicator, kind, nbytes, root, members); returns the time in seconds.
        message: called with (source, destination, nbytes); see `hocket.collectives.simulate.MessageCost`.
        moves_data: False: only time passes, and arrays are not changed.
    """

    def __init__(
        self,
        num_ranks: int,
        collective_s: Callable[[int, str, int, int, list[int]], float],
        message: Callable[[int, int, int], tuple[float, float, Sequence[int]]],
        moves_data: bool,
    ) -> None: ...
    def open_lanes(self, key: int, members: list[int], rank: int) -> tuple[Lane, Lane, Lane]: ...
    def start(self) -> None:
        """Let the first rank run; each rank's thread calls `begin`, which returns when the rank may run, and `end`."""
    def begin(self, rank: int) -> None: ...
    def end(self, rank: int) -> None: ...
    def leave_out(self, rank: int) -> None:
        """Declare that a rank will never begin; called before `start`."""
    moves_data: Final[bool]
    def stop(self, reason: str) -> None: ...
    def stopped(self) -> str: ...  # why it has stopped; empty while it runs
    def now_s(self, rank: int) -> float: ...

def is_virtual_rank() -> bool: ...
def virtual_now_s() -> float: ...
def pass_virtual_time(seconds: float) -> None: ...

class Control:
    """The state of ranks on other hosts (`places`: of each rank), and messages to them; see `hocket.boot.control`."""

    def __init__(self, places: Sequence[str]) -> None: ...
    def fileno(self) -> int: ...
    def take_notices(self) -> list[dict[str, Any]]: ...
    def note_death(self, rank: int) -> None: ...
    def dead(self) -> list[int]: ...
    def note_lost(self, why: str) -> None: ...
    def note_left(self, key: int, rank: int, seq: int, history: int) -> None: ...
    def note_abort(self, key: int, code: int, text: str, ranks: Sequence[int]) -> None: ...
    def note_verdict(self, key: int, seq: int, behind: Sequence[int], mismatch: str) -> None: ...
    def report(self, key: int, seq: int) -> tuple[int, int, str, str] | None: ...
    def histories(self, key: int, seq: int) -> list[int]: ...

Array = Any
"""A NumPy array, a torch tensor, or another object with the buffer protocol or DLPack."""

ReduceName = Literal["sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "land", "lor", "lxor"]
Reduction = ReduceName | str  # a built-in reduction, or the name of a registered one
Backend = str | None

class Options(TypedDict, total=False):
    """The options of every collective.

    backend: name of the library that carries it; None: the policy chooses.
    algorithm: name of a schedule, or a schedule; "native": the library's own algorithm; None: the policy chooses.
    deps: earlier collectives of this communicator that must complete before it starts.
    timeout: seconds; None: the communicator's timeout.
    """

    backend: Backend
    algorithm: object
    deps: Sequence[Work]
    timeout: float | None

class Blocking(Options, total=False):
    async_op: Literal[False]

class Asynchronous(Options, total=False):
    async_op: Required[Literal[True]]

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
        self,
        control: Control,
        host: Host,
        members: list[int],
        host_numbers: list[int],
        rank: int,
        key: int,
        label: str,
        backends: list[str],
        timeout: float,
        open_timeout: float,
    ) -> None: ...
    @overload
    def __init__(
        self,
        ranks: VirtualRanks,
        members: list[int],
        rank: int,
        key: int,
        label: str,
        backends: list[str],
        timeout: float,
        open_timeout: float,
    ) -> None: ...
    rank: Final[int]
    size: Final[int]
    timeout: Final[float]
    _label: Final[str]
    _closed: Final[bool]
    _check_grad: bool
    _carries_object: bool
    _on_failure: Callable[[Any, BaseException], object] | None

    @overload
    def all_reduce(self, x: Array, op: Reduction = "sum", **how: Unpack[Blocking]) -> None: ...
    @overload
    def all_reduce(self, x: Array, op: Reduction = "sum", **how: Unpack[Asynchronous]) -> Work: ...
    @overload
    def reduce(self, x: Array, root: int, op: Reduction = "sum", **how: Unpack[Blocking]) -> None: ...
    @overload
    def reduce(self, x: Array, root: int, op: Reduction = "sum", **how: Unpack[Asynchronous]) -> Work: ...
    @overload
    def scan(self, x: Array, op: Reduction = "sum", **how: Unpack[Blocking]) -> None: ...
    @overload
    def scan(self, x: Array, op: Reduction = "sum", **how: Unpack[Asynchronous]) -> Work: ...
    @overload
    def broadcast(self, x: Array, root: int, **how: Unpack[Blocking]) -> None: ...
    @overload
    def broadcast(self, x: Array, root: int, **how: Unpack[Asynchronous]) -> Work: ...
    @overload
    def all_reduce_coalesced(self, xs: Sequence[Array], op: ReduceName = "sum", **how: Unpack[Blocking]) -> None: ...
    @overload
    def all_reduce_coalesced(
        self, xs: Sequence[Array], op: ReduceName = "sum", **how: Unpack[Asynchronous]
    ) -> Work: ...
    @overload
    def broadcast_coalesced(self, xs: Sequence[Array], root: int, **how: Unpack[Blocking]) -> None: ...
    @overload
    def broadcast_coalesced(self, xs: Sequence[Array], root: int, **how: Unpack[Asynchronous]) -> Work: ...
    @overload
    def barrier(self, **how: Unpack[Blocking]) -> None: ...
    @overload
    def barrier(self, **how: Unpack[Asynchronous]) -> Work: ...
    @overload
    def all_gather(self, out: Array, x: Array, **how: Unpack[Blocking]) -> None: ...
    @overload
    def all_gather(self, out: Array, x: Array, **how: Unpack[Asynchronous]) -> Work: ...
    @overload
    def gather(self, out: Array | None, x: Array, root: int, **how: Unpack[Blocking]) -> None: ...
    @overload
    def gather(self, out: Array | None, x: Array, root: int, **how: Unpack[Asynchronous]) -> Work: ...
    @overload
    def scatter(self, out: Array, x: Array | None, root: int, **how: Unpack[Blocking]) -> None: ...
    @overload
    def scatter(self, out: Array, x: Array | None, root: int, **how: Unpack[Asynchronous]) -> Work: ...
    @overload
    def reduce_scatter(self, out: Array, x: Array, op: Reduction = "sum", **how: Unpack[Blocking]) -> None: ...
    @overload
    def reduce_scatter(self, out: Array, x: Array, op: Reduction = "sum", **how: Unpack[Asynchronous]) -> Work: ...
    @overload
    def all_to_all(self, out: Array, x: Array, **how: Unpack[Blocking]) -> None: ...
    @overload
    def all_to_all(self, out: Array, x: Array, **how: Unpack[Asynchronous]) -> Work: ...
    @overload
    def all_gatherv(self, out: Array, x: Array, counts: Sequence[int], **how: Unpack[Blocking]) -> None: ...
    @overload
    def all_gatherv(self, out: Array, x: Array, counts: Sequence[int], **how: Unpack[Asynchronous]) -> Work: ...
    @overload
    def reduce_scatterv(
        self,
        out: Array,
        x: Array,
        counts: Sequence[int],
        op: ReduceName = "sum",
        **how: Unpack[Blocking],
    ) -> None: ...
    @overload
    def reduce_scatterv(
        self,
        out: Array,
        x: Array,
        counts: Sequence[int],
        op: ReduceName = "sum",
        **how: Unpack[Asynchronous],
    ) -> Work: ...
    @overload
    def all_to_allv(
        self,
        out: Array,
        x: Array,
        out_counts: Sequence[int],
        in_counts: Sequence[int],
        **how: Unpack[Blocking],
    ) -> None: ...
    @overload
    def all_to_allv(
        self,
        out: Array,
        x: Array,
        out_counts: Sequence[int],
        in_counts: Sequence[int],
        **how: Unpack[Asynchronous],
    ) -> Work: ...
    @overload
    def gatherv(
        self,
        out: Array | None,
        x: Array,
        counts: Sequence[int],
        root: int,
        **how: Unpack[Blocking],
    ) -> None: ...
    @overload
    def gatherv(
        self,
        out: Array | None,
        x: Array,
        counts: Sequence[int],
        root: int,
        **how: Unpack[Asynchronous],
    ) -> Work: ...
    @overload
    def scatterv(
        self,
        out: Array,
        x: Array | None,
        counts: Sequence[int],
        root: int,
        **how: Unpack[Blocking],
    ) -> None: ...
    @overload
    def scatterv(
        self,
        out: Array,
        x: Array | None,
        counts: Sequence[int],
        root: int,
        **how: Unpack[Asynchronous],
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
        self, messages: Sequence[tuple[str, Array, int, int]], *, backend: Backend = None, timeout: float | None = None
    ) -> list[Work]: ...
    def _find_sender(self, tag: int) -> int | None: ...
    def isend(
        self, x: Array, dst: int, tag: int = 0, *, backend: Backend = None, timeout: float | None = None
    ) -> Work: ...
    def irecv(
        self, x: Array, src: int, tag: int = 0, *, backend: Backend = None, timeout: float | None = None
    ) -> Work: ...
    def _set_preparing(self, value: bool) -> None: ...
    def _begin_coalescing(self) -> None: ...
    def _end_coalescing(self) -> list[Work]: ...
    def _gather_for(self, kind: Literal["split", "dup"], out: Array, x: Array) -> None: ...
    def _add_backend(self, collective: Lane, point_to_point: Lane, schedules: Lane) -> None: ...
    def _set_allowed(self, backends: list[str]) -> None: ...
    def _set_left_out(self, reasons: dict[str, str]) -> None: ...
    def _set_choice(self, kind: str, dtype_class: str, ranges: list[tuple[int, list[tuple[int, int]]]]) -> None: ...
    def _add_program(
        self,
        kind: str,
        name: str,
        num_blocks: int,
        num_slots: int,
        ports: int,
        group_size: int,
        rounds: NDArray[np.int32],
        sources: NDArray[np.int32],
        destinations: NDArray[np.int32],
        blocks: NDArray[np.int32],
        source_slots: NDArray[np.int32],
        destination_slots: NDArray[np.int32],
        reduces: NDArray[np.bool_],
    ) -> int: ...
    def _program_names(self) -> list[str]: ...
    def _refuses(self, backend: str, kind: str, dtype: str, reduction: str | None, nbytes: int) -> str | None: ...
    def _choose(self, kind: str, dtype: str, reduction: str | None, nbytes: int) -> tuple[str, str]: ...
    def _records(self, most: int = ...) -> bytes: ...
    def _set_turn(self, num_collectives: int) -> int: ...
    def _abort(self, reason: str) -> None: ...
    def _drain(self, timeout: float) -> bool: ...
    def _close(self, drain_timeout: float) -> tuple[BaseException | None, str]: ...
