"""gloo, through torch: works between all hosts with TCP connections, and has its own threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from threading import Lock, Semaphore, Thread
from typing import Any, ClassVar, cast

from hocket import _native
from hocket.backends._declaration import Finding, LinkSpec, Requirements, installed_version
from hocket.backends._torch import (
    GroupCollectives,
    GroupLane,
    Started,
    distributed_or_reason,
    host_tensor,
    reduction_options,
    timedelta_of,
)
from hocket.backends.base import Backend, BackendJob, BlockingLane, Lanes, call_driving
from hocket.errors import Aborted, BackendUnavailable, first_line
from hocket.trace.foreign import own_groups

_REDUCED_TYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool")


class GlooBackend(Backend):
    """One gloo context per lane; the ranks exchange their addresses when it is opened."""

    name: ClassVar[str] = "gloo"
    link: ClassVar[LinkSpec | None] = LinkSpec(100e-6, 1.0)
    link_between_hosts: ClassVar[LinkSpec | None] = LinkSpec(200e-6, 0.9)
    requires: ClassVar[Requirements] = Requirements("torch", {"torch": ("_torch", "_exchanged_store", "gloo")})

    def __init__(self, device: Any, job: BackendJob) -> None:
        # One device for all groups: each device has a thread that wakes up a hundred times a second, even when idle.
        self._device = device
        self._job = job

    @classmethod
    def find_reason_against(cls, job: BackendJob) -> str | None:
        if "torch" not in sys.modules and job.local_size == job.size:  # between hosts it is needed
            return "torch was not imported before hocket.init()"
        return super().find_reason_against(job)

    @classmethod
    def find_obstacle(cls) -> str | None:
        dist, reason = distributed_or_reason()
        if dist is None:
            return reason
        return None if dist.is_gloo_available() else "this build of torch has no gloo"

    @classmethod
    def diagnose(cls) -> Iterator[Finding]:
        version = installed_version("torch")
        if version is None:
            yield Finding("gloo", "note", "torch is not installed", "pip install 'hocket[torch]' for gloo and training")
        else:
            yield Finding("gloo", "good", f"torch {version}")

    @classmethod
    def start(cls, job: BackendJob) -> GlooBackend:
        return cls(_open_device(job), job)

    @property
    def description(self) -> str:
        import torch

        return f"gloo of torch {torch.__version__}, TCP"

    def open_lanes(self, members: Sequence[int], key: int, timeout: float) -> Lanes:
        collective = self._connect(members, f"gloo/{key}/collective", timeout)
        point_to_point = self._connect(members, f"gloo/{key}/point-to-point", timeout)
        return Lanes(
            _native.python_lane(GlooCollectiveLane(collective), self.name),
            _native.python_lane(GlooPointToPointLane(point_to_point), self.name),
            # gloo's collectives and messages have slots of their own.
            _native.python_lane(GlooPointToPointLane(collective), self.name),
        )

    def close_lanes(self, key: int) -> None:
        """Do nothing: the native lanes hold the groups and release them."""

    def why_cannot_shrink(self, members: Collection[int]) -> str | None:
        return None  # each group has its own connections, and no server

    def _connect(self, members: Sequence[int], name: str, timeout: float) -> Any:
        from torch._C._distributed_c10d import ProcessGroupGloo

        from hocket.backends._exchanged_store import ExchangedStore

        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [self._device]
        # hocket enforces the deadlines; gloo's own must only be later.
        options._timeout = timedelta_of(2 * timeout + 60)
        options._threads = 1
        rank, size = list(members).index(self._job.rank), len(members)
        store = ExchangedStore(lambda text: self._job.gather(members, name, text, timeout))

        def make() -> Any:
            with own_groups():
                return ProcessGroupGloo(store, rank, size, options)

        try:
            return call_driving("gloo's group", make, timeout, meanwhile=store.serve)
        except RuntimeError as error:  # torch raises it if a rank dies meanwhile
            raise Aborted(f"gloo could not connect the ranks of a new communicator: {first_line(error)}") from error


def _open_device(job: BackendJob) -> Any:
    """Return gloo's network device; raise BackendUnavailable on all ranks if one rank has no suitable interface."""
    from torch._C._distributed_c10d import ProcessGroupGloo

    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]  # as in torch
    place = {"interface": interface} if interface else {"hostname": job.address}
    device, reason = None, ""
    try:
        device = ProcessGroupGloo.create_device(**place)
    except RuntimeError as error:
        setting = f"GLOO_SOCKET_IFNAME is {interface!r}" if interface else f"its host's address is {job.address}"
        reason = f"has no network interface for gloo ({setting}): {first_line(error)}"
    for rank, of_rank in enumerate(job.exchange(reason)):
        if of_rank:
            raise BackendUnavailable(f"rank {rank} {of_rank}")
    return device


