"""gloo, through torch: works between any hosts that TCP connects, on threads of its own."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any, ClassVar, cast

from hocket import _native
from hocket.backends.base import Backend, Job, Lane, Lanes, call_driving
from hocket.errors import Aborted

_REDUCED_TYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool")


class GlooBackend(Backend):
    """One gloo context per lane; they find each other through a store that rank 0 keeps."""

    name: ClassVar[str] = "gloo"

    def __init__(self, store: Any, job: Job) -> None:
        self._store = store
        self._job = job

    @classmethod
    def find_reason_against(cls, job: Job) -> str | None:
        if "torch" not in sys.modules and job.local_size == job.size:  # between hosts it is needed
            return "torch was not imported before hocket.init()"
        return super().find_reason_against(job)

    @classmethod
    def find_obstacle(cls) -> str | None:
        try:
            import torch.distributed as dist
        except ImportError:
            return "torch is not installed: pip install 'hocket[torch]'"
        return None if dist.is_available() and dist.is_gloo_available() else "this build of torch has no gloo"

    @classmethod
    def start(cls, job: Job) -> GlooBackend:
        from torch._C._distributed_c10d import TCPStore

        timeout = _timedelta(job.timeout)
        stores = []

        def listen() -> str:
            stores.append(TCPStore(job.address, 0, is_master=True, wait_for_workers=False, timeout=timeout))
            return f"{job.address} {stores[0].port}"

        host, port = job.from_rank_zero(listen).split()
        if not stores:
            connect = partial(TCPStore, host, int(port), is_master=False, wait_for_workers=False, timeout=timeout)
            stores.append(call_driving("connecting to gloo's store", connect, job.timeout))
        return cls(stores[0], job)

    @property
    def description(self) -> str:
        import torch

        return f"gloo of torch {torch.__version__}, TCP"

    def open_lanes(self, members: Sequence[int], key: int, timeout: float) -> Lanes:
        rank = list(members).index(self._job.rank)
        collective = self._connect(f"{key}/collective", rank, len(members), timeout)
        point_to_point = self._connect(f"{key}/point-to-point", rank, len(members), timeout)
        return Lanes(
            _native.python_lane(GlooCollectiveLane(collective), self.name),
            _native.python_lane(GlooPointToPointLane(point_to_point), self.name),
            # gloo's collectives and messages have slots of their own.
            _native.python_lane(GlooPointToPointLane(collective), self.name),
        )

    def close_lanes(self, key: int) -> None:
        """The native lanes hold the groups, and let them go."""

    def find_reason_not_to_go_on(self, members: Collection[int]) -> str | None:
        return None if 0 in members else "gloo's store was at rank 0, which is gone"

    def _connect(self, prefix: str, rank: int, size: int, timeout: float) -> Any:
        from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        device = os.environ.get("GLOO_SOCKET_IFNAME")  # as torch has it
        place = {"interface": device.split(",")[0]} if device else {"hostname": self._job.address}
        options._devices = [ProcessGroupGloo.create_device(**place)]
        # hocket watches the deadlines; gloo's own only has to come after them.
        options._timeout = _timedelta(2 * timeout + 60)
        options._threads = 1
        try:
            return call_driving(
                "gloo's group", lambda: ProcessGroupGloo(PrefixStore(prefix, self._store), rank, size, options), timeout
            )
        except RuntimeError as error:  # torch's own, where a rank has died meanwhile
            reason = str(error).partition("\n")[0]
            raise Aborted(f"gloo could not connect the ranks of a new communicator: {reason}") from error


class _GlooLane(Lane):
    """What gloo's lanes share."""

    def __init__(self, group: Any) -> None:
        super().__init__(group.size())
        self._group = group
        self._rank = group.rank()


