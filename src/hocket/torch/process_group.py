"""torch.distributed's process group over a hocket communicator."""

# torch calls these methods in one of the forms that its stubs declare as overloads.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    Backend,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Store,
)

from hocket import _native
from hocket.comm import Communicator
from hocket.errors import HocketError, InvalidArgument
from hocket.torch.as_backend import AsBackend
from hocket.torch.backward import BackwardDrain, in_backward
from hocket.torch.call_forms import in_all_forms
from hocket.torch.carried import copier_back, movable, reducible
from hocket.torch.devices import dispatched_by_device
from hocket.torch.monitored import LEAST_LIMIT_S, monitored_barrier
from hocket.torch.options import requested_backend
from hocket.torch.profile import profiled
from hocket.torch.reductions import reduction_of
from hocket.torch.regrouping import merge_remote_group, split_group
from hocket.torch.sparse import reduce_sparse
from hocket.torch.tensors import items_of_splits, pack, unpack
from hocket.torch.untraced import untraced
from hocket.torch.work import AnySourceWork, HocketWork, JoinedWork


@untraced
@dispatched_by_device
@in_all_forms
class HocketProcessGroup(AsBackend, dist.ProcessGroup):
    """The "hocket" backend. Operations are asynchronous unless torch requests a blocking one.

    Args:
        communicator: communicator of the ranks of the group.
        elsewhere: torch's own groups for tensors on other devices, by device.
        timeout_s: default timeout of operations in seconds; None: the timeout of the communicator.
        store: the store through which the ranks found each other, for `get_group_store`.
    """

    def __init__(
        self,
        communicator: Communicator,
        elsewhere: Mapping[str, dist.ProcessGroup] | None = None,
        timeout_s: float | None = None,
        store: Store | None = None,
    ) -> None:
        # Only the form without a store makes a group that Python can extend.
        super().__init__(communicator.rank, communicator.size)  # type: ignore[call-arg]
        # torch reads the devices of a group (`_device_types`), for example to load or save checkpoints.
        kinds = dist.ProcessGroup.BackendType
        self._register_backend(torch.device("cpu"), kinds.CUSTOM, None)
        self._elsewhere = dict(elsewhere or {})
        self._backends_elsewhere = [
            group._get_backend(torch.device(device)) for device, group in self._elsewhere.items()
        ]
        for device, backend in zip(self._elsewhere, self._backends_elsewhere, strict=True):
            kind = kinds.NCCL if backend.name() == "nccl" else kinds.CUSTOM
            self._register_backend(torch.device(device), kind, backend)
        communicator._check_grad = False  # torch.distributed writes into leaves that require grad, as gloo does
        self.communicator = communicator
        self._drain = BackwardDrain()
        self._group_name = self._group_desc = "undefined"
        self._timeout_s = timeout_s
        self._store = store
        self._coalescing: list[HocketWork] | None = None

    def getBackendName(self) -> str:
        return "hocket"

    def _get_backend(self, device: torch.device) -> Any:
        return self if device.type == "cpu" else super()._get_backend(device)

    @property
    def options(self) -> Backend.Options:
        return Backend.Options("hocket", timedelta(seconds=self._timeout_s or self.communicator.timeout))

    # FSDP2 calls these to allocate its buffers in shared memory, where collectives need no copies.
    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return device.type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        tensor: torch.Tensor = self.communicator.empty(size, dtype)
        return tensor

    # torch stores names in the C++ backends of a group, which a Python group does not have.
    def getGroupName(self) -> str:
        return self._group_name

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupDesc(self) -> str:
        return self._group_desc

    def setGroupDesc(self, description: str) -> None:
        self._group_desc = description

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None, *args: Any) -> HocketWork:
        opts, x = opts or AllreduceOptions(), _one(tensors)
        if x.is_sparse:
            call = partial(reduce_sparse, self.communicator, x, reduction_of(opts, x.dtype))  # blocks
            return self._issue("sparse_all_reduce", opts, [x], [x], call)
        carried = reducible([x])
        call = partial(self.communicator.all_reduce, carried[0], reduction_of(opts, x.dtype))
        return self._issue("all_reduce", opts, [x], [x], call, finish=copier_back([x], carried))

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> HocketWork:
        opts, xs = opts or AllreduceCoalescedOptions(), list(tensors)
        carried = reducible(xs)
        call = partial(
            self.communicator.all_reduce_coalesced, carried, reduction_of(opts, xs[0].dtype) if xs else "sum"
        )
        return self._issue("all_reduce_coalesced", opts, xs, xs, call, finish=copier_back(xs, carried))

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> HocketWork:
        opts, x = opts or BroadcastOptions(), _one(tensors)
        return self._issue("broadcast", opts, [x], [x], partial(self.communicator.broadcast, movable(x), opts.rootRank))

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> HocketWork:
        opts, x = opts or ReduceOptions(), _one(tensors)
        carried = reducible([x])
        call = partial(self.communicator.reduce, carried[0], opts.rootRank, reduction_of(opts, x.dtype))
        return self._issue("reduce", opts, [x], [x], call, finish=copier_back([x], carried))

    def barrier(self, opts: Any = None) -> HocketWork:
        return self._issue("barrier", opts or BarrierOptions(), [], [], self.communicator.barrier)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; the error names all missing ranks, whatever the value of `wait_all_ranks`."""
        limit_s = self._timeout_s if timeout is None else max(timeout.total_seconds(), LEAST_LIMIT_S)
        monitored_barrier(self.communicator, limit_s)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> HocketWork:
        return self._issue(
            "all_gather",
            opts or AllgatherOptions(),
            [input],
            [output],
            partial(self.communicator.all_gather, movable(output), movable(input)),
        )

    all_gather_single = _allgather_base

    def allgather(
        self, output_lists: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> HocketWork:
        outputs, x = self._one_per_rank(_one(output_lists), "all_gather", "outputs"), _one(inputs)
        counts = [output.numel() for output in outputs]
        flat = movable(x).new_empty(sum(counts))
        # Every rank has the same list of shapes, so all ranks take the same branch.
        if len(set(counts)) == 1:
            call = partial(self.communicator.all_gather, flat, movable(x))
        else:
            call = partial(self.communicator.all_gatherv, flat, movable(x), counts)
        return self._issue(
            "all_gather",
            opts or AllgatherOptions(),
            [x],
            outputs,
            call,
            finish=lambda: unpack(outputs, flat),
        )

    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> HocketWork:
        """Gather several tensors; `output_lists` has, for each rank, a list of equally many tensors."""
        xs, opts = list(inputs), opts or AllgatherOptions()
        flats = [movable(x).new_empty(self.size() * x.numel()) for x in xs]
        by_input = list(zip(*output_lists, strict=True))

        def finish() -> None:
            for outputs, flat in zip(by_input, flats, strict=True):
                unpack(outputs, flat)

        return self._issue_all(
            "all_gather_coalesced",
            opts,
            xs,
            [output for outputs in output_lists for output in outputs],
            [partial(self.communicator.all_gather, flat, movable(x)) for flat, x in zip(flats, xs, strict=True)],
            finish=finish,
        )

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> HocketWork:
        return self._issue_all(
            "all_gather_coalesced",
            opts or AllgatherOptions(),
            list(inputs),
            list(outputs),
            [
                partial(self.communicator.all_gather, movable(out), movable(x))
                for out, x in zip(outputs, inputs, strict=True)
            ],
        )

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(
        self, output_lists: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> HocketWork:
        opts = opts or GatherOptions()
        x, is_root = _one(inputs), opts.rootRank == self.rank()
        outputs = self._one_per_rank(_one(output_lists), "gather", "outputs") if is_root else []
        flat = movable(x).new_empty(sum(output.numel() for output in outputs)) if is_root else None
        return self._issue(
            "gather",
            opts,
            [x],
            outputs,
            partial(self.communicator.gather, flat, movable(x), opts.rootRank),
            finish=lambda: unpack(outputs, flat) if flat is not None else None,
        )

    def scatter(
        self, outputs: Sequence[torch.Tensor], input_lists: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> HocketWork:
        opts, out = opts or ScatterOptions(), _one(outputs)
        is_root = opts.rootRank == self.rank()
        inputs = self._one_per_rank(_one(input_lists), "scatter", "inputs") if is_root else []
        packed = pack(inputs) if inputs else None
        return self._issue(
            "scatter",
            opts,
            inputs,
            [out],
            partial(self.communicator.scatter, movable(out), packed, opts.rootRank),
        )

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> HocketWork:
        opts = opts or ReduceScatterOptions()
        out, x = reducible([output, input])
        call = partial(self.communicator.reduce_scatter, out, x, reduction_of(opts, input.dtype))
        return self._issue("reduce_scatter", opts, [input], [output], call, finish=copier_back([output], [out]))

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter(
        self, outputs: Sequence[torch.Tensor], input_lists: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> HocketWork:
        output, opts = _one(outputs), opts or ReduceScatterOptions()
        inputs = self._one_per_rank(_one(input_lists), "reduce_scatter", "inputs")
        (out,), packed = reducible([output]), pack(reducible(inputs))
        counts, reduction = [x.numel() for x in inputs], reduction_of(opts, inputs[0].dtype)
        if len(set(counts)) == 1:
            call = partial(self.communicator.reduce_scatter, out, packed, reduction)
        else:
            call = partial(self.communicator.reduce_scatterv, out, packed, counts, reduction)
        return self._issue("reduce_scatter", opts, inputs, [output], call, finish=copier_back([output], [out]))

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> HocketWork:
        opts = opts or ReduceScatterOptions()
        carried = reducible(outputs)
        return self._issue_all(
            "reduce_scatter_coalesced",
            opts,
            list(inputs),
            list(outputs),
            [
                partial(self.communicator.reduce_scatter, out, x, reduction_of(opts, x.dtype))
                for out, x in zip(carried, reducible(inputs), strict=True)
            ],
            finish=copier_back(outputs, carried),
        )

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> HocketWork:
        # Always with counts: other ranks may have unequal sizes even if this rank's sizes are equal.
        opts = opts or AllToAllOptions()
        out_counts = items_of_splits(output, output_split_sizes, self.size())
        in_counts = items_of_splits(input, input_split_sizes, self.size())
        return self._issue(
            "all_to_all",
            opts,
            [input],
            [output],
            partial(self.communicator.all_to_allv, movable(output), movable(input), out_counts, in_counts),
        )

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None) -> HocketWork:
        # Always with counts: other ranks may have unequal shapes even if this rank's shapes are equal.
        outputs = self._one_per_rank(outputs, "all_to_all", "outputs")
        inputs = self._one_per_rank(inputs, "all_to_all", "inputs")
        out_counts, in_counts = [x.numel() for x in outputs], [x.numel() for x in inputs]
        packed = pack(inputs)
        flat = packed.new_empty(sum(out_counts))
        return self._issue(
            "all_to_all",
            opts or AllToAllOptions(),
            list(inputs),
            list(outputs),
            partial(self.communicator.all_to_allv, flat, packed, out_counts, in_counts),
            finish=lambda: unpack(outputs, flat),
        )

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int = 0) -> HocketWork:
        with profiled("send", tensors) as event:
            native = self.communicator.isend(movable(_one(tensors)), dst, tag, backend=requested_backend())
        return HocketWork(native, list(tensors), event=event)

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int = 0) -> HocketWork:
        with profiled("recv", tensors) as event:
            native = self.communicator.irecv(movable(_one(tensors)), src, tag, backend=requested_backend())
        return HocketWork(native, list(tensors), source=src, event=event)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> AnySourceWork:
        x = _one(tensors)
        carrier = requested_backend() or self.communicator.explain("recv", x.nbytes, str(x.dtype).split(".")[-1]).chosen
        if carrier != "shm":
            raise InvalidArgument(
                f"a message from any source can be received over shm only, and {carrier} would carry this one: name "
                "the source, or pass backend='shm' on both ranks (hocket.torch.dist)"
            )
        with profiled("recvAnySource", tensors) as event:  # gloo's name for it
            return AnySourceWork(self.communicator, movable(x), tag, event)

    recv_any_source = recv_anysource

    # Operations between these two calls are issued without waiting: those that torch's manager does not collect itself.
    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> HocketWork | None:
        works, self._coalescing = self._coalescing, None
        return JoinedWork(works) if works else None

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the default timeout of operations."""
        self._timeout_s = timeout.total_seconds()
        for backend in self._backends_elsewhere:
            backend.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        records = self.communicator.records()
        return max((record.seq for record in records if record.op not in ("send", "recv")), default=0)

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: hocket's numbers begin at one on every rank; gloo and NCCL agree on a first number here."""

    def get_group_store(self) -> Store | None:
        return self._store

    split_group = split_group
    merge_remote_group = merge_remote_group

    def _wait_for_pending_works(self) -> None:
        self.communicator.synchronize()

    def shutdown(self) -> None:
        """Wait for operations in flight and close the communicator; called by ``dist.destroy_process_group()``."""
        for backend in self._backends_elsewhere:
            backend.shutdown()
        self.communicator.finalize()

    def abort(self) -> None:
        for backend in self._backends_elsewhere:
            backend.abort()
        self.communicator.abort("the process group was aborted")
        self.communicator._leave(0.0)

    def _issue(
        self,
        name: str,
        opts: Any,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        call: Callable[..., _native.Work | None],
        finish: Callable[[], object] | None = None,
    ) -> HocketWork:
        """Call ``call(async_op=, timeout=, backend=)``; wait for the operation if torch requests a blocking one."""
        backward = in_backward()
        is_async = backward or self._coalescing is not None or getattr(opts, "asyncOp", True)
        with profiled(name, inputs) as event:
            asynchronously = is_async or event is not None  # a profiled operation must end in the progress thread
            native = call(async_op=asynchronously, timeout=self._limit_s(opts), backend=requested_backend())
        work = HocketWork(native, outputs, finish, event=event)
        if asynchronously and not is_async:
            work.wait()
        return self._keep(work, backward)

    def _issue_all(
        self,
        name: str,
        opts: Any,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        calls: Sequence[Callable[..., _native.Work | None]],
        finish: Callable[[], object] | None = None,
    ) -> HocketWork:
        """Issue several operations without waiting, as one work."""
        with profiled(name, inputs) as event:
            options = {"async_op": True, "timeout": self._limit_s(opts), "backend": requested_backend()}
            works = [HocketWork(call(**options), []) for call in calls]
        work = self._keep(JoinedWork(works, outputs, finish, event), in_backward())
        if not getattr(opts, "asyncOp", True):
            work.wait()
        return work

    def _one_per_rank(self, tensors: Sequence[torch.Tensor], name: str, what: str) -> list[torch.Tensor]:
        """Return the tensors as a list, after checking that it has one tensor for each rank.

        If it does not, issue a barrier, which the other ranks' operations do not match, so that these fail, too.
        """
        if len(tensors) != self.size():
            with suppress(HocketError):
                self.communicator.barrier(timeout=self._timeout_s)
            raise InvalidArgument(
                f"{what} of {name} must be one tensor for each of {self.size()} ranks, not {len(tensors)}"
            )
        return list(tensors)

    def _limit_s(self, opts: Any) -> float | None:
        return _seconds(opts) or self._timeout_s

    def _keep(self, work: HocketWork, backward: bool) -> HocketWork:
        if self._coalescing is not None:
            self._coalescing.append(work)
        if backward:
            self._drain.add(work)
        return work


def process_group_of(group: Any = None) -> HocketProcessGroup:
    """Return a process group; None: the default group.

    Raises:
        InvalidArgument: its backend is not "hocket".
    """
    group = group if group is not None else dist.group.WORLD
    if group is None:
        raise InvalidArgument(
            'there is no process group yet: call torch.distributed.init_process_group("hocket") before'
        )
    if not isinstance(group, HocketProcessGroup):
        raise InvalidArgument(f"the process group must have backend 'hocket', not {dist.get_backend(group)!r}")
    return group


def _one(items: Sequence[Any]) -> Any:
    if len(items) != 1:
        raise InvalidArgument(f"the list must have one tensor for this process, not {len(items)}")
    return items[0]


def _seconds(opts: Any) -> float | None:
    timeout = getattr(opts, "timeout", None)
    # torch sets -1 ms, or None, for the group's default
    return timeout.total_seconds() if timeout is not None and timeout > timedelta(0) else None
