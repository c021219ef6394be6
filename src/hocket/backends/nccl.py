"""NCCL, through torch: collectives on arrays in the memory of NVIDIA GPUs, one GPU per rank.

It does not carry messages. NCCL's messages wait for each other in one stream, so two ranks that both send first and
then receive would wait forever.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, cast

from hocket import _native
from hocket.backends._declaration import Requirements, Tested
from hocket.backends._refusing import RefusingLane
from hocket.backends._torch import (
    GroupCollectives,
    Started,
    connect_store,
    distributed_or_reason,
    reduction_options,
    timedelta_of,
)
from hocket.backends.base import Backend, BackendJob, Lanes, call_driving
from hocket.errors import Aborted, BackendUnavailable, CommTimeout, first_line
from hocket.trace.foreign import own_groups
from hocket.trace.log import logger

_MOVING = ("broadcast", "all_gather", "gather", "scatter", "all_to_all", "all_gatherv", "gatherv", "scatterv",
           "all_to_allv")  # fmt: skip
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("int8", "uint8", "int32", "int64")
_NO_MESSAGES = "NCCL's messages wait for each other in one stream; use another library for messages"
_UNWATCHED = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
_CLOSE_S = 10.0  # longest wait for ranks that hang, when a communicator is closed


class Gpu(NamedTuple):
    """The GPU of a rank: torch's current device when the library is started."""

    number: int
    name: str  # unique among all GPUs of the job


class NcclBackend(Backend):
    """One NCCL communicator per lane; ranks find each other through a store that rank 0 hosts."""

    name: ClassVar[str] = "nccl"
    is_optional: ClassVar[bool] = True
    requires: ClassVar[Requirements] = Requirements("torch", {"torch": ("_torch", "nccl")})
    left_files: ClassVar[tuple[str, ...]] = ("nccl-*",)
    tested: ClassVar[Tested | None] = None  # tests/memory/test_nccl.py

    def __init__(self, store: Any, job: BackendJob, gpu: Gpu) -> None:
        self._store = store
        self._job = job
        self._gpu = gpu
        self._lanes: dict[int, NcclCollectiveLane] = {}

    @classmethod
    def find_obstacle(cls) -> str | None:
        dist, reason = distributed_or_reason()
        if dist is None:
            return reason
        import torch

        if not dist.is_nccl_available():
            return f"this build of torch ({torch.__version__}) has no NCCL"
        return None if torch.cuda.is_available() else "torch finds no CUDA device"

    @classmethod
    def start(cls, job: BackendJob) -> NcclBackend:
        gpu = job.all_or_none(own_gpu)
        ranks: dict[str, int] = {}
        for rank, name in enumerate(job.exchange(gpu.name)):
            other = ranks.setdefault(name, rank)
            if other != rank:
                raise BackendUnavailable(
                    f"ranks {other} and {rank} use the same GPU ({name}), but NCCL needs one GPU per rank; call "
                    "torch.cuda.set_device(local_rank) before hocket.init()"
                )
        return cls(connect_store(job, cls.name), job, gpu)

    @property
    def description(self) -> str:
        import torch

        version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        return f"NCCL {version} of torch {torch.__version__}, arrays on {self._gpu.name}"

    def open_lanes(self, members: Sequence[int], key: int, timeout: float) -> Lanes:
        rank = list(members).index(self._job.rank)

        def connect() -> Any:
            with own_groups():
                return open_group(f"{key}/nccl", self._store, rank, len(members), self._gpu)

        try:
            group = call_driving("NCCL's group", connect, timeout)
        except RuntimeError as error:  # torch raises it if a rank dies meanwhile
            raise Aborted(f"NCCL could not connect the ranks of a new communicator: {first_line(error)}") from error
        collective = self._lanes[key] = NcclCollectiveLane(group, self._gpu)
        messages = (RefusingLane(len(members), _NO_MESSAGES, self._gpu.number) for _ in range(2))
        return Lanes(*(_native.python_lane(lane, self.name) for lane in (collective, *messages)))

    def close_lanes(self, key: int) -> None:
        if key in self._lanes:
            self._lanes.pop(key).close()

    def why_cannot_shrink(self, members: Collection[int]) -> str | None:
        return None if 0 in members else "NCCL's store was on rank 0, which is gone"