class GlooCollectiveLane(GroupCollectives, BlockingLane):
    """Collectives. If gloo's result would differ from what hocket guarantees, other operations of gloo replace it.

    Tokens are (work, its future, a function to call when it has finished). The future is polled: a callback would run
    on a thread of gloo, which ends the process if the interpreter is just shutting down.
    """

    depth = 4

    def post(self, operation: _native.LaneOperation, wake: Callable[[], None]) -> object:
        work, finish = self.start(operation)
        return work, work.get_future(), finish

    def test(self, token: object) -> bool:
        work, future, finish = cast(tuple[Any, Any, Callable[[], None] | None], token)
        if not future.done():
            return False
        work.wait()  # returns at once, or raises the error
        if finish is not None:
            finish()
        return True

    def blocking_call(self, token: object, seconds: float) -> Callable[[], object]:
        work, *_ = cast(tuple[Any, ...], token)
        return partial(work.wait, timedelta(milliseconds=max(1, round(1000 * seconds))))  # torch takes 0 as no timeout

    def _tensor(self, operation: _native.LaneOperation, address: int, nbytes: int, dtype: str = "uint8") -> Any:
        return host_tensor(address, nbytes, dtype)

    def _barrier(self, operation: _native.LaneOperation) -> Started:
        return self._group.barrier(), None

    _split = _dup = GroupCollectives._all_gather

    def _all_reduce(self, operation: _native.LaneOperation) -> Started:
        if not _reduces_as_promised(operation):
            return self._reduce_gathered(operation, range(self.size))
        return super()._all_reduce(operation)

    def _reduce(self, operation: _native.LaneOperation) -> Started:
        if not _reduces_as_promised(operation):
            return self._reduce_gathered(operation, range(self.size) if operation.root == self._rank else ())
        return super()._reduce(operation)

    def _scan(self, operation: _native.LaneOperation) -> Started:
        return self._reduce_gathered(operation, range(self._rank + 1))

    def _reduce_gathered(self, operation: _native.LaneOperation, ranks: Sequence[int]) -> Started:
        """Gather the arrays of all ranks, and reduce those of `ranks` with the functions of shared memory."""
        import torch

        gathered = torch.empty(self.size * operation.in_nbytes, dtype=torch.uint8)

        def finish() -> None:
            if ranks:
                _reduce_rows(operation, gathered, ranks)

        return self._group._allgather_base(gathered, self._in(operation)), finish

    def _reduce_scatter(self, operation: _native.LaneOperation) -> Started:
        import torch

        if not _reduces_as_promised(operation):
            nbytes = operation.out_nbytes
            received = torch.empty(self.size * nbytes, dtype=torch.uint8)
            own_sizes = [nbytes] * self.size if operation.in_blocks else []
            work = self._group.alltoall_base(received, self._in(operation), own_sizes, operation.in_blocks)
            return work, lambda: _reduce_rows(operation, received, range(self.size))
        # gloo's own reduce_scatter is this all_reduce, but with a handle that cannot be polled
        summed = host_tensor(operation.in_address, operation.in_nbytes, operation.dtype).clone()
        out = host_tensor(operation.out_address, operation.out_nbytes, operation.dtype)
        own = self._own_block(operation, summed)
        work = self._group.allreduce([summed], reduction_options("AllreduceOptions", operation))
        return work, lambda: out.copy_(own)

    _reduce_scatterv = _reduce_scatter

    def _own_block(self, operation: _native.LaneOperation, x: Any) -> Any:
        """Return this rank's part of an array of blocks."""
        if not operation.in_blocks:
            return x.view(self.size, -1)[self._rank]
        return x.split([nbytes // x.element_size() for nbytes in operation.in_blocks])[self._rank]


class GlooPointToPointLane(GroupLane):
    """Messages. gloo can only wait for a message, not poll it, so each one in flight has a waiting thread (rule R4)."""

    polling = "none"
    depth = 1 << 20

    def __init__(self, group: Any) -> None:
        super().__init__(group)
        self._carriers = _Carriers()
        self._starts_here = True

    def post(self, operation: _native.LaneOperation, wake: Callable[[], None]) -> object:
        if operation.kind == "send":
            call, x = self._group.send, host_tensor(operation.in_address, operation.in_nbytes)
        else:
            call, x = self._group.recv, host_tensor(operation.out_address, operation.out_nbytes)
        message = _Message(partial(call, [x], operation.root, operation.tag), wake)
        # gloo's thread spins while another thread holds the lock of a connection that it wants to read. If the rank is
        # bound to one processor, gloo's thread often preempts this thread while it holds the lock, and then runs to the
        # end of its time slice: a round trip of 8 bytes took 1.8 ms, but 0.19 ms if a carrier thread, which hardly
        # computes, starts the messages. With more processors, starting here is faster. Messages must start in order, so
        # once a carrier has started one, carriers start all later ones.
        if self._starts_here and len(os.sched_getaffinity(0)) == 1:
            self._starts_here = False
        if self._starts_here:
            message.start()
        self._carriers.carry(message)
        return message

    def test(self, token: object) -> bool:
        message = cast(_Message, token)
        if message.error is not None:
            raise message.error
        return message.is_over


class _Message:
    def __init__(self, start: Callable[[], Any], wake: Callable[[], None]) -> None:
        self._start = start  # keeps the tensor alive; gloo does not
        self._wake = wake
        self._work: Any = None
        self.is_started = False
        self.error: BaseException | None = None
        self.is_over = False

    def start(self) -> None:
        self.is_started = True
        try:
            self._work = self._start()
        except Exception as error:
            self.error = error

    def finish(self) -> None:
        try:
            if self._work is not None:
                self._work.wait()
        except Exception as error:
            self.error = error
        self.is_over = True
        self._wake()


class _Carriers:
    """One thread per message in flight; threads are reused for later messages.

    They start the messages that were not started before, one at a time and in order.

    Daemon threads: a thread that waits for a message that never arrives must not keep the process alive, and must not
    abort it if torch ends the wait during shutdown.
    """

    def __init__(self) -> None:
        self._messages: SimpleQueue[_Message] = SimpleQueue()
        self._num_idle = Semaphore(0)
        self._order = Lock()

    def carry(self, message: _Message) -> None:
        if not self._num_idle.acquire(blocking=False):
            Thread(target=self._run, name="hocket gloo message", daemon=True).start()
        self._messages.put(message)

    def _run(self) -> None:
        while True:
            with self._order:
                message = self._messages.get()
                if not message.is_started:
                    message.start()
            message.finish()
            self._num_idle.release()


def _reduces_as_promised(operation: _native.LaneOperation) -> bool:
    """Return whether gloo's own reduction gives the result that hocket guarantees.

    gloo has few types and no bitwise reductions. Its min and max drop NaN depending on the order of the operands. It
    rounds the sum of 16-bit floats before the division of an average.
    """
    match operation.reduction:
        case "sum" | "prod":
            return operation.dtype in _REDUCED_TYPES
        case "min" | "max":
            return operation.dtype in _REDUCED_TYPES and "float" not in operation.dtype
        case "avg":
            return operation.dtype in ("float32", "float64")
        case _:
            return False


def _reduce_rows(operation: _native.LaneOperation, rows: Any, ranks: Sequence[int]) -> None:
    nbytes = operation.out_nbytes
    addresses = [rows.data_ptr() + rank * nbytes for rank in ranks]
    _native.reduce_memory(operation.dtype, operation.reduction or "", operation.out_address, addresses, nbytes)


ADAPTER = GlooBackend
