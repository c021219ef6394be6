"""A communication hook of DistributedDataParallel that sends the largest gradients only (`sparse_all_reduce`).

Annotations are evaluated, since torch reads those of hooks.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch._C._distributed_c10d import GradBucket

from hocket.collectives import ElementCodec, SparseState
from hocket.comm import Communicator
from hocket.errors import InvalidArgument, InvalidType
from hocket.torch.backward import BackwardDrain, in_backward
from hocket.torch.futures import Failure, fail
from hocket.torch.process_group import process_group_of

_VERSION = 1


@dataclass
class _SparseBucket:
    """What is known of a bucket.

    Args:
        parameters: those whose gradients it holds; kept, so that their ids stay theirs.
        ends: of their gradients in the bucket.
        state: of its sums.
        loss_scale: by which the residual is multiplied.
        latest: words about the latest sum.
    """

    parameters: list[torch.Tensor]
    ends: list[int]
    state: SparseState
    loss_scale: float
    latest: str = "no sum yet"

    def residuals(self) -> dict[int, NDArray[np.float32]]:
        """Return the residual of each parameter, by its id."""
        if self.state.residual is None:
            return {}
        parts = np.split(self.state.residual, self.ends[:-1])
        return {id(each): part for each, part in zip(self.parameters, parts, strict=True)}


class OkTopkState:
    """The state of the hook of one model on one rank: residuals of all gradients; see `ok_topk`.

    Examples:
        >>> import torch
        >>> store = torch.distributed.FileStore("state", 2)
        >>> torch.distributed.init_process_group("hocket", store=store, rank=comm.rank, world_size=2)
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
        >>> state, hook = hk.torch.ok_topk(density=0.25, dense="never")
        >>> model.register_comm_hook(state, hook)
        >>> model(torch.tensor([[8.0, 4.0, 2.0, 1.0]])).sum().backward()
        >>> state.state_dict(model)["residuals"]["weight"]
        tensor([[0., 4., 2., 1.]])
        >>> print(state.explain())
        bucket 0, 4 elements: sparse: dense='never'
        >>> torch.distributed.destroy_process_group()
    """

    def __init__(
        self,
        comm: Communicator,
        density: float,
        codec: ElementCodec | None,
        nonfinite: str,
        dense: str,
        dense_steps: int,
        loss_scale: Callable[[], float] | None,
    ) -> None:
        self._comm = comm.dup()
        self._options: dict[str, Any] = {"density": density, "codec": codec, "nonfinite": nonfinite}
        self._dense, self._dense_steps = dense, dense_steps
        self._loss_scale = loss_scale or (lambda: 1.0)
        self._buckets: dict[int, _SparseBucket] = {}
        self._left: dict[int, NDArray[np.float32]] = {}  # residuals of parameters whose bucket is not known yet
        self._left_scale = 1.0
        self._thread = ThreadPoolExecutor(1, "hocket-ok-topk")
        self._last: Future[None] | None = None
        self._drain = BackwardDrain()

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start to average a bucket: the hook."""
        known, buffer = self._known(bucket), bucket.buffer()
        scale = self._loss_scale()
        if scale != known.loss_scale:
            known.state.scale(scale / known.loss_scale)
            known.loss_scale = scale
        dense = "always" if known.state.num_steps < self._dense_steps else self._dense
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        is_drained = in_backward()

        def run() -> None:
            try:
                found = self._comm.sparse_all_reduce(buffer, state=known.state, op="avg", dense=dense, **self._options)
            except BaseException as error:
                # DistributedDataParallel reads this; the end of the backward pass raises the error, with its type.
                fail(future, Failure(error, [buffer] if is_drained else None))
                raise
            known.latest = f"{'dense' if found.is_dense else 'sparse'}: {found.why}"
            future.set_result(buffer)

        self._last = self._thread.submit(run)
        if is_drained:
            self._drain.add(_HookedSum(self._last))
        return future

    def use(self, comm: Communicator) -> None:
        """Go on between other ranks, for example those that `Communicator.shrink` has left; all of them call it.

        Residuals are kept, and scaled so that a mean over the new number of ranks gives them the weight that they had.
        Register the hook for a model on the new process group: ``model.register_comm_hook(state, OkTopkState.reduce)``.
        """
        self._collect()
        self._left_scale *= comm.size / self._comm.size
        self._comm = comm.dup()

    def explain(self) -> str:
        """Return a line for each bucket: its size, whether the latest sum was sparse, and why.

        Examples:
            >>> import torch
            >>> hk.torch.ok_topk(comm=comm)[0].explain()
            'no bucket was summed yet'
        """
        lines = [
            f"bucket {index}, {each.ends[-1]} elements: {each.latest}" for index, each in sorted(self._buckets.items())
        ]
        return "\n".join(lines) or "no bucket was summed yet"

    def state_dict(self, model: torch.nn.Module) -> dict[str, Any]:
        """Return what a checkpoint must hold of this rank: a residual for each parameter that has one, by name.

        Args:
            model: whose gradients are summed, itself or in a DistributedDataParallel.
        """
        if self._last is not None:
            self._last.result()
        scale = self._loss_scale()
        found = {
            key: part * np.float32(scale / each.loss_scale)
            for each in self._buckets.values()
            for key, part in each.residuals().items()
        }
        found |= {key: part * np.float32(self._left_scale) for key, part in self._left.items()}
        residuals = {
            name: torch.from_numpy(found[id(each)].copy()).view(each.shape)
            for name, each in _named(model).items()
            if id(each) in found
        }
        return {"version": _VERSION, "world_size": self._comm.size, "loss_scale": scale, "residuals": residuals}

    def load_state_dict(self, saved: Mapping[str, Any], model: torch.nn.Module) -> None:
        """Take over what `state_dict` returned on the same rank of as many.

        Raises:
            InvalidArgument, InvalidType: it is not such a dictionary, is of another number of ranks (see
                `reshard_residuals`), or of another model; then nothing has changed.
        """
        _check_saved(saved)
        if saved["world_size"] != self._comm.size:
            raise InvalidArgument(
                f"the residuals are those of one of {saved['world_size']} ranks, but there are {self._comm.size}: "
                "hocket.torch.reshard_residuals makes them fit"
            )
        named, left = _named(model), {}
        for name, residual in saved["residuals"].items():
            if name not in named:
                raise InvalidArgument(f"the saved residuals name a parameter {name!r}, which the model does not have")
            if residual.shape != named[name].shape:
                shapes = f"{tuple(residual.shape)}, but the parameter {tuple(named[name].shape)}"
                raise InvalidArgument(f"the residual of {name} has the shape {shapes}")
            left[id(named[name])] = residual.detach().cpu().numpy().astype(np.float32).reshape(-1)
        self._collect()
        self._left = left
        self._left_scale = self._loss_scale() / saved["loss_scale"]

    def _known(self, bucket: GradBucket) -> _SparseBucket:
        """Return what is known of a bucket; if it has other parameters than before, its residual is put together anew:
        DistributedDataParallel makes new buckets after the first step."""
        parameters = bucket.parameters()
        known = self._buckets.get(bucket.index())
        if known is not None and list(map(id, known.parameters)) == list(map(id, parameters)):
            return known
        if known is not None:
            self._collect()
        sizes = [each.numel() for each in bucket.gradients()]
        scale = self._loss_scale()
        state = SparseState(f"bucket {bucket.index()}")
        parts = [self._left.pop(id(each), None) for each in parameters]
        if any(part is not None for part in parts):
            whole = [np.zeros(size, np.float32) if part is None else part
                     for part, size in zip(parts, sizes, strict=True)]  # fmt: skip
            state.residual = np.concatenate(whole) * np.float32(self._left_scale)
        known = _SparseBucket(parameters, np.cumsum(sizes).tolist(), state, scale)
        self._buckets[bucket.index()] = known
        return known

    def _collect(self) -> None:
        """Take the buckets apart, into residuals of parameters."""
        if self._last is not None:
            with suppress(Exception):  # the program has its error
                self._last.result()
        scale = self._loss_scale()
        left = {key: part * np.float32(self._left_scale) for key, part in self._left.items()}
        for each in self._buckets.values():
            left |= {key: part * np.float32(scale / each.loss_scale) for key, part in each.residuals().items()}
        self._left, self._left_scale = left, 1.0
        self._buckets.clear()