class GlooCollectiveLane(_GlooLane):
    """Collectives; where gloo's own differ from what hocket promises, they are made of others.

    Tokens are (work, its future, what is left to do when it is over). The future is asked rather than given a callback:
    that would run on a thread of gloo's, which ends the process if it comes when the interpreter is about to end.
    """

    polling = "patient"

    depth = 4

    def post(self, operation: _native.LaneOperation, wake: Callable[[], None]) -> object:
        work, finish = _START[operation.kind](self, operation)
        return work, work.get_future(), finish

    def test(self, token: object) -> bool:
        work, future, finish = cast(tuple[Any, Any, Callable[[], None] | None], token)
        if not future.done():
            return False
        work.wait()  # returns in a moment, or raises what went wrong
        if finish is not None:
            finish()
        return True

    def _barrier(self, operation: _native.LaneOperation) -> Any:
        return self._group.barrier(), None

    def _all_reduce(self, operation: _native.LaneOperation) -> Any:
        if not _reduces_as_promised(operation):
            return self._reduce_gathered(operation, range(self.size))
        x = _tensor(operation.out_address, operation.out_nbytes, operation.dtype)
        return self._group.allreduce([x], _options("AllreduceOptions", operation)), None

    def _reduce(self, operation: _native.LaneOperation) -> Any:
        is_root = operation.root == self._rank
        if not _reduces_as_promised(operation):
            return self._reduce_gathered(operation, range(self.size) if is_root else ())
        x = _tensor(operation.in_address, operation.in_nbytes, operation.dtype)
        options = _options("ReduceOptions", operation)
        options.rootRank = operation.root
        # gloo uses the arrays of the others as scratch memory
        return self._group.reduce([x if is_root else x.clone()], options), None

    def _scan(self, operation: _native.LaneOperation) -> Any:
        return self._reduce_gathered(operation, range(self._rank + 1))

    def _reduce_gathered(self, operation: _native.LaneOperation, ranks: Sequence[int]) -> Any:
        """Gather the arrays of all ranks, and reduce those of some as shared memory does."""
        import torch

        gathered = torch.empty(self.size * operation.in_nbytes, dtype=torch.uint8)

        def finish() -> None:
            if ranks:
                _reduce_rows(operation, gathered, ranks)

        return self._group._allgather_base(gathered, _bytes(operation.in_address, operation.in_nbytes)), finish

    def _broadcast(self, operation: _native.LaneOperation) -> Any:
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank = operation.root
        return self._group.broadcast([_bytes(operation.out_address, operation.out_nbytes)], options), None

    def _all_gather(self, operation: _native.LaneOperation) -> Any:
        x = _bytes(operation.in_address, operation.in_nbytes)
        if operation.in_address == operation.out_address + self._rank * operation.nbytes:
            x = x.clone()
        return self._group._allgather_base(_bytes(operation.out_address, operation.out_nbytes), x), None

    def _reduce_scatter(self, operation: _native.LaneOperation) -> Any:
        import torch

        if not _reduces_as_promised(operation):
            nbytes = operation.out_nbytes
            received = torch.empty(self.size * nbytes, dtype=torch.uint8)
            own_sizes = [nbytes] * self.size if operation.in_blocks else []
            x = _bytes(operation.in_address, operation.in_nbytes)
            work = self._group.alltoall_base(received, x, own_sizes, operation.in_blocks)
            return work, lambda: _reduce_rows(operation, received, range(self.size))
        # gloo's own is this all_reduce, with a handle that cannot be asked
        summed = _tensor(operation.in_address, operation.in_nbytes, operation.dtype).clone()
        out = _tensor(operation.out_address, operation.out_nbytes, operation.dtype)
        own = self._own_block(operation, summed)
        return self._group.allreduce([summed], _options("AllreduceOptions", operation)), lambda: out.copy_(own)

    def _gather(self, operation: _native.LaneOperation) -> Any:
        from torch.distributed import GatherOptions

        options = GatherOptions()
        options.rootRank = operation.root
        x = _bytes(operation.in_address, operation.in_nbytes)
        if operation.root != self._rank:
            return self._group.gather([], [x], options), None
        out = _bytes(operation.out_address, operation.out_nbytes)
        if operation.in_address == operation.out_address + self._rank * operation.nbytes:
            x = x.clone()
        return self._group.gather([list(out.view(self.size, operation.nbytes))], [x], options), None

    def _scatter(self, operation: _native.LaneOperation) -> Any:
        from torch.distributed import ScatterOptions

        options = ScatterOptions()
        options.rootRank = operation.root
        out = _bytes(operation.out_address, operation.out_nbytes)
        if operation.root != self._rank:
            return self._group.scatter([out], [], options), None
        x = _bytes(operation.in_address, operation.in_nbytes)
        if operation.out_address == operation.in_address + self._rank * operation.nbytes:
            x = x.clone()
        return self._group.scatter([out], [list(x.view(self.size, operation.nbytes))], options), None

    def _all_to_all(self, operation: _native.LaneOperation) -> Any:
        x = _bytes(operation.in_address, operation.in_nbytes)
        out = _bytes(operation.out_address, operation.out_nbytes)
        return self._group.alltoall_base(out, x, operation.out_blocks, operation.in_blocks), None

    def _own_block(self, operation: _native.LaneOperation, x: Any) -> Any:
        """Return this rank's part of an array of blocks."""
        if not operation.in_blocks:
            return x.view(self.size, -1)[self._rank]
        return x.split([nbytes // x.element_size() for nbytes in operation.in_blocks])[self._rank]

    # gloo has no operations with blocks of different sizes but all_to_all; the others are cases of it.

    def _all_gatherv(self, operation: _native.LaneOperation) -> Any:
        x = _bytes(operation.in_address, operation.in_nbytes).repeat(self.size)
        out = _bytes(operation.out_address, operation.out_nbytes)
        return self._group.alltoall_base(out, x, operation.out_blocks, [operation.in_nbytes] * self.size), None

    def _gatherv(self, operation: _native.LaneOperation) -> Any:
        x = _bytes(operation.in_address, operation.in_nbytes)
        if operation.root != self._rank:
            return self._group.alltoall_base(_bytes(0, 0), x, [0] * self.size, self._to_root(operation, x)), None
        offset = sum(operation.out_blocks[: self._rank])
        if operation.in_address == operation.out_address + offset:
            x = x.clone()
        out = _bytes(operation.out_address, operation.out_nbytes)
        return self._group.alltoall_base(out, x, operation.out_blocks, self._to_root(operation, x)), None

    def _scatterv(self, operation: _native.LaneOperation) -> Any:
        out = _bytes(operation.out_address, operation.out_nbytes)
        if operation.root != self._rank:
            return self._group.alltoall_base(out, _bytes(0, 0), self._to_root(operation, out), [0] * self.size), None
        x = _bytes(operation.in_address, operation.in_nbytes)
        if operation.out_address == operation.in_address + sum(operation.in_blocks[: self._rank]):
            x = x.clone()
        return self._group.alltoall_base(out, x, self._to_root(operation, out), operation.in_blocks), None

    def _to_root(self, operation: _native.LaneOperation, block: Any) -> list[int]:
        """Return the sizes of blocks of which only that of the root holds something."""
        return [block.numel() if rank == operation.root else 0 for rank in range(self.size)]


_START = {
    "barrier": GlooCollectiveLane._barrier,
    "all_reduce": GlooCollectiveLane._all_reduce,
    "reduce": GlooCollectiveLane._reduce,
    "scan": GlooCollectiveLane._scan,
    "broadcast": GlooCollectiveLane._broadcast,
    "all_gather": GlooCollectiveLane._all_gather,
    "split": GlooCollectiveLane._all_gather,
    "dup": GlooCollectiveLane._all_gather,
    "reduce_scatter": GlooCollectiveLane._reduce_scatter,
    "all_to_all": GlooCollectiveLane._all_to_all,
    "gather": GlooCollectiveLane._gather,
    "scatter": GlooCollectiveLane._scatter,
    "all_gatherv": GlooCollectiveLane._all_gatherv,
    "reduce_scatterv": GlooCollectiveLane._reduce_scatter,
    "all_to_allv": GlooCollectiveLane._all_to_all,
    "gatherv": GlooCollectiveLane._gatherv,
    "scatterv": GlooCollectiveLane._scatterv,
}


class GlooPointToPointLane(_GlooLane):
    """Messages. gloo can only wait for one, so each in flight has a thread that does (rule R4)."""

    polling = "none"
    depth = 1 << 20

    def __init__(self, group: Any) -> None:
        super().__init__(group)
        self._waiters = _Waiters()

    def post(self, operation: _native.LaneOperation, wake: Callable[[], None]) -> object:
        if operation.kind == "send":
            x = _bytes(operation.in_address, operation.in_nbytes)
            work = self._group.send([x], operation.root, operation.tag)
        else:
            x = _bytes(operation.out_address, operation.out_nbytes)
            work = self._group.recv([x], operation.root, operation.tag)
        message = _Message(work, x, wake)
        self._waiters.wait_for(message)
        return message

    def test(self, token: object) -> bool:
        message = cast(_Message, token)
        if message.error is not None:
            raise message.error
        return message.is_over


class _Message:
    def __init__(self, work: Any, x: Any, wake: Callable[[], None]) -> None:
        self._work = work
        self._x = x  # gloo does not keep it
        self._wake = wake
        self.error: BaseException | None = None
        self.is_over = False

    def wait(self) -> None:
        try:
            self._work.wait()
        except Exception as error:
            self.error = error
        self.is_over = True
        self._wake()


class _Waiters:
    """As many threads as messages are in flight at once; they stay for the next ones.

    Daemon threads: one that waits for a message that never comes must not keep the process from ending, and must not
    end it by an abort where torch gives the wait up just then.
    """

    def __init__(self) -> None:
        _native.let_threads_outlive_interpreter()
        self._messages: SimpleQueue[_Message] = SimpleQueue()
        self._num_idle = Semaphore(0)

    def wait_for(self, message: _Message) -> None:
        self._messages.put(message)
        if not self._num_idle.acquire(blocking=False):
            Thread(target=self._run, name="hocket gloo message", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._messages.get().wait()
            self._num_idle.release()


def _timedelta(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, 1e9))  # "for ever" is no timedelta


def _reduces_as_promised(operation: _native.LaneOperation) -> bool:
    """Whether gloo's own reduction gives what hocket promises.

    It has few types and no bits; its min and max drop NaN or not, by the order of their operands; and it would round
    the sum of 16-bit floats before the division of an average.
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


def _options(name: str, operation: _native.LaneOperation) -> Any:
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d

    options = getattr(c10d, name)()
    reductions = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN,
                  "max": dist.ReduceOp.MAX, "avg": dist.ReduceOp.AVG}  # fmt: skip
    options.reduceOp = reductions[operation.reduction or "sum"]
    return options


def _bytes(address: int, nbytes: int) -> Any:
    return _tensor(address, nbytes, "uint8")


def _tensor(address: int, nbytes: int, dtype: str) -> Any:
    """View raw memory, which hocket keeps as long as the operation runs."""
    import torch

    kind = torch.uint8 if dtype == "bool" else getattr(torch, dtype)
    if nbytes == 0:
        return torch.empty(0, dtype=kind)
    return torch.frombuffer((ctypes.c_byte * nbytes).from_address(address), dtype=kind)


ADAPTER = GlooBackend
