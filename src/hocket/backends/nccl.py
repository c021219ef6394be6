"""NCCL, through torch: collectives on arrays in the memory of NVIDIA GPUs, one GPU a rank.

Messages it does not carry. NCCL's own wait in one stream for each other, so that two ranks which each send first and
receive then would wait for ever.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, NamedTuple, cast

from hocket import _native
from hocket.backends._torch import (
    GroupCollectives,
    Started,
    connect_store,
    distributed_or_reason,
    reduction_options,
    timedelta_of,
)
from hocket.backends.base import Backend, Job, Lane, Lanes, call_driving
from hocket.errors import Aborted, BackendUnavailable

_MOVING = ("broadcast", "all_gather", "gather", "scatter", "all_to_all", "all_gatherv", "gatherv", "scatterv",
           "all_to_allv")  # fmt: skip
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("int8", "uint8", "int32", "int64")


class Gpu(NamedTuple):
    """The one that a rank uses: torch's current device when the library is brought up."""

    number: int
    name: str  # the same for nobody else


class NcclBackend(Backend):
    """One NCCL communicator per lane; they find each other through a store that rank 0 keeps."""

    name: ClassVar[str] = "nccl"
    is_optional: ClassVar[bool] = True

    def __init__(self, store: Any, job: Job, gpu: Gpu) -> None:
        self._store = store
        self._job = job
        self._gpu = gpu
        self._groups: dict[int, Any] = {}

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
    def start(cls, job: Job) -> NcclBackend:
        gpu = job.all_or_none(own_gpu)
        ranks: dict[str, int] = {}
        for rank, name in enumerate(job.exchange(gpu.name)):
            other = ranks.setdefault(name, rank)
            if other != rank:
                raise BackendUnavailable(
                    f"ranks {other} and {rank} use the same GPU ({name}), and NCCL takes one a rank; call "
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
            return open_group(f"{key}/nccl", self._store, rank, len(members), self._gpu, timeout)

        try:
            group = call_driving("NCCL's group", connect, timeout)
        except RuntimeError as error:  # torch's own, where a rank has died meanwhile
            reason = str(error).partition("\n")[0]
            raise Aborted(f"NCCL could not connect the ranks of a new communicator: {reason}") from error
        self._groups[key] = group
        return Lanes(
            *(
                _native.python_lane(adapter, self.name)
                for adapter in (NcclCollectiveLane(group), _NoMessages(len(members)), _NoMessages(len(members)))
            )
        )

    def close_lanes(self, key: int) -> None:
        if key in self._groups:
            # What is in flight was given up: a kernel that waits for a rank which is gone would run for ever.
            self._groups.pop(key).abort()

    def find_reason_not_to_go_on(self, members: Collection[int]) -> str | None:
        return None if 0 in members else "NCCL's store was at rank 0, which is gone"


class NcclCollectiveLane(GroupCollectives):
    """What NCCL has and does as hocket promises it; the rest it refuses. Tokens are what `start` returns."""

    memory = "device"
    polling = "patient"
    depth = 4

    def refuses(self, kind: str, dtype: str, reduction: str | None) -> str | None:
        if kind in _MOVING:
            return None
        if kind not in _REDUCING:
            return f"NCCL has no {kind}"
        if reduction in ("sum", "prod"):
            return None if dtype in _FLOATS + _INTEGERS else f"NCCL does not reduce {dtype}"
        if reduction in ("min", "max"):
            # of floats it drops NaN, or not
            return None if dtype in _INTEGERS else f"NCCL's {reduction} of {dtype} is another one"
        if reduction == "avg" and dtype in ("float32", "float64"):
            return None
        return f"NCCL has no {reduction} of {dtype}"

    def post(self, operation: _native.LaneOperation, wake: Callable[[], None]) -> object:
        return self.start(operation)

    def test(self, token: object) -> bool:
        work, _ = cast(Started, token)
        if not work.is_completed():
            return False
        work.wait()  # raises what went wrong
        return True

    def _tensor(self, operation: _native.LaneOperation, address: int, nbytes: int, dtype: str = "uint8") -> Any:
        return device_tensor(operation.device or 0, address, nbytes, dtype)

    def _reduce_scatter(self, operation: _native.LaneOperation) -> Started:
        x = self._tensor(operation, operation.in_address, operation.in_nbytes, operation.dtype)
        out = self._tensor(operation, operation.out_address, operation.out_nbytes, operation.dtype)
        return self._group._reduce_scatter_base(out, x, reduction_options("ReduceScatterOptions", operation)), None


class _NoMessages(Lane):
    """Refuses all there is."""

    memory = "device"

    def refuses(self, kind: str, dtype: str, reduction: str | None) -> str | None:
        return "NCCL's messages wait for each other in one stream; over other libraries they do not"

    def post(self, operation: _native.LaneOperation, wake: Callable[[], None]) -> object:
        raise NotImplementedError(operation.kind)

    def test(self, token: object) -> bool:
        raise NotImplementedError


def own_gpu() -> Gpu:
    """Return the GPU of this process."""
    import torch

    number = torch.cuda.current_device()
    return Gpu(number, f"GPU {torch.cuda.get_device_properties(number).uuid} of {socket.gethostname()}")


def open_group(prefix: str, store: Any, rank: int, size: int, gpu: Gpu, timeout: float) -> Any:
    """Connect the ranks of a new communicator; in flight afterwards is nothing."""
    import torch
    from torch._C._distributed_c10d import PrefixStore, ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    # hocket watches the deadlines; torch's own, which ends the process, only has to come after them.
    options._timeout = timedelta_of(2 * timeout + 60)
    group: Any = ProcessGroupNCCL(PrefixStore(prefix, store), rank, size, options)
    # NCCL connects with the first operation, and waits for the others in it: here, where a wait has a deadline.
    with torch.cuda.device(gpu.number):
        group.allreduce([torch.zeros(1, device=f"cuda:{gpu.number}")]).wait()
        torch.cuda.current_stream().synchronize()
    return group


class _DeviceMemory:
    """What exports raw memory to torch."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 3,
        }  # fmt: skip


def device_tensor(device: int, address: int, nbytes: int, dtype: str) -> Any:
    """View raw memory of a device."""
    import torch

    place = torch.device("cuda", device)
    kind = getattr(torch, dtype)
    if nbytes == 0:
        return torch.empty(0, dtype=kind, device=place)
    return torch.as_tensor(_DeviceMemory(address, nbytes), device=place).view(kind)


ADAPTER = NcclBackend
