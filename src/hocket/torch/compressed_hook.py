"""Communication hooks of DistributedDataParallel that compress gradients (`Communicator.compressed_all_reduce`).

Annotations are evaluated, since torch reads those of hooks.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch._C._distributed_c10d import GradBucket

from hocket.collectives import Compressor, ElementCodec, OkTopk, PowerSgd, ResidualState
from hocket.collectives import compressor as find_compressor
from hocket.collectives.compressed.kept import KEPT, SCALED, KeptOfTensors
from hocket.collectives.sparse.control import raise_mismatch
from hocket.comm import Communicator
from hocket.comm.unseen import warn_at_the_users_line
from hocket.errors import InvalidArgument, InvalidType, UnsupportedDtype
from hocket.torch.backward import BackwardDrain, in_backward
from hocket.torch.compressed_saved import VERSION, check_hook_state
from hocket.torch.futures import Failure, fail
from hocket.torch.process_group import process_group_of


@dataclass
class _CompressedBucket:
    """What is known of a bucket.

    Args:
        parameters: those whose gradients it holds; kept, so that their ids stay theirs.
        state: of its sums.
        loss_scale: by which residuals and momenta are multiplied.
        latest: words about the latest sum.
    """

    parameters: list[torch.Tensor]
    state: ResidualState
    loss_scale: float
    latest: str = "no sum yet"

    @property
    def ids(self) -> list[int]:
        """Ids of the parameters."""
        return [id(each) for each in self.parameters]

    @property
    def sizes(self) -> list[int]:
        """Numbers of their elements."""
        return [each.numel() for each in self.parameters]

    def follow(self, scale: float) -> None:
        """Scale what is kept to a new scale of the loss."""
        if scale < self.loss_scale:  # a scaler has thrown the last step away, since a gradient was infinite
            self.state.undo()
        if scale != self.loss_scale:
            self.state.scale(scale / self.loss_scale)
            self.loss_scale = scale


class CompressedState:
    """The state of the hook of one model on one rank: residuals of all gradients; see `compressed`.

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
        bucket 0, 4 elements: compressed: dense='never'
        >>> torch.distributed.destroy_process_group()
    """

    def __init__(
        self,
        comm: Communicator,
        compressor: Compressor,
        nonfinite: str,
        dense_steps: int,
        loss_scale: Callable[[], float] | None,
        timeout: float | None,
    ) -> None:
        own = f"{compressor!r}, nonfinite={nonfinite!r}, dense_steps={dense_steps}"
        if len({*comm.all_gather_object(own)}) > 1:
            raise_mismatch(comm, "communication hook", own, {})
        self._comm = comm.dup()
        self._compressor, self._nonfinite, self._dense_steps = compressor, nonfinite, dense_steps
        self._given_scale, self._timeout = loss_scale, timeout
        self._left_parameters: dict[int, torch.Tensor] = {}  # kept, so that their ids stay theirs
        self._buckets: dict[int, _CompressedBucket] = {}
        self._left, self._left_scale = KeptOfTensors(), 1.0
        self._thread = ThreadPoolExecutor(1, "hocket-compressed")
        self._last: Future[None] | None = None
        self._drain = BackwardDrain()

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start to average a bucket: the hook."""
        buffer, dtype = bucket.buffer(), bucket.parameters()[0].dtype  # complex ones have a buffer of reals
        if dtype not in (torch.float32, torch.float16, torch.bfloat16):
            name = str(dtype).removeprefix("torch.")
            raise UnsupportedDtype(f"gradients must be of float32, float16 or bfloat16 to be compressed, not {name}")
        known = self._known(bucket)
        known.follow(self._loss_scale())
        if self._nonfinite == "pass" and self._given_scale is not None:
            known.state.remember()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        is_drained = in_backward()

        def run() -> None:
            step = known.state.num_steps + 1
            is_dense = step <= self._dense_steps
            try:
                found = self._comm.compressed_all_reduce(
                    buffer,
                    OkTopk(dense="always") if is_dense else self._compressor,
                    state=known.state,
                    tensors=[tuple(each.shape) for each in known.parameters],
                    op="avg",
                    nonfinite=self._nonfinite,
                    timeout=self._timeout,
                )
            except BaseException as error:
                # DistributedDataParallel reads this; the end of the backward pass raises the error, with its type.
                fail(future, Failure(error, [buffer] if is_drained else None))
                raise
            why = f"step {step}, and the first {self._dense_steps} are dense" if is_dense else found.why
            known.latest = f"{'dense' if found.is_dense else 'compressed'}: {why}"
            future.set_result(buffer)

        self._last = self._thread.submit(run)
        if is_drained:
            self._drain.add(_HookedSum(self._last, self._settle))
        return future

    def use(self, comm: Communicator) -> None:
        """Go on between other ranks, for example those that `Communicator.shrink` has left; all of them call it.

        Residuals are kept, and scaled so that a mean over the new number of ranks gives them the weight that they had.
        They belong to the parameters of the module; for a new module, take them over by `state_dict` and
        `load_state_dict`.

        Register the hook for a model on the new process group:
        ``model.register_comm_hook(state, CompressedState.reduce)``.

        Raises:
            InvalidType: `comm` is no communicator.
        """
        if not isinstance(comm, Communicator):
            raise InvalidType(f"comm must be a hocket communicator, not {type(comm).__name__}")
        self._collect()
        self._left.scale(comm.size / self._comm.size)
        before, self._comm = self._comm, comm.dup()
        before._leave(0.0)

    def explain(self) -> str:
        """Return a line for each bucket: its size, whether the latest sum was sparse, and why.

        Examples:
            >>> import torch
            >>> hk.torch.ok_topk(comm=comm)[0].explain()
            'no bucket was summed yet'
        """
        lines = [
            f"bucket {index}, {sum(each.sizes)} elements: {each.latest}"
            for index, each in sorted(self._buckets.items())
        ]
        return "\n".join(lines) or "no bucket was summed yet"

    def state_dict(self, model: torch.nn.Module) -> dict[str, Any]:
        """Return what a checkpoint must hold of this rank: what each parameter has, by name.

        Args:
            model: whose gradients are summed, itself or in a DistributedDataParallel.

        Raises:
            InvalidArgument: the hook has summed gradients of another model only.
            InvalidType: it is no torch module.
        """
        scale, named = self._loss_scale(), _named(model)
        self._settle()
        for each in self._buckets.values():
            each.follow(scale)
        found = self._taken_apart(scale)
        if found.residuals and not any(id(each) in found.residuals for each in named.values()):
            raise InvalidArgument(
                f"the hook keeps residuals of {len(found.residuals)} parameters, but of none of this model's "
                f"{len(named)}: give the model that it is registered for"
            )
        saved: dict[str, Any] = {"version": VERSION, "world_size": self._comm.size, "rank": self._comm.rank}
        saved["loss_scale"] = scale
        for what in KEPT:
            of_parameters = getattr(found, what)
            kept = {
                name: torch.from_numpy(of_parameters[id(each)].copy())
                for name, each in named.items()
                if id(each) in of_parameters
            }
            saved[what] = {
                name: each.view(named[name].shape) if what in SCALED else each for name, each in kept.items()
            }
        return saved | {"num_steps": found.num_steps}

    def load_state_dict(self, saved: Mapping[str, Any], model: torch.nn.Module) -> None:
        """Take over what `state_dict` returned on the same rank of as many.

        Raises:
            InvalidArgument, InvalidType: it is not such a dictionary, is of another rank, of another number of ranks
                (see `reshard_residuals`), or of another model; then nothing has changed.
        """
        check_hook_state(saved)
        if saved["world_size"] != self._comm.size:
            raise InvalidArgument(
                f"the residuals are those of one of {saved['world_size']} ranks, but there are {self._comm.size}: "
                "hocket.torch.reshard_residuals makes them fit"
            )
        if saved["rank"] != self._comm.rank:
            raise InvalidArgument(
                f"the residuals are those of rank {saved['rank']}, but this is rank {self._comm.rank}"
            )
        named, left = _named(model), KeptOfTensors(saved["num_steps"])
        for what in KEPT:
            for name, kept in saved[what].items():
                if name not in named:
                    raise InvalidArgument(f"the saved {what} name a parameter {name!r}, which the model does not have")
                if what in SCALED and kept.shape != named[name].shape:
                    shapes = f"{tuple(kept.shape)}, but the parameter {tuple(named[name].shape)}"
                    raise InvalidArgument(f"the saved {what} have for {name} the shape {shapes}")
                array = kept.detach().cpu().float().numpy()
                getattr(left, what)[id(named[name])] = array.reshape(-1) if what in SCALED else array
        self._collect()
        self._left, self._left_scale = left, saved["loss_scale"]
        self._left_parameters = {id(each): each for each in named.values()}

    def _known(self, bucket: GradBucket) -> _CompressedBucket:
        """Return what is known of a bucket; if it has other parameters than before, its residual is put together anew:
        DistributedDataParallel makes new buckets after the first step."""
        parameters = bucket.parameters()
        known = self._buckets.get(bucket.index())
        if known is not None and known.ids == list(map(id, parameters)):
            return known
        if known is not None:
            self._collect()
        known = _CompressedBucket(parameters, ResidualState(f"bucket {bucket.index()}"), self._left_scale)
        self._left.give(known.state, known.ids, known.sizes)
        self._buckets[bucket.index()] = known
        if bucket.is_last() and self._left.residuals:
            warn_at_the_users_line(
                f"the hook keeps residuals of {len(self._left.residuals)} parameters that this model does not have: "
                "take those of another module over by state_dict and load_state_dict"
            )
        return known

    def _taken_apart(self, scale: float) -> KeptOfTensors:
        """Return what all parameters have, for a scale of the loss."""
        found = KeptOfTensors()
        found.add(self._left)
        found.scale(scale / self._left_scale)
        for each in self._buckets.values():
            kept = KeptOfTensors.of(each.state, each.ids, each.sizes)
            kept.scale(scale / each.loss_scale)
            found.add(kept)
        return found

    def _collect(self) -> None:
        """Take the buckets apart, into what each parameter has."""
        self._settle()
        self._left = self._taken_apart(self._left_scale)
        self._left_parameters |= {id(each): each for known in self._buckets.values() for each in known.parameters}
        self._buckets.clear()

    def _settle(self) -> None:
        """Wait for the sums in flight. The program has their errors."""
        if self._last is not None:
            self._last.exception()  # raising it would keep the frames that have led here, and so the model

    def _loss_scale(self) -> float:
        scale = 1.0 if self._given_scale is None else self._given_scale()
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < float("inf"):
            raise InvalidArgument(f"loss_scale must return a finite number above 0, not {scale!r}")
        return scale

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompressedState":
        return self  # copies of a model, such as averages of its weights, exchange no gradients of their own

    def __reduce__(self) -> Any:
        raise InvalidType("the state of a hook cannot be pickled: save what state_dict(model) returns")