class NcclCollectiveLane(GroupCollectives):
    """The collectives that NCCL computes as hocket guarantees; all others are refused. `start` returns the tokens."""

    polling = "patient"
    depth = 4

    def __init__(self, group: Any, gpu: Gpu) -> None:
        super().__init__(group)
        self.device = self._gpu = gpu.number
        self._is_closed = False

    def refuses(self, kind: str, dtype: str, reduction: str | None) -> str | None:
        if kind in _MOVING:
            return None
        if kind not in _REDUCING:
            return f"NCCL has no {kind}"
        if reduction in ("sum", "prod"):
            return None if dtype in _FLOATS + _INTEGERS else f"NCCL does not reduce {dtype}"
        if reduction in ("min", "max"):
            # for floats it may drop NaN
            return None if dtype in _INTEGERS else f"NCCL's {reduction} of {dtype} may drop NaN"
        if reduction == "avg":
            return "NCCL's avg divides before it sums"
        return f"NCCL has no {reduction}"

    def post(self, operation: _native.LaneOperation, wake: Callable[[], None]) -> object:
        return self.start(operation)

    def test(self, token: object) -> bool:
        work, _ = cast(Started, token)
        if not work.is_completed():
            return False
        work.wait()  # raises the error, if any
        return True

    def give_up(self, token: object) -> bool:
        """Abort the kernels: a kernel that waits for a dead rank would occupy the GPU forever."""
        self._abort()
        return True

    def close(self) -> None:
        """Shut the group down; operations in flight on other ranks may still need this rank's part."""
        if self._is_closed:
            return
        try:
            call_driving("NCCL's end", self._group.shutdown, _CLOSE_S)
        except (CommTimeout, RuntimeError) as error:
            logger.warning("nccl: a communicator did not shut down and is aborted: %s", error)
            self._abort()
        self._is_closed = True

    def _abort(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._group.abort()
        except RuntimeError as error:  # nothing more can be done
            logger.warning("nccl: a communicator could not be aborted: %s", error)

    def _tensor(self, operation: _native.LaneOperation, address: int, nbytes: int, dtype: str = "uint8") -> Any:
        return device_tensor(self._gpu, address, nbytes, dtype)

    def _reduce_scatter(self, operation: _native.LaneOperation) -> Started:
        x = self._tensor(operation, operation.in_address, operation.in_nbytes, operation.dtype)
        out = self._tensor(operation, operation.out_address, operation.out_nbytes, operation.dtype)
        return self._group._reduce_scatter_base(out, x, reduction_options("ReduceScatterOptions", operation)), None


def own_gpu() -> Gpu:
    """Return the GPU of this process."""
    import torch

    number = torch.cuda.current_device()
    return Gpu(number, f"GPU {torch.cuda.get_device_properties(number).uuid} of {socket.gethostname()}")


def open_group(prefix: str, store: Any, rank: int, size: int, gpu: Gpu) -> Any:
    """Connect the ranks of a new communicator; no operation is in flight afterwards."""
    import torch
    from torch._C._distributed_c10d import PrefixStore, ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    # hocket detects timeouts and deaths, and aborts the group; torch would end the process.
    options._timeout = timedelta_of(math.inf)
    with _environment(_UNWATCHED):
        group: Any = ProcessGroupNCCL(PrefixStore(prefix, store), rank, size, options)
    # NCCL connects in the first operation and waits for the other ranks. Run one here, where waits have deadlines.
    with torch.cuda.device(gpu.number):
        group.allreduce([torch.zeros(1, device=f"cuda:{gpu.number}")]).wait()
        torch.cuda.current_stream().synchronize()
    return group


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables that torch reads when a group is made, for this group only."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _DeviceMemory:
    """An object that exports raw memory to torch."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 3,
        }  # fmt: skip


def device_tensor(device: int, address: int, nbytes: int, dtype: str) -> Any:
    """Return a tensor view of raw memory of a device."""
    import torch

    place = torch.device("cuda", device)
    kind = getattr(torch, dtype)
    if nbytes == 0:
        return torch.empty(0, dtype=kind, device=place)
    return torch.as_tensor(_DeviceMemory(address, nbytes), device=place).view(kind)


ADAPTER = NcclBackend