class _HookedSum:
    """A sum of a backward pass, whose end raises its error."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future
        self.is_drained = False

    def wait(self) -> bool:
        self._future.result()  # its messages have deadlines
        return True

    def is_completed(self) -> bool:
        return self._future.done()

    def _settle(self) -> None:
        """The thread has completed the future."""

    def _hand_over(self) -> None:
        """The thread goes on by itself."""


def ok_topk(
    density: float = 0.01,
    *,
    codec: ElementCodec | None = None,
    nonfinite: str = "raise",
    dense: str = "auto",
    dense_steps: int = 0,
    loss_scale: Callable[[], float] | None = None,
    group: dist.ProcessGroup | None = None,
    comm: Communicator | None = None,
) -> tuple[OkTopkState, Callable[[OkTopkState, GradBucket], torch.futures.Future[torch.Tensor]]]:
    """Return state and hook for ``DistributedDataParallel.register_comm_hook``: one line makes its sums sparse.

    Of each bucket the largest elements of all ranks are averaged; the others wait in a residual and are added to the
    gradients of the next step. All ranks call this at the same place. Sums go on in a thread while the backward pass
    does.

    Args:
        density: share of the elements of each bucket, above 0 to 1.
        codec, nonfinite: see `Communicator.sparse_all_reduce`. With a `torch.amp.GradScaler`, use nonfinite="pass": it
            skips steps whose gradients are infinite.
        dense: "auto" sums a bucket as a whole where that is faster; "never" and "always".
        dense_steps: number of first steps that are dense; the first steps of a training change most.
        loss_scale: returns the factor of the loss, such as `GradScaler.get_scale`; residuals follow it.
        group: the process group of the model, whose backend must be "hocket"; None: the default group.
        comm: a communicator between the ranks of the model instead, for groups of other backends.

    Raises:
        InvalidArgument: an argument is out of range, or the group has another backend.
        InvalidType: an argument has another type.

    Examples:
        >>> import torch
        >>> store = torch.distributed.FileStore("ok_topk", 2)
        >>> torch.distributed.init_process_group("hocket", store=store, rank=comm.rank, world_size=2)
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
        >>> model.register_comm_hook(*hk.torch.ok_topk(density=0.25, dense="never"))
        >>> model(torch.tensor([[8.0, 4.0, 2.0, 1.0]])).sum().backward()
        >>> model.module.weight.grad  # the largest one; the others wait
        tensor([[8., 0., 0., 0.]])
        >>> torch.distributed.destroy_process_group()
    """
    if isinstance(density, bool) or not isinstance(density, (int, float)) or not 0 < density <= 1:
        raise InvalidArgument(f"density must be a number above 0 and at most 1, not {density!r}")
    if codec is not None and not isinstance(codec, ElementCodec):
        raise InvalidType(f"codec must be an ElementCodec, not {type(codec).__name__}")
    for name, value, choices in (
        ("nonfinite", nonfinite, ("raise", "pass")), ("dense", dense, ("auto", "never", "always"))
    ):  # fmt: skip
        if value not in choices:
            raise InvalidArgument(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    if type(dense_steps) is not int or dense_steps < 0:
        raise InvalidArgument(f"dense_steps must be an int of 0 or more, not {dense_steps!r}")
    if loss_scale is not None and not callable(loss_scale):
        raise InvalidType(f"loss_scale must be a function, not {type(loss_scale).__name__}: for example get_scale")
    if comm is None:
        comm = process_group_of(group).communicator
    elif group is not None:
        raise InvalidArgument("give either group or comm")
    elif not isinstance(comm, Communicator):
        raise InvalidType(f"comm must be a hocket communicator, not {type(comm).__name__}")
    return OkTopkState(comm, density, codec, nonfinite, dense, dense_steps, loss_scale), OkTopkState.reduce


def reshard_residuals(saved: Sequence[Mapping[str, Any]], num_ranks: int) -> list[dict[str, Any]]:
    """Return the residuals of a checkpoint for another number of ranks; nothing of them is lost.

    The residual of old rank r goes to new rank r mod `num_ranks`, scaled so that a mean over the new ranks gives it
    the weight that it had.

    Args:
        saved: what `OkTopkState.state_dict` returned on all ranks, in their order.
        num_ranks: new number of ranks.

    Raises:
        InvalidArgument, InvalidType: one is not such a dictionary, or they are not those of all ranks.

    Examples:
        >>> import torch
        >>> old = [{"version": 1, "world_size": 2, "loss_scale": 1.0, "residuals": {"w": torch.ones(2) * rank}}
        ...        for rank in (1, 2)]
        >>> hk.torch.reshard_residuals(old, 1)[0]["residuals"]["w"]  # (1 + 2) / 2
        tensor([1.5000, 1.5000])
    """
    if type(num_ranks) is not int or num_ranks < 1:
        raise InvalidArgument(f"num_ranks must be an int of 1 or more, not {num_ranks!r}")
    for each in saved:
        _check_saved(each)
        if each["world_size"] != len(saved):
            raise InvalidArgument(f"there are {len(saved)} saved states, but they are of {each['world_size']} ranks")
    scale = saved[0]["loss_scale"] if saved else 1.0
    made: list[dict[str, torch.Tensor]] = [{} for _ in range(num_ranks)]
    for rank, each in enumerate(saved):
        for name, residual in each["residuals"].items():
            part = residual * (num_ranks / len(saved) * scale / each["loss_scale"])
            into = made[rank % num_ranks]
            into[name] = into[name] + part if name in into else part
    return [{"version": _VERSION, "world_size": num_ranks, "loss_scale": scale, "residuals": each} for each in made]


def _named(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    inner = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    return dict(inner.named_parameters())


def _check_saved(saved: Any) -> None:
    """Check that something has the form of `OkTopkState.state_dict`."""
    if not isinstance(saved, Mapping):
        raise InvalidType(f"saved residuals must be a mapping, not {type(saved).__name__}")
    known = {"version", "world_size", "loss_scale", "residuals"}
    if set(saved) != known:
        raise InvalidArgument(f"saved residuals must have {sorted(known)}, not {sorted(map(str, saved))}")
    if saved["version"] != _VERSION:
        raise InvalidArgument(f"the saved residuals have version {saved['version']!r}, but this is version {_VERSION}")
    if type(saved["world_size"]) is not int or saved["world_size"] < 1:
        raise InvalidArgument(f"world_size must be an int of 1 or more, not {saved['world_size']!r}")
    scale = saved["loss_scale"]
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < float("inf"):
        raise InvalidArgument(f"loss_scale must be a finite number above 0, not {scale!r}")
    if not isinstance(saved["residuals"], Mapping):
        raise InvalidType(f"residuals must be a mapping, not {type(saved['residuals']).__name__}")
    for name, residual in saved["residuals"].items():
        if not isinstance(residual, torch.Tensor) or not residual.is_floating_point() or residual.is_meta:
            raise InvalidArgument(f"the residual of {name!r} must be a tensor of floats, not {residual!r:.80}")
        if not bool(torch.isfinite(residual).all()):
            raise InvalidArgument(f"the residual of {name!r} is not finite")