class _HookedSum:
    """A sum of a backward pass, whose end raises its error.

    Args:
        future: of the sum.
        settle: waits for all sums in flight.
    """

    def __init__(self, future: Future[None], settle: Callable[[], None]) -> None:
        self._future, self._settle_all = future, settle
        self.is_drained = False

    def wait(self) -> bool:
        error = self._future.exception()  # its messages have deadlines
        if error is not None:
            # The program may leave the group once it has the error, and other ranks take part in the sums after this.
            self._settle_all()
            # A copy: the error itself is in the future that DistributedDataParallel has, and with the frames of the
            # backward pass, to which it would lead, nothing of the model would ever be freed.
            raise copy(error) from None
        return True

    def is_completed(self) -> bool:
        return self._future.done()

    def _settle(self) -> None:
        """The thread has completed the future."""

    def _hand_over(self) -> None:
        """The thread goes on by itself."""


Hook = Callable[[CompressedState, GradBucket], torch.futures.Future[torch.Tensor]]


def compressed(
    compressor: Compressor | str,
    *,
    nonfinite: str = "raise",
    dense_steps: int = 0,
    loss_scale: Callable[[], float] | None = None,
    group: dist.ProcessGroup | None = None,
    comm: Communicator | None = None,
    timeout: float | None = None,
) -> tuple[CompressedState, Hook]:
    """Return state and hook for ``DistributedDataParallel.register_comm_hook``: gradients travel compressed.

    What a compressor loses of a gradient waits in a residual and is added to the gradient of the next step. All ranks
    call this at the same place. Sums go on in a thread while the backward pass does.

    Args:
        compressor: such as ``"power-sgd(rank=2)"``, see `hocket.collectives.compressors`.
        nonfinite: see `Communicator.compressed_all_reduce`. With a `torch.amp.GradScaler`, use "pass": it skips steps
            whose gradients are infinite.
        dense_steps: number of first steps that are dense; the first steps of a training change most.
        loss_scale: returns the factor of the loss, such as `GradScaler.get_scale`; residuals follow it.
        group: the process group of the model, whose backend must be "hocket"; None: the default group.
        comm: a communicator between exactly the ranks of the model instead, for groups of other backends.
        timeout: in seconds, of each message; None: that of the communicator.

    Raises:
        InvalidArgument: an argument is out of range, or the group has another backend.
        InvalidType: an argument has another type.
        CollectiveMismatch: ranks differ in `compressor`, `nonfinite` or `dense_steps`.

    Examples:
        >>> import torch
        >>> store = torch.distributed.FileStore("compressed", 2)
        >>> torch.distributed.init_process_group("hocket", store=store, rank=comm.rank, world_size=2)
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
        >>> model.register_comm_hook(*hk.torch.compressed("cast(bfloat16)"))
        >>> model(torch.tensor([[8.0, 4.0, 2.0, 1.0]])).sum().backward()
        >>> model.module.weight.grad
        tensor([[8., 4., 2., 1.]])
        >>> torch.distributed.destroy_process_group()
    """
    chosen = find_compressor(compressor)
    if nonfinite not in ("raise", "pass"):
        raise InvalidArgument(f"nonfinite must be one of raise, pass, not {nonfinite!r}")
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
    return CompressedState(comm, chosen, nonfinite, dense_steps, loss_scale, timeout), CompressedState.reduce


def ok_topk(
    density: float = 0.01,
    *,
    codec: ElementCodec | None = None,
    dense: str = "auto",
    nonfinite: str = "raise",
    dense_steps: int = 0,
    loss_scale: Callable[[], float] | None = None,
    group: dist.ProcessGroup | None = None,
    comm: Communicator | None = None,
    timeout: float | None = None,
) -> tuple[CompressedState, Hook]:
    """Return state and hook for ``DistributedDataParallel.register_comm_hook``: one line makes its sums sparse.

    Of each bucket the largest elements of all ranks are averaged; the others wait in a residual and are added to the
    gradients of the next step.

    Args:
        density: share of the elements of each bucket, above 0 to 1.
        codec: see `Communicator.sparse_all_reduce`.
        dense: "auto" sums a bucket as a whole where that is faster; "never" and "always".
        nonfinite, dense_steps, loss_scale, group, comm, timeout: see `compressed`.

    Raises:
        InvalidArgument, InvalidType: see `compressed`.

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
    if codec is not None and not isinstance(codec, ElementCodec):
        raise InvalidType(f"codec must be an ElementCodec, as ElementCodec('packed', 'int8'), not {codec!r:.80}")
    codec = codec or ElementCodec()
    return compressed(
        OkTopk(density, codec.places, codec.values, dense),
        nonfinite=nonfinite, dense_steps=dense_steps, loss_scale=loss_scale, group=group, comm=comm, timeout=timeout,
    )  # fmt: skip


def power_sgd(
    rank: int = 1,
    *,
    min_rate: float = 2.0,
    seed: int = 0,
    dense_steps: int = 1000,
    nonfinite: str = "raise",
    loss_scale: Callable[[], float] | None = None,
    group: dist.ProcessGroup | None = None,
    comm: Communicator | None = None,
    timeout: float | None = None,
) -> tuple[CompressedState, Hook]:
    """Return state and hook for ``DistributedDataParallel.register_comm_hook``: PowerSGD, as torch's `powerSGD_hook`.

    It gives what torch's gives for the same seed, but for rounding, and for gradients of zeros, which torch's makes
    NaN. Unlike there, residuals and factors are those of parameters: so it may begin at the first step, and they can
    be saved, and used between other ranks.

    Args:
        rank: number of columns of the factors (torch: matrix_approximation_rank).
        min_rate: a matrix is compressed if its factors are so many times smaller (min_compression_rate).
        seed: of the first factors (random_seed).
        dense_steps: number of first steps that are dense (start_powerSGD_iter).
        nonfinite, loss_scale, group, comm, timeout: see `compressed`.

    Raises:
        InvalidArgument, InvalidType: see `compressed`.

    Examples:
        >>> import torch
        >>> store = torch.distributed.FileStore("power_sgd", 2)
        >>> torch.distributed.init_process_group("hocket", store=store, rank=comm.rank, world_size=2)
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 8, bias=False))
        >>> model.register_comm_hook(*hk.torch.power_sgd(rank=1, dense_steps=0))
        >>> model(torch.ones(1, 16)).sum().backward()  # a gradient of rank 1: nothing is lost
        >>> torch.allclose(model.module.weight.grad, torch.ones(8, 16))
        True
        >>> torch.distributed.destroy_process_group()
    """
    draws = _TorchDraws(seed) if type(seed) is int and seed >= 0 else None
    chosen = PowerSgd(rank, min_rate, seed, draws)
    return compressed(
        chosen,
        nonfinite=nonfinite, dense_steps=dense_steps, loss_scale=loss_scale, group=group, comm=comm, timeout=timeout,
    )  # fmt: skip


class _TorchDraws:
    """The random numbers of torch's PowerSGD: a seed for each time that a bucket needs them."""

    def __init__(self, seed: int) -> None:
        self._seeds = np.random.RandomState(seed)

    def __call__(self, shapes: Sequence[tuple[int, ...]]) -> list[NDArray[np.float32]]:
        generator = torch.Generator().manual_seed(self._seeds.randint(1_000_000_000))
        return [torch.randn(shape, generator=generator).numpy() for shape in shapes]


def _named(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    if not isinstance(model, torch.nn.Module):
        raise InvalidType(f"model must be a torch module, not {type(model).__name__}")
    inner = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    return dict(inner.named_parameters())
